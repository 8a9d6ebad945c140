"""The experiments on the whole field: every method is in them, and one command makes the table."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from common import PROJECT
from promptcal.tools.reproduce import main
from promptcal.trainers import TRAINER_REGISTRY
from promptcal.trainers.experiments.definition import names, read_experiment
from promptcal.trainers.experiments.estimate import Work, works
from promptcal.trainers.experiments.plan import Place, expand
from promptcal.trainers.experiments.plan_table import duration
from test_readme import block_after


def test_family_holds_every_method_that_needs_no_labels():
    methods = set(read_experiment("family").methods)
    assert methods == set(TRAINER_REGISTRY) - {"CoOp"} and len(methods) >= 13
    assert {"accuracy", "ece", "ece_cots", "seconds"} <= set(read_experiment("family").metrics)


@pytest.mark.slow
def test_the_readme_says_what_the_experiments_plan():
    """Runs, those that are new in the order of `all`, and the estimated times, alone and after the others."""
    text = (Path(__file__).parents[1] / "configs" / "experiments" / "README.md").read_text(encoding="utf-8")
    told = {name: (int(runs), int(new), alone.strip(), after.strip()) for name, runs, new, alone, after in re.findall(
        r"^\| `(\w+)` \|[^|]*\|\s*(\d+) \|\s*(\d+) \|([^|]*)\|([^|]*)\|$", text, re.MULTILINE)}
    assert set(told) == {*names(), "all"}

    def hours(runs: list, finished: list) -> str:
        left = works([*finished, *runs], set(finished), half=True)
        return duration(sum(left.values(), Work()).on_a100) if left else "–"

    seen: dict = {}
    for name, numbers in told.items():
        runs = list(seen) if name == "all" else expand(read_experiment(name), Place())
        before = [] if name == "all" else list(seen)
        new = [run for run in runs if name == "all" or run not in seen]
        expected = (len(runs), len(new), hours(runs, []), hours(new, before))
        assert numbers == expected if runs else numbers[:2] == (0, 0), name
        seen.update(dict.fromkeys(new))


def test_combine_holds_every_pair():
    terms = read_experiment("combine").runs[0].sweep["TRAINER.REGULARISERS"]
    pairs = {tuple(part.partition(":")[0] for part in text.split(",")) for text in terms if "," in text}
    names = ("ctpt", "otpt", "atpt", "soc")
    assert pairs == {(a, b) for i, a in enumerate(names) for b in names[i + 1 :]}


@pytest.mark.slow
def test_one_more_method_is_one_file(clip_file, image_folder, tmp_path: Path):
    """The file of the README, laid among the others and nothing else changed: it runs, combines and is reported."""
    house = tmp_path / "house" / "promptcal"
    (house / "trainers").mkdir(parents=True)
    for room in ("datasets", "configs", "tools"):
        (house / room).symlink_to(PROJECT / room)
    for part in (PROJECT / "trainers").iterdir():
        (house / "trainers" / part.name).symlink_to(part)
    (house / "__init__.py").touch()
    (house / "trainers" / "closestpair.py").write_text(block_after("Add your own method"), encoding="utf-8")

    given = ["--dataset-config-file", "configs/datasets/image_folder.yaml", "--root", str(image_folder), "--backbone",
             str(clip_file), "TTA.VIEWS", "10"]
    code = f"""
from promptcal.tools import report, train
for trainer, *more in (["ClosestPair"], ["TPS", "TRAINER.REGULARISERS", "closestpair:5,ctpt:2"], ["ClosestPair"]):
    train.main(["--trainer", trainer, "--output-dir", "runs/" + trainer, *{given}, *more])
report.main(["runs", "--posthoc", "--no-figures", "--bootstrap", "0"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(house.parent), "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "nothing to compute" in done.stdout  # of the run that was already finished
    assert "Closest pair" in done.stdout and "ECE + CoTS" in done.stdout
    assert (tmp_path / "runs" / "report" / "report.html").exists()


@pytest.mark.slow
def test_one_command_makes_the_tables(tmp_path: Path, capsys):
    main(["family", "--demo", "--limit", "4", "--only", "ZeroShot", "TPT", "TPS", "ZERO", "TDA", "landcover",
          "--output-dir", str(tmp_path), "--set", "TTA.VIEWS", "20"])
    text = (tmp_path / "demo" / "experiments" / "family" / "tables.md").read_text(encoding="utf-8")
    head, table = text.split("\n### ")[0].split("|:--", 1)  # the first table
    for label in ("Accuracy (%)", "ECE (%)", "ECE + CoTS (%)", "Seconds an image"):
        assert label in head, label
    rows = {line.split("|")[1].strip(): line.split("|")[2:6] for line in table.splitlines() if line.startswith("| ")}
    assert set(rows) >= {"Zero-shot", "TPT", "TPS", "ZERO", "TDA"}
    assert all(cell.strip() for cell in rows["TPT"]) and not rows["TDA"][2].strip()  # it sees the plain view alone
    main(["posthoc", "--demo", "--limit", "4", "--only", "TPT", "landcover", "--output-dir", str(tmp_path),
          "--set", "TTA.VIEWS", "20"])
    posthoc = tmp_path / "demo" / "experiments" / "posthoc" / "tables.md"
    assert "ECE + E-CoTS (%)" in posthoc.read_text(encoding="utf-8")
