"""Features of the views of many images: taken from the cache, or encoded and put there.

They depend neither on the prompt nor on the method, so every method, λ and template on the same data shares them.
"""
from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from yacs.config import CfgNode

from ...datasets.base import Dataset, Datum
from ...datasets.utils.errors import DataError
from ...datasets.views import PIPELINE
from ...datasets.views.images import BadImageError
from ...datasets.views.jpeg import UndecodedJpegs, check_decoder
from ...datasets.views.loader import ViewBatch, view_loader
from ...datasets.views.maker import Drawn, ViewMaker
from ..config.fingerprint import ENGINE
from ..vlm.backbone import Backbone
from ..vlm.image_tower import encode_views, views_at_once
from ..vlm.numerics import DTYPES, in_parallel
from .ahead import Side, SideStream, made_ahead
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
    undecoded: bool = False  # JPEGs are decoded where the model is

    def batches(self, parts: Sequence[Sequence[int]], size: int) -> Iterator[FeatureBatch]:
        """The images of `parts` (lists of places in the split) in batches that never reach beyond a part.

        An image that cannot be read stops a run that skips none, whether this or an earlier run found it out.
        """
        stored = [self.stored(part) for part in parts]
        missing = [part for part, found in zip(parts, stored, strict=True) if not found]
        if self.cache and missing:
            numbers = sum(map(len, missing)) * self.maker.count * self.backbone.features
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
        device = self.backbone.device
        dataset = UndecodedJpegs(self.dataset) if self.undecoded else self.dataset
        loader = view_loader(
            dataset, self.items, self.maker.prepare, batches, self.workers, pin_memory=device.type == "cuda",
        )
        if self.undecoded:
            loader = map(self.decoded, loader)
        for batch, features in self.encoded(loader, SideStream(device) if device.type == "cuda" else None):
            if self.cache:
                features = features.to(DTYPES[self.dtype]).float()  # the same numbers as a later run will read
            yield FeatureBatch(batch.index, features, batch.bad)

    def encoded(self, loader: Iterable[ViewBatch], side: Side | None) -> Iterator[tuple[ViewBatch, Tensor]]:
        """Each batch with the features (B, V, d) of its images. Views are many times an image's size, so only those of
        a few images exist at once; given a `side`, they are made there while earlier ones are encoded."""
        at_once = max(1, views_at_once(self.backbone) // self.maker.count)  # images
        made: list[Tensor] = [torch.empty(0, self.maker.count, self.backbone.features, device=self.backbone.device)]
        if side is None:
            for batch in loader:
                pieces = chunks(batch.made, at_once)
                yield batch, torch.cat(made + in_parallel(
                    lambda some: self.encode_made(self.make_views(some)), pieces, self.backbone.device))
            return
        jobs = ((batch, some) for batch in loader for some in [*chunks(batch.made, at_once), None])
        features = list(made)
        for (batch, some), views in made_ahead(jobs, lambda job: self.make_views(job[1] or ()), side):
            if some is not None:
                features.append(self.encode_made(views))
            else:  # the batch's end
                yield batch, torch.cat(features)
                features = list(made)

    def decoded(self, batch: ViewBatch) -> ViewBatch:
        """With pictures for JPEGs; those that nobody can decode are complained of like others that cannot be read."""
        good, bad = {}, dict(batch.bad)
        for place, drawn in zip(batch.index, batch.made, strict=True):
            try:
                good[place] = drawn.decoded(self.backbone.device)
            except BadImageError as error:
                bad[place] = f"cannot read image {self.items[place].impath}: {error}"
        return ViewBatch(list(good), list(good.values()), bad)

    def make_views(self, images: Sequence[Drawn]) -> Tensor:
        """Views (B, V, 3, S, S) of decoded pictures, made where the model is."""
        made = [self.maker.make(image, self.backbone.device) for image in images]
        return torch.stack(made) if made else torch.empty(0, device=self.backbone.device)

    def encode_made(self, views: Tensor) -> Tensor:
        return encode_views(self.backbone, views, self.precision, normalised=False)

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
        "data": facts["data"], "weights": facts["weights"], **maker.key(), **backbone.pixels.unusual(),
        "precision": precision, "dtype": dtype, "engine": ENGINE,
    }
    undecoded = cfg.DATALOADER.JPEG == "device"
    if undecoded:
        check_decoder(backbone.device)
        key["jpeg"] = cfg.DATALOADER.JPEG
    cache = ArrayCache(cfg.CACHE.DIR, "views", {**key, "views": PIPELINE}) if cfg.CACHE.DIR else None
    if cache and not cache.folder.is_dir() and (old := ArrayCache(cfg.CACHE.DIR, "views", key).folder).is_dir():
        logger.info("%s has features of views as version 0.1 made them (pillow-1), which are not those of today (%s): "
                    "features are made anew, and that folder may be removed", old, PIPELINE)
    return ViewFeatures(
        backbone, dataset, items, maker, precision, cfg.DATALOADER.NUM_WORKERS, cfg.DATALOADER.ON_BAD_IMAGE == "skip",
        cache, dtype, undecoded,
    )
