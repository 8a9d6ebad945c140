"""Features of the views of many images: taken from the cache, or encoded and put there.

They depend neither on the prompt nor on the method, so every method, λ and template on the same data shares them.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...datasets.base import Dataset, Datum
from ...datasets.utils.errors import DataError
from ...datasets.views.crops import ViewMaker
from ...datasets.views.loader import view_loader
from ..vlm.image_tower import encode_views
from ..vlm.openai_clip import CLIP
from ..vlm.precision import DTYPES
from .cache import ArrayCache


@dataclass
class FeatureBatch:
    index: list[int]  # places in the split of the images that could be read
    views: Tensor  # (B, V, d), unit features on the model's device
    bad: dict[int, str]  # what is wrong with the others


@dataclass
class ViewFeatures:
    """Where view features come from."""

    model: CLIP
    dataset: Dataset
    items: Sequence[Datum]  # the split that is looked at
    maker: ViewMaker
    precision: str
    workers: int
    skip_bad: bool
    cache: ArrayCache | None
    dtype: str  # of the cached numbers

    def batches(self, parts: Sequence[Sequence[int]], size: int) -> Iterator[FeatureBatch]:
        """The images of `parts` (lists of places in the split) in batches that never reach beyond a part.

        An image that cannot be read stops a run that skips none, whether this or an earlier run found it out.
        """
        stored = [self.stored(part) for part in parts]
        missing = [part for part, found in zip(parts, stored, strict=True) if not found]
        if self.cache and missing:
            numbers = sum(map(len, missing)) * self.maker.count * self.model.text_projection.shape[1]
            self.cache.reserve(numbers * DTYPES[self.dtype].itemsize, "view features")
        fresh = self.encode([part[i : i + size] for part in missing for i in range(0, len(part), size)])
        for part, found in zip(parts, stored, strict=True):
            if found:
                yield from map(self.checked, self.read(part, size))
                continue
            made: list[FeatureBatch] = []
            for start in range(0, len(part), size):
                made.append(self.checked(next(fresh)))
                if start + size >= len(part):
                    self.store(part, made)
                yield made[-1]

    def checked(self, batch: FeatureBatch) -> FeatureBatch:
        if batch.bad and not self.skip_bad:
            reason = next(iter(batch.bad.values()))
            raise DataError(f"{reason}; mend the file, or leave such images out: DATALOADER.ON_BAD_IMAGE skip")
        return batch

    def encode(self, batches: Sequence[Sequence[int]]) -> Iterator[FeatureBatch]:
        device = self.model.logit_scale.device
        loader = view_loader(
            self.dataset, self.items, self.maker, batches, self.workers, pin_memory=device.type == "cuda",
        )
        for batch in loader:
            if batch.views is None:
                features = torch.empty(0, self.maker.count, self.model.text_projection.shape[1], device=device)
            else:
                features = encode_views(self.model, batch.views, self.precision)
            if self.cache:
                features = features.to(DTYPES[self.dtype]).float()  # the same numbers as a later run will read
            yield FeatureBatch(batch.index, features, batch.bad)

    def stored(self, part: Sequence[int]) -> bool:
        return self.cache is not None and self.cache.read(part_name(part)) is not None

    def read(self, part: Sequence[int], size: int) -> Iterator[FeatureBatch]:
        array, facts = self.cache.read(part_name(part))
        bad = {int(place): reason for place, reason in facts["bad"].items()}
        row_of = {place: row for row, place in enumerate(facts["index"])}
        device = self.model.logit_scale.device
        for start in range(0, len(part), size):
            batch = part[start : start + size]
            index = [place for place in batch if place in row_of]
            rows = np.asarray(array[[row_of[place] for place in index]], dtype=np.float32)
            views = torch.from_numpy(rows).to(device, non_blocking=True)
            yield FeatureBatch(index, views, {place: bad[place] for place in batch if place in bad})

    def store(self, part: Sequence[int], made: Sequence[FeatureBatch]) -> None:
        if self.cache is None:
            return
        features = torch.cat([batch.views for batch in made]).to(DTYPES[self.dtype]).cpu().numpy()
        facts = {
            "index": [place for batch in made for place in batch.index],
            "bad": {place: reason for batch in made for place, reason in batch.bad.items()},
        }
        self.cache.write(part_name(part), features, facts)


def part_name(part: Sequence[int]) -> str:
    return f"{part[0]:07d}-{part[-1]:07d}"
