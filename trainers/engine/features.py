"""View features of the test images: encoded from views, or read from the cache on disk.

They depend neither on the prompt nor on the method, so all methods, λ and templates on the same images share them.
"""
from __future__ import annotations

import hashlib
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
from ...datasets.identity import image_name
from ...datasets.utils.errors import DataError
from ...datasets.views import ViewMaker, pipeline
from ...datasets.views.images import BadImageError
from ...datasets.views.loader import load_batches, num_threads
from ..config.fingerprint import ENGINE
from ..runs.dist import Distributed
from ..runs.parts import chunks
from ..vlm.backbone import Backbone
from ..vlm.image_tower import encode_views
from ..vlm.numerics import DTYPES, worker_thread
from .cache import ArrayCache

logger = logging.getLogger(__name__)

SHARD = 64  # images per file of the cache
ENCODE_AT_ONCE = 8  # images whose views are on the GPU together
MEMORY = 1 << 30  # bytes of shards that stay in memory, for methods that read images in random order


@dataclass
class FeatureBatch:
    index: list[int]  # positions in the split of the images that could be read
    views: Tensor  # (B, V, d), unit features on the model's device
    bad: dict[int, str]  # position -> why an image could not be read


@dataclass
class Shard:
    """The features of some images as the cache stores them."""

    array: np.ndarray  # (n, V, d)
    row: dict[int, int]  # position in the split -> row of the array
    bad: dict[int, str]  # position -> why an image could not be read


class ViewFeatures:
    """Features of `num_views` views of each image, addressed by the image's position in the split."""

    def __init__(
        self, cfg: CfgNode, backbone: Backbone, precision: str, dataset: Dataset, items: Sequence[Datum],
        indices: Sequence[int], num_views: int, hashes: Mapping[str, object],
    ) -> None:
        """`indices` are the positions in `items` of the images of the run; `hashes` has those of data and weights."""
        augmix = dataset.augmix if cfg.TTA.AUGMIX == "auto" else cfg.TTA.AUGMIX == "on"
        self.maker = ViewMaker.of(num_views, backbone.pixels, augmix, cfg.SEED)
        self.backbone, self.precision, self.dataset, self.items = backbone, precision, dataset, items
        self.num_views = num_views
        self.threads = num_threads(cfg.DATALOADER.NUM_WORKERS)
        self.skip_bad = cfg.DATALOADER.ON_BAD_IMAGE == "skip"
        self.dtype = DTYPES["fp32" if precision == "fp32" else "fp16"]  # in the cache
        self.shards = chunks(indices, SHARD)
        self.shard_of = {index: number for number, shard in enumerate(self.shards) for index in shard}
        self.recent: OrderedDict[int, Shard] = OrderedDict()
        self.cache = ArrayCache(cfg.CACHE.DIR, "views", {
            "data": hashes["data"], "weights": hashes["weights"], **self.maker.key(), **backbone.pixels.non_default(),
            "precision": precision, "dtype": str(self.dtype), "engine": ENGINE, "pipeline": pipeline(),
        }) if cfg.CACHE.DIR else None

    def batches(self, wanted: Sequence[Sequence[int]]) -> Iterator[FeatureBatch]:
        """The features of each list of positions, in the given order."""
        found = self.encode(wanted) if self.cache is None else map(self.read, wanted)
        return map(self.check, found)

    def check(self, batch: FeatureBatch) -> FeatureBatch:
        """An image that cannot be read stops a run that skips none."""
        if batch.bad and not self.skip_bad:
            reason = next(iter(batch.bad.values()))
            raise DataError(f"{reason}; fix the file, or skip such images: DATALOADER.ON_BAD_IMAGE skip")
        return batch

    def encode(self, wanted: Sequence[Sequence[int]]) -> Iterator[FeatureBatch]:
        """Reads images, makes views and encodes them. On a CPU one pool of threads does all of it, image by image, so
        that features do not depend on the batch; for a GPU the threads make views ahead."""
        on_cpu = self.backbone.device.type == "cpu"
        make = self.encode_image if on_cpu else self.make_views
        self.maker.warm_up()
        for batch in load_batches(self.dataset, self.items, make, wanted, self.threads):
            if not batch.made:
                features = torch.empty(0, self.num_views, self.backbone.features, device=self.backbone.device)
            elif on_cpu:
                features = torch.stack(batch.made)
            else:
                views = torch.stack([one.to(self.backbone.device, non_blocking=True) for one in batch.made])
                features = encode_views(self.backbone, views, self.precision, normalised=False)
            if self.cache:
                features = features.to(self.dtype).float()  # the numbers that a later run will read
            yield FeatureBatch(batch.index, features, batch.bad)

    def encode_image(self, image: Image.Image, index: int) -> Tensor:
        """Unit features (V, d) of one image, in a thread of the pool."""
        with worker_thread():
            return encode_views(self.backbone, self.maker(image, index)[None], self.precision, normalised=False)[0]

    def make_views(self, image: Image.Image, index: int) -> Tensor:
        """Views (V, 3, S, S); for CUDA in pinned memory, from which a copy to the GPU does not block."""
        views = self.maker(image, index)
        return views.pin_memory() if self.backbone.device.type == "cuda" else views

    @property
    def is_cached(self) -> bool:
        """Whether the cache has every image."""
        return all(map(self.has_shard, self.shards))

    def fill_cache(self, dist: Distributed) -> None:
        """Encodes what the cache lacks. Each process takes some of the shards, and all wait for each other."""
        if self.cache is None:
            return
        missing = dist.broadcast([shard for shard in self.shards if not self.has_shard(shard)])
        if missing and dist.is_main:
            numbers = sum(map(len, missing)) * self.num_views * self.backbone.features
            self.cache.reserve(numbers * self.dtype.itemsize, "view features")
        own = missing[dist.rank :: dist.world]
        pieces = {shard[0]: chunks(shard, ENCODE_AT_ONCE) for shard in own}
        encoded = map(self.check, self.encode([piece for some in pieces.values() for piece in some]))
        with tqdm(total=sum(map(len, own)), desc="view features", unit="img", dynamic_ncols=True,
                  disable=not own or not dist.is_main) as bar:
            for shard in own:
                self.write_shard(shard, [next(encoded) for _ in pieces[shard[0]]])
                bar.update(len(shard))
        dist.barrier()

    def read(self, indices: Sequence[int]) -> FeatureBatch:
        """The features of some images from the cache."""
        shards = {index: self.shard(self.shard_of[index]) for index in indices}
        good = [index for index in indices if index in shards[index].row]
        rows = [shards[index].array[shards[index].row[index]] for index in good]
        features = np.stack(rows).astype(np.float32) if rows else np.empty((0, 1, self.backbone.features), np.float32)
        bad = {index: shards[index].bad[index] for index in indices if index in shards[index].bad}
        return FeatureBatch(good, torch.from_numpy(features).to(self.backbone.device, non_blocking=True), bad)

    def shard(self, number: int) -> Shard:
        """A shard from memory or from disk; one that was removed or damaged since is encoded again."""
        if number not in self.recent:
            indices = self.shards[number]
            self.recent[number] = self.read_shard(indices) or self.write_shard(
                indices, list(self.encode(chunks(indices, ENCODE_AT_ONCE))))
        self.recent.move_to_end(number)
        while len(self.recent) > 1 and sum(shard.array.nbytes for shard in self.recent.values()) > MEMORY:
            self.recent.popitem(last=False)
        return self.recent[number]

    def has_shard(self, indices: Sequence[int]) -> bool:
        """Whether the cache has these images as they would be encoded now. Images that could not be read then are
        tried again: their files may have been repaired."""
        note = self.cache.note(shard_name(indices)) if self.cache else None
        if note is None or note["metadata"]["images"] != self.images_hash(indices):
            return False
        return not any(self.is_readable(int(index)) for index in note["metadata"]["bad"])

    def is_readable(self, index: int) -> bool:
        try:
            self.dataset.read_image(self.items[index])
        except BadImageError:
            return False
        logger.info("%s can be read now: its shard of the view features is encoded again", self.items[index].impath)
        return True

    def read_shard(self, indices: Sequence[int]) -> Shard | None:
        found = self.cache.read(shard_name(indices)) if self.cache else None
        if found is None or found[1]["images"] != self.images_hash(indices):
            return None
        array, metadata = found
        bad = {int(index): reason for index, reason in metadata["bad"].items()}
        return Shard(array, {index: row for row, index in enumerate(metadata["index"])}, bad)

    def write_shard(self, indices: Sequence[int], made: Sequence[FeatureBatch]) -> Shard:
        array = torch.cat([batch.views for batch in made]).to(self.dtype).cpu().numpy()
        good = [index for batch in made for index in batch.index]
        bad = {index: reason for batch in made for index, reason in batch.bad.items()}
        if self.cache:
            metadata = {"images": self.images_hash(indices), "index": good, "bad": bad}
            self.cache.write(shard_name(indices), array, metadata)
        return Shard(array, {index: row for row, index in enumerate(good)}, bad)

    def images_hash(self, indices: Sequence[int]) -> str:
        """Which images a shard holds, whatever their positions in the split."""
        names = "\n".join(image_name(self.dataset, self.items[index]) for index in indices)
        return hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()[:16]


def shard_name(indices: Sequence[int]) -> str:
    return f"{indices[0]:07d}-{indices[-1]:07d}"
