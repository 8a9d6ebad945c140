"""Images that several runs have in common, and clusters of them, found by their identity."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...datasets.identity import content_of
from ..functional.arrays import Array
from .measure import Measured
from .metrics import Top


@dataclass(frozen=True)
class SharedImages:
    """The predictions of two methods on the images of one data set that all their runs have.

    Attributes:
        first: The top classes of the first method, (N, S₁) each for S₁ seeds.
        second: The same for the second method, (N, S₂) each.
        images: Identities, (N,).
    """

    first: Top
    second: Top
    images: Array

    @property
    def count(self) -> int:
        """Number N of images."""
        return len(self.images)


@dataclass(frozen=True)
class ImageClusters:
    """Which images are not independent of each other, as any run of a table states it.

    Attributes:
        images: Identities in ascending order, (N,).
        clusters: A number for each image, equal for images of one cluster, (N,).
    """

    images: Array
    clusters: Array

    def of(self, images: Array) -> Array:
        """The cluster of each image, (M,), from identities (M,) that are among `self.images`."""
        return self.clusters[np.searchsorted(self.images, images)]


def share_images(first: Sequence[Measured], second: Sequence[Measured]) -> SharedImages | None:
    """The predictions of two cells on the images that all their runs have.

    Args:
        first: Runs of one method, one per seed.
        second: Runs of another method.

    Returns:
        None if the identity of images is not known or they share none.
    """
    runs = [*first, *second]
    images_of_runs = []
    for run in runs:
        if run.image is None:
            return None
        images_of_runs.append(run.image)
    shared = images_of_runs[0]
    for images in images_of_runs[1:]:
        # Runs on the same images share the array: nothing to compare.
        if images is not shared and not np.array_equal(images, shared):
            shared = np.intersect1d(shared, images)
    if len(shared) > 0 and shared is not images_of_runs[0]:
        shared = without_moved_copies(shared, images_of_runs, [run.index for run in runs])
    if len(shared) == 0:
        return None
    tops = []
    for run, images in zip(runs, images_of_runs, strict=True):
        confidence = take_images(run.tuned.confidence, images, shared)
        correct = take_images(run.tuned.correct, images, shared)
        tops.append(Top(confidence, correct))
    return SharedImages(stack_seeds(tops[:len(first)]), stack_seeds(tops[len(first):]), shared)


def without_moved_copies(
    shared: Array, images_of_runs: Sequence[Array], indices: Sequence[Array],
) -> Array:
    """Without copies of a picture that have other positions in one of the runs.

    Copies are numbered in the order of the split. Where a run could not read the first one, the
    second has its number: the same number is then not the same file, whose views and label may
    differ.

    Args:
        shared: Identities of images that all runs have, (N,).
        images_of_runs: Identities of all images of each run.
        indices: Their positions in the split.

    Returns:
        Identities (M,).
    """
    copied_pictures = []
    positions = []
    for images, index in zip(images_of_runs, indices, strict=True):
        pictures, counts = np.unique(pictures_of(images), return_counts=True)
        copied_pictures.append(pictures[counts > 1])
        positions.append(take_images(index, images, shared))
    is_copied = np.isin(pictures_of(shared), np.concatenate(copied_pictures))
    is_moved = np.zeros(len(shared), dtype=bool)
    for position in positions[1:]:
        is_moved |= position != positions[0]
    return shared[~(is_copied & is_moved)]


def pictures_of(images: Array) -> Array:
    """What the pictures of identities (N,) of 16 bytes are, whichever copies they are: (N,)."""
    rows = np.ascontiguousarray(images).view(np.uint8).reshape(len(images), -1)
    return content_of(rows)


def take_images(values: Array, images: Array, wanted: Array) -> Array:
    """The values of some images, in the order of these.

    Args:
        values: One for each image of a run, (N,).
        images: Identities of the run's images, (N,).
        wanted: Identities of some of them, (M,).

    Returns:
        (M,).
    """
    if images is wanted or np.array_equal(images, wanted):
        return values
    # A binary search in the sorted identities; each image has one of its own.
    order = np.argsort(images, kind="stable")
    positions = np.searchsorted(images[order], wanted)
    return values[order[positions]]


def stack_seeds(tops: Sequence[Top]) -> Top:
    """The top classes of S seeds, (N, S) each, from those of each seed, (N,) each."""
    confidence = np.stack([top.confidence for top in tops], axis=1)
    correct = np.stack([top.correct for top in tops], axis=1)
    return Top(confidence, correct)


def cluster_images(runs: Sequence[Measured]) -> ImageClusters:
    """The clusters of all images of a table.

    Two readers may state other groups of the same images, such as a table with patients and a
    folder without. Images are in one cluster if a chain of equal images and equal groups connects
    them.
    """
    # Runs on the same images share the arrays, so that one statement stands for all of them.
    all_images: list[Array] = []
    all_clusters: list[Array] = []
    for run in runs:
        if run.image is None or run.cluster is None:
            continue
        is_known = False
        for image, cluster in zip(all_images, all_clusters, strict=True):
            if run.image is image and run.cluster is cluster:
                is_known = True
        if not is_known:
            all_images.append(run.image)
            all_clusters.append(run.cluster)
    if not all_images:
        return ImageClusters(np.array([], dtype="S16"), np.array([], dtype=np.int64))
    # Statement i says that image images[image_of[i]] is in group groups[group_of[i]].
    images, image_of = np.unique(np.concatenate(all_images), return_inverse=True)
    groups, group_of = np.unique(np.concatenate(all_clusters), return_inverse=True)

    # Connected images and groups get one number: the lowest of these groups.
    number_of_group = np.arange(len(groups))
    while True:
        # Each image takes the lowest number of its groups, then each group that of its images.
        number_of_image = np.full(len(images), len(groups))
        np.minimum.at(number_of_image, image_of, number_of_group[group_of])
        lowest = number_of_group.copy()
        np.minimum.at(lowest, group_of, number_of_image[image_of])
        if np.array_equal(lowest, number_of_group):
            return ImageClusters(images, number_of_image)
        number_of_group = lowest


def have_same_images(first: Sequence[Measured], second: Sequence[Measured]) -> bool:
    """Whether all runs of two cells predicted the same images, in the same order.

    If the identity of images is not known, it is whether they predicted equally many.
    """
    runs = [*first, *second]
    for run in runs[1:]:
        if run.image is None or runs[0].image is None:
            return run.n == runs[0].n
        if run.image is not runs[0].image and not np.array_equal(run.image, runs[0].image):
            return False
    return True
