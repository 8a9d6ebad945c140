"""What one step of tuning does to the similarities of classes and to the lower bound of confidence."""
from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from ....datasets.base import dataset_info
from ....datasets.utils.cli import plural
from ....datasets.utils.files import write_arrays
from ...base import BaseTrainer
from ...functional import theory
from ...functional.arrays import Array
from ...registry import ZERO_SHOT, backbone_label, build_trainer, method_info
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ...runs.parts import chunks
from ..finished_runs import FinishedRuns
from ..plan import DatasetPlace, Workspace, configure

logger = logging.getLogger(__name__)

CAVEAT = (
    "The floor of Proposition 1 holds for an image feature equal to the winning prototype (v = t_i*), as its proof "
    "takes it, not for every unit v: real images may lie below it."
)


@dataclass(frozen=True)
class Adaptation:
    """Class prototypes before and after tuning on each of n images."""

    before: Array  # (K, d)
    scale: float  # α
    steps: int  # of tuning
    zero_shot: Array  # (n,), confidence before
    mu: Array  # (n,), largest similarity of two classes afterwards
    similarity: Array  # (n,), mean similarity of two classes afterwards
    confidence: Array  # (n,), of the plain view afterwards

    @property
    def floor(self) -> Array:
        return theory.confidence_floor(self.mu, len(self.before), self.scale)


def theory_tables(finished: FinishedRuns) -> Iterator[Table]:
    """For each backbone and data set: the prototypes before and after tuning, and one step on the prototypes."""
    workspace, study = finished.workspace, finished.experiment.study
    out = workspace.outcome_dir(finished.experiment.name)
    limited = replace(workspace, limit=workspace.limit or int(study["images"]))
    for backbone in workspace.backbones(finished.experiment):
        for dataset in workspace.datasets(finished.experiment):
            adapted = {method: adaptation(limited, method, dataset, backbone, out) for method in study["methods"]}
            first = next(iter(adapted.values()))
            name = dataset_info(configure(limited, "ZeroShot", dataset, backbone, 0).DATASET.NAME).label
            where = f"{name}, {backbone_label(backbone)}, {plural(len(first.before), 'class', 'classes')}"
            yield tuning_table(f"theory_{dataset}", where, adapted)
            yield first_order_table(f"theory_{dataset}_first_order", where, first, float(study["step"]))


def adaptation(
    workspace: Workspace, method: str, dataset: str | DatasetPlace, backbone: str, out: Path,
) -> Adaptation:
    """Computed once: a file in `out` keeps it for later calls with the same settings, data and weights."""
    cfg = configure(workspace, method, dataset, backbone, 0)
    trainer = build_trainer(cfg)
    file = out / f"adapted_{dataset}_{method}_{trainer.record.id[:16]}.npz"
    if file.is_file():
        with np.load(file, allow_pickle=False) as arrays:
            return Adaptation(**{**arrays, "scale": float(arrays["scale"]), "steps": int(arrays["steps"])})
    logger.info("%s on %d images of %s, %s", method, trainer.num_images, dataset, backbone)
    if trainer.decide_jacobian():
        trainer.initial = trainer.with_jacobian()
    features = trainer.view_features()
    features.fill(trainer.dist)
    batches = features.batches(chunks(trainer.data.indices, trainer.episodes))
    columns = map(np.concatenate, zip(*(episode(trainer, batch.views) for batch in batches), strict=True))
    made = Adaptation(trainer.clip.text.cpu().numpy(), float(trainer.clip.scale), cfg.TTA.STEPS, *columns)
    write_arrays(file, **vars(made))
    return made


def episode(trainer: BaseTrainer, views: Tensor) -> tuple[Array, ...]:
    """For a batch of images: confidence before; then largest and mean similarity and confidence after tuning."""
    adapted = trainer.adapt(views)
    assert adapted.ctx is not None  # these methods tune the context
    matrices = [theory.similarity(text.cpu().numpy()) for text in trainer.clip.encoder.text(adapted.ctx)]

    def confidence(logits: Tensor) -> Array:
        return logits.softmax(-1).amax(-1).cpu().numpy()

    return (
        confidence(adapted.zero_shot_logits), np.array([theory.coherence(matrix) for matrix in matrices]),
        np.array([theory.pairs(matrix).mean() for matrix in matrices]), confidence(adapted.logits),
    )


def tuning_table(name: str, where: str, adapted: Mapping[str, Adaptation]) -> Table:
    """The similarities and the confidence before tuning and after it, by method."""
    first = next(iter(adapted.values()))
    matrix = theory.similarity(first.before)
    mu = theory.coherence(matrix)
    floor = float(theory.confidence_floor(mu, len(matrix), first.scale))
    cases = [("before", ZERO_SHOT, mu, floor, theory.pairs(matrix), first.zero_shot, first.zero_shot < floor)]
    for method, data in adapted.items():
        cases.append((method_info(method).label, method, data.mu.mean(), data.floor.mean(), data.similarity,
                      data.confidence, data.confidence < data.floor))
    rows = [table_row(label, method, (mu, 4), (100 * floor, 2), (s.mean(), 4), (100 * confidence.mean(), 1),
                      (100 * below.mean(), 1))
            for label, method, mu, floor, s, confidence, below in cases]
    tuning = "one step of tuning" if first.steps == 1 else f"{first.steps} steps of tuning"
    notes = [f"{len(first.mu)} test images; α = {first.scale:.1f}. μ: largest, s: mean cosine of two classes.", CAVEAT]
    return Table(name, f"Prototypes before and after {tuning}, {where}",
                 ["μ", "floor (%)", "mean s", "mean confidence (%)", "images below the floor (%)"],
                 [RowBlock("mean over images", rows)], notes)


def first_order_table(name: str, where: str, data: Adaptation, step: float) -> Table:
    """The paper's step, along the printed gradient of the prototypes and not of the prompt: the first-order change of
    the similarities next to the measured one."""
    matrix = theory.similarity(data.before)
    delta = float(np.percentile(theory.pairs(matrix), 20))  # of cosines that are not normalised
    mu, rows = theory.coherence(matrix), []
    for method, gradient, slopes, shift in (
        ("OTPT", "O-TPT's printed gradient", 2 * matrix, theory.shift_orthogonal(matrix, step)),
        ("SoC", "Huber", theory.huber_slope(matrix, delta), theory.shift_huber(matrix, step, delta)),
    ):
        after = theory.similarity(theory.step_features(data.before, slopes, step))
        mu_after = theory.coherence(after)
        floor_after = float(theory.confidence_floor(mu_after, len(matrix), data.scale))
        predicted, measured = theory.pairs(theory.on_sphere(matrix, shift)), theory.pairs(after - matrix)
        error = np.abs(measured - predicted).max() / np.abs(measured).max()
        rows.append(table_row(f"{method_info(method).label}: {gradient}", method, (mu, 5), (mu_after, 5),
                              (100 * floor_after, 4), (predicted.mean(), 6), (measured.mean(), 6), (100 * error, 2)))
    return Table(
        name, f"One gradient step on the prototypes themselves, {where}",
        ["μ before", "μ after", "floor after (%)", "mean Δs, first order", "mean Δs, measured", "largest error (%)"],
        [RowBlock(f"η = {step:g}", rows)],
        ["Δs ≈ −4η (S²)_ij for O-TPT against −2η (GS)_ij for Huber, zero diagonals, prototypes normalised again.",
         f"δ = {delta:.3f}, the 20th percentile of the cosines.", CAVEAT],
    )


def table_row(label: str, method: str, *values: tuple[float, int]) -> TableRow:
    """Of values with their decimals."""
    return TableRow(label, method, [Entry(float(value), decimals) for value, decimals in values])
