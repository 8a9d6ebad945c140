"""Scores of candidates on the validation images that all of them share and no test run has."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...datasets.utils.cli import counted
from ...datasets.utils.errors import DataError, first_five
from ..functional.arrays import Array
from .candidates import Candidates, Cell, setting_name, show_value
from .grid import Column
from .load import FinishedRun
from .measure import make_samples, measure_metric
from .predictions import Predictions
from .validation import MOST_SHARED, ImageSet, ValidationRuns, fallback_note, image_set


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

    def of(self, candidates: Candidates, column: Column) -> dict[str, float]:
        """The criterion of each value on the validation images that all values share.

        Args:
            candidates: Test runs of one method.
            column: The data set for which a value is chosen.

        Returns:
            The mean over seeds for each value, as fractions; empty if values cannot be compared.
        """
        cell = candidates.cells[column]
        where = f"{candidates.label} on {column.label}"
        by_run: dict[tuple[str, int], list[ValidationPredictions]] = {}
        lacking = []
        for value, runs in cell.items():
            for run in runs:
                predictions = self.predictions_of(run.run)
                by_run[value, run.seed] = predictions
                if not predictions and show_value(candidates.values[value]) not in lacking:
                    lacking.append(show_value(candidates.values[value]))
        if lacking:
            self.notes.append(
                f"No choice on validation images for {where}: no run with TEST.SPLIT val at "
                f"{setting_name(candidates.key)} {first_five(lacking)}."
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
        self,
        shared: Array,
        by_run: Mapping[tuple[str, int], Sequence[ValidationPredictions]],
        cell: Cell,
        where: str,
    ) -> tuple[Array | None, str]:
        """The shared validation images that are no test images.

        Args:
            shared: Identities of the validation images that all values have, (N,).
            by_run: The validation runs by value and seed of a test run.
            cell: The test runs by value.
            where: Method and data set, for the note.

        Returns:
            Identities, or None if too many are test images; and a note, "" if there is none.
        """
        test_sets = []
        for runs in cell.values():
            for run in runs:
                if run.image is None or run.cluster is None:
                    return None, (
                        f"No choice on validation images for {where}: nothing says whether they "
                        "are test images."
                    )
                test_sets.append(ImageSet(run.image, run.cluster))
        first = next(iter(by_run.values()))
        clusters = clusters_of_images(shared, first)
        overlap = np.zeros(len(shared), dtype=bool)
        for test in test_sets:
            overlap |= ImageSet(shared, clusters).is_in(test)
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
        runs: Validation runs.

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
