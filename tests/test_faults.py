"""Kill it, spread it, feed it rubbish: the real command under real faults. Nothing is lost or counted twice."""
from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PROJECT, make_image_folder, random_clip
from promptcal.datasets.errors import UserError
from promptcal.trainers import adapt
from promptcal.trainers.runs import lock
from promptcal.trainers.runs.files import write_arrays, write_json
from promptcal.trainers.runs.folder import RunFolder
from promptcal.trainers.runs.lock import RunLock

KILLS = int(os.environ.get("PROMPTCAL_KILLS", 4))  # rounds of kill -9; more for a longer soak
IMAGES = 36


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """36 images in four classes, and weights: enough for 18 parts of two."""
    root = tmp_path_factory.mktemp("faults")
    torch.save(random_clip().state_dict(), root / "tiny.pt")
    return make_image_folder(root / "images", images=IMAGES // 4), root / "tiny.pt"


def command(setting: tuple[Path, Path], run: Path, *args: object, ranks: int = 0) -> list[str]:
    start = [sys.executable]
    if ranks:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*start, str(PROJECT / "tools" / "train.py"), "--trainer", "SoC", "--dataset-config-file",
            "configs/datasets/image_folder.yaml", "--root", str(setting[0]), "--backbone", str(setting[1]),
            "--output-dir", str(run), "TEST.PART", "2", "TTA.EPISODES", "2", "TTA.JACOBIAN", "off",
            "DATALOADER.NUM_WORKERS", "1", *map(str, args)]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(words: list[str], limit: int = resource.RLIM_INFINITY) -> subprocess.Popen:
    """The command in a session of its own, where no file may grow beyond `limit` bytes."""
    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job of a shell ignores Ctrl-C
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
                            start_new_session=True, preexec_fn=prepare)


def finish(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def parts_of(run: Path) -> set[str]:
    return {path.name for path in (run / "parts").glob("*.npz")}


def wait_for(condition, process: subprocess.Popen, seconds: float = 240) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def whole(setting: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The predictions of an uninterrupted run in one process."""
    run = tmp_path_factory.mktemp("whole") / "run"
    finish(command(setting, run))
    predictions = RunFolder(run).predictions()
    assert predictions["index"].tolist() == list(range(IMAGES))
    return predictions


def assert_equal(run: Path, whole: dict[str, np.ndarray]) -> None:
    """Bit for bit the same, over exactly the same samples; and nothing but the results is left."""
    predictions = RunFolder(run).predictions()
    assert predictions.keys() == whole.keys()
    assert all(np.array_equal(predictions[name], whole[name]) for name in whole)
    assert {path.name for path in run.iterdir()} == {
        "config.yaml", "log.txt", "results.json", "predictions.npz", "tensorboard"}


def test_kill_9_at_random_moments(setting, whole, tmp_path: Path):
    """Before the first part, between parts, in the middle of one, while results are written. A run that got to its end
    in spite of it is compared, and another begun."""
    moments = random.Random(0)
    runs = [tmp_path / f"run{n}" for n in range(KILLS)]
    run = runs.pop()
    for _ in range(KILLS):
        before = parts_of(run)
        goal = len(before) + moments.choice((0, 1, 6))
        process = start(command(setting, run))
        wait_for(lambda run=run, goal=goal: (run / "results.json").exists() or (
            (run / "lock").exists() and len(parts_of(run)) >= goal), process)
        time.sleep(moments.uniform(0, 0.3))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if (run / "results.json").exists():
            finish(command(setting, run))
            assert_equal(run, whole)
            run = runs.pop()
        else:
            assert before <= parts_of(run)
    finish(command(setting, run))
    assert_equal(run, whole)


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_end_the_run_in_order(setting, whole, tmp_path: Path, sent: signal.Signals, status: int):
    run = tmp_path / "run"
    process = start(command(setting, run))
    wait_for(lambda: parts_of(run), process)
    process.send_signal(sent)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == status and "what was finished is kept" in complaint and "Traceback" not in complaint
    assert not (run / "lock").exists() and parts_of(run)
    finish(command(setting, run))
    assert_equal(run, whole)


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_number_of_ranks_gives_the_same_predictions(setting, whole, tmp_path: Path, ranks: int):
    output = finish(command(setting, tmp_path / "run", ranks=ranks))
    assert output.count("Zero-shot") == 1  # one table, however many processes
    assert_equal(tmp_path / "run", whole)


def test_a_rank_that_dies_loses_nothing(setting, whole, tmp_path: Path):
    run = tmp_path / "run"
    process = start(command(setting, run, ranks=2))
    wait_for(lambda: len(parts_of(run)) >= 2, process)
    owner = json.loads((run / "lock").read_text())["pid"]
    others = [pid for pid in children(process.pid) if pid != owner]
    os.kill(others[0], signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode != 0
    kept = parts_of(run)
    assert kept and not (run / "results.json").exists()
    finish(command(setting, run))
    assert_equal(run, whole)


def children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def test_a_second_process_on_the_same_folder_stops(setting, tmp_path: Path):
    run = tmp_path / "run"
    first = start(command(setting, run))
    try:
        wait_for(lambda: (run / "lock").exists() and parts_of(run), first)
        os.kill(first.pid, signal.SIGSTOP)
        second = subprocess.run(command(setting, run), capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
    assert second.returncode == 2 and f"is in use by process {first.pid}" in second.stderr


def test_a_lock_of_a_dead_or_silent_owner_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gone = subprocess.Popen(["true"])
    gone.wait()
    here = RunLock(tmp_path)
    with here:
        owner = json.loads((tmp_path / "lock").read_text())
        with pytest.raises(UserError, match=f"in use by process {os.getpid()} on {owner['host']}"):
            RunLock(tmp_path).__enter__()
    assert not (tmp_path / "lock").exists()
    write_json(tmp_path / "lock", {**owner, "pid": gone.pid})
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    write_json(tmp_path / "lock", {"host": "elsewhere", "pid": 1})
    with pytest.raises(UserError, match="on elsewhere"):
        RunLock(tmp_path).__enter__()
    monkeypatch.setattr(lock, "SILENCE", -1)
    with RunLock(tmp_path):
        pass


def test_a_lock_taken_over_by_another_is_left_to_it(tmp_path: Path):
    """Two processes find the same dead owner: the slower one must not remove the faster one's new lock."""
    slower, dead = RunLock(tmp_path), {"host": "here", "pid": 1}
    with RunLock(tmp_path):
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
            slower.take_away(dead)
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_damaged_parts_are_computed_again(setting, whole, tmp_path: Path, damage: str):
    run = tmp_path / "run"
    process = start(command(setting, run))
    wait_for(lambda: len(parts_of(run)) >= 2, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    victim = run / "parts" / sorted(parts_of(run))[0]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 255
    if damage == "foreign":
        write_arrays(victim, index=np.array([35]), label=np.array([0]))
    else:
        victim.write_bytes({"cut": content[:100], "flip": content, "empty": b""}[damage])
    finish(command(setting, run))
    assert_equal(run, whole)


def test_a_full_disk_ends_with_one_line_and_no_half_file(setting, tmp_path: Path):
    run = tmp_path / "run"
    # Enough for small files, too little for a part; workers would need larger files in shared memory.
    process = start(command(setting, run, "DATALOADER.NUM_WORKERS", 0), limit=2500)
    _, complaint = process.communicate(timeout=120)
    assert process.returncode == 2 and "Traceback" not in complaint
    assert "error: cannot write" in complaint and "free some space or choose another folder" in complaint
    assert not list(run.rglob("*.part")) and not (run / "results.json").exists()


def test_an_output_folder_that_cannot_be_made(setting, tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = subprocess.run(command(setting, tmp_path / "file" / "run"), capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 2 and "error: cannot make folder" in done.stderr and "Traceback" not in done.stderr


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "results.json"
    write_json(path, {"version": "old"})

    def cut_off(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", cut_off)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"version": "new"})
    assert json.loads(path.read_text()) == {"version": "old"}
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_no_cuda_gets_a_remedy(setting, tmp_path: Path):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    done = subprocess.run(command(setting, tmp_path / "run", "DEVICE", "cuda"), capture_output=True, text=True,
                          env=ENVIRONMENT)
    assert done.returncode == 2 and "use DEVICE cpu, or auto" in done.stderr


def test_thousands_of_episodes_leave_memory_flat():
    model = random_clip(layers=1)
    views = torch.randn(40, 10, 3, 32, 32)
    names = ["cat", "dog", "crop land"]

    def episodes(count: int) -> int:
        for _ in range(count // len(views)):
            adapt("SoC", model, names, views, opts=["TTA.STEPS", 2])
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = episodes(400)
    after = episodes(2000)
    assert after - before < 20e6
