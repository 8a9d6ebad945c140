"""A data root that is mounted read-only, as clusters have it: every tool works, or says one line."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PROJECT
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
