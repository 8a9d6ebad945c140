"""Images that several runs have in common, and clusters of them, found by their identity."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..functional.arrays import Array
from .measure import Measured


@dataclass(frozen=True)
class SharedImages:
    """The predictions of two methods on the images of one data set that all their runs have.

    Attributes:
        first: Confidence and correctness of the first method, (N, S₁) each.
        second: The same of the second method, (N, S₂) each.
        images: Identities, (N,).
    """

    first: tuple[Array, Array]
    second: tuple[Array, Array]
    images: Array

    @property
    def count(self) -> int:
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
        """The cluster of each of some of these images, (M,)."""
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
    images = []  # identities of each run's images
    for run in runs:
        if run.image is None:
            return None
        images.append(run.image)
    shared = images[0]
    for other in images[1:]:
        if other is not shared and not np.array_equal(other, shared):
            shared = np.intersect1d(shared, other)
    if len(shared) == 0:
        return None
    parts = []
    for run, run_images in zip(runs, images, strict=True):
        confidence = take_images(run.tuned.confidence, run_images, shared)
        correct = take_images(run.tuned.correct, run_images, shared)
        parts.append((confidence, correct))
    first_parts = parts[:len(first)]
    second_parts = parts[len(first):]
    return SharedImages(stack_seeds(first_parts), stack_seeds(second_parts), shared)


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
    order = np.argsort(images, kind="stable")
    positions = np.searchsorted(images[order], wanted)
    return values[order[positions]]


def stack_seeds(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Confidence and correctness of several seeds, (N, S) each."""
    confidence = np.stack([part[0] for part in parts], axis=1)
    correct = np.stack([part[1] for part in parts], axis=1)
    return confidence, correct


def cluster_images(runs: Sequence[Measured]) -> ImageClusters:
    """The clusters of all images of a table.

    Two readers may state other groups of the same images, such as a table with patients and a
    folder without. Images are in one cluster if a chain of equal images and equal groups connects
    them.
    """
    # Runs on the same images share arrays
    statements: dict[tuple[int, int], tuple[Array, Array]] = {}
    for run in runs:
        if run.image is not None and run.cluster is not None:
            statements[id(run.image), id(run.cluster)] = (run.image, run.cluster)
    if not statements:
        return ImageClusters(np.array([], dtype="S16"), np.array([], dtype=np.int64))
    all_images = []
    all_clusters = []
    for image, cluster in statements.values():
        all_images.append(image)
        all_clusters.append(cluster)
    images, image_of = np.unique(np.concatenate(all_images), return_inverse=True)
    names, name_of = np.unique(np.concatenate(all_clusters), return_inverse=True)

    number = np.arange(len(names))
    while True:
        # Each image takes the lowest number of its clusters, then each cluster that of its images.
        of_image = np.full(len(images), len(names))
        np.minimum.at(of_image, image_of, number[name_of])
        lowest = number.copy()
        np.minimum.at(lowest, name_of, of_image[image_of])
        if np.array_equal(lowest, number):
            return ImageClusters(images, of_image)
        number = lowest


def have_same_images(first: Sequence[Measured], second: Sequence[Measured]) -> bool:
    """Whether all runs of two cells predicted the same images."""
    runs = [*first, *second]
    for run in runs[1:]:
        if run.image is None or runs[0].image is None:
            return run.n == runs[0].n
        if run.image is not runs[0].image and not np.array_equal(run.image, runs[0].image):
            return False
    return True
