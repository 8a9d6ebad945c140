"""How strong SoC's gradient is under each reading of its weight, on simulated prototypes.

    python tests/gradient_sizes.py

prints the table of trainers/README.md. pytest does not collect this file; `test_objectives.py`
uses it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from promptcal.trainers.functional.objectives import balance, orthogonality, semantic_separation
from torch import Tensor

CLASSES = (10, 47, 100, 397, 1000)
LOSS = 0.8  # L_TPT of the simulation
WEIGHTS = {"otpt": 18.0, "soc": 30.0}  # λ
# Readings of what the paper leaves open: the weight, and through which statistics gradients flow.
READINGS = {
    "ratio": ("ratio", "detached"), "inverse": ("inverse", "detached"),
    "none": ("none", "detached"), "live": ("live", "detached"),
    "inverse, flow": ("inverse", "flow"), "inverse, flow_delta": ("inverse", "flow_delta"),
}


def simulated_prototypes(classes: int, features: int = 512) -> Tensor:
    """Unit rows with a part common to all and twenty shared traits: cosines of about 0.7 ± 0.08, as
    CLIP's."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(features, generator=generator)
    traits = torch.randn(20, features, generator=generator)
    traits_part = torch.randn(classes, 20, generator=generator) @ traits / 20**0.5
    return F.normalize((1.5 * common + traits_part).double(), dim=-1)


def along_sphere(text: Tensor, penalty: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """A penalty, and the norm of its gradient along the sphere."""
    leaf = text.clone().requires_grad_()
    value = penalty(leaf)
    (gradient,) = torch.autograd.grad(value, leaf)
    radial = (gradient * text).sum(-1, keepdim=True) * text
    return value.detach(), (gradient - radial).norm()


def relative_gradients(text: Tensor) -> dict[str, float]:
    """Norm of SoC's weighted gradient over that of λ · ∇O-TPT, by reading."""
    _, against = along_sphere(text, orthogonality)
    sizes = {}
    for name, (scale, statistics) in READINGS.items():
        value, gradient = along_sphere(
            text, lambda t, statistics=statistics: semantic_separation(t, 20, "minmax", statistics))
        sizes[name] = float(penalty_factor(value, scale) * gradient / (WEIGHTS["otpt"] * against))
    return sizes


def penalty_factor(penalty: Tensor, scale: str) -> Tensor:
    """What the penalty's gradient is multiplied by in loss + weight(loss, penalty) · penalty."""
    loss = torch.tensor(LOSS, dtype=penalty.dtype)
    leaf = penalty.clone().requires_grad_()
    # only `live` is not detached
    ratio = leaf / loss if scale == "live" else balance(loss, leaf, scale)
    (factor,) = torch.autograd.grad(loss + WEIGHTS["soc"] * ratio * leaf, leaf)
    return factor


def main() -> None:
    sizes = [relative_gradients(simulated_prototypes(classes)) for classes in CLASSES]
    print(f"| times O-TPT's | {' | '.join(f'{classes} classes' for classes in CLASSES)} |")
    print(f"|---|{'---|' * len(CLASSES)}")
    for name in READINGS:
        print(f"| SoC, {name} | {' | '.join(f'{size[name]:.3f}' for size in sizes)} |")


if __name__ == "__main__":
    main()
