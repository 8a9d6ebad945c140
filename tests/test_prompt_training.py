"""Training of a context: Dassl's learning rates and batches, torchvision's crops, and steps against
autograd."""
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as vision
from PIL import Image
from promptcal.datasets.views.geometry import draw_crops
from promptcal.trainers import reference
from promptcal.trainers.fewshot.training import PromptLearner, Schedule, random_context
from promptcal.trainers.fewshot.training_images import CROPS, TrainingCrop, epoch_batches
from promptcal.trainers.vlm.loading import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.openai_clip import CLIP, clip
from promptcal.trainers.vlm.prompts import class_tokens
from promptcal.trainers.vlm.text_encoder import TextEncoder
from torchvision.transforms import InterpolationMode

from common import classes_at_once
from dassl_files import PromptLearner as CoOpsLearner
from dassl_files import sgd_with_warmup

NAMES = ["cat", "annual crop land", "Yorkshire_Terrier", "dog"]


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_learning_rates_are_dassls(warmup):
    optimizer, scheduler = sgd_with_warmup(torch.nn.Linear(1, 1), 20, warmup)
    ours = Schedule(20, 0.002, warmup, 1e-5)
    for epoch in range(20):
        assert ours(epoch) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(("count", "size", "expected"), [
    (96, 32, [32] * 3), (40, 32, [32]), (20, 32, [20]), (5, 1, [1] * 5),
])
def test_batches_of_an_epoch(count, size, expected):
    """Batches are full and no image is in two; the draw depends on seed and epoch."""
    batches = epoch_batches(count, size, seed=0, epoch=3)
    assert [len(batch) for batch in batches] == expected
    drawn = []
    for batch in batches:
        drawn += batch
    assert len(set(drawn)) == len(drawn) and set(drawn) <= set(range(count))
    assert batches == epoch_batches(count, size, 0, 3)
    assert batches != epoch_batches(count, size, 0, 4)
    assert batches != epoch_batches(count, size, 1, 3)


def test_training_crops_are_torchvisions():
    """To the bit, given the box: the filter does not see pixels outside the crop.

    Crops follow from seed and index.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    crops = []
    flips = 0
    for index in range(50):
        boxes, flip = draw_crops(image.size, 1, np.random.default_rng([5, CROPS, index]))
        left, top, width, height = boxes[0]
        expected = vision.resized_crop(image, top, left, height, width, [64, 64], InterpolationMode.BICUBIC)
        if flip[0]:
            expected = vision.hflip(expected)
            flips += 1
        crop = TrainingCrop(64, seed=5)(image, index)[0]
        assert torch.equal(crop, vision.pil_to_tensor(expected))
        crops.append(crop)
    assert len(torch.stack(crops).unique(dim=0)) == 50 and 12 < flips < 38
    assert not torch.equal(TrainingCrop(64, seed=6)(image, 7)[0], crops[7])


def make_learner(model: CLIP, start: torch.Tensor, group: int = 0) -> PromptLearner:
    tokens = class_tokens(NAMES, TOKENIZER)
    encoder = TextEncoder(OpenAIBackbone(model), tokens, budget=classes_at_once(group))
    schedule = Schedule(5, 0.002, 1, 1e-5)
    return PromptLearner(encoder, start, model.logit_scale.exp(), schedule, 0.9, 5e-4)


def labelled_features() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = F.normalize(torch.randn(6, 48, generator=generator), dim=-1)
    return images, torch.randint(0, len(NAMES), (6,), generator=generator)


@pytest.mark.parametrize("shape", [(4, 64), (len(NAMES), 4, 64)], ids=["shared", "class-specific"])
@pytest.mark.parametrize("group", [0, 2], ids=["all classes at once", "in groups"])
def test_steps_equal_autograd(clip_model, shape, group):
    """Five epochs on the fast tower.

    Against 77 tokens per class, autograd, and torch's SGD with Dassl's schedule.
    """
    start = 20 * random_context(shape, seed=3)
    learner = make_learner(clip_model, start, group)
    images, labels = labelled_features()
    plain = CoOpsLearner(clip_model, NAMES, start.clone())
    optimizer, scheduler = sgd_with_warmup(plain, 5)
    tokens = clip.tokenize([f"x x x x {name.replace('_', ' ')}." for name in NAMES])
    for _ in range(5):
        learner.begin_epoch()
        learner.step(images, labels)
        learner.end_epoch()
        contexts = plain.ctx.expand(len(NAMES), 4, 64)
        text = []
        for k in range(len(NAMES)):
            text.append(reference.encode_prompts(clip_model, tokens[k : k + 1], contexts[k]))
        loss = F.cross_entropy(clip_model.logit_scale.exp() * images @ torch.cat(text).T, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        assert learner.figures["loss"] == pytest.approx(loss.item(), rel=1e-4)
    moved = (plain.ctx - start).norm()
    assert moved > 1e-3 and (learner.context - plain.ctx).norm() / moved < 1e-3


def test_out_of_memory_halves_the_classes(clip_model, monkeypatch):
    real = TextEncoder.with_vjp

    def with_little_memory(encoder: TextEncoder, context: torch.Tensor, batched: bool = False):
        if encoder.budget.classes > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(encoder, context, batched)

    plain = make_learner(clip_model, random_context((4, 64), 0))
    tight = make_learner(clip_model, random_context((4, 64), 0))
    plain.begin_epoch()
    plain.step(*labelled_features())
    monkeypatch.setattr(TextEncoder, "with_vjp", with_little_memory)
    tight.begin_epoch()
    tight.step(*labelled_features())
    assert tight.encoder.budget.classes == 1
    torch.testing.assert_close(plain.context, tight.context)


def test_random_contexts_follow_the_seed():
    context = random_context((16, 512), seed=0)
    assert torch.equal(context, random_context((16, 512), 0))
    assert not torch.equal(context, random_context((16, 512), 1))
    assert context.std().item() == pytest.approx(0.02, rel=0.02)
