"""The batched engine against the slow reference: gradients, steps, predictions; and that no image touches another."""
from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import reference
import torch
from common import random_clip
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import adapt, build_cfg, build_trainer
from promptcal.trainers.engine.tta_loop import text_gradient
from promptcal.trainers.functional.objectives import class_logits, confident_views
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.openai import OpenAIBackbone

NAMES = ["cat", "annual crop land", "permanent crop land", "Yorkshire_Terrier", "dog", "river", "sea or lake"]
WEIGHTS = {"ZeroShot": 0, "TPT": 0, "CTPT": 50, "OTPT": 18, "SoC": 30}
LR = 0.005


def make_views(images: int = 3, views: int = 20, size: int = 32) -> torch.Tensor:
    """Normalised views that agree within an image more than between images."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(images, 1, 3, size, size, generator=generator)
    return base + 0.5 * torch.randn(images, views, 3, size, size, generator=generator)


@pytest.fixture(scope="module", params=["vit", "resnet"])
def model(request):
    return random_clip(resnet=request.param == "resnet")


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("method", WEIGHTS)
def test_predictions_equal_the_reference(model, method: str, steps: int):
    views = make_views()
    adapted = adapt(method, model, NAMES, views, opts=["TTA.STEPS", steps])
    if method == "ZeroShot":
        steps = 0
    for b, image in enumerate(views):
        slow = reference.run_episode(model, NAMES, image, method, WEIGHTS[method], steps)
        torch.testing.assert_close(adapted.zero_shot_logits[b], slow.zero_shot_logits, atol=1e-4, rtol=0)
        torch.testing.assert_close(adapted.logits[b], slow.logits, atol=1e-3, rtol=0)
        assert_same_context(adapted.ctx[b], slow)


def assert_same_context(ours: torch.Tensor, slow: reference.Episode) -> None:
    """AdamW's first step is almost lr · sign(g): where a gradient is zero to rounding, its sign is chance, and a
    coordinate may differ by up to 2 · lr a step. No other difference is allowed."""
    difference = (ours - slow.ctx).abs()
    if slow.gradients:
        chance = torch.stack([g.abs() < 1e-4 * g.abs().max() for g in slow.gradients]).any(0)
        assert (difference[chance] <= 2.1 * LR * len(slow.gradients)).all()
        difference = difference[~chance]
    assert difference.max() < 2e-4


@pytest.mark.parametrize("method", ["TPT", "CTPT", "OTPT", "SoC"])
def test_gradients_equal_the_reference(model, method: str):
    trainer = build_trainer(build_cfg(method))
    trainer.use_model(model, NAMES)
    images = make_views()
    views = encode_views(OpenAIBackbone(model), images)
    chosen = confident_views(class_logits(views, trainer.prompt.text, trainer.scale), 0.1)
    kept = views.take_along_dim(chosen[..., None], dim=1)
    cotangent, _, _ = text_gradient(trainer.prompt.text, kept, trainer.scale, trainer)
    for gradient, image in zip(trainer.prompt.gradient(cotangent), images, strict=True):
        slow = reference.run_episode(model, NAMES, image, method, WEIGHTS[method]).gradients[0]
        assert ((gradient - slow).norm() / slow.norm()).item() < 1e-5


def test_live_scale_is_the_printed_loss_by_autograd(clip_model):
    """H + λR²/H through the text features at once, in double precision, against the engine's weighted sum."""
    trainer = build_trainer(build_cfg("SoC", opts=["TRAINER.SOC.SCALE", "live", "TRAINER.SOC.STATS", "flow_delta"]))
    trainer.use_model(clip_model, NAMES)
    views = encode_views(OpenAIBackbone(clip_model), make_views()).double()
    text = trainer.prompt.text.double().requires_grad_()
    scale = trainer.scale.double()
    cotangent, _, _ = text_gradient(text, views[:, :6], scale, trainer)
    for b, image in enumerate(views):
        entropy = trainer.view_loss(class_logits(image[:6], text, scale))
        term = trainer.penalty(text)
        (whole,) = torch.autograd.grad(entropy + 30 * term.square() / entropy, text)
        torch.testing.assert_close(cotangent[b], whole)


@pytest.mark.parametrize("names, vanishes", [(NAMES[:2], True), (["cat"], True), (NAMES, False)])
def test_soc_says_where_its_term_vanishes(clip_model, caplog, names: list[str], vanishes: bool):
    trainer = build_trainer(build_cfg("SoC"))
    trainer.use_model(clip_model, names)
    assert sum("SoC is TPT" in line for line in caplog.messages) == vanishes
    if vanishes:
        soc, tpt = (adapt(method, clip_model, names, make_views()).logits for method in ("SoC", "TPT"))
        torch.testing.assert_close(soc, tpt)


def test_methods_differ():
    model, views = random_clip(), make_views()
    logits = {method: adapt(method, model, NAMES, views).logits for method in WEIGHTS}
    names = list(logits)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            assert (logits[first] - logits[second]).abs().max() > 1e-3, (first, second)


def test_order_and_batch_of_images_change_nothing(clip_model):
    views = make_views(images=5)
    two_steps = ["TTA.STEPS", 2, "TTA.EPISODES"]
    straight = adapt("SoC", clip_model, NAMES, views, opts=[*two_steps, 1])
    backwards = adapt("SoC", clip_model, NAMES, views.flip(0), opts=[*two_steps, 1])
    assert torch.equal(straight.logits, backwards.logits.flip(0))
    for episodes in (2, 8):
        together = adapt("SoC", clip_model, NAMES, views, opts=[*two_steps, episodes])
        torch.testing.assert_close(straight.logits, together.logits, atol=1e-3, rtol=0)


def test_adapt_takes_one_image(clip_model):
    views = make_views(images=1)
    one, batch = adapt("SoC", clip_model, NAMES, views[0]), adapt("SoC", clip_model, NAMES, views)
    assert one.logits.shape == one.zero_shot_logits.shape == (1, len(NAMES))
    assert one.ctx.shape == (1, 4, 64)
    assert torch.equal(one.logits, batch.logits)


def test_zero_steps_is_zero_shot(clip_model):
    adapted = adapt("TPT", clip_model, NAMES, make_views(), opts=["TTA.STEPS", 0])
    assert torch.equal(adapted.logits, adapted.zero_shot_logits)


@pytest.mark.parametrize("names", [["cat"], ["cat", "dog"], ["missile", "missile", "sunglasses"]])
@pytest.mark.parametrize("method", WEIGHTS)
def test_few_or_equal_classes_give_numbers(clip_model, method: str, names: list[str]):
    assert adapt(method, clip_model, names, make_views()).logits.isfinite().all()


def test_adapt_refuses_what_it_cannot_use(clip_model):
    with pytest.raises(ConfigError, match=r"views must be \(V, 3, 32, 32\)"):
        adapt("SoC", clip_model, NAMES, torch.zeros(64, 3, 224, 224))
    with pytest.raises(ConfigError, match="INPUT.SIZE is 224, but this backbone takes 32 pixels"):
        adapt("SoC", clip_model, NAMES, make_views(), opts=["INPUT.SIZE", 224])
    with pytest.raises(ConfigError, match="TTA.SELECT"):
        adapt("SoC", clip_model, NAMES, make_views(views=4))
    with pytest.raises(ConfigError, match="Did you mean 'SoC'"):
        adapt("soc", clip_model, NAMES, make_views())
    with pytest.raises(ConfigError, match=r"views must be .*, not \(0, 20, 3, 32, 32\)"):
        adapt("SoC", clip_model, NAMES, make_views(images=0))
    with pytest.raises(ValueError, match="views of image 1 hold numbers that are not finite"):
        adapt("SoC", clip_model, NAMES, make_views().index_fill(0, torch.tensor([1]), torch.nan))


def test_lost_numbers_fall_back_to_zero_shot(clip_model):
    lost = adapt("SoC", clip_model, NAMES, make_views(), opts=["OPTIM.LR", 1e30])
    assert lost.flagged.all() and lost.logits.isfinite().all() and torch.equal(lost.logits, lost.zero_shot_logits)
    assert not adapt("SoC", clip_model, NAMES, make_views()).flagged.any()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.05), (torch.float64, 1e-4)])
def test_views_of_any_floating_type(clip_model, dtype: torch.dtype, tolerance: float):
    views = make_views().to(dtype)
    logits, expected = (adapt("ZeroShot", clip_model, NAMES, given).logits for given in (views, make_views()))
    torch.testing.assert_close(logits, expected, atol=tolerance, rtol=0)


def test_the_model_stays_as_it_was(clip_model):
    before = {name: tensor.clone() for name, tensor in clip_model.state_dict().items()}
    adapt("SoC", clip_model, NAMES, make_views())
    assert all(torch.equal(tensor, before[name]) for name, tensor in clip_model.state_dict().items())
    assert not any(p.requires_grad or p.grad is not None for p in clip_model.parameters())


def test_a_model_that_was_adapted_goes_when_nobody_needs_it():
    model = random_clip()
    adapt("TPT", model, NAMES, make_views(), opts=["TTA.SELECT", 0.5])
    assert not vars(copy.deepcopy(model))["_promptcal_adapters"]
    torch.save(model, io.BytesIO())
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
