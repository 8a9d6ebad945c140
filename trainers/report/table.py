"""A table as data, in the units that are shown, and as text: terminal, Markdown, LaTeX, CSV."""
from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tabulate import tabulate

from ...datasets.utils.files import no_formula
from .words import plain_text

# In place of the number of seeds, where a mean is over data sets with unequal numbers.
UNEQUAL_SEEDS = 0
LATEX_HEAD = r"""% Needs \usepackage{booktabs,graphicx,xcolor}. Notes on tables: tables_notes.tex.
\providecommand{\better}[1]{\textcolor[rgb]{0.18,0.41,0.27}{#1}}
\providecommand{\worse}[1]{\textcolor[rgb]{0.55,0.22,0.22}{#1}}
"""
LATEX_SOURCES = "% The sources of published rows are in tables.bib.\n"
NOTES_HEAD = r"% Notes on the tables of tables.tex, for an appendix: \input{tables_notes}" + "\n"
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--",
    "−": "$-$", "±": r"$\pm$", "λ": r"$\lambda$", "“": "``", "”": "''", "δ": r"$\delta$",
    "<": "$<$", ">": "$>$", "|": "$|$", "·": r"$\cdot$", "×": r"$\times$", "\u00a0": "~",
    "≥": r"$\geq$", "≈": r"$\approx$", "μ": r"$\mu$", "Δ": r"$\Delta$", "η": r"$\eta$",
    "α": r"$\alpha$", "γ": r"$\gamma$", "²": "$^2$", "†": r"$^\dagger$", "→": r"$\to$",
    "τ": r"$\tau$", "σ": r"$\sigma$", "β": r"$\beta$", "≤": r"$\leq$", "…": r"\dots{}",
    "Σ": r"$\Sigma$", "√": r"$\surd$", "∞": r"$\infty$", "‘": "`", "’": "'",
}
LATEX_LETTERS = 0x250  # letters of higher numbers are not in the usual fonts
# Letters of \small that one column of a two-column page holds, and those that a gap between
# columns takes. A table that is wider than the estimate is scaled down.
COLUMN_LETTERS = 52
GAP_LETTERS = 2
CSV_HEAD = ("table", "block", "row", "column", "value", "std", "seeds", "low", "high", "difference",
            "best", "published")


@dataclass(frozen=True)
class Entry:
    """One cell of a table.

    Attributes:
        value: The number, in the unit of the table; NaN is shown as a dash.
        decimals: Number of decimals that are shown.
        std: Standard deviation over seeds; None for one seed.
        seeds: Number of seeds, or UNEQUAL_SEEDS.
        low: Lower end of the interval; None if there is none. Several seeds have `std` instead.
        high: Upper end of the interval.
        difference: Difference from the baseline method; None if it is not stated.
        better: Whether that difference is an improvement; None if it is not stated.
        best: Whether it is the best of its column.
        signed: Whether the value is a difference, which is always shown with its sign.
        words: Text in place of a number.
        ranked: Whether it may be the best. False if too many images failed.
    """

    value: float
    decimals: int = 1
    std: float | None = None
    seeds: int = 1
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    better: bool | None = None
    best: bool = False
    signed: bool = False
    words: str = ""
    ranked: bool = True

    def show(self, value: float) -> str:
        """A number with the decimals of this cell."""
        if self.signed:
            return f"{round(value, self.decimals) + 0.0:+.{self.decimals}f}"  # + 0.0 avoids -0.0
        return f"{value:.{self.decimals}f}"

    @property
    def text(self) -> str:
        """The cell without spread and difference."""
        if self.words:
            return self.words
        if np.isnan(self.value):
            return "–"
        return self.show(self.value)

    @property
    def spread(self) -> str:
        """`± std` over seeds, or the interval. A value that is not a number has none."""
        if self.std is not None:
            if not np.isfinite([self.value, self.std]).all():
                return ""
            return f"± {self.std:.{self.decimals}f}"
        if self.low is None or self.high is None:
            return ""
        if not np.isfinite([self.value, self.low, self.high]).all():
            return ""
        return f"[{self.show(self.low)}, {self.show(self.high)}]"

    @property
    def delta(self) -> str:
        """The difference against the baseline with its sign; "" if there is none."""
        if self.difference is None:
            return ""
        return f"{self.difference:+.{self.decimals}f}"


def text_entry(words: str) -> Entry:
    """A cell that holds words."""
    return Entry(float("nan"), words=words)


@dataclass(frozen=True)
class TableRow:
    """One row of a table.

    Attributes:
        label: What the row is called.
        method: Name of the method.
        entries: The cells, one per column; None for an empty cell.
        published: Whether the numbers are from a publication.
        cite: BibTeX key of a published row.
    """

    label: str
    method: str
    entries: Sequence[Entry | None]
    published: bool = False
    cite: str = ""


@dataclass(frozen=True)
class RowBlock:
    """Rows below a common label, such as those of one metric."""

    label: str
    rows: list[TableRow]


@dataclass(frozen=True)
class Table:
    """A table with what is said about it.

    Attributes:
        name: Name of the table, for its files and anchors.
        title: The first sentence of a caption.
        columns: Their labels.
        blocks: Blocks of rows.
        notes: Sentences below the table. LaTeX has them in a file of their own.
        facts: What the caption says besides the title, in its second sentence: images, bins, marks.
        short_columns: Labels of the columns in LaTeX, where `columns` are much wider than the
            cells; () if they are not.
        short_columns_fact: What these labels mean, for the caption.
    """

    name: str
    title: str
    columns: list[str]
    blocks: list[RowBlock]
    notes: list[str] = field(default_factory=list)
    facts: Sequence[str] = ()
    short_columns: Sequence[str] = ()
    short_columns_fact: str = ""

    @property
    def caption(self) -> str:
        """The title and the facts, in at most two sentences."""
        sentences = [f"{self.title.rstrip('.')}."]
        if self.facts:
            sentences.append(f"{'; '.join(self.facts)}.")
        return " ".join(sentences)


def with_short_columns(table: Table) -> Table:
    """The table with the short labels of its columns and a caption that explains them."""
    if not table.short_columns:
        return table
    facts = [*table.facts, table.short_columns_fact]
    return replace(table, columns=list(table.short_columns), facts=facts)


def fact_sentences(facts: Sequence[str]) -> str:
    """The facts of a caption as sentences of a note."""
    sentences = [f"{fact[0].upper()}{fact[1:]}." for fact in facts]
    return " ".join(sentences)


def terminal(table: Table) -> str:
    """A plain table; the best has a star. Control characters in names have no effect."""
    body = []
    for block in table.blocks:
        body.append([block.label, *[""] * len(table.columns)])
        for row in block.rows:
            cells = [cell_text(entry, "*{}") for entry in row.entries]
            body.append([f"  {row.label}", *cells])
    grid = tabulate(
        body, headers=["", *table.columns], disable_numparse=True, preserve_whitespace=True,
        colalign=("left", *["right"] * len(table.columns)),
    )
    return plain_text("\n".join([table.title, grid, *table.notes]))


def markdown(table: Table) -> str:
    """A table for each block, then the notes."""
    lines = [f"### {escape_markdown(table.title)}", ""]
    columns = " | ".join(escape_markdown(column) for column in table.columns)
    for block in table.blocks:
        lines.append(f"| {escape_markdown(block.label)} | {columns} |")
        lines.append(f"|:--|{'--:|' * len(table.columns)}")
        for row in block.rows:
            label = escape_markdown(row.label)
            if row.published:
                label = f"*{label}*"
            cells = " | ".join(cell_text(entry, "**{}**") for entry in row.entries)
            lines.append(f"| {label} | {cells} |")
        lines.append("")
    for note in table.notes:
        lines.append(f"{escape_markdown(note)}  ")
    return "\n".join([*lines, ""])


def cell_text(entry: Entry | None, best: str) -> str:
    """A cell as plain text; `best` is the pattern of the best ones.

    Args:
        best: Pattern such as `**{}**`.
    """
    if entry is None:
        return ""
    parts = [entry.text]
    if entry.best:
        parts = [best.format(entry.text)]
    if entry.spread:
        parts.append(entry.spread)
    if entry.delta:
        parts.append(f"({entry.delta})")
    return " ".join(parts)


def latex(table: Table) -> str:
    """A table in booktabs' style, with a caption of at most two sentences.

    Its notes are comments, so that the text can be pasted as it is. It takes one column of a
    two-column page if it fits, and is scaled down if it is too wide.
    """
    table = with_short_columns(table)
    environment = "table" if fits_one_column(table) else "table*"  # table* takes both columns
    width = len(table.columns)
    columns = " & ".join(escape_latex(column) for column in table.columns)
    lines = [f"% {escape_latex(note)}" for note in table.notes]
    lines += [
        rf"\begin{{{environment}}}[t]",
        r"\centering",
        rf"\caption{{{escape_latex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        r"\small",
        r"\setlength{\tabcolsep}{4pt}",
        r"\sbox0{%",
        rf"\begin{{tabular}}{{l{'r' * width}}}",
        r"\toprule",
        rf" & {columns} \\",
    ]
    for block in table.blocks:
        lines.append(r"\midrule")
        label = escape_latex(block.label)
        lines.append(rf"\multicolumn{{{width + 1}}}{{l}}{{\textbf{{{label}}}}} \\")
        for row in block.rows:
            cells = " & ".join(latex_cell(entry) for entry in row.entries)
            lines.append(rf"{latex_label(row)} & {cells} \\")
    # The tabular was stored in box 0. It is printed as it is if it fits, else scaled to the width.
    lines += [
        r"\bottomrule", r"\end{tabular}}",
        r"\ifdim\wd0>\linewidth \resizebox{\linewidth}{!}{\usebox0}\else \usebox0\fi",
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def latex_notes(table: Table) -> str:
    """The notes on a table as a paragraph that refers to it; "" if it has none."""
    if not table.notes:
        return ""
    notes = escape_latex(" ".join(table.notes))
    return rf"\paragraph{{Table~\ref{{tab:{table.name}}}.}} {notes}" + "\n"


def fits_one_column(table: Table) -> bool:
    """Whether a table fits one column of a two-column page at its natural size, by its letters."""
    letters = 0  # of the longest label, then of all columns
    for block in table.blocks:
        for row in block.rows:
            letters = max(letters, len(row.label))
    for at, column in enumerate(table.columns):
        widths = [len(column)]
        for block in table.blocks:
            for row in block.rows:
                widths.append(len(cell_text(row.entries[at], "{}")))
        letters += max(widths) + GAP_LETTERS
    return letters <= COLUMN_LETTERS


def latex_label(row: TableRow) -> str:
    """The label of a row; of a published one in italics, with its reference."""
    label = escape_latex(row.label)
    if row.published:
        label = rf"\textit{{{label}}}"
    if row.cite:
        label += rf"~\cite{{{row.cite}}}"
    return label


def latex_cell(entry: Entry | None) -> str:
    """A cell with its spread and its difference in smaller letters."""
    if entry is None:
        return ""
    text = escape_latex(entry.text)
    if entry.signed:
        text = signed_latex(text)
    if entry.best:
        text = rf"\textbf{{{text}}}"
    if entry.spread:
        text += rf"\,{{\scriptsize {signed_latex(escape_latex(entry.spread))}}}"
    if entry.delta:
        command = ""
        if entry.better is not None:
            command = r"\better" if entry.better else r"\worse"
        text += rf"\,{{\scriptsize ({command}{{{signed_latex(entry.delta)}}})}}"
    return text


def signed_latex(text: str) -> str:
    """A number whose signs are those of mathematics, not hyphens."""
    return text.replace("-", "$-$").replace("+", "$+$")


def to_csv(tables: Iterable[Table]) -> str:
    """One line per cell of all tables, unrounded."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for table in tables:
        for block in table.blocks:
            for row in block.rows:
                for column, entry in zip(table.columns, row.entries, strict=True):
                    if entry is not None:
                        names = [table.name, block.label, row.label, column]
                        writer.writerow(csv_line(names, row, entry))
    return out.getvalue()


def csv_line(names: Sequence[str], row: TableRow, entry: Entry) -> list[object]:
    """A line of the CSV; None becomes an empty cell.

    Args:
        names: Names of the table, the block, the row and the column.
    """
    value: object = entry.value
    if entry.words:
        value = no_formula(entry.words)  # a spreadsheet would compute text that begins with =
    seeds = entry.seeds if entry.seeds != UNEQUAL_SEEDS else None
    safe_names = [no_formula(name) for name in names]
    return [
        *safe_names, value, entry.std, seeds, entry.low,
        entry.high, entry.difference, int(entry.best), int(row.published),
    ]


def escape_markdown(text: str) -> str:
    """A text for Markdown, on one line and without formatting."""
    text = " ".join(text.split())
    return re.sub(r"[\\|*_`\[\]<>]", r"\\\g<0>", text)


def escape_latex(text: str) -> str:
    """A text for LaTeX. Letters that its usual fonts lack become question marks.

    A word with such letters is followed by a hash, so that it differs from other words.
    """
    # Without line ends: an empty line would end a paragraph inside an argument
    return " ".join(latex_word(word) for word in text.split())


def latex_word(word: str) -> str:
    """A part of a text without spaces."""
    letters = []
    has_unknown = False
    for letter in word:
        if letter in LATEX_SPECIAL:
            letters.append(LATEX_SPECIAL[letter])
        elif letter.isprintable() and ord(letter) < LATEX_LETTERS:
            letters.append(letter)
        else:
            letters.append("?")
            has_unknown = True
    if has_unknown:
        letters.append(f"[{hashlib.sha256(word.encode(errors='surrogatepass')).hexdigest()[:4]}]")
    return "".join(letters)
