"""The plugin in a checkout on Dassl: the stand-in in `dassl_stand_in` has its published interface and its faults.

What is patched is the process, so each test is one, or a copy of this one.
"""
from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from common import make_image_folder
from dassl_files import save_as_dassl
from forked import forked
from promptcal.datasets.utils.cli import run_tool
from promptcal.trainers.dassl.__main__ import main
from promptcal.trainers.dassl.patches import is_set_up, use_checkout
from promptcal.trainers.functional.calibration import ece, top_class
from promptcal.trainers.report.comparison import compare
from promptcal.trainers.report.load import find_runs
from promptcal.trainers.report.measure import measure

STAND_IN = Path(__file__).with_name("dassl_stand_in")
CHECKOUT = STAND_IN / "checkout"
FEW_VIEWS = ("TTA.VIEWS", 12, "TTA.SELECT", 0.25, "DATALOADER.NUM_WORKERS", 0)
Run = Callable[..., subprocess.CompletedProcess]


def python(*args: object, cwd: Path = CHECKOUT) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *map(str, args)], capture_output=True, text=True, timeout=300, cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )


def plugin(*args: object, cwd: Path = CHECKOUT) -> subprocess.CompletedProcess:
    """`python -m promptcal.trainers.dassl args`, in a copy of this process, which has imported torch already."""
    def run() -> None:
        os.chdir(cwd)
        sys.path.insert(0, str(cwd))
        for name in [name for name in sys.modules if name.partition(".")[0] == "clip"]:
            del sys.modules[name]  # as if nobody had asked for it before the checkout
        run_tool(lambda: main([*map(str, args)]))

    return forked(run)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "pictures", classes=4, images=4)


@pytest.fixture
def train(tmp_path: Path, root: Path, clip_file: Path) -> Run:
    """The checkout's train.py through the plugin; the run folder is tmp_path/<name>."""
    def run(name: str, trainer: str, *args: object) -> subprocess.CompletedProcess:
        return plugin(
            "--dassl", STAND_IN, "train.py", "--root", root, "--trainer", trainer,
            "--dataset-config-file", "configs/folders.yaml", "--config-file", "configs/warmup.yaml",
            "--backbone", clip_file, "--output-dir", tmp_path / name, *args,
        )
    return run


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


@pytest.mark.slow
def test_as_a_user_types_it(tmp_path: Path, root: Path):
    done = python(
        "-m", "promptcal.trainers.dassl", "--dassl", STAND_IN, "train.py", "--root", root, "--trainer", "Colour",
        "--dataset-config-file", "configs/folders.yaml", "--output-dir", tmp_path / "run", "OPTIM.MAX_EPOCH", 1,
    )
    assert done.returncode == 0, done.stderr
    assert "clip is the checkout's" in done.stdout and "* accuracy: " in done.stdout


def test_their_trainers_run_and_are_measured(train: Run, tmp_path: Path):
    done = train("colour", "Colour", "--seed", 1, "TEST.FINAL_MODEL", "best_val")
    assert done.returncode == 0, done.stderr
    for name in ("wilds", "np.int", "warm-up", "checkpoints"):
        assert done.stdout.count(f"Dassl patched: {name} (") == 1
    assert "Dassl patched: set-up" not in done.stdout and "clip is the checkout's" in done.stdout
    assert "TPT is a trainer of this checkout; ours is --trainer PromptCalTPT" in done.stdout

    found = results(tmp_path / "colour")
    with np.load(tmp_path / "colour" / "predictions.npz") as file:
        predictions = dict(file)
    assert (found["trainer"], found["dataset"], found["seed"], found["n"], found["classes"], found["split"]) == (
        "Colour", "Folders", 1, 12, 4, "test")
    confidence, correct = top_class(predictions["logits"], predictions["label"])
    assert found["ece"] == pytest.approx(100 * ece(confidence, correct, 20))
    log = (tmp_path / "colour" / "log.txt").read_text()
    assert "Finished training\n" in log.split("=> result")[-2]  # which MaPLe's and KgCoOp's parse_test_res.py wait for
    after = log.split("Finish training\n")[-1].splitlines()
    assert "=> result" in after and f"* ece: {found['ece']:.2f}%" in after and f"* ace: {found['ace']:.2f}%" in after
    assert any(line.startswith("* brier: ") and line.endswith("%") for line in after)

    # The checkpoint holds a live scheduler, which torch refuses and we read as data.
    again = train("again", "Colour", "--eval-only", "--model-dir", tmp_path / "colour", "--load-epoch", 4)
    assert again.returncode == 0, again.stderr
    assert results(tmp_path / "again")["ece"] == found["ece"]
    assert results(tmp_path / "again")["data_hash"] == found["data_hash"] != ""


def test_our_trainers_run_in_their_registry(train: Run, tmp_path: Path, root: Path):
    done = train("soc", "SoC", "--eval-only", *FEW_VIEWS, "TTA.OPTIM.LR", 0.004, "TRAINER.SOC.LAMBDA", 10)
    assert done.returncode == 0, done.stderr
    found = results(tmp_path / "soc")
    assert (found["trainer"], found["dataset"], found["seed"], found["n"]) == ("SoC", "Folders", 0, 12)
    settings = found["fingerprint"]
    assert (settings["OPTIM.LR"], settings["OPTIM.NAME"], settings["TRAINER.SOC.LAMBDA"]) == (0.004, "adamw", 10.0)
    log = (tmp_path / "soc" / "log.txt").read_text()
    assert f"* ece: {found['ece']:.2f}%" in log.split("=> result\n")[1] and "12 of 12 test images" in log

    again = train("soc", "SoC", "--eval-only", *FEW_VIEWS, "TTA.OPTIM.LR", 0.004, "TRAINER.SOC.LAMBDA", 10)
    assert "finished before; nothing to compute" in again.stdout and f"* ece: {found['ece']:.2f}%" in again.stdout

    assert train("colour", "Colour").returncode == 0  # without a seed, which Dassl calls −1
    assert results(tmp_path / "colour")["data_hash"] == found["data_hash"]
    runs, notes = find_runs([tmp_path / "soc", tmp_path / "colour"])
    (table,) = compare([measure(run) for run in runs])
    assert not notes and len(table.columns) == 1
    assert [row.method for row in table.rows] == ["ZeroShot", "SoC", "Colour"]
    shown = {row.method: table.cells[row, table.columns[0]][0].metrics for row in table.rows}
    assert "ece_sals" in shown["SoC"] and "ece_sals" not in shown["Colour"]


def test_a_prompt_of_coops_is_found_as_coop_finds_it(train: Run, tmp_path: Path, clip_model):
    names = [f"kind_{letter}" for letter in "abcd"]
    save_as_dassl(tmp_path / "coop", clip_model, names, torch.randn(3, 64))
    known = ("--eval-only", "--model-dir", tmp_path / "coop", "--load-epoch")
    done = train("ours", "PromptCalTPT", *known, 50, *FEW_VIEWS)
    assert done.returncode == 0, done.stderr
    assert results(tmp_path / "ours")["init_weights"].endswith("prompt_learner/model.pth.tar-50")
    wrong = train("wrong", "SoC", *known, 3)
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-1].startswith("error: no prompt at ") and "model.pth.tar-50" in wrong.stderr


def test_few_shot_training_takes_their_settings(train: Run, tmp_path: Path):
    done = train("coop", "CoOp", "--seed", 2, "OPTIM.MAX_EPOCH", 2, "TRAINER.COOP.N_CTX", 3)
    assert done.returncode == 0, done.stderr
    settings = results(tmp_path / "coop")["fingerprint"]
    assert (settings["OPTIM.LR"], settings["OPTIM.NAME"], settings["OPTIM.WARMUP_EPOCH"]) == (0.1, "sgd", 1)
    assert (tmp_path / "coop" / "prompt_learner" / "model.pth.tar-2").is_file()
    lines = (tmp_path / "coop" / "log.txt").read_text().splitlines()
    assert lines.index("Finish training") < lines.index("Finished training") < lines.index("=> result")


@pytest.mark.parametrize(("args", "message"), [
    (["nowhere.py"], "no nowhere.py here"),
    (["--dassl", "configs", "train.py"], "configs holds no folder dassl"),
    (["--dassl", str(STAND_IN), "train.py", "--trainer", "SoC", "--dataset-config-file", "configs/folders.yaml",
      "--root", "ROOT", "--output-dir", "OUT", "TTA.SELECT", "2.0"], "TTA.SELECT is 2.0"),
])
def test_what_cannot_work_gets_one_line(root: Path, tmp_path: Path, args: list[str], message: str):
    args = [{"ROOT": root, "OUT": tmp_path / "out"}.get(arg, arg) for arg in args]
    done = plugin(*args)
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1], done.stderr


SCHEDULE = """
import logging, sys
sys.path.insert(0, sys.argv[1])
from promptcal.trainers.dassl.patches import apply_patches
names = apply_patches()
assert apply_patches() == [], "a second call must find nothing"
import numpy, torch
from dassl.config import get_cfg_default
from dassl.optim import build_lr_scheduler
from dassl.utils import load_checkpoint
cfg = get_cfg_default().OPTIM
cfg.merge_from_list(["MAX_EPOCH", 6, "WARMUP_EPOCH", 2, "LR", 0.5])

def make():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=cfg.LR)
    return optimizer, build_lr_scheduler(optimizer, cfg)

def advance(optimizer, scheduler, count):
    rates = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates

whole = advance(*make(), 6)
optimizer, scheduler = make()
first = advance(optimizer, scheduler, 4)
torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, sys.argv[2])
optimizer, scheduler = make()
content = load_checkpoint(sys.argv[2])
optimizer.load_state_dict(content["optimizer"])
scheduler.load_state_dict(content["scheduler"])
assert first + advance(optimizer, scheduler, 2) == whole, (first, whole)
assert len(set(whole)) > 3 and whole[:2] == [1e-5, 1e-5]
assert numpy.int is int and logging.getLogger("x").isEnabledFor(logging.WARNING)
print(*names)
"""


def test_patches_mend_what_is_broken_and_nothing_else(tmp_path: Path):
    script = tmp_path / "schedule.py"
    script.write_text(SCHEDULE)

    def run() -> None:
        sys.argv = [str(script), str(STAND_IN), str(tmp_path / "state.pt")]
        runpy.run_path(str(script))

    done = forked(run)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["wilds", "np.int", "warm-up", "checkpoints"]

    # With wilds installed its data sets are imported, and mute the process: that is mended instead.
    for name in ("wilds", "pandas"):
        (tmp_path / f"{name}.py").write_text("get_dataset = None\n")
    script.write_text(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{SCHEDULE}")
    done = forked(run)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["logging", "np.int", "warm-up", "checkpoints"]


def test_without_dassl_the_line_says_where_to_put_it(tmp_path: Path):
    (tmp_path / "train.py").write_text("import dassl\nraise SystemExit(dassl.__file__)")
    done = plugin("train.py", cwd=tmp_path)
    assert done.returncode == 2 and "clone it beside this folder" in done.stderr.splitlines()[-1]
    (tmp_path / "Dassl.pytorch").symlink_to(STAND_IN)
    done = plugin("train.py", cwd=tmp_path)
    assert "Dassl patched: set-up" in done.stdout and "Dassl.pytorch" not in done.stderr  # where the link leads
    assert Path(done.stderr.strip()).parent == STAND_IN / "dassl"


@pytest.mark.parametrize("name", ["../Dassl.ProGrad.pytorch", "dassl"])
def test_a_clone_by_another_name_will_do(tmp_path: Path, name: str):
    """KgCoOp and ProGrad bring their own version beside their code, and a folder `dassl` looks like a package."""
    (tmp_path / "KgCoOp").mkdir()
    tmp_path.joinpath("KgCoOp", name).symlink_to(STAND_IN)

    def run() -> None:
        os.chdir(tmp_path / "KgCoOp")
        sys.path.insert(0, str(tmp_path / "KgCoOp"))
        assert not is_set_up()
        use_checkout()
        assert is_set_up() and importlib.import_module("dassl").__version__ == "0.6.3"

    done = forked(run)
    assert done.returncode == 0, done.stderr


def test_what_dassl_imports_is_told_before_it_is_missed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    done = plugin("--dassl", STAND_IN, "train.py")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: Dassl and CoOp import scikit-learn, not installed here:")
