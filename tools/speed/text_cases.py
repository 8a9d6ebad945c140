"""The text side of an episode and the regularisers, timed beside the plain way."""
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...trainers.config.build import build_cfg
from ...trainers.functional.objectives import orthogonality, semantic_separation
from ...trainers.registry import build_trainer
from ...trainers.tpt import TPT
from ...trainers.vlm.backbone import Backbone
from ...trainers.vlm.jacobian import jacobian_size
from ...trainers.vlm.loading import as_backbone
from ...trainers.vlm.openai_clip import CLIP
from .baseline import CUBES, METHOD, fits, plain_text_side, reference, text_need
from .profiling import interleaved
from .records import BaselineComparison, Growth
from .shapes import class_names, random_features

logger = logging.getLogger(__name__)

VIEWS = 64
JACOBIAN = "Jacobian"  # at the end of a case's name


def build_engine(model: CLIP | Backbone, names: Sequence[str]) -> TPT:
    """The trainer as a run has it, all that is constant in a run made beforehand."""
    trainer = build_trainer(build_cfg(METHOD, opts=["DEVICE", "cpu"]))
    trainer.use_model(model, names)
    trainer.adapt(random_features(1, VIEWS, trainer.backbone.features))
    return trainer


def with_jacobian(model: CLIP | Backbone, names: Sequence[str]) -> TPT | None:
    """With a Jacobian of random numbers, which costs the same to use; None where the default limit forbids it."""
    trainer = build_engine(model, names)
    context, features = trainer.prompt.context, trainer.backbone.features
    if jacobian_size(len(names), features, context) > trainer.cfg.TTA.JACOBIAN_GB * 1e9:
        return None
    trainer.prompt.jacobian = torch.randn(len(names), features, context.numel())
    return trainer


def text_side(
    model: CLIP | Backbone, backbone: str, counts: Sequence[int], episodes: int, rounds: int,
    plain_way: Callable[..., Callable[[], object]] = plain_text_side, need: Callable[..., int] = text_need,
) -> list[BaselineComparison]:
    """Seconds an episode for each number of classes, ascending: images one at a time, batched, with the Jacobian; and
    the plain way, which takes `need` bytes."""
    found: list[BaselineComparison] = []
    measured = None  # number of classes and seconds of the plain way where it last ran
    features = random_features(episodes, VIEWS, as_backbone(model).features)
    for count in counts:
        logger.info("text side: %s, %d classes", backbone, count)
        names = class_names(count)
        engine, product = build_engine(model, names), with_jacobian(model, names)
        together = f"{episodes} at once"
        tasks = {"one at a time": lambda e=engine: e.adapt(features[:1]), together: lambda e=engine: e.adapt(features)}
        if product:
            tasks[f"{together}, {JACOBIAN}"] = lambda e=product: e.adapt(features)
        runs = fits(need(model, count))
        seconds = interleaved({"plain": plain_way(model, names, features[0]), **tasks} if runs else tasks, rounds)
        if runs:
            measured = count, seconds.pop("plain")
        plain = measured and measured[1] * count / measured[0]
        for case, whole in seconds.items():
            ours = whole if case == "one at a time" else whole / episodes
            found.append(BaselineComparison(
                "text side", case, backbone, count, "s", ours, plain, extrapolated=bool(measured) and not runs,
            ))
    return found


def growth(
    model: CLIP, backbone: str, classes: int, views: Sequence[int], episodes: Sequence[int], rounds: int,
) -> list[Growth]:
    """How an episode's text side grows with the views and shrinks with the episodes at once."""
    logger.info("growth with views and episodes: %s, %d classes", backbone, classes)
    engine, width = build_engine(model, class_names(classes)), model.text_projection.shape[1]
    tasks, per_run = {}, {}
    for of, counts, shape in (
        ("views", views, lambda n: (min(8, max(episodes)), n, width)),
        ("episodes at once", episodes, lambda n: (n, VIEWS, width)),
    ):
        for n in counts:
            features = random_features(*shape(n))
            tasks[of, n] = lambda features=features: engine.adapt(features)
            per_run[of, n] = len(features)
    seconds = interleaved(tasks, rounds)
    return [Growth(of, backbone, n, seconds[of, n] / per_run[of, n]) for of, n in tasks]


def regularisers(counts: Sequence[int], width: int, rounds: int) -> list[BaselineComparison]:
    """O-TPT's closed form against its cubic one, and SoC's term beside them; value and gradient."""
    found, slow = [], reference()
    measured = None
    for count in counts:
        logger.info("regularisers: %d classes", count)
        text = random_features(count, width)
        tasks = {
            "O-TPT, closed form": value_and_gradient(orthogonality, text),
            "SoC": value_and_gradient(lambda t: semantic_separation(t, 20, "minmax"), text),
        }
        runs = fits(4 * CUBES * count**3)
        if runs:
            tasks["cubic"] = value_and_gradient(slow.cubic_orthogonality, text)
        seconds = interleaved(tasks, rounds)
        if runs:
            measured = count, seconds.pop("cubic")
        plain = measured and measured[1] * (count / measured[0]) ** 3
        for case, ours in seconds.items():
            found.append(BaselineComparison(
                "regulariser", case, "", count, "s", ours, plain, extrapolated=bool(measured) and not runs,
            ))
    return found


def value_and_gradient(function: Callable[[Tensor], Tensor], text: Tensor) -> Callable[[], object]:
    def run() -> object:
        leaf = text.clone().requires_grad_()
        return torch.autograd.grad(function(leaf), leaf)
    return run
