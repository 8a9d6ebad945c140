"""Several processes on one run, as torchrun starts them: the same bits, one voice, and a death that loses nothing."""
import json
import os
import signal
from importlib.util import find_spec

import pytest
from promptcal.trainers.runs.run_dir import read_predictions

from common import PROJECT
from fault_runs import FaultRuns, assert_same, parts_of
from processes import Process, children, start_ranks


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> FaultRuns:
    return FaultRuns(tmp_path_factory.mktemp("ranks"))


def torchrun(ranks: int, arguments: list[object]) -> Process:
    """The real one; the processes that it starts are no copies."""
    launcher = find_spec("torch.distributed.run").origin
    return Process(launcher, "--standalone", "--nproc-per-node", ranks, PROJECT / "tools" / "train.py", *arguments)


def finish_ranks(ranks: int, arguments: list[object]) -> str:
    """What they have printed, all of them together."""
    said = ""
    for process in start_ranks(ranks, "train.py", *arguments):
        out, complaint = process.communicate()
        assert process.returncode == 0, complaint
        said += out
    return said


@pytest.mark.slow
def test_torchrun(runs, tmp_path):
    """One log and one table, however many processes; a mistake that all of them meet comes once."""
    process = torchrun(2, runs.arguments(tmp_path / "run"))
    wrong = torchrun(2, runs.arguments(tmp_path / "wrong", "--root", tmp_path / "nowhere"))
    output, complaint = process.communicate()
    assert process.returncode == 0, complaint
    for line in ("37 of 37 test images", "results in", "Zero-shot"):
        assert output.count(line) == 1
    runs.assert_whole(tmp_path / "run")
    _, complaint = wrong.communicate()
    assert wrong.returncode != 0 and complaint.count("error: data root") == 1, complaint


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_any_number_of_ranks_gives_the_same_predictions(runs, tmp_path, ranks):
    output = finish_ranks(ranks, runs.arguments(tmp_path / "run"))
    assert output.count("Zero-shot") == output.count("37 of 37 test images") == output.count("results in") == 1
    runs.assert_whole(tmp_path / "run")


@pytest.mark.slow
def test_ranks_share_the_cache_and_the_jacobian(runs, tmp_path):
    def arguments(run: str, cache: str) -> list[object]:
        return [tmp_path / run, "CACHE.DIR", tmp_path / cache, "TTA.JACOBIAN", "on"]

    runs.finish_here(*arguments("one", "cache of one"))
    alone = read_predictions(tmp_path / "one")
    finish_ranks(3, runs.arguments(*arguments("three", "cache of three")))
    assert_same(tmp_path / "three", alone)


@pytest.mark.slow
def test_a_rank_that_dies_loses_nothing(runs, tmp_path):
    run = tmp_path / "run"
    process = torchrun(2, runs.arguments(run))
    process.wait_for(lambda: len(parts_of(run)) >= 2)
    owner = json.loads((run / "lock").read_text())["pid"]
    others = [pid for pid in children(process.pid) if pid != owner]
    os.kill(others[0], signal.SIGKILL)
    process.communicate()
    assert process.returncode != 0
    kept = parts_of(run)
    assert kept and not (run / "results.json").exists()
    runs.finish_here(run)
    runs.assert_whole(run)
