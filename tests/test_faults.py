"""Kill it, spread it, feed it rubbish: the real command under real faults. Nothing is lost or counted twice."""
from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PROJECT, Done, make_image_folder, openai_state, random_clip, run_tool, user_environment
from promptcal.datasets.utils.cli import outcome
from promptcal.datasets.utils.errors import UserError, explaining_faults
from promptcal.datasets.utils.files import write_arrays, write_json
from promptcal.trainers import adapt
from promptcal.trainers.runs.folder import RunFolder

KILLS = int(os.environ.get("PROMPTCAL_KILLS", 4))  # rounds of kill -9; more for a longer soak
IMAGES = 37


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """37 images in four classes, and weights: 18 parts of two images and one of one, which no number of ranks divides
    evenly."""
    root = tmp_path_factory.mktemp("faults")
    torch.save(openai_state(random_clip()), root / "tiny.pt")
    images = make_image_folder(root / "images", images=IMAGES // 4)
    shutil.copy(images / "kind_b" / "0.png", images / "kind_d" / "9.png")
    return images, root / "tiny.pt"


def arguments(setting: tuple[Path, Path], run: Path, *args: object) -> list[str]:
    return ["--trainer", "SoC", "--dataset-config-file", "configs/datasets/image_folder.yaml",
            "--root", str(setting[0]), "--backbone", str(setting[1]), "--output-dir", str(run), "TEST.PART", "2",
            "TTA.EPISODES", "2", "TTA.JACOBIAN", "off", "DATALOADER.NUM_WORKERS", "1", *map(str, args)]


def command(setting: tuple[Path, Path], run: Path, *args: object, ranks: int = 0) -> list[str]:
    start = [sys.executable]
    if ranks:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*start, str(PROJECT / "tools" / "train.py"), *arguments(setting, run, *args)]


def here(setting: tuple[Path, Path], run: Path, *args: object) -> Done:
    """The command without a process of its own."""
    return run_tool("train.py", *arguments(setting, run, "DATALOADER.NUM_WORKERS", 0, *args))


ENVIRONMENT = user_environment()


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


@pytest.mark.slow
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


@pytest.mark.parametrize(("send", "sent", "status"), [
    (os.kill, signal.SIGTERM, 143),
    pytest.param(os.killpg, signal.SIGTERM, 143, marks=pytest.mark.slow),
    pytest.param(os.kill, signal.SIGINT, 130, marks=pytest.mark.slow),
    (os.killpg, signal.SIGINT, 130),
])
def test_signals_end_the_run_in_order(setting, whole, tmp_path: Path, sent: signal.Signals, status: int, send):
    run = tmp_path / "run"
    process = start(command(setting, run))
    wait_for(lambda: parts_of(run), process)
    send(process.pid, sent)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == status and "Traceback" not in complaint
    assert "what was finished is kept: the same command continues" in complaint
    assert not (run / "lock").exists() and parts_of(run)
    finish(command(setting, run))
    assert_equal(run, whole)


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_any_number_of_ranks_gives_the_same_predictions(setting, whole, tmp_path: Path, ranks: int):
    output = finish(command(setting, tmp_path / "run", ranks=ranks))
    assert output.count("Zero-shot") == 1  # one table, however many processes
    assert_equal(tmp_path / "run", whole)


@pytest.mark.slow
def test_several_processes_speak_with_one_voice(setting, tmp_path: Path):
    """Log lines, warnings and a mistake that all of them meet come once; torchrun's own report follows."""
    done = subprocess.run(command(setting, tmp_path / "run", "--root", tmp_path / "nowhere", ranks=2),
                          capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    assert done.returncode != 0 and done.stderr.count("error: data root") == 1, done.stderr
    done = subprocess.run(command(setting, tmp_path / "run", ranks=2), capture_output=True, text=True, env=ENVIRONMENT,
                          timeout=300)
    assert done.returncode == 0 and done.stdout.count("37 of 37 test images") == done.stdout.count("results in") == 1


@pytest.mark.slow
def test_ranks_share_the_cache_and_the_jacobian(setting, tmp_path: Path):
    def options(name: str) -> tuple:
        return "CACHE.DIR", tmp_path / name, "TTA.JACOBIAN", "on"

    finish(command(setting, tmp_path / "one", *options("cache of one")))
    finish(command(setting, tmp_path / "two", *options("cache of two"), ranks=2))
    assert_equal(tmp_path / "two", RunFolder(tmp_path / "one").predictions())
    finish(command(setting, tmp_path / "three", *options("cache of two"), ranks=3))
    assert_equal(tmp_path / "three", RunFolder(tmp_path / "one").predictions())


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_with_one_line(setting, tmp_path: Path):
    """As when the system is out of memory."""
    run = tmp_path / "run"
    process = start(command(setting, run, "TTA.STEPS", 20))  # slow enough that the worker is still needed
    wait_for(lambda: parts_of(run), process)
    for worker in children(process.pid):
        os.kill(worker, signal.SIGKILL)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 2 and "Traceback" not in complaint, complaint
    assert "use fewer DATALOADER.NUM_WORKERS, or give /dev/shm more space" in complaint
    assert parts_of(run) and not (run / "lock").exists()


def children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def test_a_second_process_on_the_same_folder_stops(setting, tmp_path: Path):
    run = tmp_path / "run"
    first = start(command(setting, run))
    try:
        wait_for(lambda: (run / "lock").exists() and parts_of(run), first)
        os.kill(first.pid, signal.SIGSTOP)
        second = here(setting, run)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
    assert second.returncode == 2 and f"is in use by process {first.pid}" in second.stderr


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_damaged_parts_are_computed_again(setting, whole, tmp_path: Path, damage: str, monkeypatch):
    run = tmp_path / "run"
    real = RunFolder.write_part

    def write_two(folder, *args):
        real(folder, *args)
        if len(parts_of(run)) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_part", write_two)
        assert here(setting, run).returncode == 130
    victim = run / "parts" / sorted(parts_of(run))[0]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 255
    if damage == "foreign":
        write_arrays(victim, index=np.array([35]), label=np.array([0]))
    else:
        victim.write_bytes({"cut": content[:100], "flip": content, "empty": b""}[damage])
    assert here(setting, run).returncode == 0
    assert_equal(run, whole)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "what"), [(2500, "parts"), (5000, "tensorboard"), (20000, "tensorboard")])
def test_a_full_disk_ends_with_one_line_and_no_half_file(setting, tmp_path: Path, limit: int, what: str):
    """Enough for small files but not for a part; or for parts, but not for all curves; or not for the pictures."""
    run = tmp_path / "run"
    # Workers would need larger files in shared memory.
    process = start(command(setting, run, "DATALOADER.NUM_WORKERS", 0), limit=limit)
    _, complaint = process.communicate(timeout=120)
    assert process.returncode == 2 and "Traceback" not in complaint
    assert f"error: cannot write {run / what}" in complaint and "free some space or choose another" in complaint
    assert not list(run.rglob("*.part")) and not (run / "results.json").exists()


def test_an_output_folder_that_cannot_be_made(setting, tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = here(setting, tmp_path / "file" / "run")
    assert done.returncode == 2 and "error: cannot make folder" in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(UserError, match="cannot write .*/results.json: File exists; free some"):
        write_json(tmp_path / "file" / "results.json", {})


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder that not even root may write to")
def test_an_output_folder_that_is_read_only(setting):
    done = here(setting, Path("/sys/kernel"))
    assert done.returncode == 2 and "error: cannot write /sys/kernel/lock" in done.stderr
    assert "choose another --output-dir" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(("fault", "remedy"), [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "use fewer TTA.EPISODES"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "use fewer TTA.EPISODES"),
    (MemoryError(), "use fewer TTA.EPISODES"),
    (RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error."), "give /dev/shm more space"),
    (RuntimeError("received 0 items of ancillary data"), "use fewer DATALOADER.NUM_WORKERS"),
], ids=["cuda", "cpu", "python", "shared memory", "descriptors"])
def test_faults_of_the_machine_are_one_line(fault: Exception, remedy: str, capsys):
    def main() -> None:
        raise fault

    assert outcome(main) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: ") and remedy in complaint and len(complaint.splitlines()) == 1


def test_an_error_of_the_program_in_a_worker_is_told_in_full():
    with pytest.raises(RuntimeError, match="Caught"), explaining_faults():
        raise RuntimeError("Caught RuntimeError in DataLoader worker process 0.")


def test_no_cuda_gets_a_remedy(setting, tmp_path: Path):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    done = here(setting, tmp_path / "run", "DEVICE", "cuda")
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
