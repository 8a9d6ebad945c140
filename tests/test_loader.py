"""The loader's threads: any number of them gives the same images, and they end with their
caller."""
from __future__ import annotations

import _thread
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from promptcal.datasets import build_dataset
from promptcal.datasets.utils.errors import ConfigError
from promptcal.datasets.views import ViewMaker
from promptcal.datasets.views.loader import LoadedBatch, load_batches, num_threads
from promptcal.trainers import build_cfg


def read_number(index: int) -> int:
    """An "image" that needs no decoding."""
    return index


def pool_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("views")]


def test_threads_and_order_change_no_view(image_folder):
    dataset = build_dataset("ImageFolder", image_folder)
    maker = ViewMaker(5, 16, augmix=True, seed=0)

    def read(index: int):
        return dataset.read_image(dataset.test[index])

    views_of: dict[int, torch.Tensor] = {}
    for threads, batches in (
        (0, [[0, 1, 2], [3, 4, 5, 6]]),
        (1, [[6, 5], [4], [3, 2, 1, 0]]),
        (3, [[0], [1], [2], [3], [4], [5], [6]]),
    ):
        loaded = list(load_batches(read, maker, batches, threads))
        assert [batch.index for batch in loaded] == batches
        for batch in loaded:
            for index, views in zip(batch.index, batch.made, strict=True):
                assert torch.equal(views_of.setdefault(index, views), views)
    assert sorted(views_of) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_images_ahead_are_bounded_and_in_order(threads):
    begun: list[int] = []
    waits = np.random.default_rng(0).uniform(0, 0.003, 60)

    def make(number: int, index: int) -> int:
        begun.append(index)
        time.sleep(waits[index])
        return 10 * number

    batches = np.arange(60).reshape(15, 4)
    for n, batch in enumerate(load_batches(read_number, make, batches.tolist(), threads)):
        assert batch == LoadedBatch(batches[n].tolist(), (10 * batches[n]).tolist(), {})
        assert len(begun) <= 4 * (n + 1) + 2 * threads
    assert len(begun) == 60 and not pool_threads()


def test_a_caller_that_stops_early_ends_the_threads():
    begun = []
    batches = load_batches(read_number, lambda _, index: begun.append(index), [[0]] * 99, 2)
    next(batches)
    batches.close()
    assert len(begun) <= 6 and not pool_threads()


def raise_error():
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(("fault", "expected"), [
    (raise_error, torch.OutOfMemoryError),
    (_thread.interrupt_main, KeyboardInterrupt),
])
def test_errors_and_ctrl_c_end_the_threads(fault, expected, request):
    # It is ignored where the tests are a background job of a shell.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    begun = []

    def make(number: int, index: int) -> int:
        begun.append(index)
        if index == 3:
            fault()
        time.sleep(0.05)
        return number

    with pytest.raises(expected):
        list(load_batches(read_number, make, [range(1000)], 2))
    assert len(begun) < 20 and not pool_threads()


def test_torch_computes_with_one_thread_in_each():
    before = torch.get_num_threads()
    (batch,) = load_batches(read_number, lambda *_: torch.get_num_threads(), [range(4)], 2)
    assert batch.made == [1] * 4 and torch.get_num_threads() == before


def test_auto_threads_are_the_available_cores_divided_among_processes(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    assert num_threads(5) == 5 and num_threads(0) == 0 and num_threads(-1) == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert num_threads(-1) == 1
    assert build_cfg("TPT").DATALOADER.NUM_WORKERS == -1
    assert build_cfg("TPT", opts=["DATALOADER.NUM_WORKERS", "auto"]).DATALOADER.NUM_WORKERS == -1
    with pytest.raises(ConfigError, match="-1 or more"):
        build_cfg("TPT", opts=["DATALOADER.NUM_WORKERS", -2])
