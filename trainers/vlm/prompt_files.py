"""Prompt checkpoints in CoOp's format: find one, read its context, check that it fits, write one, convert one."""
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
from ..config.table import CLASS_TOKEN_POSITION
from .backbone import Backbone
from .checkpoints import read_checkpoint, sha256
from .tokenizer import END

logger = logging.getLogger(__name__)

BACKBONE = "backbone"  # the entry of a checkpoint that names the model it was learnt with
POSITION = "class_token_position"
# What a checkpoint may say about how it was made.
METADATA = ("method", "dataset", "shots", "seed", "epochs", BACKBONE, "n_ctx", POSITION, "split_hash", "accuracy",
            "settings")
FOLDER = "prompt_learner"  # CoOp's name for the part of the model that it saves
# Prompts learnt by CoOp on LandCover with the small CLIP, by the names that can be given instead of paths.
SMALL = Path(__file__).parent / "small"
EMBEDDED = {f"small-coop-{shots}shot": SMALL / f"small_clip_coop_{shots}shot.safetensors" for shots in (2, 4)}
# Parts of tensor names in checkpoints of other Dassl methods, and whose they seem to be.
OTHERS = {
    "meta_net": "CoCoOp's", "compound_prompts": "MaPLe's or PromptSRC's", "VPT": "of visual prompts (VPT, IVLP)",
    "text_feature_residuals": "TaskRes's", "adapter.fc": "CLIP-Adapter's", "anchor_ctx": "of prompts with anchors",
    "token_of": "of prompts with tokens of their own for parts of a class",
}


def find_prompt(model_dir: str | Path, epoch: int | None = None) -> Path:
    """The checkpoint in CoOp's layout: `<dir>/prompt_learner/model.pth.tar-<epoch>`.

    Without an epoch it is `model-best.pth.tar`, which CoOp writes only where it validates;
    otherwise the last epoch, which is what CoOp itself tests.
    """
    folder = Path(model_dir) / FOLDER
    saved: dict[int, Path] = {}  # by epoch
    for file in folder.glob("model.pth.tar-*"):
        number = file.name.rpartition("-")[2]
        if number.isdigit():
            saved[int(number)] = file
    if epoch is not None:
        path = folder / f"model.pth.tar-{epoch}"
    else:
        path = folder / "model-best.pth.tar"
        if not path.is_file() and saved:
            path = saved[max(saved)]
    if not path.is_file():
        names = sorted(file.name for file in folder.glob("model*"))
        content = ", ".join(names) or "no checkpoint"
        raise WeightsError(
            f"no prompt at {path}: {folder} holds {content}; correct --model-dir, the folder in "
            f"which a run of CoOp has saved its prompt, or --load-epoch")
    logger.info("prompt: %s", path)
    return path


def prompt_file(name: str | Path) -> Path:
    """The file of a prompt such as MODEL.INIT_WEIGHTS: an embedded one by name, or a path."""
    path = EMBEDDED.get(str(name), Path(name))
    if not path.is_file():
        raise WeightsError(f"no prompt checkpoint at {path}: a prompt (MODEL.INIT_WEIGHTS) is a file in CoOp's format, "
                           f"or one of {', '.join(EMBEDDED)}")
    return path


def prompt_hash(name: str | Path) -> str:
    """SHA-256 of a prompt checkpoint, shortened."""
    return sha256(prompt_file(name))[:16]


def read_metadata(name: str | Path) -> dict[str, str]:
    """What a prompt checkpoint says about how it was made, by the keys of `METADATA`."""
    path = prompt_file(name)
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            content = file.metadata() or {}
    else:
        content = read_checkpoint(path)
        if not isinstance(content, dict):
            return {}
    metadata = {}
    for key in METADATA:
        if isinstance(content.get(key), str | int):
            metadata[key] = str(content[key])
    return metadata


class StoredPrompt(NamedTuple):
    """The content of a prompt checkpoint."""

    context: Tensor  # (n_ctx, width), or (K, n_ctx, width) if class-specific
    tensors: dict[str, Tensor]  # all that was saved with it
    backbone: str  # the one it was learnt with, "" if the file does not say
    position: str  # of the class name, "" if the file does not say


def read_context(path: str | Path) -> StoredPrompt:
    """Reads a prompt checkpoint.

    Names of tensors lose the prefixes of the modules around the prompt learner. Optimizer state is
    ignored.
    """
    content = read_checkpoint(path)
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise WeightsError(f"{path} holds no prompt: it must be a dict of tensors, or hold one as "
                           f"'state_dict'")
    tensors = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    refuse_other_methods(path, tensors)
    prefix = None
    for name in tensors:
        if name.rpartition(".")[2] == "ctx":
            prefix = name.removesuffix("ctx")
            break
    if prefix is None:
        raise WeightsError(f"{path} holds no context 'ctx'; tensors found: "
                           f"{first_five(list(tensors)) or 'none'}")
    tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    if Path(path).suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            content = file.metadata() or {}
    return StoredPrompt(
        context=tensors["ctx"],
        tensors=tensors,
        backbone=text_entry(content, BACKBONE),
        position=text_entry(content, POSITION),
    )


def refuse_other_methods(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Other Dassl methods save more than a context, which alone is not what they learnt."""
    for part, method in OTHERS.items():
        names = [name for name in tensors if part in name]
        if names:
            raise WeightsError(f"{path} is not a prompt of CoOp: it seems to be {method}, with "
                               f"{first_five(names)}, which is not supported")


def text_entry(content: Mapping[str, Any], key: str) -> str:
    """A text in a checkpoint; "" if there is none."""
    value = content.get(key)
    return value if isinstance(value, str) else ""


def load_context(
    name: str | Path, backbone: Backbone, class_tokens: Sequence[Sequence[int]], position: str = END,
    expected_hash: str = "",
) -> Tensor:
    """The context of a checkpoint, after checking that it fits model and classes.

    A file that changes while it is read is refused.

    Args:
        name: A path, or the name of an embedded prompt.
        backbone: The model.
        class_tokens: For each class the tokens after the context.
        position: Of the class names.
        expected_hash: An earlier `prompt_hash` that the file must still have; "" = any.

    Returns:
        The context in fp32 on the model's device: (n_ctx, width), or (K, n_ctx, width).
    """
    path = prompt_file(name)
    before = expected_hash or prompt_hash(path)
    stored = read_context(path)
    if prompt_hash(path) != before:
        raise WeightsError(f"the prompt {path} changed while it was read: run the command again")
    if stored.position and stored.position != position:
        raise WeightsError(
            f"the prompt in {path} was learnt with the class name at '{stored.position}', not "
            f"'{position}': add {CLASS_TOKEN_POSITION} {stored.position}")
    context = stored.context
    shape, width = tuple(context.shape), backbone.width
    if context.dim() not in (2, 3) or shape[-1] != width or shape[-2] < 1:
        learnt_with = f", learnt with {stored.backbone}," if stored.backbone else ""
        raise WeightsError(f"the context in {path}{learnt_with} has shape {shape}, but this backbone "
                           f"needs (n_ctx, {width})")
    if not context.isfinite().all():
        raise WeightsError(f"the context in {path} holds numbers that are not finite")
    check_embeddings(path, stored, backbone, class_tokens)
    return context.float().to(backbone.device)


def check_embeddings(
    path: Path, stored: StoredPrompt, backbone: Backbone, class_tokens: Sequence[Sequence[int]],
) -> None:
    """Compares the embeddings of start token and class names, which CoOp's files hold, with ours."""
    if stored.context.dim() == 2:
        prefix = stored.tensors.get("token_prefix")
        start = backbone.tokenizer.start
        if prefix is not None and not same_embeddings(prefix, 0, start, backbone):
            name = f" ({stored.backbone})" if stored.backbone else ""
            logger.warning("the prompt in %s was made with another backbone of the same width%s; "
                           "predictions will be wrong", path, name)
        return
    shape = tuple(stored.context.shape)
    if shape[0] != len(class_tokens):
        raise WeightsError(
            f"the class-specific context in {path} has shape {shape}, but the data set needs "
            f"({len(class_tokens)}, n_ctx, {backbone.width})")
    suffix = stored.tensors.get("token_suffix")
    if suffix is None:
        return
    for label, tokens in enumerate(class_tokens):
        if not same_embeddings(suffix, label, tokens, backbone):
            raise WeightsError(f"the class-specific context in {path} was made for another class "
                               f"list or backbone (class {label} differs)")


def same_embeddings(stored: Tensor, row: int, tokens: Sequence[int], backbone: Backbone) -> bool:
    """Whether a row of stored embeddings begins with the model's own of these tokens.

    They may be stored in half precision.
    """
    expected = backbone.embed([tokens])[0].cpu()
    beginning = stored
    if stored.dim() == 3:
        beginning = stored[row, : len(tokens)].float()
    return beginning.shape == expected.shape and torch.allclose(beginning, expected, atol=1e-3)


class TrainingState(NamedTuple):
    """Where a training ended, as plain data."""

    epoch: int  # number of the last epoch
    optimizer: Mapping[str, Any]  # state of the optimizer; empty = none
    scheduler: Mapping[str, Any]  # state of its schedule; empty = none


def write_checkpoint(
    path: Path, context: Tensor, backbone: Backbone, class_tokens: Sequence[Sequence[int]],
    state: TrainingState, metadata: Mapping[str, object],
) -> None:
    """Saves a context so that CoOp's own code reads it.

    Args:
        path: Of the checkpoint.
        context: (n_ctx, width), or (K, n_ctx, width) if class-specific.
        backbone: The model that it was learnt with.
        class_tokens: Tokens of the class names, which CoOp's files have too.
        state: Where the training ended.
        metadata: How the prompt was made, by the keys of `METADATA`.
    """
    tokenizer = backbone.tokenizer
    length = backbone.context_length - len(tokenizer.start) - context.shape[-2]
    padded = []
    for tokens in class_tokens:
        padded.append([*tokens, *[tokenizer.pad] * (length - len(tokens))])
    content = {
        "state_dict": {
            "ctx": context.detach().cpu(),
            "token_prefix": backbone.embed([tokenizer.start] * len(padded)).cpu(),  # (K, 1, width)
            "token_suffix": backbone.embed(padded).cpu(),  # (K, 77 − 1 − n_ctx, width)
        },
        **metadata,
        **state._asdict(),
        "val_result": None,
    }
    write_atomically(path, lambda file: torch.save(content, file))
    write_text(path.with_name("checkpoint"), f"{path.name}\n")  # where Dassl looks for the last one


def checkpoint_path(run_folder: Path, epoch: int) -> Path:
    """Where CoOp saves it."""
    return run_folder / FOLDER / f"model.pth.tar-{epoch}"


def convert_prompt(source: str | Path, target: str | Path) -> None:
    """Writes a safetensors copy of a checkpoint: the context and what load_context checks it by, in its precision."""
    context, tensors, _, _ = read_context(prompt_file(source))
    saved = {"ctx": context}
    if "token_prefix" in tensors:
        saved["token_prefix"] = tensors["token_prefix"][:1].contiguous()
    if context.dim() == 3 and "token_suffix" in tensors:
        saved["token_suffix"] = tensors["token_suffix"]
    metadata = read_metadata(source)
    write_atomically(Path(target), lambda file: file.write(save(saved, metadata or None)))
    logger.info("%s: %s", target, ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in saved.items()))
