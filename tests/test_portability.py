"""Commands without what only POSIX has, as on Windows and macOS (see `without_posix.py`)."""
import json
import os
import signal

from promptcal.datasets import DATASET_REGISTRY

from data_roots import build
from fault_runs import FaultRuns, parts_of
from processes import Process

SCRIPT = "../tests/without_posix.py"


def test_the_main_commands(tmp_path):
    """A run that is killed is continued: its lock counts for as long as it may be alive."""
    runs = FaultRuns(tmp_path)
    run = tmp_path / "run"
    train = ["train", *runs.arguments(run)]
    process = Process(SCRIPT, json.dumps([train], default=str))
    process.wait_for(lambda: parts_of(run))
    process.send_all(signal.SIGKILL)
    process.communicate()
    os.utime(run / "lock", (1, 1))

    build("DescribableTextures", tmp_path / "data")
    split = tmp_path / "data" / "dtd" / "split_zhou_DescribableTextures.json"
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    split.rename(mirror / split.name)

    zero_shot = runs.arguments(tmp_path / "zero_shot", "--trainer", "ZeroShot", "CACHE.DIR", tmp_path / "cache")
    page = tmp_path / "page"
    table = tmp_path / "predictions.csv"
    commands = [
        train,
        ["train", "--resume", run],
        ["train", *zero_shot],
        ["report", run, tmp_path / "zero_shot", "--out", page, "--no-figures"],
        ["export", run, "--out", tmp_path / "exported"],
        ["predict", runs.images, "--recursive", "--classes", "a", "b", "--backbone", runs.weights,
         "--views", "4", "--csv", table],
        ["download", "dtd", "--root", tmp_path / "data", "--mirror", mirror],
        ["check_data", "dtd", "--root", tmp_path / "data"],
        ["doctor"],
    ]
    process = Process(SCRIPT, json.dumps(commands, default=str))
    out, err = process.communicate()
    statuses = [line for line in out.splitlines() if ": status " in line]
    assert statuses == [f"{command[0]}: status 0" for command in commands], f"{out}\n{err}"
    assert process.returncode == 0, err
    runs.assert_whole(run)
    assert (page / "report.html").is_file(), list(page.iterdir())
    assert len(table.read_text().splitlines()) == 38
    assert DATASET_REGISTRY.get("DescribableTextures")(tmp_path / "data").test
