"""The penalties themselves: their operations, and how strong SoC's gradient is under each reading of its weight."""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...functional.objectives import balance, orthogonality, semantic_separation
from ...report.comparison import Row
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ..finished_runs import FinishedRuns
from ..vs_published import block_vs_published, published_note, with_differences
from .results import by_setting

Count = Callable[[int, int], int]  # (K, d) -> operations


class Operations(NamedTuple):
    """Operations that the value of a regulariser takes, for K classes and d features. Each addition, multiplication,
    division, root or comparison counts as one; sorting for SoC's δ is not counted."""

    products: Count  # in products of matrices
    singles: Count  # elementwise


REGULARISERS = {
    "O-TPT, cubic": Operations(
        lambda k, d: 2 * k**2 * d + 2 * k**3,  # T Tᵀ; each row through its reflector
        # three passes over the reflectors (outer product, factor, difference from I); on S: row norms, normals, their
        # squares, the final difference and its norms
        lambda k, d: 3 * k**3 + 9 * k**2,
    ),
    "O-TPT, closed form": Operations(
        lambda k, d: 2 * k**2 * d,
        lambda k, d: 2 * k**2 + 2 * k,  # squares, their sums, roots, mean
    ),
    "SoC": Operations(
        lambda k, d: 2 * k**2 * d,
        # per pair: minimum, maximum, two of the normalisation, margin, half, difference, product, sum
        lambda k, d: 9 * k * (k - 1) // 2,
    ),
}
LOSS = 0.8  # L_TPT of the simulation
WEIGHTS = {"otpt": 18.0, "soc": 30.0}  # λ
# Readings of what the paper leaves open: the weight, and through which statistics gradients flow.
READINGS = {
    "ratio": ("ratio", "detached"), "inverse": ("inverse", "detached"), "none": ("none", "detached"),
    "live": ("live", "detached"), "inverse, flow": ("inverse", "flow"),
    "inverse, flow_delta": ("inverse", "flow_delta"),
}


def complexity(finished: FinishedRuns) -> list[Table]:
    """Operations of O-TPT's and SoC's penalties by number of classes, counted: no run is needed."""
    experiment = finished.experiment
    classes, features = experiment.study["classes"], experiment.study["features"]
    cases = {
        Row("OTPT"): "O-TPT, cubic", Row("OTPT", "closed form (used here)"): "O-TPT, closed form", Row("SoC"): "SoC",
    }
    grid: dict[Row, list[Entry | None]] = {
        row: [Entry(sum(count(k, features) for count in REGULARISERS[case]) / 1e6) for k in classes]
        for row, case in cases.items()
    }
    table = experiment.published[0] if finished.compared else ""
    block = block_vs_published("MFLOPs of one penalty", grid, "ece", [str(k) for k in classes], table, "mflops")
    notes = [
        f"Forward only, text features of width {features}; the sorting behind δ is not counted.",
        "O-TPT reflects each row of the K×K similarities by a K×K matrix, as its public code does. The closed form has "
        "the same value and gradient without the reflectors.",
    ]
    if table:
        notes.append(published_note(table))
    columns = [f"{k} classes" for k in classes]
    return [with_differences(Table(experiment.name, experiment.title, columns, [block], notes))]


def scaling(finished: FinishedRuns) -> list[Table]:
    """The results by weighting, and the size of each weighting's gradient on simulated prototypes."""
    return [*by_setting(finished), gradient_sizes(finished)]


def gradient_sizes(finished: FinishedRuns) -> Table:
    """The gradient of SoC's term on the sphere, relative to O-TPT's, for each reading and number of classes."""
    classes = finished.experiment.study["classes"]
    sizes = [relative_gradients(simulated_prototypes(k)) for k in classes]
    rows = [TableRow(f"SoC, {name}", "SoC", [Entry(size[name], 3) for size in sizes]) for name in READINGS]
    notes = [
        f"Simulated unit prototypes with cosines of about 0.7 ± 0.08, as CLIP's; L_TPT = {LOSS}; "
        f"λ = {WEIGHTS['soc']:g} for SoC and {WEIGHTS['otpt']:g} for O-TPT. Not measured on any data set.",
        "1 means that SoC moves the prototypes as strongly as O-TPT does. Other spreads of the cosines give other "
        "sizes; that they fall with the number of classes, and that ratio stays far below inverse, is common to all.",
        "live also multiplies the gradient of the entropy, by 1 − λR²/H² (R: SoC's term, H: L_TPT).",
    ]
    title = "Gradient of SoC's term against O-TPT's, by weighting"
    columns = [f"{k} classes" for k in classes]
    return Table("scaling_gradients", title, columns, [RowBlock("times O-TPT's", rows)], notes)


def simulated_prototypes(classes: int, features: int = 512) -> Tensor:
    """Unit rows with a part common to all and twenty shared traits."""
    generator = torch.Generator().manual_seed(0)
    common, traits = torch.randn(features, generator=generator), torch.randn(20, features, generator=generator)
    own = torch.randn(classes, 20, generator=generator) @ traits / 20**0.5
    return F.normalize((1.5 * common + own).double(), dim=-1)


def relative_gradients(text: Tensor) -> dict[str, float]:
    """Norm of SoC's weighted gradient along the sphere, over that of λ · ∇O-TPT, by reading."""
    def along_sphere(penalty: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        leaf = text.clone().requires_grad_()
        value = penalty(leaf)
        (gradient,) = torch.autograd.grad(value, leaf)
        return value.detach(), (gradient - (gradient * text).sum(-1, keepdim=True) * text).norm()

    _, against = along_sphere(orthogonality)
    sizes = {}
    for name, (scale, statistics) in READINGS.items():
        value, gradient = along_sphere(
            lambda t, statistics=statistics: semantic_separation(t, 20, "minmax", statistics))  # type: ignore[misc]
        sizes[name] = float(penalty_factor(value, scale) * gradient / (WEIGHTS["otpt"] * against))
    return sizes


def penalty_factor(penalty: Tensor, scale: str) -> Tensor:
    """What the penalty's gradient is multiplied by in loss + weight(loss, penalty) · penalty."""
    loss = torch.tensor(LOSS, dtype=penalty.dtype)
    leaf = penalty.clone().requires_grad_()
    ratio = leaf / loss if scale == "live" else balance(loss, leaf, scale)  # only `live` is not detached
    (factor,) = torch.autograd.grad(loss + WEIGHTS["soc"] * ratio * leaf, leaf)
    return factor
