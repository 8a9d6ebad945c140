"""Regularisers that combine: single methods are special cases, and terms add up on every method
that tunes."""
import pytest
import torch
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import adapt, build_cfg
from promptcal.trainers.base import BaseTrainer
from promptcal.trainers.functional.objectives import dispersion, marginal_entropy, nearest_angle
from promptcal.trainers.runs.make_record import method_section
from promptcal.trainers.soc import SoC
from promptcal.trainers.tpt import TPT, require_lambda
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.loading import as_backbone

from test_episodes import NAMES, make_trainer, make_views

SINGLE = {"CTPT": 50, "OTPT": 18, "SoC": 30, "ATPT": 80}


def with_terms(method: str, model, terms: str, *opts: object) -> torch.Tensor:
    opts = ["TRAINER.REGULARISERS", terms, *opts]
    return adapt(method, model, NAMES, make_views(), opts=opts).logits


@pytest.mark.parametrize(
    "opts", [("TTA.STEPS", 1), ("TTA.STEPS", 2), ("TRAINER.ATPT.SIGN", "code")]
)
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
    different = [plain]
    for terms in ("ctpt:0.5", "otpt:0.5", "ctpt:0.5,otpt:0.5"):
        logits = with_terms(method, clip_model, terms)
        for other in different:
            assert (logits - other).abs().max() > 1e-4
        different.append(logits)


def test_the_gradient_is_that_of_the_sum(clip_model):
    trainer = make_trainer("TPT", clip_model, "TRAINER.REGULARISERS", "ctpt:3, A-TPT:2")
    views = encode_views(as_backbone(clip_model), make_views())[:, :4]
    text = trainer.clip.text
    scale = trainer.clip.scale
    step = trainer.text_gradient(text, views, scale * views[:, :1] @ text.mT)
    leaf = text.expand(len(views), -1, -1).clone().requires_grad_()
    loss = (
        marginal_entropy(scale * views @ leaf.mT) - 3 * dispersion(leaf) - 2 * nearest_angle(leaf)
    )
    gradient, = torch.autograd.grad(loss.sum(), leaf)
    torch.testing.assert_close(step.gradient, gradient, atol=1e-5, rtol=1e-4)
    penalty = -dispersion(text) - nearest_angle(text)
    torch.testing.assert_close(step.penalty, penalty.expand(len(views)))


@pytest.mark.parametrize(("method", "terms", "other_terms", "opts"), [
    # A term that also weights the entropy.
    ("TPT", "soc:3", "soc:3,ctpt:0", ("TRAINER.SOC.SCALE", "live")),
    ("TPS", "ctpt:5,atpt:7", "A-TPT:7, c-tpt:5.0", ()),
], ids=["live", "order and spelling"])
def test_equivalent_terms(clip_model, method, terms, other_terms, opts):
    logits = with_terms(method, clip_model, terms, *opts)
    other_logits = with_terms(method, clip_model, other_terms, *opts)
    torch.testing.assert_close(logits, other_logits, atol=1e-3, rtol=0)


def test_a_penalty_is_computed_once_for_all_images(clip_model, monkeypatch):
    """It depends on the initial text features alone; in later steps each image has its own."""
    dimensions = []
    real = SoC.penalty

    def penalty(self, text):
        dimensions.append(text.dim())
        return real(self, text)

    monkeypatch.setattr(SoC, "penalty", penalty)
    trainer = make_trainer("TPT", clip_model, "TRAINER.REGULARISERS", "soc:3", "TTA.STEPS", 2)
    views = encode_views(as_backbone(clip_model), make_views())
    for image in views.split(1):
        trainer.adapt(image)
    assert dimensions == [2, 3, 3, 3]


def test_a_term_is_no_second_trainer(clip_model, monkeypatch):
    trainers = []
    real = BaseTrainer.__init__

    def init(self, *args):
        trainers.append(type(self).__name__)
        real(self, *args)

    monkeypatch.setattr(BaseTrainer, "__init__", init)
    make_trainer("TPT", clip_model, "TRAINER.REGULARISERS", "soc:3,ctpt:2")
    assert trainers == ["TPT"]


def test_runs_with_other_terms_are_other_runs():
    soc = ("TRAINER.REGULARISERS", "soc:30")
    configs = [
        build_cfg("TPT"),
        build_cfg("TPT", opts=soc),
        build_cfg("TPT", opts=[*soc, "TRAINER.SOC.DELTA", 40]),
    ]
    assert [cfg.TAG for cfg in configs[:2]] == ["default", "REGULARISERS-soc-30"]
    assert "DELTA-40" in configs[2].TAG
    settings = []
    for cfg in configs:
        settings.append(method_section(cfg, [TPT], online=False, training=None)["settings"])
    assert "TRAINER.SOC.DELTA" not in settings[0]
    assert settings[1] != settings[2]


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


def test_a_term_without_its_own_lambda_is_refused():
    class SoftSoC(SoC):
        pass

    with pytest.raises(ConfigError, match=r"cannot weight SoftSoC: .* in TRAINER\.SOFTSOC\.LAMBDA"):
        require_lambda(SoftSoC, build_cfg("TPT"))
