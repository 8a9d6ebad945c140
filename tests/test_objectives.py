"""The formulas against autograd, closed forms, other libraries and the paper's stated gradients."""
from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from promptcal.trainers.functional.objectives import (
    LEAST_ENTROPY,
    balance,
    confident_views,
    dispersion,
    entropy,
    frobenius_orthogonality,
    huber,
    live_weights,
    marginal_entropy,
    normalise,
    orthogonality,
    pair_similarities,
    percentile_of,
    semantic_separation,
)
from torch import Tensor


def unit_rows(classes: int, width: int = 32, seed: int = 0, alike: float = 1.0) -> Tensor:
    """Random prototypes with a common part, so that cosines are positive as CLIP's are."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    return F.normalize(x + alike * torch.randn(width, generator=generator, dtype=torch.float64), dim=-1)


def gradient(f, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x), x)[0]


def test_entropy_of_known_distributions():
    assert entropy(torch.zeros(5)).item() == pytest.approx(math.log(5))
    assert entropy(torch.tensor([1000.0, 0.0, 0.0])).item() == pytest.approx(0)


def test_selection_keeps_the_lowest_entropies_and_gives_the_plain_view_no_privilege():
    sharpness = torch.tensor([0.1, 5.0, 1.0, 9.0, 0.5, 7.0, 0.2, 3.0, 2.0, 4.0])
    logits = sharpness[:, None] * torch.tensor([1.0, 0.0, -1.0])
    assert confident_views(logits, 0.3).tolist() == [3, 5, 1]
    assert confident_views(logits.expand(2, -1, -1), 0.3).tolist() == [[3, 5, 1]] * 2
    assert confident_views(torch.randn(64, 7), 0.1).shape == (6,)


def test_marginal_entropy_is_the_entropy_of_the_mean_prediction():
    logits = torch.randn(3, 6, 9, dtype=torch.float64) * 4
    mean = logits.softmax(-1).mean(-2)
    torch.testing.assert_close(marginal_entropy(logits), -(mean * mean.log()).sum(-1))


def test_marginal_entropy_survives_impossible_classes():
    logits = torch.tensor([[0.0, -1e30], [0.0, -1e30]], requires_grad=True)
    value = marginal_entropy(logits)
    value.backward()
    assert value.item() == 0 and logits.grad.isfinite().all()


def test_dispersion_against_loops():
    text = unit_rows(7)
    centroid = sum(text) / 7
    torch.testing.assert_close(dispersion(text), sum((t - centroid).square().sum().sqrt() for t in text) / 7)


@pytest.mark.parametrize("classes", [2, 3, 10, 40])
def test_closed_orthogonality_equals_the_cubic_form_in_value_and_gradient(classes: int):
    text = unit_rows(classes, seed=classes)
    assert orthogonality(text).item() == pytest.approx(reference.cubic_orthogonality(text).item(), rel=1e-14)
    ours, cubic = gradient(orthogonality, text), gradient(reference.cubic_orthogonality, text)
    assert ((ours - cubic).norm() / cubic.norm()).item() < 1e-13


def test_closed_orthogonality_has_no_nan_where_the_reflector_vanishes():
    text = torch.eye(4, dtype=torch.float64)  # S = I: every row already lies on its axis
    assert reference.cubic_orthogonality(text).isnan()
    assert orthogonality(text).item() == 0
    assert gradient(orthogonality, text).isfinite().all()


def test_frobenius_gradient_is_the_papers_up_to_counting_pairs_twice():
    text = unit_rows(6)
    similarity = text @ text.T
    hollow = similarity - similarity.diag().diag()
    stated = 2 * hollow @ text  # ∇_i = 2 Σ_{k≠i} s_ik t_k, for each pair counted once
    # ‖S − I‖² counts each pair twice, and moving t_i off the sphere also changes s_ii: 4 (s_ii − 1) t_i = 0 here.
    torch.testing.assert_close(gradient(frobenius_orthogonality, text), 2 * stated)


def test_huber_gradient_is_the_papers():
    text, delta = unit_rows(8), 0.4
    similarity = text @ text.T
    bounded = similarity.clamp(max=delta)
    bounded.fill_diagonal_(0)
    stated = bounded @ text  # ∇_i = Σ_{k≠i} min(s_ik, δ) t_k
    torch.testing.assert_close(gradient(lambda t: huber(pair_similarities(t), delta).sum(), text), stated)


def test_huber_against_torch_and_at_its_edges():
    s = torch.linspace(0, 1, 101, dtype=torch.float64)
    torch.testing.assert_close(huber(s, 0.3), F.huber_loss(s, torch.zeros_like(s), delta=0.3, reduction="none"))
    assert huber(torch.tensor(0.3), 0.3).item() == pytest.approx(0.045)
    assert huber(torch.tensor(-0.8), 0.3).item() == pytest.approx(0.32)  # below δ it stays quadratic, as printed
    assert (huber(s, 0.0) == 0).all()


def test_semantic_separation_against_the_reference():
    text = unit_rows(12)
    torch.testing.assert_close(semantic_separation(text, 20, "minmax"), reference.soc_penalty(text))
    ours = gradient(lambda t: semantic_separation(t, 20, "minmax"), text)
    torch.testing.assert_close(ours, gradient(reference.soc_penalty, text))


def test_normalisations():
    s = torch.tensor([0.2, 0.5, 0.8])
    torch.testing.assert_close(normalise(s, "minmax"), torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(normalise(s, "max"), torch.tensor([0.25, 0.625, 1.0]))
    torch.testing.assert_close(normalise(s, "shift"), torch.tensor([0.0, 0.3, 0.6]))


@pytest.mark.parametrize("norm", ["minmax", "max", "shift"])
@pytest.mark.parametrize("text", [
    unit_rows(1), unit_rows(2), unit_rows(1).expand(5, -1), torch.eye(4, dtype=torch.float64),
], ids=["one class", "two classes", "all alike", "orthogonal"])
@pytest.mark.parametrize("statistics", ["detached", "flow", "flow_delta"])
def test_semantic_separation_is_defined_where_similarities_do_not_differ(text: Tensor, norm: str, statistics: str):
    value = semantic_separation(text, 20, norm, statistics)
    slope = gradient(lambda t: semantic_separation(t, 20, norm, statistics), text)
    assert value.isfinite() and slope.isfinite().all()
    if len(text) == 1:
        assert value == 0 and (slope == 0).all()


@pytest.mark.parametrize("norm", ["minmax", "max", "shift"])
@pytest.mark.parametrize("statistics", ["detached", "flow", "flow_delta"])
def test_gradient_runs_through_the_statistics_it_should(norm: str, statistics: str):
    """Finite differences of the formula in plain numpy, where detached statistics keep their old values."""
    text = unit_rows(9, width=6, seed=3)
    rows, columns = np.triu_indices(9, 1)

    def known(t: np.ndarray) -> tuple[np.ndarray, float, float]:
        s = (t @ t.T)[rows, columns]
        return s, s.min(), s.max()

    def normalised(s: np.ndarray, low: float, high: float) -> np.ndarray:
        return {"minmax": (s - low) / (high - low), "max": s / high, "shift": s - low}[norm]

    old = known(text.numpy())
    old_delta = np.percentile(normalised(*old), 20)

    def value(t: np.ndarray) -> float:
        s, *edges = known(t)
        x = normalised(s, *(old[1:] if statistics == "detached" else edges))
        delta = np.percentile(x, 20) if statistics == "flow_delta" else old_delta
        return np.where(x <= delta, x**2 / 2, delta * (x - delta / 2)).mean()

    slope = np.empty(text.shape)
    for place in np.ndindex(*text.shape):
        step = np.zeros(text.shape)
        step[place] = 1e-6
        slope[place] = (value(text.numpy() + step) - value(text.numpy() - step)) / 2e-6
    ours = gradient(lambda t: semantic_separation(t, 20, norm, statistics), text)
    torch.testing.assert_close(ours, torch.from_numpy(slope), rtol=1e-5, atol=1e-8)
    assert semantic_separation(text, 20, norm, statistics).item() == pytest.approx(value(text.numpy()))


def test_percentile_against_torch():
    values = torch.rand(3, 57, dtype=torch.float64)
    for percentile in (0, 20, 33.3, 50, 100):
        expected = torch.quantile(values, percentile / 100, dim=-1, keepdim=True)
        torch.testing.assert_close(percentile_of(values, percentile), expected)


def test_balance():
    loss, penalty = torch.tensor([0.8, 2.0, 0.0]), torch.tensor([0.2, -4.0, 0.0])
    torch.testing.assert_close(balance(loss, penalty, "inverse"), torch.tensor([4.0, 0.5, 0.0]))
    torch.testing.assert_close(balance(loss, penalty, "ratio"), torch.tensor([0.25, 2.0, 0.0]))
    torch.testing.assert_close(balance(loss, penalty, "none"), torch.ones(3))
    assert not balance(loss.requires_grad_(), penalty, "inverse").requires_grad


def test_live_weights_against_autograd():
    """∂(H + λR²/H) by autograd, with H bounded from below in the fraction; finite where the entropy vanishes."""
    loss = torch.tensor([2.0, 0.5, 0.05, 2e-3, 1e-4, 0.0], dtype=torch.float64, requires_grad=True)
    penalty = torch.full_like(loss, 0.07).requires_grad_()
    total = loss + 30 * penalty.square() / loss.clamp(min=LEAST_ENTROPY)
    expected = torch.autograd.grad(total.sum(), (loss, penalty))
    found = live_weights(loss.detach(), penalty.detach(), 30)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert all(weight.isfinite().all() for weight in found)
    assert found[0][0] > 0 > found[0][2]  # turned round where H < R√λ


@pytest.mark.parametrize("function", [
    dispersion, orthogonality, frobenius_orthogonality, lambda t: semantic_separation(t, 20, "minmax"),
])
def test_batches_are_independent_episodes(function):
    batch = torch.stack([unit_rows(9, seed=s) for s in range(3)])
    torch.testing.assert_close(function(batch), torch.stack([function(text) for text in batch]))


def clip_like_rows(classes: int) -> Tensor:
    """Prototypes with a common part and twenty shared traits: cosines of 0.7 ± 0.08, about CLIP's."""
    generator = torch.Generator().manual_seed(0)
    common, traits = torch.randn(512, generator=generator), torch.randn(20, 512, generator=generator)
    own = torch.randn(classes, 20, generator=generator) @ traits / 20**0.5
    return F.normalize((1.5 * common + own).double(), dim=-1)


def test_inverse_scaling_is_what_makes_soc_felt():
    """The gradient of SoC's term on the sphere, against O-TPT's at λ = 18, where L_TPT = 0.8: with `inverse` it is of
    O-TPT's order and falls with the number of classes; with `ratio` it is a small fraction of that everywhere."""
    loss = torch.tensor(0.8, dtype=torch.float64)

    def on_sphere(slope: Tensor, text: Tensor) -> Tensor:
        return (slope - (slope * text).sum(-1, keepdim=True) * text).norm()

    felt = {"inverse": [], "ratio": []}
    for classes in (10, 47, 100, 397):
        text = clip_like_rows(classes)
        against = 18 * on_sphere(gradient(orthogonality, text), text)
        slope = on_sphere(gradient(lambda t: semantic_separation(t, 20, "minmax"), text), text)
        penalty = semantic_separation(text, 20, "minmax")
        for scale, ratios in felt.items():
            ratios.append((30 * balance(loss, penalty, scale) * slope / against).item())
    assert felt["inverse"] == sorted(felt["inverse"], reverse=True)
    assert all(0.1 < ratio < 10 for ratio in felt["inverse"])
    for ratio, inverse in zip(felt["ratio"], felt["inverse"], strict=True):
        assert ratio < 0.2 and ratio < inverse / 10
