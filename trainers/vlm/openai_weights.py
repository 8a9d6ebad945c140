"""OpenAI's CLIP from a name or a file: downloads, checksums, and the settings that a file itself does not state."""
from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...datasets.download.fetch import FetchError, fetch_once
from ...datasets.utils.errors import ConfigError, DataError, WeightsError, first_five
from ...datasets.utils.registry import nearest
from .checkpoints import read_checkpoint, tensors_by_name
from .openai_clip import CLIP, VOCAB_SIZE, WEIGHT_URLS, clip
from .text_tower import GELU, QUICK_GELU

logger = logging.getLogger(__name__)

BACKBONES = ("RN50", "RN101", "ViT-B/32", "ViT-B/16", "ViT-L/14", "ViT-L/14@336px")
SMALL = "small"
SMALL_KNOWS = ("LandCover", "LandCoverShift")  # data sets of the kind that it was trained on
SMALL_WEIGHTS = Path(__file__).parent / "small" / "small_clip.safetensors"
CACHE = Path("~/.cache/clip")  # where OpenAI's own package keeps its weights
# Entries of OpenAI's archives and of the small CLIP that no other project's files have.
OPENAI_MARKS = {"input_resolution", "context_length", "vocab_size"}
SMALL_MARK = "token_embedding.rows"
DEFAULT_HEAD_WIDTH = 64  # numbers per attention head, in OpenAI's models and in most others
WIDEST_WITH_DEFAULT = 1024  # wider image towers have heads of 80, 88, 104 or 112 in one project, 64 in another
TOKEN_STD = 0.02  # of CLIP's token embeddings before training


def read_clip(name: str, activation: str = "", head_width: int = 0) -> CLIP:
    """An OpenAI model by name, the small CLIP (`small`), or a local file; fp32, frozen, in eval mode."""
    path = weights_file(name)
    state = tensors_by_name(read_checkpoint(path))
    # Training scripts save the model inside `state_dict.`, `module.` or both.
    prefix = next((key.removesuffix("text_projection") for key in state if key.endswith("text_projection")), "")
    state = {key.removeprefix(prefix): value.float() for key, value in state.items() if key.startswith(prefix)}
    openai = SMALL_MARK in state or bool(OPENAI_MARKS & state.keys())
    model = build_clip(state, path, strict=not openai)
    if not openai:
        use_variant(model, path, activation, head_width)
    elif activation not in ("", QUICK_GELU) or head_width not in (0, DEFAULT_HEAD_WIDTH):
        raise ConfigError(f"{path} holds a model of OpenAI's kind, which has QuickGELU and heads of "
                          f"{DEFAULT_HEAD_WIDTH}: leave MODEL.ACTIVATION and MODEL.HEAD_WIDTH at their defaults")
    return model


def use_variant(model: CLIP, path: Path, activation: str, head_width: int) -> None:
    """Gives a model of another project the activation and heads of the settings, because its file does not state
    them."""
    if activation not in (QUICK_GELU, GELU):
        raise WeightsError(f"{path} does not say which activation its model has, and a wrong one gives wrong features: "
                           f"set MODEL.ACTIVATION {QUICK_GELU} (OpenAI, MetaCLIP, DFN) or MODEL.ACTIVATION {GELU} "
                           f"(LAION, DataComp), or use --backbone open_clip:MODEL@{path}")
    if model.vocab_size != VOCAB_SIZE:
        raise WeightsError(f"{path} has a vocabulary of {model.vocab_size} tokens, not OpenAI's {VOCAB_SIZE}: use "
                           f"--backbone open_clip:MODEL@{path}")
    vision = isinstance(model.visual, clip.model.VisionTransformer)
    width = model.visual.conv1.out_channels if vision else 0
    if width > WIDEST_WITH_DEFAULT and not head_width:
        raise WeightsError(f"{path} does not say how wide the heads of its image tower of width {width} are, and a "
                           f"wrong number gives wrong features: set MODEL.HEAD_WIDTH (80 in ViT-H, 88 in ViT-g, 104 in "
                           f"ViT-bigG, 64 in others), or use --backbone open_clip:MODEL@{path}")
    if head_width and (not vision or width % head_width):
        kind = f"of width {width}" if vision else "without heads"
        raise ConfigError(f"MODEL.HEAD_WIDTH {head_width} does not fit {path}, whose image tower is {kind}")
    vision_blocks = model.visual.transformer.resblocks if vision else ()
    for block in vision_blocks:
        block.attn.head_dim = head_width or DEFAULT_HEAD_WIDTH
        block.attn.num_heads = width // block.attn.head_dim
    if activation == GELU:
        for block in [*model.transformer.resblocks, *vision_blocks]:
            block.mlp.gelu = nn.GELU()
        if vision and (width, model.visual.conv1.kernel_size[0]) == (1024, 14):
            logger.warning("%s: pixels are normalised as OpenAI's; LAION-2B's ViT-L/14 needs INPUT.PIXEL_MEAN "
                           "[0.5,0.5,0.5] and INPUT.PIXEL_STD [0.5,0.5,0.5]", path)


def warn_of_small(backbone: str, dataset: str) -> str:
    """Warns of the small CLIP on data that it was not trained for; returns the warning, or ""."""
    if backbone != SMALL or dataset in SMALL_KNOWS:
        return ""
    line = (f"the small CLIP knows only aerial tiles of land ({', '.join(SMALL_KNOWS)}): its predictions on anything "
            "else are near chance; take a general model, such as --backbone ViT-B/16")
    logger.warning("%s", line)
    return line


def weights_file(name: str) -> Path:
    """The local file of a backbone; OpenAI's weights are downloaded once to where `clip` keeps them."""
    check_name(name)
    if name == SMALL:
        return SMALL_WEIGHTS
    return download(WEIGHT_URLS[name], cache_folder()) if name in BACKBONES else Path(name)


def check_name(name: str) -> None:
    known = [*BACKBONES, SMALL]
    if name not in known and not Path(name).is_file():
        raise WeightsError(f"no backbone and no weight file '{name}'.{nearest(name, known)} Known: {', '.join(known)}, "
                           "a path to weights, open_clip:MODEL/TAG, hf:FOLDER.")


def cache_folder() -> Path:
    try:
        return CACHE.expanduser()
    except RuntimeError as error:
        raise WeightsError(f"no home folder to keep weights in ({error}): set HOME, or give --backbone PATH") from error


def expected_sha256(url: str) -> str:
    return url.split("/")[-2]


def download(url: str, folder: Path) -> Path:
    """Fetches `url` into `folder` unless a file with the right checksum is there. Never leaves half a file."""
    target = folder / url.rsplit("/", 1)[-1]
    try:
        return fetch_once(url, folder, f"sha256:{expected_sha256(url)}")
    except FetchError as error:
        raise WeightsError(f"cannot download {error}: try again, or fetch it by hand and put it at {target}") from error
    except DataError as error:
        raise WeightsError(f"cannot save {url} ({error}): free space there, set HOME to another folder, or fetch it by "
                           f"hand and give its path as --backbone") from error


def build_clip(state: dict[str, Tensor], path: Path, strict: bool) -> CLIP:
    """The model whose shapes the weights have: OpenAI's archives do not state their architecture. In a file of another
    project (`strict`) an unknown entry is a part that OpenAI's models lack, so it is refused."""
    try:
        rows = state.pop(SMALL_MARK, None)
        if rows is not None:
            state["token_embedding.weight"] = full_token_table(rows.long(), state["token_embedding.weight"])
        model = CLIP(**architecture(state))
        known = model.state_dict().keys()
        unknown = [key for key in state if key not in known]
        if strict and unknown:
            raise KeyError(f"it has {first_five(unknown)}")
        model.load_state_dict({key: value for key, value in state.items() if key in known})
    except Exception as error:  # shapes that do not belong together fail in many places
        reason = (str(error) or type(error).__name__).splitlines()[-1].strip()
        raise WeightsError(f"{path} does not hold the weights of an OpenAI CLIP ({reason}){hint(state)}") from error
    return model.eval().requires_grad_(False)


def hint(state: dict[str, Tensor]) -> str:
    """Which library's weights they seem to be, by the names of the text tower's tensors."""
    if any(key.startswith("text_model.") for key in state):
        return ": they seem to be Hugging Face's, use --backbone hf:FOLDER"
    if any(key.startswith(("text.", "transformer.resblocks.")) for key in state):
        return ": if they are open_clip's, use --backbone open_clip:MODEL@FILE"
    return ""


def architecture(state: dict[str, Tensor]) -> dict[str, Any]:
    """The arguments of `clip.model.CLIP` that fit the shapes of a state dict."""
    def layers(prefix: str) -> int:
        found = {key.removeprefix(prefix).split(".")[0] for key in state if key.startswith(prefix)}
        if not found:
            raise KeyError(prefix)
        return len(found)

    def grid_side(positions: Tensor) -> int:
        """Patches per side; one more position belongs to the class token or the mean."""
        return round((positions.shape[0] - 1) ** 0.5)

    vision: dict[str, Any]
    if "visual.proj" in state:
        patch = state["visual.conv1.weight"].shape[-1]
        vision = {
            "vision_width": state["visual.conv1.weight"].shape[0],
            "vision_layers": layers("visual.transformer.resblocks."),
            "vision_patch_size": patch,
            "image_resolution": patch * grid_side(state["visual.positional_embedding"]),
        }
    else:
        vision = {
            "vision_width": state["visual.layer1.0.conv1.weight"].shape[0],
            "vision_layers": tuple(layers(f"visual.layer{i}.") for i in (1, 2, 3, 4)),
            "vision_patch_size": None,
            "image_resolution": 32 * grid_side(state["visual.attnpool.positional_embedding"]),
        }
    vocab_size, width = state["token_embedding.weight"].shape
    return {
        **vision,
        "embed_dim": state["text_projection"].shape[1],
        "context_length": state["positional_embedding"].shape[0],
        "vocab_size": vocab_size,
        "transformer_width": width,
        "transformer_heads": width // DEFAULT_HEAD_WIDTH,
        "transformer_layers": layers("transformer.resblocks."),
    }


def full_token_table(rows: Tensor, weight: Tensor) -> Tensor:
    """The small CLIP's token embeddings (VOCAB_SIZE, width): row `rows[i]` is `weight[i]`. All others are as before
    training, which starts from this table with no rows given, so they are not stored."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(VOCAB_SIZE, weight.shape[1], generator=generator) * TOKEN_STD
    table[rows.long()] = weight.float()
    return table
