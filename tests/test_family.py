"""The family's episodic methods against slow, plain versions, against what must hold of them, and on odd inputs."""
from __future__ import annotations

import pytest
import reference_family as slow
import torch
from common import random_clip
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import adapt, build_cfg, build_trainer
from promptcal.trainers.engine.tta_loop import text_gradient
from promptcal.trainers.functional.aggregation import reliability, view_mode, vote_shares
from promptcal.trainers.functional.objectives import class_logits, confident_views, nearest_angle, unit
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.loading import as_backbone
from test_episodes import NAMES, make_views

TUNED = {"ATPT": 80, "RTPT": 0, "TPS": 0, "Penalty": 10, "ZSNorm": 0}
FREE = ("ZERO", "MTA", "VTE")
FAMILY = (*TUNED, *FREE)


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return make_views(images=3, views=64)


def some_views(images: int = 12, views: int = 64, classes: int = 7, d: int = 48, spread: float = 1.0):
    """Unit features of views that scatter about an image, of classes in a cone, and the views' logits."""
    generator = torch.Generator().manual_seed(1)
    text = unit(1.5 * torch.randn(1, d, generator=generator) + torch.randn(classes, d, generator=generator))
    image = torch.randn(images, 1, d, generator=generator)
    views = unit(image + spread * torch.randn(images, views, d, generator=generator))
    return views, text, class_logits(views, text, 50.0)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("method", TUNED)
def test_tuned_methods_equal_the_reference(clip_model, pixels, method: str, steps: int):
    logits = adapt(method, clip_model, NAMES, pixels, opts=["TTA.STEPS", steps]).logits
    for ours, image in zip(logits, pixels, strict=True):
        expected = slow.tuned(clip_model, NAMES, image, method, TUNED[method], steps)
        torch.testing.assert_close(ours, expected, atol=1e-3, rtol=0)


def test_votes_equal_the_reference():
    """Views that scatter so much that classes tie now and then."""
    ties = 0
    for spread in (2.0, 6.0):
        _, _, logits = some_views(images=60, spread=spread)
        for shares, image in zip(vote_shares(logits, 0.3), logits, strict=True):
            count, total = slow.votes(image)
            ties += total == 20
            torch.testing.assert_close(shares, torch.tensor(count) / total)
    assert ties > 3


def test_mode_equals_the_reference():
    for spread in (0.3, 1.0, 3.0):
        views, _, logits = some_views(images=3, views=24, spread=spread)
        for mode, image, own in zip(view_mode(views, logits), views, logits, strict=True):
            torch.testing.assert_close(mode, slow.mode(image.double(), own.double()).float(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", FREE)
def test_gradient_free_methods_equal_the_reference(clip_model, pixels, method: str):
    adapted = adapt(method, clip_model, NAMES, pixels)
    trainer = build_trainer(build_cfg("ZeroShot"))
    trainer.use_model(clip_model, NAMES)
    text, scale = trainer.prompt.text, trainer.scale
    for ours, views in zip(adapted.logits, encode_views(as_backbone(clip_model), pixels), strict=True):
        logits = scale * views @ text.T
        if method == "ZERO":
            count, total = slow.votes(logits)
            torch.testing.assert_close(ours.softmax(0), torch.tensor(count) / total)
        else:
            image = slow.mode(views, logits) if method == "MTA" else slow.mean_of_confident(views, logits)
            torch.testing.assert_close(ours, scale * image @ text.T, atol=2e-3, rtol=0)


def one_view(*logits: float) -> torch.Tensor:
    return torch.tensor(logits, dtype=torch.float32)


def test_zero_counts_votes_and_settles_ties():
    """Ten views, three of which vote: 1, 1 and 2 for classes 0, 1, 1; then ties of every kind."""
    sure = [one_view(9, 0, 0), one_view(0, 8, 0), one_view(0, 7, 0)]
    unsure = [one_view(0, 0, 0.1)] * 7
    torch.testing.assert_close(vote_shares(torch.stack([*sure, *unsure])[None], 0.3)[0], torch.tensor([1, 2, 0]) / 3)
    tie = [one_view(9, 0, 0), one_view(0, 8, 0)]  # two kept views, one each
    third = [one_view(0, 0, 3), one_view(0, 2, 0), one_view(1, 0, 0)]  # class 2 is not in the tie; class 1 comes first
    shares = vote_shares(torch.stack([*tie, *third, *unsure[:5]])[None], 0.2)[0]
    torch.testing.assert_close(shares, torch.tensor([1, 2, 0]) / 3)
    # No other view is for a tied class: the most confident kept one decides, where the public code leaves the tie.
    shares = vote_shares(torch.stack([*tie, *[one_view(0, 0, 1)] * 8])[None], 0.2)[0]
    torch.testing.assert_close(shares, torch.tensor([2, 1, 0]) / 3)
    # Two classes of one name share each vote, and the tie rule gives the first of them one more.
    shares = vote_shares(torch.stack([one_view(5, 5, 0)] * 10)[None], 0.3)[0]
    torch.testing.assert_close(shares, torch.tensor([2.5, 1.5, 0]) / 4)


def test_equal_names_share_a_vote_whatever_rounding_says(clip_model):
    """A product rounds equal columns differently as they stand at its edge or within; here they are the same."""
    names = ["cat", "dog", "cat", "river", "cat", "dog", "sea", "cat", "cat"]
    views = torch.nn.functional.normalize(torch.randn(40, 64, 48, generator=torch.Generator().manual_seed(0)), dim=-1)
    trainer = build_trainer(build_cfg("ZERO"))
    trainer.use_model(clip_model, names)
    shares = trainer.adapt(views).logits.softmax(-1)
    assert (shares[:, 2] == shares[:, 4]).all() and (shares[:, 4] == shares[:, 8]).all()
    extra = (shares[:, [0, 1]] - shares[:, [2, 5]]) * 20  # what only the tie rule gives, and only to the first
    torch.testing.assert_close(extra.clamp(min=0.5), extra.round().clamp(0.5, 1), atol=1e-4, rtol=0)
    thirds = torch.tensor([[9.0, 9, 9, 0]] * 9 + [[0.0, 0, 0, 9]] * 3 + [[0.0, 1, 0, 0]] * 28)[None]
    torch.testing.assert_close(vote_shares(thirds, 0.3)[0], torch.tensor([3.0, 4, 3, 3]) / 13)  # three and nine thirds


def test_zero_states_its_votes(clip_model, pixels):
    confidence = adapt("ZERO", clip_model, NAMES, pixels).logits.softmax(-1)
    whole = confidence * 19
    extra = confidence * 20
    settled = ((whole - whole.round()).abs().amax(-1) < 1e-4) | ((extra - extra.round()).abs().amax(-1) < 1e-4)
    assert settled.all()
    torch.testing.assert_close(confidence.sum(-1), torch.ones(3))


def test_zero_has_views_of_its_own():
    for data in ("", "configs/datasets/ucf101.yaml", "configs/datasets/imagenet_a.yaml"):
        cfg = build_cfg("ZERO", data)
        assert (cfg.TTA.AUGMIX, cfg.TTA.SELECT, cfg.TAG) == ("off", 0.3, "default")
    assert build_cfg("ZERO", data, opts=["TTA.AUGMIX", "on"]).TTA.AUGMIX == "on"
    assert build_cfg("MTA", data).TTA.AUGMIX == "on"


def test_mtas_mode_has_unit_length_and_leaves_outliers():
    views, text, logits = some_views(spread=0.5)
    modes = view_mode(views, logits)
    torch.testing.assert_close(modes.norm(dim=-1), torch.ones(len(modes)))
    stray = unit(unit(torch.randn(48, generator=torch.Generator().manual_seed(3))) + 0.1 * views[:, :16])
    mixed = torch.cat([views[:, :48], stray], dim=1)  # a quarter of the views shows something else
    robust = view_mode(mixed, class_logits(mixed, text, 50.0))
    assert ((robust * modes).sum(-1) > (unit(mixed.mean(1)) * modes).sum(-1)).float().mean() > 0.9


def test_no_image_touches_another_in_mta():
    views, _, logits = some_views(spread=2.0)
    alone = torch.cat([view_mode(v[None], z[None]) for v, z in zip(views, logits, strict=True)])
    torch.testing.assert_close(view_mode(views, logits), alone, atol=1e-4, rtol=0)


def test_vte_is_not_brought_to_unit_length(clip_model, pixels):
    trainer = build_trainer(build_cfg("VTE"))
    trainer.use_model(clip_model, NAMES)
    views = encode_views(as_backbone(clip_model), pixels)
    chosen = confident_views(class_logits(views, trainer.prompt.text, trainer.scale), 0.1)
    mean = views.take_along_dim(chosen[..., None], dim=1).mean(1)
    assert (mean.norm(dim=-1) < 0.999).all()
    torch.testing.assert_close(trainer.adapt(views).logits, trainer.scale * mean @ trainer.prompt.text.T)


def test_atpts_angle_grows_and_the_public_sign_shrinks_it(clip_model, pixels):
    """A small step of either sign, with a weight that leaves the entropy no say."""
    angles = {}
    for sign in ("paper", "code"):
        trainer = build_trainer(build_cfg("ATPT", opts=["TRAINER.ATPT.SIGN", sign, "TRAINER.ATPT.LAMBDA", 1e6,
                                                        "OPTIM.LR", 1e-4]))
        trainer.use_model(clip_model, NAMES)
        before = nearest_angle(trainer.prompt.text)
        adapted = trainer.adapt(encode_views(as_backbone(clip_model), pixels))
        angles[sign] = nearest_angle(trainer.prompt.tower.text(adapted.ctx)) - before
    assert (angles["paper"] > 0).all() and (angles["code"] < 0).all()


def test_nearest_angle_equals_the_loop():
    text = unit(torch.randn(9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(nearest_angle(text), slow.angles(text).float(), atol=1e-6, rtol=0)
    same = torch.cat([text[:1], text[:1], text[1:3]]).requires_grad_()  # two classes of one name
    (gradient,) = torch.autograd.grad(nearest_angle(same[:2]), same)
    assert (gradient == 0).all()
    assert nearest_angle(text[:1]).isfinite()


def test_tps_first_step_in_closed_form(clip_model, pixels):
    trainer = build_trainer(build_cfg("TPS"))
    trainer.use_model(clip_model, NAMES)
    views = encode_views(as_backbone(clip_model), pixels)
    text = trainer.prompt.text
    kept = views.take_along_dim(confident_views(class_logits(views, text, trainer.scale), 0.1)[..., None], dim=1)
    cotangent, _, _ = text_gradient(text, kept, trainer.scale, trainer)
    tangent = cotangent - (cotangent * text).sum(-1, keepdim=True) * text  # the gradient through unit(T + s) at s = 0
    shifted = unit(text - 0.005 * tangent / (tangent.abs() + 1e-8))
    expected = class_logits(views[:, :1], shifted, trainer.scale)[:, 0]
    torch.testing.assert_close(trainer.adapt(views).logits, expected, atol=2e-3, rtol=0)


def test_reliability_leaves_a_view_itself_out():
    views, _, _ = some_views()
    by_index, by_value = reliability(views, 20, 0.01), reliability(views, 20, 0.01, by_index=False)
    assert (by_index - by_value).abs().max() > 1e-3  # rounding decides in the public rule
    for weights in (by_index, by_value):
        torch.testing.assert_close(weights.sum(-1), torch.ones(len(views)))
    lonely = views[:1].clone()
    lonely[0, 5] = -lonely[0, 1:].mean(0)
    lonely = unit(lonely)
    assert reliability(lonely, 20, 0.01)[0].argmin() == 5


@pytest.mark.parametrize("range_", ["flow", "detached"])
@pytest.mark.parametrize("method", ["Penalty", "ZSNorm"])
def test_ranges_that_flow_are_another_method(clip_model, pixels, method: str, range_: str):
    key = f"TRAINER.{method.upper()}.RANGE"
    logits = adapt(method, clip_model, NAMES, pixels, opts=[key, range_]).logits
    assert (logits - adapt("TPT", clip_model, NAMES, pixels).logits).abs().max() > 1e-3
    same = (logits - adapt(method, clip_model, NAMES, pixels).logits).abs().max() < 1e-6
    assert same == (range_ == "flow")


@pytest.mark.parametrize("case", ["one class", "two equal names", "all views alike", "more classes than features"])
@pytest.mark.parametrize("method", FAMILY)
def test_odd_inputs_give_numbers(clip_model, pixels, method: str, case: str):
    names = {"one class": ["cat"], "two equal names": ["missile", "missile", "sunglasses"],
             "more classes than features": [f"kind {i}" for i in range(60)]}.get(case, NAMES)
    views = pixels[:2, :1].expand(-1, 64, -1, -1, -1) if case == "all views alike" else pixels[:2]
    adapted = adapt(method, clip_model, names, views)
    assert adapted.logits.isfinite().all() and not adapted.flagged.any()
    if case == "one class":
        torch.testing.assert_close(adapted.logits.softmax(-1), torch.ones(2, 1))


@pytest.mark.parametrize("method", FREE)
def test_few_views(method: str):
    model = random_clip()
    share = ["TTA.SELECT", 1.0]
    assert not adapt(method, model, NAMES, make_views(views=1), opts=share).flagged.any()
    assert not adapt(method, model, NAMES, make_views(views=2), opts=share).flagged.any()


@pytest.mark.parametrize(("method", "opts", "told"), [
    ("ATPT", ["TRAINER.ATPT.SIGN", "minus"], "one of paper, code"), ("ATPT", ["TRAINER.ATPT.LAMBDA", -1], "0 or more"),
    ("RTPT", ["TRAINER.RTPT.NEIGHBOURS", 0], "at least 1"), ("RTPT", ["TRAINER.RTPT.TEMPERATURE", 0], "above 0"),
    ("RTPT", ["TRAINER.RTPT.DIAGONAL", "eye"], "one of index, code"),
    ("VTE", ["TTA.STEPS", 0, "TTA.SELECT", 0.01], "to keep one of 64 views"),
    ("ZERO", ["TTA.STEPS", 0, "TTA.SELECT", 0.01], "to keep one of 64 views"),
    ("Penalty", ["TRAINER.PENALTY.RANGE", "x"], "one of flow, detached"),
    ("ZSNorm", ["TRAINER.ZSNORM.RANGE", "x"], "flow"),
])
def test_settings_that_cannot_work(method: str, opts: list, told: str):
    with pytest.raises(ConfigError, match=told):
        build_cfg(method, opts=opts)
