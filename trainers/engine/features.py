"""Features of the views of many images: taken from the cache, or encoded and put there.

They depend neither on the prompt nor on the method, so every method, λ and template on the same data shares them.
"""
from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm
from yacs.config import CfgNode

from ...datasets.base import Dataset, Datum
from ...datasets.utils.errors import DataError
from ...datasets.views import pipeline
from ...datasets.views.images import BadImageError
from ...datasets.views.loader import LoadedBatch, load_batches, num_threads
from ...datasets.views.maker import ViewMaker
from ..config.fingerprint import ENGINE
from ..vlm.backbone import Backbone
from ..vlm.image_tower import encode_views, views_at_once
from ..vlm.numerics import in_parallel
from ..vlm.precision import DTYPES
from .cache import ArrayCache
from .parts import chunks, part_name

logger = logging.getLogger(__name__)

RECENT_BYTES = 1 << 30  # of cached parts that an online method, which meets images in any order, has at hand


@dataclass
class FeatureBatch:
    index: list[int]  # places in the split of the images that could be read
    views: Tensor  # (B, V, d), unit features on the model's device
    bad: dict[int, str]  # what is wrong with the others


class KeptPart:
    """A part that the cache has kept."""

    def __init__(self, array: np.ndarray, facts: Mapping, device: torch.device) -> None:
        self.array, self.device = array, device
        self.bad = {int(place): reason for place, reason in facts["bad"].items()}
        self.rows = {place: row for row, place in enumerate(facts["index"])}

    def batch(self, places: Sequence[int]) -> FeatureBatch:
        """Some images of the part."""
        index = [place for place in places if place in self.rows]
        rows = np.asarray(self.array[[self.rows[place] for place in index]], dtype=np.float32)
        views = torch.from_numpy(rows).to(self.device, non_blocking=True)
        return FeatureBatch(index, views, {place: self.bad[place] for place in places if place in self.bad})


@dataclass
class ViewFeatures:
    """Where view features come from."""

    backbone: Backbone
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
            numbers = sum(map(len, missing)) * self.maker.num_views * self.backbone.features
            self.cache.reserve(numbers * DTYPES[self.dtype].itemsize, "view features")
        fresh = self.encode([batch for part in missing for batch in chunks(part, size)])
        for part, found in zip(parts, stored, strict=True):
            kept = self.read(part) if found else None
            if kept:
                yield from map(self.checked, map(kept.batch, chunks(part, size)))
            else:  # a part that has gone since it was looked for, with its disk perhaps, is made again
                yield from self.make(part, size, self.encode(chunks(part, size)) if found else fresh)

    def make(self, part: Sequence[int], size: int, fresh: Iterator[FeatureBatch]) -> Iterator[FeatureBatch]:
        """A part's batches, which are the next of `fresh`, and at its end the cache has it."""
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
        if batches:
            self.maker.warm_up()
        pinned = self.backbone.device.type == "cuda"

        def make(image: Image.Image, index: int) -> Tensor:
            views = self.maker(image, index)
            return views.pin_memory() if pinned else views

        for batch in load_batches(self.dataset, self.items, make, batches, num_threads(self.workers)):
            features = self.encoded(batch)
            if self.cache:
                features = features.to(DTYPES[self.dtype]).float()  # the same numbers as a later run will read
            yield FeatureBatch(batch.index, features, batch.bad)

    def encoded(self, batch: LoadedBatch[Tensor]) -> Tensor:
        """Features (B, V, d) of a batch's images, some images at a time."""
        at_once = max(1, views_at_once(self.backbone) // self.maker.num_views)  # images
        nothing = torch.empty(0, self.maker.num_views, self.backbone.features, device=self.backbone.device)
        return torch.cat([nothing, *in_parallel(
            lambda some: encode_views(self.backbone, torch.stack(list(some)), self.precision, normalised=False),
            chunks(batch.made, at_once), self.backbone.device)])

    def stored(self, part: Sequence[int]) -> bool:
        """Whether the cache has a part as it would be made now: what could not be read then may have been mended."""
        kept = self.read(part)
        return kept is not None and not any(map(self.readable, kept.bad))

    def readable(self, place: int) -> bool:
        try:
            self.dataset.read_image(self.items[place])
        except BadImageError:
            return False
        logger.info("%s can be read now, so its part of the view features is made again", self.items[place].impath)
        return True

    def read(self, part: Sequence[int]) -> KeptPart | None:
        found = self.cache.read(part_name(part)) if self.cache else None
        return KeptPart(found[0], found[1], self.backbone.device) if found else None

    def store(self, part: Sequence[int], made: Sequence[FeatureBatch]) -> None:
        if self.cache is None:
            return
        features = torch.cat([batch.views for batch in made]).to(DTYPES[self.dtype]).cpu().numpy()
        facts = {
            "index": [place for batch in made for place in batch.index],
            "bad": {place: reason for batch in made for place, reason in batch.bad.items()},
        }
        self.cache.write(part_name(part), features, facts)

    def in_order(
        self, parts: Sequence[Sequence[int]], cached: Sequence[Sequence[int]], size: int,
    ) -> Iterator[FeatureBatch]:
        """The images of `parts` in whatever order they stand there. The cache keeps them by `cached`, the parts that
        every other method reads and writes."""
        batches = [batch for part in parts for batch in chunks(part, size)]
        if self.cache is None:
            yield from map(self.checked, self.encode(batches))
            return
        missing = [part for part in cached if not self.stored(part)]
        if missing:
            images = tqdm(total=sum(map(len, missing)), desc="view features", unit="img", dynamic_ncols=True)
            with images:
                for batch in self.batches(missing, size):
                    images.update(len(batch.index) + len(batch.bad))
        part_of = {place: part for part in cached for place in part}
        recent: OrderedDict[str, KeptPart] = OrderedDict()
        for batch in batches:
            yield self.checked(join_batches([self.recent_part(part_of[place], recent, size).batch([place])
                                       for place in batch]))

    def recent_part(self, part: Sequence[int], recent: OrderedDict[str, KeptPart], size: int) -> KeptPart:
        """A part from memory, from the cache, or made again because it has gone from there. Of those in `recent` the
        ones that were wanted last stay."""
        name = part_name(part)
        if name not in recent:
            recent[name] = self.read(part) or kept_part(
                list(self.make(part, size, self.encode(chunks(part, size)))), self.backbone.device)
        recent.move_to_end(name)
        while len(recent) > 1 and sum(kept.array.nbytes for kept in recent.values()) > RECENT_BYTES:
            recent.popitem(last=False)
        return recent[name]


def join_batches(batches: Sequence[FeatureBatch]) -> FeatureBatch:
    return FeatureBatch(
        [place for batch in batches for place in batch.index], torch.cat([batch.views for batch in batches]),
        {place: reason for batch in batches for place, reason in batch.bad.items()},
    )


def kept_part(made: Sequence[FeatureBatch], device: torch.device) -> KeptPart:
    """What the cache would have kept of these batches."""
    whole = join_batches(made)
    return KeptPart(whole.views.cpu().numpy(), {"index": whole.index, "bad": whole.bad}, device)


def find_features(
    cfg: CfgNode, backbone: Backbone, dataset: Dataset, items: Sequence[Datum], count: int, facts: Mapping[str, str],
    precision: str,
) -> ViewFeatures:
    """Where features of `count` views an image come from in a run with these settings. `facts` has the hashes of data
    and weights."""
    augmix = dataset.augmix if cfg.TTA.AUGMIX == "auto" else cfg.TTA.AUGMIX == "on"
    maker = ViewMaker.of(count, backbone.pixels, augmix, cfg.SEED)
    dtype = "fp32" if precision == "fp32" else "fp16"
    key = {
        "data": facts["data"], "weights": facts["weights"], **maker.key(), **backbone.pixels.non_default(),
        "precision": precision, "dtype": dtype, "engine": ENGINE,
    }
    cache = ArrayCache(cfg.CACHE.DIR, "views", {**key, "views": pipeline()}) if cfg.CACHE.DIR else None
    return ViewFeatures(
        backbone, dataset, items, maker, precision, cfg.DATALOADER.NUM_WORKERS, cfg.DATALOADER.ON_BAD_IMAGE == "skip",
        cache, dtype,
    )
