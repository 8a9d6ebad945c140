"""A data root that is mounted read-only, as on clusters: every tool works, or prints one line."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common import PROJECT
from data_roots import build
from folders import results_of

TOOLS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from common import run_tool
for command in json.load(sys.stdin):
    done = run_tool(*command)
    print(json.dumps([command[0], done.returncode, done.stdout, done.stderr]), flush=True)
"""


def mounted(root: Path, *command: str, **options: str) -> subprocess.CompletedProcess:
    """A command with the root mounted read-only, in a name space of its own."""
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, str(root), *command], capture_output=True, text=True,
        timeout=300, env={**os.environ, "HTTPS_PROXY": "http://127.0.0.1:9"}, **options)


@pytest.mark.slow
def test_every_tool_with_a_read_only_root(tmp_path, clip_file):
    """One process for all of them, because starting one is slow."""
    root = tmp_path / "root"
    out = tmp_path / "out"
    build("EuroSAT", root)
    build("UCF101", root)
    (root / "ucf101" / "split_zhou_UCF101.json").unlink()
    if not shutil.which("unshare") or mounted(root, "test", "!", "-w", str(root)).returncode:
        pytest.skip("only root may mount")
    before = sorted(root.rglob("*"))
    image = next(root.rglob("*.jpg"))
    eurosat = ["--dataset-config-file", "eurosat", "--root", root, "--backbone", clip_file]
    few = ["TEST.LIMIT", 3, "TTA.VIEWS", 4, "TTA.SELECT", 0.5, "DATALOADER.NUM_WORKERS", 0]
    soc = ["train.py", "--trainer", "SoC", *eurosat, *few]
    coop = ["train.py", "--trainer", "CoOp", *eurosat, *few, "DATASET.NUM_SHOTS", 1, "OPTIM.MAX_EPOCH", 1]
    ucf = ["train.py", "--trainer", "SoC", "--dataset-config-file", "ucf101", "--root", root]
    predict = ["predict.py", image, "--backbone", clip_file, "--views", 4]
    select = ["--opts", "TTA.SELECT", 0.5]
    report = ["report.py", out, "--no-figures"]
    reproduce = ["reproduce.py", "table1", "--dry-run", "--root", root, "--output-dir", out / "paper"]
    read_only = "Read-only file system"
    # Each command, its exit status, and words that it prints.
    commands = [
        ([*soc, "--output-dir", out / "SoC", "CACHE.DIR", out / "cache"], 0, ""),
        ([*coop, "--output-dir", out / "CoOp"], 0, "few-shot samples are not kept (cannot write"),
        ([*coop, "--output-dir", out / "CoOp2", "DATASET.FEWSHOT_DIR", out / "lists"], 0, ""),
        ([*soc, "--output-dir", root / "run"], 2, read_only),
        (ucf, 2, "split_zhou_UCF101.json is missing and could not be downloaded"),
        ([*predict, "--dataset", "EuroSAT", "--root", root, *select], 0, ""),
        ([*predict, "--classes", "a", "b", "--html", root / "page.html", *select], 2, read_only),
        ([*report, "--out", out / "report"], 0, ""),
        ([*report, "--out", root / "report"], 2, read_only),
        (reproduce, 0, ""),
        (["check_data.py", "eurosat", "--root", root], 0, ""),
        (["download.py", "eurosat", "--root", root], 0, ""),
        (["download.py", "ucf101", "--root", root], 1, f"cannot write to {root}: {read_only}"),
    ]
    words = json.dumps([command for command, _, _ in commands], default=str)
    done = mounted(root, sys.executable, "-c", TOOLS, str(PROJECT / "tests"), input=words)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for (_, status, message), (_, returncode, stdout, stderr) in zip(commands, results, strict=True):
        assert returncode == status and message in stdout + stderr, stderr
        assert "Traceback" not in stderr
    assert list((out / "lists" / "EuroSAT").glob("shot_1-seed_*.json"))
    assert results_of(out / "SoC")["complete"]
    assert sorted(root.rglob("*")) == before
