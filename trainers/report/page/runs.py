"""The part of the report page that is about single runs."""
from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from math import isnan

from matplotlib.figure import Figure

from ....datasets.base import dataset_label
from ...registry import method_label
from ..compare import settings_of
from ..figures.reliability import draw_diagram
from ..figures.style import encode
from ..gallery import diagram
from ..measure import METRICS, Measured

CLASS_HEADS = (
    "Class", "Images", "Accuracy", "Zero-shot accuracy", "Mean confidence", "Over-confidence", "Most taken for",
)


def svg_uri(figure: Figure) -> str:
    """A figure as an SVG image that the page holds; as an image, so that ids of several do not meet."""
    return f"data:image/svg+xml;base64,{base64.b64encode(encode(figure, 'svg', dpi=100)).decode()}"


def run_section(m: Measured, thumbnails: Mapping[int, str]) -> str:
    """One run, folded: its diagram and metrics, its worst mistakes, its classes and its settings."""
    run, accuracy, ece = m.run, m.metrics["accuracy"].value, m.metrics["ece"].value
    title = f"{method_label(run.trainer)} on {dataset_label(run.dataset)}"
    head = (
        f"<summary>{escape(title)} <span>{escape(run.backbone)} · seed {run.seed} · {run.results['n']:,} images · "
        f"accuracy {100 * accuracy:.1f} · ECE {100 * ece:.1f}</span></summary>"
    )
    picture = draw_diagram(diagram([m], title))
    parts = [
        f'<div class="gallery"><figure><img alt="Reliability diagram" src="{svg_uri(picture)}" loading="lazy"></figure>'
        f"<div>{_figures_of(m)}</div></div>",
        _mistakes(m, thumbnails), _classes(m), _settings(m),
    ]
    return f'<details class="run">{head}{"".join(parts)}</details>'


def _figures_of(m: Measured) -> str:
    rows = []
    for key, interval in m.metrics.items():
        metric = METRICS[key]
        scale, digits = (100, 1) if metric.percent else (1, 3)
        spread = ""
        if interval.low == interval.low:  # not NaN
            spread = f"{scale * interval.low:.{digits}f} to {scale * interval.high:.{digits}f}"
        before = m.zero_shot_metrics.get(key)
        rows.append(
            f"<tr><td>{escape(metric.label)}</td><td>{scale * interval.value:.{digits}f}</td><td>{spread}</td>"
            f"<td>{'' if before is None else f'{scale * before.value:.{digits}f}'}</td></tr>"
        )
    return (
        '<div class="scroll"><table><thead><tr><th>Metric</th><th>Value</th><th>95 % interval</th><th>Zero-shot</th>'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _mistakes(m: Measured, thumbnails: Mapping[int, str]) -> str:
    if not m.mistakes:
        return ""
    items = []
    for mistake in m.mistakes:
        image = thumbnails.get(mistake.index)
        picture = f'<img src="{image}" alt="test image {mistake.index}">' if image else ""
        before, after = (_top_classes(top, mistake.truth) for top in (mistake.before, mistake.after))
        items.append(
            f'<div class="mistake">{picture}<div><strong>{escape(mistake.truth)}</strong>'
            f'<span class="soft">before</span>{before}<span class="soft">after</span>{after}</div></div>'
        )
    return (
        "<details open><summary>Most over-confident mistakes <span>true class in bold, top three before and after "
        f'tuning</span></summary><div class="mistakes">{"".join(items)}</div></details>'
    )


def _top_classes(top: Sequence[tuple[str, float]], truth: str) -> str:
    items = (
        f"<li{' class=true' if name == truth else ''}>{escape(name)} {100 * p:.1f} %</li>" for name, p in top
    )
    return f"<ol>{''.join(items)}</ol>"


def _classes(m: Measured) -> str:
    rows = []
    for row in m.classes:
        numbers = (row.accuracy, row.zero_shot_accuracy, row.confidence, row.gap)
        cells = "".join(
            "<td></td>" if isnan(value) else f'<td data-value="{value:.6g}">{100 * value:.1f}</td>' for value in numbers
        )
        confused = f'<td class="text">{escape(row.confused_with)}</td>'
        rows.append(f"<tr><td>{escape(row.name)}</td><td>{row.n}</td>{cells}{confused}</tr>")
    head = "".join(f"<th><button>{name}</button></th>" for name in CLASS_HEADS)
    return (
        f"<details><summary>Classes <span>{len(m.classes)}</span></summary><div class='scroll'><table class='sortable'>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _settings(m: Measured) -> str:
    facts = {key: m.run.results[key] for key in ("data_hash", "device", "precision", "seconds_per_image", "finished")
             if key in m.run.results}
    facts.update(m.run.results.get("versions") or {})
    rows = "".join(
        f"<tr><td><code>{escape(str(key))}</code></td><td class='text'><code>{escape(str(value))}</code></td></tr>"
        for key, value in {"folder": m.run.folder, **settings_of(m.run), **facts}.items()
    )
    table = f"<table><tbody>{rows}</tbody></table>"
    return f"<details><summary>Settings</summary><div class='scroll'>{table}</div></details>"
