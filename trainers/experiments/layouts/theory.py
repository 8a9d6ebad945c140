"""The experiment `theory`: what one step does to similarities of classes and to the floor of confidence."""
from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ....datasets.base import dataset_info
from ....datasets.utils.files import write_arrays
from ...config.safe_yaml import read_yaml
from ...functional import theory
from ...functional.arrays import Array
from ...registry import build_trainer, method_info, zero_shot_name
from ...report.figures.class_pairs import Spread, draw_spread, spread
from ...report.gallery import NamedFigure
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ..definition import dataset_file
from ..finished_runs import Material
from ..plan import configure
from . import Shown

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


def show(material: Material) -> Shown:
    """Adapts a few images with each method; for the prototypes themselves, sets first order beside measurement."""
    tables, pictures = [], []
    place, experiment = material.place, material.experiment
    out = place.outcome(experiment.name)
    for backbone in place.backbones(experiment):
        for dataset in experiment.demo.datasets if place.demo else experiment.datasets:
            found = {
                method: adaptation(material, method, dataset, backbone, out) for method in experiment.study["methods"]
            }
            made = illustrate(found, dataset, backbone, float(experiment.study["step"]))
            tables += made[0]
            pictures += made[1]
    return tables, pictures


def adaptation(material: Material, method: str, dataset: str, backbone: str, out: Path) -> Adaptation:
    """Taken from an earlier study under the same circumstances, or made and kept."""
    images = material.place.limit or material.experiment.study["images"]
    cfg = configure(replace(material.place, limit=images), method, dataset, backbone, 0)
    trainer = build_trainer(cfg)
    trainer.build_data()
    trainer.fingerprint = trainer.make_fingerprint()
    circumstances = hashlib.sha256(json.dumps(trainer.fingerprint, sort_keys=True).encode()).hexdigest()[:16]
    kept = out / f"adapted_{dataset}_{method}_{circumstances}.npz"
    if kept.is_file():
        with np.load(kept, allow_pickle=False) as file:
            return Adaptation(**{**file, "scale": float(file["scale"]), "steps": int(file["steps"])})
    logger.info("%s on %d images of %s, %s", method, len(trainer.indices), dataset, backbone)
    trainer.build_model()
    made = Adaptation(trainer.prompt.text.cpu().numpy(), float(trainer.scale), cfg.TTA.STEPS, *map(np.concatenate, zip(
        *episodes(trainer), strict=True)))
    write_arrays(kept, **vars(made))
    return made


def episodes(trainer) -> Iterator[tuple[Array, ...]]:
    """For each batch of images: confidence before, then μ, mean similarity and confidence after the step."""
    for batch in trainer.feature_batches([trainer.indices]):
        adapted = trainer.adapt(batch.views)
        matrices = [theory.similarity(text.cpu().numpy()) for text in trainer.prompt.tower.text(adapted.ctx)]

        def sure(logits: torch.Tensor) -> Array:
            return logits.softmax(-1).amax(-1).cpu().numpy()

        yield (
            sure(adapted.zero_shot_logits), np.array([theory.coherence(m) for m in matrices]),
            np.array([theory.pairs(m).mean() for m in matrices]), sure(adapted.logits),
        )


def illustrate(
    found: dict[str, Adaptation], dataset: str, backbone: str, step: float,
) -> tuple[list[Table], list[NamedFigure]]:
    first = next(iter(found.values()))
    matrix = theory.similarity(first.before)
    mu = theory.coherence(matrix)
    classes, name = len(matrix), dataset_info(read_yaml(dataset_file(dataset))["DATASET"]["NAME"]).label
    floor = float(theory.confidence_floor(mu, classes, first.scale))
    where = f"{name}, {backbone}, {classes} classes"
    tuning = "one step of tuning" if first.steps == 1 else f"{first.steps} steps of tuning"

    before = first.zero_shot
    rows = [line("before", zero_shot_name(), mu, floor, theory.pairs(matrix).mean(), before, before < floor)]
    for method, data in found.items():
        rows.append(line(method_info(method).label, method, data.mu.mean(), data.floor.mean(), data.similarity.mean(),
                         data.confidence, data.confidence < data.floor))
    tuned = Table(
        f"theory_{dataset}", f"Prototypes before and after {tuning}, {where}", COLUMNS,
        [RowBlock("mean over images", rows)],
        [f"{len(first.mu)} test images; α = {first.scale:.1f}. μ: largest, s: mean cosine of two classes.", CAVEAT],
    )
    steps = {method: prototype_step(first.before, first.scale, method, step) for method in PRINTED}
    lines = []
    for method, data in steps.items():
        error = np.abs(data.measured - data.predicted).max() / np.abs(data.measured).max()
        values = [(data.mu_before, 5), (data.mu_after, 5), (100 * data.floor_after, 4), (data.predicted.mean(), 6),
                  (data.measured.mean(), 6), (100 * error, 2)]
        entries = [Entry(float(value), decimals) for value, decimals in values]
        lines.append(TableRow(f"{method_info(method).label}: {PRINTED[method]}", method, entries))
    shifted = Table(
        f"theory_{dataset}_first_order", f"One gradient step on the prototypes themselves, {where}",
        ["μ before", "μ after", "floor after (%)", "mean Δs, first order", "mean Δs, measured", "largest error (%)"],
        [RowBlock(f"η = {step:g}", lines)],
        ["Δs ≈ −4η (S²)_ij for O-TPT against −2η (GS)_ij for Huber, zero diagonals, prototypes normalised again.",
         f"δ = {margin(matrix):.3f}, the 20th percentile of the cosines.", CAVEAT],
    )
    tuned_picture = {
        method: Spread(mu, float(data.mu.mean()), floor, float(data.floor.mean())) for method, data in found.items()
    }
    captions = (
        f"What {tuning} does to the prototypes, mean over {len(first.mu)} images, {where}.",
        f"One gradient step (η = {step:g}) on the prototypes themselves, {where}: first order against measurement.",
    )
    return [tuned, shifted], [
        NamedFigure(f"theory_{dataset}", captions[0], draw_spread(tuned_picture, f"{where}: {tuning}")),
        NamedFigure(f"theory_{dataset}_first_order", captions[1],
                draw_spread(steps, f"{where}: one step on the prototypes")),
    ]


def line(label: str, method: str, mu: float, floor: float, s: float, confidence: Array, below: Array) -> TableRow:
    values = [(mu, 4), (100 * floor, 2), (s, 4), (100 * confidence.mean(), 1), (100 * below.mean(), 1)]
    return TableRow(label, method, [Entry(float(value), decimals) for value, decimals in values])


def margin(matrix: Array) -> float:
    """δ for cosines that are not normalised."""
    return float(np.percentile(theory.pairs(matrix), 20))


def prototype_step(before: Array, scale: float, method: str, step: float) -> Spread:
    """The paper's step: along the printed gradient of the prototypes, not of the prompt."""
    matrix = theory.similarity(before)
    delta = margin(matrix)
    if method == "OTPT":
        slopes, shift = 2 * matrix, theory.shift_orthogonal(matrix, step)
    else:
        slopes, shift = theory.huber_slope(matrix, delta), theory.shift_huber(matrix, step, delta)
    return spread(before, theory.step_features(before, slopes, step), scale, theory.on_sphere(matrix, shift))
