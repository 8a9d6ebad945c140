"""What only a GPU does, with a stand-in for its streams: views are made ahead, in order, and never too many."""
from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from promptcal.datasets import build_dataset
from promptcal.datasets.utils.errors import ConfigError
from promptcal.datasets.views import ViewMaker
from promptcal.datasets.views.loader import view_loader, worker_count
from promptcal.trainers import build_cfg, build_trainer, evaluation
from promptcal.trainers.engine import ahead
from promptcal.trainers.engine.ahead import made_ahead
from promptcal.trainers.engine.features import FeatureBatch, ViewFeatures
from promptcal.trainers.engine.watch import AHEAD
from promptcal.trainers.runs.run_dir import RunDir
from promptcal.trainers.vlm.loading import as_backbone
from torch import Tensor
from torch.overrides import TorchFunctionMode


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


class NoLooking(TorchFunctionMode):
    """Refuses what makes the host wait for a device's numbers. (That no method calls `item` on them is shown on the
    meta device; AdamW does on its count of steps, which is on the host.)"""

    LOOKS = frozenset((Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.__bool__, Tensor.nonzero))

    def __torch_function__(self, function, types, args=(), kwargs=None):
        assert function not in self.LOOKS, f"{function} waits for the device"
        return function(*args, **(kwargs or {}))


class SlowWatch:
    """Of a device that is never done by itself; writes down which batches are waited for, and when."""

    def __init__(self) -> None:
        self.marks, self.events = 0, []

    def mark(self) -> int:
        self.marks += 1
        self.events.append(("mark", self.marks))
        return self.marks

    def is_done(self, mark: int) -> bool:
        return False

    def wait(self, mark: int) -> None:
        self.events.append(("wait", mark))

    def seconds(self, start: int, end: int) -> float:
        assert end == start + 1
        return 0.25


def test_results_stay_on_the_device_until_they_are_done(
    image_folder: Path, clip_file: Path, tmp_path: Path, monkeypatch,
):
    """Two batches besides the last one may wait; at the part's end all are waited for, and nothing else ever is."""
    def run(name: str) -> dict:
        build_trainer(build_cfg("SoC", "configs/datasets/image_folder.yaml", opts=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / name,
            "DATALOADER.NUM_WORKERS", 0, "TTA.VIEWS", 10, "TTA.EPISODES", 1, "TEST.PART", 5, "TEST.LIMIT", 7])).run()
        return RunDir(tmp_path / name).predictions()

    plain, watch, predict = run("plain"), SlowWatch(), evaluation.Evaluation.predict_batch

    def predict_batch(self, batch: FeatureBatch) -> dict:
        with NoLooking():
            return predict(self, batch)

    monkeypatch.setattr(evaluation, "watch_of", lambda device: watch)
    monkeypatch.setattr(evaluation.Evaluation, "predict_batch", predict_batch)
    slow = run("slow")
    for name in ("index", "label", "logits", "zero_shot_logits", "flagged"):
        assert np.array_equal(plain[name], slow[name])
    marked, most = 0, 0
    for kind, number in watch.events:
        marked = number if kind == "mark" else marked
        most = max(most, marked // 2 - number // 2) if kind == "wait" else most
    assert [number for kind, number in watch.events if kind == "wait"] == [2 * (n + 1) for n in range(7)]
    assert most == AHEAD
