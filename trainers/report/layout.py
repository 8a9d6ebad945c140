"""A layout: which tables and figures are made of measured runs, as data.

`report` has one layout for all runs. Each experiment has its own, from its yaml file.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..functional.calibration import BINS
from .published import SOC

BASELINE = "TPT"  # the method that others are compared with


@dataclass(frozen=True)
class Differences:
    """Which rows state their difference from which other row.

    Attributes:
        baseline: The method that rows are compared with.
        ours: The methods whose rows state the difference; () for all tuned ones.
        only_newer: Whether only methods that are newer than the baseline state it, as in the
            tables of the SoC paper.
        is_default: Whether the baseline was not chosen. Rows from a learnt prompt are then compared
            with this prompt untuned.
    """

    baseline: str = BASELINE
    ours: Sequence[str] = ()
    only_newer: bool = False
    is_default: bool = True


FROM_BASELINE = Differences()  # of a report without further options


@dataclass(frozen=True)
class TableSpec:
    """One table for each backbone.

    Attributes:
        name: Name of the table, for its files and anchors.
        title: Title of the table; the backbone is added.
        columns: What the columns are. `dataset`; `metric`, averaged over data sets; `backbone`,
            `prompt`, `texts` or a setting's key, averaged over data sets; `corruption`, at the
            highest severity, a table for each data set; `threshold` of confidence, all data sets
            together; `similarity` of predicted and true class; `prompts`: mean and worst over
            initial prompts.
        rows: Settings whose values every row's label states, by key.
        metrics: Names of the metrics; each has a block.
        published: Tables of published.json to show next to ours.
        per: `texts` makes a table for each choice of texts; "" makes one table.
        states_texts: Whether a note states seeds and texts.
    """

    name: str
    title: str
    columns: str = "dataset"
    rows: Sequence[str] = ()
    metrics: Sequence[str] = ("accuracy", "ece")
    published: Sequence[str] = ()
    per: str = ""
    states_texts: bool = False


@dataclass(frozen=True)
class Layout:
    """What is made of measured runs.

    Attributes:
        tables: Tables of the layout; () for those of `report`.
        figures: Names of the figures.
        title: Title of the page.
        rows: Settings whose values labels state, in figures and verdict.
        verdict: Whether methods are ranked and tested.
        baseline: The method that all others are tested against.
        differences: Which rows state their difference from which other row.
        published: Source whose numbers are shown next to ours; "" for none.
        from_published: Whether rows "ours − published" are shown.
        bins: Number of bins of ECE, ACE and MCE.
        posthoc: Whether scaling without labels is measured.
        choose: Swept settings whose value is chosen without test labels.
        choose_by: The metric by which it is chosen.
        with_figures: Whether figures are drawn.
        with_runs: Whether the page lists every run.
        note: A sentence below every table.
        stamp: What every table and figure of a demo says; "" otherwise.
        study: What a layout needs besides, such as the data sets of a figure.
    """

    tables: Sequence[TableSpec] = ()
    figures: Sequence[str] = ()
    title: str = "Calibration report"
    rows: Sequence[str] = ()
    verdict: bool = True
    baseline: str = BASELINE
    differences: Differences = FROM_BASELINE
    published: str = ""
    from_published: bool = False
    bins: int = BINS
    posthoc: bool = False
    choose: Sequence[str] = ()
    choose_by: str = "ece"
    with_figures: bool = True
    with_runs: bool = True
    note: str = ""
    stamp: str = ""
    study: Mapping[str, Any] = field(default_factory=dict)


PLAIN = Layout()  # of tables without published rows, with differences from the default baseline
ALL_FIGURES = ("reliability", "selective", "sals", "class_pairs", "stream", "plane", "sweeps")


def default_layout(**options: Any) -> Layout:
    """The layout of `report`.

    Args:
        options: Attributes of `Layout` by name, except `differences`. `published` may also be True,
            for the tables of the SoC paper, and `baseline` "" for the default one. `ours` names the
            methods whose rows state their difference from the baseline.
    """
    if options.get("published") is True:
        options["published"] = SOC
    elif not options.get("published"):
        options["published"] = ""
    baseline = options.pop("baseline", "")
    ours = tuple(options.pop("ours", ()))
    options["differences"] = Differences(baseline or BASELINE, ours, is_default=not baseline)
    return Layout(figures=ALL_FIGURES, baseline=baseline or BASELINE, **options)
