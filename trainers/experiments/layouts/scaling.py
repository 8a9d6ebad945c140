"""SoC's weightings: results, and how strongly each is felt on simulated prototypes."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...functional.objectives import balance, live_weights, orthogonality, semantic_separation
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ..finished_runs import Material
from . import Shown, setting

LOSS = 0.8  # L_TPT of the simulation  # L_TPT of the simulation
WEIGHTS = {"otpt": 18.0, "soc": 30.0}  # λ  # λ
# Readings of what the paper leaves open: the weight, and through which statistics gradients run.
READINGS = {
    "ratio": ("ratio", "detached"), "inverse": ("inverse", "detached"), "none": ("none", "detached"),
    "live": ("live", "detached"), "inverse, flow": ("inverse", "flow"),
    "inverse, flow_delta": ("inverse", "flow_delta"),
}


def show(material: Material) -> Shown:
    tables, pictures = setting.show(material)
    return [*tables, *gradient_sizes(material)], pictures


def gradient_sizes(material: Material) -> list[Table]:
    """The gradient of SoC's term on the sphere, relative to O-TPT's, for each reading and number of classes."""
    classes = material.experiment.study["classes"]
    felt = [relative_gradients(simulated_prototypes(k)) for k in classes]
    rows = [TableRow(f"SoC, {name}", "SoC", [Entry(sizes[name], 3) for sizes in felt]) for name in READINGS]
    notes = [
        f"Simulated unit prototypes with cosines of about 0.7 ± 0.08, as CLIP's; L_TPT = {LOSS}; "
        f"λ = {WEIGHTS['soc']:g} for SoC and {WEIGHTS['otpt']:g} for O-TPT. Not measured on any data set.",
        "1 means that SoC moves the prototypes as strongly as O-TPT does. Other spreads of the cosines give other "
        "sizes; that they fall with the number of classes, and that ratio stays far below inverse, is common to all.",
        "live also multiplies the gradient of the entropy, by 1 − λR²/H² (R: SoC's term, H: L_TPT).",
    ]
    title = "Gradient of SoC's term against O-TPT's, by weighting"
    columns = [f"{k} classes" for k in classes]
    return [Table("scaling_gradients", title, columns, [RowBlock("times O-TPT's", rows)], notes)]


def simulated_prototypes(classes: int, features: int = 512) -> Tensor:
    """Unit rows with a part common to all and twenty shared traits."""
    generator = torch.Generator().manual_seed(0)
    common, traits = torch.randn(features, generator=generator), torch.randn(20, features, generator=generator)
    own = torch.randn(classes, 20, generator=generator) @ traits / 20**0.5
    return F.normalize((1.5 * common + own).double(), dim=-1)


def relative_gradients(text: Tensor) -> dict[str, float]:
    """Norm of SoC's weighted gradient along the sphere, over that of λ · ∇O-TPT, by reading."""
    def along_sphere(penalty) -> tuple[Tensor, Tensor]:
        leaf = text.clone().requires_grad_()
        value = penalty(leaf)
        (slope,) = torch.autograd.grad(value, leaf)
        return value.detach(), (slope - (slope * text).sum(-1, keepdim=True) * text).norm()

    _, against = along_sphere(orthogonality)
    loss, found = torch.tensor(LOSS, dtype=text.dtype), {}
    for name, (scale, statistics) in READINGS.items():
        value, slope = along_sphere(lambda t, statistics=statistics: semantic_separation(t, 20, "minmax", statistics))
        if scale == "live":
            weight = live_weights(loss, value, WEIGHTS["soc"])[1]
        else:
            weight = WEIGHTS["soc"] * balance(loss, value, scale)
        found[name] = float(weight * slope / (WEIGHTS["otpt"] * against))
    return found
