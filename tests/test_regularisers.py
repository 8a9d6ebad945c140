"""Regularisers that combine: single methods are special cases, and terms add up on every method
that tunes."""
import pytest
import torch
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import adapt, build_cfg
from promptcal.trainers.base import BaseTrainer
from promptcal.trainers.config.settings import effective_settings
from promptcal.trainers.functional.objectives import dispersion, marginal_entropy, nearest_angle
from promptcal.trainers.soc import SoC
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.loading import as_backbone

from test_episodes import NAMES, make_trainer, make_views

SINGLE = {"CTPT": 50, "OTPT": 18, "SoC": 30, "ATPT": 80}


def with_terms(method: str, model, terms: str, *opts: object) -> torch.Tensor:
    opts = ["TRAINER.REGULARISERS", terms, *opts]
    return adapt(method, model, NAMES, make_views(), opts=opts).logits


@pytest.mark.parametrize("opts", [("TTA.STEPS", 1), ("TTA.STEPS", 2), ("TRAINER.ATPT.SIGN", "code")])
@pytest.mark.parametrize("method", SINGLE)
def test_single_methods_are_special_cases(clip_model, method, opts):
    expected = adapt(method, clip_model, NAMES, make_views(), opts=opts).logits
    for name in (method, method.lower()):
        logits = with_terms("TPT", clip_model, f"{name}:{SINGLE[method]}", *opts)
        assert torch.equal(logits, expected)


@pytest.mark.parametrize("method", ["TPT", "RTPT", "TPS"])
def test_terms_change_each_method(clip_model, method):
    plain = adapt(method, clip_model, NAMES, make_views()).logits
    without_weight = with_terms(method, clip_model, "ctpt:0,atpt:0")
    torch.testing.assert_close(without_weight, plain, atol=1e-4, rtol=0)
    one = with_terms(method, clip_model, "ctpt:0.5")
    two = with_terms(method, clip_model, "ctpt:0.5,otpt:0.5")
    assert (one - plain).abs().max() > 1e-4 and (two - one).abs().max() > 1e-4


def test_the_gradient_is_that_of_the_sum(clip_model):
    trainer = make_trainer("TPT", clip_model, "TRAINER.REGULARISERS", "ctpt:3, A-TPT:2")
    views = encode_views(as_backbone(clip_model), make_views())[:, :4]
    text = trainer.clip.text
    scale = trainer.clip.scale
    step = trainer.text_gradient(text, views, scale * views[:, :1] @ text.mT)
    leaf = text.expand(len(views), -1, -1).clone().requires_grad_()
    loss = (marginal_entropy(scale * views @ leaf.mT) - 3 * dispersion(leaf) - 2 * nearest_angle(leaf))
    gradient, = torch.autograd.grad(loss.sum(), leaf)
    torch.testing.assert_close(step.gradient, gradient, atol=1e-5, rtol=1e-4)
    penalty = -dispersion(text) - nearest_angle(text)
    torch.testing.assert_close(step.penalty, penalty.expand(len(views)))


def test_a_term_is_no_second_trainer_and_is_computed_once_for_all_images(clip_model, monkeypatch):
    """It depends on the initial text features alone; in later steps each image has its own."""
    trainers = []
    dimensions = []
    make_method = BaseTrainer.__init__
    compute = SoC.penalty

    def init(self, *args):
        trainers.append(type(self).__name__)
        make_method(self, *args)

    def penalty(self, text):
        dimensions.append(text.dim())
        return compute(self, text)

    monkeypatch.setattr(BaseTrainer, "__init__", init)
    monkeypatch.setattr(SoC, "penalty", penalty)
    trainer = make_trainer("TPT", clip_model, "TRAINER.REGULARISERS", "soc:3,ctpt:2", "TTA.STEPS", 2)
    views = encode_views(as_backbone(clip_model), make_views())
    for image in views.split(1):
        trainer.adapt(image)
    assert trainers == ["TPT"] and dimensions == [2, 3, 3, 3]


def test_runs_with_other_terms_are_other_runs():
    terms = ("TRAINER.REGULARISERS", "soc:30,ctpt:2")
    configs = [
        build_cfg("TPT"),
        build_cfg("TPT", opts=terms),
        build_cfg("TPT", opts=[*terms, "TRAINER.SOC.DELTA", 40]),
        build_cfg("TPT", opts=["TRAINER.REGULARISERS", "C-TPT:2.0, soc:30"]),  # as the second
    ]
    assert [cfg.TAG for cfg in configs[:2]] == ["default", "REGULARISERS-ctpt-2-soc-30"]
    assert "DELTA-40" in configs[2].TAG
    plain, with_terms, other_terms, same_terms = map(effective_settings, configs)
    assert "TRAINER.SOC.DELTA" not in plain
    assert plain != with_terms != other_terms and with_terms == same_terms


@pytest.mark.parametrize(("method", "terms", "message"), [
    ("TPT", "ctpt", "it must be name:weight"),
    ("TPT", "ctpt:much", "it must be name:weight"),
    ("TPT", ":3", "name:weight"),
    ("TPT", "ctpt:-1", "weight of 0 or more"),
    ("TPT", "ctpt:nan", "0 or more"),
    ("TPT", "ctpt:1,C-TPT:2", "each name once"),
    ("TPS", "rtpt:1", "not a regulariser: use some of atpt, ctpt"),
    ("TPT", "frost:1", "not a regulariser"),
    ("ZERO", "ctpt:1", "tune by gradients"),
    ("ZeroShot", "ctpt:1", "tune by gradients"),
])
def test_terms_that_cannot_be_added(method, terms, message):
    with pytest.raises(ConfigError, match=message):
        build_cfg(method, opts=["TRAINER.REGULARISERS", terms])


