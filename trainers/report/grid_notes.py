"""Notes below a table on runs that are not comparable, or that failed on some images."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from ...datasets.utils.cli import counted
from ..registry import method_info
from ..runs.record import WORDS, RunRecord
from .grid import Column, Grid, Row, conditions, is_learnt_and_trained, may_be_of_1_0
from .measure import MOST_FAILURES, Measured
from .words import FIELD_WORDS, joined_with_and, listed

# What the rows of a table may differ in without a setting, by the field of the record.
NUMERICS = {"numerics.precision": "Precision", "numerics.engine": "The version of the engine",
            "views.pipeline": "The code that makes views"}


def grid_notes(grid: Grid) -> list[str]:
    """One sentence for each way in which the cells of a table are not comparable."""
    return [
        *failure_notes(grid),
        *several_sets_notes(grid),
        *shared_images_notes(grid),
        *name_notes(grid),
        *seed_notes(grid),
        *numerics_notes(grid),
        *grid_default_notes(grid),
        *zero_shot_notes(grid),
        *bin_notes(grid),
        *average_notes(grid),
    ]


def failure_notes(grid: Grid, rows: Sequence[Row] | None = None) -> list[str]:
    """How many images fell back to zero-shot or could not be read, and which runs are not ranked.

    Args:
        rows: The rows that a table shows; None means all.
    """
    flagged = []
    skipped = []
    unranked = []
    for (row, column), cell in grid.cells.items():
        if rows is not None and row not in rows:
            continue
        where = f"{row.label} on {grid.column_label(column)}"
        for measured in cell:
            seed = f", seed {measured.seed}" if len(cell) > 1 else ""
            if measured.flagged:
                flagged.append(f"{where}{seed} {measured.flagged:,} of {measured.n:,}")
            if measured.skipped:
                total = measured.n + measured.skipped
                skipped.append(f"{where}{seed} {measured.skipped:,} of {total:,}")
            if not measured.is_ranked and where not in unranked:
                unranked.append(where)
    notes = []
    if flagged:
        notes.append("Images with their zero-shot prediction, because adaptation gave no finite "
                     f"number: {listed(flagged)}.")
    if skipped:
        notes.append(f"Images that could not be read and are left out: {listed(skipped)}.")
    if unranked:
        notes.append(
            f"Not ranked, because more than {100 * MOST_FAILURES:g} % of the images failed: "
            f"{listed(unranked)}."
        )
    return notes


def several_sets_notes(grid: Grid) -> list[str]:
    """Data sets that were run on several sets of images."""
    common = grid.common_columns()
    notes = []
    for dataset in dict.fromkeys(column.dataset for column in grid.columns):
        columns = grid.columns_of(dataset)
        if len(columns) < 2:
            continue
        sizes = [column.n for column in columns]
        use = "none of them is common to all methods, so no average or verdict uses them"
        for column in columns:
            if column in common:
                which = "the largest"
                if sizes.count(column.n) > 1:
                    which = "the first of the largest"
                use = (
                    f"averages and verdict use {which} that all compared methods have, "
                    f"{grid.column_label(column)}"
                )
        overlap = "which share no image" if share_no_image(columns) else "which may overlap"
        shown_sizes = ", ".join(f"{size:,}" for size in sizes)
        notes.append(
            f"{dataset} was run on several sets of test images ({shown_sizes}), {overlap}: "
            f"each has a column of its own, and {use}."
        )
    return notes


def share_no_image(columns: Sequence[Column]) -> bool:
    """Whether columns are known to have no image in common, as the folds of one table have none."""
    if any(column.record.is_1_0 for column in columns):  # its images were not known by content
        return False
    for first, second in combinations(columns, 2):
        if first.images is None or second.images is None or first.shared_images(second):
            return False
    return True


def shared_images_notes(grid: Grid) -> list[str]:
    """Data sets of different names that have the same images, as with corrected labels."""
    common = grid.common_columns()
    notes = []
    for number, column in enumerate(grid.columns):
        if column.family == column.dataset:
            continue
        for other in grid.columns[:number]:
            if other.family != column.family or other.dataset == column.dataset:
                continue
            names = f"{grid.column_label(column)} and {grid.column_label(other)}"
            count = column.shared_images(other)
            if count:
                images = f"have {counted(count, 'image')} in common"
                if count == column.n == other.n:
                    images += ", with other labels or classes"
            elif may_be_of_1_0(column, other):
                images = (
                    "may be the same images, which runs of promptcal 1.0 did not know by content"
                )
            else:
                continue
            use = "averages and verdict count them once"
            for averaged in common:
                if averaged.family == column.family:
                    use += f", as {grid.column_label(averaged)}"
            notes.append(f"{names} {images}: {use}.")
    return notes


def name_notes(grid: Grid) -> list[str]:
    """Images that were tested under several names."""
    notes = []
    for column in grid.columns:
        if len(column.names) > 1:
            others = joined_with_and(column.names[1:])
            notes.append(f"{column.label} has the same images as {others}: they are one column.")
    return notes


def seed_notes(grid: Grid) -> list[str]:
    """Columns in which rows have different seeds of the views."""
    notes = []
    for column in grid.columns:
        seeds: dict[str, list[str]] = {}
        for row, cell in grid.cells_on(column):
            if not cell[0].from_tuned_run:
                seeds[row.label] = [str(measured.seed) for measured in cell]
        notes += differing_note(
            f"{grid.column_label(column)}: view seeds differ between the rows", seeds
        )
    return notes


def numerics_notes(grid: Grid) -> list[str]:
    """Rows of other precision, engine or views, where one of their labels does not say so.

    The precision of a GPU is not that of a CPU by default, so no setting states it. A default may
    have been edited between two runs.
    """
    notes = []
    for path, words in NUMERICS.items():
        values: dict[str, list[str]] = {}
        are_stated = True
        for (row, _), cell in grid.cells.items():
            value = cell[0].record.get(path)
            if value is not None and not cell[0].from_tuned_run:
                values[row.label] = [str(value)]
                are_stated = are_stated and FIELD_WORDS[path].format(value) in row.label
        if not are_stated:
            notes += differing_note(f"{words} differs between the rows", values)
    counts: dict[str, list[str]] = {}
    for (row, _), cell in grid.cells.items():
        count = cell[0].record.get("views.count") or 1
        # One view is a method's own choice, and a changed setting stands in the label.
        if count > 1 and "TTA.VIEWS" not in cell[0].record.changed:
            counts[row.label] = [str(count)]
    notes += differing_note("The default number of views differs between the rows", counts)
    return notes


def grid_default_notes(grid: Grid) -> list[str]:
    """Rows of one method that have other defaults. The number of views has a note of its own."""
    notes = []
    for column in grid.columns:
        runs = {row.label: cell[0] for row, cell in grid.cells_on(column)}
        notes += default_notes(grid.column_label(column), runs, but=["TTA.VIEWS"])
    return notes


def default_notes(
    where: str, runs: Mapping[str, Measured], but: Sequence[str] = (),
) -> list[str]:
    """Settings whose defaults differ between runs of one method on the same images.

    They were edited between the runs. A label states what differs from the default of then; only a
    second row of the same label states more.

    Args:
        runs: A run for each label.
    """
    by_method: dict[str, dict[str, RunRecord]] = {}
    for label, measured in runs.items():
        by_method.setdefault(measured.method, {})[label] = measured.record
    notes = []
    for records in by_method.values():
        first = next(iter(records.values()))
        differing: dict[str, None] = {}
        for record in records.values():
            differing |= dict.fromkeys(differing_defaults(first, record, but))
        for name in differing:
            key = WORDS.get(name, name)  # the setting whose value a field holds
            values: dict[str, list[str]] = {}
            for label, record in records.items():
                value = record.fields("values").get(name)
                if value is not None and key not in record.changed:
                    values[label] = [str(value)]
            notes += differing_note(f"{where}: the default of {key} differs between rows", values)
    return notes


def have_other_defaults(runs: Sequence[Measured], others: Sequence[Measured]) -> bool:
    """Whether a default was edited between some runs and others of the same method.

    Args:
        runs: On some images.
        others: On the same images.
    """
    for first in runs:
        for second in others:
            if first.method != second.method:
                continue
            if differing_defaults(first.record, second.record):
                return True
    return False


def differing_defaults(first: RunRecord, second: RunRecord, but: Sequence[str] = ()) -> list[str]:
    """The settings and fields that two runs of one method were given no value of, and that differ.

    A setting that has an effect in one of the runs only has no other default.
    """
    ignored = [*first.changed, *second.changed, *but]
    names = []
    for name, values in first.difference(second, "values", without=ignored).items():
        if None not in values:
            names.append(name)
    return names


def zero_shot_notes(grid: Grid) -> list[str]:
    """Columns in which runs under equal conditions have other zero-shot results."""
    notes = []
    for column in grid.columns:
        by_conditions: dict[str, dict[str, list[str]]] = {}
        for row, cell in grid.cells_on(column):
            for measured in cell:
                if is_learnt_and_trained(measured):
                    continue
                if measured.run.has_zero_shot and measured.skipped == 0:
                    accuracy = float(measured.zero_shot_metrics["accuracy"].value)
                    # Another type of device may differ in the last bits.
                    device = measured.record.get("numerics.device_type")
                    same = by_conditions.setdefault(f"{conditions(measured.record)} {device}", {})
                    same[row.label] = [f"{100 * accuracy:.1f} %"]
        for accuracies in by_conditions.values():
            notes += differing_note(
                f"{grid.column_label(column)}: zero-shot accuracy differs between the rows",
                accuracies,
                ", though images, weights and prompt are recorded as the same: run them again with "
                "one version of the code.",
            )
    return notes


def differing_note(words: str, values: Mapping[str, Sequence[str]], end: str = ".") -> list[str]:
    """A note if the values of the rows differ, as in `… (TPT, C-TPT: 0, 1; SoC: 0)`.

    Args:
        words: How the note begins.
        values: The value of each row, by its label.
        end: How the note ends.

    Returns:
        The note, or [].
    """
    rows: dict[tuple[str, ...], list[str]] = {}
    for label, several in values.items():
        rows.setdefault(tuple(several), []).append(label)
    if len(rows) < 2:
        return []
    between = ", "
    for label in values:
        if "," in label:  # a label with a comma would read as two labels
            between = " / "
    parts = []
    for several, labels in rows.items():
        parts.append(f"{between.join(labels)}: {', '.join(several)}")
    return [f"{words} ({'; '.join(parts)}){end}"]


def bin_notes(grid: Grid) -> list[str]:
    """Runs whose own results have another number of bins."""
    others = set()
    for measured in grid.measured:
        others.add(measured.run.results["bins"])
    others.discard(grid.bins)
    if not others:
        return []
    numbers = " and ".join(map(str, sorted(others)))
    return [f"Runs made with {numbers} bins are computed again with {grid.bins}."]


def average_notes(grid: Grid) -> list[str]:
    """Rows and columns that averages, pairs and verdict leave out."""
    common = grid.common_columns()
    notes = []
    compared = grid.rows_on(common)
    absent = []
    for row in grid.rows:
        if row not in compared and not method_info(row.method).trained:
            absent.append(row.label)
    if absent:
        notes.append(
            f"Averages and verdict are without {listed(absent)}: no run on all of the images "
            "that most methods have."
        )
    averaged = {column.family for column in common}
    left_out = []
    for column in grid.columns:
        if column.family not in averaged:
            left_out.append(grid.column_label(column))
    if left_out and len(common) > 1:
        notes.append(f"The average leaves out {listed(left_out)}, which not every row has.")
    elif left_out:
        notes.append("There is no average: no two data sets are common to all rows.")
    return notes


def seeds_words(cells: Mapping[tuple[Row, Column], Sequence[Measured]]) -> str:
    """What ± is, and whose seeds are orders of the images."""
    online = []
    for (row, _), cell in cells.items():
        if cell[0].record.online and row.label not in online:
            online.append(row.label)
    orders = f", which for {joined_with_and(online)} are orders of the images" if online else ""
    return f"± is the sample standard deviation over seeds{orders}"


def stream_words(grid: Grid) -> str:
    """How many classes follow each other in the streams of online methods.

    A concentration alone says little: it does not compare across data sets.
    """
    rows: dict[str, list[str]] = {}
    for (row, column), cell in grid.cells.items():
        counts = []
        for measured in cell:
            if "classes_in_64" in measured.run.results and not measured.from_tuned_run:
                counts.append(measured.run.results["classes_in_64"])
        if counts:
            mean = sum(counts) / len(counts)
            rows.setdefault(row.label, []).append(f"{grid.column_label(column)} {mean:.1f}")
    alike: dict[str, list[str]] = {}
    for label, counts_by_column in rows.items():
        alike.setdefault(", ".join(counts_by_column), []).append(label)
    parts = [f"{joined_with_and(labels)}: {words}" for words, labels in alike.items()]
    if not parts:
        return ""
    return f"Classes among 64 successive images, on average: {'; '.join(parts)}."
