"""Identifies the images of a run by content, wherever they lie and whatever they are called."""
from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .base import Dataset, Datum
from .image_index import DIGEST_BYTES, ImageHash, ImageIndex, Stamp, hash_text, read_stamp
from .utils.errors import DataError
from .utils.source import is_replaced, parameters_of, plugin_source

# The last bytes of an image's identity hold which copy of the picture it is, the first ones what
# the picture is. 96 bits tell pictures apart: among a million, two agree with a chance of 1e-17.
CONTENT_BYTES = 12


@dataclass(frozen=True, eq=False)
class ImageIdentity:
    """The identity of N images of a split.

    Attributes:
        indices: Positions in the split, N numbers.
        digests: Identity of each image, unique in the split, uint8 (N, 16). It is the digest of the
            image's content. Copies of a picture differ in the last bytes, see `contents`.
        contents: Digest of each image's content, uint8 (N, 16): equal for copies of a picture.
        clusters: A digest that is equal for images that are not independent of each other, uint8
            (N, 16). It is that of the group (such as a patient), or of the uncorrupted image, or of
            the content.
        stamps: Size and times of each image's file when its digest was computed; None for an image
            that is not a file or cannot be read.
        images: Hash of the set of (content, label), whatever the order.
        listing: Hash of the list of (index, content, label) in its order.
        groups: Hash of the set of (content, group), such as patients; "" if no image has a group.
        source: Hash of the plugin's code that changes what files hold; "" if there is none.
        names: Path of each image relative to the data root.
        missing: Paths of the files that are not there.
    """

    indices: Sequence[int]
    digests: np.ndarray
    contents: np.ndarray
    clusters: np.ndarray
    stamps: Sequence[Stamp | None]
    images: str
    listing: str
    groups: str
    source: str
    names: Sequence[str]
    missing: Sequence[str]

    def fingerprint(self, classnames: Sequence[str]) -> str:
        """Returns one hash of images, labels, their order and class names, 16 hexadecimal digits.
        """
        return hash_text(self.images, self.listing, *classnames).hex()[:16]


def identify(
    dataset: Dataset, items: Sequence[Datum], indices: Sequence[int], index: ImageIndex,
) -> ImageIdentity:
    """Finds the identity of images. Files whose digest is not in the index are read.

    A file that is missing or cannot be read gets an identity too, which depends on its path and on
    the error: whether that stops a run is decided elsewhere.

    Args:
        dataset: The reader of the images.
        items: All images of the split.
        indices: Positions in `items` of the images of the run, each at most once.
        index: The index of the digests of files that are known from before.
    """
    listed = [items[position] for position in indices]
    source = source_of_images(dataset)
    hashes = hash_contents(dataset, listed, index, source)
    missing = []
    for item, image in zip(listed, hashes, strict=True):
        if image.is_missing:
            missing.append(item.impath)
    if len(missing) == len(listed) and source:
        missing = []  # a plugin's reader draws its images: their paths are only names

    labels = [item.label for item in listed]
    contents = [image.digest for image in hashes]
    originals = [dataset.uncorrupted_name(item) for item in listed]
    clusters = []
    for item, original, content in zip(listed, originals, contents, strict=True):
        clusters.append(cluster_of(type(dataset).__name__, item.group, original, content))

    # Three hashes: of the images as a set, of the list in its order, and of the groups. Sorting
    # makes a hash independent of the order.
    rows = sorted(zip(contents, labels, strict=True))
    set_hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for content, label in rows:
        set_hash.update(content + f" {label}\n".encode())
    list_hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for position, content, label in zip(indices, contents, labels, strict=True):
        list_hash.update(content + f" {position} {label}\n".encode())

    groups = ""
    if any(item.group for item in listed):
        group_hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for content, cluster in sorted(zip(contents, clusters, strict=True)):
            group_hash.update(content + cluster)
        groups = group_hash.hexdigest()

    content_at = dict(zip(indices, contents, strict=True))
    content_at.update(hash_possible_copies(dataset, items, indices, hashes, index, source))
    digest_at = number_copies(content_at)
    digests = [digest_at[position] for position in indices]
    stamps = [image.stamp for image in hashes]
    names = [image_name(dataset, item) for item in listed]

    return ImageIdentity(
        indices=tuple(indices),
        digests=as_rows(digests),
        contents=as_rows(contents),
        clusters=as_rows(clusters),
        stamps=stamps,
        images=set_hash.hexdigest(),
        listing=list_hash.hexdigest(),
        groups=groups,
        source=source,
        names=names,
        missing=missing,
    )


def fingerprint(dataset: Dataset, items: Sequence[Datum]) -> str:
    """Returns one hash of images, labels, their order and class names.

    Args:
        dataset: The reader of the images.
        items: The images.

    Raises:
        DataError: If files of images are missing.
    """
    identity = identify(dataset, items, range(len(items)), ImageIndex())
    if identity.missing:
        dataset.check_files(items)
    return identity.fingerprint(dataset.classnames)


def content_of(digests: np.ndarray) -> np.ndarray:
    """Returns the part of identities that says which picture it is, without the copy's number.

    Args:
        digests: Identities of images, uint8 (N, 16), as `ImageIdentity.digests` or predictions.npz
            have them.

    Returns:
        Bytes (N,) that are equal for equal pictures.
    """
    first = np.ascontiguousarray(digests[:, :CONTENT_BYTES])
    return first.view(f"V{CONTENT_BYTES}").reshape(-1)


def hash_contents(
    dataset: Dataset, items: Sequence[Datum], index: ImageIndex, source: str,
) -> list[ImageHash]:
    """The digest of what each image shows: of its file, and of a plugin's code that changes it.

    Args:
        dataset: The reader.
        items: The images.
        index: Digests of files that are known from before.
        source: What `source_of_images` has returned for the reader.
    """
    hashes = dataset.hash_images(items, index)
    if source:
        hashes = with_source(dataset, items, hashes, source)
    return hashes


def hash_possible_copies(
    dataset: Dataset, items: Sequence[Datum], indices: Sequence[int], hashes: Sequence[ImageHash],
    index: ImageIndex, source: str,
) -> dict[int, bytes]:
    """Hashes images that come before those of a run in the split and may be copies of them.

    Copies are numbered within the split, so that the second copy of a picture has the same identity
    in a pilot that has no other as in the full run. Files of other sizes are no copies, and are not
    read. Drawn images have no size: all of them are compared.

    Args:
        dataset: The reader of the images.
        items: All images of the split.
        indices: Positions in `items` of the images of the run.
        hashes: Digests of the images of the run.
        index: Digests of files that are known from before.
        source: What `source_of_images` has returned for the reader.

    Returns:
        Contents by position in the split.
    """
    in_run = set(indices)
    # A copy after the last image of the run has a higher number than all of them: it changes none.
    earlier = [at for at in range(max(indices, default=0)) if at not in in_run]
    sizes = {image.stamp.size for image in hashes if image.stamp is not None}
    positions = []
    for position in earlier:
        if sizes:
            stamp = read_stamp(items[position].impath)
            if stamp is not None and stamp.size not in sizes:
                continue
        positions.append(position)
    if not positions:
        return {}
    others = hash_contents(dataset, [items[position] for position in positions], index, source)
    return {position: image.digest for position, image in zip(positions, others, strict=True)}


def number_copies(content_at: Mapping[int, bytes]) -> dict[int, bytes]:
    """Makes identities of digests, so that copies of one picture differ.

    The copy that comes first in the split has the picture's own digest. In the identities of the
    others the last bytes hold the number of the copy.

    Args:
        content_at: Digests of contents by position in the split.

    Returns:
        Identities by position in the split.
    """
    digests = {}
    copies: Counter[bytes] = Counter()
    for position in sorted(content_at):
        content = content_at[position]
        digests[position] = with_number(content, copies[content])
        copies[content] += 1
    return digests


def with_number(content: bytes, number: int) -> bytes:
    """Returns the identity of a copy of a picture.

    Args:
        content: Digest of the picture, 16 bytes.
        number: Number of the copy, from 0. The identity of the first is the digest itself.
    """
    # XOR with the digest's own last bytes leaves the first copy, number 0, as it is.
    last = int.from_bytes(content[CONTENT_BYTES:]) ^ number
    return content[:CONTENT_BYTES] + last.to_bytes(DIGEST_BYTES - CONTENT_BYTES)


def cluster_of(dataset: str, group: str, original: str, content: bytes) -> bytes:
    """Returns a digest that an image shares with those that are not independent of it.

    Args:
        dataset: Name of the reader's class. Groups of two data sets are different groups.
        group: Group of the image, such as the patient; "" = none.
        original: Name of the image that it is a corruption of; "" = none.
        content: Digest of the image's content.

    Returns:
        A digest of 16 bytes.
    """
    if group:
        return hash_text("group", dataset, group)
    if original:
        return hash_text("uncorrupted image", original)
    return content


def as_rows(digests: Sequence[bytes]) -> np.ndarray:
    """Digests as an array, uint8 (N, 16)."""
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)


def source_of_images(dataset: Dataset) -> str:
    """A hash of a plugin's source if its reader may change what its files hold; otherwise "".

    What such a reader was given, such as the strength of a filter, counts too.
    """
    reader = type(dataset)
    if "read_image" in vars(dataset) or is_replaced(reader, "read_image"):
        raise DataError(
            f"read_image was replaced on this {reader.__name__}, so nothing says what its images "
            f"are: derive a class from {reader.__name__} and define read_image there"
        )
    if reader.read_image is Dataset.read_image:
        return ""
    source = plugin_source([reader])
    parameters = parameters_of(dataset)
    if source and parameters:
        return hash_text(source, *parameters).hex()
    return source


def with_source(
    dataset: Dataset, items: Sequence[Datum], hashes: Sequence[ImageHash], source: str,
) -> list[ImageHash]:
    """Returns digests of images that a plugin's code makes.

    They depend on its source and on the file's bytes, or on the image's name where there is no
    file.

    Args:
        dataset: The reader of the images.
        items: The images.
        hashes: Digests of the images' files, as far as there are files.
        source: Hash of the plugin's source.
    """
    combined = []
    for item, image in zip(items, hashes, strict=True):
        content = image.digest.hex()
        if image.is_missing:
            content = image_name(dataset, item)
        digest = hash_text("made by a plugin", source, content)
        combined.append(ImageHash(digest, image.stamp, image.is_missing))
    return combined


def image_name(dataset: Dataset, item: Datum) -> str:
    """Returns the path of an image, relative to the data root if it is below it.

    Args:
        dataset: The reader of the image.
        item: The image.
    """
    relative = item.impath.removeprefix(f"{dataset.root}{os.sep}")
    return relative.replace(os.sep, "/")
