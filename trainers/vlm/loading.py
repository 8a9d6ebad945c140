"""Loads a backbone by its name: OpenAI's models, the small CLIP and files here; those of other
libraries, whose names have a prefix, by the library's module.
"""
from __future__ import annotations

import hashlib
import logging
import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...datasets.utils.cli import tool
from ...datasets.utils.errors import ConfigError, DataError, UserError, WeightsError
from ...datasets.utils.files import file_hash
from ...datasets.utils.registry import nearest
from ...datasets.utils.source import PACKAGE, module_source
from ...datasets.views.geometry import Pixels
from .backbone import Backbone
from .checkpoints import read_checkpoint, tensors_by_name
from .numerics import fixed_numerics, pick_device
from .openai_clip import CLIP, VOCAB_SIZE, WEIGHT_URLS, clip, tokenizer
from .prompts import Tokenizer
from .text_tower import QUICK_GELU, TextWeights, openai_text

logger = logging.getLogger(__name__)

# Prefix of a name -> the module that loads such backbones. It has `load(name, device)`, which
# returns a Backbone, and `weights_hash(name)`; `name` is what follows the prefix. Plugins add
# theirs with `register_backbones`.
LOADERS = {"open_clip": ".open_clip", "hf": ".hugging_face"}

BACKBONES = ("RN50", "RN101", "ViT-B/32", "ViT-B/16", "ViT-L/14", "ViT-L/14@336px")
SMALL = "small"
SMALL_TRAINED_ON = ("LandCover", "LandCoverShift")  # data sets of the kind that it was trained on
SMALL_WEIGHTS = Path(__file__).parent / "small" / "small_clip.safetensors"
# Backbones by the hash of their published weights, which `weights_hash` returns.
PUBLISHED_WEIGHTS = {WEIGHT_URLS[name].split("/")[-2][:16]: name for name in BACKBONES}
PUBLISHED_WEIGHTS["7d1c00b9b3caa7b9"] = SMALL
CACHE = Path("~/.cache/clip")  # folder in which OpenAI's own package keeps its weights
# Entries of OpenAI's archives and of the small CLIP that no other project's files have.
OPENAI_MARKS = {"input_resolution", "context_length", "vocab_size"}
SMALL_MARK = "token_embedding.rows"
# open_clip's name of each of OpenAI's models -> layers and width of its image tower, pixels, patch
# size (None for ResNets) and number of features, in the order of SHAPE_KEYS.
OPENAI_SHAPES = {
    "RN50": ((3, 4, 6, 3), 64, 224, None, 1024),
    "RN101": ((3, 4, 23, 3), 64, 224, None, 512),
    "RN50x4": ((4, 6, 10, 6), 80, 288, None, 640),
    "RN50x16": ((6, 8, 18, 8), 96, 384, None, 768),
    "RN50x64": ((3, 15, 36, 10), 128, 448, None, 1024),
    "ViT-B-32": (12, 768, 224, 32, 512),
    "ViT-B-16": (12, 768, 224, 16, 512),
    "ViT-L-14": (24, 1024, 224, 14, 768),
    "ViT-L-14-336": (24, 1024, 336, 14, 768),
}
SHAPE_KEYS = (
    "vision_layers",
    "vision_width",
    "image_resolution",
    "vision_patch_size",
    "embed_dim",
)
RESNET_STRIDE = 32  # pixels per position of a ResNet's attention pooling
HEAD_WIDTH = 64  # numbers per attention head
NAME_OF_MODEL = "promptcal_name"  # attribute of a loaded module: the name given to `load_clip`
TOKEN_STD = 0.02  # standard deviation of CLIP's token embeddings before training
START = tokenizer.encoder["<|startoftext|>"]
END = tokenizer.encoder["<|endoftext|>"]
TOKENIZER = Tokenizer(
    encode=tokenizer.encode,
    start=(START,),
    end=(END,),
    pad=0,
    control=frozenset({START, END}),
)


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


def find_loader(name: str) -> tuple[ModuleType | None, str]:
    """Returns the module that loads a backbone, and the name without its prefix.

    The module is None for names without a prefix: models of OpenAI's, the small CLIP and files.
    """
    prefix, colon, rest = name.partition(":")
    if not colon or prefix not in LOADERS:
        return None, name
    return import_module(LOADERS[prefix], __package__), rest


def load_clip(
    name: str | Path, device: str | torch.device = "auto", expected_hash: str = ""
) -> CLIP | Backbone:
    """Loads a CLIP by name: fp32, frozen, in eval mode. See `load_backbone` for the arguments.

    Returns:
        OpenAI's own module for one of OpenAI's names, the small CLIP and paths; else a Backbone.
    """
    backbone = load_backbone(name, device, expected_hash)
    if isinstance(backbone, OpenAIBackbone):
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
    if isinstance(device, str):
        device = pick_device(device)
    backbone: Backbone
    if loader is None:
        backbone = load_openai(name, device)
    else:
        backbone = loader.load(rest, device)
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
        return OpenAIBackbone(model)
    raise ConfigError(f"a model must come from load_clip, not be a {type(model).__name__}")


def weights_hash(name: str) -> str:
    """SHA-256 of a backbone's weights, shortened, with all else that its features depend on.

    The code of a plugin that loads and runs backbones counts too.
    """
    loader, rest = find_loader(name)
    if loader is None:
        return hash_openai(name)
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


# OpenAI's models, the small CLIP, and files in OpenAI's format

class OpenAIBackbone(Backbone):
    """Wraps OpenAI's own module, which `load_clip` returns."""

    def __init__(self, model: CLIP, name: str = "") -> None:
        visual = model.visual
        self.name = name or getattr(model, NAME_OF_MODEL, "")
        self.module = model
        self.tokenizer = TOKENIZER
        self.context_length = model.context_length
        self.embedding = model.token_embedding
        self.pixels = Pixels(visual.input_resolution)
        self.features = model.text_projection.shape[1]
        if isinstance(visual, clip.model.VisionTransformer):
            self.activations = 4 * visual.positional_embedding.numel()  # the hidden layer of an MLP
        else:  # before the stem's pooling
            self.activations = visual.conv3.out_channels * (visual.input_resolution // 2) ** 2

    @property
    def text(self) -> TextWeights:
        """The weights of the text tower."""
        return openai_text(self.module, QUICK_GELU, TOKENIZER.start)

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Computes image features, (N, 3, size, size) -> (N, d).

        A vision transformer is read at its class token, so the last layer is computed for that
        token only: the others serve as its keys and values.
        """
        visual = self.module.visual
        if not isinstance(visual, clip.model.VisionTransformer):
            return self.module.encode_image(pixels)
        patches = visual.conv1(pixels).flatten(2).mT  # (N, patches, width)
        first = visual.class_embedding.expand(len(patches), 1, -1)
        x = torch.cat([first, patches], dim=1) + visual.positional_embedding
        x = visual.ln_pre(x).transpose(0, 1)  # (tokens, N, width), as the layers take it
        *layers, last = visual.transformer.resblocks
        for layer in layers:
            x = layer(x)
        attended = last.ln_1(x)
        # The class token is the first one, x[0].
        first = x[:1] + last.attn(attended[:1], attended, attended, need_weights=False)[0]
        first = first + last.mlp(last.ln_2(first))
        return visual.ln_post(first[0]) @ visual.proj


def load_openai(name: str, device: torch.device) -> OpenAIBackbone:
    """Loads a model of OpenAI's, or the small CLIP.

    Args:
        name: Name or path of the weights, see `read_clip`.
        device: The device of the loaded model.
    """
    model = read_clip(name).to(device)
    setattr(model, NAME_OF_MODEL, name)  # users get the module alone, and give it back to `adapt`
    return OpenAIBackbone(model, name)


def hash_openai(name: str) -> str:
    """Returns a hash of the weights of such a model, 16 hexadecimal digits of the file's SHA-256.

    The addresses of OpenAI's files hold it, and downloads are compared with it. So the hash of one
    of their models is known before it is downloaded.

    Args:
        name: Name or path of the weights, see `read_clip`.
    """
    if name in BACKBONES:
        digest = WEIGHT_URLS[name].split("/")[-2]
    else:
        digest = file_hash(weights_file(name))
    return digest[:16]


def warn_of_small(backbone: str, dataset: str) -> str:
    """Warns of the small CLIP on data that it was not trained for.

    Args:
        backbone: Name of the backbone that is used.
        dataset: Registered name of the data set.

    Returns:
        The warning; "" if there is none.
    """
    if backbone != SMALL or dataset in SMALL_TRAINED_ON:
        return ""
    line = (
        f"the small CLIP was trained only on aerial tiles ({', '.join(SMALL_TRAINED_ON)}): its "
        "predictions on anything else are near chance; take a general model, such as --backbone "
        "ViT-B/16"
    )
    logger.warning("%s", line)
    return line


def weights_file(name: str) -> Path:
    """Returns the local file of a backbone.

    OpenAI's weights are downloaded once, to the folder in which `clip` keeps them.
    """
    check_name(name)
    if name == SMALL:
        return SMALL_WEIGHTS
    if name in BACKBONES:
        return download(name, cache_folder())
    return Path(name)


def check_name(name: str) -> None:
    """Refuses a name that is neither a known one nor a file's."""
    known = [*BACKBONES, SMALL]
    if name not in known and not Path(name).is_file():
        raise WeightsError(
            f"no backbone and no weight file '{name}'.{nearest(name, known)} Known: "
            f"{', '.join(known)}, a path to OpenAI's weights, open_clip:MODEL/TAG, hf:FOLDER."
        )


def cache_folder() -> Path:
    """Returns the folder of downloaded weights, which is in the user's home folder."""
    try:
        return CACHE.expanduser()
    except RuntimeError as error:
        raise WeightsError(
            f"no home folder to keep weights in ({error}): set HOME, or give --backbone PATH"
        ) from error


def download(name: str, folder: Path) -> Path:
    """Fetches the weights of one of OpenAI's models. Never leaves half a file.

    Args:
        name: Name of the model, one of BACKBONES.
        folder: The folder of the file. If it has the right one already, nothing is downloaded.

    Returns:
        The path of the file.
    """
    # A run with local weights needs none of it
    from ...datasets.download.fetch import FetchError, fetch_once

    url = WEIGHT_URLS[name]
    try:
        return fetch_once(url, folder, f"sha256:{url.split('/')[-2]}")
    except FetchError as error:
        raise WeightsError(
            f"cannot download the weights of {name} to {folder} ({error}): where there is a "
            f"network, such as on a login node, run: {tool('download')} {name}; or fetch the file "
            "by hand and give its path as --backbone"
        ) from error
    except DataError as error:
        raise WeightsError(
            f"cannot download the weights of {name} to {folder} ({error}): fetch {url} into "
            "another folder and give its path as --backbone"
        ) from error


def read_clip(name: str) -> CLIP:
    """Reads an OpenAI model: fp32, frozen, in eval mode.

    Files of other projects have the same tensor names but not always the same activation, heads and
    pixels, and do not state them, so they are refused.

    Args:
        name: Name of the model, one of BACKBONES or `small`; or the path of a file in the format of
            one of them.
    """
    path = weights_file(name)
    state = without_prefix(tensors_by_name(read_checkpoint(path)))
    if not {SMALL_MARK, *OPENAI_MARKS} & state.keys():
        model = model_with_shapes(state)
        if model:
            raise WeightsError(
                f"{path} has the shapes of OpenAI's {model}, and does not say whose weights they "
                f"are: if they are OpenAI's, use --backbone open_clip:{model}/openai@{path}; else "
                f"--backbone open_clip:{model}@{path}"
            )
        raise WeightsError(
            f"{path} has neither OpenAI's format nor ours: use --backbone open_clip:MODEL@FILE for "
            f"weights of open_clip's models, hf:FOLDER for a folder of Hugging Face's"
        )
    try:
        if SMALL_MARK in state:
            rows = state.pop(SMALL_MARK)
            state["token_embedding.weight"] = full_token_table(
                rows, state["token_embedding.weight"]
            )
        model = CLIP(**architecture(state))
        names = model.state_dict().keys()
        model.load_state_dict({key: value for key, value in state.items() if key in names})
    except Exception as error:  # shapes that do not belong together fail in many places
        reason = (str(error) or type(error).__name__).splitlines()[-1].strip()
        raise WeightsError(
            f"{path} does not hold the weights of an OpenAI CLIP ({reason})"
        ) from error
    return model.eval().requires_grad_(False)


def without_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of a CLIP in fp32 by the names that OpenAI's module has for them.

    Training scripts save the model inside `state_dict.`, `module.` or both.
    """
    prefix = ""
    for name in tensors:
        if name.endswith("text_projection"):
            prefix = name.removesuffix("text_projection")
            break
    state = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            state[name.removeprefix(prefix)] = tensor.float()
    return state


def model_with_shapes(state: dict[str, Tensor]) -> str:
    """Returns open_clip's name of the OpenAI model with the shapes of a state dict; "" if none has
    them.
    """
    try:
        shapes = architecture(state)
    except (KeyError, ValueError, IndexError):  # not a CLIP
        return ""
    values = tuple(shapes[key] for key in SHAPE_KEYS)
    for name, expected in OPENAI_SHAPES.items():
        if values == expected:
            return name
    return ""


def architecture(state: dict[str, Tensor]) -> dict[str, Any]:
    """Returns the arguments of `clip.model.CLIP` that fit the shapes of a state dict."""
    def layers(prefix: str) -> int:
        """Layers whose names begin so: at least one. If the weights have none, loading them fails.
        """
        numbers = set()
        for key in state:
            if key.startswith(prefix):
                numbers.add(key.removeprefix(prefix).split(".")[0])
        return max(1, len(numbers))

    vision_layers: int | tuple[int, ...]
    patch_size: int | None
    if "visual.proj" in state:
        vision_width, _, _, patch_size = state["visual.conv1.weight"].shape
        positions = state["visual.positional_embedding"]
        vision_layers = layers("visual.transformer.resblocks.")
        stride = patch_size
    else:
        vision_width = state["visual.layer1.0.conv1.weight"].shape[0]
        positions = state["visual.attnpool.positional_embedding"]
        vision_layers = tuple(layers(f"visual.layer{stage}.") for stage in (1, 2, 3, 4))
        patch_size = None
        stride = RESNET_STRIDE
    vocab_size, width = state["token_embedding.weight"].shape
    # Patches along a side; one more position is the class token's or the mean's.
    side = round((len(positions) - 1) ** 0.5)
    return {
        "vision_layers": vision_layers,
        "vision_patch_size": patch_size,
        "vision_width": vision_width,
        "image_resolution": stride * side,
        "embed_dim": state["text_projection"].shape[1],
        "context_length": len(state["positional_embedding"]),
        "vocab_size": vocab_size,
        "transformer_width": width,
        "transformer_heads": width // HEAD_WIDTH,
        "transformer_layers": layers("transformer.resblocks."),
    }


def full_token_table(rows: Tensor, weight: Tensor) -> Tensor:
    """Returns the small CLIP's token embeddings: row `rows[i]` is `weight[i]`.

    Training starts from this table with no rows given. Rows of tokens that it never met are still
    the same, so they are not stored but drawn again with the same seed.

    Args:
        rows: Tokens whose embeddings are stored, (n,).
        weight: Embeddings of these tokens, (n, width).

    Returns:
        The table, (VOCAB_SIZE, width).
    """
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(VOCAB_SIZE, weight.shape[1], generator=generator) * TOKEN_STD
    table[rows.long()] = weight.float()
    return table
