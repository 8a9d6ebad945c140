"""The report as one HTML file that needs no network: verdict, tables, figures, then every run."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ...registry import method_colour, method_label
from ..gallery import Picture
from ..measure import Measured
from ..tables import Entry, Table
from ..verdict import Verdict
from .assets import SCRIPT, STYLE
from .runs import run_section, svg_uri


@dataclass(frozen=True)
class Page:
    """What goes into the file. `thumbnails[folder][index]` are data URIs."""

    verdicts: Sequence[Verdict]
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    measured: Sequence[Measured]
    thumbnails: Mapping[str, Mapping[int, str]]
    notes: Sequence[str]
    title: str = "Calibration report"


def render_page(page: Page) -> str:
    # What answers the first question comes first: verdict, its table, where confidence goes wrong.
    parts = {
        "Figures": [f'<div class="gallery">{"".join(map(_picture, page.pictures))}</div>'] if page.pictures else [],
        "Further tables": list(map(_table, page.tables[1:])),
        "Runs": [run_section(m, page.thumbnails.get(str(m.run.folder), {})) for m in page.measured],
    }
    anchors = {name: name.split()[-1].lower() for name, content in parts.items() if content}
    links = "".join(f'<a href="#{anchor}">{name}</a>' for name, anchor in anchors.items())
    sections = [
        *(_verdict(verdict) for verdict in page.verdicts), f"<nav>{links}</nav>", _notes(page.notes),
        *map(_table, page.tables[:1]),
    ]
    for name, anchor in anchors.items():
        sections += [f'<h2 id="{anchor}">{name}</h2>', *parts[name]]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(page.title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(page.title)}</h1>{''.join(sections)}<script>{SCRIPT}</script></body></html>\n"
    )


def _verdict(verdict: Verdict) -> str:
    rows = []
    largest = max(line.ece for line in verdict.lines) or 1
    for line in verdict.lines:
        best = " best" if line.method == verdict.best else ""
        look = f"width:{100 * line.ece / largest:.1f}%;background:{method_colour(line.method)}"
        rows.append(
            f'<div class="name{best}">{escape(method_label(line.method))}</div>'
            f'<div><div class="bar" style="{look}"></div></div><div class="value{best}">{line.ece:.1f} '
            f'<span class="soft">· {escape(line.direction)} · accuracy {line.accuracy:.1f}</span></div>'
        )
    return (
        f'<section><p class="verdict">{escape(verdict.sentence)}</p><div class="bars" role="img" '
        f'aria-label="ECE of each method in percent">{"".join(rows)}</div>'
        f'<p class="soft">{escape(verdict.basis)}</p></section>'
    )


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col"><button>{escape(column)}</button></th>' for column in ["", *table.columns])
    heads = heads.replace("<button></button>", "<button>Method</button>", 1)
    bodies = []
    for block in table.blocks:
        span = len(table.columns) + 1
        rows = [f'<tr class="block"><th colspan="{span}" scope="rowgroup">{escape(block.label)}</th></tr>']
        for row in block.rows:
            dot = f'<span class="dot" style="background:{method_colour(row.method)}"></span>'
            cells = "".join(map(_cell, row.entries))
            kind = ' class="published"' if row.published else ""
            rows.append(f'<tr{kind}><td data-value="{escape(row.label)}">{dot}{escape(row.label)}</td>{cells}</tr>')
        bodies.append(f"<tbody>{''.join(rows)}</tbody>")
    return (
        f'<h3 id="{escape(table.name)}">{escape(table.title)}</h3><div class="scroll"><table class="sortable">'
        f"<thead><tr>{heads}</tr></thead>{''.join(bodies)}</table></div>{_notes(table.notes)}"
    )


def _cell(entry: Entry | None) -> str:
    if entry is None:
        return '<td data-value=""></td>'
    extra = f" <small>{escape(entry.spread)}</small>" if entry.spread else ""
    if entry.delta:
        tone = {True: ' class="good"', False: ' class="bad"', None: ""}[entry.better]
        extra += f" <small{tone}>({escape(entry.delta)})</small>"
    best = ' class="best"' if entry.best else ""
    return f'<td{best} data-value="{entry.value:.6g}">{entry.text}{extra}</td>'


def _picture(picture: Picture) -> str:
    wide = ' class="wide"' if picture.figure.get_figwidth() > 4.5 else ""
    return (
        f'<figure{wide}><img alt="{escape(picture.caption)}" src="{svg_uri(picture.figure)}" loading="lazy">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )
