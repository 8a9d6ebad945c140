"""The plugin in a checkout on Dassl: the stand-in in `dassl_stand_in` has its published interface and its faults.

The plugin patches the whole process, so each test runs in its own or in a fork of this one.
"""
from __future__ import annotations

import importlib
import json
import logging
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from promptcal.datasets.utils.cli import run_tool
from promptcal.tools.report import main as report
from promptcal.trainers.dassl.__main__ import main
from promptcal.trainers.dassl.patches import apply_patches
from promptcal.trainers.functional.calibration import ece, top_class

from common import make_image_folder
from dassl_files import save_as_dassl
from processes import forked

STAND_IN = Path(__file__).with_name("dassl_stand_in")
CHECKOUT = STAND_IN / "checkout"
FEW_VIEWS = ("TTA.VIEWS", 12, "TTA.SELECT", 0.25, "DATALOADER.NUM_WORKERS", 0)
Run = Callable[..., subprocess.CompletedProcess]


def plugin(*args: object, cwd: Path = CHECKOUT, absent: str = "") -> subprocess.CompletedProcess:
    """`python -m promptcal.trainers.dassl args` in a fork of this process, which has imported torch already."""
    def run() -> None:
        if absent:
            sys.modules[absent] = None  # importing it fails as if it were not installed
        os.chdir(cwd)
        sys.path.insert(0, str(cwd))
        for name in [name for name in sys.modules if name.partition(".")[0] == "clip"]:
            del sys.modules[name]  # as if it had not been imported before the checkout's
        run_tool(lambda: main([*map(str, args)]))

    return forked(run)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "images", classes=4, images=4)


@pytest.fixture
def train(tmp_path: Path, root: Path, clip_file: Path) -> Run:
    """The checkout's train.py through the plugin; the run directory is tmp_path/<name>."""
    def run(name: str, trainer: str, *args: object, status: int = 0) -> subprocess.CompletedProcess:
        done = plugin(
            "--dassl", STAND_IN, "train.py", "--root", root, "--trainer", trainer,
            "--dataset-config-file", "configs/folders.yaml", "--config-file", "configs/warmup.yaml",
            "--backbone", clip_file, "--output-dir", tmp_path / name, *args,
        )
        assert done.returncode == status, done.stderr
        return done
    return run


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


@pytest.mark.slow
def test_as_a_user_types_it(tmp_path: Path, root: Path):
    done = subprocess.run([
        sys.executable, "-m", "promptcal.trainers.dassl", "--dassl", STAND_IN, "train.py", "--root", root, "--trainer",
        "Colour", "--dataset-config-file", "configs/folders.yaml", "--output-dir", tmp_path / "run",
        "OPTIM.MAX_EPOCH", "1",
    ], capture_output=True, text=True, timeout=300, cwd=CHECKOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr
    assert "clip is the checkout's" in done.stdout and "* accuracy: " in done.stdout


def test_the_checkouts_trainers_run_and_are_measured(train: Run, tmp_path: Path):
    done = train("colour", "Colour", "--seed", 1, "TEST.FINAL_MODEL", "best_val")
    assert done.stdout.count("Dassl patched: wilds, np.int, warm-up, checkpoints (") == 1
    assert "clip is the checkout's" in done.stdout
    assert "TPT is a trainer of this checkout; ours is --trainer PromptCalTPT" in done.stdout

    found = results(tmp_path / "colour")
    assert (found["trainer"], found["dataset"], found["seed"], found["n"], found["classes"], found["split"]) == (
        "Colour", "Folders", 1, 12, 4, "test")
    with np.load(tmp_path / "colour" / "predictions.npz") as predictions:
        confidence, correct = top_class(predictions["logits"], predictions["label"])
    assert found["ece"] == pytest.approx(100 * ece(confidence, correct))
    log = (tmp_path / "colour" / "log.txt").read_text()
    after = log.split("Finish training\n")[-1].splitlines()
    assert "=> result" in after and f"* ece: {found['ece']:.2f}%" in after and f"* ace: {found['ace']:.2f}%" in after
    assert f"* brier: {found['brier']:.4f}" in after and 0 < found["brier"] < 2  # no percentage

    # The checkpoint contains a live scheduler, which torch refuses and we read as data.
    train("again", "Colour", "--eval-only", "--model-dir", tmp_path / "colour", "--load-epoch", 4)
    again = results(tmp_path / "again")
    assert again["ece"] == found["ece"] and again["data_hash"] == found["data_hash"] != ""


def test_our_trainers_run_in_dassls_registry(train: Run, tmp_path: Path, capsys):
    soc = ("soc", "SoC", "--eval-only", *FEW_VIEWS, "TTA.OPTIM.LR", 0.004, "TRAINER.SOC.LAMBDA", 10)
    train(*soc)
    found = results(tmp_path / "soc")
    assert (found["trainer"], found["dataset"], found["seed"], found["n"]) == ("SoC", "Folders", 0, 12)
    settings = found["record"]["method"]["settings"]
    assert (settings["OPTIM.LR"], settings["TRAINER.SOC.LAMBDA"]) == (0.004, 10.0)
    log = (tmp_path / "soc" / "log.txt").read_text()
    assert f"* ece: {found['ece']:.2f}%" in log.split("=> result\n")[1] and "12 of 12 test images" in log
    again = train(*soc)
    assert "finished before; nothing to compute" in again.stdout and f"* ece: {found['ece']:.2f}%" in again.stdout

    train("colour", "Colour")  # without a seed, which Dassl calls −1
    assert results(tmp_path / "colour")["data_hash"] == found["data_hash"]
    report([str(tmp_path), "--no-figures"])
    lines = capsys.readouterr().out.splitlines()
    lines = [line for line in lines[lines.index("ECE (%)") :][:8] if line.startswith("  ") and line.split()]
    table = [line.split()[0].rstrip(",") for line in lines]
    assert [name for name in table if name in ("Zero-shot", "SoC", "Colour")] == ["Zero-shot", "SoC", "Colour"]


def test_coops_prompts_are_found_and_trained(train: Run, tmp_path: Path, clip_model):
    save_as_dassl(tmp_path / "saved", clip_model, [f"kind_{letter}" for letter in "abcd"], torch.randn(3, 64))
    known = ("--eval-only", "--model-dir", tmp_path / "saved", "--load-epoch")
    train("ours", "PromptCalTPT", *known, 50, *FEW_VIEWS)
    assert results(tmp_path / "ours")["init_weights"].endswith("prompt_learner/model.pth.tar-50")
    line = train("wrong", "SoC", *known, 3, status=2).stderr.splitlines()[-1]
    assert line.startswith("error: no prompt at ") and "model.pth.tar-50" in line

    train("coop", "CoOp", "--seed", 2, "OPTIM.MAX_EPOCH", 2, "TRAINER.COOP.N_CTX", 3)
    settings = results(tmp_path / "coop")["record"]["method"]["settings"]
    assert (settings["OPTIM.LR"], settings["OPTIM.WARMUP_EPOCH"]) == (0.1, 1)
    assert (tmp_path / "coop" / "prompt_learner" / "model.pth.tar-2").is_file()
    lines = (tmp_path / "coop" / "log.txt").read_text().splitlines()
    assert lines.index("Finish training") < lines.index("Finished training") < lines.index("=> result")


@pytest.mark.parametrize(("args", "message"), [
    (["nowhere.py"], "no nowhere.py here"),
    (["--dassl", "configs", "train.py"], "--dassl configs: there is no dassl/__init__.py in this folder; give the "),
    (["train.py"], "Dassl is not installed: clone Dassl.pytorch and give its folder"),
    (["--dassl", str(STAND_IN), "train.py", "--trainer", "SoC", "--dataset-config-file", "configs/folders.yaml",
      "--root", "ROOT", "--output-dir", "OUT", "TTA.SELECT", "2.0"], "TTA.SELECT is 2.0"),
])
def test_user_errors_get_one_line(root: Path, tmp_path: Path, args: list[str], message: str):
    done = plugin(*({"ROOT": root, "OUT": tmp_path / "out"}.get(arg, arg) for arg in args))
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.parametrize("script", ["train.py", "own.py"])
def test_a_package_that_dassl_needs_gets_one_line(script: str, tmp_path: Path):
    """With `-m`, and where a train.py imports the plugin itself."""
    (tmp_path / "own.py").write_text("from promptcal.trainers.dassl import plugin\n")

    def run_own() -> None:
        sys.modules["sklearn"] = None
        sys.path.insert(0, str(STAND_IN))
        runpy.run_path(str(tmp_path / script), run_name="__main__")

    if script == "own.py":
        done = forked(run_own)
    else:
        done = plugin("--dassl", STAND_IN, script, "--trainer", "Colour", absent="sklearn")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: Dassl needs sklearn, which is not installed: pip install ")
    assert "[dassl]" in line


@pytest.mark.parametrize(("installed", "first"), [((), "wilds"), (("wilds", "pandas"), "logging")])
def test_patches_fix_only_what_is_broken(tmp_path: Path, installed: tuple, first: str):
    """With wilds installed its data sets are imported and disable logging, which is fixed instead. A warm-up scheduler
    continues from its saved state."""
    for name in installed:
        (tmp_path / f"{name}.py").write_text("get_dataset = None\n")

    def run() -> None:
        sys.path[:0] = [str(tmp_path), str(STAND_IN)]
        print(*apply_patches())
        assert apply_patches() == []
        assert np.int is int and logging.getLogger("x").isEnabledFor(logging.WARNING)
        cfg = importlib.import_module("dassl.config").get_cfg_default().OPTIM
        cfg.merge_from_list(["MAX_EPOCH", 6, "WARMUP_EPOCH", 2, "LR", 0.5])

        state = tmp_path / "state.pt"

        def rates(epochs: int, resume: bool = False) -> list[float]:
            optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=cfg.LR)
            scheduler = importlib.import_module("dassl.optim").build_lr_scheduler(optimizer, cfg)
            if resume:
                content = importlib.import_module("dassl.utils").load_checkpoint(state)
                optimizer.load_state_dict(content["optimizer"])
                scheduler.load_state_dict(content["scheduler"])
            found = []
            for _ in range(epochs):
                found.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                scheduler.step()
            torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, state)
            return found

        whole = rates(6)
        assert rates(4) + rates(2, resume=True) == whole
        assert len(set(whole)) > 3 and whole[:2] == [1e-5, 1e-5]

    done = forked(run)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == [first, "np.int", "warm-up", "checkpoints"]
