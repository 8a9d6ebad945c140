"""Whole runs with backbones of other libraries: cache, prompts, images, experiments."""
import json
from pathlib import Path

import numpy as np
import pytest
from promptcal.tools import predict, reproduce, train
from promptcal.trainers.config.settings import backbone_name
from promptcal.trainers.vlm.prompt_files import find_prompt, read_context

import test_hugging_face
from common import make_image_folder
from folders import results_of
from made_models import SIDE, make_open_clip


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Images, and weights of several kinds."""
    root = tmp_path_factory.mktemp("backbones")
    make_image_folder(root / "images" / "test")
    make_image_folder(root / "images" / "train", images=1)
    for kind in ("gelu", "siglip", "bert"):
        make_open_clip(root, kind)
    (root / "clip").mkdir()
    test_hugging_face.make(root / "clip", "clip-new-eos")
    return root


def backbone_of(root: Path, kind: str) -> str:
    if kind == "hf":
        return f"hf:{root / 'clip'}"
    return f"open_clip:promptcal-{kind}@{root / kind}.pt"


def run(root: Path, kind: str, trainer: str, folder: Path, *opts: object) -> dict:
    """`tools/train.py` in this process, and its results."""
    arguments = [
        "--trainer", trainer, "--dataset-config-file", "configs/datasets/image_folder.yaml",
        "--root", root / "images", "--backbone", backbone_of(root, kind), "--output-dir", folder,
        "TTA.VIEWS", 4, "TTA.SELECT", 0.5, "TTA.EPISODES", 4, "DATALOADER.NUM_WORKERS", 0, *opts,
    ]
    train.main(list(map(str, arguments)))
    return results_of(folder)


@pytest.mark.parametrize("kind", ["gelu", "siglip", "bert", "hf"])
def test_a_run_from_images_to_results(kind, root, tmp_path, monkeypatch):
    cache = ("CACHE.DIR", tmp_path / "cache")
    results = run(root, kind, "SoC", tmp_path / "soc", *cache)
    assert (results["n"], results["flagged"]) == (12, 0)
    assert results["backbone"] == backbone_of(root, kind)
    arrays = np.load(tmp_path / "soc" / "predictions.npz")
    assert np.abs(arrays["logits"] - arrays["zero_shot_logits"]).max() > 1e-3
    assert results["pixels"]["size"] == SIDE and "open_clip_torch" in results["versions"]

    # The cache has all views: no image is encoded again.
    monkeypatch.setattr("promptcal.trainers.engine.features.encode_views", None)
    tpt = run(root, kind, "TPT", tmp_path / "tpt", *cache)
    assert tpt["zero_shot_accuracy"] == results["zero_shot_accuracy"]
    if kind == "siglip":  # whose prompts run to the end of their padding
        product = run(root, kind, "SoC", tmp_path / "product", *cache, "TTA.JACOBIAN", "on")
        assert product["accuracy"] == results["accuracy"]
        assert product["ece"] == pytest.approx(results["ece"], abs=1e-2)


def test_pixels_are_part_of_the_caches_key_and_of_the_results(root, tmp_path):
    cache = ("CACHE.DIR", tmp_path / "cache")
    half = ("INPUT.PIXEL_MEAN", "[0.5,0.5,0.5]", "INPUT.PIXEL_STD", "[0.5,0.5,0.5]")
    plain = run(root, "gelu", "ZeroShot", tmp_path / "a", *cache)
    other = run(root, "gelu", "ZeroShot", tmp_path / "b", *cache, *half)
    keys = [json.loads(path.read_text()) for path in (tmp_path / "cache").glob("*/key.json")]
    assert sorted("mean" in key for key in keys) == [False, True]
    assert other["pixels"]["mean"] == [0.5] * 3 != plain["pixels"]["mean"]


def test_a_backbones_own_pixels_count_as_unset(root, tmp_path):
    plain = run(root, "siglip", "ZeroShot", tmp_path / "run")
    mean = json.dumps(plain["pixels"]["mean"])
    std = json.dumps(plain["pixels"]["std"])
    same = run(root, "siglip", "ZeroShot", tmp_path / "run", "INPUT.PIXEL_MEAN", mean, "INPUT.PIXEL_STD", std)
    assert same["finished"] == plain["finished"] and not same["record"]["changed"]


def test_a_prompt_is_learnt_and_belongs_to_its_backbone(root, tmp_path):
    """One of another width is refused in test_prompt_files.py."""
    run(root, "siglip", "CoOp", tmp_path / "coop", "OPTIM.MAX_EPOCH", 1, "TRAINER.COOP.N_CTX", 2,
        "DATASET.NUM_SHOTS", 1, "OPTIM.LR", 0.1)
    prompt = find_prompt(tmp_path / "coop")
    assert read_context(prompt).backbone == backbone_name(backbone_of(root, "siglip"))
    tuned = run(root, "siglip", "TPT", tmp_path / "tpt", "MODEL.INIT_WEIGHTS", prompt)
    assert tuned["init_weights"] == str(prompt)


def test_other_commands_take_other_backbones(root, tmp_path, capsys):
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    image = next((root / "images").rglob("*.png"))
    predict.main([
        str(image), "--classes", str(tmp_path / "names.txt"),
        "--backbone", backbone_of(root, "bert"), "--views", "4", "--opts", "TTA.SELECT", "0.5",
    ])
    out = capsys.readouterr().out
    assert "cat" in out and "open_clip:promptcal-bert@" in out
    status = reproduce.main([
        "table1", "--demo", "--backbone", backbone_of(root, "gelu"), "--dry-run",
        "--output-dir", str(tmp_path),
    ])
    assert status == 0
    assert "promptcal-gelu" in capsys.readouterr().out
