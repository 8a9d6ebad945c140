"""Growth with the number of classes, up to ImageNet-21k's: the regularisers, the selection of views, the text side."""
from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from ...trainers.base import BaseTrainer
from ...trainers.config.build import build_cfg
from ...trainers.engine.tta_loop import penalty_and_gradient, text_gradient
from ...trainers.registry import TRAINER_REGISTRY, build_trainer
from ...trainers.tpt import TPT, is_regulariser
from .baseline import METHOD, fits
from .profiling import Task, extra_memory, in_fresh_process, interleaved, processor_seconds
from .records import ScalePoint
from .shapes import class_names, random_clip, random_features
from .text_cases import VIEWS, value_and_gradient

logger = logging.getLogger(__name__)

PLAIN_METHOD = "TPT"  # whose selection is every method's
NEEDED = 6e9  # bytes that so many classes may take beyond the model
LONG = 0.3  # seconds
LOGIT_SCALE = 100.0  # of OpenAI's models
WARM_UP = 1000  # up to so many classes the graph of the initial prompt is kept, and an episode begins with it


def scale(backbone: str, counts: Sequence[int], text_up_to: int) -> list[ScalePoint]:
    """Seconds and memory for each number of classes, each in a process of its own; the text side up to a number."""
    found: list[ScalePoint] = []
    for count in counts:
        logger.info("scale: %s, %d classes", backbone, count)
        if count > WARM_UP and not fits(NEEDED):
            logger.warning("%d classes may take %.0f GB, which is not free: left out", count, NEEDED / 1e9)
            continue
        points = in_fresh_process(points_at, backbone, count, count <= text_up_to)
        if points is None:
            logger.warning("%d classes did not fit into memory: left out", count)
        found += points or []
    return found


def points_at(backbone: str, classes: int, with_text: bool) -> list[ScalePoint]:
    model = random_clip(backbone)
    width = model.text_projection.shape[1]
    text, views = random_features(classes, width), random_features(1, VIEWS, width)
    methods = [method for method in map(trainer, TRAINER_REGISTRY) if is_regulariser(type(method))]
    plain = trainer(PLAIN_METHOD)
    for one in methods:
        value_and_gradient(one.penalty, text[:3])()  # for what torch loads when it is first used
    select(plain, views, text[:3])
    found = [point("regulariser", one.label, classes, value_and_gradient(one.penalty, text)) for one in methods]
    found.append(point("selection", "of 64 views", classes, lambda: select(plain, views, text)))
    if not with_text:
        return found

    whole = trainer(METHOD)

    def text_side() -> float:
        """The seconds of one episode, all that is constant in a run made before."""
        whole.use_model(model, class_names(classes))
        if classes <= WARM_UP:
            whole.adapt(views)
        penalty_and_gradient(whole, whole.prompt.text)
        started = processor_seconds()
        whole.adapt(views)
        return processor_seconds() - started

    seconds: list[float] = []
    memory = extra_memory(lambda: seconds.append(text_side()))
    return [*found, ScalePoint("text side", f"an episode of {METHOD}", classes, seconds[0], memory)]


def trainer(name: str) -> BaseTrainer:
    return build_trainer(build_cfg(name, opts=["DEVICE", "cpu"]))


def select(method: TPT, views: Tensor, text: Tensor) -> Tensor:
    """The views to learn from, and the loss's gradient at the text features: what an episode does besides."""
    scale = torch.tensor(LOGIT_SCALE)
    chosen = method.select(scale * views @ text.mT)
    return text_gradient(text, views.take_along_dim(chosen[..., None], dim=1), scale, method)[0]


def point(part: str, case: str, classes: int, task: Task) -> ScalePoint:
    """Memory is that of the first time; what takes long is not timed again."""
    started = processor_seconds()
    memory = extra_memory(task)
    seconds = processor_seconds() - started
    return ScalePoint(part, case, classes, seconds if seconds > LONG else interleaved({"": task}, 1)[""], memory)
