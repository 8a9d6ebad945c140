"""Pairs of methods on the images that both have: differences in calibration and accuracy, tested.

Images of several runs, and clusters of images, are matched by their identity.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ...datasets.identity import content_of
from ...datasets.utils.cli import counted
from ..functional import calibration as cal
from ..functional.arrays import Array
from ..functional.intervals import LEVEL
from ..functional.significance import CalibrationComparison, compare_calibration, holm, shaffer
from ..registry import method_info
from .grid import Column, Grid, Row, largest_of_each_family
from .grid_notes import failure_notes, seed_notes
from .measure import Measured
from .metrics import Top
from .table import Entry, RowBlock, Table, TableRow
from .words import images_fact

COLUMNS = (
    "Over-confidence, first", "Over-confidence, second", "Difference",
    "Debiased RMS error, first", "Debiased RMS error, second", "Difference of squares",
    "p, calibration", "Accuracy difference", "p, accuracy", "Images", "Clusters",
)
# In LaTeX, so that the labels are not wider than the numbers below them.
SHORT_COLUMNS = (
    "Over 1", "Over 2", "Δ over", "RMS 1", "RMS 2", "Δ RMS²", "p cal", "Δ acc", "p acc", "Images",
    "Clusters",
)
SHORT_COLUMNS_FACT = (
    "1 and 2: first and second method, Δ: difference, over: over-confidence (points), RMS: "
    "debiased RMS error (%), RMS²: its square (squared points), cal: calibration, acc: accuracy"
)
COLUMN_NOTE = (
    "Differences are second − first, with 95 % intervals for each pair alone. Over-confidence: "
    "mean confidence − accuracy, in points. Debiased RMS error in percent: √D, where D is the mean "
    "squared gap between confidence and accuracy of the bins without what chance adds. Difference "
    "of squares: of D, in squared points; negative means that the second is better calibrated. p, "
    "calibration: whether |over-confidence| or D differs."
)
ASSUMPTIONS = (
    "Assumptions: images are independent draws from their data set, but for those of one cluster "
    "(all seeds of an image, its corruptions, its patient). Data sets are fixed and have equal "
    "weight: nothing is claimed about others. Seeds are those that were run; an effect that all "
    "images of a seed share, such as a prompt trained per seed, is not in the variance. Methods "
    "that depend on the order of the images are tested for this order. Bins are fixed in advance. "
    "Below 100 images p is approximate."
)
SEEDS_NOTE = (
    "A pair is compared on the seeds that both methods have; if they share none, or one is "
    "zero-shot, on all seeds of each."
)


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


@dataclass(frozen=True)
class Untested:
    """Two methods on the images that both have, in fractions, before p-values are corrected.

    Attributes:
        first: One row.
        second: The other row.
        comparison: Differences, second − first, with uncorrected p-values.
        over: Over-confidence of both.
        errors: Debiased RMS error of both.
        seeds: Number of seeds of both, the smaller one.
        is_common: Whether these are the images that all rows of the table have.
    """

    first: Row
    second: Row
    comparison: CalibrationComparison
    over: tuple[float, float]
    errors: tuple[float, float]
    seeds: int
    is_common: bool


@dataclass(frozen=True)
class Pair(Untested):
    """The same with the p-values of its family of tests.

    Attributes:
        p: p-value of calibration, corrected for the family of tests.
        accuracy_p: p-value of accuracy, corrected for the family of tests.
        family: How p was corrected, in words.
    """

    p: float
    accuracy_p: float
    family: str

    @property
    def is_significant(self) -> bool:
        """Whether calibration differs."""
        return self.p < LEVEL

    @property
    def better(self) -> Row | None:
        """The row that is better calibrated; None if neither is shown to be."""
        if not self.is_significant or self.comparison.better == 0:
            return None
        return self.second if self.comparison.better < 0 else self.first

    def has(self, row: Row) -> bool:
        """Whether it compares this row with another."""
        return row is self.first or row is self.second


@dataclass(frozen=True)
class KnownSets:
    """Images of some data sets with their clusters.

    Attributes:
        images: Identities of the images of each data set, (N,) each.
        clusters: Clusters of the images of each data set; None if all are independent.
    """

    images: Sequence[Array]
    clusters: list[Array] | None

    def are_of(self, images: Sequence[Array]) -> bool:
        """Whether these are the sets of some arrays. Runs on the same images share the array."""
        if len(images) != len(self.images):
            return False
        for known, other in zip(self.images, images, strict=True):
            if known is not other:
                return False
        return True


class PairTests:
    """Compares rows of a table. Comparisons are stored, because families of tests share them."""

    def __init__(self, grid: Grid) -> None:
        """
        Args:
            grid: The table. Rows with too many failed images are not compared.
        """
        self.grid = grid
        self.common = grid.common_columns()
        self.compared: dict[tuple[Row, Row], Untested | None] = {}
        self.image_clusters = cluster_images(grid.measured)
        self.known_sets: list[KnownSets] = []
        self.rows = []
        rows_on_common = grid.rows_on(self.common) if self.common else []
        for row in grid.rows:
            # Failed images elsewhere, such as in a pilot, are no reason against a row.
            columns = self.common if row in rows_on_common else grid.columns
            if grid.is_ranked(row, columns):
                self.rows.append(row)

    def all_pairs(self) -> list[Pair]:
        """Every pair of rows, corrected by Shaffer's method, or by Holm's if a pair is missing."""
        untested = []
        for first, second in combinations(self.rows, 2):
            pair = self.compare(first, second)
            if pair is not None:
                untested.append(pair)
        # Shaffer's method counts on the logic between the pairs, so all must be there and be on
        # the same images.
        count = len(self.rows)
        are_complete = len(untested) == count * (count - 1) // 2
        if are_complete and all(pair.is_common for pair in untested):
            return correct(untested, "Shaffer")
        return correct(untested, "Holm")

    def against(self, baselines: Mapping[Row, Row]) -> list[Pair]:
        """Rows against their baselines, corrected by Holm's method.

        Args:
            baselines: For each row the row that it is compared with.
        """
        untested = []
        for row, baseline in baselines.items():
            pair = self.compare(baseline, row)
            if pair is not None:
                untested.append(pair)
        return correct(untested, "Holm")

    def compare(self, first: Row, second: Row) -> Untested | None:
        """Tests two rows on the images that both have.

        Returns:
            Differences second − first with uncorrected p-values; None if they share no images.
        """
        if (first, second) in self.compared:
            return self.compared[first, second]
        sets, is_common = self.shared_sets(first, second)
        pair = None
        if sets:
            pair = self.compare_sets(first, second, sets, is_common)
        self.compared[first, second] = pair
        return pair

    def compare_sets(
        self, first: Row, second: Row, sets: Sequence[SharedImages], is_common: bool,
    ) -> Untested:
        """Tests two rows on the images of some data sets.

        Args:
            is_common: Whether these are the images that all rows have.
        """
        bins = self.grid.bins
        first_parts = []
        second_parts = []
        seeds = []
        for shared in sets:
            first_parts.append(shared.first)
            second_parts.append(shared.second)
            seeds += [shared.first.confidence.shape[1], shared.second.confidence.shape[1]]
        clusters = self.clusters_of(sets)
        return Untested(
            first=first,
            second=second,
            comparison=compare_calibration(first_parts, second_parts, clusters, bins),
            over=(mean_over_confidence(first_parts), mean_over_confidence(second_parts)),
            errors=(mean_rms_error(first_parts, bins), mean_rms_error(second_parts, bins)),
            seeds=min(seeds),
            is_common=is_common,
        )

    def clusters_of(self, sets: Sequence[SharedImages]) -> list[Array] | None:
        """The clusters of the images of some data sets, (N,) each; None if images are independent,
        within a data set and across data sets."""
        images = [shared.images for shared in sets]
        for known in self.known_sets:
            if known.are_of(images):
                return known.clusters
        clusters = [self.image_clusters.of(of_set) for of_set in images]
        joined = np.concatenate(clusters)
        are_independent = len(np.unique(joined)) == len(joined)
        known_set = KnownSets(images, None if are_independent else clusters)
        self.known_sets.append(known_set)
        return known_set.clusters

    def shared_sets(self, first: Row, second: Row) -> tuple[list[SharedImages], bool]:
        """The images that two rows share, by data set, and whether all rows of the table have them.

        Rows that have the common columns are compared on these, other rows on all columns that both
        have. If there are none, they are compared on the images that a column of one shares with a
        column of the other, such as those of a pilot and of a full run.

        Returns:
            The predictions of both rows on each data set, [] if they share no images; and whether
            these are the images that all rows have.
        """
        cells = self.grid.cells
        rows_on_common = self.grid.rows_on(self.common) if self.common else []
        is_common = first in rows_on_common and second in rows_on_common
        if is_common:
            columns = self.common
        else:
            columns = []
            for column in self.grid.columns_with([first, second]):
                if self.grid.is_ranked(first, [column]) and self.grid.is_ranked(second, [column]):
                    columns.append(column)
            columns = largest_of_each_family(columns)
        matches = list(zip(columns, columns, strict=True))
        if not matches:
            matches = self.overlapping_columns(first, second)
        sets = []
        for first_column, second_column in matches:
            shared = share_images(
                *matched_seeds(cells[first, first_column], cells[second, second_column])
            )
            if shared is not None:
                sets.append(shared)
        return sets, is_common and len(sets) == len(self.common)

    def overlapping_columns(self, first: Row, second: Row) -> list[tuple[Column, Column]]:
        """Pairs of different columns of two rows that share images.

        The largest overlaps come first, and each column is in one pair only.

        Args:
            first: The row whose columns are first in a pair.
            second: The row whose columns are second.
        """
        overlaps = []
        for first_column in self.grid.columns_with([first]):
            if not self.grid.is_ranked(first, [first_column]):
                continue
            for second_column in self.grid.columns_with([second]):
                if not self.grid.is_ranked(second, [second_column]):
                    continue
                # With other classes the same image is another task.
                if first_column.record.data["classes"] != second_column.record.data["classes"]:
                    continue
                ours = self.grid.cells[first, first_column]
                theirs = self.grid.cells[second, second_column]
                shared = share_images(ours[:1], theirs[:1])
                if shared is not None:
                    overlaps.append((shared.count, first_column, second_column))
        overlaps.sort(key=lambda overlap: -overlap[0])
        matches: list[tuple[Column, Column]] = []
        used: set[Column] = set()
        for _, first_column, second_column in overlaps:
            if first_column not in used and second_column not in used:
                matches.append((first_column, second_column))
                used |= {first_column, second_column}
        return matches


def matched_seeds(
    first: Sequence[Measured], second: Sequence[Measured],
) -> tuple[list[Measured], list[Measured]]:
    """The runs of two cells with the same seeds; all runs if one has no seeds or they share none.

    Zero-shot predictions do not depend on the seed, unless each seed has a prompt of its own.

    Args:
        first: The runs of one cell, one per seed.
        second: The same for the other cell.
    """
    seeds_of_first = {run.seed for run in first}
    seeds_of_second = {run.seed for run in second}
    shared = seeds_of_first & seeds_of_second
    if not shared or is_zero_shot_of_one_prompt(first) or is_zero_shot_of_one_prompt(second):
        return list(first), list(second)
    return with_seeds(first, shared), with_seeds(second, shared)


def with_seeds(cell: Sequence[Measured], seeds: set[int]) -> list[Measured]:
    """The runs of a cell that have one of these seeds."""
    return [run for run in cell if run.seed in seeds]


def is_zero_shot_of_one_prompt(cell: Sequence[Measured]) -> bool:
    """Whether a cell is zero-shot with one prompt for all seeds."""
    if not method_info(str(cell[0].record.method["trainer"])).zero_shot:
        return False
    prompts = {str(run.record.get("model.prompt.hash")) for run in cell}
    return len(prompts) == 1


def mean_over_confidence(parts: Sequence[tuple[Array, Array]]) -> float:
    """Mean over data sets of mean confidence − accuracy."""
    values = []
    for confidence, correct in parts:
        values.append(confidence.mean(dtype=np.float64) - correct.mean())
    return float(np.mean(values))


def mean_rms_error(parts: Sequence[tuple[Array, Array]], bins: int) -> float:
    """√ of the mean over data sets and seeds of the debiased squared calibration error.

    Args:
        parts: Confidence and correctness of each data set, (N, S) each for S seeds.

    Returns:
        A fraction.
    """
    by_set = []
    for confidence, correct in parts:
        by_seed = []
        for seed in range(confidence.shape[1]):
            by_seed.append(
                cal.squared_calibration_error(confidence[:, seed], correct[:, seed], bins)
            )
        by_set.append(np.mean(by_seed))
    return max(0.0, float(np.mean(by_set))) ** 0.5


def correct(untested: Sequence[Untested], method: str) -> list[Pair]:
    """Corrects the p-values of a family of tests, of calibration and of accuracy apart.

    Args:
        untested: The family.
        method: `Shaffer` or `Holm`.
    """
    adjust = shaffer if method == "Shaffer" else holm
    # Two families, because they are two questions: each is corrected by itself.
    calibration = [pair.comparison.p for pair in untested]
    accuracy = [pair.comparison.accuracy.p for pair in untested]
    family = "one pair"
    if len(untested) > 1:
        family = f"{method} over {len(untested)}"
        calibration = adjust(calibration)
        accuracy = adjust(accuracy)
    pairs = []
    for pair, p, accuracy_p in zip(untested, calibration, accuracy, strict=True):
        pairs.append(Pair(**vars(pair), p=float(p), accuracy_p=float(accuracy_p), family=family))
    return pairs


def pairs_table(grid: Grid, name: str, title: str, pairs: Sequence[Pair]) -> Table | None:
    """Pairs as a table; None if there are none.

    Args:
        pairs: One family of tests, corrected.
    """
    if not pairs:
        return None
    rows = [pair_row(pair) for pair in pairs]
    if len(pairs) == 1:
        correction = "One pair: p needs no correction."
    else:
        correction = (
            f"p is corrected over all rows ({pairs[0].family}), calibration and accuracy apart."
        )
    notes = [f"{COLUMN_NOTE} {correction} Bold: p below 0.05.", *image_notes(pairs), ASSUMPTIONS]
    images = images_fact(grid.counts(grid.common_columns()))
    bins = counted(grid.bins, "bin")
    notes.append(f"{images}. {bins}.")
    seeds = seed_notes(grid)
    if seeds:
        notes += [*seeds, SEEDS_NOTE]
    compared = []
    for pair in pairs:
        compared += [pair.first, pair.second]
    notes += failure_notes(grid, compared)
    facts = [
        images, bins, "differences are second − first with 95 % intervals", "bold: p below 0.05",
    ]
    return Table(
        name, title, list(COLUMNS), [RowBlock("Pair", rows)], notes, facts,
        short_columns=SHORT_COLUMNS, short_columns_fact=SHORT_COLUMNS_FACT,
    )


def pair_row(pair: Pair) -> TableRow:
    """The row of a pair in `pairs_table`."""
    comparison = pair.comparison
    entries = [
        Entry(100 * pair.over[0], seeds=pair.seeds, signed=True),
        Entry(100 * pair.over[1], seeds=pair.seeds, signed=True),
        Entry(100 * comparison.over.value, low=100 * comparison.over.low,
              high=100 * comparison.over.high, signed=True),
        Entry(100 * pair.errors[0], seeds=pair.seeds),
        Entry(100 * pair.errors[1], seeds=pair.seeds),
        Entry(1e4 * comparison.squared.value, low=1e4 * comparison.squared.low,
              high=1e4 * comparison.squared.high, signed=True),
        Entry(pair.p, 3, best=pair.is_significant),
        Entry(100 * comparison.accuracy.value, low=100 * comparison.accuracy.low,
              high=100 * comparison.accuracy.high, signed=True),
        Entry(pair.accuracy_p, 3, best=pair.accuracy_p < LEVEL),
        Entry(comparison.images, 0),
        Entry(comparison.clusters, 0),
    ]
    return TableRow(f"{pair.first.label} → {pair.second.label}", pair.second.method, entries)


def image_notes(pairs: Sequence[Pair]) -> list[str]:
    """How many images and clusters the pairs have."""
    counts = {(pair.comparison.images, pair.comparison.clusters) for pair in pairs}
    if len(counts) > 1:
        return ["Pairs are compared on the images that both methods have, found by identity; their "
                "numbers differ, see the last columns."]
    images, clusters = counts.pop()
    words = f"{counted(images, 'image')} that both methods of each pair have"
    if clusters < images:
        words += f", in {counted(clusters, 'cluster')}"
    notes = [f"{words}."]
    if any(pair.comparison.few_images for pair in pairs):
        notes.append("Few images: p is approximate.")
    return notes
