"""Workers that decode: in any number and order, lost, killed or interrupted."""
from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from promptcal.datasets import build_dataset
from promptcal.datasets.utils.errors import UserError, explaining_faults
from promptcal.datasets.views import ViewMaker
from promptcal.datasets.views.loader import end_quietly, noticing_lost_workers, view_loader


def test_workers_and_order_change_no_view(image_folder: Path):
    dataset = build_dataset("ImageFolder", image_folder)
    maker = ViewMaker(count=5, size=16, augmix=True, seed=0)
    found = {}
    orders = [[0, 1, 2], [3, 4, 5, 6]], [[6, 5], [4], [3, 2, 1, 0]], [[k] for k in range(7)]
    for workers, batches in zip((0, 1, 3), orders, strict=True):
        for batch in view_loader(dataset, dataset.test, maker, batches, workers, pin_memory=False):
            for index, views in zip(batch.index, batch.views, strict=True):
                assert torch.equal(found.setdefault(index, views), views)
    assert sorted(found) == list(range(7))


@pytest.mark.parametrize("error", [ConnectionResetError(), EOFError(), FileNotFoundError(2, "No such file", "/tmp/x")])
def test_a_worker_lost_while_it_hands_over_a_batch(error: Exception):
    def broken():
        yield 1
        raise error

    batches = noticing_lost_workers(broken())
    assert next(batches) == 1
    with pytest.raises(UserError, match="use fewer DATALOADER.NUM_WORKERS"), explaining_faults():
        next(batches)


def test_a_workers_death_is_told_to_nobody_but_who_waits_for_it(image_folder: Path):
    """torch would raise in the midst of whatever this process does when the signal comes, or in its next loader."""
    dataset = build_dataset("ImageFolder", image_folder)
    maker = ViewMaker(count=2, size=16, augmix=False, seed=0)
    batches = [[k] for k in range(7)]
    for _ in range(2):  # torch sets its handler at the first loader of a process only
        before = signal.getsignal(signal.SIGCHLD)
        loader = view_loader(dataset, dataset.test, maker, batches, 1, pin_memory=False)
        next(loader)
        (worker,) = multiprocessing.active_children()
        os.kill(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        assert sum(range(10_000)) == 49_995_000  # the signal has come
        assert signal.getsignal(signal.SIGCHLD) is before
        with pytest.raises(UserError, match="use fewer DATALOADER.NUM_WORKERS"), explaining_faults():
            list(loader)
        assert len(list(view_loader(dataset, dataset.test, maker, batches[:2], 1, pin_memory=False))) == 2


KILLED = """
import multiprocessing, time
from types import SimpleNamespace
from promptcal.datasets.views.loader import view_loader

def make(picture, index):
    return bytes(200_000)  # more than a pipe holds

pictures = SimpleNamespace(read_image=lambda item: item)
batches = view_loader(pictures, range(40), make, [[k] for k in range(40)], 2, pin_memory=False)
next(batches)
print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_run():
    """Not even those that wait for room in the pipe to it."""
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as process:
        workers = process.stdout.readline().split()
        time.sleep(1)  # they go on until the pipe is full
        process.kill()

    def lives(worker: str) -> bool:
        try:
            return Path("/proc", worker, "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    deadline = time.monotonic() + 20
    while any(map(lives, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(workers) == 2 and not any(map(lives, workers))


def test_what_a_worker_itself_raises_is_kept():
    def failing():
        raise OSError("Caught OSError in DataLoader worker process 0.")
        yield

    with pytest.raises(OSError, match="Caught"):
        next(noticing_lost_workers(failing()))


def test_a_worker_whose_run_was_interrupted_says_nothing(monkeypatch: pytest.MonkeyPatch):
    told = []
    monkeypatch.setattr("sys.excepthook", lambda kind, *_: told.append(kind))
    end_quietly()
    for kind in (EOFError, ConnectionResetError, BrokenPipeError, KeyError):
        sys.excepthook(kind, kind(), None)
    assert told == [KeyError]
