"""Models of transformers from a local folder: CLIP (PLIP, PubMedCLIP, ...), SigLIP, and pairs of towers with BERT."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from ...datasets.utils.errors import ConfigError, UserError, WeightsError
from ...datasets.views.pixels import Pixels
from .backbone import Backbone, Tower
from .checkpoints import read_checkpoint, tensors_by_name
from .generic_tower import WholeText, WholeTower
from .openai_weights import sha256
from .text_tower import GELU, QUICK_GELU, TANH_GELU, TextTower
from .text_weights import Layer, TextWeights, affine
from .tokens import ANCHOR, Tokenizer

# config.json's model_type -> the class. CLIP's text tower is causal; SigLIP's attends in both directions, padding
# included; the others are BERT's, whose padding is masked.
CAUSAL, PADDED, MASKED = "causal", "padded", "masked"
MODELS = {
    "clip": ("CLIPModel", CAUSAL), "siglip": ("SiglipModel", PADDED),
    "vision-text-dual-encoder": ("VisionTextDualEncoderModel", MASKED), "chinese_clip": ("ChineseCLIPModel", MASKED),
}
ACTIVATIONS = {"quick_gelu": QUICK_GELU, "gelu": GELU, "gelu_pytorch_tanh": TANH_GELU}
RESAMPLING = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
FILES = (".safetensors", ".bin", ".json", ".txt", ".model")  # that features depend on
OLD_EOS = 2  # configs with this end token, which is none, are read at the largest id instead
PICKLE = "pytorch_model.bin"  # what older folders have instead of safetensors
CODE = "auto_map"  # the entry of a config that names code in the model's folder


class HuggingFaceBackbone(Backbone):
    """Image features by the library's own module; text features by the packed tower for CLIP's, else by the module."""

    def __init__(self, model: nn.Module, tokenizer: object, pixels: Pixels, name: str = "") -> None:
        config = model.config.text_config
        self.name, self.module, self.pixels = name, model, pixels
        self.kind = MODELS[model.config.model_type][1]
        self.context_length = config.max_position_embeddings
        self.tokenizer = words_of(tokenizer)
        embeddings = model.text_model.embeddings
        self.embedding = getattr(embeddings, "token_embedding", None) or embeddings.word_embeddings
        self.features = model.config.projection_dim if hasattr(model, "text_projection") else config.hidden_size
        vision = model.config.vision_config
        self.activations = 4 * vision.hidden_size * ((vision.image_size // vision.patch_size) ** 2 + 1)
        self.packed = self.kind == CAUSAL and config.hidden_act in ACTIVATIONS and self.is_read_at_the_end(tokenizer)

    def is_read_at_the_end(self, tokenizer: object) -> bool:
        """Both of the library's rules find the one end token: the first one, or, in old configs, the largest id."""
        eos = self.module.config.text_config.eos_token_id
        end = self.tokenizer.end
        return len(end) == 1 and (end[0] == len(tokenizer) - 1 if eos == OLD_EOS else end[0] == eos)

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        return pooled(self.module.get_image_features(pixel_values=pixels))

    def encode_ids(self, ids: Tensor) -> Tensor:
        """The library's own text features of token ids (N, length), with the mask that its processor makes."""
        mask = None if self.kind == PADDED else (ids != self.tokenizer.pad).long()
        return pooled(self.module.get_text_features(input_ids=ids, attention_mask=mask))

    def text_tower(self, class_tokens: Sequence[Sequence[int]], precision: str) -> Tower:
        if self.packed:
            return TextTower(self.text_weights, class_tokens, precision)
        return WholeTower(self.whole_text, class_tokens, precision)

    @cached_property
    def whole_text(self) -> WholeText:
        config = self.module.config.text_config
        return WholeText(
            self.encode_ids, self.embedding, self.tokenizer, self.context_length, keep_padding=self.kind == PADDED,
            layers=config.num_hidden_layers, heads=config.num_attention_heads,
        )

    @cached_property
    def text_weights(self) -> TextWeights:
        """The library keeps queries, keys and values apart: they are put together once."""
        text, config = self.module.text_model, self.module.config.text_config
        return TextWeights(
            embedding=self.embedding, positions=text.embeddings.position_embedding.weight,
            layers=tuple(map(fused_layer, text.encoder.layers)), heads=config.num_attention_heads,
            activation=ACTIVATIONS[config.hidden_act], eps=config.layer_norm_eps,
            final_norm=affine(text.final_layer_norm), start=self.tokenizer.start,
            projection=(self.module.text_projection.weight.T, self.module.text_projection.bias),
        )


def fused_layer(layer: nn.Module) -> Layer:
    attention = layer.self_attn
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    return Layer(
        norm_1=affine(layer.layer_norm1),
        qkv=(torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])),
        out=affine(attention.out_proj), norm_2=affine(layer.layer_norm2),
        widen=affine(layer.mlp.fc1), narrow=affine(layer.mlp.fc2),
    )


def pooled(output: object) -> Tensor:
    """Newer versions of the library give an object that holds the features, older ones the features."""
    return output if isinstance(output, Tensor) else output.pooler_output


def words_of(tokenizer: object) -> Tokenizer:
    """The folder's own tokenizer, with the control tokens that it adds by itself."""
    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    control = [i for i in tokenizer.all_special_ids if i != tokenizer.unk_token_id]
    return Tokenizer.around(encode, tokenizer(ANCHOR).input_ids, tokenizer.pad_token_id or 0, control)


def library() -> ModuleType:
    """transformers, if it is installed."""
    try:
        import transformers
    except ImportError as error:
        raise WeightsError("this backbone needs transformers: pip install promptcal[hf]") from error
    return transformers


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """What goes wrong inside transformers, in one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # files that are missing or damaged, shapes that do not fit: each in its own way
        lines = (str(error) or type(error).__name__).strip().splitlines()
        raise WeightsError(f"transformers cannot load {folder} ({lines[0].strip()[:300]}): save the model and its "
                           f"processor there again with save_pretrained") from error


def read_config(folder: Path, *names: str) -> dict:
    """The first of these json files that the folder has. None of them may ask for code from the folder to be run."""
    for path in (folder / name for name in names):
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise WeightsError(f"cannot read {path}: {error}") from error
        if not isinstance(content, dict):
            raise WeightsError(f"{path} is no config: it must hold one json object")
        if CODE in content:
            raise WeightsError(f"{path} asks for code in the model's folder to be run ({CODE}), which is never done "
                               f"here: only models that transformers itself has are loaded")
        return content
    raise WeightsError(f"{folder} has no {names[0]}: give a folder that save_pretrained has written, with the model, "
                       f"its tokenizer and its image processor")


def pixels_of(folder: Path, size: int) -> Pixels:
    """What the folder's image processor does to a picture."""
    config = read_config(folder, "preprocessor_config.json", "processor_config.json")
    config = config.get("image_processor", config)
    sides = config.get("size", size)
    sides = {"shortest_edge": sides} if isinstance(sides, int) else sides
    resample = config.get("resample", 3)
    if resample not in RESAMPLING or not config.get("do_normalize", True) or not config.get("do_resize", True):
        raise WeightsError(f"the image processor in {folder} does something that is not known here: its pictures must "
                           f"be resized (bilinear or bicubic) and normalised")
    resize = "shortest" if "shortest_edge" in sides else "squash"
    if {*sides.values()} != {size}:
        raise WeightsError(f"the image processor in {folder} makes pictures of {sides} for a model that takes {size} "
                           f"pixels a side: that is not known here")
    mean, std = config.get("image_mean"), config.get("image_std")
    if not mean or not std:
        raise WeightsError(f"the image processor in {folder} has no image_mean or image_std: it must say them")
    return Pixels(size, mean, std, resize, RESAMPLING[resample])


def find_folder(name: str) -> tuple[Path, str]:
    """The folder, and the type of the model in it."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise WeightsError(f"no folder at {folder}: hf:FOLDER is a local folder with config.json and safetensors")
    kind = read_config(folder, "config.json").get("model_type")
    if kind not in MODELS:
        raise WeightsError(f"{folder} holds a model of type {kind!r}: known are {', '.join(MODELS)}; others may be in "
                           f"open_clip, --backbone open_clip:MODEL/TAG")
    for optional in ("tokenizer_config.json", "processor_config.json"):
        if (folder / optional).is_file():
            read_config(folder, optional)
    if not list(folder.glob("*.safetensors")) and not (folder / PICKLE).is_file():
        raise WeightsError(f"{folder} has neither *.safetensors nor {PICKLE}: load the model once where it comes from "
                           f"and save it with save_pretrained(FOLDER)")
    return folder, kind


def read_model(folder: Path, cls: type) -> tuple[nn.Module, dict]:
    """The model, and what its weights lacked. A pickle is read as data, see `checkpoints`."""
    how = {"dtype": torch.float32, "output_loading_info": True}
    if list(folder.glob("*.safetensors")):
        return cls.from_pretrained(folder, use_safetensors=True, local_files_only=True, **how)
    config = cls.config_class.from_pretrained(folder, local_files_only=True)
    return cls.from_pretrained(None, config=config, state_dict=tensors_by_name(read_checkpoint(folder / PICKLE)), **how)


def load(name: str, device: torch.device, activation: str, head_width: int) -> HuggingFaceBackbone:
    if activation or head_width:
        raise ConfigError("MODEL.ACTIVATION and MODEL.HEAD_WIDTH are for files of unknown origin: config.json has both")
    folder, kind = find_folder(name)
    local = {"local_files_only": True, "trust_remote_code": False}
    with explained(folder):
        model, report = read_model(folder, getattr(library(), MODELS[kind][0]))
        missing = [key for key in report["missing_keys"] if not key.endswith("position_ids")]
        if missing:
            raise WeightsError(f"the weights in {folder} lack {missing[0]}: they belong to another model")
        tokenizer = library().AutoTokenizer.from_pretrained(folder, **local)
        pixels = pixels_of(folder, model.config.vision_config.image_size)
        model = model.eval().requires_grad_(False).to(device)
        return HuggingFaceBackbone(model, tokenizer, pixels, f"hf:{name}")


def weights_hash(name: str, activation: str, head_width: int) -> str:
    """A hash of all files that features depend on: weights, configs, tokenizer."""
    folder, _ = find_folder(name)
    files = sorted(path for path in folder.iterdir() if path.suffix in FILES)
    digests = {path.name: sha256(path) for path in files}
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16]
