"""What makes the engine fast must change no number: Jacobian, groups of classes, cached views, shrinking batches."""
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from promptcal.datasets.utils.errors import UserError
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.api import build_method
from promptcal.trainers.engine.adapted import adapt_within_memory
from promptcal.trainers.engine.cache import ArrayCache
from promptcal.trainers.runs.run_dir import RunDir, read_predictions
from promptcal.trainers.vlm.jacobian import (
    TextShape,
    break_even_images,
    decide_jacobian,
    jacobian_pays_off,
    text_jacobian,
)
from promptcal.trainers.vlm.openai import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.prompted_clip import PromptedCLIP
from promptcal.trainers.vlm.prompts import class_tokens, initial_context
from promptcal.trainers.vlm.text_encoder import TextEncoder

from common import classes_at_once, make_image_folder, openai_state, random_clip

NAMES = ["cat", "annual crop land", "permanent crop land", "Yorkshire_Terrier", "dog", "river", "sea or lake"]


def prompt_of(model, group: int = 0, specific: bool = False) -> PromptedCLIP:
    context = initial_context(OpenAIBackbone(model), "a photo of a")
    if specific:
        context = context + torch.randn(len(NAMES), 4, 64, generator=torch.Generator().manual_seed(0))
    backbone, tokens = OpenAIBackbone(model), class_tokens(NAMES, TOKENIZER)
    encoder = TextEncoder(backbone, tokens, budget=classes_at_once(group))
    return PromptedCLIP(NAMES, encoder, context)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("specific", [False, True], ids=["shared", "class-specific"])
def test_jacobian_and_groups_give_the_same_gradient(clip_model, specific: bool):
    whole, grouped = prompt_of(clip_model, specific=specific), prompt_of(clip_model, group=3, specific=specific)
    grad_text = torch.randn(5, len(NAMES), 48)
    expected = whole.gradient(grad_text)
    assert expected.shape == (5, *whole.context.shape)
    torch.testing.assert_close(grouped.text, whole.text)
    assert relative(grouped.gradient(grad_text), expected) < 1e-5
    with_jacobian = whole.with_jacobian(text_jacobian(whole.encoder, whole.context))
    assert relative(with_jacobian.gradient(grad_text), expected) < 1e-5


def test_the_jacobian_is_that_of_autograd(clip_model):
    prompt = prompt_of(clip_model)
    slow = torch.autograd.functional.jacobian(lambda c: prompt.encoder.groups[0](c[None])[0], prompt.context)
    assert relative(text_jacobian(prompt.encoder, prompt.context), slow.flatten(2)) < 1e-5


def test_the_jacobian_is_decided_by_counts_alone(clip_model):
    shape = prompt_of(clip_model).shape
    even = break_even_images(shape)
    assert 48 < even < 48 * 5
    assert break_even_images(replace(shape, groups=2)) == even // 2  # an image runs there and back
    assert jacobian_pays_off(shape, 2 * even + 1) and not jacobian_pays_off(shape, 2 * even)
    # Classes in smaller groups, because memory ran out, change nothing.
    assert prompt_of(clip_model, group=2).shape == shape
    for setting, expected in (("auto", [False, True]), ("on", [True, True]), ("off", [False, False])):
        cfg = build_cfg("SoC", opts=["TTA.JACOBIAN", setting])
        decided = [decide_jacobian(cfg, shape, images) for images in (2 * even, 2 * even + 1)]
        assert decided == expected
    imagenet = TextShape(classes=1000, features=512, n_ctx=4, width=512, tokens=4000, groups=1)
    assert decide_jacobian(build_cfg("SoC"), imagenet, 50_000)  # ViT-B/16: it fits


def run(root: Path, weights: Path, folder: Path, trainer: str = "SoC", *opts: object) -> dict:
    cfg = build_cfg(trainer, "configs/datasets/image_folder.yaml", opts=[
        "DATASET.ROOT", root, "MODEL.BACKBONE.NAME", weights, "OUTPUT_DIR", folder, "DATALOADER.NUM_WORKERS", 0,
        "TTA.VIEWS", 12, "TTA.SELECT", 0.25, *opts])
    build_trainer(cfg).run()
    return read_predictions(folder)


def test_the_jacobian_in_a_run_is_made_once_and_shared(image_folder: Path, clip_file: Path, tmp_path: Path, caplog):
    plain = run(image_folder, clip_file, tmp_path / "plain", "SoC", "TTA.JACOBIAN", "off")
    cache = ("CACHE.DIR", tmp_path / "cache", "TTA.JACOBIAN")
    made = run(image_folder, clip_file, tmp_path / "made", "SoC", *cache, "on")
    np.testing.assert_allclose(made["logits"], plain["logits"], atol=1e-3)
    (stored,) = (tmp_path / "cache").glob("jacobian-*/jacobian.npz")
    before = stored.stat().st_mtime_ns
    run(image_folder, clip_file, tmp_path / "other", "OTPT", *cache, "on")
    assert stored.stat().st_mtime_ns == before
    # Whether it is used does not depend on what lies in the cache: too few images here.
    after = run(image_folder, clip_file, tmp_path / "auto", "SoC", *cache, "auto")
    assert np.array_equal(after["logits"], plain["logits"]) and not np.array_equal(made["logits"], plain["logits"])


def test_a_jacobian_left_between_kill_and_resume_changes_nothing(
    image_folder: Path, clip_file: Path, tmp_path: Path, monkeypatch,
):
    """A run that began with one continues with one, though it would decide otherwise today."""
    shared = ("MODEL.PREC", "bf16", "DEVICE", "cpu", "TEST.PART", 3, "CACHE.DIR", tmp_path / "cache")
    whole = run(image_folder, clip_file, tmp_path / "whole", "SoC", *shared)
    with_jacobian = run(image_folder, clip_file, tmp_path / "on", "SoC", *shared[:6], "TTA.JACOBIAN", "on")
    assert not np.array_equal(with_jacobian["logits"], whole["logits"])

    def stop_after_first_part(folder: Path) -> None:
        real = RunDir.write_part

        def write_and_stop(run_dir: RunDir, indices, columns) -> None:
            real(run_dir, indices, columns)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(RunDir, "write_part", write_and_stop)
            run(image_folder, clip_file, folder, "SoC", *shared)

    stop_after_first_part(tmp_path / "killed")
    run(image_folder, clip_file, tmp_path / "other", "SoC", *shared, "TTA.JACOBIAN", "on")  # leaves one
    resumed = run(image_folder, clip_file, tmp_path / "killed", "SoC", *shared)
    assert np.array_equal(resumed["logits"], whole["logits"])

    with monkeypatch.context() as patched:
        patched.setattr("promptcal.trainers.base.decide_jacobian", lambda *_: True)
        stop_after_first_part(tmp_path / "begun")
    continued = run(image_folder, clip_file, tmp_path / "begun", "SoC", *shared)
    assert np.array_equal(continued["logits"], with_jacobian["logits"])


def test_a_second_method_touches_no_image(image_folder: Path, clip_file: Path, tmp_path: Path, monkeypatch):
    cache = ("CACHE.DIR", tmp_path / "cache")
    uncached = run(image_folder, clip_file, tmp_path / "uncached")
    cold = run(image_folder, clip_file, tmp_path / "cold", "SoC", *cache)
    assert np.array_equal(cold["logits"], uncached["logits"])
    expected = {name: run(image_folder, clip_file, tmp_path / name, name) for name in ("TPT", "ZeroShot")}

    def refuse(*_):
        raise AssertionError("an image was opened")

    run(image_folder, clip_file, tmp_path / "plain view", "ZeroShot", *cache)
    monkeypatch.setattr("promptcal.datasets.base.open_image", refuse)
    for trainer in ("SoC", "TPT", "ZeroShot"):
        warm = run(image_folder, clip_file, tmp_path / f"warm{trainer}", trainer, *cache)
        assert np.array_equal(warm["logits"], expected.get(trainer, cold)["logits"]), trainer
    with pytest.raises(AssertionError, match="an image was opened"):
        run(image_folder, clip_file, tmp_path / "seed", "TPT", *cache, "SEED", 1)


def test_any_flipped_byte_of_a_cached_array_is_noticed_or_harmless(tmp_path: Path):
    cache = ArrayCache(tmp_path, "views", {})
    array = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float16)
    index = np.array([3, 5])
    cache.write("x", array=array, index=index)
    noticed = 0
    file = cache.file("x")
    content = file.read_bytes()
    for place in range(0, len(content), 3):
        for flip in (1, 2, 255):
            file.write_bytes(content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :])
            read = cache.read("x", "array", "index")
            if read is not None:
                assert np.array_equal(read["array"], array) and read["array"].dtype == array.dtype, place
                assert np.array_equal(read["index"], index), place
            alone = cache.read_array("x", "index")
            assert alone is None or np.array_equal(alone, index), place
            noticed += read is None
    file.write_bytes(content)
    assert noticed > 100 and np.array_equal(cache.read("x", "array", "index")["index"], index)


def test_the_cache_belongs_to_its_circumstances(image_folder: Path, clip_file: Path, tmp_path: Path):
    cache = ("CACHE.DIR", tmp_path / "cache")
    other = tmp_path / "other.pt"
    torch.save(openai_state(random_clip(seed=5)), other)
    run(image_folder, clip_file, tmp_path / "a", "TPT", *cache)
    run(image_folder, other, tmp_path / "b", "TPT", *cache)
    run(image_folder, clip_file, tmp_path / "c", "TPT", *cache, "TTA.AUGMIX", "off")
    run(make_image_folder(tmp_path / "more", images=4), clip_file, tmp_path / "d", "TPT", *cache)
    keys = [json.loads(path.read_text()) for path in (tmp_path / "cache").glob("views-*/key.json")]
    assert len(keys) == 4 and {key["num_views"] for key in keys} == {12}


def test_a_full_disk_is_foreseen(tmp_path: Path):
    with pytest.raises(UserError, match="choose another CACHE.DIR"):
        ArrayCache(tmp_path, "views", {}).reserve(10**18, "view features")


def test_out_of_memory_halves_episodes_then_classes(clip_model, caplog):
    prompt = prompt_of(clip_model)
    trainer = build_method(build_cfg("SoC"), clip_model, NAMES)
    budget = trainer.clip.budget
    views = torch.nn.functional.normalize(torch.randn(6, 20, 48), dim=-1)
    expected = trainer.adapt(views)
    sizes = []

    def tight(some: torch.Tensor):
        sizes.append((len(some), budget.classes))
        if len(some) * budget.classes > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return trainer.run_episodes(trainer.initial, some)

    with torch.no_grad():
        shrunk = adapt_within_memory(tight, views, budget)
    torch.testing.assert_close(shrunk.logits, expected.logits, atol=1e-3, rtol=0)
    assert sizes[:5] == [(6, 7), (3, 7), (2, 7), (1, 7), (1, 4)] and len(sizes) == 10
    assert "3 episodes at once" in caplog.text and "4 classes at once" in caplog.text
    with torch.no_grad():
        adapt_within_memory(tight, views, budget)
    assert sizes[10:] == [(1, 4)] * 6  # from here on, as it said
    with pytest.raises(UserError, match="use DEVICE cpu"), torch.no_grad():
        adapt_within_memory(lambda some: (_ for _ in ()).throw(torch.OutOfMemoryError("no")), views, prompt.budget)


def no_memory(*_):
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")


def test_out_of_memory_before_the_first_image(
    clip_model, image_folder: Path, clip_file: Path, tmp_path: Path, monkeypatch,
):
    """Text features come in groups of classes then; for the Jacobian there is a line with the remedy."""
    expected = prompt_of(clip_model).text
    real = TextEncoder.text
    monkeypatch.setattr(TextEncoder, "text", lambda encoder, x: (
        no_memory if encoder.budget.classes > 2 else real)(encoder, x))
    tight = prompt_of(clip_model)
    assert tight.budget.classes == 2 and len(tight.encoder.groups) == 4
    torch.testing.assert_close(tight.text, expected)
    monkeypatch.setattr("promptcal.trainers.engine.jacobian_cache.text_jacobian", no_memory)
    with pytest.raises(UserError, match="use TTA.JACOBIAN off"):
        run(image_folder, clip_file, tmp_path / "run", "SoC", "TTA.JACOBIAN", "on")
