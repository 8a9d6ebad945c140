"""What one step of tuning does to the similarities of classes and to the lower bound of confidence."""
from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from ....datasets.base import dataset_info
from ....datasets.utils.files import write_arrays
from ...base import BaseTrainer
from ...config.safe_yaml import read_yaml
from ...functional import theory
from ...functional.arrays import Array
from ...registry import backbone_label, build_trainer, method_info, zero_shot_name
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ...runs.parts import chunks
from ..definition import dataset_file
from ..finished_runs import FinishedRuns
from ..plan import Workspace, configure

logger = logging.getLogger(__name__)

CAVEAT = (
    "The floor of Proposition 1 holds for an image feature equal to the winning prototype (v = t_i*), as its proof "
    "takes it, not for every unit v: real images may lie below it."
)
COLUMNS = ["μ", "floor (%)", "mean s", "mean confidence (%)", "images below the floor (%)"]
PRINTED = {"OTPT": "O-TPT's printed gradient", "SoC": "Huber"}


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


@dataclass(frozen=True)
class Study:
    """Each method's adaptation to a few images of one data set."""

    dataset: str
    where: str  # for titles
    step: float  # η of the step on the prototypes themselves
    adapted: dict[str, Adaptation]  # by method

    @property
    def first(self) -> Adaptation:
        return next(iter(self.adapted.values()))

    @property
    def tuning(self) -> str:
        return "one step of tuning" if self.first.steps == 1 else f"{self.first.steps} steps of tuning"

    @property
    def mu(self) -> float:
        """Largest similarity of two classes before tuning."""
        return theory.coherence(theory.similarity(self.first.before))

    @property
    def floor(self) -> float:
        return float(theory.confidence_floor(self.mu, len(self.first.before), self.first.scale))

    def prototype_steps(self) -> dict[str, PrototypeStep]:
        return {method: prototype_step(self.first.before, self.first.scale, method, self.step) for method in PRINTED}


@dataclass(frozen=True)
class PrototypeStep:
    """The prototypes before and after a step; Δs of all pairs, predicted to first order and measured."""

    mu_before: float
    mu_after: float
    floor_after: float
    predicted: Array  # (K(K−1)/2,)
    measured: Array  # (K(K−1)/2,)


def theory_tables(finished: FinishedRuns) -> list[Table]:
    return [make(study) for study in studies(finished) for make in (tuning_table, first_order_table)]


def studies(finished: FinishedRuns) -> Iterator[Study]:
    """One per backbone and data set."""
    workspace, study = finished.workspace, finished.experiment.study
    out = workspace.outcome_dir(finished.experiment.name)
    limited = replace(workspace, limit=workspace.limit or int(study["images"]))
    for backbone in workspace.backbones(finished.experiment):
        for dataset in workspace.datasets(finished.experiment):
            adapted = {method: adaptation(limited, method, dataset, backbone, out) for method in study["methods"]}
            name = dataset_info(read_yaml(dataset_file(dataset))["DATASET"]["NAME"]).label
            classes = len(next(iter(adapted.values())).before)
            where = f"{name}, {backbone_label(backbone)}, {classes} classes"
            yield Study(dataset, where, float(study["step"]), adapted)


def adaptation(workspace: Workspace, method: str, dataset: str, backbone: str, out: Path) -> Adaptation:
    """Computed once: a file in `out` keeps it for later calls with the same settings, data and weights."""
    cfg = configure(workspace, method, dataset, backbone, 0)
    trainer = build_trainer(cfg)
    trainer.build_data()
    digest = hashlib.sha256(json.dumps(dict(trainer.fingerprint), sort_keys=True).encode()).hexdigest()[:16]
    file = out / f"adapted_{dataset}_{method}_{digest}.npz"
    if file.is_file():
        with np.load(file, allow_pickle=False) as arrays:
            return Adaptation(**{**arrays, "scale": float(arrays["scale"]), "steps": int(arrays["steps"])})
    logger.info("%s on %d images of %s, %s", method, len(trainer.indices), dataset, backbone)
    trainer.build_model()
    columns = map(np.concatenate, zip(*(episode(trainer, views) for views in view_features(trainer)), strict=True))
    made = Adaptation(trainer.prompt.text.cpu().numpy(), float(trainer.scale), cfg.TTA.STEPS, *columns)
    write_arrays(file, **vars(made))
    return made


def view_features(trainer: BaseTrainer) -> Iterator[Tensor]:
    """The view features (B, V, d) of the run's images, batch by batch."""
    features = trainer.view_features(trainer.num_views)
    features.fill_cache(trainer.dist)
    return (batch.views for batch in features.batches(chunks(trainer.indices, trainer.cfg.TTA.EPISODES)))


def episode(trainer: BaseTrainer, views: Tensor) -> tuple[Array, ...]:
    """For a batch of images: confidence before; then largest and mean similarity and confidence after tuning."""
    adapted = trainer.adapt(views)
    assert adapted.ctx is not None  # these methods tune the context
    matrices = [theory.similarity(text.cpu().numpy()) for text in trainer.prompt.tower.text(adapted.ctx)]

    def confidence(logits: Tensor) -> Array:
        return logits.softmax(-1).amax(-1).cpu().numpy()

    return (
        confidence(adapted.zero_shot_logits), np.array([theory.coherence(matrix) for matrix in matrices]),
        np.array([theory.pairs(matrix).mean() for matrix in matrices]), confidence(adapted.logits),
    )


def tuning_table(study: Study) -> Table:
    """The similarities and the confidence before tuning and after it, by method."""
    first, matrix = study.first, theory.similarity(study.first.before)
    rows = [line("before", zero_shot_name(), study.mu, study.floor, theory.pairs(matrix).mean(), first.zero_shot,
                 first.zero_shot < study.floor)]
    for method, data in study.adapted.items():
        rows.append(line(method_info(method).label, method, data.mu.mean(), data.floor.mean(), data.similarity.mean(),
                         data.confidence, data.confidence < data.floor))
    return Table(
        f"theory_{study.dataset}", f"Prototypes before and after {study.tuning}, {study.where}", COLUMNS,
        [RowBlock("mean over images", rows)],
        [f"{len(first.mu)} test images; α = {first.scale:.1f}. μ: largest, s: mean cosine of two classes.", CAVEAT],
    )


def first_order_table(study: Study) -> Table:
    """For the prototypes themselves: the first-order change of the similarities beside the measured one."""
    rows = []
    for method, moved in study.prototype_steps().items():
        error = np.abs(moved.measured - moved.predicted).max() / np.abs(moved.measured).max()
        values = [(moved.mu_before, 5), (moved.mu_after, 5), (100 * moved.floor_after, 4),
                  (moved.predicted.mean(), 6), (moved.measured.mean(), 6), (100 * error, 2)]
        entries: list[Entry | None] = [Entry(float(value), decimals) for value, decimals in values]
        rows.append(TableRow(f"{method_info(method).label}: {PRINTED[method]}", method, entries))
    return Table(
        f"theory_{study.dataset}_first_order", f"One gradient step on the prototypes themselves, {study.where}",
        ["μ before", "μ after", "floor after (%)", "mean Δs, first order", "mean Δs, measured", "largest error (%)"],
        [RowBlock(f"η = {study.step:g}", rows)],
        ["Δs ≈ −4η (S²)_ij for O-TPT against −2η (GS)_ij for Huber, zero diagonals, prototypes normalised again.",
         f"δ = {margin(theory.similarity(study.first.before)):.3f}, the 20th percentile of the cosines.", CAVEAT],
    )


def line(label: str, method: str, mu: float, floor: float, s: float, confidence: Array, below: Array) -> TableRow:
    values = [(mu, 4), (100 * floor, 2), (s, 4), (100 * confidence.mean(), 1), (100 * below.mean(), 1)]
    return TableRow(label, method, [Entry(float(value), decimals) for value, decimals in values])


def margin(matrix: Array) -> float:
    """δ for cosines that are not normalised."""
    return float(np.percentile(theory.pairs(matrix), 20))


def prototype_step(before: Array, scale: float, method: str, step: float) -> PrototypeStep:
    """The paper's step: along the printed gradient of the prototypes, not of the prompt."""
    matrix = theory.similarity(before)
    delta = margin(matrix)
    if method == "OTPT":
        slopes, shift = 2 * matrix, theory.shift_orthogonal(matrix, step)
    else:
        slopes, shift = theory.huber_slope(matrix, delta), theory.shift_huber(matrix, step, delta)
    after = theory.similarity(theory.step_features(before, slopes, step))
    mu = theory.coherence(after)
    floor = float(theory.confidence_floor(mu, len(before), scale))
    predicted = theory.pairs(theory.on_sphere(matrix, shift))
    return PrototypeStep(theory.coherence(matrix), mu, floor, predicted, theory.pairs(after - matrix))
