"""Provides view features of the test images: encodes them, or reads them from the store on disk.

They depend neither on the prompt nor on the method, so all methods, λ and templates on the same
images share them. An image is known by the digest of its content and by its position in the split,
from which its random views are drawn.
"""
from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from yacs.config import CfgNode

from ...datasets.base import Dataset, run_name
from ...datasets.build import EvalData
from ...datasets.identity import ImageIdentity, hash_contents
from ...datasets.image_index import ImageIndex, read_stamp
from ...datasets.utils.errors import DataError
from ...datasets.utils.progress import progress_bar
from ...datasets.views import ViewMaker
from ...datasets.views.kernel_cache import compile_kernels
from ...datasets.views.loader import load_batches
from ..runs.dist import Distributed
from ..runs.record import RunRecord
from ..runs.run_dir import batched
from ..vlm.image_tower import encode_views
from ..vlm.numerics import DTYPES, is_gpu, pin
from ..vlm.prompted_clip import PromptedCLIP
from .cache import ArrayCache

logger = logging.getLogger(__name__)

# Positions of the split per file of the store: few files, and little is read for a single image.
BLOCK = 64
# Largest number of rows of a file. It has more than 64 rows when images were exchanged or several
# folders of one name share a store. Beyond the limit, those that were added first are dropped.
MOST_ROWS = 4 * BLOCK
ARRAYS = ("index", "digest", "features")  # arrays of a file: (n,), (n, 16) and (n, V, d)
ENCODE_AT_ONCE = 8  # images whose views are in memory together, besides those that are made ahead
# Bytes of blocks that stay in memory, for methods that read images in random order.
MEMORY = 1 << 30


@dataclass
class FeatureBatch:
    """The view features of some images."""

    index: list[int]  # positions in the split of the images that could be read
    views: Tensor  # (B, V, d), unit features on the model's device
    bad: dict[int, str]  # position -> why an image could not be read


@dataclass
class Block:
    """The features of a run's images at 64 successive positions of the split."""

    # Position -> features (V, d) in the type in which they are stored.
    rows: dict[int, np.ndarray] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)  # position -> why an image could not be read

    @property
    def size(self) -> int:
        """Size of the features in bytes."""
        return sum(row.nbytes for row in self.rows.values())


class BlockFiles:
    """The files of a store. Each has the features of images at 64 successive positions, by digest.

    Different runs fill the same files, so a file may hold images of other runs, or other images at
    the same positions.

    Attributes:
        cache: The arrays on disk.
        content: The digest of each image of the run by its position.
    """

    def __init__(self, cache: ArrayCache, content: Mapping[int, bytes]) -> None:
        self.cache = cache
        self.content = content

    def stored_images(self, number: int) -> set[tuple[int, bytes]]:
        """Position and digest of the images in a block's file."""
        index = self.cache.read_array(block_name(number), "index")
        digest = self.cache.read_array(block_name(number), "digest")
        if index is None or digest is None or len(index) != len(digest):
            return set()
        return {(int(position), row.tobytes()) for position, row in zip(index, digest, strict=True)}

    def read(self, number: int) -> Block:
        """The run's images in a block's file: those at their positions with their digests."""
        block = Block()
        arrays = self.cache.read(block_name(number), *ARRAYS)
        if arrays is None:
            return block
        for row, index in enumerate(arrays["index"].tolist()):
            if self.content.get(index) == arrays["digest"][row].tobytes():
                # A copy of the row, so that the rest of the file does not stay in memory.
                block.rows[index] = arrays["features"][row].copy()
        return block

    def add(self, number: int, block: Block) -> None:
        """Adds images to a block's file. Images of other processes in it stay.

        Args:
            number: Number of the block.
            block: The images to add.
        """
        if not block.rows:
            return
        digests = [np.frombuffer(self.content[index], np.uint8) for index in block.rows]
        rows: dict[str, np.ndarray] = {
            "index": np.array(list(block.rows), np.int64),
            "digest": np.stack(digests),
            "features": np.stack(list(block.rows.values())),
        }
        with self.cache.locked():
            stored = self.cache.read(block_name(number), *ARRAYS)
            if stored is not None:
                others = self.other_rows(block, stored["index"], stored["digest"])
                others = others[-(MOST_ROWS - len(block.rows)) :]  # the last to be added
                for name in ARRAYS:
                    rows[name] = np.concatenate([stored[name][others], rows[name]])
            self.cache.write(block_name(number), **rows)

    def other_rows(self, block: Block, index: np.ndarray, digest: np.ndarray) -> list[int]:
        """Returns the rows of a file that are not of the block's images.

        Args:
            block: The images that will be stored.
            index: Position of each image in the file, (n,).
            digest: Digest of each image in the file, (n, 16).
        """
        rows = []
        for row, position in enumerate(index.tolist()):
            if position not in block.rows or self.content[position] != digest[row].tobytes():
                rows.append(row)
        return rows


class ViewStore:
    """Features of several views of each image, addressed by the image's position in the split."""

    def __init__(
        self, cfg: CfgNode, record: RunRecord, data: EvalData, identity: ImageIdentity,
        clip: PromptedCLIP,
    ) -> None:
        """
        Args:
            cfg: The settings, for threads, unreadable images and the folder of the store, which is
                CACHE.DIR; "" = none.
            record: The record of the run. The features depend on its views, weights, precision,
                device and seed.
            data: The images of the run.
            identity: The content hashes of these images.
            clip: The model. Its backbone encodes as many views at once as its budget allows.
        """
        self.num_views = int(record.views["count"])
        self.precision = str(record.numerics["precision"])
        # Features are rounded to this type without a store too, so that a store changes nothing.
        self.dtype = stored_type(self.precision)
        augmix = bool(record.views.get("augmix"))
        self.backbone = clip.backbone
        self.budget = clip.budget
        pixels = self.backbone.pixels
        self.maker = ViewMaker.of(self.num_views, pixels, augmix, record.seed)
        self.data = data
        self.workers = cfg.DATALOADER.NUM_WORKERS
        self.skips_bad = cfg.DATALOADER.ON_BAD_IMAGE == "skip"

        self.source = identity.source
        contents = [row.tobytes() for row in identity.contents]
        self.content = dict(zip(identity.indices, contents, strict=True))
        self.stamp = dict(zip(identity.indices, identity.stamps, strict=True))
        # Positions of the run's images by number of the block.
        self.positions: dict[int, list[int]] = defaultdict(list)
        for index in sorted(identity.indices):
            self.positions[index // BLOCK].append(index)
        self.recent: OrderedDict[int, Block] = OrderedDict()  # last used last
        self.files: BlockFiles | None = None
        if cfg.CACHE.DIR:
            cache = ArrayCache(cfg.CACHE.DIR, "views", {
                "record": record.key("view features"),
                **self.maker.key(),
                **pixels.non_default(),
                "images": store_name(cfg, data.dataset),
            })
            self.files = BlockFiles(cache, self.content)

    def batches(self, wanted: Sequence[Sequence[int]]) -> Iterator[FeatureBatch]:
        """Yields the features of each list of positions, in the given order."""
        files = self.files
        if files is None:
            return self.encode(wanted)
        return (self.read(files, indices) for indices in wanted)

    def encode(self, wanted: Sequence[Sequence[int]]) -> Iterator[FeatureBatch]:
        """Reads images, makes views and encodes them. A run that skips no image stops at a bad one.

        On a CPU one pool of threads does all of it, image by image, so that features do not depend
        on the batch. For a GPU the threads make views ahead.
        """
        device = self.backbone.device
        on_cpu = not is_gpu(device)
        make = self.make_views
        if on_cpu:
            make = self.encode_image
        compile_kernels()  # here and not in a thread, where Ctrl-C would wait
        # In pieces: the views of a batch for a GPU would take a gigabyte.
        pieces = []
        for indices in wanted:
            pieces += batched(indices, ENCODE_AT_ONCE)
        loaded = load_batches(self.data.read_image, make, pieces, self.workers)
        for indices in wanted:
            batch = FeatureBatch([], torch.empty(0), {})
            # The first is empty, for a batch of which no image can be read.
            features = [torch.empty(0, self.num_views, self.backbone.features, device=device)]
            for _ in batched(indices, ENCODE_AT_ONCE):
                piece = next(loaded)
                for index in piece.bad:
                    # An image that is broken because it is just being replaced is not skipped.
                    self.check_unchanged(index)
                batch.index.extend(piece.index)
                batch.bad.update(piece.bad)
                if piece.made and on_cpu:
                    features.append(torch.stack(piece.made))
                elif piece.made:
                    features.append(encode_views(
                        self.backbone, piece.made, self.precision, normalised=False,
                        budget=self.budget))
            if batch.bad and not self.skips_bad:
                reason = next(iter(batch.bad.values()))
                raise DataError(f"{reason}; fix the file, or skip such images: "
                                f"DATALOADER.ON_BAD_IMAGE skip")
            # Rounded as if they had been stored.
            batch.views = torch.cat(features).to(self.dtype).float()
            yield batch

    def encode_image(self, image: Image.Image, index: int) -> Tensor:
        """Encodes one image, in a thread of the pool. Returns unit features (V, d).

        Args:
            image: The picture.
            index: Position of the image in the split, from which its random views are drawn.
        """
        self.check_unchanged(index)
        views = self.maker(image, index)[None]  # (1, V, 3, S, S)
        features = encode_views(
            self.backbone, views, self.precision, normalised=False, budget=self.budget,
            parallel=False)
        return features[0]

    def make_views(self, image: Image.Image, index: int) -> Tensor:
        """Makes views (V, 3, S, S); for CUDA in pinned memory, from which a copy does not block.

        Args:
            image: The picture.
            index: Position of the image in the split, from which its random views are drawn.
        """
        self.check_unchanged(index)
        views = self.maker(image, index)
        return pin(views, self.backbone.device)

    def check_unchanged(self, index: int) -> None:
        """Refuses an image that is no longer the one whose digest the run has.

        It is called after the image was read: a file that is replaced during that is noticed as
        well.
        """
        path = self.data.items[index].impath
        stamp = self.stamp[index]
        if stamp is not None and read_stamp(path) == stamp:
            return
        # Another time or size, or not a file. The content decides: the file may only be touched.
        item = self.data.items[index]
        (now,) = hash_contents(self.data.dataset, [item], ImageIndex(None), self.source)
        if now.digest != self.content[index]:
            raise DataError(f"{path} has changed since this run began: start the run again when "
                            f"nothing writes to the images any more")

    def fill(self, files: BlockFiles, dist: Distributed) -> None:
        """Encodes what the files lack.

        Each process takes some of the blocks, and all wait for each other, so that afterwards each
        can read every image.

        Args:
            files: The files of this store.
            dist: The processes of the run.
        """
        lacking = []
        if dist.is_main:
            lacking = self.find_lacking(files)
        lacking = dist.broadcast(lacking)
        if lacking and dist.is_main:
            images = sum(len(indices) for indices in lacking)
            numbers = images * self.num_views * self.backbone.features
            files.cache.reserve(numbers * self.dtype.itemsize, "view features")

        share = lacking[dist.rank :: dist.world]
        # Pieces of all blocks together, so that the threads never wait for a file.
        pieces: list[Sequence[int]] = []
        for indices in share:
            pieces += batched(indices, ENCODE_AT_ONCE)
        encoded = self.encode(pieces)
        total = sum(len(indices) for indices in share)
        is_shown = bool(share) and dist.is_main
        with progress_bar(total, "view features", "img", shown=is_shown) as bar:
            for indices in share:
                batches = [next(encoded) for _ in batched(indices, ENCODE_AT_ONCE)]
                files.add(indices[0] // BLOCK, self.as_block(batches))
                bar.update(len(indices))
        dist.barrier()

    def find_lacking(self, files: BlockFiles) -> list[list[int]]:
        """Finds the positions of the images that the store does not have, block by block."""
        lacking = []
        for number, indices in self.positions.items():
            stored = files.stored_images(number)
            absent = [index for index in indices if (index, self.content[index]) not in stored]
            if absent:
                lacking.append(absent)
        return lacking

    def read(self, files: BlockFiles, indices: Sequence[int]) -> FeatureBatch:
        """Reads the features of images from the store.

        Args:
            files: The store.
            indices: Positions of the images in the split.
        """
        readable = []
        rows = []
        bad = {}
        for index in indices:
            block = self.block(files, index // BLOCK)
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

    def block(self, files: BlockFiles, number: int) -> Block:
        """Returns a block from memory or from disk.

        Features that were removed or damaged since are encoded again. So are images that could not
        be read: the store does not remember these, because they may be repaired in the meantime.

        Args:
            files: The store.
            number: Number of the block: the positions of its images divided by BLOCK.
        """
        if number not in self.recent:
            block = files.read(number)
            lacking = [index for index in self.positions[number] if index not in block.rows]
            if lacking:
                encoded = self.as_block(list(self.encode(batched(lacking, ENCODE_AT_ONCE))))
                files.add(number, encoded)
                block = Block({**block.rows, **encoded.rows}, encoded.bad)
            self.recent[number] = block
        self.recent.move_to_end(number)
        # The block that is wanted now stays, however large it is.
        while len(self.recent) > 1 and sum(block.size for block in self.recent.values()) > MEMORY:
            self.recent.popitem(last=False)
        return self.recent[number]

    def as_block(self, batches: Sequence[FeatureBatch]) -> Block:
        """Returns encoded images in the form in which they are stored."""
        block = Block()
        for batch in batches:
            features = batch.views.to(self.dtype).cpu().numpy()
            block.rows.update(zip(batch.index, features, strict=True))
            block.bad.update(batch.bad)
        return block


def stored_type(precision: str) -> torch.dtype:
    """The type in which features are stored, and to which they are rounded everywhere.

    Args:
        precision: Precision of the towers: fp32, fp16 or bf16.
    """
    return DTYPES["fp32" if precision == "fp32" else "fp16"]


def store_name(cfg: CfgNode, dataset: Dataset) -> str:
    """Returns a name for the images whose features are kept in the same files.

    With a name for each data set, a file holds few rows that a run does not need. Two folders may
    have the same name, because rows are found by digest.
    """
    name = run_name(type(dataset).__name__, dataset.root, dataset.corruption, dataset.severity)
    return f"{cfg.DATASET.NAME} {name}"


def block_name(number: int) -> str:
    """The name of a block's file: the first of its positions."""
    return f"{number * BLOCK:07d}"
