"""Losses and penalties against autograd, closed forms, torch and the paper's stated gradients."""
from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from promptcal.trainers import reference
from promptcal.trainers.functional import objectives as obj
from torch import Tensor

from gradient_sizes import relative_gradients, simulated_prototypes
from reference_family import cubic_orthogonality

each_norm = pytest.mark.parametrize("norm", ["minmax", "max", "shift"])
each_statistics = pytest.mark.parametrize("statistics", ["detached", "flow", "flow_delta"])


def unit_rows(classes: int, width: int = 32, seed: int = 0) -> Tensor:
    """Random prototypes with a common part, so that cosines are positive as CLIP's are."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    return F.normalize(x + torch.randn(width, generator=generator, dtype=torch.float64), dim=-1)


def gradient(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x), x)[0]


def test_entropies():
    assert obj.entropy(torch.zeros(5)).item() == pytest.approx(math.log(5))
    assert obj.entropy(torch.tensor([1000.0, 0.0, 0.0])).item() == pytest.approx(0)
    logits = torch.randn(3, 6, 9, dtype=torch.float64) * 4
    mean = logits.softmax(-1).mean(-2)
    torch.testing.assert_close(obj.marginal_entropy(logits), -(mean * mean.log()).sum(-1))
    impossible = torch.tensor([[0.0, -1e30], [0.0, -1e30]])
    assert obj.marginal_entropy(impossible).item() == 0
    assert gradient(obj.marginal_entropy, impossible).isfinite().all()


def test_selection_keeps_the_lowest_entropies_and_does_not_prefer_the_plain_view():
    sharpness = torch.tensor([0.1, 5.0, 1.0, 9.0, 0.5, 7.0, 0.2, 3.0, 2.0, 4.0])
    logits = sharpness[:, None] * torch.tensor([1.0, 0.0, -1.0])
    assert obj.confident_views(logits.expand(2, -1, -1), 0.3).tolist() == [[3, 5, 1]] * 2
    assert obj.confident_views(torch.randn(64, 7), 0.1).shape == (6,)


@pytest.mark.parametrize("classes", [2, 10, 40])
def test_closed_orthogonality_equals_the_cubic_form(classes):
    text = unit_rows(classes, seed=classes)
    expected = pytest.approx(cubic_orthogonality(text).item(), rel=1e-14)
    assert obj.orthogonality(text).item() == expected
    assert reference.orthogonality(text).item() == expected
    ours = gradient(obj.orthogonality, text)
    cubic = gradient(cubic_orthogonality, text)
    assert ((ours - cubic).norm() / cubic.norm()).item() < 1e-13


def test_closed_orthogonality_is_finite_where_the_reflector_vanishes():
    text = torch.eye(4, dtype=torch.float64)  # S = I: every row already lies on its axis
    assert cubic_orthogonality(text).isnan() and obj.orthogonality(text).item() == 0
    assert gradient(obj.orthogonality, text).isfinite().all()


def test_gradients_that_the_paper_states():
    text = unit_rows(8)
    delta = 0.4
    hollow = (text @ text.T).fill_diagonal_(0)
    # ∇_i = 2 Σ_{k≠i} s_ik t_k counts each pair once, ‖S − I‖² twice.
    torch.testing.assert_close(gradient(obj.frobenius_orthogonality, text), 2 * 2 * hollow @ text)
    # ∇_i = Σ_{k≠i} min(s_ik, δ) t_k
    huber_sum = gradient(lambda t: obj.huber(obj.pair_similarities(t), delta).sum(), text)
    torch.testing.assert_close(huber_sum, hollow.clamp(max=delta) @ text)


def test_huber_and_percentile_equal_torch():
    s = torch.linspace(0, 1, 101, dtype=torch.float64)
    expected = F.huber_loss(s, torch.zeros_like(s), delta=0.3, reduction="none")
    torch.testing.assert_close(obj.huber(s, 0.3), expected)
    # Quadratic below δ, as printed.
    assert obj.huber(torch.tensor(-0.8), 0.3).item() == pytest.approx(0.32)
    assert (obj.huber(s, 0.0) == 0).all()
    values = torch.rand(3, 57, dtype=torch.float64)
    for percentile in (0, 20, 33.3, 50, 100):
        expected = torch.quantile(values, percentile / 100, dim=-1, keepdim=True)
        torch.testing.assert_close(obj.percentile_of(values, percentile), expected)


@each_norm
@each_statistics
def test_semantic_separation_equals_finite_differences(norm, statistics):
    """The formula in numpy, where detached statistics keep their old values."""
    text = unit_rows(9, width=6, seed=3)
    pairs = np.triu_indices(9, 1)

    def known(t: np.ndarray) -> tuple[np.ndarray, float, float]:
        s = (t @ t.T)[pairs]
        return s, s.min(), s.max()

    def normalised(s: np.ndarray, low: float, high: float) -> np.ndarray:
        return {"minmax": (s - low) / (high - low), "max": s / high, "shift": s - low}[norm]

    old = known(text.numpy())
    old_delta = np.percentile(normalised(*old), 20)

    def value(t: np.ndarray) -> float:
        s, low, high = known(t)
        if statistics == "detached":
            _, low, high = old
        x = normalised(s, low, high)
        delta = old_delta
        if statistics == "flow_delta":
            delta = np.percentile(x, 20)
        return np.where(x <= delta, x**2 / 2, delta * (x - delta / 2)).mean()

    slope = np.empty(text.shape)
    for place in np.ndindex(*text.shape):
        step = np.zeros(text.shape)
        step[place] = 1e-6
        slope[place] = (value(text.numpy() + step) - value(text.numpy() - step)) / 2e-6
    separation = partial(obj.semantic_separation, percentile=20, normalisation=norm, statistics=statistics)
    ours = gradient(separation, text)
    torch.testing.assert_close(ours, torch.from_numpy(slope), rtol=1e-5, atol=1e-8)
    assert separation(text).item() == pytest.approx(value(text.numpy()))


@each_norm
@each_statistics
@pytest.mark.parametrize("text", [
    unit_rows(1), unit_rows(2), unit_rows(1).expand(5, -1), torch.eye(4, dtype=torch.float64),
], ids=["one class", "two classes", "all equal", "orthogonal"])
def test_semantic_separation_is_finite_where_similarities_do_not_differ(text, norm, statistics):
    value = obj.semantic_separation(text, 20, norm, statistics)
    slope = gradient(lambda t: obj.semantic_separation(t, 20, norm, statistics), text)
    assert value.isfinite() and slope.isfinite().all()
    if len(text) == 1:
        assert value == 0 and (slope == 0).all()


def test_balance():
    loss = torch.tensor([0.8, 2.0, 0.0], requires_grad=True)
    penalty = torch.tensor([0.2, -4.0, 0.0])
    expected = {"inverse": [4.0, 0.5, 0.0], "ratio": [0.25, 2.0, 0.0], "none": [1.0, 1.0, 1.0]}
    for scale, weights in expected.items():
        balance = obj.balance(loss, penalty, scale)
        assert not balance.requires_grad
        torch.testing.assert_close(balance, torch.tensor(weights))


def test_live_balance_is_the_printed_loss():
    """H + λR²/H with H bounded from below in the fraction: finite where the entropy vanishes."""
    loss = torch.tensor([2.0, 0.5, 0.05, 2e-3, 1e-4, 0.0], dtype=torch.float64, requires_grad=True)
    penalty = torch.full_like(loss, 0.07).requires_grad_()
    total = (loss + 30 * obj.balance(loss, penalty, "live") * penalty).sum()
    of_loss, of_penalty = torch.autograd.grad(total, (loss, penalty))
    bounded = loss.detach().clamp(min=obj.LEAST_ENTROPY)
    of_fraction = torch.where(loss > obj.LEAST_ENTROPY, 30 * (penalty / bounded).square(), 0)
    torch.testing.assert_close(of_loss, 1 - of_fraction.detach())
    torch.testing.assert_close(of_penalty, (2 * 30 * penalty / bounded).detach())
    assert of_loss[0] > 0 > of_loss[2]  # reversed where H < R√λ


def test_inverse_weighting_has_the_strongest_effect():
    """Falling with the number of classes, as the paper's lead over O-TPT, and far above the
    ratio."""
    sizes = [relative_gradients(simulated_prototypes(classes)) for classes in (10, 47, 100, 397)]
    inverse = [size["inverse"] for size in sizes]
    assert inverse == sorted(inverse, reverse=True) and 0.1 < inverse[-1] < 10
    for size in sizes:
        assert size["ratio"] < min(0.2, size["inverse"] / 10)
        assert size["live"] == pytest.approx(2 * size["ratio"])
        assert size["inverse, flow"] != pytest.approx(size["inverse"])
