"""Decides how much runs at once on a device, and runs less at once when memory runs out."""
from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import ParamSpec, TypeVar

import torch

from ...datasets.utils.cli import counted, plural
from ...datasets.utils.errors import UserError, out_of_memory
from .backbone import Backbone
from .generic_tower import GenericTower
from .numerics import free_unused_memory, is_gpu, total_memory
from .text_tower import TextTower

logger = logging.getLogger(__name__)

# Class tokens of all episodes in one pass on a CPU, which is fastest while activations stay in its
# caches.
TOKENS_ON_CPU = 1024
# Share of a GPU's memory for the episodes of one pass. The rest is for the model, the features and
# the saved activations that all episodes share, and for what libraries and fragmentation take.
EPISODES_SHARE = 1 / 3
# Limit of the activations that autograd saves in a text tower, in bytes.
SAVED_BYTES = {"cpu": 4e9, "gpu": 8e9}
VIEWS_AT_ONCE = 256  # number of views that fills a GPU and bounds its memory
# On a CPU, numbers in the largest activation: from 32 MB on, malloc returns memory to the system
# after every use and pages it in again, which costs a quarter of the time.
CPU_NUMBERS_AT_ONCE = 5_000_000

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Budget:
    """How much of a batch runs at once.

    When memory runs out, a number is halved and stays so for the rest of the run: what did not fit
    once is not tried again.
    """

    episodes: int  # images whose contexts are tuned together
    classes: int  # classes in one pass of the text tower
    views: int  # views in one pass of the image tower, a power of two

    @classmethod
    def of(cls, backbone: Backbone, tower: TextTower | GenericTower, steps: int = 1) -> Budget:
        """Returns what fits by the sizes of device, model and class list.

        Args:
            backbone: The model.
            tower: The model's text tower for all classes.
            steps: Number of gradient steps of an episode.
        """
        return cls(
            episodes=episodes_within_memory(backbone.device, tower, steps),
            classes=classes_within_memory(backbone, tower.classes, tower.saved_bytes),
            views=views_within_memory(backbone),
        )

    @classmethod
    def of_images(cls, backbone: Backbone) -> Budget:
        """Returns what fits for encoding views alone, without classes."""
        return cls(episodes=1, classes=1, views=views_within_memory(backbone))

    def halve_episodes(self, at_once: int) -> str:
        """Makes the next attempt smaller: first the episodes, then the classes.

        Args:
            at_once: Number of episodes that ran out of memory together.

        Returns:
            The new number in words.
        """
        if at_once == 1:
            return self.halve_classes()
        self.episodes = ceil(at_once / 2)
        return counted(self.episodes, "episode")

    def halve_classes(self) -> str:
        """Halves the classes in one pass of the text tower. Returns the new number in words."""
        if self.classes == 1:
            raise UserError("out of memory with one class at a time: use DEVICE cpu")
        self.classes = ceil(self.classes / 2)
        return plural(self.classes, "class", "classes")

    def halve_views(self) -> str:
        """Halves the views in one pass of the image tower. Returns the new number in words."""
        if self.views == 1:
            raise UserError("out of memory with one view at a time: use DEVICE cpu")
        self.views //= 2
        return counted(self.views, "view")


def per_device(limits: dict[str, T], backbone: Backbone) -> T:
    """Returns the limit for a backbone's device.

    Args:
        limits: A limit for "cpu" and one for "gpu".
        backbone: The model.
    """
    return limits["gpu" if is_gpu(backbone.device) else "cpu"]


def episodes_within_memory(
    device: torch.device, tower: TextTower | GenericTower, steps: int,
) -> int:
    """Returns how many episodes fit into one pass of the text tower.

    Args:
        device: The device of the model.
        tower: The text tower of all classes.
        steps: Number of gradient steps of an episode. The first one is cheaper than later ones.
    """
    if not is_gpu(device):
        return max(1, TOKENS_ON_CPU // tower.tokens)
    # The first step's backward pass goes through activations that all episodes share. It holds less
    # at a time than autograd saves for one layer. Later steps save each episode's activations.
    bytes_per_episode = tower.saved_bytes / tower.layers
    if steps > 1:
        bytes_per_episode += tower.saved_bytes
    return max(1, int(EPISODES_SHARE * total_memory(device) / bytes_per_episode))


def classes_within_memory(backbone: Backbone, classes: int, saved_bytes: float) -> int:
    """Returns how many classes fit into one pass of the text tower.

    All classes, if SAVED_BYTES hold their activations, which is so up to one or two thousand. With
    more, groups are half as large as would fit, because the backward pass needs memory of its own.

    Args:
        backbone: The model.
        classes: Number of classes K.
        saved_bytes: Bytes of the activations that autograd saves for all classes.
    """
    limit = per_device(SAVED_BYTES, backbone)  # bytes
    if saved_bytes <= limit:
        return classes
    return max(1, int(classes * limit / 2 / saved_bytes))


def views_within_memory(backbone: Backbone) -> int:
    """Returns how many views fit into one pass of the image tower.

    It is a power of two, so that the usual 64 views of each image are grouped in the same way at
    any place in a batch.
    """
    if is_gpu(backbone.device):
        return VIEWS_AT_ONCE
    views = max(1, CPU_NUMBERS_AT_ONCE // backbone.activations)
    power_of_two = 1 << (views.bit_length() - 1)  # the largest one that is not above `views`
    return min(VIEWS_AT_ONCE, power_of_two)


def retry_on_oom(
    shrink: Callable[[], str], run: Callable[P, T], *args: P.args, **kwargs: P.kwargs,
) -> T:
    """Calls `run`, and calls it again with less at once each time that memory runs out.

    Args:
        shrink: A function that makes the next attempt smaller and returns its size in words, or
            raises a UserError if nothing is left to shrink.
        run: A function that may run out of memory.
        args: Arguments of `run`.
        kwargs: Keyword arguments of `run`.

    Returns:
        The result of `run`.
    """
    while True:
        try:
            return run(*args, **kwargs)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Outside the except clause, where the exception and the memory that it held are gone.
        logger.warning("out of memory: %s at once from here on", shrink())
        free_unused_memory()
