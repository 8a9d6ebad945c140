"""Loads a backbone by its name: OpenAI's models and files, or other libraries' with a prefix."""
from __future__ import annotations

import hashlib
import os
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch

from ...datasets.utils.errors import ConfigError, UserError, WeightsError
from ...datasets.utils.source import PACKAGE, module_source
from . import openai
from .backbone import Backbone
from .numerics import fixed_numerics, pick_device
from .openai_clip import CLIP

# Prefix of a name -> the module that loads such backbones. It has `load(name, device)`, which
# returns a Backbone, and `weights_hash(name)`; `name` is what follows the prefix. Plugins add
# theirs with `register_backbones`.
LOADERS = {"open_clip": ".open_clip", "hf": ".hugging_face"}


def register_backbones(prefix: str, module: str) -> None:
    """Makes the backbones `PREFIX:NAME` known.

    Args:
        prefix: The beginning of the names, before the colon.
        module: Name of the module with the functions that LOADERS asks for; usually `__name__`.
    """
    if LOADERS.setdefault(prefix, module) != module:
        raise ConfigError(
            f"backbones '{prefix}:' are registered twice: by {LOADERS[prefix]} and by {module}"
        )


def find_loader(name: str) -> tuple[ModuleType, str]:
    """Returns the module that loads a backbone, and the name without its prefix."""
    prefix, colon, rest = name.partition(":")
    if not colon or prefix not in LOADERS:
        return openai, name
    return import_module(LOADERS[prefix], __package__), rest


def load_clip(
    name: str | Path, device: str | torch.device = "auto", expected_hash: str = ""
) -> CLIP | Backbone:
    """Loads a CLIP by name: fp32, frozen, in eval mode. See `load_backbone` for the arguments.

    Returns:
        OpenAI's own module for one of OpenAI's names, the small CLIP and paths; else a Backbone.
    """
    backbone = load_backbone(name, device, expected_hash)
    if isinstance(backbone, openai.OpenAIBackbone):
        return backbone.module
    return backbone


@fixed_numerics()
def load_backbone(
    name: str | Path, device: str | torch.device = "auto", expected_hash: str = ""
) -> Backbone:
    """Loads a backbone by name: fp32, frozen, in eval mode.

    Files that change while they are read are refused.

    Args:
        name: Name of the model: OpenAI's, `small`, a path, `open_clip:MODEL/TAG`,
            `open_clip:MODEL@FILE` or `hf:FOLDER`.
        device: The device of the loaded model; "auto" = the GPU if there is one.
        expected_hash: An earlier `weights_hash` that the files must still have; "" = any.
    """
    name = os.fspath(name)  # a path may be given as a Path
    loader, rest = find_loader(name)
    before = expected_hash or weights_hash(name)
    backbone = loader.load(rest, pick_device(device) if isinstance(device, str) else device)
    if weights_hash(name) != before:
        raise WeightsError(
            f"the weights of {name} changed while they were read: run the command again"
        )
    return backbone


def as_backbone(model: CLIP | Backbone) -> Backbone:
    """Returns a model that `load_clip` returned as a Backbone."""
    if isinstance(model, Backbone):
        return model
    if isinstance(model, CLIP):
        return openai.OpenAIBackbone(model)
    raise ConfigError(f"a model must come from load_clip, not be a {type(model).__name__}")


def weights_hash(name: str) -> str:
    """SHA-256 of a backbone's weights, shortened, with all else that its features depend on.

    The code of a plugin that loads and runs backbones counts too.
    """
    loader, rest = find_loader(name)
    digest = loader.weights_hash(rest)
    if not loader.__name__.startswith(f"{PACKAGE}."):
        text = f"{digest} {module_source(loader)}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digest


def model_hash(backbone: Backbone) -> str:
    """Returns the hash that a record has of the weights of a model in memory.

    A model that is still as `load_clip` loaded it has the hash of its file, so that its runs and
    those of the command line are runs of one model. Any other model has a hash of its tensors.
    """
    in_memory = tensors_hash(backbone)
    if backbone.name:
        try:
            stored = load_backbone(backbone.name, "cpu")
            if tensors_hash(stored) == in_memory:
                return weights_hash(backbone.name)
        except UserError:  # the file is not there any more
            pass
    return in_memory


def tensors_hash(backbone: Backbone) -> str:
    """A hash of all tensors of a model, of its layers and of the images that it takes."""
    module = backbone.module
    digest = hashlib.sha256(f"{module!r}{backbone.pixels!r}".encode())
    for name, tensor in sorted(module.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
