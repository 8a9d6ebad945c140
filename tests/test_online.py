"""Methods that carry state from image to image: declared, in a seeded order, bit-equal after a kill."""
from __future__ import annotations

import itertools
import os
import signal
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
from promptcal.datasets.streams import shuffled
from promptcal.datasets.utils.errors import ConfigError, UserError
from promptcal.trainers import TRAINER_REGISTRY, adapt, build_cfg, build_trainer
from promptcal.trainers.api import Adapter
from promptcal.trainers.base import BaseTrainer
from promptcal.trainers.engine.adapted import Adapted
from promptcal.trainers.engine.predict import Predictor
from promptcal.trainers.functional.objectives import class_logits
from promptcal.trainers.runs.run_dir import RunDir, read_predictions

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
        self.total, self.count = torch.from_numpy(state["total"].copy()), int(state["count"])

    def adapt(self, views):
        assert len(views) == 1, "an online method sees its images one by one"
        logits = class_logits(views[:, :1], self.clip.text, self.clip.scale)[:, 0]
        self.total, self.count = self.total + logits[0], self.count + 1
        return Adapted(logits - self.total / self.count, logits, columns={"count": torch.tensor([self.count])})


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(TRAINER_REGISTRY._classes, "RunningMean", RunningMean)


@pytest.fixture
def train(clip_file, image_folder):
    def train(name: str, folder: Path, *opts: object) -> None:
        build_trainer(build_cfg(name, "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", folder,
            "TEST.PART", 3, "TTA.VIEWS", 10, "DATALOADER.NUM_WORKERS", 0, *opts])).run()
    return train


@pytest.fixture
def run(train, tmp_path):
    def run(folder: str, *opts: object) -> dict[str, np.ndarray]:
        train("RunningMean", tmp_path / folder, *opts)
        return read_predictions(tmp_path / folder)
    return run


def test_the_order_is_the_seeds(run):
    first, second = run("a"), run("b", "SEED", 1)
    assert first["index"].tolist() == sorted(first["index"].tolist())  # kept in the order of the test list
    assert first["count"].argsort().tolist() == shuffled(range(12), 0) != second["count"].argsort().tolist()
    assert not np.array_equal(first["logits"], second["logits"])


def test_batches_and_caches_change_nothing(run, train, tmp_path, monkeypatch):
    """The cache follows the test list, not the order of an online method, so each method reads the other's."""
    expected, cached = run("plain")["logits"], ("CACHE.DIR", tmp_path / "cache")
    np.testing.assert_allclose(run("batches", "TTA.EPISODES", 5)["logits"], expected, atol=1e-5)
    train("TPT", tmp_path / "tpt", *cached)
    monkeypatch.setattr("promptcal.datasets.base.open_image", lambda path: pytest.fail("an image was opened"))
    np.testing.assert_allclose(run("cached", *cached)["logits"], expected, atol=1e-5)


@pytest.mark.parametrize(("online", "order"), [
    ("RunningMean", "correlated"), pytest.param("TDA", "random", marks=pytest.mark.slow)])
def test_kill_9_at_every_write(train, tmp_path, monkeypatch, online, order):
    """Killed at its fifth write, continued, killed at the fifth of what it does then, and so on to the end; before
    the new file is on disk, and after that but before it has its name."""
    few = ("TTA.VIEWS", 1, "TTA.SELECT", 1, "TEST.ORDER", order)
    train(online, tmp_path / "whole", *few)
    expected = read_predictions(tmp_path / "whole")
    for call in ("fsync", "replace"):
        folder, kills = tmp_path / call, 0
        while not (folder / "results.json").is_file():
            writes = itertools.count()
            real = getattr(os, call)

            def killing(*args, real=real, writes=writes):
                if next(writes) == 4:  # the first are the run's own notes
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args)

            with monkeypatch.context() as patch:
                patch.setattr(os, call, killing)
                done = forked(lambda folder=folder: train(online, folder, *few))
            assert done.returncode in (0, -signal.SIGKILL), done.stderr
            kills += done.returncode != 0
            assert kills < 20, "no progress"
        assert kills >= 2
        found = read_predictions(folder)
        for name, column in expected.items():
            np.testing.assert_array_equal(found[name], column, err_msg=name)


def test_a_damaged_state_is_not_used(run, tmp_path, monkeypatch, caplog):
    expected = run("whole")
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "merge", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
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


def test_adapt_starts_afresh_and_an_adapter_goes_on(clip_model):
    views = torch.randn(3, 10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    names = ["river", "lake", "sea"]
    once = adapt("RunningMean", clip_model, names, views)
    assert once.columns["count"].tolist() == [1, 2, 3]
    torch.testing.assert_close(adapt("RunningMean", clip_model, names, views).logits, once.logits)
    adapter = Adapter("RunningMean", clip_model, names, num_views=10)
    adapter(views[:1])
    assert adapter(views[1:]).columns["count"].tolist() == [2, 3]
