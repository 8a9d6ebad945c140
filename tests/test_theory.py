"""The paper's geometry: closed forms against plain loops and small steps."""
from itertools import permutations

import numpy as np
import pytest
import torch
from promptcal.trainers.functional import theory


@pytest.fixture(scope="module")
def features():
    """Unit prototypes with the high similarities of CLIP's text features."""
    rng = np.random.default_rng(0)
    t = 0.5 * rng.normal(size=(7, 32)) + rng.normal(size=32)
    return t / np.linalg.norm(t, axis=1, keepdims=True)


def test_similarity_and_coherence(features):
    s = theory.similarity(3 * features)  # lengths do not matter
    np.testing.assert_allclose(s, features @ features.T, atol=1e-12)
    assert theory.coherence(s) == max(s[i, j] for i, j in permutations(range(7), 2))
    assert len(theory.pairs(s)) == 21
    np.testing.assert_allclose(theory.similarity(torch.tensor(features)), s)


def test_floor_holds_for_a_prototype_itself_but_not_for_every_unit_vector(features):
    """Between two prototypes no class can win by much: the proposition's wording promises too much."""
    s = theory.similarity(features)
    scale = 100.0
    floor = theory.confidence_floor(theory.coherence(s), len(s), scale)
    i, j = divmod(int((s - 2 * np.eye(7)).argmax()), 7)
    between = features[i] + features[j]
    images = np.vstack([features, between / np.linalg.norm(between)])
    logits = scale * images @ features.T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    confidence = p.max(axis=1) / p.sum(axis=1)
    assert (confidence[:-1] >= floor).all()
    assert confidence[-1] < floor - 0.1
    assert theory.confidence_floor([0.5, 0.9, 1.0], 10, 50)[-1] == pytest.approx(1 / 10)  # of equal prototypes


@pytest.mark.parametrize("loss", ["orthogonal", "huber"])
def test_first_order_shift_is_the_limit_of_small_steps(features, loss):
    s = theory.similarity(features)
    step = 1e-6
    delta = float(np.quantile(theory.pairs(s), 0.2))
    if loss == "orthogonal":
        predicted = theory.shift_orthogonal(s, step)
        weights = 2 * s
    else:
        predicted = theory.shift_huber(s, step, delta)
        weights = theory.huber_slope(s, delta)
    moved = theory.step_features(features, weights, step)
    np.testing.assert_allclose(theory.pairs(moved @ moved.T - s), theory.pairs(predicted), rtol=1e-3)
    turned = theory.similarity(moved) - s
    on_sphere = theory.on_sphere(s, predicted)
    np.testing.assert_allclose(theory.pairs(turned), theory.pairs(on_sphere), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("loss", ["orthogonal", "huber"])
def test_gradients_are_those_of_the_losses(features, loss):
    """2 Σ s_ik t_k is half of autograd's gradient of ‖S − I‖², which counts each pair twice; Huber counts it once."""
    t = torch.tensor(features, requires_grad=True)
    s = t @ t.T
    delta = 0.6
    off = s[~torch.eye(7, dtype=torch.bool)]
    if loss == "orthogonal":
        value = (off**2).sum() / 2
        weights = 2 * theory.similarity(features)
    else:
        value = torch.nn.functional.huber_loss(off, torch.zeros_like(off), reduction="sum", delta=delta) / 2
        weights = theory.huber_slope(theory.similarity(features), delta)
    value.backward()
    moved = theory.step_features(features, weights, step=0.1)
    np.testing.assert_allclose(moved, features - 0.1 * t.grad.numpy(), atol=1e-12)


def test_bad_matrices_and_zero_prototypes_are_refused():
    for matrix in (np.zeros((2, 3)), np.ones((1, 1)), np.full((2, 2), np.nan), np.ones(4)):
        with pytest.raises(ValueError, match="similarity"):
            theory.coherence(matrix)
    with pytest.raises(ValueError, match="zero row"):
        theory.similarity(np.zeros((2, 3)))
