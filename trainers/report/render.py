"""Tables as text: for the terminal, as Markdown, LaTeX and CSV."""
from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable

from tabulate import tabulate

from ...datasets.utils.files import no_formula
from .sentences import plain_text
from .table_model import Entry, Table

LATEX_HEAD = r"""% Needs \usepackage{booktabs,graphicx,xcolor}; sources of published rows are in tables.bib
\providecommand{\better}[1]{\textcolor[rgb]{0.18,0.41,0.27}{#1}}
\providecommand{\worse}[1]{\textcolor[rgb]{0.55,0.22,0.22}{#1}}
"""
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "±": r"$\pm$", "λ": r"$\lambda$",
    "“": "``", "”": "''", "δ": r"$\delta$", "<": "$<$", ">": "$>$", "|": "$|$", "·": r"$\cdot$", "×": r"$\times$",
    "\u00a0": "~", "≥": r"$\geq$", "≈": r"$\approx$", "μ": r"$\mu$", "Δ": r"$\Delta$", "η": r"$\eta$", "α": r"$\alpha$",
    "²": "$^2$", "†": r"$^\dagger$", "→": r"$\to$", "τ": r"$\tau$", "σ": r"$\sigma$", "β": r"$\beta$", "≤": r"$\leq$",
    "…": r"\dots{}", "Σ": r"$\Sigma$", "√": r"$\surd$", "∞": r"$\infty$", "‘": "`", "’": "'",
}


def terminal(table: Table) -> str:
    """A plain table; the best has a star. Control characters in names have no effect."""
    body = []
    for block in table.blocks:
        body.append([block.label, *[""] * len(table.columns)])
        for row in block.rows:
            body.append([f"  {row.label}", *(_cell(entry, "*{}") for entry in row.entries)])
    grid = tabulate(
        body, headers=["", *table.columns], disable_numparse=True, preserve_whitespace=True,
        colalign=("left", *["right"] * len(table.columns)),
    )
    return plain_text("\n".join([table.title, grid, *table.notes]))


def markdown(table: Table) -> str:
    lines = [f"### {_md(table.title)}", ""]
    for block in table.blocks:
        lines.append(f"| {_md(block.label)} | {' | '.join(map(_md, table.columns))} |")
        lines.append(f"|:--|{'--:|' * len(table.columns)}")
        for row in block.rows:
            label = f"*{_md(row.label)}*" if row.published else _md(row.label)
            lines.append(f"| {label} | {' | '.join(_cell(entry, '**{}**') for entry in row.entries)} |")
        lines.append("")
    return "\n".join([*lines, *(f"{_md(note)}  " for note in table.notes), ""])


def _cell(entry: Entry | None, best: str) -> str:
    """A cell as plain text; `best` is the pattern of the best ones."""
    if entry is None:
        return ""
    text = best.format(entry.text) if entry.best else entry.text
    return " ".join(filter(None, (text, entry.spread, f"({entry.delta})" if entry.delta else "")))


def latex(table: Table) -> str:
    """A booktabs table, shrunk to the line width if it is wider; `LATEX_HEAD` goes before the first."""
    def cell(entry: Entry | None) -> str:
        if entry is None:
            return ""
        text = rf"\textbf{{{_tex(entry.text)}}}" if entry.best else _tex(entry.text)
        if entry.spread:
            text += rf"\,{{\scriptsize {_tex(entry.spread)}}}"
        if entry.delta:
            delta = entry.delta.replace("-", "$-$").replace("+", "$+$")
            command = {True: r"\better", False: r"\worse", None: ""}[entry.better]
            text += rf"\,{{\scriptsize {command}{{{delta}}}}}"
        return text

    width = len(table.columns)
    lines = [
        r"\begin{table*}[t]", r"\centering", rf"\caption{{{_tex(table.title)}. {_tex(' '.join(table.notes))}}}",
        rf"\label{{tab:{table.name}}}", r"\small", r"\setlength{\tabcolsep}{4pt}",
        r"\sbox0{%", rf"\begin{{tabular}}{{l{'r' * width}}}", r"\toprule",
        f" & {' & '.join(map(_tex, table.columns))} \\\\",
    ]
    for block in table.blocks:
        lines += [r"\midrule", rf"\multicolumn{{{width + 1}}}{{l}}{{\textbf{{{_tex(block.label)}}}}} \\"]
        for row in block.rows:
            label = rf"\textit{{{_tex(row.label)}}}" if row.published else _tex(row.label)
            label += rf"~\cite{{{row.cite}}}" if row.cite else ""
            lines.append(f"{label} & {' & '.join(cell(entry) for entry in row.entries)} \\\\")
    lines += [
        r"\bottomrule", r"\end{tabular}}",
        r"\ifdim\wd0>\linewidth \resizebox{\linewidth}{!}{\usebox0}\else \usebox0\fi", r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def to_csv(tables: Iterable[Table]) -> str:
    """One line per cell of all tables, unrounded."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", "block", "row", "column", "value", "std", "seeds", "low", "high", "difference", "best",
                     "published"])
    for table in tables:
        for block in table.blocks:
            for row in block.rows:
                for column, entry in zip(table.columns, row.entries, strict=True):
                    if entry is not None:
                        writer.writerow([  # None is an empty cell
                            *map(no_formula, (table.name, block.label, row.label, column)),
                            no_formula(entry.words) if entry.words else entry.value, entry.std,
                            entry.seeds, entry.low, entry.high, entry.difference, int(entry.best), int(row.published),
                        ])
    return out.getvalue()


def _md(text: str) -> str:
    text = " ".join(text.split())
    return re.sub(r"[\\|*_`\[\]<>]", r"\\\g<0>", text)


def _tex(text: str) -> str:
    text = " ".join(text.split())  # an empty line would end a paragraph inside an argument
    return "".join(LATEX_SPECIAL.get(c, c if c.isprintable() and ord(c) < 0x250 else "?") for c in text)
