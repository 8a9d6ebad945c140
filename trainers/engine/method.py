"""Declares the interface of a method that the engine uses."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from torch import Tensor
from yacs.config import CfgNode

from ...datasets.build import EvalData
from ..runs.dist import Distributed
from ..vlm.numerics import Numerics
from ..vlm.prompted_clip import PromptedCLIP
from .adapted import Adapted


class Method(Protocol):
    """A method with its settings, model and data. `BaseTrainer` is one."""

    cfg: CfgNode
    dist: Distributed
    online: bool  # carries state from image to image

    @property
    def data(self) -> EvalData:
        """The images of the run."""

    @property
    def clip(self) -> PromptedCLIP:
        """The model with class names and the initial prompt."""

    @property
    def numerics(self) -> Numerics:
        """Device, precision, and how many images are adapted at once."""

    @property
    def num_views(self) -> int:
        """Number of views of each image that the method uses."""

    def adapt(self, views: Tensor) -> Adapted:
        """Predictions for B images, given as unit view features (B, V, d)."""

    def state(self) -> Mapping[str, np.ndarray]:
        """Online methods: a copy of the state."""

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Online methods: restores a state that `state()` returned."""
