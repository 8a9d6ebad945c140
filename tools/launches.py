"""Counts the operations that a GPU must be told to do for each image, without a GPU.

A cached image on a GPU takes as long as the host needs to launch its operations. Their number
depends neither on the width of the model nor on the speed of the machine, so it is counted on the
second device of `far_device`, for a text tower of ViT-B/16's depth that is thin. Fused attention
counts as the operations that it is made of, so a GPU has fewer.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass

import torch
from promptcal.tools import far_device
from promptcal.tools.far_device import Counts
from promptcal.tools.measuring import class_names, random_clip, random_features
from promptcal.trainers.api import build_method
from promptcal.trainers.config.build import build_cfg
from promptcal.trainers.engine.adapted import Adapted
from promptcal.trainers.vlm.loading import as_backbone
from promptcal.trainers.vlm.numerics import EPISODES_ON_GPU
from promptcal.trainers.vlm.text_encoder import TextEncoder

METHOD = "SoC"
REAL_SHAPE = "ViT-B/16"  # model whose memory decides how many episodes run in one pass
THIN_SHAPE = "thin"  # model whose operations are counted
NUM_VIEWS = 64
FEW_EPISODES = 8
GOALS = {100: 250, 1000: 350}  # launches per image with default settings, by number of classes


@dataclass(frozen=True)
class Launches:
    """The number of operations that one image takes.

    Attributes:
        classes: Number of classes.
        episodes: Number of images that are adapted at once.
        jacobian: Whether gradients go through a Jacobian.
        per_image: Launches per image.
        goal: Largest number that reaches the goal; None if there is no goal.
    """

    classes: int
    episodes: int
    jacobian: bool
    per_image: float
    goal: int | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None if there is none."""
        if self.goal is None:
            return None
        return self.per_image <= self.goal


def count_launches(all_classes: bool = True) -> list[Launches]:
    """Counts the launches per image of a run with stored view features, with and without Jacobian.

    They are counted in another process: torch cannot compute gradients on a device that is
    registered after the first backward pass.

    Args:
        all_classes: Whether the larger number of classes is counted too, which takes a minute.

    Returns:
        The counts; empty if this version of torch can have no second device.
    """
    if not far_device.available():
        return []
    command = [sys.executable, "-m", "promptcal.tools.launches", json.dumps(all_classes)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    last_line = output.splitlines()[-1]
    return [Launches(**row) for row in json.loads(last_line)]


def count_in_this_process(all_classes: bool = True) -> list[Launches]:
    """Counts as `count_launches` does. This process must not have run a backward pass.

    Args:
        all_classes: Whether the larger number of classes is counted too, which takes a minute.
    """
    far_device.register()
    rows = []
    for classes, goal in GOALS.items():
        if classes > min(GOALS) and not all_classes:
            continue
        rows.append(count(classes, EPISODES_ON_GPU, goal=goal))
        rows.append(count(classes, FEW_EPISODES))
    rows.append(count(100, EPISODES_ON_GPU, jacobian=True))
    return rows


@torch.no_grad()
def count(
    classes: int, episodes: int, jacobian: bool = False, goal: int | None = None,
) -> Launches:
    """Counts launches while a batch is adapted and CoTS's temperatures of a part are solved.

    Args:
        classes: Number of classes.
        episodes: Number of images in the batch.
        jacobian: Whether gradients go through a Jacobian.
        goal: Goal for the launches per image; None = there is none.
    """
    cfg = build_cfg(METHOD, opts=["MODEL.PREC", "fp32"])
    names = class_names(classes)
    model = random_clip(THIN_SHAPE).to(far_device.NAME)
    width = model.text_projection.shape[1]
    method = build_method(cfg, model, names)
    clip = method.clip
    if jacobian:
        numbers = torch.randn(classes, width, clip.context.numel())
        clip = method.clip = clip.with_jacobian(numbers.to(far_device.NAME))
    real = as_backbone(random_clip(REAL_SHAPE).to(far_device.NAME))
    clip.budget.episodes = TextEncoder(real, clip.encoder.class_tokens).budget.episodes
    features = random_features(episodes, NUM_VIEWS, width).to(far_device.NAME)
    method.adapt(features[:1])  # computes what is constant in a run

    Counts.clear()
    adapted: Adapted = method.adapt(features)
    of_batch = Counts.launches.total()
    adapted.with_cots()
    of_part = Counts.launches.total() - of_batch
    return Launches(
        classes=classes,
        episodes=episodes,
        jacobian=jacobian,
        per_image=of_batch / episodes + of_part / cfg.TEST.PART,
        goal=goal,
    )


if __name__ == "__main__":
    counts = count_in_this_process(json.loads(sys.argv[1]))
    print(json.dumps([asdict(row) for row in counts]))
