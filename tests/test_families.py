"""Whole runs with backbones of other families: cache, prompts, processes, pictures, experiments."""
from __future__ import annotations

import json
import signal
from pathlib import Path

import made_open_clip
import numpy as np
import pytest
import test_hugging_face
import torch
from common import make_image_folder
from fault_runs import parts_of
from made_models import SIDE
from processes import Process, start_ranks
from promptcal.datasets.utils.errors import WeightsError
from promptcal.tools import predict, reproduce, train
from promptcal.trainers.config.fingerprint import backbone_name
from promptcal.trainers.vlm.prompt_files import find_prompt, read_context


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and weights of four families."""
    root = tmp_path_factory.mktemp("families")
    make_image_folder(root / "images" / "test")
    make_image_folder(root / "images" / "train", images=1)
    for kind in ("gelu", "siglip", "bert"):
        made_open_clip.make(root, kind)
    (root / "clip").mkdir()
    test_hugging_face.make(root / "clip", "clip-new-eos")
    return root


def backbones(place: Path) -> dict[str, str]:
    names = {kind: f"open_clip:promptcal-{kind}@{place / kind}.pt" for kind in ("gelu", "siglip", "bert")}
    return {**names, "hf": f"hf:{place / 'clip'}"}


def run(place: Path, backbone: str, trainer: str, folder: Path, *opts: object) -> dict:
    """`tools/train.py` in this process; what it has written."""
    train.main(list(map(str, [
        "--trainer", trainer, "--dataset-config-file", "configs/datasets/image_folder.yaml", "--root", place / "images",
        "--backbone", backbone, "--output-dir", folder, "TTA.VIEWS", 4, "TTA.SELECT", 0.5, "TTA.EPISODES", 4,
        "DATALOADER.NUM_WORKERS", 0, *opts,
    ])))
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("kind", ["gelu", "siglip", "bert", "hf"])
def test_a_run_from_images_to_figures(kind: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    backbone, cache = backbones(place)[kind], ("CACHE.DIR", tmp_path / "cache")
    results = run(place, backbone, "SoC", tmp_path / "soc", *cache)
    assert results["n"] == 12 and results["backbone"] == backbone and results["flagged"] == 0
    arrays = np.load(tmp_path / "soc" / "predictions.npz")
    assert np.abs(arrays["logits"] - arrays["zero_shot_logits"]).max() > 1e-3
    assert results["pixels"]["size"] == SIDE

    def never(*_: object, **__: object) -> None:
        raise AssertionError("an image is encoded again")

    monkeypatch.setattr("promptcal.trainers.engine.features.encode_views", never)
    again = run(place, backbone, "TPT", tmp_path / "tpt", *cache)  # the cache has all views
    assert again["zero_shot_accuracy"] == results["zero_shot_accuracy"]
    if kind == "siglip":  # the only one of these whose prompts run whole to the end of their padding
        product = run(place, backbone, "SoC", tmp_path / "product", *cache, "TTA.JACOBIAN", "on")
        assert product["accuracy"] == results["accuracy"] and product["ece"] == pytest.approx(results["ece"], abs=1e-2)
    assert "open_clip_torch" in results["versions"]


def test_pixels_are_part_of_the_caches_key_and_of_the_results(place: Path, tmp_path: Path):
    name = backbones(place)["gelu"]
    cache = ("CACHE.DIR", tmp_path / "cache")
    plain = run(place, name, "ZeroShot", tmp_path / "a", *cache)
    half = ("INPUT.PIXEL_MEAN", "[0.5,0.5,0.5]", "INPUT.PIXEL_STD", "[0.5,0.5,0.5]")
    other = run(place, name, "ZeroShot", tmp_path / "b", *cache, *half)
    keys = [json.loads(path.read_text()) for path in (tmp_path / "cache").glob("*/key.json")]
    assert len(keys) == 2 and sorted("mean" in key for key in keys) == [False, True]
    assert other["pixels"]["mean"] == [0.5] * 3 != plain["pixels"]["mean"]
    logits = [np.load(tmp_path / run / "predictions.npz")["logits"] for run in "ab"]
    assert np.abs(logits[0] - logits[1]).max() > 1e-3


def test_a_prompt_is_learnt_and_belongs_to_its_backbone(place: Path, tmp_path: Path):
    names, kind = backbones(place), "siglip"
    learning = ("OPTIM.MAX_EPOCH", 1, "TRAINER.COOP.N_CTX", 2, "DATASET.NUM_SHOTS", 1, "OPTIM.LR", 0.1)
    run(place, names[kind], "CoOp", tmp_path / "coop", *learning)
    prompt = find_prompt(tmp_path / "coop")
    assert read_context(prompt).backbone == names[kind]
    tuned = run(place, names[kind], "TPT", tmp_path / "tpt", "MODEL.INIT_WEIGHTS", prompt)
    assert tuned["init_weights"] == str(prompt)
    wide = torch.load(prompt, weights_only=True)
    wide["state_dict"]["ctx"] = torch.zeros(2, 96)
    torch.save(wide, tmp_path / "wide.pt")
    with pytest.raises(WeightsError, match=rf"learnt with {names[kind][:9]}.*needs \(n_ctx, 64\)"):
        run(place, names[kind], "TPT", tmp_path / "no", "MODEL.INIT_WEIGHTS", tmp_path / "wide.pt")


def test_pictures_of_ones_own(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    picture = next((place / "images").rglob("*.png"))
    predict.main([str(picture), "--classes", str(tmp_path / "names.txt"), "--backbone", backbones(place)["bert"],
                  "--views", "4", "--opts", "TTA.SELECT", "0.5"])
    out = capsys.readouterr().out
    assert "cat" in out and "open_clip:promptcal-bert@" in out


def test_an_experiment_with_another_backbone(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    name = backbones(place)["gelu"]
    assert reproduce.main(["table1", "--demo", "--backbone", name, "--dry-run", "--output-dir", str(tmp_path)]) == 0
    assert "promptcal-gelu" in capsys.readouterr().out


def test_backbones_in_short(tmp_path: Path):
    assert backbone_name("ViT-B/16") == "ViT-B/16" and backbone_name("/a/b/tiny.pt") == "tiny"
    assert backbone_name("ViT-L/14@336px") == "ViT-L/14@336px"
    assert backbone_name("open_clip:ViT-B-16/laion2b_s34b_b88k") == "open_clip-ViT-B-16/laion2b_s34b_b88k"
    assert backbone_name("open_clip:ViT-B-16@/a/b.c/remote.pt") == "open_clip-ViT-B-16-remote"
    assert backbone_name(f"hf:{tmp_path}") == f"hf-{tmp_path.name}"


@pytest.mark.slow
def test_several_processes_and_a_continued_run(place: Path, tmp_path: Path):
    """With a model that every process has to find by itself: a folder as BiomedCLIP comes in."""
    made_open_clip.model_folder(tmp_path, "bert")
    arguments = [
        "--trainer", "SoC", "--dataset-config-file", "configs/datasets/image_folder.yaml", "--root", place / "images",
        "--backbone", f"open_clip:local-dir:{tmp_path / 'bert'}", "TEST.PART", 2, "TTA.EPISODES", 2, "TTA.VIEWS", 4,
        "TTA.SELECT", 0.5, "TTA.JACOBIAN", "off", "DATALOADER.NUM_WORKERS", 1, "--output-dir",
    ]
    for process in start_ranks(2, "train.py", *arguments, tmp_path / "two"):
        assert process.wait() == 0, process.communicate()
    process = Process("train.py", *arguments, tmp_path / "one")
    process.wait_for(lambda: parts_of(tmp_path / "one"))
    process.send_all(signal.SIGKILL)
    process.wait()
    train.main(list(map(str, [*arguments, tmp_path / "one"])))
    logits = [np.load(tmp_path / run / "predictions.npz")["logits"] for run in ("one", "two")]
    assert np.array_equal(*logits)
