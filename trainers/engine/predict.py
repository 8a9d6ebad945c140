"""Predicts the test images of a run, part by part: an interrupted run continues with the parts that are missing."""
from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...datasets.utils.errors import ConfigError, UserError, machine_fault, one_line
from ..runs.parts import Columns, chunks, concatenate
from ..runs.run_dir import RunDir
from ..runs.tensorboard import Progress
from .adapted import Adapted
from .features import FeatureBatch, ViewStore
from .method import Method

logger = logging.getLogger(__name__)


class Predictor:
    """Reads view features, adapts to them batch by batch, and saves the predictions of each finished part."""

    def __init__(self, trainer: Method, run_dir: RunDir) -> None:
        self.trainer = trainer
        self.run_dir = run_dir
        self.dist = trainer.dist
        self.cfg = trainer.cfg
        self.data = trainer.data
        self.parts = chunks(self.data.order, self.cfg.TEST.PART)
        # In an online method's stream.
        self.position = {index: place for place, index in enumerate(self.data.order)}

    def predict(self) -> None:
        """Predicts the images of all parts that are not finished; each process takes some of the parts."""
        if self.trainer.online:
            if self.dist.world > 1:
                raise ConfigError(f"{self.cfg.TRAINER.NAME} carries state from image to image, so one process must see "
                                  f"all images: start it with a single process")
            self.trainer.load_state(self.trainer.state())  # finds out now, not after hours, that both work
        finished, missing = self.resume()
        # On a network disk that lags, processes may see other parts: the main process decides.
        missing = self.dist.broadcast(missing)
        own = missing[self.dist.rank :: self.dist.world]
        # A batch lies within one part, so a resumed run has the same batches.
        batches = [(part, indices) for part in own for indices in chunks(part, self.cfg.TTA.EPISODES)]
        with Progress(self.run_dir.path, len(self.data.indices), self.cfg.TEST.BINS, self.cfg.TRAINER.NAME,
                      self.dist.is_main) as progress:
            for columns in finished:
                progress.count(columns)
            started = time.perf_counter()
            features = self.view_features() if missing else None
            rows: list[Columns] = []
            found = features.batches([indices for _, indices in batches]) if features else ()
            for (part, indices), read in zip(batches, found, strict=True):
                columns, now = self.predict_batch(read), time.perf_counter()
                rows.append({**columns, "seconds": np.array([now - started])})
                started = now
                progress.advance(rows[-1])
                if indices[-1] == part[-1]:
                    whole, rows = concatenate(rows), []
                    self.run_dir.write_part(part, whole)
                    if self.trainer.online:
                        self.run_dir.write_state(self.parts.index(part) + 1, self.trainer.state())
                    progress.log(whole)
        self.dist.barrier()

    def resume(self) -> tuple[Sequence[Columns], list[Sequence[int]]]:
        """The columns of the finished parts, and the parts that are missing. An online method continues from its last
        saved state; parts after that state are predicted again."""
        found = [self.run_dir.read_part(part) for part in self.parts]
        if self.trainer.online:
            whole = next((number for number, columns in enumerate(found) if columns is None), len(found))
            kept, state = self.run_dir.read_state(whole)
            if kept:
                self.trainer.load_state(state)
            found = [columns if number < kept else None for number, columns in enumerate(found)]
        finished = [columns for columns in found if columns is not None]
        if finished:
            images = sum(len(columns["index"]) + len(columns["bad_index"]) for columns in finished)
            logger.info("resuming: %d of %d images were predicted before", images, len(self.data.indices))
        return finished, [part for part, columns in zip(self.parts, found, strict=True) if columns is None]

    def view_features(self) -> ViewStore:
        """Where view features come from; a store on disk is filled first. A method that reads the plain view alone has
        features of its own: encoded together with other views they differ in the last bits."""
        features = self.trainer.view_features()
        features.fill(self.dist)
        return features

    def predict_batch(self, batch: FeatureBatch) -> dict[str, np.ndarray]:
        """The columns of a batch. Its predictions are copied from the device once, which waits for them."""
        items = [self.data.items[index] for index in batch.index]
        started = time.perf_counter()
        empty = torch.empty(0, len(self.trainer.clip.classnames))
        adapted = Adapted(empty, empty).with_fallback([])  # of no image
        if items:
            adapted = adapt_images(self.trainer, batch.views, [item.impath for item in items])
        columns = {"logits": adapted.logits, "zero_shot_logits": adapted.zero_shot_logits, **adapted.columns}
        arrays = {name: column.cpu().numpy() for name, column in columns.items()}
        return {
            "index": np.array(batch.index, dtype=np.int64),
            "label": np.array([item.label for item in items], dtype=np.int64),
            "bad_index": np.array(list(batch.bad), dtype=np.int64),
            "bad_reason": np.array(list(batch.bad.values()), dtype=np.str_),
            **arrays, **({"position": np.array([self.position[index] for index in batch.index], dtype=np.int64)}
                         if self.trainer.online else {}),
            "adapt_seconds": np.array([time.perf_counter() - started]),
        }


def adapt_images(method: Method, views: Tensor, names: Sequence[object]) -> Adapted:
    """A method's predictions for images given as unit view features (B, V, d): checked, with equal logits for classes
    of one name, and with the zero-shot prediction where a number is not finite. `names` are those of the images.

    An online method sees its images one by one, so that the number of images adapted at once changes nothing.
    """
    trainer = type(method).__name__
    try:
        adapted = Adapted.join([method.adapt(some) for some in (views.split(1) if method.online else [views])])
        adapted.check_shapes(trainer, len(views), len(method.clip.classnames), names)
        return adapted.with_equal_logits(method.clip.first_of_name).with_fallback(names)
    except Exception as error:  # a user's own method may raise anything: say which, where, and at which image
        if isinstance(error, UserError) or machine_fault(error):
            raise
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
        place = f"line {frames[-1].lineno} of {frames[-1].filename}"
        reason = one_line(f"{type(error).__name__}: {error}, {place}")
        raise UserError(f"{trainer} failed at {names[0]} ({reason}): fix the method and run the command again; "
                        f"finished parts are kept") from error
