"""A run's final pictures for TensorBoard. One run a method, so that TensorBoard lays them side by side."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter

from ....datasets.base import dataset_info
from ...functional.arrays import Array
from ...functional.calibration import top_class
from ...registry import method_info, zero_shot_name
from .reliability import diagram, draw_diagram
from .style import COLUMN, INK, new_figure, rendered, styled

CLOSEST = 12  # classes in the picture of confusions


def write_figures_to_tensorboard(writer: SummaryWriter, results: Mapping, columns: Mapping[str, Array]) -> None:
    """Reliability diagrams, confidence histograms and confusions of the closest classes.

    `results` is the content of results.json, `columns` are the arrays of predictions.npz. Which classes are close is
    told by the cosines of their text features, or, in a run that kept none, by how often they are taken for each other.
    """
    label, logits, zero_shot_logits = columns["label"], columns["logits"], columns["zero_shot_logits"]
    text = columns.get("text")
    similarity = None if text is None else text @ text.T
    step, bins = results["n"], results["bins"]
    where = f"{method_info(results['trainer']).label} on {dataset_info(results['dataset']).label}"
    for tag, z, method, title in (
        ("tuned", logits, results["trainer"], where),
        ("zero_shot", zero_shot_logits, zero_shot_name(), f"{where}: before tuning"),
    ):
        confidence, correct = top_class(z, label)
        picture = draw_diagram(diagram(title, method, confidence, correct, bins))
        writer.add_image(f"reliability/{tag}", pixels(picture), step, dataformats="HWC")
        writer.add_histogram(f"confidence/{tag}", confidence, step, bins=np.arange(bins + 1) / bins)
    chosen, matrix = closest_confusions(logits, label, similarity)
    if len(chosen) > 1:
        names = results.get("classnames") or [str(k) for k in range(logits.shape[1])]
        picture = draw_confusions(matrix, [names[k] for k in chosen], where)
        writer.add_image("confusion/closest_classes", pixels(picture), step, dataformats="HWC")


def closest_confusions(
    logits: Array, label: Array, similarity: Array | None = None, most: int = CLOSEST,
) -> tuple[list[int], Array]:
    """Up to `most` classes out of the closest pairs, neighbours side by side, and their part of the confusion matrix.

    Rows are true classes, columns predicted ones, values shares of the row's images.
    """
    classes = logits.shape[1]
    counts = np.bincount(label * classes + logits.argmax(axis=1), minlength=classes**2).reshape(classes, classes)
    first, second = np.triu_indices(classes, k=1)
    closeness = (counts + counts.T if similarity is None else similarity)[first, second]
    chosen: list[int] = []
    for pair in np.argsort(-closeness, kind="stable"):
        fresh = [int(k) for k in (first[pair], second[pair]) if k not in chosen]
        if closeness[pair] <= 0 or len(chosen) + len(fresh) > most:
            break
        chosen += fresh
    shares = counts[chosen] / np.maximum(counts[chosen].sum(axis=1, keepdims=True), 1)
    return chosen, shares[:, chosen]


def draw_confusions(matrix: Array, names: Sequence[str], title: str) -> Figure:
    with styled():
        figure = new_figure(COLUMN * 1.5, COLUMN * 1.4)
        axes = figure.subplots()
        axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
        for (i, j), share in np.ndenumerate(matrix):
            if share >= 0.005:
                axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=6.5,
                          color="white" if share > 0.55 else INK)
        short = [name if len(name) <= 24 else f"{name[:23]}…" for name in names]
        axes.set_xticks(range(len(names)), short, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(names)), short)
        axes.set(xlabel="predicted", ylabel="true")
        figure.suptitle(f"{title}: closest classes, % of each row", fontweight="bold", fontsize=8.5, x=0.01, ha="left")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        return figure


def pixels(figure: Figure) -> Array:
    """A figure as uint8 (H, W, 3)."""
    return rendered(figure, dpi=150)[:, :, :3]
