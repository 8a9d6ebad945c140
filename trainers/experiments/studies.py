"""Tables that experiments compute without runs.

`complexity` counts the operations of each regulariser by its formula. `theory_tables` shows what
tuning does to the similarities of classes and to the lower bound of confidence.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...datasets.base import dataset_info
from ...datasets.utils.cli import counted, plural
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.files import write_arrays
from ..base import BaseTrainer
from ..config.settings import backbone_name, path_safe
from ..functional import theory
from ..functional.arrays import Array
from ..registry import ZERO_SHOT, backbone_label, build_trainer, method_info
from ..report import published as paper
from ..report.cells import published_lines
from ..report.table import Entry, RowBlock, Table, TableRow
from ..runs.run_dir import batched
from .definition import DatasetPlace, Experiment
from .plan import Workspace, configure

logger = logging.getLogger(__name__)

Count = Callable[[int, int], int]  # (K, d) -> operations


class Operations(NamedTuple):
    """Operations that the value of a regulariser takes, for K classes and d features.

    Each addition, multiplication, division, root or comparison counts as one. The sorting behind
    SoC's δ is not counted.
    """

    products: Count  # in products of matrices
    singles: Count  # elementwise


def cubic_products(k: int, d: int) -> int:
    """Operations of O-TPT's penalty as printed, in matrix products, for k classes of d features."""
    return 2 * k**2 * d + 2 * k**3  # T Tᵀ; each row through its reflector


def cubic_singles(k: int, d: int) -> int:
    """Operations of O-TPT's penalty as printed, elementwise."""
    # Three passes over the reflectors (outer product, factor, difference from I); on S: row norms,
    # normals, their squares, the final difference and its norms.
    return 3 * k**3 + 9 * k**2


def similarity_products(k: int, d: int) -> int:
    """Operations of the cosines of all pairs of classes, in matrix products."""
    return 2 * k**2 * d


def closed_form_singles(k: int, d: int) -> int:
    """Operations of O-TPT's penalty in closed form, elementwise."""
    return 2 * k**2 + 2 * k  # squares, their sums, roots, mean


def soc_singles(k: int, d: int) -> int:
    """Operations of SoC's penalty, elementwise."""
    # Per pair: minimum, maximum, two of the normalisation, margin, half, difference, product, sum.
    return 9 * k * (k - 1) // 2


CLOSED_FORM = "closed form (used here)"
REGULARISERS: Mapping[tuple[str, str], Operations] = {  # method and variant
    ("OTPT", ""): Operations(cubic_products, cubic_singles),
    ("OTPT", CLOSED_FORM): Operations(similarity_products, closed_form_singles),
    ("SoC", ""): Operations(similarity_products, soc_singles),
}


def complexity(experiment: Experiment, is_demo: bool) -> list[Table]:
    """Operations of O-TPT's and SoC's penalties by number of classes.

    Args:
        experiment: Its study says for which numbers of classes and features.
        is_demo: Whether the paper's figures are left out.
    """
    classes: Sequence[int] = experiment.study["classes"]
    features: int = experiment.study["features"]
    published = ""
    if experiment.published and not is_demo:
        published = experiment.published[0]
    rows: list[TableRow] = []
    for (method, variant), operations in REGULARISERS.items():
        entries: list[Entry | None] = []
        for k in classes:
            count = operations.products(k, features) + operations.singles(k, features)
            entries.append(Entry(count / 1e6))
        label = method_info(method).label
        if variant:
            label += f", {variant}"
        row = TableRow(label, method, entries)
        rows.append(row)
        if published and not variant:
            cells = [paper.find(published, "mflops", method, str(k)) for k in classes]
            rows += published_lines(row, cells, with_differences=True)
    notes = [
        f"Forward only, text features of width {features}; the sorting behind δ is not counted.",
        "O-TPT reflects each row of the K×K similarities by a K×K matrix, as its public code does. "
        "The closed form has the same value and gradient without the reflectors.",
    ]
    if published:
        notes.append(
            f"Rows marked published are from {paper.where_printed(published)} and were not "
            "measured here."
        )
    columns = [f"{k} classes" for k in classes]
    block = RowBlock("MFLOPs of one penalty", rows)
    return [Table(experiment.name, experiment.title, columns, [block], notes)]


CAVEAT = (
    "The floor of Proposition 1 holds for an image feature equal to the winning prototype (v = "
    "t_i*), as its proof takes it, not for every unit v: real images may lie below it."
)


@dataclass(frozen=True)
class Adaptation:
    """Class prototypes before and after tuning on each of n images.

    Attributes:
        before: Prototypes before tuning, (K, d).
        scale: CLIP's logit scale α.
        steps: Number of tuning steps.
        zero_shot: Confidence before, (n,).
        mu: Largest similarity of two classes afterwards, (n,).
        similarity: Mean similarity of two classes afterwards, (n,).
        confidence: Confidence of the plain view afterwards, (n,).
    """

    before: Array
    scale: float
    steps: int
    zero_shot: Array
    mu: Array
    similarity: Array
    confidence: Array

    @property
    def floor(self) -> Array:
        """The lowest confidence that the coherence after tuning allows, of each image."""
        return theory.confidence_floor(self.mu, len(self.before), self.scale)


def theory_tables(experiment: Experiment, workspace: Workspace) -> Iterator[Table]:
    """For each backbone and data set: prototypes before and after tuning, and one step on them."""
    study = experiment.study
    out = workspace.outcome_dir(experiment.name)
    limited = replace(workspace, limit=workspace.limit or int(study["images"]))
    for backbone in workspace.backbones(experiment):
        for dataset in workspace.datasets(experiment):
            adapted = {}
            for method in study["methods"]:
                adapted[method] = adaptation(limited, method, dataset, backbone, out)
            first = next(iter(adapted.values()))
            cfg = configure(limited, ZERO_SHOT, dataset, backbone, 0)
            name = dataset_info(cfg.DATASET.NAME).label
            shown_backbone = cfg.MODEL.BACKBONE.LABEL or backbone_label(backbone_name(backbone))
            classes = plural(len(first.before), "class", "classes")
            where = f"{name}, {shown_backbone}, {classes}"
            table_name = f"theory_{path_safe(Path(str(dataset)).stem)}"
            yield tuning_table(table_name, where, adapted)
            yield first_order_table(f"{table_name}_first_order", where, first, float(study["step"]))


def adaptation(
    workspace: Workspace, method: str, dataset: str | DatasetPlace, backbone: str, out: Path,
) -> Adaptation:
    """Tunes on each image of a data set, and measures the prototypes.

    The result is stored in a file for later calls with the same settings, data and weights.

    Args:
        workspace: Where data is read.
        method: Name of the trainer.
        dataset: Name of the data set, or where it lies.
        backbone: Name of the backbone, as in MODEL.BACKBONE.NAME.
        out: Folder of the file.
    """
    cfg = configure(workspace, method, dataset, backbone, 0)
    trainer = build_trainer(cfg)
    dataset_name = path_safe(Path(str(dataset)).stem)
    file = out / f"adapted_{dataset_name}_{method}_{trainer.record.id[:16]}.npz"
    if file.is_file():
        with np.load(file, allow_pickle=False) as arrays:
            stored = dict(arrays)
        stored["scale"] = float(stored["scale"])
        stored["steps"] = int(stored["steps"])
        return Adaptation(**stored)
    logger.info("%s on %d images of %s, %s", method, trainer.num_images, dataset_name,
                backbone_name(backbone))
    if trainer.decide_jacobian():
        trainer.initial = trainer.with_jacobian()
    features = trainer.view_features()
    if features.files is not None:
        features.fill(features.files, trainer.dist)
    batches = []
    for batch in features.batches(batched(trainer.data.indices, trainer.numerics.episodes)):
        batches.append(tune_batch(trainer, batch.views))
    per_image = {}
    for name in TunedBatch._fields:
        per_image[name] = np.concatenate([getattr(batch, name) for batch in batches])
    computed = Adaptation(
        before=trainer.clip.text.cpu().numpy(),
        scale=float(trainer.clip.scale),
        steps=cfg.TTA.STEPS,
        **per_image,
    )
    write_arrays(file, **vars(computed))
    return computed


class TunedBatch(NamedTuple):
    """What is measured of each image of a batch, (B,); see `Adaptation`."""

    zero_shot: Array
    mu: Array
    similarity: Array
    confidence: Array


def tune_batch(trainer: BaseTrainer, views: Tensor) -> TunedBatch:
    """Tunes on each image of a batch."""
    adapted = trainer.adapt(views)
    if adapted.ctx is None:
        raise ConfigError(f"{type(trainer).__name__} tunes no context: this experiment compares "
                          f"methods that do")
    largest = []
    mean = []
    for text in trainer.clip.encoder.text(adapted.ctx):
        matrix = theory.similarity(text.cpu().numpy())
        largest.append(theory.coherence(matrix))
        mean.append(theory.pairs(matrix).mean())
    return TunedBatch(
        zero_shot=confidence_of(adapted.zero_shot_logits),
        mu=np.array(largest),
        similarity=np.array(mean),
        confidence=confidence_of(adapted.logits),
    )


def confidence_of(logits: Tensor) -> Array:
    """Probability of the top class of each image, (N,), from logits (N, K)."""
    return logits.softmax(-1).amax(-1).cpu().numpy()


def tuning_table(name: str, where: str, adapted: Mapping[str, Adaptation]) -> Table:
    """The similarities and the confidence before tuning and after it, by method.

    Args:
        name: Name of the table, for its files and anchors.
        where: Data set and backbone, in words.
        adapted: The prototypes by method.
    """
    first = next(iter(adapted.values()))
    matrix = theory.similarity(first.before)
    mu = theory.coherence(matrix)
    floor = float(theory.confidence_floor(mu, len(matrix), first.scale))
    below = first.zero_shot < floor
    rows = [
        table_row(
            "before",
            ZERO_SHOT,
            [
                (mu, 4),
                (100 * floor, 2),
                (theory.pairs(matrix).mean(), 4),
                (100 * first.zero_shot.mean(), 1),
                (100 * below.mean(), 1),
            ],
        )
    ]
    for method, data in adapted.items():
        below = data.confidence < data.floor
        rows.append(table_row(method_info(method).label, method, [
            (data.mu.mean(), 4), (100 * data.floor.mean(), 2), (data.similarity.mean(), 4),
            (100 * data.confidence.mean(), 1), (100 * below.mean(), 1)]))
    tuning = "one step of tuning"
    if first.steps != 1:
        tuning = f"{first.steps} steps of tuning"
    images = counted(len(first.mu), "test image")
    notes = [f"{images}; α = {first.scale:.1f}. μ: largest, s: mean cosine of two classes.", CAVEAT]
    columns = ["μ", "floor (%)", "mean s", "mean confidence (%)", "images below the floor (%)"]
    facts = [images, f"α = {first.scale:.1f}", "μ: largest, s: mean cosine of two classes"]
    return Table(name, f"Prototypes before and after {tuning}, {where}", columns,
                 [RowBlock("mean over images", rows)], notes, facts)


def first_order_table(name: str, where: str, data: Adaptation, step: float) -> Table:
    """The paper's step: the first-order change of the similarities next to the measured one.

    It goes along the printed gradient of the prototypes, and not of the prompt.

    Args:
        name: Name of the table, for its files and anchors.
        where: Data set and backbone, in words.
        data: The prototypes of a method.
        step: Length of the step along the gradient.
    """
    matrix = theory.similarity(data.before)
    delta = float(np.percentile(theory.pairs(matrix), 20))  # of cosines that are not normalised
    mu = theory.coherence(matrix)
    gradients = (
        ("OTPT", "O-TPT's printed gradient", 2 * matrix, theory.shift_orthogonal(matrix, step)),
        (
            "SoC",
            "Huber",
            theory.huber_slope(matrix, delta),
            theory.shift_huber(matrix, step, delta),
        ),
    )
    rows = []
    for method, gradient, slopes, shift in gradients:
        # The step itself, normalised again, against its first-order approximation.
        after = theory.similarity(theory.step_features(data.before, slopes, step))
        mu_after = theory.coherence(after)
        floor_after = float(theory.confidence_floor(mu_after, len(matrix), data.scale))
        predicted = theory.pairs(theory.on_sphere(matrix, shift))
        measured = theory.pairs(after - matrix)
        error = np.abs(measured - predicted).max() / np.abs(measured).max()
        rows.append(table_row(f"{method_info(method).label}: {gradient}", method, [
            (mu, 5), (mu_after, 5), (100 * floor_after, 4), (predicted.mean(), 6),
            (measured.mean(), 6), (100 * error, 2)]))
    columns = [
        "μ before",
        "μ after",
        "floor after (%)",
        "mean Δs, first order",
        "mean Δs, measured",
        "largest error (%)",
    ]
    notes = ["Δs ≈ −4η (S²)_ij for O-TPT against −2η (GS)_ij for Huber, zero diagonals, prototypes "
             "normalised again.", f"δ = {delta:.3f}, the 20th percentile of the cosines.", CAVEAT]
    return Table(name, f"One gradient step on the prototypes themselves, {where}", columns,
                 [RowBlock(f"η = {step:g}", rows)], notes)


def table_row(label: str, method: str, values: Sequence[tuple[float, int]]) -> TableRow:
    """A row of values, each with its decimals."""
    return TableRow(label, method, [Entry(float(value), decimals) for value, decimals in values])
