"""Predicts the test images of a run, part by part.

An interrupted run continues with the parts that are missing.
"""
from __future__ import annotations

import logging
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from ...datasets.build import EvalData
from ...datasets.utils.cli import Terminated
from ...datasets.utils.errors import ConfigError, DataError, UserError, machine_fault, one_line
from ..config.settings import event_folders
from ..functional.posthoc import StrongViews
from ..runs.dist import Distributed
from ..runs.run_dir import Columns, RunDir, batched, concatenate
from ..runs.tensorboard import Progress
from ..vlm.numerics import Numerics, is_gpu, peak_memory
from ..vlm.prompted_clip import PromptedCLIP
from .adapted import Adapted
from .features import FeatureBatch, ViewStore

logger = logging.getLogger(__name__)


class Method(Protocol):
    """A method with its settings, model and data. `BaseTrainer` is one."""

    cfg: CfgNode
    dist: Distributed
    online: bool  # carries state from image to image

    @property
    def data(self) -> EvalData:
        """The images of the run."""

    @property
    def clip(self) -> PromptedCLIP:
        """The model with class names and the initial prompt."""

    @property
    def numerics(self) -> Numerics:
        """Device, precision, and how many images are adapted at once."""

    @property
    def num_views(self) -> int:
        """Number of views of each image that the method uses."""

    def adapt(self, views: Tensor) -> Adapted:
        """Predictions for B images, given as unit view features (B, V, d)."""

    def state(self) -> Mapping[str, np.ndarray]:
        """Online methods: a copy of the state."""

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Online methods: restores a state that `state()` returned."""


class Stopwatch:
    """Measures how long a device works on what is launched between two moments.

    A GPU works behind the host, so the host's clock would charge a task with what was launched
    before it. Marks in the GPU's queue of work tell its own time, and nothing waits for them before
    the seconds are asked for.
    """

    def __init__(self, device: torch.device) -> None:
        """
        Args:
            device: The device whose work is measured, from now on.
        """
        self.device = device
        self.started = self.mark()
        self.stopped = self.started

    def mark(self) -> Any:
        """This moment: seconds on a CPU, an event in the queue of a GPU."""
        if not is_gpu(self.device):
            return time.perf_counter()
        module = torch.get_device_module(self.device)
        event = module.Event(enable_timing=True)
        event.record(module.current_stream(self.device))
        return event

    def stop(self) -> None:
        """Ends the time that is measured."""
        self.stopped = self.mark()

    @property
    def seconds(self) -> float:
        """Seconds from start to stop. Waits until a GPU has got there."""
        if not is_gpu(self.device):
            return self.stopped - self.started
        self.stopped.synchronize()
        return self.started.elapsed_time(self.stopped) / 1000  # from milliseconds


class Batch(NamedTuple):
    """Images that are adapted at once.

    A batch lies within one part, so that a resumed run, which goes on with whole parts, has the
    same batches.
    """

    part: Sequence[int]  # positions in the split of the images of the part
    indices: Sequence[int]  # positions in the split of the images of the batch

    @property
    def ends_part(self) -> bool:
        """Whether it is the last batch of its part."""
        return self.indices[-1] == self.part[-1]


@dataclass(frozen=True)
class LaunchedBatch:
    """A batch whose predictions are on the device, where they may still be computed."""

    batch: Batch
    index: Sequence[int]  # positions of the images that could be read
    bad: Mapping[int, str]  # position -> why an image could not be read
    adapted: Adapted
    part_columns: Mapping[str, Tensor]  # columns of the whole part; empty unless it ends here
    stopwatch: Stopwatch


class Predictor:
    """Reads view features, adapts to them batch by batch, and saves each finished part."""

    def __init__(self, trainer: Method, store: ViewStore, run_dir: RunDir) -> None:
        """
        Args:
            trainer: The method with its settings, model and data.
            store: The view features of the images.
            run_dir: The folder of the run, with its finished parts.
        """
        self.trainer = trainer
        self.store = store
        self.run_dir = run_dir
        self.dist = trainer.dist
        self.cfg = trainer.cfg
        self.data = trainer.data
        self.device = trainer.numerics.device
        # Place of each image in an online method's stream, from 0.
        self.position = {index: place for place, index in enumerate(self.data.order)}

    @cached_property
    def parts(self) -> list[Sequence[int]]:
        """The positions of the images of each part, in the order in which they are predicted."""
        return batched(self.data.order, self.cfg.TEST.PART)

    def predict(self) -> None:
        """Predicts the images of all parts that are not finished.

        Each process takes some of the parts.
        """
        if self.trainer.online:
            if self.dist.world > 1:
                raise ConfigError(
                    f"{self.cfg.TRAINER.NAME} carries state from image to image, so one process "
                    "must see all images: start it with a single process"
                )
            # A method whose state cannot be saved or restored fails now, not after hours.
            self.trainer.load_state(self.trainer.state())
        finished, missing = self.find_finished()
        # On a network disk that lags, processes may see other parts: the main process decides.
        missing = self.dist.broadcast(missing)
        if missing and self.store.files is not None:
            self.store.fill(self.store.files, self.dist)
        trainer_name = self.cfg.TRAINER.NAME
        folders = event_folders(self.run_dir.path, trainer_name)
        with Progress(
            trainer_name, len(self.data.indices), self.cfg.TEST.BINS, folders, finished,
            shown=self.dist.is_main,
        ) as progress:
            if missing:
                self.predict_parts(missing, progress)
        self.dist.barrier()

    def find_finished(self) -> tuple[Sequence[Columns], list[Sequence[int]]]:
        """Finds out what an interrupted run has left to do.

        An online method continues from its last saved state; parts after that state are predicted
        again.

        Returns:
            The columns of the finished parts, and the parts that are missing.
        """
        stored = [self.run_dir.read_part(part) for part in self.parts]
        if self.trainer.online:
            # Parts count only up to the first gap: each state follows from the images before it.
            in_sequence = len(stored)
            if None in stored:
                in_sequence = stored.index(None)
            up_to_state, state = self.run_dir.read_state(in_sequence)
            if up_to_state:
                self.trainer.load_state(state)
            for number in range(up_to_state, len(stored)):
                stored[number] = None

        finished: list[Columns] = []
        missing: list[Sequence[int]] = []
        for part, columns in zip(self.parts, stored, strict=True):
            if columns is None:
                missing.append(part)
            else:
                finished.append(columns)
        if finished:
            images = sum(len(columns["index"]) + len(columns["bad_index"]) for columns in finished)
            logger.info("resuming: %d of %d images were predicted before", images,
                        len(self.data.indices))
        return finished, missing

    def predict_parts(self, missing: Sequence[Sequence[int]], progress: Progress) -> None:
        """Predicts this process's share of the missing parts, and saves each when it is complete.

        A GPU must not wait for the host between two batches: results are read when the next batch
        has been launched. On a CPU there is nothing to wait for. An online method's state must be
        saved before the next part changes it, so its results are read at once on a GPU too.

        Args:
            missing: Positions in the split of the images of each missing part.
            progress: The bar and the curves of the run.
        """
        batches = []
        for part in missing[self.dist.rank :: self.dist.world]:
            for indices in batched(part, self.trainer.numerics.episodes):
                batches.append(Batch(part, indices))
        batches_ahead = 0
        if is_gpu(self.device) and not self.trainer.online:
            batches_ahead = 1

        writer = PartWriter(self, progress)
        features = self.store.batches([batch.indices for batch in batches])
        launched: deque[LaunchedBatch] = deque()
        strong_views: list[StrongViews] = []  # strong views of the part so far
        try:
            for batch, batch_features in zip(batches, features, strict=True):
                launched.append(self.launch(batch, batch_features, strong_views))
                while len(launched) > batches_ahead:
                    writer.add(launched.popleft())
        except (UserError, KeyboardInterrupt, Terminated):
            # The device is still computing earlier batches: they are finished and saved.
            while launched:
                writer.add(launched.popleft())
            raise
        while launched:
            writer.add(launched.popleft())

    def launch(
        self, batch: Batch, features: FeatureBatch, strong_views: list[StrongViews],
    ) -> LaunchedBatch:
        """Adapts to a batch. On a GPU the host does not wait for it.

        Args:
            batch: The images.
            features: The features of their views.
            strong_views: Strong views of the batches of the part so far, to which this batch's are
                added. CoTS's temperatures are computed with the last batch, for the whole part.
        """
        stopwatch = Stopwatch(self.device)
        names = [self.data.items[index].impath for index in features.index]
        if names:  # at least one image of the batch could be read
            adapted = launch_images(self.trainer, features.views, names)
        else:
            no_logits = torch.empty(0, len(self.trainer.clip.classnames))
            adapted = Adapted(no_logits, no_logits).with_fallback()
        if adapted.strong_views is not None:
            strong_views.append(adapted.strong_views)
        part_columns = {}
        if batch.ends_part and strong_views:
            part_columns = StrongViews.join(strong_views).columns()
            strong_views.clear()
        stopwatch.stop()
        return LaunchedBatch(
            batch, features.index, features.bad, adapted, part_columns, stopwatch)

    def read(self, launched: LaunchedBatch) -> dict[str, np.ndarray]:
        """Copies the columns of a batch from the device, for which the host waits."""
        seconds = launched.stopwatch.seconds
        items = [self.data.items[index] for index in launched.index]
        logits = launched.adapted.logits.cpu()
        check_finite(logits, [item.impath for item in items])
        columns = {
            "index": np.array(launched.index, dtype=np.int64),
            "label": np.array([item.label for item in items], dtype=np.int64),
            "bad_index": np.array(list(launched.bad), dtype=np.int64),
            "bad_reason": np.array(list(launched.bad.values()), dtype=np.str_),
            "logits": logits.numpy(),
            "zero_shot_logits": launched.adapted.zero_shot_logits.cpu().numpy(),
        }
        for name, column in launched.adapted.columns.items():
            columns[name] = column.cpu().numpy()
        if self.trainer.online:
            places = [self.position[index] for index in launched.index]
            columns["position"] = np.array(places, dtype=np.int64)
        # One value for the batch, not for each image.
        columns["adapt_seconds"] = np.array([seconds])
        peak_bytes = 0
        if is_gpu(self.device):
            peak_bytes = peak_memory(self.device)
        columns["peak_bytes"] = np.array([peak_bytes], dtype=np.int64)
        return columns


class PartWriter:
    """Reads launched batches in their order, and writes each part when its last batch was read."""

    def __init__(self, predictor: Predictor, progress: Progress) -> None:
        """
        Args:
            predictor: The predictor that launches the batches.
            progress: The bar and the curves of the run.
        """
        self.predictor = predictor
        self.progress = progress
        self.batch_columns: list[Columns] = []  # of each batch of the part so far
        self.started = time.perf_counter()  # when the last batch had been read

    def add(self, launched: LaunchedBatch) -> None:
        """Reads a batch, for which the host waits, and writes its part if it is the last of it."""
        predictor = self.predictor
        columns = predictor.read(launched)
        now = time.perf_counter()
        columns["seconds"] = np.array([now - self.started])
        self.started = now
        self.batch_columns.append(columns)
        self.progress.advance(columns)
        if not launched.batch.ends_part:
            return
        part = concatenate(self.batch_columns)
        self.batch_columns = []
        for name, column in launched.part_columns.items():
            part[name] = column.cpu().numpy()
        predictor.run_dir.write_part(launched.batch.part, part)
        if predictor.trainer.online:
            finished_parts = predictor.parts.index(launched.batch.part) + 1
            predictor.run_dir.write_state(finished_parts, predictor.trainer.state())
        self.progress.log(part)


def adapt_images(method: Method, views: Tensor, names: Sequence[object]) -> Adapted:
    """Returns a method's predictions, checked and complete.

    Args:
        method: The method.
        views: Unit view features (B, V, d) of B images.
        names: Names of the images, for messages.
    """
    adapted = launch_images(method, views, names).with_cots()
    check_finite(adapted.logits, names)
    return adapted


def check_finite(logits: Tensor, names: Sequence[object]) -> None:
    """Refuses images whose zero-shot prediction is not finite either. Waits for the device.

    Args:
        logits: Logits of B images, (B, K), with the zero-shot ones as a fallback.
        names: Names of the images, for the message.
    """
    lost = ~logits.isfinite().all(-1)
    if lost.any():
        first_lost = names[int(lost.int().argmax())]
        raise DataError(f"CLIP's features of {first_lost} are not finite: try MODEL.PREC fp32")


def launch_images(method: Method, views: Tensor, names: Sequence[object]) -> Adapted:
    """Returns a method's predictions, before any number of them has been read from the device.

    Classes of one name get equal logits. An image with a number that is not finite gets its
    zero-shot prediction. An online method sees its images one by one, so that the number of images
    adapted at once changes nothing.

    Args:
        method: The method.
        views: Unit view features (B, V, d) of B images.
        names: Names of the images, for messages.
    """
    method_name = type(method).__name__
    try:
        batches = views.split(1) if method.online else [views]
        adapted = Adapted.join([method.adapt(batch) for batch in batches])
        adapted.check_shapes(method_name, len(views), len(method.clip.classnames), names)
        return adapted.with_equal_logits(method.clip.first_of_name).with_fallback()
    except Exception as error:  # a user's own method may raise anything
        if isinstance(error, UserError) or machine_fault(error):
            raise
        reason = one_line(f"{type(error).__name__}: {error}, {place_of(error)}")
        raise UserError(f"{method_name} failed at {names[0]} ({reason}): fix the method and run "
                        f"the command again; finished parts are kept") from error


def place_of(error: Exception) -> str:
    """Returns the last line of code outside of installed packages in an error's traceback."""
    last_line = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if "site-packages" not in frame.filename:
            last_line = f"line {frame.lineno} of {frame.filename}"
    return last_line
