"""The slow, obvious episode that everything is compared with. It lives with the tests, and so does the
public way of making views; an installed package has copies beside this file."""
from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

from torch import Tensor

from ...datasets.utils.errors import UserError
from ...trainers.vlm.openai_clip import CLIP
from .profiling import available_memory

METHOD, WEIGHT = "SoC", 30.0  # whose episodes are timed; the others differ by less than a hundredth

FLOATS_KEPT = 22  # that the plain text tower keeps for its backward pass: a layer, a token and a unit of width
CUBES = 7  # K×K×K tensors that the cubic O-TPT holds at once, its backward pass included


def reference(module: str = "reference") -> ModuleType:
    for name in (f"{__package__}.{module}", module):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise UserError(f"the benchmark compares with tests/{module}.py, which is not there: run tools/benchmark.py of a "
                    f"whole checkout, or install the package")


class GivenFeatures:
    """A CLIP whose images are encoded already: what is left of an episode is its text side."""

    def __init__(self, model: CLIP) -> None:
        self.model = model

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def encode_image(self, features: Tensor) -> Tensor:
        return features


def plain_text_side(model: CLIP, names: list[str], features: Tensor) -> Callable[[], object]:
    """The reference's episode on view features (V, d)."""
    slow = reference()
    return lambda: slow.run_episode(GivenFeatures(model), names, features, METHOD, WEIGHT)


def text_need(model: CLIP, classes: int) -> int:
    """Bytes that the plain text tower takes for all 77 tokens of this many classes, about."""
    width, layers = model.transformer.width, model.transformer.layers
    return 4 * FLOATS_KEPT * classes * model.context_length * width * layers


def fits(need: int) -> bool:
    """Whether so many bytes can be had without troubling others."""
    return need < 0.8 * available_memory()
