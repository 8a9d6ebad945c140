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

TOOLS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from common import run_tool
for command in json.load(sys.stdin):
    done = run_tool(*command)
    print(json.dumps([command[0], done.returncode, done.stdout, done.stderr]), flush=True)
"""


def mounted(root: Path, *command: object, **options: str) -> subprocess.CompletedProcess:
    """A command with the root mounted read-only, in a name space of its own."""
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, str(root), *map(str, command)], capture_output=True, text=True,
        timeout=300, env={**os.environ, "HTTPS_PROXY": "http://127.0.0.1:9"}, **options)


@pytest.mark.slow
def test_every_tool_with_a_read_only_root(tmp_path, clip_file):
    """One process for all of them, because starting one is slow."""
    root, out = tmp_path / "root", tmp_path / "out"
    build("EuroSAT", root)
    build("UCF101", root)
    (root / "ucf101" / "split_zhou_UCF101.json").unlink()
    if not shutil.which("unshare") or mounted(root, "test", "!", "-w", root).returncode:
        pytest.skip("only root may mount")
    before = sorted(root.rglob("*"))
    image = next(path for path in root.rglob("*") if path.suffix in (".jpg", ".png"))
    eurosat = ["--dataset-config-file", "configs/datasets/eurosat.yaml", "--root", root, "--backbone", clip_file]
    few = ["TEST.LIMIT", 3, "TTA.VIEWS", 4, "TTA.SELECT", 0.5, "DATALOADER.NUM_WORKERS", 0]
    coop = ["train.py", "--trainer", "CoOp", *eurosat, *few, "DATASET.NUM_SHOTS", 1, "OPTIM.MAX_EPOCH", 1]
    predict = ["predict.py", image, "--backbone", clip_file, "--views", 4]
    commands = [
        ["train.py", "--trainer", "SoC", *eurosat, "--output-dir", out / "SoC", *few, "CACHE.DIR", out / "cache"],
        [*coop, "--output-dir", out / "CoOp"],
        [*coop, "--output-dir", out / "CoOp2", "DATASET.FEWSHOT_DIR", out / "lists"],
        ["train.py", "--trainer", "SoC", *eurosat, "--output-dir", root / "run", *few],
        ["train.py", "--trainer", "SoC", "--dataset-config-file", "configs/datasets/ucf101.yaml", "--root", root],
        [*predict, "--dataset", "EuroSAT", "--root", root, "--opts", "TTA.SELECT", 0.5],
        [*predict, "--classes", "a", "b", "--html", root / "page.html", "--opts", "TTA.SELECT", 0.5],
        ["report.py", out, "--out", out / "report", "--no-figures"],
        ["report.py", out, "--out", root / "report", "--no-figures"],
        ["reproduce.py", "table1", "--dry-run", "--root", root, "--output-dir", out / "paper"],
        ["check_data.py", "eurosat", "--root", root],
        ["download.py", "eurosat", "--root", root],
        ["download.py", "ucf101", "--root", root],
    ]
    done = mounted(root, sys.executable, "-c", TOOLS, PROJECT / "tests", input=json.dumps(commands, default=str))
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [status for _, status, *_ in results] == [0, 0, 0, 2, 2, 0, 2, 0, 2, 0, 0, 0, 1], [
        err for *_, err in results]
    assert all("Traceback" not in err for *_, err in results)
    assert all("Read-only file system" in results[number][3] for number in (3, 6, 8))
    assert "split_zhou_UCF101.json is missing and could not be downloaded" in results[4][3]
    assert f"cannot write to {root}: Read-only file system" in "".join(results[-1][2:])
    assert "few-shot samples are not kept (cannot write" in results[1][2]
    assert list((out / "lists" / "EuroSAT").glob("shot_1-seed_*.json"))
    assert json.loads((out / "SoC" / "results.json").read_text())["complete"]
    assert sorted(root.rglob("*")) == before
