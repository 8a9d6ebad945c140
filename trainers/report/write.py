"""Writes the files of a report: tables, figures and the page."""
from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ...datasets.utils.errors import UserError, one_line
from ...datasets.utils.files import read_json, write_json, write_text
from . import render
from .figures import style
from .figures.select import NamedFigure
from .published import bibliography
from .table_model import Table

logger = logging.getLogger(__name__)

# Files that the last report wrote into figures/, which the next one may remove
LIST = "figures.json"
NOT_SAFE = re.compile(r"[^\w.-]+", re.ASCII)  # in the name of a table


def write_tables(out: Path, tables: Sequence[Table]) -> None:
    """Writes tables.md, tables.tex, tables_notes.tex, tables.csv, and tables.bib.

    The last one has the sources of published rows. Without any it is not written.

    Args:
        out: Folder of the files.
        tables: Tables, in the order of the files.
    """
    write_text(out / "tables.md", "\n".join(render.markdown(table) for table in tables))
    write_text(out / "tables.csv", render.to_csv(tables))
    cited = []
    for table in tables:
        for block in table.blocks:
            cited += [row.cite for row in block.rows]
    sources = bibliography(cited)
    head = render.LATEX_HEAD
    if sources:
        head += render.LATEX_SOURCES
        write_text(out / "tables.bib", sources)
    else:
        (out / "tables.bib").unlink(missing_ok=True)  # of an earlier report
    write_text(out / "tables.tex", head + "\n".join(render.latex(table) for table in tables))
    notes = [render.latex_notes(table) for table in tables if table.notes]
    write_text(out / "tables_notes.tex", render.NOTES_HEAD + "\n".join(notes))


def write_figures(out: Path, figures: Iterable[NamedFigure]) -> tuple[list[NamedFigure], list[str]]:
    """Writes PNG and PDF of each figure into figures/ and removes those of an earlier report.

    Args:
        out: Folder of the report.
        figures: Each is drawn when it is asked for.

    Returns:
        The figures that were written, and a note on each that could not be drawn.
    """
    folder = out / "figures"
    drawn: list[NamedFigure] = []
    notes: list[str] = []
    written: list[str] = []
    for figure in figures:
        figure = with_free_name(figure, drawn)
        try:
            paths = style.save(figure.figure, folder / figure.name)
        except (UserError, OSError):  # a full disk, for instance
            raise
        except Exception as error:
            notes.append(f"Figure {figure.name} is left out: {one_line(error, 200)}.")
            logger.warning("%s", notes[-1])
            continue
        written += [path.name for path in paths]
        drawn.append(figure)
    before = read_json(folder / LIST)
    if isinstance(before, list):
        for name in before:
            if isinstance(name, str) and name not in written and Path(name).name == name:
                (folder / name).unlink(missing_ok=True)
    if written or before:
        write_json(folder / LIST, written)
    return drawn, notes


def with_free_name(figure: NamedFigure, drawn: Sequence[NamedFigure]) -> NamedFigure:
    """The figure, with a number after its name if another one has this name.

    Figures of an experiment with several backbones have equal names.

    Args:
        figure: The figure.
        drawn: Figures that were written already.
    """
    names = [other.name for other in drawn]
    return replace(figure, name=free_name(figure.name, names))


def with_distinct_names(tables: Sequence[Table]) -> list[Table]:
    """The tables with names that are safe in LaTeX and HTML, which do not escape them.

    Those of an experiment with several backbones get a number after their name.
    """
    named: list[Table] = []
    for table in tables:
        names = [other.name for other in named]
        safe_name = NOT_SAFE.sub("_", table.name)
        named.append(replace(table, name=free_name(safe_name, names)))
    return named


def free_name(name: str, taken: Sequence[str]) -> str:
    """A name; with the first number after it that makes it another one, if it is taken.

    Args:
        name: The wanted one.
        taken: Names that are in use.
    """
    free = name
    number = 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free
