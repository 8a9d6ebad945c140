"""The plugin in a checkout on Dassl.

The stand-in in `dassl_stand_in` has Dassl's published interface and its faults. The plugin patches
the whole process, so each test runs in its own or in a fork of this one.
"""
from __future__ import annotations

import importlib
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
from folders import results_of
from processes import forked

STAND_IN = Path(__file__).with_name("dassl_stand_in")
CHECKOUT = STAND_IN / "checkout"
FEW_VIEWS = ("TTA.VIEWS", 12, "TTA.SELECT", 0.25, "DATALOADER.NUM_WORKERS", 0)
Run = Callable[..., subprocess.CompletedProcess]


def plugin(*args: object, cwd: Path = CHECKOUT, absent: str = "") -> subprocess.CompletedProcess:
    """`python -m promptcal.trainers.dassl args` in a fork of this process, which has imported torch."""
    def run() -> None:
        if absent:
            sys.modules[absent] = None  # importing it fails as if it were not installed
        os.chdir(cwd)
        sys.path.insert(0, str(cwd))
        for name in list(sys.modules):
            if name.partition(".")[0] == "clip":
                del sys.modules[name]  # as if it had not been imported before the checkout's
        run_tool(lambda: main(list(map(str, args))))

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


@pytest.mark.slow
def test_as_a_user_types_it(tmp_path, root):
    command = [
        sys.executable, "-m", "promptcal.trainers.dassl", "--dassl", STAND_IN, "train.py", "--root", root, "--trainer",
        "Colour", "--dataset-config-file", "configs/folders.yaml", "--output-dir", tmp_path / "run",
        "OPTIM.MAX_EPOCH", "1",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=CHECKOUT, env=environment)
    assert done.returncode == 0, done.stderr
    assert "clip is the checkout's" in done.stdout and "* accuracy: " in done.stdout


def test_the_checkouts_trainers_run_and_are_measured(train, tmp_path):
    done = train("colour", "Colour", "--seed", 1, "TEST.FINAL_MODEL", "best_val")
    assert done.stdout.count("Dassl patched: wilds, np.int, warm-up, checkpoints (") == 1
    assert "clip is the checkout's" in done.stdout
    assert "TPT is a trainer of this checkout; ours is --trainer PromptCalTPT" in done.stdout

    first = results_of(tmp_path / "colour")
    assert {"trainer": "Colour", "dataset": "Folders", "seed": 1, "n": 12, "split": "test"}.items() <= first.items()
    with np.load(tmp_path / "colour" / "predictions.npz") as predictions:
        confidence, correct = top_class(predictions["logits"], predictions["label"])
    assert first["ece"] == pytest.approx(100 * ece(confidence, correct))
    log = (tmp_path / "colour" / "log.txt").read_text()
    lines = log.split("Finish training\n")[-1].splitlines()
    brier = f"* brier: {first['brier']:.4f}"  # no percentage
    assert {"=> result", f"* ece: {first['ece']:.2f}%", f"* ace: {first['ace']:.2f}%", brier} <= set(lines)
    assert 0 < first["brier"] < 2

    # The checkpoint contains a live scheduler, which torch refuses and we read as data.
    train("again", "Colour", "--eval-only", "--model-dir", tmp_path / "colour", "--load-epoch", 4)
    again = results_of(tmp_path / "again")
    assert again["ece"] == first["ece"]
    assert again["data_hash"] == first["data_hash"] != ""


def test_our_trainers_run_in_dassls_registry(train, tmp_path, capsys):
    command = ("soc", "SoC", "--eval-only", *FEW_VIEWS, "TTA.OPTIM.LR", 0.004, "TRAINER.SOC.LAMBDA", 10)
    train(*command)
    soc = results_of(tmp_path / "soc")
    expected = {"trainer": "SoC", "dataset": "Folders", "seed": 0, "n": 12}
    assert expected.items() <= soc.items()
    settings = soc["record"]["method"]["settings"]
    assert (settings["OPTIM.LR"], settings["TRAINER.SOC.LAMBDA"]) == (0.004, 10.0)
    log = (tmp_path / "soc" / "log.txt").read_text()
    assert f"* ece: {soc['ece']:.2f}%" in log.split("=> result\n")[1]
    assert "12 of 12 test images" in log
    again = train(*command)
    assert "finished before; nothing to compute" in again.stdout
    assert f"* ece: {soc['ece']:.2f}%" in again.stdout

    train("colour", "Colour")  # without a seed, which Dassl calls −1
    assert results_of(tmp_path / "colour")["data_hash"] == soc["data_hash"]
    report([str(tmp_path), "--no-figures"])
    lines = capsys.readouterr().out.splitlines()
    rows = [line.strip().partition(" ")[0].rstrip(",") for line in lines[lines.index("ECE (%)"):][:8]]
    assert [name for name in rows if name in ("Zero-shot", "SoC", "Colour")] == ["Zero-shot", "SoC", "Colour"]


def test_an_evaluation_replaces_no_run_of_ours(train, tmp_path):
    train("run", "ZeroShot", "--eval-only", *FEW_VIEWS)
    ours = results_of(tmp_path / "run")
    done = train("run", "Colour")
    assert "holds a run of Zero-shot; choose another --output-dir" in done.stdout
    assert "* ece: " in done.stdout
    assert results_of(tmp_path / "run") == ours

    train("colour", "Colour", "OPTIM.LR", 0.01)
    train("colour", "Shuffled")
    assert results_of(tmp_path / "colour")["trainer"] == "Shuffled"


def test_runs_whose_images_are_not_known_are_shown_without_pairs(train, tmp_path, capsys):
    for name, trainer, options in (
        ("known", "Colour", ()), ("unknown", "Shuffled", ()), ("smaller step", "Shuffled", ("OPTIM.LR", 0.01)),
    ):
        train(name, trainer, "--seed", 1, *options)
    capsys.readouterr()
    report([str(tmp_path), "--no-figures"])
    assert "left out" not in capsys.readouterr().out
    tables = (tmp_path / "report" / "tables.md").read_text()
    assert "\n| Shuffled" in tables and "→ Shuffled" not in tables
    assert "Folders, 12 images (not known by content)" in tables


def test_coops_prompts_are_found_and_trained(train, tmp_path, clip_model):
    classnames = ["kind_a", "kind_b", "kind_c", "kind_d"]
    save_as_dassl(tmp_path / "saved", clip_model, classnames, torch.randn(3, 64))
    options = ("--eval-only", "--model-dir", tmp_path / "saved", "--load-epoch")
    train("ours", "PromptCalTPT", *options, 50, *FEW_VIEWS)
    prompt = results_of(tmp_path / "ours")["init_weights"]
    assert prompt.endswith("prompt_learner/model.pth.tar-50")
    line = train("wrong", "SoC", *options, 3, status=2).stderr.splitlines()[-1]
    assert line.startswith("error: no prompt at ")
    assert "model.pth.tar-50" in line

    train("coop", "CoOp", "--seed", 2, "OPTIM.MAX_EPOCH", 2, "TRAINER.COOP.N_CTX", 3)
    settings = results_of(tmp_path / "coop")["record"]["method"]["settings"]
    assert (settings["OPTIM.LR"], settings["OPTIM.WARMUP_EPOCH"]) == (0.1, 1)
    assert (tmp_path / "coop" / "prompt_learner" / "model.pth.tar-2").is_file()
    lines = (tmp_path / "coop" / "log.txt").read_text().splitlines()
    positions = [lines.index(line) for line in ("Finish training", "Finished training", "=> result")]
    assert positions == sorted(positions)


def test_user_errors_get_one_line(train):
    mistakes = {
        "no nowhere.py here": ["nowhere.py"],
        "--dassl configs: there is no dassl/__init__.py in this folder; give the ": ["--dassl", "configs", "train.py"],
        "Dassl is not installed: clone Dassl.pytorch and give its folder": ["train.py"],
    }
    for message, args in mistakes.items():
        done = plugin(*args)
        assert done.returncode == 2
        assert message in done.stderr.splitlines()[-1], done.stderr
    done = train("refused", "SoC", "TTA.SELECT", 2.0, status=2)  # a setting that cannot work
    assert "TTA.SELECT is 2.0" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("imports_plugin_itself", [False, True])
def test_a_package_that_dassl_needs_gets_one_line(tmp_path, imports_plugin_itself):
    script = tmp_path / "own.py"
    script.write_text("from promptcal.trainers.dassl import plugin\n")

    def run_script() -> None:
        sys.modules["sklearn"] = None
        sys.path.insert(0, str(STAND_IN))
        runpy.run_path(str(script), run_name="__main__")

    if imports_plugin_itself:
        done = forked(run_script)
    else:
        done = plugin("--dassl", STAND_IN, "train.py", "--trainer", "Colour", absent="sklearn")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: Dassl needs sklearn, which is not installed: pip install ") and "[dassl]" in line


@pytest.mark.parametrize(("installed", "first"), [((), "wilds"), (("wilds", "pandas"), "logging")])
def test_patches_fix_only_what_is_broken(tmp_path, installed, first):
    """With wilds installed its data sets are imported and disable logging, which is fixed instead.

    A warm-up scheduler continues from its saved state.
    """
    for name in installed:
        (tmp_path / f"{name}.py").write_text("get_dataset = None\n")
    state = tmp_path / "state.pt"

    def learning_rates(cfg, epochs: int, resume: bool = False) -> list[float]:
        """Those of the epochs, whose last state is saved."""
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=cfg.LR)
        scheduler = importlib.import_module("dassl.optim").build_lr_scheduler(optimizer, cfg)
        if resume:
            content = importlib.import_module("dassl.utils").load_checkpoint(state)
            optimizer.load_state_dict(content["optimizer"])
            scheduler.load_state_dict(content["scheduler"])
        rates = []
        for _ in range(epochs):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        content = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save(content, state)
        return rates

    def run() -> None:
        sys.path[:0] = [str(tmp_path), str(STAND_IN)]
        print(*apply_patches())
        assert apply_patches() == []
        assert np.int is int
        assert logging.getLogger("x").isEnabledFor(logging.WARNING)
        cfg = importlib.import_module("dassl.config").get_cfg_default().OPTIM
        cfg.merge_from_list(["MAX_EPOCH", 6, "WARMUP_EPOCH", 2, "LR", 0.5])
        uninterrupted = learning_rates(cfg, 6)
        assert learning_rates(cfg, 4) + learning_rates(cfg, 2, resume=True) == uninterrupted
        assert len(set(uninterrupted)) > 3
        assert uninterrupted[:2] == [1e-5, 1e-5]

    done = forked(run)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == [first, "np.int", "warm-up", "checkpoints"]
