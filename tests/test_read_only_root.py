"""A data root that is mounted read-only, as clusters have it: every tool works, or says one line."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from common import PROJECT
from data_roots import build

MOUNT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && '


def mounted(root: Path, command: str, *arguments: object) -> subprocess.CompletedProcess:
    """A command with the root mounted read-only, in a name space of its own."""
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{MOUNT}{command}", str(root), *map(str, arguments)], capture_output=True,
        text=True, timeout=300, env={**os.environ, "HTTPS_PROXY": "http://127.0.0.1:9"},
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    build("EuroSAT", root)
    build("UCF101", root)
    (root / "ucf101" / "split_zhou_UCF101.json").unlink()
    if not shutil.which("unshare") or mounted(root, 'test ! -w "$0"').returncode:
        pytest.skip("only root may mount")
    return root


def tool(name: str, root: Path, *arguments: object) -> subprocess.CompletedProcess:
    return mounted(root, 'exec "$@"', sys.executable, PROJECT / "tools" / name, *arguments, "--root", root)


@pytest.mark.slow
def test_nothing_is_written_and_nothing_falls(root: Path, tmp_path: Path):
    before = sorted(root.rglob("*"))
    looked = tool("check_data.py", root, "eurosat")
    assert looked.returncode == 0 and "partial" in looked.stdout, looked.stderr
    there = tool("download.py", root, "eurosat")
    assert there.returncode == 0 and "eurosat: already there" in there.stderr, there.stderr
    missing = tool("download.py", root, "ucf101")
    assert missing.returncode == 1 and f"cannot write to {root}: Read-only file system" in missing.stderr
    assert "Traceback" not in missing.stderr
    code = ("import logging, sys\nlogging.basicConfig(level=20)\nfrom promptcal.datasets import build_dataset\n"
            "print(len(build_dataset('EuroSAT', sys.argv[1], 2, fewshot_dir=sys.argv[2]).train))")
    few = mounted(root, 'exec "$@"', sys.executable, "-c", code, root, "")
    assert few.stdout == "20\n" and "few-shot samples are not kept (cannot write" in few.stderr, few.stderr
    few = mounted(root, 'exec "$@"', sys.executable, "-c", code, root, tmp_path / "lists")
    assert few.stdout == "20\n" and (tmp_path / "lists" / "EuroSAT" / "shot_2-seed_0.json").is_file()
    code = "import sys\nfrom promptcal.datasets import build_dataset\nbuild_dataset('UCF101', sys.argv[1])"
    lacking = mounted(root, 'exec "$@"', sys.executable, "-c", code, root)
    assert "split_zhou_UCF101.json is missing and could not be downloaded" in lacking.stderr.splitlines()[-1]
    assert sorted(root.rglob("*")) == before


TOOLS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from common import run_tool
for command in json.load(sys.stdin):
    done = run_tool(*command)
    print(json.dumps([command[0], done.returncode, done.stdout, done.stderr]), flush=True)
"""


@pytest.mark.slow
def test_runs_and_predictions_from_a_read_only_root(root: Path, tmp_path: Path, clip_file: Path):
    """One process for all of them: what is slow is to start one."""
    before, out = sorted(root.rglob("*")), tmp_path / "out"
    picture = next(path for path in root.rglob("*") if path.suffix in (".jpg", ".png"))
    eurosat = ["--dataset-config-file", "configs/datasets/eurosat.yaml", "--root", root, "--backbone", clip_file]
    few = ["TEST.LIMIT", 3, "TTA.VIEWS", 4, "TTA.SELECT", 0.5, "DATALOADER.NUM_WORKERS", 0]
    commands = [
        ["train.py", "--trainer", "SoC", *eurosat, "--output-dir", out / "SoC", *few, "CACHE.DIR", out / "cache"],
        ["train.py", "--trainer", "CoOp", *eurosat, "--output-dir", out / "CoOp", *few, "DATASET.NUM_SHOTS", 1,
         "OPTIM.MAX_EPOCH", 1],
        ["train.py", "--trainer", "SoC", *eurosat, "--output-dir", root / "run", *few],
        ["predict.py", picture, "--dataset", "EuroSAT", "--root", root, "--backbone", clip_file, "--views", 4,
         "--opts", "TTA.SELECT", 0.5],
        ["predict.py", picture, "--classes", "a", "b", "--backbone", clip_file, "--views", 4, "--html",
         root / "page.html", "--opts", "TTA.SELECT", 0.5],
        ["report.py", out, "--out", out / "report", "--no-figures", "--bootstrap", 0],
        ["report.py", out, "--out", root / "report", "--no-figures", "--bootstrap", 0],
        ["reproduce.py", "table1", "--dry-run", "--root", root, "--output-dir", out / "paper"],
        ["check_data.py", "eurosat", "--root", root],
    ]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{MOUNT}exec "$@"', str(root), sys.executable, "-c", TOOLS, PROJECT / "tests"],
        input=json.dumps(commands, default=str), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [status for _, status, *_ in told] == [0, 0, 2, 0, 2, 0, 2, 0, 0], [err for *_, err in told]
    assert all("Traceback" not in err and "Read-only file system" in err for _, status, _, err in told if status)
    assert "few-shot samples are not kept (cannot write" in told[1][2]
    assert json.loads((out / "SoC" / "results.json").read_text())["complete"]
    assert sorted(root.rglob("*")) == before
