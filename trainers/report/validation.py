"""Validation runs: which belongs to which test run, and which of its images may be used.

Values and temperatures are chosen on validation images. An image that is a test image too, or that
belongs to a test image's cluster, is left out. If these are many, the validation run is refused.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...datasets.utils.errors import DataError
from ..functional.arrays import Array
from ..runs.record import group_records
from .load import FinishedRun
from .measure import MOST_FAILURES
from .predictions import Predictions
from .sentences import column_words, corruption_of, dataset_words, listed, method_name

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
                self.by_test[run] = of_same_corruption(held_out, run) or held_out
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
        """The largest validation run of a test run, without images that are test images.

        Args:
            test: The test run.
            data: Predictions of the run.
        """
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

    Args:
        run: The validation run.
        predictions: Its predictions.

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


def of_same_corruption(held_out: Sequence[FinishedRun], run: FinishedRun) -> list[FinishedRun]:
    """The validation runs on images with the corruption of a test run's images."""
    corruption = corruption_of(run.record)
    return [other for other in held_out if corruption_of(other.record) == corruption]


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
    """What the images of a run were selected from, such as those of base classes, and its size.

    Args:
        data: The section of its record.
    """
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
        predictions: Predictions on validation images.
        test_images: Images of the test run; None if they are not known.
        where: Method and data set, for the note.

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
