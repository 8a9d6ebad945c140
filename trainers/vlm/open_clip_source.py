"""Which open_clip model a name means, where its weights are, and their settings that the file itself does not state."""
from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from ...datasets.utils.errors import ConfigError, WeightsError, first_five
from ...datasets.utils.registry import nearest
from .checkpoints import sha256
from .library import import_library, library_errors
from .text_tower import GELU, QUICK_GELU

SCHEMAS = ("hf-hub:", "local-dir:")  # models with a config of their own, see open_clip's `create_model`
PIXEL_KEYS = ("mean", "std", "interpolation", "resize_mode")


@dataclass(frozen=True)
class OpenClipSource:
    """A model of open_clip with its weights."""

    model: str  # one of open_clip's configs, or a schema and what follows it
    tag: str  # of weights that open_clip knows
    file: str  # weights on this machine; "" = those of the tag, which open_clip downloads
    quick_gelu: bool
    pixels: Mapping[str, object]  # PIXEL_KEYS of weights that open_clip knows; {} = those of the model's config


def library() -> ModuleType:
    return import_library("open_clip", "open_clip")


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Errors of open_clip in one line, without the hub's log lines about its attempts."""
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.CRITICAL)
    try:
        with library_errors(f"open_clip cannot load {name}", "correct the name, or, if the download failed, fetch the "
                            "file and give open_clip:MODEL/TAG@FILE"):
            yield
    finally:
        hub.setLevel(level)


def refuse_code(model: str) -> None:
    """open_clip builds some towers with transformers, which can run code from a model's folder, or ask at the terminal
    whether it should. Both are refused."""
    text = (library().get_model_config(model) or {}).get("text_cfg", {})
    if text.get("tokenizer_kwargs", {}).get("trust_remote_code"):
        raise WeightsError(f"the config of {model} asks for code to be run (trust_remote_code), which is never done: "
                           f"only models of the libraries themselves are loaded")
    with suppress(ImportError):
        from transformers import dynamic_module_utils

        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0  # refuse at once instead of asking


def find_source(name: str, activation: str) -> OpenClipSource:
    """`MODEL/TAG`, `MODEL@FILE`, `MODEL/TAG@FILE`, `hf-hub:ORG/NAME` or `local-dir:FOLDER`."""
    if name.startswith(SCHEMAS):
        with explained(name):
            config = library().get_model_config(name) or {}
        return checked(OpenClipSource(name, "", "", bool(config.get("quick_gelu")), {}), activation)
    model, _, file = name.partition("@")
    model, _, tag = model.partition("/")
    config = library().get_model_config(model)
    if config is None:
        raise WeightsError(f"open_clip knows no model '{model}'.{nearest(model, library().list_models())} Its models: "
                           f"python -c 'import open_clip; print(open_clip.list_models())'")
    if file and not Path(file).is_file():
        raise WeightsError(f"no weight file at {file}")
    source = OpenClipSource(model, tag, file, bool(config.get("quick_gelu")), {})
    known = {known_tag: with_settings_of_tag(source, known_tag)
             for known_tag in library().list_pretrained_tags_by_model(model)}
    available = first_five(list(known)) or "none: give a file, open_clip:MODEL@FILE"
    if tag and tag not in known:
        raise WeightsError(f"open_clip knows no weights '{tag}' of {model}.{nearest(tag, known)} It has {available}")
    if tag:
        return checked(known[tag], activation)
    if not file:
        raise WeightsError(f"open_clip:{name} does not say which weights: open_clip:{model}/TAG with TAG one of "
                           f"{available}, or open_clip:{model}@FILE")
    return source_of_file(source, known, activation)


def with_settings_of_tag(source: OpenClipSource, tag: str) -> OpenClipSource:
    """Activation and pixels of known weights. Where open_clip's table has no activation, the model's config has it."""
    table = library().get_pretrained_cfg(source.model, tag)
    return replace(source, quick_gelu=bool(table.get("quick_gelu", source.quick_gelu)),
                   pixels={key: table[key] for key in PIXEL_KEYS if key in table})


def source_of_file(source: OpenClipSource, known: Mapping[str, OpenClipSource], activation: str) -> OpenClipSource:
    """A file does not state activation and pixels: those of the model's known weights are used, if these agree."""
    fitting = {tag: one for tag, one in known.items() if not activation or one.quick_gelu == (activation == QUICK_GELU)}
    different = {json.dumps((one.quick_gelu, one.pixels), sort_keys=True, default=str): tag
                 for tag, one in reversed(fitting.items())}  # the first tag of each kind
    if len(different) > 1:
        both = len({known[tag].quick_gelu for tag in different.values()}) > 1
        also = f" or MODEL.ACTIVATION {QUICK_GELU} or {GELU}" if both else ""
        raise WeightsError(f"weights of {source.model} differ in activation or pixels, and {source.file} does not say "
                           f"which it has: name known weights of its kind{also}, --backbone open_clip:{source.model}"
                           f"/TAG@{source.file}, such as {' or '.join(reversed(different.values()))}")
    if different:
        return checked(known[next(iter(different.values()))], activation)
    if activation and known:
        raise ConfigError(f"MODEL.ACTIVATION is {activation}, but no known weights of {source.model} have it")
    return replace(source, quick_gelu=source.quick_gelu or activation == QUICK_GELU)


def checked(source: OpenClipSource, activation: str) -> OpenClipSource:
    """MODEL.ACTIVATION, where it is given, must agree with open_clip's table."""
    if activation and source.quick_gelu != (activation == QUICK_GELU):
        known = QUICK_GELU if source.quick_gelu else GELU
        raise ConfigError(f"MODEL.ACTIVATION is {activation}, but open_clip:{source.model} has {known}: leave it empty")
    return source


def local_file(source: OpenClipSource) -> Path:
    """The weights of a source on this machine, downloaded by open_clip if need be."""
    from open_clip import factory, pretrained

    if source.file:
        return Path(source.file)
    schema, identifier = factory.parse_model_name(source.model)
    if schema == "local-dir":
        found = factory._find_checkpoint_in_dir(Path(identifier))
    elif schema == "hf-hub":
        found = pretrained.download_pretrained_from_hf(identifier)
    else:
        found = library().download_pretrained(library().get_pretrained_cfg(source.model, source.tag))
    if not found:
        raise WeightsError(f"open_clip finds no weights for {source.model}")
    return Path(found)


def weights_hash(name: str, activation: str, head_width: int) -> str:
    """A hash of the weights and of all that open_clip knows about them."""
    source = find_source(name, activation)
    with explained(name):
        settings = {
            "file": sha256(local_file(source)), "config": library().get_model_config(source.model),
            "quick_gelu": source.quick_gelu, "pixels": dict(source.pixels),
        }
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]
