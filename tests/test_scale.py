"""Many classes: pairs in blocks of rows give the same values and gradients, and memory does not grow with K²."""
from __future__ import annotations

import pytest
import torch
from promptcal.tools.benchmark_inputs import class_names
from promptcal.tools.measuring import extra_memory, in_fresh_process
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.functional import objectives
from promptcal.trainers.vlm import backbone
from promptcal.trainers.vlm.class_towers import ClassTowers
from promptcal.trainers.vlm.openai import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.openai_clip import CLIP
from promptcal.trainers.vlm.prompts import class_tokens, initial_context
from torch import Tensor

REGULARISERS = {
    "orthogonality": objectives.orthogonality,
    "frobenius": objectives.frobenius_orthogonality,
    "nearest angle": objectives.nearest_angle,
    **{
        f"SoC {norm} {statistics}": lambda text, norm=norm, statistics=statistics: objectives.semantic_separation(
            text, 20, norm, statistics)
        for norm in ("minmax", "max", "shift") for statistics in ("detached", "flow", "flow_delta")
    },
}


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


@pytest.mark.parametrize("twins", [False, True])
@pytest.mark.parametrize("name", REGULARISERS)
def test_blocks_of_rows_change_neither_value_nor_gradient(name: str, twins: bool, monkeypatch):
    text = features(23, twins=twins)
    expected = value_and_gradient(REGULARISERS[name], text)
    for cosines in (23 * 22, 23 * 5, 1):  # two blocks, several, one row each
        monkeypatch.setattr(objectives, "COSINES_AT_ONCE", cosines)
        found = value_and_gradient(REGULARISERS[name], text)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_blocks_of_several_episodes(monkeypatch):
    text = torch.stack([features(11, seed) for seed in range(3)])
    expected = {name: value_and_gradient(function, text) for name, function in REGULARISERS.items()}
    monkeypatch.setattr(objectives, "COSINES_AT_ONCE", 33)
    for name, function in REGULARISERS.items():
        found = value_and_gradient(function, text)
        assert found[0].shape == (3,), name
        torch.testing.assert_close(found, expected[name], rtol=1e-9, atol=1e-12)


def test_pairs_are_found_by_their_place_in_the_packed_order():
    for classes in (2, 3, 9):
        text = features(classes)
        every = objectives.pair_similarities(text)
        assert torch.equal(objectives.packed_similarities(text), every)
        torch.testing.assert_close(objectives.pairs_at(text, torch.arange(len(every))), every)


def test_a_term_sees_the_shared_features_once_a_run(clip_model):
    """What all episodes share has one penalty; another prompt, and episodes' own features, have their own."""
    trainer = build_trainer(build_cfg("SoC", opts=["TTA.STEPS", 2]))
    trainer.use_model(clip_model, ["cat", "dog", "tree frog", "tractor"])
    seen, real = [], trainer.penalty
    trainer.penalty = lambda text: seen.append(text.shape) or real(text)
    views = torch.nn.functional.normalize(torch.randn(4, 20, 48), dim=-1)
    together = trainer.adapt(views)
    one_by_one = [trainer.adapt(view[None]) for view in views]
    assert seen == [(4, 48), (4, 4, 48), *[(1, 4, 48)] * 4]
    torch.testing.assert_close(together.logits, torch.cat([one.logits for one in one_by_one]), atol=1e-4, rtol=0)
    trainer.use_model(clip_model, ["cat", "dog", "tree frog"])
    trainer.adapt(views[:1])
    assert (3, 48) in seen


def test_activations_of_many_classes_wait_in_groups(clip_model, monkeypatch):
    names, model = [f"class number {k}" for k in range(40)], OpenAIBackbone(clip_model)
    whole = ClassTowers(model, class_tokens(names, TOKENIZER))
    context = initial_context(model, "a photo of a")
    assert whole.group == 40
    monkeypatch.setitem(backbone.KEPT_BYTES, "cpu", whole.towers[0].kept_bytes / 3)
    grouped = ClassTowers(model, class_tokens(names, TOKENIZER))
    assert grouped.group == 6 and len(grouped.towers) == 7
    cotangent = torch.randn(2, 40, 48)
    for found, expected in zip(
        *[(towers.text(context[None]), towers.with_vjp(context[None], batched=True)[1](cotangent))
          for towers in (grouped, whole)], strict=True,
    ):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def episode_memory() -> int | None:
    """Bytes that a whole episode of SoC takes with 4,000 classes in sixteen blocks of rows, at the real width of the
    features; the text tower is narrow, for its share is bounded apart."""
    objectives.COSINES_AT_ONCE = 1 << 20
    torch.manual_seed(0)
    model = CLIP(512, 32, 1, 64, 16, 77, 49408, 64, 1, 1).eval().requires_grad_(False)
    trainer = build_trainer(build_cfg("SoC", opts=["DEVICE", "cpu"]))
    views = torch.nn.functional.normalize(torch.randn(1, 64, 512), dim=-1)

    def episode() -> None:
        trainer.use_model(model, class_names(4000))
        assert trainer.adapt(views).logits.isfinite().all()

    return extra_memory(episode)


@pytest.mark.slow
def test_many_classes_take_little_memory():
    """In a process of its own: what other tests have left in this one's memory would be counted."""
    taken = in_fresh_process(episode_memory)
    if taken is None:
        pytest.skip("this system does not tell a process's peak memory")
    assert taken < 4.5e8  # 3.0e8; with all cosines at once 6.5e8
