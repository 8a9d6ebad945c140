"""Several processes on one run, as torchrun starts them.

The same bits, one log, and the death of one loses nothing.
"""
import signal
from importlib.util import find_spec

import pytest
from promptcal.trainers.runs.run_dir import read_predictions

from common import PROJECT
from fault_runs import FaultRuns, assert_same, parts_of
from processes import Process, start_ranks

# Each is printed once, however many processes there are.
ONCE = ("37 of 37 test images", "results in", "Zero-shot")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> FaultRuns:
    return FaultRuns(tmp_path_factory.mktemp("ranks"))


def torchrun(ranks: int, arguments: list[object]) -> Process:
    """The real one; the processes that it starts are no copies."""
    launcher = find_spec("torch.distributed.run").origin
    script = PROJECT / "tools" / "train.py"
    return Process(launcher, "--standalone", "--nproc-per-node", ranks, script, *arguments)


def finish_ranks(ranks: int, arguments: list[object]) -> str:
    """What all of them together have printed."""
    output = ""
    for process in start_ranks(ranks, "train.py", *arguments):
        out, err = process.communicate()
        assert process.returncode == 0, err
        output += out
    return output


def test_any_number_of_ranks_gives_the_same_predictions(runs, tmp_path):
    """Two here, three below."""
    output = finish_ranks(2, runs.arguments(tmp_path / "run"))
    for words in ONCE:
        assert output.count(words) == 1
    runs.assert_whole(tmp_path / "run")


@pytest.mark.slow
def test_ranks_share_the_cache_and_the_jacobian(runs, tmp_path):
    def arguments(name: str) -> list[object]:
        cache = tmp_path / f"cache of {name}"
        return [tmp_path / name, "CACHE.DIR", cache, "TTA.JACOBIAN", "on"]

    runs.finish_here(*arguments("one"))
    finish_ranks(3, runs.arguments(*arguments("three")))
    assert_same(tmp_path / "three", read_predictions(tmp_path / "one"))


@pytest.mark.slow
def test_torchrun_continues_after_the_death_of_a_rank(runs, tmp_path):
    run = tmp_path / "run"
    main, other = start_ranks(2, "train.py", *runs.arguments(run))
    main.wait_for(lambda: len(parts_of(run)) >= 2)
    other.send(signal.SIGKILL)
    main.communicate()
    assert main.returncode != 0
    assert parts_of(run) and not (run / "results.json").exists()

    process = torchrun(2, runs.arguments(run))
    output, err = process.communicate()
    assert process.returncode == 0, err
    for words in ONCE:
        assert output.count(words) == 1
    runs.assert_whole(run)


@pytest.mark.slow
def test_a_mistake_that_all_ranks_meet_is_reported_once(runs, tmp_path):
    process = torchrun(2, runs.arguments(tmp_path / "run", "--root", tmp_path / "nowhere"))
    _, err = process.communicate()
    assert process.returncode != 0 and err.count("error: data root") == 1, err
