"""The batched episodes against the slow reference: gradients, steps and predictions."""
from __future__ import annotations

import ast
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from promptcal.trainers import adapt, build_cfg, reference
from promptcal.trainers.api import build_method
from promptcal.trainers.functional.objectives import class_logits, confident_views
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.loading import OpenAIBackbone

from common import random_clip

NAMES = ["cat", "annual crop land", "permanent crop land", "Yorkshire_Terrier", "dog", "river", "sea or lake"]
LR = 0.005


def make_views(images: int = 3, views: int = 20, size: int = 32) -> torch.Tensor:
    """Normalised views that are more similar within an image than between images."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(images, 1, 3, size, size, generator=generator)
    return base + 0.5 * torch.randn(images, views, 3, size, size, generator=generator)


def make_trainer(method: str, model, *opts: object, names=NAMES):
    return build_method(build_cfg(method, opts=opts), model, names)


@pytest.fixture(scope="module", params=["vit", "resnet"])
def model(request):
    return random_clip(resnet=request.param == "resnet")


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("method", reference.LAMBDA)
def test_predictions_equal_the_reference(model, method, steps):
    views = make_views()
    adapted = adapt(method, model, NAMES, views, opts=["TTA.STEPS", steps])
    for b, image in enumerate(views):
        slow = reference.run_episode(model, NAMES, image, method, steps=steps)
        zero_shot = adapted.zero_shot_logits[b]
        torch.testing.assert_close(zero_shot, slow.zero_shot_logits, atol=1e-4, rtol=0)
        torch.testing.assert_close(adapted.logits[b], slow.logits, atol=1e-3, rtol=0)
        assert_same_context(adapted.ctx[b], slow)


def test_the_reference_uses_nothing_that_it_checks():
    imports = set()
    for node in ast.walk(ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports.add("." * node.level + str(node.module))
    standard_library = {"__future__", "collections.abc", "dataclasses"}
    assert imports - standard_library == {"torch", "torch.nn.functional", ".vlm.openai_clip"}


def assert_same_context(ours: torch.Tensor, slow: reference.Episode) -> None:
    """The context, but for coordinates whose gradient is zero up to rounding.

    AdamW's first step is almost lr · sign(g). Where the sign is arbitrary, a coordinate may differ
    by up to 2 · lr per step.
    """
    difference = (ours - slow.ctx).abs()
    if slow.gradients:
        arbitrary = torch.zeros_like(difference, dtype=torch.bool)
        for gradient in slow.gradients:
            arbitrary |= gradient.abs() < 1e-4 * gradient.abs().max()
        assert (difference[arbitrary] <= 2.1 * LR * len(slow.gradients)).all()
        difference = difference[~arbitrary]
    assert difference.max() < 2e-4


@pytest.mark.parametrize("method", ["TPT", "CTPT", "OTPT", "SoC"])
def test_gradients_equal_the_reference(model, method):
    trainer = make_trainer(method, model)
    images = make_views()
    views = encode_views(OpenAIBackbone(model), images)
    logits = class_logits(views, trainer.clip.text, trainer.clip.scale)
    selected = confident_views(logits, 0.1)
    selected_views = views.take_along_dim(selected[..., None], dim=1)
    step = trainer.text_gradient(trainer.clip.text, selected_views, logits[:, :1])
    for gradient, image in zip(trainer.clip.gradient(step.gradient), images, strict=True):
        slow = reference.run_episode(model, NAMES, image, method).gradients[0]
        assert ((gradient - slow).norm() / slow.norm()).item() < 1e-5


def test_live_scale_is_the_printed_loss_by_autograd(clip_model):
    """H + λR²/H through the text features, in double precision, against the loop's weighted sum."""
    opts = ("TRAINER.SOC.SCALE", "live", "TRAINER.SOC.STATS", "flow_delta")
    trainer = make_trainer("SoC", clip_model, *opts)
    views = encode_views(OpenAIBackbone(clip_model), make_views()).double()
    text = trainer.clip.text.double().requires_grad_()
    scale = trainer.clip.scale.double()
    plain = class_logits(views[:, :1], text, scale)
    step = trainer.text_gradient(text, views[:, :6], plain)
    for b, image in enumerate(views):
        entropy = trainer.view_loss(class_logits(image[:6], text, scale))
        loss = entropy + 30 * trainer.penalty(text).square() / entropy
        (expected,) = torch.autograd.grad(loss, text)
        torch.testing.assert_close(step.gradient[b], expected)


@pytest.mark.parametrize("names", [NAMES[:2], ["cat"]])
def test_soc_warns_where_its_term_vanishes(clip_model, caplog, names):
    assert make_trainer("SoC", clip_model).clip.classnames == NAMES
    assert "SoC equals TPT" not in caplog.text
    assert make_trainer("SoC", clip_model, names=names).clip.classnames == names
    assert caplog.text.count("SoC equals TPT") == 1
    views = make_views()
    soc = adapt("SoC", clip_model, names, views).logits
    torch.testing.assert_close(soc, adapt("TPT", clip_model, names, views).logits)
    for logits, image in zip(soc, views, strict=True):
        slow = reference.run_episode(clip_model, names, image, "SoC")
        torch.testing.assert_close(logits, slow.logits, atol=1e-3, rtol=0)


def test_inverse_scaling_makes_minmax_and_shift_the_same(clip_model):
    """Huber is homogeneous of degree two: a factor on s̃ and δ cancels against |L_TPT| / |L_Huber|."""
    views = encode_views(OpenAIBackbone(clip_model), make_views())
    gradients = []
    for norm in ("minmax", "shift", "max"):
        trainer = make_trainer("SoC", clip_model, "TRAINER.SOC.NORM", norm)
        text = trainer.clip.text
        plain = class_logits(views[:, :1], text, trainer.clip.scale)
        gradients.append(trainer.text_gradient(text, views[:, :6], plain).gradient)
    minmax, shift, by_maximum = gradients
    torch.testing.assert_close(shift, minmax, rtol=1e-3, atol=1e-4)
    assert ((by_maximum - minmax).norm() / minmax.norm()) > 0.1


def test_order_and_batch_of_images_change_nothing(clip_model):
    views = make_views(images=5)

    def logits_of(views: torch.Tensor, episodes: int = 1) -> torch.Tensor:
        opts = ["TTA.STEPS", 2, "TTA.EPISODES", episodes]
        return adapt("SoC", clip_model, NAMES, views, opts=opts).logits

    logits = logits_of(views)
    assert torch.equal(logits, logits_of(views.flip(0)).flip(0))
    assert torch.equal(logits[:1], logits_of(views[0]))
    for episodes in (2, 8):
        torch.testing.assert_close(logits, logits_of(views, episodes), atol=1e-3, rtol=0)


def test_the_model_does_not_change(clip_model):
    before = deepcopy(clip_model.state_dict())
    adapt("SoC", clip_model, NAMES, make_views())
    for name, tensor in clip_model.state_dict().items():
        assert torch.equal(tensor, before[name])
    for parameter in clip_model.parameters():
        assert not parameter.requires_grad and parameter.grad is None
