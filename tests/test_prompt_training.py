"""Learning a context: rates and batches as Dassl's, crops, and steps against plain autograd."""
from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as vision
from dassl_files import PromptLearner as CoOpsLearner
from dassl_files import sgd_with_warmup
from PIL import Image
from promptcal.datasets.views.maker import draw_crops
from promptcal.trainers.fewshot.training import PromptLearner, Schedule, random_context
from promptcal.trainers.fewshot.training_images import CROPS, TrainingCrop, epoch_batches
from promptcal.trainers.vlm.class_towers import ClassTowers
from promptcal.trainers.vlm.openai import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.openai_clip import CLIP, clip
from promptcal.trainers.vlm.prompts import class_tokens
from torchvision.transforms import InterpolationMode

NAMES = ["cat", "annual crop land", "Yorkshire_Terrier", "dog"]


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_learning_rates_are_dassls(warmup: int):
    learner = torch.nn.Linear(1, 1)
    optimizer, scheduler = sgd_with_warmup(learner, 20, warmup)
    ours = Schedule(20, 0.002, warmup, 1e-5)
    for epoch in range(20):
        assert ours(epoch) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(("count", "size", "expected"), [
    (96, 32, [32] * 3), (40, 32, [32]), (20, 32, [20]), (5, 1, [1] * 5),
])
def test_batches_of_an_epoch(count: int, size: int, expected: list[int]):
    batches = epoch_batches(count, size, seed=0, epoch=3)
    assert [len(batch) for batch in batches] == expected
    drawn = [i for batch in batches for i in batch]
    assert len(set(drawn)) == len(drawn) and set(drawn) <= set(range(count))
    assert batches == epoch_batches(count, size, 0, 3)
    assert batches != epoch_batches(count, size, 0, 4) and batches != epoch_batches(count, size, 1, 3)


def test_training_crops_are_random_but_repeatable():
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8))
    crop = TrainingCrop(16, seed=0)
    views = torch.cat([crop(image, index) for index in range(50)])
    assert views.shape == (50, 3, 16, 16) and views.dtype == torch.uint8
    assert torch.equal(crop(image, 7)[0], views[7])
    assert len({view.numpy().tobytes() for view in views}) == 50
    assert not torch.equal(TrainingCrop(16, seed=1)(image, 7)[0], views[7])

    ramp = np.zeros((40, 40, 3), dtype=np.uint8)
    ramp[..., 0] = np.arange(40) * 6  # brighter to the right, unless flipped
    slopes = [crop(Image.fromarray(ramp), i)[0, 0].float().diff(dim=-1).mean().sign().item() for i in range(100)]
    assert 30 < slopes.count(-1.0) < 70


def test_training_crops_are_torchvisions():
    """To the bit, given the box: the filter sees nothing of what lies around the crop."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8))
    for index in range(20):
        ((left, top, width, height),), (flip,) = draw_crops(image.size, 1, np.random.default_rng([5, CROPS, index]))
        theirs = vision.resized_crop(image, top, left, height, width, [64, 64], InterpolationMode.BICUBIC)
        theirs = vision.pil_to_tensor(vision.hflip(theirs) if flip else theirs)
        assert torch.equal(TrainingCrop(64, seed=5)(image, index)[0], theirs)


@pytest.mark.parametrize("class_specific", [False, True])
@pytest.mark.parametrize("group", [0, 2], ids=["all classes at once", "in groups"])
def test_steps_equal_plain_autograd(clip_model: CLIP, class_specific: bool, group: int):
    """Five epochs on the fast tower against 77 tokens a class, autograd, and torch's SGD under Dassl's schedule."""
    shape = (len(NAMES), 4, 64) if class_specific else (4, 64)
    start = 20 * random_context(shape, seed=3)
    generator = torch.Generator().manual_seed(0)
    images = F.normalize(torch.randn(6, 48, generator=generator), dim=-1)
    labels = torch.randint(0, len(NAMES), (6,), generator=generator)
    scale = clip_model.logit_scale.exp()
    tower = ClassTowers(OpenAIBackbone(clip_model), class_tokens(NAMES, TOKENIZER), group=group)
    ours = PromptLearner(tower, start, scale, Schedule(5, 0.002, 1, 1e-5), momentum=0.9, weight_decay=5e-4)

    theirs = CoOpsLearner(clip_model, NAMES, start.clone())
    optimizer, scheduler = sgd_with_warmup(theirs, 5)
    tokens = clip.tokenize([f"x x x x {name.replace('_', ' ')}." for name in NAMES])
    for _ in range(5):
        ours.begin_epoch()
        ours.step(images, labels)
        ours.end_epoch()
        each = theirs.ctx if class_specific else theirs.ctx.expand(len(NAMES), -1, -1)
        text = torch.cat([reference.encode_prompts(clip_model, tokens[k : k + 1], each[k]) for k in range(len(NAMES))])
        loss = F.cross_entropy(scale * images @ text.T, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        assert ours.figures["loss"] == pytest.approx(loss.item(), rel=1e-4)
    moved = (theirs.ctx - start).norm()
    assert moved > 1e-3 and ((ours.context - theirs.ctx).norm() / moved).item() < 1e-3


def test_memory_that_runs_out_halves_the_classes(clip_model: CLIP, monkeypatch: pytest.MonkeyPatch):
    images, labels = F.normalize(torch.randn(2, 48), dim=-1), torch.tensor([0, 1])
    schedule, scale = Schedule(1, 0.002, 0, 1e-5), clip_model.logit_scale.exp()
    start = random_context((4, 64), 0)
    backbone, tokens = OpenAIBackbone(clip_model), class_tokens(NAMES, TOKENIZER)
    plain = PromptLearner(ClassTowers(backbone, tokens), start, scale, schedule, 0.9, 0.0)
    tight = PromptLearner(ClassTowers(backbone, tokens), start, scale, schedule, 0.9, 0.0)
    real = ClassTowers.with_vjp

    def limited(tower: ClassTowers, context: torch.Tensor, batched: bool = False):
        if tower.group > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(tower, context, batched)

    for learner in (plain, tight):
        learner.begin_epoch()
    plain.step(images, labels)
    monkeypatch.setattr(ClassTowers, "with_vjp", limited)
    tight.step(images, labels)
    assert tight.tower.group == 1
    torch.testing.assert_close(plain.context, tight.context)


def test_random_contexts_follow_the_seed():
    context = random_context((16, 512), seed=0)
    assert torch.equal(context, random_context((16, 512), 0)) and not torch.equal(context, random_context((16, 512), 1))
    assert context.std().item() == pytest.approx(0.02, rel=0.02)
