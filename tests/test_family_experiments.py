"""One more method, and one command for the tables of the whole field."""
from __future__ import annotations

import re

import pytest
from promptcal.tools.reproduce import main

from common import PROJECT
from processes import Process
from test_readme import block_after


@pytest.mark.slow
def test_one_more_method_is_one_file(clip_file, image_folder, tmp_path):
    """The file of the README, with nothing else changed: it runs, combines and is reported."""
    package = tmp_path / "package" / "promptcal"
    (package / "trainers").mkdir(parents=True)
    for folder in ("datasets", "configs", "tools"):
        (package / folder).symlink_to(PROJECT / folder)
    for part in (PROJECT / "trainers").iterdir():
        (package / "trainers" / part.name).symlink_to(part)
    (package / "__init__.py").symlink_to(PROJECT / ".package" / "promptcal" / "__init__.py")
    source = block_after("Add your own method")
    (package / "trainers" / "hinge_pairs.py").write_text(source, encoding="utf-8")

    options = [
        "--dataset-config-file", "configs/datasets/image_folder.yaml", "--root", str(image_folder),
        "--backbone", str(clip_file), "TTA.VIEWS", "10",
    ]
    script = package.parent / "script.py"
    script.write_text(f"""
from promptcal.tools import report, train

def run(trainer, *more):
    train.main(["--trainer", trainer, "--output-dir", "{tmp_path}/runs/" + trainer, *{options}, *more])

run("HingePairs")
run("TPS", "TRAINER.REGULARISERS", "hingepairs:5,ctpt:2")
run("HingePairs")
report.main(["{tmp_path}/runs", "--posthoc", "--no-figures"])
""")
    process = Process(str(script), PYTHONPATH=str(package.parent))
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "nothing to compute" in out  # of the run that was already finished
    assert "Hinge pairs" in out and "ECE + CoTS" in out
    assert (tmp_path / "runs" / "report" / "report.html").exists()


@pytest.mark.slow
def test_one_command_makes_the_tables(tmp_path, capsys):
    main([
        "family", "--demo", "--limit", "4", "--output-dir", str(tmp_path),
        "--only", "ZeroShot", "TPT", "TPS", "ZERO", "TDA", "landcover", "--set", "TTA.VIEWS", "20",
    ])
    tables = tmp_path / "demo" / "experiments" / "family" / "tables.md"
    first_table = tables.read_text(encoding="utf-8").split("\n### ")[0]
    head, _, body = first_table.partition("|:--")
    for label in ("Accuracy (%)", "ECE (%)", "ECE + CoTS (%)", "Seconds"):
        assert label in head, label
    rows = {}
    for line in re.findall(r"^\| .*$", body, re.MULTILINE):
        cells = [cell.strip() for cell in line.split("|")]
        rows[cells[1].split(",")[0]] = cells[2:6]
    assert set(rows) >= {"Zero-shot", "TPT", "TPS", "ZERO", "TDA"}
    assert all(rows["TPT"])
    assert rows["TDA"][2] == ""  # it sees the plain view alone
