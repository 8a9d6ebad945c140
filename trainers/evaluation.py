"""Predicting the images of a run: part by part, from cached or fresh features, continued where it was cut off."""
from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from ..datasets.utils.errors import ConfigError, UserError, fault_of_machine, one_line
from .engine.adapted import Adapted
from .engine.features import FeatureBatch, ViewFeatures, find_features
from .engine.parts import chunks, joined, shuffled
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
        if self.online and self.ranks.world > 1:
            raise ConfigError(f"{cfg.TRAINER.NAME} carries state from image to image, so one process must see them "
                              f"all: start it without torchrun, or with --nproc-per-node 1")
        if self.online:
            self.load_state(self.state())  # before hours are spent, find out that both are there
        progress = Progress(self.folder.path, len(self.indices), cfg.TEST.BINS, cfg.TRAINER.NAME, self.ranks.first)
        with progress:
            finished, missing = self.resume()
            for columns in finished:
                progress.remember(columns)
            mine = self.ranks.share(missing)
            features = self.feature_batches(mine)
            for part in mine:
                rows = []
                for _ in chunks(part, cfg.TTA.EPISODES):
                    started = time.perf_counter()
                    batch = next(features)
                    encoded = time.perf_counter()
                    columns = self.predict_batch(batch)
                    columns["adapt_seconds"] = np.array([time.perf_counter() - encoded])
                    columns["seconds"] = np.array([time.perf_counter() - started])
                    progress.advance(columns)
                    rows.append(columns)
                columns = joined(rows)
                self.folder.write_part(part, columns)
                if self.online:
                    self.folder.write_state(self.parts.index(part) + 1, self.state())
                progress.log(columns)
        self.ranks.meet()

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

    def predict_batch(self, batch: FeatureBatch) -> dict[str, np.ndarray]:
        """The rows of a batch."""
        index, bad = batch.index, batch.bad
        if index:
            columns = self.adapt_batch(batch.views, [self.items[i].impath for i in index])
        else:
            logits = np.empty((0, len(self.dataset.classnames)), dtype=np.float32)
            columns = {"logits": logits, "zero_shot_logits": logits, "flagged": np.empty(0, dtype=bool)}
        return {
            "index": np.array(index, dtype=np.int64),
            "label": np.array([self.items[i].label for i in index], dtype=np.int64),
            **columns,
            "bad_index": np.array(list(bad), dtype=np.int64),
            "bad_reason": np.array(list(bad.values()), dtype=np.str_),
        }

    def adapt_batch(self, views: Tensor, names: Sequence[str]) -> dict[str, np.ndarray]:
        """What is kept of each image. An online method meets its images one by one, so that TTA.EPISODES, which is a
        matter of speed, changes nothing."""
        trainer, classes = self.cfg.TRAINER.NAME, len(self.dataset.classnames)
        try:
            made = [self.adapt(some) for some in (views.split(1) if self.online else [views])]
            adapted = Adapted.join(made).checked(trainer, len(views), classes, names).with_fallback(names)
        except UserError:
            raise
        except Exception as error:  # of a method that somebody has written: which one, where, and at which image
            if fault_of_machine(error):
                raise
            reason = one_line(f"{type(error).__name__}: {error}, {where(error)}")
            raise UserError(f"{trainer} failed at {names[0]} ({reason}): mend the method and run the command again, "
                            f"finished parts are kept") from error
        columns = {"logits": adapted.logits, "zero_shot_logits": adapted.zero_shot_logits, **adapted.columns}
        return {name: column.cpu().numpy() for name, column in columns.items()}


def where(error: Exception) -> str:
    """The last line of our own or of a user's that an error passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    return f"line {frames[-1].lineno} of {frames[-1].filename}"
