"""Predicting the images of a run: part by part, from cached or fresh features, continued where it was cut off."""
from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ..datasets.utils.errors import ConfigError, UserError, machine_fault, one_line
from .engine.adapted import Adapted, refuse_lost
from .engine.features import FeatureBatch, ViewFeatures, find_features
from .engine.parts import chunks, joined, shuffled
from .engine.watch import AHEAD, Pending, watch_of
from .runs.progress import Progress


class Evaluation:
    """The part of a trainer's life between its model and its results."""

    @property
    def parts(self) -> list[Sequence[int]]:
        """The images in the order in which they are predicted, cut into what is saved at once."""
        order = shuffled(self.indices, self.cfg.SEED) if self.online else self.indices
        return chunks(order, self.cfg.TEST.PART)

    def predict_images(self) -> None:
        """Predicts the images that no finished part holds, part by part; each rank takes its share of the parts."""
        cfg = self.cfg
        if self.online and self.dist.world > 1:
            raise ConfigError(f"{cfg.TRAINER.NAME} carries state from image to image, so one process must see them "
                              f"all: start it without torchrun, or with --nproc-per-node 1")
        if self.online:
            self.load_state(self.state())  # before hours are spent, find out that both are there
        progress = Progress(self.folder.path, len(self.indices), cfg.TEST.BINS, cfg.TRAINER.NAME, self.dist.is_main)
        with progress:
            finished, missing = self.resume()
            for columns in finished:
                progress.remember(columns)
            mine = self.dist.split(missing)
            features = self.feature_batches(mine)
            for part in mine:
                rows = []
                for columns in self.predict_part(part, features):
                    progress.advance(columns)
                    rows.append(columns)
                columns = joined(rows)
                self.folder.write_part(part, columns)
                if self.online:
                    self.folder.write_state(self.parts.index(part) + 1, self.state())
                progress.log(columns)
        self.dist.barrier()

    def resume(self) -> tuple[list[dict[str, np.ndarray]], list[Sequence[int]]]:
        """The columns of the parts that are finished, and the parts that are not. What an online method did after the
        state that was kept is done again."""
        found = [self.folder.read_part(part) for part in self.parts]
        if self.online:
            whole = next((place for place, columns in enumerate(found) if columns is None), len(found))
            state = self.folder.read_state(whole)
            if state is not None:
                self.load_state(state.arrays)
            kept = found[: state.parts] if state is not None else []
            found = [*kept, *[None] * (len(found) - len(kept))]
        finished = [columns for columns in found if columns is not None]
        return finished, [part for part, columns in zip(self.parts, found, strict=True) if columns is None]

    def feature_batches(self, parts: Sequence[Sequence[int]]) -> Iterator[FeatureBatch]:
        """The features of the parts' images. A batch never reaches beyond its part, so that a continued run computes
        the very same batches. The plain view is also the first of many: where those are cached whole, no image has to
        be touched for it."""
        size, features = self.cfg.TTA.EPISODES, self.view_features(self.views)
        cached = chunks(self.indices, self.cfg.TEST.PART) if self.online else parts  # what the cache keeps together
        if self.views == 1 and self.cfg.CACHE.DIR:
            many = self.view_features(self.cfg.TTA.VIEWS)
            if all(map(many.stored, cached)):
                features = many
        return features.in_order(parts, cached, size) if self.online else features.batches(parts, size)

    def view_features(self, count: int) -> ViewFeatures:
        """Where features of `count` views an image come from."""
        return find_features(self.cfg, self.backbone, self.dataset, self.items, count, self.fingerprint, self.precision)

    def predict_part(
        self, part: Sequence[int], features: Iterator[FeatureBatch],
    ) -> Iterator[dict[str, np.ndarray]]:
        """The rows of a part's batches, in order. On a GPU they come when they are done: until the part's end nothing
        waits for the batch that was handed over last."""
        watch, waiting = watch_of(self.device), deque()
        count, begun = len(chunks(part, self.cfg.TTA.EPISODES)), time.perf_counter()
        for number in range(1, count + 1):
            batch = next(features)
            start = watch.mark()
            waiting.append((batch, Pending.copy(self.predict_batch(batch), watch, start)))
            while waiting and (waiting[0][1].is_done or len(waiting) > AHEAD or number == count):
                batch, pending = waiting.popleft()
                columns, adapting = pending.arrays()
                refuse_lost(columns["logits"], [self.items[i].impath for i in batch.index])
                now = time.perf_counter()
                times = {"adapt_seconds": np.array([adapting]), "seconds": np.array([now - begun])}
                begun = now
                yield {**self.facts_of(batch), **columns, **times}

    def facts_of(self, batch: FeatureBatch) -> dict[str, np.ndarray]:
        """What is known of a batch without a model."""
        return {
            "index": np.array(batch.index, dtype=np.int64),
            "label": np.array([self.items[i].label for i in batch.index], dtype=np.int64),
            "bad_index": np.array(list(batch.bad), dtype=np.int64),
            "bad_reason": np.array(list(batch.bad.values()), dtype=np.str_),
        }

    def predict_batch(self, batch: FeatureBatch) -> dict[str, Tensor]:
        """What is kept of each image of a batch, where the model is."""
        if batch.index:
            return self.adapt_batch(batch.views, [self.items[i].impath for i in batch.index])
        logits = torch.empty(0, len(self.dataset.classnames))
        return {"logits": logits, "zero_shot_logits": logits, "flagged": torch.empty(0, dtype=torch.bool)}

    def adapt_batch(self, views: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """What is kept of each image. An online method meets its images one by one, so that TTA.EPISODES, which is a
        matter of speed, changes nothing."""
        trainer, classes = self.cfg.TRAINER.NAME, len(self.dataset.classnames)
        try:
            made = [self.adapt(some) for some in (views.split(1) if self.online else [views])]
            adapted = Adapted.join(made).checked(trainer, len(views), classes, names).with_fallback()
        except UserError:
            raise
        except Exception as error:  # of a method that somebody has written: which one, where, and at which image
            if machine_fault(error):
                raise
            reason = one_line(f"{type(error).__name__}: {error}, {where(error)}")
            raise UserError(f"{trainer} failed at {names[0]} ({reason}): mend the method and run the command again, "
                            f"finished parts are kept") from error
        return {"logits": adapted.logits, "zero_shot_logits": adapted.zero_shot_logits, **adapted.columns}


def where(error: Exception) -> str:
    """The last line of our own or of a user's that an error passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    return f"line {frames[-1].lineno} of {frames[-1].filename}"
