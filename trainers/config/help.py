"""The table of settings as text: for `--help-settings` and for the README of this folder."""
from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from .layers import declared_rows
from .registry import TRAINER_REGISTRY, method_info, registered_name
from .schema import Setting
from .table import SHARED, TABLE

FIRST_TITLE = "## Shared settings"  # the first of the tables in the README
WIDTH = 100  # columns of the help
INDENT = 4  # spaces before the meaning of a setting

# The groups of the table, in its order: the prefix of their keys, and what they are about.
GROUPS = {
    "": "the run",
    "DATASET": "the data set",
    "INPUT": "pixels",
    "DATALOADER": "reading images",
    "MODEL": "the backbone",
    "PROMPT": "the prompt",
    "TTA": "test-time adaptation",
    "OPTIM": "the optimizer",
    "TRAINER": "the method",
    "TEST": "testing",
    "CACHE": "cached features",
}


def group_of(row: Setting) -> str:
    """The first part of a setting's key; "" if the key has only one part."""
    return row.key.partition(".")[0] if "." in row.key else ""


def default_words(row: Setting) -> str:
    """The default as text: `auto: the GPU if there is one`, `empty`."""
    text = "empty" if row.default == "" else str(row.default)
    return f"{text}: {row.auto}" if row.auto else text


def entry(row: Setting) -> list[str]:
    """The lines of one setting: its key and default, then its meaning and its allowed values."""
    text = row.help
    if row.allowed_words:
        text += f". Allowed: {row.allowed_words}"
    lines = [f"{row.key}  [{default_words(row)}]"]
    lines += textwrap.wrap(text, WIDTH - INDENT, initial_indent=" " * INDENT,
                           subsequent_indent=" " * INDENT)
    return lines


def help_text(trainer: str = "") -> str:
    """Returns what `--help-settings` prints: the shared settings by group, then a trainer's own.

    Args:
        trainer: The trainer whose own settings are shown; "" = a line that says how to see them.
    """
    lines: list[str] = []
    for group, title in GROUPS.items():
        lines.append(f"{group}: {title}" if group else title.capitalize())
        for row in TABLE:
            if group_of(row) == group:
                lines += entry(row)
        lines.append("")
    if not trainer:
        lines.append(
            "A method's own settings: --help-settings NAME, with one of "
            f"{', '.join(TRAINER_REGISTRY)}."
        )
        return "\n".join(lines)
    return "\n".join([*lines, *method_lines(registered_name(trainer))])


def method_rows(trainer: str) -> list[Setting]:
    """The rows of a method's own settings, also of those that a plugin adds by `extend_defaults`.
    """
    return [row for key, row in declared_rows([trainer]).items() if key not in SHARED]


def method_lines(trainer: str) -> list[str]:
    """Returns what `--help-settings` prints of a method's own settings, line by line."""
    rows = method_rows(trainer)
    if not rows:
        return [f"{method_info(trainer).label} has no settings of its own."]
    lines = [f"Settings of {method_info(trainer).label}"]
    for row in rows:
        lines += entry(row)
    return lines


def markdown_table(rows: Iterable[Setting]) -> list[str]:
    """Returns the lines of a README's table of settings."""
    lines = ["| key | default | meaning | allowed values |", "|---|---|---|---|"]
    for row in rows:
        default = "empty"
        if row.default != "":
            default = f"`{row.default}`"
        if row.auto:
            default += f": {row.auto}"
        cells = [f"`{row.key}`", default, row.help, row.allowed_words]
        escaped = [cell.replace("|", "\\|") for cell in cells]
        lines.append(f"| {' | '.join(escaped)} |")
    return lines


def readme_lines() -> Sequence[str]:
    """The tables of trainers/config/README.md: the shared settings, and those of each method."""
    lines = [FIRST_TITLE, "", *markdown_table(TABLE), ""]
    for name in sorted(TRAINER_REGISTRY, key=lambda name: method_info(name).order):
        rows = method_rows(name)
        if rows:
            lines += [f"## {method_info(name).label}", "", *markdown_table(rows), ""]
    return lines[:-1]


def update_readme(path: Path) -> None:
    """Replaces the tables of settings in a README. They are its last part."""
    text = path.read_text(encoding="utf-8")
    introduction = text.partition(f"{FIRST_TITLE}\n")[0]
    path.write_text(introduction + "\n".join(readme_lines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    update_readme(Path(sys.argv[1]))
