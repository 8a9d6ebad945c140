"""The other episodic methods against slow, plain versions, and on unusual inputs."""
from __future__ import annotations

import pytest
import torch
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import adapt, build_cfg
from promptcal.trainers.functional.aggregation import vote_shares
from promptcal.trainers.functional.objectives import nearest_angle, unit
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.loading import as_backbone

import reference_family as slow
from test_episodes import NAMES, make_trainer, make_views

TUNED = {"ATPT": 80, "RTPT": 0, "TPS": 0, "Penalty": 10, "ZSNorm": 0}
FREE = ("ZERO", "MTA", "VTE")
ONE_VIEW = ("ZeroShot", "TDA", "OnZeta")
FIVE = ("TPT", "CTPT", "OTPT", "SoC")
ALL = (*ONE_VIEW, *FIVE, *TUNED, *FREE, "BCA", "DMN", "BoostAdapter", "DPE", "DOTA")


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return make_views(images=3, views=64)


@pytest.fixture(scope="module")
def views(clip_model, pixels) -> torch.Tensor:
    return encode_views(as_backbone(clip_model), pixels)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("method", TUNED)
def test_tuned_methods_equal_the_reference(clip_model, pixels, method, steps):
    logits = adapt(method, clip_model, NAMES, pixels, opts=["TTA.STEPS", steps]).logits
    for ours, image in zip(logits, pixels, strict=True):
        expected = slow.tuned(clip_model, NAMES, image, method, TUNED[method], steps)
        torch.testing.assert_close(ours, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("method", FREE)
def test_gradient_free_methods_equal_the_reference(clip_model, pixels, views, method):
    """ZERO's confidences are shares of votes; VTE's mean feature is not normalised."""
    trainer = make_trainer("ZeroShot", clip_model)
    text = trainer.clip.text
    scale = trainer.clip.scale
    for ours, image in zip(adapt(method, clip_model, NAMES, pixels).logits, views, strict=True):
        logits = scale * image @ text.T
        if method == "ZERO":
            count, total = slow.votes(logits)
            torch.testing.assert_close(ours.softmax(0), torch.tensor(count) / total)
            continue
        if method == "MTA":
            feature = slow.mode(image, logits)
        else:
            feature = slow.mean_of_confident(image, logits)
        torch.testing.assert_close(ours, scale * feature @ text.T, atol=2e-3, rtol=0)


UNSURE = [0, 0, 0.1]
SURE = [[9, 0, 0], [0, 8, 0]]


@pytest.mark.parametrize(("views", "share", "votes"), [
    ([*SURE, [0, 7, 0], *[UNSURE] * 7], 0.3, [1, 2, 0]),
    # Class 1 is the next of the tied ones.
    ([*SURE, [0, 0, 3], [0, 2, 0], [1, 0, 0], *[UNSURE] * 5], 0.2, [1, 2, 0]),
    # No other view is for a tied class: the most confident selected one is.
    ([*SURE, *[[0, 0, 1]] * 8], 0.2, [2, 1, 0]),
    # Two classes of one name share each vote.
    ([[5, 5, 0]] * 10, 0.3, [2.5, 1.5, 0]),
    # Nine thirds tie with three.
    ([*[[9, 9, 9, 0]] * 9, *[[0, 0, 0, 9]] * 3, *[[0, 1, 0, 0]] * 28], 0.3, [3, 4, 3, 3]),
])
def test_ties_of_votes(views, share, votes):
    shares = vote_shares(torch.tensor(views, dtype=torch.float32)[None], share)[0]
    torch.testing.assert_close(shares, torch.tensor(votes) / sum(votes))


def test_nearest_angle_equals_a_loop():
    text = unit(torch.randn(9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(nearest_angle(text), slow.angles(text).float(), atol=1e-6, rtol=0)
    same = torch.cat([text[:1], text[:1]]).requires_grad_()  # two classes of one name
    (gradient,) = torch.autograd.grad(nearest_angle(same), same)
    assert (gradient == 0).all() and nearest_angle(text[:1]).isfinite()


@pytest.mark.parametrize("method", ["Penalty", "ZSNorm"])
def test_gradients_through_the_range_make_a_difference(clip_model, pixels, method):
    key = f"TRAINER.{method.upper()}.RANGE"
    default = adapt(method, clip_model, NAMES, pixels).logits
    detached = adapt(method, clip_model, NAMES, pixels, opts=[key, "detached"]).logits
    tpt = adapt("TPT", clip_model, NAMES, pixels).logits
    assert (default - detached).abs().max() > 1e-3 and (detached - tpt).abs().max() > 1e-3


CASES = {
    "one class": ["cat"],
    "equal names": ["missile", "missile", "sunglasses"],
    "equal views": NAMES,
    "more classes than features": [f"kind {i}" for i in range(60)],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", ALL)
def test_unusual_inputs_give_finite_predictions(clip_model, pixels, method, case):
    images = pixels[:2]
    if case == "equal views":
        images = images[:, :1].expand(-1, 64, -1, -1, -1)
    adapted = adapt(method, clip_model, CASES[case], images)
    assert adapted.logits.isfinite().all() and not adapted.flagged.any()
    if case == "one class" and method not in ONE_VIEW:
        torch.testing.assert_close(adapted.logits.softmax(-1), torch.ones(2, 1))


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("method", [*ONE_VIEW, *FREE])
def test_few_views(clip_model, method, views):
    """Only methods that select views refuse a TTA.SELECT that keeps none."""
    opts = []
    if method in ("ZERO", "VTE"):
        with pytest.raises(ConfigError, match=f"to keep one of {views} views"):
            build_cfg(method, opts=["TTA.VIEWS", views, "TTA.SELECT", 0.1])
        opts = ["TTA.SELECT", 1.0]
    assert not adapt(method, clip_model, NAMES, make_views(views=views), opts=opts).flagged.any()


