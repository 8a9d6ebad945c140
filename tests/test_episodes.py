"""The batched episodes against the slow reference: gradients, steps, predictions; and that images are independent."""
from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import adapt, build_cfg, reference
from promptcal.trainers.api import build_method
from promptcal.trainers.functional.objectives import class_logits, confident_views
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.openai import OpenAIBackbone

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
        torch.testing.assert_close(adapted.zero_shot_logits[b], slow.zero_shot_logits, atol=1e-4, rtol=0)
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


def test_the_reference_names_its_methods(clip_model):
    with pytest.raises(ValueError, match="method is 'TDA'; it must be one of ZeroShot, TPT, CTPT, OTPT, SoC"):
        reference.run_episode(clip_model, NAMES, make_views()[0], "TDA")


def assert_same_context(ours: torch.Tensor, slow: reference.Episode) -> None:
    """AdamW's first step is almost lr · sign(g). Where a gradient is zero up to rounding, its sign is arbitrary, and a
    coordinate may differ by up to 2 · lr per step. No other difference is allowed."""
    difference = (ours - slow.ctx).abs()
    if slow.gradients:
        arbitrary = torch.stack([g.abs() < 1e-4 * g.abs().max() for g in slow.gradients]).any(0)
        assert (difference[arbitrary] <= 2.1 * LR * len(slow.gradients)).all()
        difference = difference[~arbitrary]
    assert difference.max() < 2e-4


@pytest.mark.parametrize("method", ["TPT", "CTPT", "OTPT", "SoC"])
def test_gradients_equal_the_reference(model, method):
    trainer, images = make_trainer(method, model), make_views()
    views = encode_views(OpenAIBackbone(model), images)
    logits = class_logits(views, trainer.clip.text, trainer.clip.scale)
    chosen = confident_views(logits, 0.1)
    kept = views.take_along_dim(chosen[..., None], dim=1)
    step = trainer.text_gradient(trainer.clip.text, kept, logits[:, :1])
    for gradient, image in zip(trainer.clip.gradient(step.gradient), images, strict=True):
        slow = reference.run_episode(model, NAMES, image, method).gradients[0]
        assert ((gradient - slow).norm() / slow.norm()).item() < 1e-5


def test_live_scale_is_the_printed_loss_by_autograd(clip_model):
    """H + λR²/H through the text features at once, in double precision, against the loop's weighted sum."""
    trainer = make_trainer("SoC", clip_model, "TRAINER.SOC.SCALE", "live", "TRAINER.SOC.STATS", "flow_delta")
    views = encode_views(OpenAIBackbone(clip_model), make_views()).double()
    text, scale = trainer.clip.text.double().requires_grad_(), trainer.clip.scale.double()
    plain = class_logits(views[:, :1], text, scale)
    step = trainer.text_gradient(text, views[:, :6], plain)
    for b, image in enumerate(views):
        entropy = trainer.view_loss(class_logits(image[:6], text, scale))
        (expected,) = torch.autograd.grad(entropy + 30 * trainer.penalty(text).square() / entropy, text)
        torch.testing.assert_close(step.gradient[b], expected)


@pytest.mark.parametrize("names, vanishes", [(NAMES[:2], True), (["cat"], True), (NAMES, False)])
def test_soc_warns_where_its_term_vanishes(clip_model, caplog, names, vanishes):
    assert make_trainer("SoC", clip_model, names=names).clip.classnames == names
    assert sum("SoC equals TPT" in line for line in caplog.messages) == vanishes
    if vanishes:
        soc, tpt = (adapt(method, clip_model, names, make_views()).logits for method in ("SoC", "TPT"))
        torch.testing.assert_close(soc, tpt)
        plain = [reference.run_episode(clip_model, names, image, "SoC").logits for image in make_views()]
        torch.testing.assert_close(soc, torch.stack(plain), atol=1e-3, rtol=0)


def test_order_and_batch_of_images_change_nothing(clip_model):
    views = make_views(images=5)
    two_steps = ["TTA.STEPS", 2, "TTA.EPISODES"]
    straight = adapt("SoC", clip_model, NAMES, views, opts=[*two_steps, 1]).logits
    backwards = adapt("SoC", clip_model, NAMES, views.flip(0), opts=[*two_steps, 1]).logits
    assert torch.equal(straight, backwards.flip(0))
    assert torch.equal(straight[:1], adapt("SoC", clip_model, NAMES, views[0], opts=[*two_steps, 1]).logits)
    for episodes in (2, 8):
        together = adapt("SoC", clip_model, NAMES, views, opts=[*two_steps, episodes]).logits
        torch.testing.assert_close(straight, together, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("method", "views", "opts", "message"), [
    ("SoC", 20, ["INPUT.SIZE", 224], "INPUT.SIZE is 224, but this backbone takes 32 pixels"),
    ("SoC", 4, [], r"TTA.SELECT is 0.1; it must be at least 0.25 to keep one of 4 views"),
    ("SoCC", 20, [], "Did you mean 'SoC'"),
])
def test_settings_that_do_not_fit_are_refused(clip_model, method, views, opts, message):
    with pytest.raises(ConfigError, match=message):
        adapt(method, clip_model, NAMES, make_views(views=views), opts=opts)


def test_the_model_does_not_change(clip_model):
    before = {name: tensor.clone() for name, tensor in clip_model.state_dict().items()}
    adapt("SoC", clip_model, NAMES, make_views())
    assert all(torch.equal(tensor, before[name]) for name, tensor in clip_model.state_dict().items())
    assert not any(p.requires_grad or p.grad is not None for p in clip_model.parameters())
