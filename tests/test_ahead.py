"""What only a GPU does, with a stand-in for its streams: views are made ahead, in order, and never too many."""
from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from promptcal.datasets import build_dataset
from promptcal.datasets.utils.errors import ConfigError
from promptcal.datasets.views import ViewMaker
from promptcal.datasets.views.loader import view_loader, worker_count
from promptcal.trainers import build_cfg
from promptcal.trainers.engine import ahead
from promptcal.trainers.engine.ahead import made_ahead
from promptcal.trainers.engine.features import ViewFeatures
from promptcal.trainers.vlm.loading import as_backbone


class FakeStream:
    """Writes down what happens, and checks that marks are of the views they come with."""

    def __init__(self) -> None:
        self.made, self.taken, self.threads = 0, 0, set()

    @contextmanager
    def working(self):
        self.threads.add(threading.current_thread().name)
        yield

    def finished(self) -> int:
        self.made += 1
        return self.made

    def take(self, views: torch.Tensor, mark: int) -> torch.Tensor:
        self.taken += 1
        assert mark == self.taken <= self.made <= self.taken + ahead.DEPTH + 1
        return views


def test_views_are_made_ahead_in_order_and_bounded():
    side, asked = FakeStream(), []
    jobs = (asked.append(n) or n for n in range(20))
    for n, (job, made) in enumerate(made_ahead(jobs, lambda job: torch.tensor(job * 10), side)):
        assert (job, made.item()) == (n, n * 10)
        assert len(asked) <= n + ahead.DEPTH + 2
    assert n == 19 and side.threads == {"views ahead"}


def test_what_the_thread_raises_is_raised_by_who_asks():
    def make(job: int) -> torch.Tensor:
        if job == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.tensor(job)

    found = []
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        found.extend(job for job, _ in made_ahead(range(5), make, FakeStream()))
    assert found == [0, 1]


def test_who_stops_asking_stops_the_thread():
    before = threading.active_count()
    endless = made_ahead(iter(int, 1), lambda job: torch.tensor(job), FakeStream())
    next(endless)
    assert threading.active_count() == before + 1
    endless.close()
    assert threading.active_count() == before


def test_features_are_the_same_with_and_without_a_side(image_folder: Path, clip_model):
    (image_folder / "kind_a" / "1.png").write_bytes(b"no image")
    dataset, maker = build_dataset("ImageFolder", image_folder), ViewMaker(9, 32, augmix=True, seed=0)
    source = ViewFeatures(as_backbone(clip_model), dataset, dataset.test, maker, "fp32", 0, True, None, "fp32")
    batches = [[0, 1, 2], [1], [3, 4, 5, 6, 7]]  # one batch has no image that can be read
    found = [
        list(source.encoded(view_loader(dataset, dataset.test, maker.prepare, batches, 0, False), side))
        for side in (None, FakeStream())
    ]
    for (one, plain), (other, beside) in zip(*found, strict=True):
        assert one.index == other.index and one.bad == other.bad
        assert torch.equal(plain, beside) and plain.shape == (len(one.index), 9, 48)


def test_auto_workers_are_the_cores_at_hand_shared_among_ranks(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    assert worker_count(5) == 5 and worker_count(0) == 0 and worker_count(-1) == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert worker_count(-1) == 1
    assert build_cfg("TPT", opts=["DATALOADER.NUM_WORKERS", "auto"]).DATALOADER.NUM_WORKERS == -1
    with pytest.raises(ConfigError, match="0 or more, or auto"):
        build_cfg("TPT", opts=["DATALOADER.NUM_WORKERS", -2])
