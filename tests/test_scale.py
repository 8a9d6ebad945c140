"""Many classes: pairs in blocks of rows give the same values and gradients, and memory does not
grow with K²."""
import resource
from functools import partial

import pytest
import torch
from promptcal.trainers import build_cfg
from promptcal.trainers.api import build_method
from promptcal.trainers.functional import objectives
from promptcal.trainers.vlm import budget
from promptcal.trainers.vlm.backbone import initial_context
from promptcal.trainers.vlm.loading import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.openai_clip import CLIP, VOCAB_SIZE
from promptcal.trainers.vlm.prompts import class_tokens
from promptcal.trainers.vlm.text_encoder import TextEncoder
from torch import Tensor

from processes import SERVER

REGULARISERS = {
    "orthogonality": objectives.orthogonality,
    "frobenius": objectives.frobenius_orthogonality,
    "nearest angle": objectives.nearest_angle,
}
for norm in ("minmax", "max", "shift"):
    for statistics in ("detached", "flow", "flow_delta"):
        REGULARISERS[f"SoC {norm} {statistics}"] = partial(
            objectives.semantic_separation, percentile=20, normalisation=norm, statistics=statistics)


def features(classes: int, seed: int = 0, twins: bool = False) -> Tensor:
    """Unit rows with CLIP's narrow cone; with `twins` two classes have one name."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(classes, 16, generator=generator, dtype=torch.float64) + 2
    if twins:
        rows[3] = rows[1]
    return torch.nn.functional.normalize(rows, dim=-1)


def value_and_gradient(function, text: Tensor) -> tuple[Tensor, Tensor]:
    leaf = text.clone().requires_grad_()
    value = function(leaf)
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


@pytest.mark.parametrize("text", [
    features(23), features(23, twins=True), torch.stack([features(11), features(11, 1)]),
], ids=["plain", "twins", "episodes"])
@pytest.mark.parametrize("name", REGULARISERS)
def test_blocks_of_rows_change_neither_value_nor_gradient(name, text, monkeypatch):
    expected = value_and_gradient(REGULARISERS[name], text)
    classes = text.shape[-2]
    for cosines in (classes * (classes - 1), classes * 5, 1):  # two blocks, several, one row each
        monkeypatch.setattr(objectives, "COSINES_AT_ONCE", cosines)
        in_blocks = value_and_gradient(REGULARISERS[name], text)
        torch.testing.assert_close(in_blocks, expected, rtol=1e-9, atol=1e-12)


def test_many_classes_run_in_groups(clip_model, monkeypatch):
    names = [f"class number {k}" for k in range(40)]
    backbone = OpenAIBackbone(clip_model)
    at_once = TextEncoder(backbone, class_tokens(names, TOKENIZER))
    context = initial_context(backbone, "a photo of a")[None]
    assert at_once.budget.classes == 40
    monkeypatch.setitem(budget.SAVED_BYTES, "cpu", at_once.groups[0].saved_bytes / 3)
    grouped = TextEncoder(backbone, class_tokens(names, TOKENIZER))
    assert grouped.budget.classes == 6 and len(grouped.groups) == 7
    torch.testing.assert_close(grouped.text(context), at_once.text(context), atol=1e-5, rtol=1e-4)
    ones = torch.ones(2, 40, 48)
    gradient = grouped.with_vjp(context, batched=True)[1](ones)
    expected = at_once.with_vjp(context, batched=True)[1](ones)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4)


def episode_memory(_: None) -> int:
    """Bytes that an episode of SoC takes with 4,000 classes in sixteen blocks of rows, at the real
    width of the features; the text tower is narrow."""
    objectives.COSINES_AT_ONCE = 1 << 20
    model = CLIP(512, 32, 1, 64, 16, 77, VOCAB_SIZE, 64, 1, 1).eval().requires_grad_(False)
    views = torch.nn.functional.normalize(torch.randn(1, 64, 512), dim=-1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    names = [f"thing number {k}" for k in range(4000)]
    trainer = build_method(build_cfg("SoC", opts=["DEVICE", "cpu"]), model, names)
    assert trainer.adapt(views).logits.isfinite().all()
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


@pytest.mark.slow
def test_many_classes_take_little_memory():
    """In a new process, whose peak memory is its own."""
    with SERVER.Pool(1) as pool:
        assert pool.map(episode_memory, [None])[0] < 4.5e8  # 3.0e8; with all cosines at once 6.5e8
