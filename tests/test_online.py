"""Methods that carry state from image to image: in a seeded order, bit-equal after a kill."""
from __future__ import annotations

import itertools
import os
import signal
from functools import cached_property

import numpy as np
import pytest
import torch
from promptcal.datasets.selection import shuffled
from promptcal.datasets.utils.errors import ConfigError, UserError
from promptcal.trainers import TRAINER_REGISTRY
from promptcal.trainers.base import BaseTrainer
from promptcal.trainers.engine.adapted import Adapted
from promptcal.trainers.engine.predict import Predictor
from promptcal.trainers.functional.objectives import class_logits
from promptcal.trainers.runs.run_dir import read_predictions

from folders import interrupted_at
from processes import forked


class RunningMean(BaseTrainer):
    """Subtracts the mean of all logits so far."""

    online = True

    count = 0  # images so far

    @cached_property
    def total(self) -> torch.Tensor:
        return torch.zeros(len(self.clip.classnames))

    def state(self) -> dict[str, np.ndarray]:
        return {"total": self.total.numpy().copy(), "count": np.array(self.count)}

    def load_state(self, state) -> None:
        self.total = torch.from_numpy(state["total"].copy())
        self.count = int(state["count"])

    def adapt(self, views):
        assert len(views) == 1, "an online method sees its images one by one"
        logits = class_logits(views[:, :1], self.clip.text, self.clip.scale)[:, 0]
        self.total = self.total + logits[0]
        self.count = self.count + 1
        columns = {"count": torch.tensor([self.count])}
        return Adapted(logits - self.total / self.count, logits, columns=columns)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(TRAINER_REGISTRY._classes, "RunningMean", RunningMean)


@pytest.fixture
def run(run_method, tmp_path):
    def run(folder: str, *settings: object, method: str = "RunningMean") -> dict[str, np.ndarray]:
        return run_method(method, tmp_path / folder, "TEST.PART", 3, *settings)
    return run


def test_the_order_is_the_seeds(run):
    first = run("a")
    second = run("b", "SEED", 1)
    assert (np.diff(first["index"]) > 0).all()  # stored in the order of the test list
    order = first["count"].argsort().tolist()
    assert order == shuffled(range(12), 0) != second["count"].argsort().tolist()
    assert not np.array_equal(first["logits"], second["logits"])


def test_batches_and_caches_change_nothing(run, tmp_path, monkeypatch):
    """The cache follows the test list and not the stream, so each method reads the other's."""
    expected = run("plain")["logits"]
    np.testing.assert_allclose(run("batches", "TTA.EPISODES", 5)["logits"], expected, atol=1e-5)
    cache = ("CACHE.DIR", tmp_path / "cache")
    run("tpt", *cache, method="TPT")
    monkeypatch.setattr("promptcal.datasets.base.open_image", lambda path: pytest.fail("an image was opened"))
    np.testing.assert_allclose(run("cached", *cache)["logits"], expected, atol=1e-5)


def test_kill_9_at_every_write(run, tmp_path, monkeypatch):
    """Killed at its fifth write, continued, killed at the fifth of what it does then, to the end.

    Before the new file is on disk, and after that but before it has its name.
    """
    settings = ("TTA.VIEWS", 1, "TTA.SELECT", 1, "TEST.ORDER", "correlated")
    expected = run("uninterrupted", *settings)
    for call in ("fsync", "replace"):
        kills = 0
        while not (tmp_path / call / "results.json").is_file():
            writes = itertools.count()
            write = getattr(os, call)

            def killing(*args, write=write, writes=writes):
                if next(writes) == 4:  # the first are the run's own notes
                    os.kill(os.getpid(), signal.SIGKILL)
                return write(*args)

            with monkeypatch.context() as patch:
                patch.setattr(os, call, killing)
                done = forked(lambda folder=call: run(folder, *settings))
            assert done.returncode in (0, -signal.SIGKILL), done.stderr
            kills += done.returncode != 0
            assert kills < 20, "no progress"
        assert kills >= 2
        predictions = read_predictions(tmp_path / call)
        for name, column in expected.items():
            np.testing.assert_array_equal(predictions[name], column, err_msg=name)


def test_a_damaged_state_is_not_used(run, tmp_path, caplog):
    expected = run("uninterrupted")
    with interrupted_at("cut/parts/state.npz", 3), pytest.raises(KeyboardInterrupt):
        run("cut")
    state = tmp_path / "cut" / "parts" / "state.npz"
    state.write_bytes(state.read_bytes()[:-40])
    np.testing.assert_array_equal(run("cut")["logits"], expected["logits"])
    assert "starts again" in caplog.text


def test_several_ranks_are_refused(run, monkeypatch):
    monkeypatch.setattr("promptcal.trainers.runs.dist.Distributed.barrier", lambda self: None)
    real = Predictor.predict

    def as_one_of_two(predictor):
        predictor.dist.world = 2
        real(predictor)

    monkeypatch.setattr(Predictor, "predict", as_one_of_two)
    with pytest.raises(ConfigError, match="one process must see all images"):
        run("two")


def test_an_undeclared_state_is_refused(run, monkeypatch):
    monkeypatch.delattr(RunningMean, "state")
    with pytest.raises(UserError, match="does not declare its state"):
        run("undeclared")
