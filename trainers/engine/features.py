"""View features of the test images: encoded from views, or read from the store on disk.

They depend neither on the prompt nor on the method, so all methods, λ and templates on the same
images share them. An image is known by the digest of its content and by its position in the split,
from which its random views are drawn.
"""
from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm
from yacs.config import CfgNode

from ...datasets.base import Dataset, Datum, run_name
from ...datasets.identity import ImageIdentity, identify
from ...datasets.image_index import ImageIndex, read_stamp
from ...datasets.utils.errors import DataError
from ...datasets.views import ViewMaker, pipeline
from ...datasets.views.loader import load_batches, num_threads
from ..config.fingerprint import ENGINE
from ..runs.dist import Distributed
from ..runs.parts import chunks
from ..vlm.backbone import Backbone
from ..vlm.image_tower import encode_views
from ..vlm.numerics import DTYPES, worker_thread
from .cache import ArrayCache

logger = logging.getLogger(__name__)

BLOCK = 64  # positions of the split per file of the store
# Rows of a file. There are more than 64 when images were exchanged or several folders of one name
# share a store; then those that were added first are dropped.
MOST_ROWS = 4 * BLOCK
ARRAYS = ("index", "digest", "features")  # of a file: (n,), (n, 16) and (n, V, d)
ENCODE_AT_ONCE = 8  # images whose views are on the GPU together
MEMORY = 1 << 30  # bytes of blocks that stay in memory, for methods that read images in random order


@dataclass(frozen=True, eq=False)
class SplitImages:
    """The images of a run: the reader, the whole split, and the identity of those that are used."""

    dataset: Dataset
    items: Sequence[Datum]
    identity: ImageIdentity


@dataclass
class FeatureBatch:
    index: list[int]  # positions in the split of the images that could be read
    views: Tensor  # (B, V, d), unit features on the model's device
    bad: dict[int, str]  # position -> why an image could not be read


@dataclass
class Block:
    """The features of a run's images at 64 successive positions of the split."""

    rows: dict[int, np.ndarray] = field(default_factory=dict)  # position -> features (V, d) as stored
    bad: dict[int, str] = field(default_factory=dict)  # position -> why an image could not be read

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(row.nbytes for row in self.rows.values())


class ViewStore:
    """Features of `num_views` views of each image, addressed by the image's position in the split."""

    def __init__(
        self, cfg: CfgNode, backbone: Backbone, precision: str, weights: object, images: SplitImages, num_views: int,
    ) -> None:
        """Args:
            cfg: Seed, AugMix, threads, and the folder of the store: CACHE.DIR, or "" for none.
            backbone: Encodes the views.
            precision: In use: fp32, fp16 or bf16.
            weights: Hash of the backbone's weights.
            images: The images of the run.
            num_views: Views per image, the plain one included.
        """
        augmix = cfg.TTA.AUGMIX == "on"
        if cfg.TTA.AUGMIX == "auto":
            augmix = images.dataset.augmix
        self.maker = ViewMaker.of(num_views, backbone.pixels, augmix, cfg.SEED)
        self.backbone = backbone
        self.precision = precision
        self.images = images
        self.num_views = num_views
        self.threads = num_threads(cfg.DATALOADER.NUM_WORKERS)
        self.skips_bad = cfg.DATALOADER.ON_BAD_IMAGE == "skip"
        # Features are rounded to this type with and without a store, so that both give the same predictions.
        self.dtype = DTYPES["fp32" if precision == "fp32" else "fp16"]

        identity = images.identity
        self.content = {index: row.tobytes() for index, row in zip(identity.indices, identity.contents, strict=True)}
        self.stamp = dict(zip(identity.indices, identity.stamps, strict=True))
        self.positions: dict[int, list[int]] = defaultdict(list)  # of the run's images, by number of the block
        for index in sorted(identity.indices):
            self.positions[index // BLOCK].append(index)
        self.recent: OrderedDict[int, Block] = OrderedDict()
        self.cache = None
        if cfg.CACHE.DIR:
            self.cache = ArrayCache(cfg.CACHE.DIR, "views", {
                "seed": cfg.SEED,
                "pipeline": pipeline(),
                **self.maker.key(),
                **backbone.pixels.non_default(),
                "weights": weights,
                "precision": precision,
                "device_type": backbone.device.type,
                "engine": ENGINE,
                "images": store_name(cfg, images.dataset),
            })

    def batches(self, wanted: Sequence[Sequence[int]]) -> Iterator[FeatureBatch]:
        """The features of each list of positions, in the given order."""
        if self.cache is None:
            return map(self.check, self.encode(wanted))
        return map(self.check, map(self.read, wanted))

    def check(self, batch: FeatureBatch) -> FeatureBatch:
        """An image that cannot be read stops a run that skips none."""
        if batch.bad and not self.skips_bad:
            reason = next(iter(batch.bad.values()))
            raise DataError(f"{reason}; fix the file, or skip such images: DATALOADER.ON_BAD_IMAGE skip")
        return batch

    def encode(self, wanted: Sequence[Sequence[int]]) -> Iterator[FeatureBatch]:
        """Reads images, makes views and encodes them. On a CPU one pool of threads does all of it, image by image, so
        that features do not depend on the batch; for a GPU the threads make views ahead."""
        on_cpu = self.backbone.device.type == "cpu"
        make = self.encode_image if on_cpu else self.make_views
        self.maker.warm_up()
        for batch in load_batches(self.images.dataset, self.images.items, make, wanted, self.threads):
            for index in batch.bad:
                self.check_unchanged(index)
            if not batch.made:
                features = torch.empty(0, self.num_views, self.backbone.features, device=self.backbone.device)
            elif on_cpu:
                features = torch.stack(batch.made)
            else:
                on_device = [views.to(self.backbone.device, non_blocking=True) for views in batch.made]
                features = encode_views(self.backbone, torch.stack(on_device), self.precision, normalised=False)
            features = features.to(self.dtype).float()
            yield FeatureBatch(batch.index, features, batch.bad)

    def encode_image(self, image: Image.Image, index: int) -> Tensor:
        """Unit features (V, d) of one image, in a thread of the pool."""
        self.check_unchanged(index)
        with worker_thread():
            return encode_views(self.backbone, self.maker(image, index)[None], self.precision, normalised=False)[0]

    def make_views(self, image: Image.Image, index: int) -> Tensor:
        """Views (V, 3, S, S); for CUDA in pinned memory, from which a copy to the GPU does not block."""
        self.check_unchanged(index)
        views = self.maker(image, index)
        if self.backbone.device.type == "cuda":
            views = views.pin_memory()
        return views

    def check_unchanged(self, index: int) -> None:
        """Refuses an image that is no longer the one whose digest the run has. It is called after the image was read:
        a file that is replaced during that shows it as well."""
        images, path = self.images, self.images.items[index].impath
        stamp = self.stamp[index]
        if stamp is not None and read_stamp(path) == stamp:
            return
        # Another time or size, or not a file. The content decides: a copied or linked file may be the same.
        now = identify(images.dataset, images.items, [index], ImageIndex(None))
        if now.contents.tobytes() != self.content[index]:
            raise DataError(f"{path} has changed since this run began: start the run again when nothing writes to the "
                            f"images any more")

    def fill(self, dist: Distributed) -> None:
        """Encodes what the store lacks. Each process takes some of the blocks, and all wait for each other."""
        if self.cache is None:
            return
        lacking = []
        if dist.is_main:
            lacking = self.find_lacking()
        lacking = dist.broadcast(lacking)
        if lacking and dist.is_main:
            images = sum(len(indices) for indices in lacking)
            numbers = images * self.num_views * self.backbone.features
            self.cache.reserve(numbers * self.dtype.itemsize, "view features")

        share = lacking[dist.rank :: dist.world]
        pieces = {}
        for indices in share:
            pieces[indices[0]] = chunks(indices, ENCODE_AT_ONCE)
        all_pieces = [piece for of_block in pieces.values() for piece in of_block]
        encoded = map(self.check, self.encode(all_pieces))
        with tqdm(total=sum(map(len, share)), desc="view features", unit="img", dynamic_ncols=True,
                  disable=not share or not dist.is_main) as bar:
            for indices in share:
                batches = [next(encoded) for _ in pieces[indices[0]]]
                self.add_to_file(indices[0] // BLOCK, self.as_block(batches))
                bar.update(len(indices))
        dist.barrier()

    def find_lacking(self) -> list[list[int]]:
        """The positions of the images that the store does not have, block by block."""
        lacking = []
        for number, indices in self.positions.items():
            stored = self.stored_images(number)
            absent = [index for index in indices if (index, self.content[index]) not in stored]
            if absent:
                lacking.append(absent)
        return lacking

    def stored_images(self, number: int) -> set[tuple[int, bytes]]:
        """Position and digest of the images in a block's file."""
        assert self.cache is not None
        index = self.cache.read_array(block_name(number), "index")
        digest = self.cache.read_array(block_name(number), "digest")
        if index is None or digest is None or len(index) != len(digest):
            return set()
        return {(int(position), row.tobytes()) for position, row in zip(index, digest, strict=True)}

    def read(self, indices: Sequence[int]) -> FeatureBatch:
        """The features of images from the store."""
        readable = []
        rows = []
        bad = {}
        for index in indices:
            block = self.block(index // BLOCK)
            if index in block.rows:
                readable.append(index)
                rows.append(block.rows[index])
            else:
                bad[index] = block.bad[index]
        features = np.empty((0, self.num_views, self.backbone.features), np.float32)
        if rows:
            features = np.stack(rows).astype(np.float32)
        views = torch.from_numpy(features).to(self.backbone.device, non_blocking=True)
        return FeatureBatch(readable, views, bad)

    def block(self, number: int) -> Block:
        """A block from memory or from disk. What was removed or damaged since, and images that cannot be read, are
        tried again: a reason why an image cannot be read is not stored, because it may be gone tomorrow."""
        if number not in self.recent:
            block = self.read_file(number)
            lacking = [index for index in self.positions[number] if index not in block.rows]
            if lacking:
                encoded = self.as_block(list(self.encode(chunks(lacking, ENCODE_AT_ONCE))))
                self.add_to_file(number, encoded)
                block = Block({**block.rows, **encoded.rows}, encoded.bad)
            self.recent[number] = block
        self.recent.move_to_end(number)
        while len(self.recent) > 1 and sum(block.size for block in self.recent.values()) > MEMORY:
            self.recent.popitem(last=False)
        return self.recent[number]

    def as_block(self, batches: Sequence[FeatureBatch]) -> Block:
        """Encoded images as they are stored."""
        block = Block()
        for batch in batches:
            features = batch.views.to(self.dtype).cpu().numpy()
            block.rows.update(zip(batch.index, features, strict=True))
            block.bad.update(batch.bad)
        return block

    def read_file(self, number: int) -> Block:
        """The run's images in a block's file: those at their positions with their digests."""
        block = Block()
        assert self.cache is not None
        arrays = self.cache.read(block_name(number), *ARRAYS)
        if arrays is None:
            return block
        for index, digest, features in zip(arrays["index"], arrays["digest"], arrays["features"], strict=True):
            if self.content.get(int(index)) == digest.tobytes():
                block.rows[int(index)] = features.copy()  # the rows of other images are not kept in memory
        return block

    def add_to_file(self, number: int, block: Block) -> None:
        """Adds images to a block's file. What another process has stored in the meantime stays."""
        if not block.rows:
            return
        assert self.cache is not None
        new: dict[str, np.ndarray] = {
            "index": np.array(list(block.rows), np.int64),
            "digest": np.stack([np.frombuffer(self.content[index], np.uint8) for index in block.rows]),
            "features": np.stack(list(block.rows.values())),
        }
        with self.cache.locked():
            stored = self.cache.read(block_name(number), *ARRAYS)
            if stored is not None:
                new_images = {(index, self.content[index]) for index in block.rows}
                others = []
                for row, (index, digest) in enumerate(zip(stored["index"], stored["digest"], strict=True)):
                    if (int(index), digest.tobytes()) not in new_images:
                        others.append(row)
                others = others[-(MOST_ROWS - len(block.rows)) :]
                for name in ARRAYS:
                    new[name] = np.concatenate([stored[name][others], new[name]])
            self.cache.write(block_name(number), **new)


def store_name(cfg: CfgNode, dataset: Dataset) -> str:
    """Names the images whose features are kept in the same files, so that a file holds few rows that a run does not
    need. Two folders may have the same name: rows are found by digest."""
    name = run_name(type(dataset).__name__, dataset.root, dataset.corruption, dataset.severity)
    return f"{cfg.DATASET.NAME} {name}"


def block_name(number: int) -> str:
    """The name of a block's file: the first of its positions."""
    return f"{number * BLOCK:07d}"
