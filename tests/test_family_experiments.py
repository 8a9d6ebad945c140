"""One more method, and one command for the tables of the whole field."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest
from promptcal.tools.reproduce import main

from common import PROJECT
from test_readme import block_after


@pytest.mark.slow
def test_one_more_method_is_one_file(clip_file, image_folder, tmp_path):
    """The file of the README, added to the package with nothing else changed: it runs, combines and is reported."""
    package = tmp_path / "package" / "promptcal"
    (package / "trainers").mkdir(parents=True)
    for folder in ("datasets", "configs", "tools"):
        (package / folder).symlink_to(PROJECT / folder)
    for part in (PROJECT / "trainers").iterdir():
        (package / "trainers" / part.name).symlink_to(part)
    (package / "__init__.py").symlink_to(PROJECT / ".package" / "promptcal" / "__init__.py")
    (package / "trainers" / "hinge_pairs.py").write_text(block_after("Add your own method"), encoding="utf-8")

    given = ["--dataset-config-file", "configs/datasets/image_folder.yaml", "--root", str(image_folder), "--backbone",
             str(clip_file), "TTA.VIEWS", "10"]
    code = f"""
from promptcal.tools import report, train
for trainer, *more in (["HingePairs"], ["TPS", "TRAINER.REGULARISERS", "hingepairs:5,ctpt:2"], ["HingePairs"]):
    train.main(["--trainer", trainer, "--output-dir", "runs/" + trainer, *{given}, *more])
report.main(["runs", "--posthoc", "--no-figures"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "nothing to compute" in done.stdout  # of the run that was already finished
    assert "Hinge pairs" in done.stdout and "ECE + CoTS" in done.stdout
    assert (tmp_path / "runs" / "report" / "report.html").exists()


@pytest.mark.slow
def test_one_command_makes_the_tables(tmp_path, capsys):
    main(["family", "--demo", "--limit", "4", "--only", "ZeroShot", "TPT", "TPS", "ZERO", "TDA", "landcover",
          "--output-dir", str(tmp_path), "--set", "TTA.VIEWS", "20"])
    text = (tmp_path / "demo" / "experiments" / "family" / "tables.md").read_text(encoding="utf-8")
    head, table = text.split("\n### ")[0].split("|:--", 1)  # the first table
    for label in ("Accuracy (%)", "ECE (%)", "ECE + CoTS (%)", "Seconds"):
        assert label in head, label
    lines = [line.split("|") for line in table.splitlines() if line.startswith("| ")]
    rows = {cells[1].split(",")[0].strip(): cells[2:6] for cells in lines}
    assert set(rows) >= {"Zero-shot", "TPT", "TPS", "ZERO", "TDA"}
    assert all(cell.strip() for cell in rows["TPT"]) and not rows["TDA"][2].strip()  # it sees the plain view alone
