"""What reports and experiments leave in a folder: the tables in three forms, the figures as files."""
from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...datasets.utils.errors import UserError, one_line
from ...datasets.utils.files import read_json, write_json, write_text
from . import render
from .figures import style
from .gallery import Picture
from .table_model import Table

logger = logging.getLogger(__name__)

LIST = "figures.json"  # names of the files that the last report wrote, and the next one may remove


def write_tables(out: Path, tables: Sequence[Table]) -> None:
    """tables.md, tables.tex and tables.csv."""
    write_text(out / "tables.md", "\n".join(map(render.markdown, tables)))
    write_text(out / "tables.tex", render.LATEX_HEAD + "\n".join(map(render.latex, tables)))
    write_text(out / "tables.csv", render.to_csv(tables))


def write_figures(out: Path, pictures: Iterable[Picture]) -> tuple[list[Picture], list[str]]:
    """PNG and PDF of each picture in figures/; what an earlier report left there is removed.

    Returns the pictures that were written, and a line on each that could not be: a figure never costs a result.
    """
    folder = out / "figures"
    drawn, notes, written = [], [], []
    for picture in pictures:
        try:
            written += [path.name for path in style.save(picture.figure, folder / picture.name)]
            drawn.append(picture)
        except (UserError, OSError):  # a full disk is the user's affair
            raise
        except Exception as error:
            notes.append(f"Figure {picture.name} is left out: {one_line(error, 200)}.")
            logger.warning("%s", notes[-1])
    before = read_json(folder / LIST)
    for name in before if isinstance(before, list) else ():
        if isinstance(name, str) and name not in written and Path(name).name == name:
            (folder / name).unlink(missing_ok=True)
    if written or before:
        write_json(folder / LIST, written)
    return drawn, notes
