"""Accuracy and ECE against the severity of corruptions."""
from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from ...registry import method_info
from .comparison import methods_of
from .style import PAGE, new_figure, short, styled

Curves = dict[str, dict[int, tuple[float, float]]]  # by method and severity: accuracy and ECE in percent


def draw_severities(curves: Mapping[str, Curves]) -> Figure:
    """A column for each corruption, ECE above accuracy, with a curve for each method."""
    with styled():
        figure = new_figure(min(PAGE, 1 + 1.7 * len(curves)), 3.6)
        panels = figure.subplots(2, len(curves), sharex=True, sharey="row", squeeze=False)
        for column, (corruption, methods) in enumerate(curves.items()):
            for method in methods_of({corruption: methods}):
                info, points = method_info(method), sorted(methods[method].items())
                for axes, metric in zip(panels[:, column], (1, 0), strict=True):
                    axes.plot([severity for severity, _ in points], [values[metric] for _, values in points],
                              color=info.colour, marker=info.marker, markersize=3.5, linewidth=1, label=info.label)
            panels[0, column].set_title(short(corruption, 24), fontweight="bold", loc="left")
            panels[1, column].set_xlabel("severity")
            panels[1, column].set_xticks(sorted({severity for points in methods.values() for severity in points}))
        for axes in panels.flat:
            axes.grid()
        panels[0, 0].set_ylabel("ECE (%)")
        panels[0, 0].set_ylim(bottom=0)
        panels[1, 0].set_ylabel("accuracy (%)")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(7, len(labels)))
        return figure
