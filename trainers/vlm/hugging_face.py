"""Loads models of transformers from a local folder: CLIP (PLIP, PubMedCLIP, ...), SigLIP, and
pairs of towers with BERT.
"""
from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...datasets.utils.errors import WeightsError
from ...datasets.utils.files import file_hash
from ...datasets.views.geometry import Pixels
from .backbone import Backbone, import_library, library_errors
from .generic_tower import GenericText
from .prompts import ANCHOR, Tokenizer
from .text_tower import GELU, QUICK_GELU, TANH_GELU, Layer, TextWeights, affine

# Kinds of text towers.
CAUSAL = "causal"  # CLIP's
PADDED = "padded"  # SigLIP's, which attends in both directions, padding included
MASKED = "masked"  # BERT's, whose padding is masked
# config.json's model_type -> the library's class, and the kind of its text tower
MODELS = {
    "clip": ("CLIPModel", CAUSAL),
    "siglip": ("SiglipModel", PADDED),
    "vision-text-dual-encoder": ("VisionTextDualEncoderModel", MASKED),
    "chinese_clip": ("ChineseCLIPModel", MASKED),
}
# The packed tower's activations by transformers' names.
ACTIVATIONS = {QUICK_GELU: QUICK_GELU, GELU: GELU, "gelu_pytorch_tanh": TANH_GELU}
RESAMPLING = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
FILES = (".safetensors", ".json", ".txt", ".model")  # endings of files that features depend on
TOKENIZERS = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)
OLD_EOS = 2  # a wrong end token of old configs: with it, the library reads at the largest id
ATTENTION = ("eager", "sdpa")  # other implementations may be code on a hub
LARGEST_SIZES = {
    "num_hidden_layers": 1000,
    "hidden_size": 10**5,
    "intermediate_size": 10**6,
    "vocab_size": 10**7,
    "max_position_embeddings": 10**5,
    "image_size": 10**4,
    "projection_dim": 10**5,
}
SAVE_AGAIN = (
    "save the model, its tokenizer and its image processor there again with save_pretrained"
)


class HuggingFaceBackbone(Backbone):
    """Image features by the library's module; text features by the packed tower for CLIP's,
    otherwise by the module.
    """

    def __init__(self, model: Any, tokenizer: Any, pixels: Pixels, name: str = "") -> None:
        """
        Args:
            model: A module of transformers, one of MODELS.
            tokenizer: The tokenizer that transformers has for it.
            pixels: The input of its image tower.
            name: Name of the model, for records and messages.
        """
        config = model.config.text_config
        vision = model.config.vision_config
        self.name = name
        self.module = model
        self.pixels = pixels
        self.kind = MODELS[model.config.model_type][1]
        self.context_length = config.max_position_embeddings
        self.embedding = model.text_model.get_input_embeddings()
        self.tokenizer = our_tokenizer(tokenizer, self.embedding.num_embeddings)
        if hasattr(model, "text_projection"):
            self.features = model.config.projection_dim
        else:
            self.features = config.hidden_size
        patches = (vision.image_size // vision.patch_size) ** 2
        self.activations = 4 * vision.hidden_size * (patches + 1)  # the hidden layer of an MLP

        eos = config.eos_token_id
        end = self.tokenizer.end
        if self.kind == CAUSAL and eos != OLD_EOS and eos not in end:
            raise WeightsError(
                f"config.json of {name} has the eos_token_id {eos}, but the tokenizer ends a text "
                f"with {list(end)}: they do not belong together; {SAVE_AGAIN}"
            )
        # The library reads at the end token or, with an old config, at the largest id.
        read_token = eos
        if eos == OLD_EOS:
            read_token = len(tokenizer) - 1
        is_read_at_end = len(end) == 1 and end[0] == read_token
        has_plain_layers = self.kind == CAUSAL and config.hidden_act in ACTIVATIONS
        self.packed = has_plain_layers and is_read_at_end

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Returns the library's own image features, (N, 3, size, size) -> (N, d)."""
        return pooled(self.module.get_image_features(pixel_values=pixels))

    def encode_ids(self, ids: Tensor) -> Tensor:
        """Returns the library's own text features (N, d) of token ids (N, length), with the mask
        that its processor makes.
        """
        mask = None
        if self.kind != PADDED:
            mask = (ids != self.tokenizer.pad).long()
        return pooled(self.module.get_text_features(input_ids=ids, attention_mask=mask))

    @cached_property
    def text(self) -> TextWeights | GenericText:  # type: ignore[override]
        """The text tower: its tensors if the packed tower computes the same, else the module.

        The library has queries, keys and values apart: for the packed tower they are joined once.
        """
        config = self.module.config.text_config
        if not self.packed:
            return GenericText(
                encode=self.encode_ids,
                embedding=self.embedding,
                tokenizer=self.tokenizer,
                length=self.context_length,
                keep_padding=self.kind == PADDED,
                layers=config.num_hidden_layers,
                heads=config.num_attention_heads,
            )
        text = self.module.text_model
        projection = self.module.text_projection
        return TextWeights(
            embedding=self.embedding,
            positions=text.embeddings.position_embedding.weight,
            layers=tuple(fused_layer(layer) for layer in text.encoder.layers),
            heads=config.num_attention_heads,
            activation=ACTIVATIONS[config.hidden_act],
            eps=config.layer_norm_eps,
            final_norm=affine(text.final_layer_norm),
            start=self.tokenizer.start,
            projection=(projection.weight.T, projection.bias),
        )


def fused_layer(layer: Any) -> Layer:
    """A layer of the library with its queries, keys and values joined."""
    attention = layer.self_attn
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    weight = torch.cat([part.weight for part in parts])
    bias = torch.cat([part.bias for part in parts])
    return Layer(
        norm_1=affine(layer.layer_norm1),
        qkv=(weight, bias),
        out=affine(attention.out_proj),
        norm_2=affine(layer.layer_norm2),
        fc1=affine(layer.mlp.fc1),
        fc2=affine(layer.mlp.fc2),
    )


def pooled(output: Any) -> Tensor:
    """Returns the features in the output of the library.

    Newer versions return an object that holds them, older ones the features themselves.
    """
    if isinstance(output, Tensor):
        return output
    return output.pooler_output


def our_tokenizer(tokenizer: Any, rows: int) -> Tokenizer:
    """Returns our form of the tokenizer in the model's folder, with its control tokens.

    Args:
        tokenizer: The tokenizer of transformers.
        rows: Number of tokens in the model's token table; a text with others is refused.
    """
    def encode(text: str) -> list[int]:
        tokens = list(tokenizer(text, add_special_tokens=False).input_ids)
        # Files of two models in one folder: the tokenizer knows more words than the model, or a
        # vocabulary of other words, to which everything is unknown.
        if max(tokens, default=0) >= rows or tokens == [tokenizer.unk_token_id]:
            raise WeightsError(
                f"the tokenizer does not fit the model: it makes {tokens[:9]} of {text!r}, and the "
                f"model has {rows} tokens; {SAVE_AGAIN}"
            )
        return tokens

    control = [token for token in tokenizer.all_special_ids if token != tokenizer.unk_token_id]
    return Tokenizer.around(
        encode,
        row=tokenizer(ANCHOR).input_ids,
        pad=tokenizer.pad_token_id or 0,
        control=control,
    )


def read_json(folder: Path, *names: str) -> dict[str, Any]:
    """Reads the first of these files that the folder has.

    Refuses a file that asks for code of the folder or of a hub to be run.

    Args:
        folder: Folder of the model.
        names: Names of the files, the usual one first.
    """
    paths = [folder / name for name in names if (folder / name).is_file()]
    if not paths:
        raise WeightsError(f"{folder} has no {names[0]}: {SAVE_AGAIN}")
    path = paths[0]

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """A dict of the file, after checking it; called for nested ones too."""
        for key, value in pairs:
            if key == "auto_map":
                raise WeightsError(
                    f"{path} asks for code in the model's folder to be run (auto_map), which is "
                    "never done: only models of transformers itself are loaded"
                )
            if "attn_implementation" in key and value not in (None, *ATTENTION):
                raise WeightsError(
                    f"{path} asks for the attention {value!r}: only {' and '.join(ATTENTION)} are "
                    f"supported; remove the entry {key}"
                )
            if key in LARGEST_SIZES:
                largest = LARGEST_SIZES[key]
                if type(value) is not int or not 0 < value <= largest:
                    raise WeightsError(
                        f"{path} has the {key} {value}: from 1 to {largest} are supported"
                    )
        return dict(pairs)

    try:
        return dict(json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=checked))
    except WeightsError:
        raise
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise WeightsError(f"cannot read {path} ({error}): {SAVE_AGAIN}") from error


def pixels_of(folder: Path, size: int) -> Pixels:
    """Reads the preprocessing of the folder's image processor.

    Args:
        folder: Folder of the model.
        size: Pixels per side that the image tower takes; another size is refused.
    """
    config = read_json(folder, "preprocessor_config.json", "processor_config.json")
    config = config.get("image_processor", config)
    mean = config.get("image_mean")
    std = config.get("image_std")
    resample = config.get("resample", 3)
    # Sizes are a number, or {"shortest_edge": number}, or {"height": number, "width": number}.
    sides = config.get("size", size)
    if isinstance(sides, int):
        sides = {"shortest_edge": sides}
    crop_sides = config.get("crop_size", size)
    if not isinstance(crop_sides, dict):
        crop_sides = {"height": crop_sides}

    is_by_shortest = sides.keys() == {"shortest_edge"}
    if is_by_shortest:
        is_square = config.get("do_center_crop", True)
    else:
        is_square = sides.keys() == {"height", "width"}
    has_all_steps = all(
        config.get(step, True) for step in ("do_resize", "do_rescale", "do_normalize")
    )
    is_supported = (
        has_all_steps
        and is_square
        and mean
        and std
        and resample in RESAMPLING
        and {*sides.values(), *crop_sides.values()} == {size}
        and config.get("rescale_factor", 1 / 255) == 1 / 255
    )
    if not is_supported:
        raise WeightsError(
            f"the image processor in {folder} is not supported: it must resize images (bilinear or "
            f"bicubic) to squares of {size} pixels, which the model takes, rescale them by 1/255, "
            "and normalise them with image_mean and image_std"
        )
    resize = "squash"
    if is_by_shortest:
        resize = "shortest"
    return Pixels.checked(
        size=size, mean=mean, std=std, resize=resize, interpolation=RESAMPLING[resample])


def find_folder(name: str) -> tuple[Path, str]:
    """Finds the folder, and the type of the model in it. Checks all files that the library may
    read.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise WeightsError(
            f"no folder at {folder}: hf:FOLDER is a local folder with config.json and safetensors"
        )
    names = {path.name for path in folder.iterdir() if path.suffix in FILES}
    for path in folder.iterdir():
        if not path.is_file() and (not path.is_dir() or path.suffix in FILES):
            raise WeightsError(
                f"{path} is not a regular file (a pipe, a device, a broken link or a folder): "
                "remove it"
            )
    kind = str(read_json(folder, "config.json").get("model_type"))
    if kind not in MODELS:
        raise WeightsError(
            f"{folder} holds a model of type {kind!r}: supported are {', '.join(MODELS)}; others "
            "may be in open_clip, --backbone open_clip:MODEL/TAG"
        )
    for optional in {"tokenizer_config.json", "processor_config.json"} & names:
        read_json(folder, optional)
    for index in folder.glob("*.index.json"):
        shards = read_json(folder, index.name).get("weight_map")
        if not isinstance(shards, dict) or not names.issuperset(map(str, shards.values())):
            raise WeightsError(f"{index} names weights that are not in the folder: {SAVE_AGAIN}")
    if not list(folder.glob("*.safetensors")):
        raise WeightsError(f"{folder} has no *.safetensors: {SAVE_AGAIN}")
    if not names & set(TOKENIZERS):
        raise WeightsError(
            f"{folder} has no tokenizer (one of {', '.join(TOKENIZERS)}): {SAVE_AGAIN}"
        )
    return folder, kind


def load(name: str, device: torch.device) -> HuggingFaceBackbone:
    """Loads a model from a local folder, without running code of the folder.

    Args:
        name: The path of the folder.
        device: The device of the loaded model.
    """
    folder, kind = find_folder(name)
    library = import_library("transformers", "hf")
    with library_errors(f"transformers cannot load {folder}", SAVE_AGAIN):
        model, report = getattr(library, MODELS[kind][0]).from_pretrained(
            folder,
            use_safetensors=True,
            local_files_only=True,
            dtype=torch.float32,
            output_loading_info=True,
            attn_implementation="sdpa",
        )
        missing = [key for key in report["missing_keys"] if not key.endswith("position_ids")]
        if missing:
            raise WeightsError(
                f"the weights in {folder} lack {missing[0]}: they belong to another model"
            )
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()  # the library leaves them mapped to the file
        tokenizer = library.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        pixels = pixels_of(folder, model.config.vision_config.image_size)
        model = model.eval().requires_grad_(False).to(device)
        return HuggingFaceBackbone(model, tokenizer, pixels, f"hf:{name}")


def weights_hash(name: str) -> str:
    """A hash of all files that features depend on: weights, configs, tokenizer."""
    folder, _ = find_folder(name)
    digests = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in FILES:
            digests[path.name] = file_hash(path)
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16]
