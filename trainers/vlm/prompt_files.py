"""Prompt checkpoints in CoOp's format: find one, read its context, check that it fits, write one, clean one."""
from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from ...datasets.utils.errors import WeightsError, first_five
from ...datasets.utils.files import write_atomically, write_text
from ..config.roles import OF_PROMPTS
from .backbone import Backbone
from .checkpoints import read_checkpoint
from .class_token_position import END
from .openai_weights import sha256

logger = logging.getLogger(__name__)

BACKBONE = "backbone"  # the entry of a checkpoint that names the model it was learnt with
POSITION = "class_token_position"  # and that which says where the class name stands
FOLDER = "prompt_learner"  # CoOp's name for the part of the model that it saves
# Prompts learnt by CoOp on the embedded data set with the embedded model, by the names that stand for their paths.
SMALL = Path(__file__).parent / "small"
EMBEDDED = {
    f"small-coop-{shots}shot": SMALL / f"small_clip_coop_{shots}shot.safetensors" for shots in (2, 4)
}


# Parts of names in checkpoints of Dassl methods other than CoOp, and what they seem to be.
OTHERS = {
    "meta_net": "CoCoOp's", "compound_prompts": "MaPLe's or PromptSRC's", "VPT": "of visual prompts (VPT, IVLP)",
    "text_feature_residuals": "TaskRes's", "adapter.fc": "CLIP-Adapter's", "anchor_ctx": "of prompts with anchors",
    "token_of": "of prompts with tokens of their own for parts of a class",
}


def find_prompt(model_dir: str | Path, epoch: int | None = None) -> Path:
    """CoOp's layout: `<dir>/prompt_learner/model.pth.tar-<epoch>`. Without an epoch, `model-best.pth.tar`, which exists
    only where CoOp was told to validate; else the last epoch, which is what CoOp itself tests."""
    folder = Path(model_dir) / FOLDER
    if not Path(model_dir).is_dir():
        raise WeightsError(f"--model-dir {model_dir} is not there: correct the path")
    if not folder.is_dir():
        raise WeightsError(f"--model-dir {model_dir} has no folder {FOLDER}: give the folder in which CoOp's run, or "
                           f"ours, has saved its prompt")
    saved = [file for file in folder.glob("model.pth.tar-*") if file.name.rpartition("-")[2].isdigit()]
    path = folder / ("model-best.pth.tar" if epoch is None else f"model.pth.tar-{epoch}")
    if epoch is None and not path.is_file() and saved:
        path = max(saved, key=lambda file: int(file.name.rpartition("-")[2]))
    if not path.is_file():
        there = ", ".join(sorted(file.name for file in folder.glob("model*"))) or "no checkpoint"
        raise WeightsError(f"no prompt at {path}: {folder} holds {there}; correct --model-dir or --load-epoch")
    logger.info("prompt: %s", path)
    return path


def prompt_file(name: str | Path) -> Path:
    """The file behind the name of a prompt, such as MODEL.INIT_WEIGHTS: an embedded one, or a path."""
    path = EMBEDDED.get(str(name), Path(name))
    if not path.is_file():
        raise WeightsError(f"no prompt checkpoint at {path}: a prompt (MODEL.INIT_WEIGHTS) is a file in CoOp's format, "
                           f"or one of {', '.join(EMBEDDED)}")
    return path


def prompt_hash(name: str | Path) -> str:
    """SHA-256 of a prompt checkpoint, shortened."""
    return sha256(prompt_file(name))[:16]


class StoredPrompt(NamedTuple):
    """What a prompt checkpoint holds of use."""

    context: Tensor  # (n_ctx, width), or (K, n_ctx, width) if class-specific
    tensors: dict[str, Tensor]  # all that was saved with it
    backbone: str  # the one it was learnt with, "" if the file does not say
    position: str  # where the class name stands, likewise


def read_context(path: str | Path) -> StoredPrompt:
    """Names of tensors are the prompt learner's own, without the prefixes of the modules around it. Whatever else the
    file holds (optimizer, scheduler, live objects of both) is left alone."""
    content = read_checkpoint(path)
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise WeightsError(f"{path} holds no prompt: it must be a dict of tensors, or hold one as 'state_dict'")
    tensors = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    refuse_others(path, tensors)
    for name, tensor in tensors.items():
        if name.rpartition(".")[2] == "ctx":
            prefix = name.removesuffix("ctx")
            own = {key.removeprefix(prefix): value for key, value in tensors.items()}
            return StoredPrompt(tensor, own, *(stored_fact(path, content, fact) for fact in (BACKBONE, POSITION)))
    raise WeightsError(f"{path} holds no context 'ctx'; tensors found: {first_five(list(tensors)) or 'none'}")


def refuse_others(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Of methods whose files look like CoOp's: what else they have learnt belongs to the prompt, so that their context
    alone, where there is one, would be something that nobody has trained."""
    for sign, method in OTHERS.items():
        found = [name for name in tensors if sign in name]
        if found:
            raise WeightsError(f"{path} is no prompt of CoOp's: it seems to be {method}, with {first_five(found)}, "
                               f"which is not understood here")


def stored_fact(path: str | Path, content: Mapping[str, Any], fact: str) -> str:
    """What a checkpoint says of itself in words: CoOp's own files say nothing."""
    if Path(path).suffix != ".safetensors":
        words = content.get(fact)
        return words if isinstance(words, str) else ""
    with safe_open(path, framework="pt") as file:
        return (file.metadata() or {}).get(fact, "")


def load_context(
    name: str | Path, backbone: Backbone, class_tokens: Sequence[Sequence[int]], position: str = END,
) -> Tensor:
    """The context of a checkpoint in fp32 on the model's device, after checking that it fits model and classes."""
    path = prompt_file(name)
    context, tensors, made_with, placed = read_context(path)
    if placed and placed != position:
        raise WeightsError(f"the prompt in {path} was learnt with the class name at '{placed}', not '{position}': add "
                           f"{OF_PROMPTS} {placed}")
    width, classes = backbone.width, len(class_tokens)
    shape = tuple(context.shape)
    if context.dim() not in (2, 3) or shape[-1] != width or shape[-2] < 1:
        learnt = f", learnt with {made_with}," if made_with else ""
        raise WeightsError(f"the context in {path}{learnt} has shape {shape}, but this backbone needs "
                           f"(n_ctx, {width})")
    if not context.isfinite().all():
        raise WeightsError(f"the context in {path} holds numbers that are not finite")
    if context.dim() == 3:
        if shape[0] != classes:
            raise WeightsError(f"the class-specific context in {path} has shape {shape}, but the data set needs "
                               f"({classes}, n_ctx, {width})")
        check_class_list(path, tensors.get("token_suffix"), backbone, class_tokens)
    elif not same_backbone(tensors.get("token_prefix"), backbone):
        logger.warning("the prompt in %s was made with another backbone of the same width%s; expect nonsense", path,
                       f" ({made_with})" if made_with else "")
    return context.float().to(backbone.device)


def alike(stored: Tensor, own: Tensor) -> bool:
    """Whether stored embeddings are the model's own; files may hold them in half precision."""
    return stored.shape == own.shape and torch.allclose(stored.float(), own.cpu(), atol=1e-3)


def same_backbone(prefix: Tensor | None, backbone: Backbone) -> bool:
    """CoOp's files hold the start token's embedding, by which backbones of one width can be told apart."""
    return prefix is None or prefix.dim() != 3 or alike(prefix[:1], backbone.embed([backbone.tokenizer.start]))


def check_class_list(
    path: Path, suffix: Tensor | None, backbone: Backbone, class_tokens: Sequence[Sequence[int]],
) -> None:
    """CoOp's files also hold the embeddings of the class names: class-specific contexts must belong to these names."""
    if suffix is None:
        logger.warning("%s does not tell the classes of its class-specific context; they are taken to be these", path)
        return
    for label, own in enumerate(class_tokens):
        if suffix.dim() != 3 or not alike(suffix[label : label + 1, : len(own)], backbone.embed([own])):
            raise WeightsError(f"the class-specific context in {path} was made for another class list or backbone "
                               f"(class {label} differs)")


def write_checkpoint(
    path: Path, epoch: int, context: Tensor, backbone: Backbone, class_tokens: Sequence[Sequence[int]],
    optimizer: Mapping[str, Any], scheduler: Mapping[str, Any], name: str = "", position: str = END,
) -> None:
    """Saves a context as CoOp does, so that CoOp's own code reads it, the backbone's `name` and where the class name
    stands; all of it plain data."""
    tokenizer = backbone.tokenizer
    length = backbone.context_length - len(tokenizer.start) - context.shape[-2]
    padded = [[*own, *[tokenizer.pad] * (length - len(own))] for own in class_tokens]
    content = {
        "state_dict": {
            "ctx": context.detach().cpu(),
            "token_prefix": backbone.embed([tokenizer.start] * len(padded)).cpu(),  # (K, 1, width)
            "token_suffix": backbone.embed(padded).cpu(),  # (K, 77 − 1 − n_ctx, width)
        },
        BACKBONE: name, POSITION: position,
        "epoch": epoch, "optimizer": optimizer, "scheduler": scheduler, "val_result": None,
    }
    write_atomically(path, lambda file: torch.save(content, file))
    write_text(path.with_name("checkpoint"), f"{path.name}\n")  # by this Dassl finds the last one


def checkpoint_path(run_folder: Path, epoch: int) -> Path:
    """Where CoOp saves it."""
    return run_folder / FOLDER / f"model.pth.tar-{epoch}"


def convert_prompt(source: str | Path, target: str | Path) -> None:
    """Writes a clean safetensors copy of a checkpoint: the context and what its fit is checked by, in its precision."""
    context, tensors, *said = read_context(prompt_file(source))
    kept = {"ctx": context}
    if "token_prefix" in tensors:
        kept["token_prefix"] = tensors["token_prefix"][:1]
    if context.dim() == 3 and "token_suffix" in tensors:
        kept["token_suffix"] = tensors["token_suffix"]
    kept = {name: tensor.contiguous() for name, tensor in kept.items()}
    facts = {fact: words for fact, words in zip((BACKBONE, POSITION), said, strict=True) if words}
    write_atomically(Path(target), lambda file: file.write(save(kept, facts or None)))
    logger.info("%s: %s", target, ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in kept.items()))
