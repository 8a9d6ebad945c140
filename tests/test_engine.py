"""What makes the engine fast must change no number: Jacobian, groups of classes, cached views, shrinking batches."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from common import make_image_folder, openai_state, random_clip
from promptcal.datasets.utils.errors import ConfigError, UserError
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.engine.adapted import adapt_within_memory
from promptcal.trainers.engine.cache import ArrayCache
from promptcal.trainers.engine.tta_loop import tune_and_predict
from promptcal.trainers.runs.run_dir import read_predictions
from promptcal.trainers.vlm.openai import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.prompts import class_tokens, initial_context
from promptcal.trainers.vlm.text_encoder import (
    InitialPrompt,
    TextEncoder,
    break_even,
    jacobian_size,
    pays,
    text_jacobian,
)

NAMES = ["cat", "annual crop land", "permanent crop land", "Yorkshire_Terrier", "dog", "river", "sea or lake"]


def prompt_of(model, group: int = 0, specific: bool = False) -> InitialPrompt:
    context = initial_context(OpenAIBackbone(model), "a photo of a")
    if specific:
        context = context + torch.randn(len(NAMES), 4, 64, generator=torch.Generator().manual_seed(0))
    return InitialPrompt(TextEncoder(OpenAIBackbone(model), class_tokens(NAMES, TOKENIZER), group=group), context)


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
    whole.jacobian = text_jacobian(whole.tower, whole.context)
    assert relative(whole.gradient(grad_text), expected) < 1e-5


def test_the_jacobian_is_that_of_autograd(clip_model):
    prompt = prompt_of(clip_model)
    slow = torch.autograd.functional.jacobian(lambda c: prompt.tower.towers[0](c[None])[0], prompt.context)
    assert relative(text_jacobian(prompt.tower, prompt.context), slow.flatten(2)) < 1e-5
    assert 48 < break_even(prompt.tower, 4, 48) < 48 * 5
    grouped = TextEncoder(OpenAIBackbone(clip_model), class_tokens(NAMES, TOKENIZER), group=2)
    assert break_even(grouped, 4, 48) == break_even(prompt.tower, 4, 48) // 2  # an image runs there and back
    assert pays(201, 100) and not pays(200, 100)
    assert jacobian_size(1000, 512, torch.empty(4, 512)) < 1e9 * build_cfg("SoC").TTA.JACOBIAN_GB  # ImageNet, ViT-B/16


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
    with pytest.raises(ConfigError, match="raise TTA.JACOBIAN_GB"):
        run(image_folder, clip_file, tmp_path / "large", "SoC", *cache, "on", "TTA.JACOBIAN_GB", 0)


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
    trainer = build_trainer(build_cfg("SoC"))
    trainer.use_model(clip_model, NAMES)
    views = torch.nn.functional.normalize(torch.randn(6, 20, 48), dim=-1)
    expected = trainer.adapt(views)
    sizes = []

    def tight(some: torch.Tensor):
        sizes.append((len(some), trainer.prompt.tower.group))
        if len(some) * trainer.prompt.tower.group > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return tune_and_predict(trainer.prompt, some, trainer.scale, trainer, trainer.cfg)

    with torch.no_grad():
        shrunk = adapt_within_memory(tight, views, trainer.prompt)
    torch.testing.assert_close(shrunk.logits, expected.logits, atol=1e-3, rtol=0)
    assert sizes[:5] == [(6, 7), (3, 7), (2, 7), (1, 7), (1, 4)] and len(sizes) == 10
    assert "3 episodes at once" in caplog.text and "4 classes at once" in caplog.text
    with torch.no_grad():
        adapt_within_memory(tight, views, trainer.prompt)
    assert sizes[10:] == [(1, 4)] * 6  # from here on, as it said
    with pytest.raises(UserError, match="use DEVICE cpu"), torch.no_grad():
        adapt_within_memory(lambda some: (_ for _ in ()).throw(torch.OutOfMemoryError("no")), views, prompt)


def no_memory(*_):
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")


def test_out_of_memory_before_the_first_image(
    clip_model, image_folder: Path, clip_file: Path, tmp_path: Path, monkeypatch,
):
    """Text features come in groups of classes then; for the Jacobian there is a line with the remedy."""
    expected = prompt_of(clip_model).text
    real = TextEncoder.text
    monkeypatch.setattr(TextEncoder, "text", lambda tower, x: (no_memory if tower.group > 2 else real)(tower, x))
    tight = prompt_of(clip_model)
    assert tight.tower.group == 2
    torch.testing.assert_close(tight.text, expected)
    monkeypatch.setattr("promptcal.trainers.engine.jacobian_cache.text_jacobian", no_memory)
    with pytest.raises(UserError, match="use TTA.JACOBIAN off"):
        run(image_folder, clip_file, tmp_path / "run", "SoC", "TTA.JACOBIAN", "on")
