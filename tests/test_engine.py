"""What makes the engine fast must change no number: Jacobian, groups, cached views, less memory."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from promptcal.datasets.utils.errors import UserError
from promptcal.trainers import build_cfg
from promptcal.trainers.api import build_method
from promptcal.trainers.engine.cache import ArrayCache
from promptcal.trainers.engine.jacobian import TextShape, break_even_images, decide_jacobian, text_jacobian
from promptcal.trainers.tpt import adapt_within_memory
from promptcal.trainers.vlm.backbone import initial_context
from promptcal.trainers.vlm.loading import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.prompted_clip import PromptedCLIP
from promptcal.trainers.vlm.prompts import class_tokens
from promptcal.trainers.vlm.text_encoder import TextEncoder

from common import classes_at_once, openai_state, random_clip
from folders import interrupted_at

NAMES = ["cat", "annual crop land", "permanent crop land", "Yorkshire_Terrier", "dog", "river", "sea or lake"]


def prompt_of(model, group: int = 0, specific: bool = False) -> PromptedCLIP:
    """`group`: classes at once, 0 = all; `specific`: a context per class."""
    backbone = OpenAIBackbone(model)
    context = initial_context(backbone, "a photo of a")
    if specific:
        generator = torch.Generator().manual_seed(0)
        context = context + torch.randn(len(NAMES), 4, 64, generator=generator)
    tokens = class_tokens(NAMES, TOKENIZER)
    encoder = TextEncoder(backbone, tokens, budget=classes_at_once(group))
    return PromptedCLIP(NAMES, encoder, context)


def shape_of(prompt: PromptedCLIP) -> TextShape:
    return TextShape.of(prompt.encoder, prompt.context)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("specific", [False, True], ids=["shared", "class-specific"])
def test_jacobian_and_groups_give_the_gradient_of_autograd(clip_model, specific):
    prompt = prompt_of(clip_model, specific=specific)
    grouped = prompt_of(clip_model, group=3, specific=specific)
    torch.testing.assert_close(grouped.text, prompt.text)
    grad_text = torch.randn(3, len(NAMES), 48)
    expected = []
    for gradient in grad_text:
        leaf = prompt.context.clone().requires_grad_()
        text = prompt.encoder.groups[0](leaf[None])[0]
        expected.append(torch.autograd.grad(text, leaf, gradient)[0])
    with_jacobian = prompt.with_jacobian(text_jacobian(prompt.encoder, prompt.context))
    for way in (prompt, grouped, with_jacobian):
        assert relative(way.gradient(grad_text), torch.stack(expected)) < 1e-5


def test_the_jacobian_is_decided_by_counts_alone(clip_model):
    shape = shape_of(prompt_of(clip_model))
    even = break_even_images(shape)
    assert 48 < even < 48 * 5
    assert break_even_images(replace(shape, groups=2)) == even // 2  # an image runs there and back
    # Classes in smaller groups, because memory ran out, change nothing.
    assert shape_of(prompt_of(clip_model, group=2)) == shape
    for setting, expected in (("auto", [False, True]), ("on", [True, True]), ("off", [False, False])):
        cfg = build_cfg("SoC", opts=["TTA.JACOBIAN", setting])
        assert [decide_jacobian(cfg, shape, images) for images in (2 * even, 2 * even + 1)] == expected
    imagenet = TextShape(classes=1000, features=512, n_ctx=4, width=512, tokens=4000, groups=1)
    assert decide_jacobian(build_cfg("SoC"), imagenet, 50_000)  # ViT-B/16: it fits


VIEWS = ("TTA.VIEWS", 12, "TTA.SELECT", 0.25)


def test_the_jacobian_in_a_run_is_made_once_and_shared(run_method, tmp_path):
    plain = run_method("SoC", tmp_path / "plain", *VIEWS, "TTA.JACOBIAN", "off")
    cache = (*VIEWS, "CACHE.DIR", tmp_path / "cache", "TTA.JACOBIAN")
    with_jacobian = run_method("SoC", tmp_path / "with", *cache, "on")
    np.testing.assert_allclose(with_jacobian["logits"], plain["logits"], atol=1e-3)
    assert not np.array_equal(with_jacobian["logits"], plain["logits"])
    (stored,) = (tmp_path / "cache").glob("jacobian-*/jacobian.npz")
    before = stored.stat().st_mtime_ns
    run_method("OTPT", tmp_path / "other", *cache, "on")
    assert stored.stat().st_mtime_ns == before
    # Whether it is used does not depend on what lies in the cache: too few images here.
    after = run_method("SoC", tmp_path / "auto", *cache, "auto")
    assert np.array_equal(after["logits"], plain["logits"])


def test_a_jacobian_left_between_kill_and_resume_changes_nothing(run_method, tmp_path, monkeypatch):
    """A run that began with one continues with one, though it would decide otherwise today."""
    settings = (*VIEWS, "MODEL.PREC", "bf16", "DEVICE", "cpu", "TEST.PART", 3)
    cached = (*settings, "CACHE.DIR", tmp_path / "cache")
    without = run_method("SoC", tmp_path / "without", *cached)
    with_jacobian = run_method("SoC", tmp_path / "with", *settings, "TTA.JACOBIAN", "on")
    assert not np.array_equal(with_jacobian["logits"], without["logits"])

    def stop_after_first_part(folder: Path) -> None:
        with interrupted_at(f"{folder.name}/parts/*.npz", 1), pytest.raises(KeyboardInterrupt):
            run_method("SoC", folder, *cached)

    stop_after_first_part(tmp_path / "killed")
    run_method("SoC", tmp_path / "other", *cached, "TTA.JACOBIAN", "on")  # leaves one in the cache
    resumed = run_method("SoC", tmp_path / "killed", *cached)
    assert np.array_equal(resumed["logits"], without["logits"])

    with monkeypatch.context() as patched:
        patched.setattr("promptcal.trainers.engine.jacobian.jacobian_pays_off", lambda *_: True)
        stop_after_first_part(tmp_path / "begun")
    continued = run_method("SoC", tmp_path / "begun", *cached)
    assert np.array_equal(continued["logits"], with_jacobian["logits"])


def test_a_second_method_touches_no_image(run_method, tmp_path, monkeypatch):
    cache = (*VIEWS, "CACHE.DIR", tmp_path / "cache")
    expected = {}
    for method in ("SoC", "TPT", "ZeroShot"):
        expected[method] = run_method(method, tmp_path / method, *VIEWS)["logits"]
    for method in ("SoC", "ZeroShot"):  # which is encoded alone
        cold = run_method(method, tmp_path / f"cold {method}", *cache)
        assert np.array_equal(cold["logits"], expected[method])

    def refuse(*_):
        raise AssertionError("an image was opened")

    monkeypatch.setattr("promptcal.datasets.base.open_image", refuse)
    for method, logits in expected.items():
        warm = run_method(method, tmp_path / f"warm {method}", *cache)
        assert np.array_equal(warm["logits"], logits), method
    # Other views and other weights are not those of the cache.
    torch.save(openai_state(random_clip(seed=5)), tmp_path / "other.pt")
    for change in (("SEED", 1), ("TTA.AUGMIX", "off"), ("MODEL.BACKBONE.NAME", tmp_path / "other.pt")):
        with pytest.raises(AssertionError, match="an image was opened"):
            run_method("TPT", tmp_path / str(change), *cache, *change)


def test_any_flipped_byte_of_a_cached_array_is_noticed_or_harmless(tmp_path):
    cache = ArrayCache(tmp_path, "views", {})
    array = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float16)
    index = np.array([3, 5])
    cache.write("x", array=array, index=index)
    noticed = 0
    file = cache.file("x")
    content = file.read_bytes()
    for position in range(0, len(content), 5):
        for flip in (1, 255):
            damaged = bytearray(content)
            damaged[position] ^= flip
            file.write_bytes(damaged)
            arrays = cache.read("x", "array", "index")
            if arrays is None:
                noticed += 1
            else:
                assert np.array_equal(arrays["array"], array), position
                assert arrays["array"].dtype == array.dtype
                assert np.array_equal(arrays["index"], index), position
            alone = cache.read_array("x", "index")
            assert alone is None or np.array_equal(alone, index), position
    file.write_bytes(content)
    assert noticed > 50 and np.array_equal(cache.read("x", "array", "index")["index"], index)


def test_a_full_disk_is_foreseen(tmp_path):
    with pytest.raises(UserError, match="choose another CACHE.DIR"):
        ArrayCache(tmp_path, "views", {}).reserve(10**18, "view features")


def test_out_of_memory_halves_episodes_then_classes(clip_model, caplog):
    trainer = build_method(build_cfg("SoC"), clip_model, NAMES)
    budget = trainer.clip.budget
    views = torch.nn.functional.normalize(torch.randn(6, 20, 48), dim=-1)
    expected = trainer.adapt(views)
    sizes = []

    def tight(episodes: torch.Tensor):
        sizes.append((len(episodes), budget.classes))
        if len(episodes) * budget.classes > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return trainer.run_episodes(trainer.initial, episodes)

    with torch.no_grad():
        shrunk = adapt_within_memory(tight, views, budget)
    torch.testing.assert_close(shrunk.logits, expected.logits, atol=1e-3, rtol=0)
    assert sizes[:5] == [(6, 7), (3, 7), (2, 7), (1, 7), (1, 4)] and len(sizes) == 10
    assert "3 episodes at once" in caplog.text and "4 classes at once" in caplog.text
    with torch.no_grad():
        adapt_within_memory(tight, views, budget)
    assert sizes[10:] == [(1, 4)] * 6  # from here on, as it said
    with pytest.raises(UserError, match="use DEVICE cpu"), torch.no_grad():
        adapt_within_memory(no_memory, views, budget)


def no_memory(*_):
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")


def test_out_of_memory_before_the_first_image(clip_model, run_method, tmp_path, monkeypatch):
    """Text features come in groups of classes then; for the Jacobian there is one line."""
    expected = prompt_of(clip_model).text
    encode = TextEncoder.text

    def limited(encoder: TextEncoder, context):
        if encoder.budget.classes > 2:
            no_memory()
        return encode(encoder, context)

    monkeypatch.setattr(TextEncoder, "text", limited)
    tight = prompt_of(clip_model)
    assert tight.budget.classes == 2 and len(tight.encoder.groups) == 4
    torch.testing.assert_close(tight.text, expected)
    monkeypatch.setattr("promptcal.trainers.engine.jacobian.text_jacobian", no_memory)
    with pytest.raises(UserError, match="use TTA.JACOBIAN off"):
        run_method("SoC", tmp_path / "run", "TTA.JACOBIAN", "on")
