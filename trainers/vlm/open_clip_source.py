"""Which open_clip model a name means, where its weights are, and the facts that the weights themselves do not tell."""
from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ...datasets.utils.errors import ConfigError, UserError, WeightsError, first_five
from ...datasets.utils.registry import nearest
from .openai_weights import sha256
from .text_tower import GELU, QUICK_GELU

SCHEMAS = ("hf-hub:", "local-dir:")  # models that bring a config of their own, see open_clip's `create_model`
PIXEL_FACTS = ("mean", "std", "interpolation", "resize_mode")


@dataclass(frozen=True)
class OpenClipSource:
    """A model of open_clip with its weights."""

    model: str  # one of open_clip's configs, or a schema and what follows it
    tag: str  # of weights that open_clip knows
    file: str  # weights on this machine; "" = those of the tag, which open_clip downloads
    quick_gelu: bool
    pixels: Mapping[str, object]  # what open_clip knows of them; {} = the model's own config says


def library() -> ModuleType:
    """open_clip, if it is installed."""
    try:
        import open_clip
    except ImportError as error:
        raise WeightsError("this backbone needs open_clip: pip install promptcal[open_clip]") from error
    return open_clip


@contextmanager
def explained(name: str) -> Iterator[None]:
    """What goes wrong inside open_clip, in one line, without the hub's lines on each of its attempts."""
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.CRITICAL)
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # no network, no such repository, shapes that do not fit: each in its own way
        lines = (str(error) or type(error).__name__).strip().splitlines()
        reason = next((line.strip() for line in lines if line.strip()), "")
        raise WeightsError(f"open_clip cannot load {name} ({reason[:300]}): correct the name, or, if the download "
                           f"failed, fetch the file and give open_clip:MODEL/TAG@FILE") from error
    finally:
        hub.setLevel(level)


def refuse_code(model: str) -> None:
    """open_clip builds some towers with transformers, which may be told to run code from where a model lies, or may ask
    at the terminal whether it should: neither happens here."""
    text = (library().get_model_config(model) or {}).get("text_cfg", {})
    if text.get("tokenizer_kwargs", {}).get("trust_remote_code"):
        raise WeightsError(f"the config of {model} asks for code to be run (trust_remote_code), which never happens "
                           f"here: only models that the libraries themselves have are loaded")
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
    quick = bool(config.get("quick_gelu"))
    known = {tag: tag_facts(model, tag, quick) for tag in library().list_pretrained_tags_by_model(model)}
    if tag:
        if tag not in known:
            has = first_five(list(known)) or "none: give a file, open_clip:MODEL@FILE"
            raise WeightsError(f"open_clip knows no weights '{tag}' of {model}.{nearest(tag, known)} It has {has}")
        quick, pixels = known[tag]
        return checked(OpenClipSource(model, tag, file, quick, pixels), activation)
    if not file:
        has = first_five(list(known)) or "none"
        raise WeightsError(f"open_clip:{name} does not say which weights: open_clip:{model}/TAG with TAG one of {has}, "
                           f"or open_clip:{model}@FILE")
    return facts_of_file(OpenClipSource(model, "", file, quick, {}), known, activation)


def tag_facts(model: str, tag: str, quick_gelu: bool) -> tuple[bool, Mapping[str, object]]:
    """Activation and pixels of weights that open_clip knows. Where a tag says nothing of the activation, the model's
    config does."""
    facts = library().get_pretrained_cfg(model, tag)
    return bool(facts.get("quick_gelu", quick_gelu)), {key: facts[key] for key in PIXEL_FACTS if key in facts}


def facts_of_file(source: OpenClipSource, known: Mapping[str, tuple[bool, Mapping]], activation: str) -> OpenClipSource:
    """A file does not tell activation and pixels: those of the model's known weights, if these agree. Known weights of
    a model whose config says QuickGELU all have it."""
    fit = {tag: facts for tag, facts in known.items() if not activation or facts[0] == (activation == QUICK_GELU)}
    different = {json.dumps(facts, sort_keys=True, default=str): facts for facts in fit.values()}
    if len(different) > 1:
        examples = [next(tag for tag, facts in fit.items() if facts == one) for one in different.values()]
        only = len({facts[0] for facts in different.values()}) > 1
        also = " or MODEL.ACTIVATION quick_gelu or gelu" if only else ""
        raise WeightsError(f"weights of {source.model} differ in activation or pixels, and {source.file} does not say "
                           f"which it has: name known weights of its kind{also}, --backbone open_clip:{source.model}"
                           f"/TAG@{source.file}, such as {' or '.join(examples)}")
    if different:
        quick, pixels = next(iter(different.values()))
        return checked(OpenClipSource(source.model, "", source.file, quick, pixels), activation)
    if activation and known:
        raise ConfigError(f"MODEL.ACTIVATION is {activation}, but no known weights of {source.model} have it")
    quick = source.quick_gelu or activation == QUICK_GELU
    return checked(OpenClipSource(source.model, "", source.file, quick, {}), activation)


def checked(source: OpenClipSource, activation: str) -> OpenClipSource:
    """MODEL.ACTIVATION, where it is given, must be what open_clip knows."""
    if activation and source.quick_gelu != (activation == QUICK_GELU):
        known = QUICK_GELU if source.quick_gelu else GELU
        raise ConfigError(f"MODEL.ACTIVATION is {activation}, but open_clip:{source.model} has {known}: leave it alone")
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
        facts = library().get_pretrained_cfg(source.model, source.tag)
        found = cached(facts.get("hf_hub", "")) or library().download_pretrained(facts)
    if not found:
        raise WeightsError(f"open_clip finds no weights for {source.model}")
    return Path(found)


def cached(address: str) -> str:
    """The file that the hub's cache has for `ORG/NAME/FILE`, without asking the network whether there is a newer one:
    known weights do not change, and many machines that compute have no network. "" if there is none."""
    from huggingface_hub import try_to_load_from_cache
    from open_clip import pretrained

    repository, _, file = address.rpartition("/")
    file = file or pretrained.HF_WEIGHTS_NAME
    names = [*pretrained._get_safe_alternatives(file), file] if repository else []
    found = (try_to_load_from_cache(repository, name) for name in names)
    return next((path for path in found if isinstance(path, str)), "")


def weights_hash(name: str, activation: str, head_width: int) -> str:
    """A hash of the weights and of all that open_clip knows about them."""
    source = find_source(name, activation)
    with explained(name):
        facts = {
            "file": sha256(local_file(source)), "config": library().get_model_config(source.model),
            "quick_gelu": source.quick_gelu, "pixels": dict(source.pixels),
        }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
