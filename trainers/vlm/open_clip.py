"""Loads models of open_clip: LAION, DataComp, MetaCLIP, DFN, EVA, SigLIP, CoCa, BiomedCLIP, …"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ...datasets.utils.errors import ConfigError, WeightsError, first_five
from ...datasets.utils.files import file_hash
from ...datasets.utils.registry import nearest
from ...datasets.views.geometry import Pixels
from .backbone import Backbone, import_library, library_errors
from .generic_tower import GenericText
from .prompts import Tokenizer
from .text_tower import GELU, QUICK_GELU, TANH_GELU, TextWeights, openai_text

# Prefixes of models whose config lies beside their weights, see open_clip's `create_model`.
SCHEMAS = ("hf-hub:", "local-dir:")
# Keys of the preprocessing in open_clip's table of weights.
PIXEL_KEYS = ("mean", "std", "interpolation", "resize_mode")


class OpenClipBackbone(Backbone):
    """Image features by the library's own module.

    Text features by the packed tower where the library's is causal and made of plain layers, which
    its module shows; otherwise by the library's module.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str = "") -> None:
        self.name = name
        self.module = model
        self.tokenizer = our_tokenizer(tokenizer)
        self.context_length = tokenizer.context_length
        text = getattr(model, "text", model)  # `CLIP` is its own text tower
        self.text_module = text
        if is_hugging_face(text):
            self.embedding = text.transformer.get_input_embeddings()
        else:
            self.embedding = text.token_embedding
        self.pixels = pixels_of(model.visual.preprocess_cfg)
        # Numbers in the largest activation of one view.
        positions = getattr(model.visual, "positional_embedding", None)
        if positions is None:
            # A convolutional tower begins with some 64 channels at half the size: 64 / 2² = 16.
            self.activations = 16 * self.pixels.size**2
        else:
            # The hidden layer of an MLP has four times the width, for each position.
            self.activations = 4 * positions.numel()
        self.packed = is_plain(text, self.tokenizer, tokenizer)
        if hasattr(text, "output_dim"):
            self.features = text.output_dim
        else:
            self.features = model.text_projection.shape[-1]

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Returns the library's own image features, (N, 3, size, size) -> (N, d)."""
        return self.module.encode_image(pixels)

    @cached_property
    def text(self) -> TextWeights | GenericText:  # type: ignore[override]
        """The text tower: its tensors if the packed tower computes the same, else the module.

        Bidirectional modules and CoCa's attend to the padding or are read after it, so they need
        it. BERT's mask it.
        """
        text = self.text_module
        if self.packed:
            activation = activation_of(text.transformer.resblocks[0])
            return openai_text(text, activation, self.tokenizer.start)
        if is_hugging_face(text):
            is_masked = self.tokenizer.pad == text.config.pad_token_id
            layers = text.transformer.config.num_hidden_layers
            heads = text.transformer.config.num_attention_heads
        else:
            is_masked = False
            layers = len(text.transformer.resblocks)
            heads = text.transformer.resblocks[0].attn.num_heads
        return GenericText(
            encode=self.module.encode_text,
            embedding=self.embedding,
            tokenizer=self.tokenizer,
            length=self.context_length,
            keep_padding=not is_masked,
            layers=layers,
            heads=heads,
        )


def is_hugging_face(text: Any) -> bool:
    """Whether a text tower is one of transformers' models inside open_clip."""
    return hasattr(text.transformer, "get_input_embeddings")


def is_plain(text: Any, ours: Tokenizer, tokenizer: Any) -> bool:
    """Whether the packed tower computes the same: causal layers of OpenAI's kind, read at the end.

    Args:
        text: The library's text tower.
        ours: Our form of its tokenizer, which knows the end token.
        tokenizer: The library's tokenizer.
    """
    if is_hugging_face(text) or text.attn_mask is None:
        return False
    if getattr(text, "cls_emb", None) is not None:  # a token after the end, which CoCa reads
        return False
    if text.text_projection is None or len(ours.end) != 1:
        return False

    end = ours.end[0]
    pool = getattr(text, "pool_type", None) or text.text_pool_type
    if pool == "argmax":  # reads at the largest id
        is_read_at_end = end == getattr(tokenizer, "vocab_size", 0) - 1
    elif pool == "eos":
        eos = text.eos_id if hasattr(text, "eos_id") else text.text_eos_id
        is_read_at_end = end == eos and eos not in ours.start
    else:
        is_read_at_end = False
    return is_read_at_end and all(is_plain_layer(block) for block in text.transformer.resblocks)


def is_plain_layer(block: Any) -> bool:
    """Whether a layer is pre-norm, with one attention, one MLP and nothing between."""
    parts = dict(block.named_children())
    for name in ("ls_1", "ls_2"):  # factors on the outputs, an identity where there are none
        scaling = parts.pop(name, nn.Identity())
        if not isinstance(scaling, nn.Identity):
            return False
    return (
        parts.keys() == {"ln_1", "attn", "ln_2", "mlp"}
        and type(block.attn) is nn.MultiheadAttention
        and list(dict(block.mlp.named_children())) == ["c_fc", "gelu", "c_proj"]
        and activation_of(block) != ""
    )


def activation_of(block: Any) -> str:
    """The name of a layer's activation; "" if the packed tower does not have it."""
    layer = block.mlp.gelu
    if type(layer).__name__ == "QuickGELU":
        return QUICK_GELU
    if type(layer) is nn.GELU:
        return {"none": GELU, "tanh": TANH_GELU}[layer.approximate]
    return ""


def our_tokenizer(tokenizer: Any) -> Tokenizer:
    """Our form of open_clip's tokenizers: its own, and those of transformers.

    Each cleans a text in its way. Which tokens start, end and pad a text is read off from an
    encoded letter, `[start] a [end] [pad] [pad] …`, because no attribute of theirs says it.
    """
    (row,) = tokenizer(["a"]).tolist()
    pad = row[-1]
    while row[-1:] == [pad]:
        row.pop()
    if hasattr(tokenizer, "encode"):
        return Tokenizer.around(
            tokenizer.encode,
            row=row,
            pad=pad,
            control=tokenizer.all_special_ids,
        )
    inner = tokenizer.tokenizer

    def encode(text: str) -> list[int]:
        return list(inner(tokenizer.clean_fn(text), add_special_tokens=False).input_ids)

    # The token for unknown words stands for text, so it is no control token.
    control = [token for token in inner.all_special_ids if token != inner.unk_token_id]
    return Tokenizer.around(encode, row=row, pad=pad, control=control)


def pixels_of(config: dict[str, Any]) -> Pixels:
    """Returns the image tower's input, from the preprocessing that open_clip has for every model.
    """
    size = config["size"]
    if not isinstance(size, Sequence):
        size = (size, size)
    width, height = size
    if width != height:
        raise ConfigError(
            f"this backbone takes images of {width} x {height} pixels: only squares are supported"
        )
    return Pixels.checked(
        size=width,
        mean=config["mean"],
        std=config["std"],
        resize=config["resize_mode"],
        interpolation=config["interpolation"],
    )


@dataclass(frozen=True)
class Source:
    """A model of open_clip, its weights, and what a weight file does not state about them."""

    model: str  # one of open_clip's configs, or a schema and what follows it
    tag: str  # tag of weights that open_clip knows; "" = none
    file: str  # weights on this machine; "" = those of the tag, which open_clip downloads
    quick_gelu: bool
    # PIXEL_KEYS of weights that open_clip knows; {} = those of the model's config
    pixels: Mapping[str, object]


def library() -> ModuleType:
    """The module `open_clip`."""
    return import_library("open_clip", "open_clip")


def explained(name: str) -> AbstractContextManager[None]:
    """Turns errors of the library, while it loads a model, into one line with a remedy."""
    return library_errors(
        f"open_clip cannot load {name}",
        "correct the name, or, if the download failed, fetch the "
        "file and give open_clip:MODEL/TAG@FILE",
    )


def refuse_code(model: str) -> None:
    """Refuses models that come with code of their own.

    transformers, which open_clip uses, can run code from a model's folder, or ask whether it
    should.
    """
    text = (library().get_model_config(model) or {}).get("text_cfg", {})
    if text.get("tokenizer_kwargs", {}).get("trust_remote_code"):
        raise WeightsError(
            f"the config of {model} asks for code to be run (trust_remote_code), which is never "
            "done: only models of the libraries themselves are loaded"
        )
    with suppress(ImportError):
        from transformers import dynamic_module_utils

        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0  # refuse at once instead of asking


def find_source(name: str) -> Source:
    """Finds the model and the weights that a name means.

    A file does not state activation and pixels: they are those of the tag or, without a tag, of all
    known weights, if these agree.

    Args:
        name: `MODEL/TAG`, `MODEL@FILE`, `MODEL/TAG@FILE`, `hf-hub:ORG/NAME` or `local-dir:FOLDER`.
    """
    if name.startswith(SCHEMAS):
        with explained(name):
            config = library().get_model_config(name) or {}
        quick_gelu = bool(config.get("quick_gelu"))
        return Source(model=name, tag="", file="", quick_gelu=quick_gelu, pixels={})
    model, _, file = name.partition("@")
    model, _, tag = model.partition("/")
    config = library().get_model_config(model)
    if config is None:
        raise WeightsError(
            f"open_clip has no model '{model}'.{nearest(model, library().list_models())} Its "
            "models: python -c 'import open_clip; print(open_clip.list_models())'"
        )
    if file and not Path(file).is_file():
        raise WeightsError(f"no weight file at {file}")
    known = {}  # tag -> its source; with a file, the source of the file with the tag's settings
    for known_tag in library().list_pretrained_tags_by_model(model):
        table = library().get_pretrained_cfg(model, known_tag)
        pixels = {key: table[key] for key in PIXEL_KEYS if key in table}
        quick_gelu = bool(table.get("quick_gelu", config.get("quick_gelu")))
        known[known_tag] = Source(model, tag, file, quick_gelu, pixels)
    if tag in known:
        return known[tag]
    if tag or not file:
        raise WeightsError(
            f"open_clip has no weights '{tag}' of {model}.{nearest(tag, known)} Give "
            f"open_clip:{model}/TAG with TAG one of {first_five(list(known)) or 'none'}, or "
            f"open_clip:{model}@FILE"
        )
    # Without a tag all sources are equal but for activation and pixels.
    first_tags: dict[str, str] = {}  # kind -> the first tag of that kind
    for known_tag, source in known.items():
        first_tags.setdefault(repr(source), known_tag)
    if len(first_tags) > 1:
        raise WeightsError(
            f"weights of {model} differ in activation or pixels, and {file} does not say which it "
            f"has: name known weights of its kind, --backbone open_clip:{model}/TAG@{file}, such "
            f"as {' or '.join(first_tags.values())}"
        )
    if known:
        return next(iter(known.values()))
    quick_gelu = bool(config.get("quick_gelu"))
    return Source(model=model, tag="", file=file, quick_gelu=quick_gelu, pixels={})


def local_file(source: Source) -> Path:
    """Returns the file of a source on this machine, downloaded by open_clip if need be."""
    from open_clip import factory, pretrained

    if source.file:
        return Path(source.file)
    schema, identifier = factory.parse_model_name(source.model)
    if schema == "local-dir":
        path = factory._find_checkpoint_in_dir(Path(identifier))
    elif schema == "hf-hub":
        path = pretrained.download_pretrained_from_hf(identifier)
    else:
        config = library().get_pretrained_cfg(source.model, source.tag)
        path = library().download_pretrained(config)
    if not path:
        raise WeightsError(f"open_clip finds no weights for {source.model}")
    return Path(path)


def load(name: str, device: torch.device) -> OpenClipBackbone:
    """Loads a model, downloading its weights if need be.

    Args:
        name: The name after `open_clip:`, see `find_source`.
        device: The device of the loaded model.
    """
    source = find_source(name)
    with explained(name):
        refuse_code(source.model)
        model = library().create_model(
            source.model,
            str(local_file(source)),
            force_quick_gelu=source.quick_gelu,
            require_pretrained=True,
            force_preprocess_cfg=dict(source.pixels),
        )
        tokenizer = library().get_tokenizer(source.model)
        model = model.eval().requires_grad_(False).to(device)
        return OpenClipBackbone(model, tokenizer, f"open_clip:{name}")


def weights_hash(name: str) -> str:
    """Returns a hash of the weights and of all that open_clip knows about them.

    Activation and pixels change predictions as the weights do, so they enter the hash.

    Args:
        name: The name after `open_clip:`, see `find_source`.
    """
    source = find_source(name)
    with explained(name):
        settings = {
            "file": file_hash(local_file(source)),
            "config": library().get_model_config(source.model),
            "quick_gelu": source.quick_gelu,
            "pixels": dict(source.pixels),
        }
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
