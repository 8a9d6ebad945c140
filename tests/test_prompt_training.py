"""Training of a context: Dassl's learning rates and batches, torchvision's crops, and steps against autograd."""
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
from promptcal.trainers.vlm.openai import TOKENIZER, OpenAIBackbone
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
    batches = epoch_batches(count, size, seed=0, epoch=3)
    assert [len(batch) for batch in batches] == expected
    drawn = [i for batch in batches for i in batch]
    assert len(set(drawn)) == len(drawn) and set(drawn) <= set(range(count))
    assert batches == epoch_batches(count, size, 0, 3)
    assert batches != epoch_batches(count, size, 0, 4) and batches != epoch_batches(count, size, 1, 3)


def test_training_crops_are_torchvisions():
    """To the bit, given the box: the filter does not see pixels outside the crop. Crops follow from seed and index."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8))
    crops, flips = [], 0
    for index in range(50):
        ((left, top, width, height),), (flip,) = draw_crops(image.size, 1, np.random.default_rng([5, CROPS, index]))
        theirs = vision.resized_crop(image, top, left, height, width, [64, 64], InterpolationMode.BICUBIC)
        theirs = vision.pil_to_tensor(vision.hflip(theirs) if flip else theirs)
        crops.append(TrainingCrop(64, seed=5)(image, index)[0])
        assert torch.equal(crops[-1], theirs)
        flips += flip
    assert len({crop.numpy().tobytes() for crop in crops}) == 50 and 12 < flips < 38
    assert not torch.equal(TrainingCrop(64, seed=6)(image, 7)[0], crops[7])


def make_learner(model: CLIP, start: torch.Tensor, group: int = 0, epochs: int = 5) -> PromptLearner:
    encoder = TextEncoder(
        OpenAIBackbone(model), class_tokens(NAMES, TOKENIZER), budget=classes_at_once(group))
    return PromptLearner(encoder, start, model.logit_scale.exp(), Schedule(epochs, 0.002, 1, 1e-5), 0.9, 5e-4)


def labelled_features() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = F.normalize(torch.randn(6, 48, generator=generator), dim=-1)
    return images, torch.randint(0, len(NAMES), (6,), generator=generator)


@pytest.mark.parametrize("class_specific", [False, True])
@pytest.mark.parametrize("group", [0, 2], ids=["all classes at once", "in groups"])
def test_steps_equal_autograd(clip_model, class_specific, group):
    """Five epochs on the fast tower against 77 tokens per class, autograd, and torch's SGD with Dassl's schedule."""
    start = 20 * random_context((len(NAMES), 4, 64) if class_specific else (4, 64), seed=3)
    ours, (images, labels) = make_learner(clip_model, start, group), labelled_features()
    theirs = CoOpsLearner(clip_model, NAMES, start.clone())
    optimizer, scheduler = sgd_with_warmup(theirs, 5)
    tokens = clip.tokenize([f"x x x x {name.replace('_', ' ')}." for name in NAMES])
    for _ in range(5):
        ours.begin_epoch()
        ours.step(images, labels)
        ours.end_epoch()
        each = theirs.ctx if class_specific else theirs.ctx.expand(len(NAMES), -1, -1)
        text = torch.cat([reference.encode_prompts(clip_model, tokens[k : k + 1], each[k]) for k in range(len(NAMES))])
        loss = F.cross_entropy(clip_model.logit_scale.exp() * images @ text.T, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        assert ours.figures["loss"] == pytest.approx(loss.item(), rel=1e-4)
    moved = (theirs.ctx - start).norm()
    assert moved > 1e-3 and ((ours.context - theirs.ctx).norm() / moved).item() < 1e-3


def test_out_of_memory_halves_the_classes(clip_model, monkeypatch):
    plain, tight = (make_learner(clip_model, random_context((4, 64), 0)) for _ in range(2))
    real = TextEncoder.with_vjp

    def limited(encoder: TextEncoder, context: torch.Tensor, batched: bool = False):
        if encoder.budget.classes > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(encoder, context, batched)

    for learner in (plain, tight):
        learner.begin_epoch()
        learner.step(*labelled_features())
        monkeypatch.setattr(TextEncoder, "with_vjp", limited)
    assert tight.encoder.budget.classes == 1
    torch.testing.assert_close(plain.context, tight.context)


def test_random_contexts_follow_the_seed():
    context = random_context((16, 512), seed=0)
    assert torch.equal(context, random_context((16, 512), 0)) and not torch.equal(context, random_context((16, 512), 1))
    assert context.std().item() == pytest.approx(0.02, rel=0.02)
