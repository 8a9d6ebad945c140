"""Validation runs: to which test runs they belong, which images may be used, and what they say.

Values and temperatures are chosen on validation images. An image that is a test image too, or that
belongs to a test image's cluster, is left out. If these are many, the validation run is refused.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...datasets.utils.cli import counted
from ...datasets.utils.errors import DataError, first_five
from ..functional.arrays import Array
from ..runs.record import group_records
from .load import FinishedRun
from .measure import MOST_FAILURES, Measured, make_samples, measure_metric
from .predictions import Predictions
from .words import column_words, corruption_of, dataset_words, listed, method_name

COUNT = re.compile(r"(?:^|, )[\d,]+ of ([\d,]+) images$")  # in the subset of a pilot
MOST_SHARED = 0.1  # share of validation images that may be test images


@dataclass(frozen=True)
class ImageSet:
    """The images of one or several runs.

    Attributes:
        image: Identities, (N,) of 16 bytes.
        cluster: Identity of each image's cluster, (N,). Images of one cluster are not independent.
    """

    image: Array
    cluster: Array

    def is_in(self, other: ImageSet) -> Array:
        """Which of these images, or images of their clusters, the other set has too, (N,)."""
        return np.isin(self.image, other.image) | np.isin(self.cluster, other.cluster)


def image_set(data: Predictions) -> ImageSet | None:
    """The images of some predictions; None if they are not known."""
    if data.image is None or data.cluster is None:
        return None
    return ImageSet(data.image, data.cluster)


@dataclass(frozen=True)
class HeldOut:
    """Validation predictions that a test run may use, and what the report says about them.

    Attributes:
        predictions: Predictions on images that are no test images; None if there are none.
        notes: Notes on images that were left out, and on runs that were refused.
    """

    predictions: Predictions | None
    notes: list[str]


class ValidationRuns:
    """The runs on validation images of a report, by the test runs that they belong to."""

    def __init__(self, test: Sequence[FinishedRun], validation: Sequence[FinishedRun]) -> None:
        """
        Args:
            test: Runs on test images.
            validation: Runs on validation images. Those with the settings, data set and seed of a
                test run belong to it.
        """
        self.by_test: dict[FinishedRun, list[FinishedRun]] = {}
        self.notes: list[str] = []
        groups = group_records([*test, *validation], "validation", lambda run: run.record)
        all_validation = set(validation)
        unused = []
        for group in groups:
            tested = []
            held_out = []
            for run in group:
                if run in all_validation:
                    held_out.append(run)
                else:
                    tested.append(run)
            if not tested:
                unused += [run.name for run in held_out]
            if held_out and has_several_datasets(tested):
                name = dataset_words(tested[0].record)
                note = (
                    f"Several data sets are called {name}, so it is not known whose validation "
                    "images were used: no validation run counts for them. DATASET.LABEL tells "
                    "them apart."
                )
                if note not in self.notes:
                    self.notes.append(note)
                held_out = []
            # The largest first; of equal ones by their path, so that the order of the folders on
            # the command line does not matter.
            held_out.sort(key=lambda run: (-run.results["n"], str(run.folder.resolve())))
            for run in tested:
                corruption = corruption_of(run.record)
                alike = [other for other in held_out if corruption_of(other.record) == corruption]
                self.by_test[run] = alike or held_out
        if unused:
            self.notes.append(
                "On validation images, and not of the settings, data set and seed of any test "
                f"run here: {listed(sorted(unused))}."
            )

    def of(self, test: FinishedRun) -> list[FinishedRun]:
        """The validation runs of a test run, the largest first.

        Those under the same corruption count, if there are any.
        """
        return self.by_test.get(test, [])

    def held_out(self, test: FinishedRun, data: Predictions) -> HeldOut:
        """The largest validation run of a test run, without images that are test images."""
        notes: list[str] = []
        test_images = image_set(data)
        for run in self.of(test):
            try:
                predictions = run.load_predictions()
            except DataError as error:
                notes.append(
                    f"{run.name} is left out: {error}; temperatures are fitted without it."
                )
                continue
            fallbacks = fallback_note(run, predictions)
            if fallbacks:
                notes.append(fallbacks)
                continue
            where = f"{method_name(test.record)} on {column_words(test.record)}"
            usable, note = without_test_images(predictions, test_images, where)
            if note and note not in notes:
                notes.append(note)
            if usable is not None:
                if corruption_of(run.record) != corruption_of(test.record):
                    notes.append(f"{where}: temperatures are fitted on validation images of "
                                 f"{dataset_words(run.record)}.")
                return HeldOut(usable, notes)
        return HeldOut(None, notes)


def fallback_note(run: FinishedRun, predictions: Predictions) -> str:
    """Why a validation run is not used: too many of its predictions are not those of the method.

    Returns:
        A sentence; "" if the run may be used.
    """
    count = int(predictions.flagged.astype(bool).sum())
    total = len(predictions.label)
    if count <= MOST_FAILURES * total:
        return ""
    return (
        f"{run.name} is not used as a validation run: {count:,} of {total:,} images have their "
        "zero-shot prediction, because adaptation gave no finite number."
    )


def has_several_datasets(runs: Sequence[FinishedRun]) -> bool:
    """Whether runs on data sets of one name are on different ones.

    The same part of one data set has the same images, and a pilot says how many its data set has.
    Nothing else ties a data set's validation images to its test images.
    """
    images_of_part: dict[tuple, str] = {}
    size_of_part: dict[tuple, int] = {}
    for run in runs:
        data = run.record.data
        corruption = corruption_of(run.record)
        part = (data.get("subset"), *corruption)
        if images_of_part.setdefault(part, data["images"]) != data["images"]:
            return True
        selected_from, size = whole_part(data)
        part = (selected_from, *corruption)
        if size_of_part.setdefault(part, size) != size:
            return True
    return False


def whole_part(data: Mapping[str, Any]) -> tuple[str, int]:
    """What the images of a run were selected from, such as those of base classes, and its size."""
    subset = str(data.get("subset") or "")
    count = COUNT.search(subset)
    if count is None:
        return subset, int(data["n"])
    return subset[: count.start()], int(count[1].replace(",", ""))


def without_test_images(
    predictions: Predictions, test_images: ImageSet | None, where: str,
) -> tuple[Predictions | None, str]:
    """Validation predictions on images that are no test images, and a note on what was left out.

    Args:
        test_images: Images of the test run; None if they are not known.

    Returns:
        The predictions, None if too many of the images are test images, and the note, "" if
        nothing was left out.
    """
    images = image_set(predictions)
    if images is None or test_images is None:
        return None, (f"{where}: the validation run is not used, because nothing says whether its "
                      "images are test images.")
    shared = images.is_in(test_images)
    count = int(shared.sum())
    total = len(shared)
    if count == 0:
        return predictions, ""
    words = f"{count:,} of {total:,} validation images are test images"
    if count > MOST_SHARED * total:
        return None, f"{where}: validation is refused, because {words}."
    return predictions.take(~shared), f"{where}: {words} and are left out of validation."


@dataclass(frozen=True)
class ValidationPredictions:
    """The predictions of a validation run, and the images that they are on."""

    predictions: Predictions
    images: ImageSet


class ValidationScores:
    """Judges the candidates of a choice on validation images."""

    def __init__(
        self, validation: ValidationRuns, criterion: str, bins: int, notes: list[str],
    ) -> None:
        """
        Args:
            validation: The runs on validation images.
            criterion: The metric by which values are chosen.
            bins: Number of bins of ECE, ACE and MCE.
            notes: Gets a note on the images that were used, and on what could not be judged.
        """
        self.validation = validation
        self.criterion = criterion
        self.bins = bins
        self.notes = notes
        self.loaded: dict[FinishedRun, ValidationPredictions | None] = {}

    def of(
        self, cell: Mapping[str, Sequence[Measured]], where: str, setting: str,
        shown: Mapping[str, str],
    ) -> dict[str, float]:
        """The criterion of each value on the validation images that all values share.

        Args:
            cell: The test runs of one method on a data set by value, one per seed.

        Returns:
            The mean over seeds for each value, as fractions; empty if values cannot be compared.
        """
        by_run: dict[tuple[str, int], list[ValidationPredictions]] = {}
        lacking = []
        for value, runs in cell.items():
            for run in runs:
                predictions = self.predictions_of(run.run)
                by_run[value, run.seed] = predictions
                if not predictions and shown[value] not in lacking:
                    lacking.append(shown[value])
        if lacking:
            self.notes.append(
                f"No choice on validation images for {where}: no run with TEST.SPLIT val at "
                f"{setting} {first_five(lacking)}."
            )
            return {}
        shared = largest_shared_set(list(by_run.values()))
        if len(shared) == 0:
            self.notes.append(f"No choice on validation images for {where}: its values share none.")
            return {}
        usable, note = self.without_test_images(shared, by_run, cell, where)
        if note:
            self.notes.append(note)
        if usable is None:
            return {}
        scores: dict[str, list[float]] = {}
        for (value, _), predictions in by_run.items():
            scores.setdefault(value, []).append(self.criterion_on(predictions, usable))
        total = len(usable)
        self.notes.append(
            f"{where}: all values are judged on the same {counted(total, 'validation image')}."
        )
        return {value: float(np.mean(by_seed)) for value, by_seed in scores.items()}

    def predictions_of(self, test: FinishedRun) -> list[ValidationPredictions]:
        """The predictions of those validation runs of a test run that may be used."""
        predictions = []
        for run in self.validation.of(test):
            if run not in self.loaded:
                self.loaded[run] = self.load(run)
            data = self.loaded[run]
            if data is not None:
                predictions.append(data)
        return predictions

    def load(self, run: FinishedRun) -> ValidationPredictions | None:
        """The predictions of a validation run; None if they cannot be read, if its images are not
        known, or if too many images fell back to zero-shot."""
        try:
            data = run.load_predictions()
        except DataError:
            return None
        fallbacks = fallback_note(run, data)
        if fallbacks:
            self.notes.append(fallbacks)
            return None
        images = image_set(data)
        if images is None:
            return None
        return ValidationPredictions(data, images)

    def without_test_images(
        self, shared: Array, by_run: Mapping[tuple[str, int], Sequence[ValidationPredictions]],
        cell: Mapping[str, Sequence[Measured]], where: str,
    ) -> tuple[Array | None, str]:
        """The shared validation images that are no test images.

        Args:
            shared: Identities of the validation images that all values have, (N,).
            by_run: The validation runs by value and seed of a test run.
            cell: The test runs by value.

        Returns:
            Identities, or None if too many are test images; and a note, "" if there is none.
        """
        test_images = images_of(cell)
        if test_images is None:
            return None, (
                f"No choice on validation images for {where}: nothing says whether they are test "
                "images."
            )
        first = next(iter(by_run.values()))
        overlap = ImageSet(shared, clusters_of_images(shared, first)).is_in(test_images)
        count = int(overlap.sum())
        if count > MOST_SHARED * len(shared):
            return None, (
                f"No choice on validation images for {where}: refused, because {count:,} of "
                f"{len(shared):,} validation images are test images."
            )
        note = ""
        if count:
            note = (
                f"{where}: {count:,} of {len(shared):,} validation images are test images and are "
                "left out of validation."
            )
        return shared[~overlap], note

    def criterion_on(self, runs: Sequence[ValidationPredictions], images: Array) -> float:
        """The criterion on some validation images, from a run that has all of them.

        Args:
            runs: The validation runs of one test run.
            images: Identities, (N,).
        """
        for run in runs:
            inside = np.isin(run.images.image, images)
            if int(inside.sum()) == len(images):
                part = run.predictions.take(inside)
                samples = make_samples(part.logits, part, self.bins)
                value = measure_metric(self.criterion, samples)
                if value is None:
                    raise DataError(
                        f"{self.criterion} cannot be measured on validation runs that were "
                        "exported without --logits: choose by another metric"
                    )
                return float(value.value)
        raise AssertionError("the shared images are those of a run")


def images_of(cell: Mapping[str, Sequence[Measured]]) -> ImageSet | None:
    """The test images of a data set with their clusters; None if they are not known.

    An image is listed once per run: one run may have groups of images where another has none.
    """
    images = []
    clusters = []
    for runs in cell.values():
        for run in runs:
            if run.image is None or run.cluster is None:
                return None
            images.append(run.image)
            clusters.append(run.cluster)
    return ImageSet(np.concatenate(images), np.concatenate(clusters))


def largest_shared_set(candidates: Sequence[Sequence[ValidationPredictions]]) -> Array:
    """The largest set of images that each candidate has in one of its validation runs.

    Args:
        candidates: For each value and seed the predictions of its validation runs.

    Returns:
        Identities, (N,); empty if there are none.
    """
    best = np.array([], dtype="S16")
    tried = set()
    for runs in candidates:
        for start in runs:
            content = start.images.image.tobytes()
            if content in tried:
                continue
            tried.add(content)
            shared = np.unique(start.images.image)
            for others in candidates:
                parts = [np.intersect1d(shared, other.images.image) for other in others]
                shared = max(parts, key=len)
            if len(shared) > len(best):
                best = shared
    return best


def clusters_of_images(images: Array, runs: Sequence[ValidationPredictions]) -> Array:
    """The cluster of each image, from a run that has all of them.

    Args:
        images: Identities, (N,).

    Returns:
        Clusters, (N,); the images themselves if no run has all of them.
    """
    for run in runs:
        known = run.images.image
        order = np.argsort(known, kind="stable")
        positions = np.searchsorted(known[order], images)
        positions = np.minimum(positions, len(order) - 1)
        if (known[order[positions]] == images).all():
            return run.images.cluster[order[positions]]
    return images
