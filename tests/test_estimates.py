"""What a plan takes: disk space from shapes, and times that were measured."""
import json
import re
from pathlib import Path

import pytest
from common import run_tool
from made_runs import make_run
from promptcal.trainers.experiments.definition import read_experiment
from promptcal.trainers.experiments.plan import Workspace, expand, select
from promptcal.trainers.experiments.timing import estimate

FEATURES = 1692 * 64 * 768 * 4  # bytes of DTD's view features on a CPU


def test_view_features_are_stored_by_the_first_run_that_uses_them():
    plan = expand(read_experiment("table1"), Workspace())
    dtd = [run for run in plan if run.dataset == "dtd"]
    costs = estimate(plan, set(), trial=False)
    assert [run.method for run in dtd if costs[run].disk > FEATURES] == ["TPT"]
    tpt = next(run for run in dtd if run.method == "TPT")
    costs = estimate(plan, {tpt}, trial=False)
    assert not any(costs[run].disk > FEATURES for run in dtd if run in costs)
    (alone,) = estimate(select(plan, ["ZeroShot", "dtd"]), set(), trial=False).values()
    assert FEATURES / 64 < alone.disk < FEATURES / 32  # the plain view


def test_times_of_finished_runs_of_the_same_kind(tmp_path: Path):
    plan = select(expand(read_experiment("lambda"), Workspace(output=tmp_path)), ["ucf101"])
    first, second = plan[:2]
    for run, seconds in ((first, 3.0), (second, 0.5)):
        folder = make_run(tmp_path, run.method, folder=str(run.folder.relative_to(tmp_path)))
        results = json.loads((folder / "results.json").read_text())
        (folder / "results.json").write_text(json.dumps({**results, "seconds_per_image": seconds}))
    costs = estimate(plan, {first, second}, trial=False)
    assert len(costs) == 6 and all(cost.source == "finished runs of the same kind" for cost in costs.values())
    assert all(cost.seconds == pytest.approx(3783 * 0.5) for cost in costs.values())  # features are there


def test_a_dry_run_says_where_its_time_comes_from(tmp_path: Path):
    done = run_tool("reproduce.py", "coop", "--demo", "--dry-run", "--output-dir", tmp_path, "--set", "TTA.VIEWS", "8",
                    "TTA.SELECT", "0.5", "DATALOADER.NUM_WORKERS", "0")
    assert done.returncode == 0, done.stderr
    assert re.search(r"Time on this machine: about \d+ \w+ in one process, .* \(from a trial of 8 images: 12 runs\)",
                     done.stdout)
    assert "Time unknown: 2 runs (learning a prompt has no trial)." in done.stdout
    assert "8 of 960" not in done.stdout  # the trial's own lines
    assert not list(tmp_path.iterdir())
