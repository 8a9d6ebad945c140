"""A backbone from its name: OpenAI's models and files by themselves, other families by a prefix."""
from __future__ import annotations

from importlib import import_module
from types import ModuleType

import torch

from ...datasets.utils.errors import ConfigError
from . import openai
from .backbone import Backbone
from .numerics import fixed_numerics
from .openai_clip import CLIP

# Prefix of a name -> the module that loads the family. It has `load(name, device, activation, head_width)`, which gives
# a Backbone, and `weights_hash(name, activation, head_width)`; `name` is what follows the prefix.
FAMILIES = {"open_clip": ".open_clip", "hf": ".hugging_face"}


def pick_device(name: str = "auto") -> torch.device:
    """`auto` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"DEVICE '{name}' is not known to torch: use auto, cpu or cuda") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise ConfigError(f"DEVICE is {name}, but torch finds {found} CUDA devices: use DEVICE cpu, or auto")
    return device


def family_of(name: str) -> tuple[ModuleType, str]:
    """The module that loads a backbone, and the name without its prefix. Without a prefix it is OpenAI's."""
    prefix, colon, rest = name.partition(":")
    if not colon or prefix not in FAMILIES:
        return openai, name
    return import_module(FAMILIES[prefix], __package__), rest


@fixed_numerics()
def load_clip(
    name: str, device: str | torch.device = "auto", activation: str = "", head_width: int = 0,
) -> CLIP | Backbone:
    """A CLIP by name, fp32, frozen, in eval mode: OpenAI's own module for one of OpenAI's names, the embedded model
    (`small`) and local files; a Backbone for `open_clip:MODEL/TAG`, `open_clip:MODEL@FILE` and `hf:FOLDER`.

    A file of another project has OpenAI's tensor names but not always its activation and heads, and does not say so:
    `activation` (quick_gelu, gelu) and, for wide image towers, `head_width` then have to.
    """
    family, rest = family_of(name)
    backbone = family.load(rest, pick_device(device) if isinstance(device, str) else device, activation, head_width)
    return backbone.module if family is openai else backbone


def as_backbone(model: CLIP | Backbone) -> Backbone:
    """What `load_clip` gave, as the rest of the house knows it."""
    if isinstance(model, Backbone):
        return model
    if isinstance(model, CLIP):
        return openai.OpenAIBackbone(model)
    raise ConfigError(f"a model must come from load_clip, not be a {type(model).__name__}")


def weights_hash(name: str, activation: str = "", head_width: int = 0) -> str:
    """SHA-256 of a backbone's weights, shortened, with all that its features depend on besides."""
    family, rest = family_of(name)
    return family.weights_hash(rest, activation, head_width)
