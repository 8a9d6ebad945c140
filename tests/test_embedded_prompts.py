"""The prompts that ship with the embedded model, and what sixteen shots teach it."""
from __future__ import annotations

import logging
from pathlib import Path

import pytest
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.vlm.prompt_files import EMBEDDED, prompt_hash


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of the embedded test images, drawn and encoded once for all tests here."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
def test_four_shots_lift_the_accuracy_on_the_embedded_set(tmp_path: Path, cache: Path):
    cfg = build_cfg("CoOp", "configs/datasets/landcover.yaml", opts=[
        "MODEL.BACKBONE.NAME", "small", "DATASET.NUM_SHOTS", 4, "TRAINER.COOP.FIXED_VIEWS", True,
        "TRAINER.COOP.CTX_INIT", "a photo of a", "DATALOADER.NUM_WORKERS", 0, "OUTPUT_DIR", tmp_path / "run",
        "CACHE.DIR", cache, "OPTIM.LR", 0.000125])  # as the embedded prompts were learnt
    results = build_trainer(cfg).run()
    assert results["training"]["images"] == 96 and results["training"]["epochs"] == 100
    assert results["accuracy"] > results["zero_shot_accuracy"]


@pytest.mark.slow  # on all tiles: two shots lift the accuracy by little
@pytest.mark.parametrize("name", sorted(EMBEDDED))
def test_the_embedded_prompts_fit_the_embedded_model(
    tmp_path: Path, cache: Path, name: str, caplog: pytest.LogCaptureFixture,
):
    cfg = build_cfg("CoOp", "configs/datasets/landcover.yaml", opts=[
        "MODEL.BACKBONE.NAME", "small", "MODEL.INIT_WEIGHTS", name, "DATALOADER.NUM_WORKERS", 0,
        "OUTPUT_DIR", tmp_path / "run", "CACHE.DIR", cache])
    with caplog.at_level(logging.WARNING):
        results = build_trainer(cfg).run(train=False)
    assert "another backbone" not in caplog.text
    assert results["accuracy"] > results["zero_shot_accuracy"]


@pytest.mark.parametrize("name", sorted(EMBEDDED))
@pytest.mark.parametrize("method", ["TPT", "CTPT", "OTPT", "SoC"])
def test_every_method_runs_from_the_embedded_prompts(tmp_path: Path, cache: Path, method: str, name: str):
    cfg = build_cfg(method, "configs/datasets/landcover.yaml", opts=[
        "MODEL.BACKBONE.NAME", "small", "MODEL.INIT_WEIGHTS", name, "TEST.LIMIT", 24, "TTA.VIEWS", 8,
        "TTA.SELECT", 0.25, "DATALOADER.NUM_WORKERS", 0, "OUTPUT_DIR", tmp_path / "run", "CACHE.DIR", cache])
    results = build_trainer(cfg).run()
    assert results["init_weights"] == name and results["init_weights_hash"] == prompt_hash(name)
    assert results["flagged"] == 0 and results["accuracy"] > 45  # SoC from two shots: 12 of 24 tiles
