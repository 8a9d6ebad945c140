"""Finds, reads, checks, writes and converts prompt checkpoints in CoOp's format."""
from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from ...datasets.utils.errors import ConfigError, WeightsError, first_five
from ...datasets.utils.files import (
    file_hash,
    is_printable,
    read_regular,
    write_atomically,
    write_text,
)
from ..config.settings import backbone_name
from ..config.table import CLASS_TOKEN_POSITION
from ..registry import backbone_label, method_key
from .backbone import Backbone
from .checkpoints import read_checkpoint
from .prompt_protocol import metadata_of_path
from .prompts import END

logger = logging.getLogger(__name__)

BACKBONE = "backbone"  # the entry of a checkpoint that names the model it was learnt with
POSITION = "class_token_position"
# Keys of what a checkpoint may say about how it was made.
METADATA = (
    "method",
    "dataset",
    "shots",
    "seed",
    "epochs",
    BACKBONE,
    "n_ctx",
    POSITION,
    "split_hash",
    "accuracy",
    "settings",
)
FOLDER = "prompt_learner"  # CoOp's name for the part of the model that it saves
LAST_SAVED = "checkpoint"  # Dassl's name for the file that names the checkpoint saved last
# Prompts learnt by CoOp on LandCover with the small CLIP, by the names that can be given instead of
# paths.
SMALL = Path(__file__).parent / "small"
EMBEDDED = {
    f"small-coop-{shots}shot": SMALL / f"small_clip_coop_{shots}shot.safetensors"
    for shots in (2, 4)
}
# Parts of tensor names in checkpoints of other Dassl methods -> words for the method.
OTHERS = {
    "meta_net": "CoCoOp's",
    "compound_prompts": "MaPLe's or PromptSRC's",
    "VPT": "of visual prompts (VPT, IVLP)",
    "text_feature_residuals": "TaskRes's",
    "adapter.fc": "CLIP-Adapter's",
    "anchor_ctx": "of prompts with anchors",
    "token_of": "of prompts with tokens of their own for parts of a class",
}
# What a log line says about each entry of a prompt's metadata.
DESCRIPTIONS = {
    "method": "{}", "shots": "{} shots", "dataset": "learnt on {}", "seed": "seed {}",
    "epochs": "{} epochs", BACKBONE: "{}", "n_ctx": "{} tokens", POSITION: "class name at {}",
    "accuracy": "accuracy {}",
}


def find_prompt(model_dir: str | Path, epoch: int | None = None) -> Path:
    """Finds the checkpoint in CoOp's layout: `<dir>/prompt_learner/model.pth.tar-<epoch>`.

    Args:
        model_dir: Folder of a run of CoOp.
        epoch: None = `model-best.pth.tar`, which CoOp writes only where it validates; otherwise the
            one that was saved last, which is what CoOp itself tests. The file `checkpoint` names
            it; without that file it is the one of the highest epoch.
    """
    folder = Path(model_dir) / FOLDER
    saved: dict[int, Path] = {}  # epoch -> checkpoint
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
            last = folder / last_saved(folder)
            if last in saved.values():  # an earlier training in this folder may have been longer
                path = last
    if not path.is_file():
        names = sorted(file.name for file in folder.glob("model*"))
        content = ", ".join(names) or "no checkpoint"
        remedy = ("correct --model-dir, the folder in which a run of CoOp has saved its prompt, "
                  "or --load-epoch")
        prompt_folders = Path(model_dir).glob(f"seed*/{FOLDER}")
        seeds = sorted(prompts.parent.name for prompts in prompt_folders)
        if seeds:
            remedy = (f"{model_dir} has {', '.join(seeds)}: choose with --seed, or give one of "
                      f"these folders as --model-dir")
        raise WeightsError(f"no prompt at {path}: {folder} holds {content}; {remedy}")
    logger.info("prompt: %s", path)
    return path


def last_saved(folder: Path) -> str:
    """The name of the checkpoint that was saved last in a folder; "" if nothing says it."""
    try:
        return read_regular(folder / LAST_SAVED).decode().strip()
    except (OSError, ValueError):  # absent, or not text
        return ""


def prompt_file(name: str | Path) -> Path:
    """Returns the file of a prompt such as MODEL.INIT_WEIGHTS: an embedded one by name, or a path.
    """
    path = EMBEDDED.get(str(name), Path(name))
    if not path.is_file():
        raise WeightsError(
            f"no prompt checkpoint at {path}: a prompt (MODEL.INIT_WEIGHTS) is a file in CoOp's "
            f"format, or one of {', '.join(EMBEDDED)}"
        )
    return path


def prompt_hash(name: str | Path) -> str:
    """SHA-256 of a prompt checkpoint, shortened."""
    return file_hash(prompt_file(name))[:16]


def read_metadata(name: str | Path) -> dict[str, str]:
    """Reads what a prompt checkpoint says about how it was made, by the keys of `METADATA`."""
    path = prompt_file(name)
    content = None
    if path.suffix != ".safetensors":
        content = read_checkpoint(path)
    return metadata_in(path, content)


def metadata_in(path: Path, content: object) -> dict[str, str]:
    """Returns what a checkpoint says about how it was made, by the keys of `METADATA`.

    Args:
        path: The checkpoint. A safetensors file says it in its header.
        content: The content of the checkpoint, in which other files say it.
    """
    stored: Mapping[str, object] = {}
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            stored = file.metadata() or {}
    elif isinstance(content, dict):
        stored = content
    metadata = {}
    for key in METADATA:
        value = stored.get(key)
        if isinstance(value, str | int | float):
            metadata[key] = str(value)
    return metadata


class StoredPrompt(NamedTuple):
    """The content of a prompt checkpoint."""

    context: Tensor  # (n_ctx, width), or (K, n_ctx, width) if class-specific
    tensors: dict[str, Tensor]  # all that was saved with it
    metadata: dict[str, str]  # facts of the file about how it was made, by the keys of `METADATA`

    @property
    def backbone(self) -> str:
        """Name of the backbone that it was learnt with; "" if the file does not say."""
        return self.metadata.get(BACKBONE, "")


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
    return StoredPrompt(tensors["ctx"], tensors, metadata_in(Path(path), content))


def refuse_other_methods(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuses checkpoints of other Dassl methods: the context alone is not what they learnt.

    Args:
        path: The checkpoint, for the message.
        tensors: All tensors of the checkpoint by name.
    """
    for part, method in OTHERS.items():
        names = [name for name in tensors if part in name]
        if names:
            raise WeightsError(f"{path} is not a prompt of CoOp: it seems to be {method}, with "
                               f"{first_five(names)}, which is not supported")


def describe_metadata(metadata: Mapping[str, str]) -> str:
    """Says how a prompt was made: `CoOp, 2 shots, learnt on LandCover, seed 1, 100 epochs, …`."""
    words = []
    for key, text in DESCRIPTIONS.items():
        value = metadata.get(key)
        if value == "1" and text.startswith("{} ") and text.endswith("s"):
            words.append(text.format(value)[:-1])  # 1 shot, 1 epoch, 1 token
        elif value:
            words.append(text.format(value))
    return ", ".join(words)


def load_context(
    name: str | Path, backbone: Backbone, class_tokens: Sequence[Sequence[int]],
    position: str = END, expected_hash: str = "", dataset: str = "",
) -> Tensor:
    """Reads the context of a checkpoint, and checks that it fits model and classes.

    What the file says about how the prompt was made is logged, and checked too. A file that changes
    while it is read is refused.

    Args:
        name: The path of the checkpoint, or the name of an embedded prompt.
        backbone: The model.
        class_tokens: Tokens after the context, for each class.
        position: Position of the class name in the prompt: END, MIDDLE or FRONT.
        expected_hash: An earlier `prompt_hash` that the file must still have; "" = any.
        dataset: The registered data set that the prompt is used on; "" = none.

    Returns:
        The context in fp32 on the model's device: (n_ctx, width), or (K, n_ctx, width).
    """
    path = prompt_file(name)
    before = expected_hash or prompt_hash(path)
    stored = read_context(path)
    if prompt_hash(path) != before:
        raise WeightsError(f"the prompt {path} changed while it was read: run the command again")
    if stored.metadata:
        logger.info("prompt %s: %s", path.name, describe_metadata(stored.metadata))
    check_context(path, stored, backbone, position)
    if stored.context.dim() == 3:
        check_classes(path, stored, backbone, class_tokens)
    else:
        warn_of_other_backbone(path, stored, backbone)
    learnt_on = stored.metadata.get("dataset", "")
    if dataset and learnt_on and method_key(learnt_on) != method_key(dataset):
        logger.warning("the prompt in %s was learnt on %s and is used on %s", path, learnt_on,
                       dataset)
    return stored.context.float().to(backbone.device)


def check_context(path: Path, stored: StoredPrompt, backbone: Backbone, position: str) -> None:
    """Refuses a context of another position of class names, another shape, or not finite.

    Args:
        path: The checkpoint, for messages.
        stored: The content of the checkpoint.
        backbone: The model that the prompt is used with.
        position: Position of the class name in the prompt.
    """
    stored_position = stored.metadata.get(POSITION, "")
    if stored_position and stored_position != position:
        raise WeightsError(
            f"the prompt in {path} was learnt with the class name at '{stored_position}', not "
            f"'{position}': add {CLASS_TOKEN_POSITION} {stored_position}")
    context = stored.context
    shape = tuple(context.shape)
    width = backbone.width
    if context.dim() not in (2, 3) or shape[-1] != width or shape[-2] < 1:
        learnt_with = f", learnt with {stored.backbone}," if stored.backbone else ""
        raise WeightsError(
            f"the context in {path}{learnt_with} has shape {shape}, but this backbone "
            f"needs (n_ctx, {width})"
        )
    stated_tokens = stored.metadata.get("n_ctx", "")
    if stated_tokens and stated_tokens != str(shape[-2]):
        raise WeightsError(
            f"the prompt in {path} says that it has {stated_tokens} tokens, but it has "
            f"{shape[-2]}: the file was put together wrongly"
        )
    if not context.isfinite().all():
        raise WeightsError(f"the context in {path} holds numbers that are not finite")


def check_classes(
    path: Path, stored: StoredPrompt, backbone: Backbone, class_tokens: Sequence[Sequence[int]],
) -> None:
    """Refuses class-specific contexts of another class list.

    CoOp's files also hold the embeddings of the class names.

    Args:
        path: The checkpoint, for messages.
        stored: The content of the checkpoint.
        backbone: The model that the prompt is used with.
        class_tokens: Tokens after the context, for each class.
    """
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


def warn_of_other_backbone(path: Path, stored: StoredPrompt, backbone: Backbone) -> None:
    """Warns of a prompt that was learnt with another model.

    That model is known by the embedding of the start token, which CoOp's files hold, or by the name
    in the file.

    Args:
        path: The checkpoint, for the message.
        stored: The content of the checkpoint.
        backbone: The model that the prompt is used with.
    """
    prefix = stored.tensors.get("token_prefix")
    learnt_with = stored.backbone
    if prefix is not None:
        if not same_embeddings(prefix, 0, backbone.tokenizer.start, backbone):
            name = f" ({learnt_with})" if learnt_with else ""
            logger.warning("the prompt in %s was made with another backbone of the same width%s; "
                           "predictions will be wrong", path, name)
    elif learnt_with and backbone.name and learnt_with not in names_of_backbone(backbone.name):
        logger.warning("the prompt in %s was learnt with %s, not with %s", path, learnt_with,
                       backbone.name)


def names_of_backbone(name: str) -> tuple[str, ...]:
    """The names that the metadata of a prompt may have for a backbone."""
    return name, backbone_name(name), backbone_label(backbone_name(name))


def same_embeddings(stored: Tensor, row: int, tokens: Sequence[int], backbone: Backbone) -> bool:
    """Whether a row of stored embeddings begins with the model's embeddings of some tokens.

    They may be stored in half precision, so numbers may differ by 1e-3.

    Args:
        stored: Stored embeddings (K, length, width), or those of a single row (length, width).
        row: The row that is compared, if there are several.
        tokens: The tokens whose embeddings the row should begin with.
        backbone: The model.
    """
    expected = backbone.embed([tokens])[0].cpu()
    beginning = stored
    if stored.dim() == 3:
        beginning = stored[row, : len(tokens)].float()
    return beginning.shape == expected.shape and torch.allclose(beginning, expected, atol=1e-3)


class TrainingState(NamedTuple):
    """The end of a training, as plain data."""

    epoch: int  # number of the last epoch
    optimizer: Mapping[str, Any]  # state of the optimizer; empty = none
    scheduler: Mapping[str, Any]  # state of its schedule; empty = none


def write_checkpoint(
    path: Path, context: Tensor, backbone: Backbone, class_tokens: Sequence[Sequence[int]],
    state: TrainingState, metadata: Mapping[str, object],
) -> None:
    """Saves a context so that CoOp's own code reads it.

    Args:
        path: The file to write.
        context: The context, (n_ctx, width), or (K, n_ctx, width) if class-specific.
        backbone: The model that the context was learnt with.
        class_tokens: Tokens after the context, for each class, which CoOp's files have too.
        state: The state of the training at its end.
        metadata: Facts about how the prompt was made, by the keys of `METADATA`.
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
    write_text(path.with_name(LAST_SAVED), f"{path.name}\n")


def checkpoint_path(run_folder: Path, epoch: int) -> Path:
    """Returns the path at which CoOp saves the prompt of an epoch.

    Args:
        run_folder: Folder of the run.
        epoch: The last epoch of the training.
    """
    return run_folder / FOLDER / f"model.pth.tar-{epoch}"


def convert_prompt(
    source: str | Path, target: str | Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a safetensors copy of a checkpoint.

    The copy has the context, the tensors by which `load_context` checks it, and how it was made.

    Args:
        source: The path of the checkpoint, or the name of an embedded prompt.
        target: The path of the copy.
        metadata: Facts about how the prompt was made, by keys of `METADATA`. They replace what the
            checkpoint says, which in turn replaces what CoOp's folder names say.
    """
    stored = read_context(prompt_file(source))
    context = stored.context
    saved = {"ctx": context}
    if "token_prefix" in stored.tensors:
        saved["token_prefix"] = stored.tensors["token_prefix"][:1].contiguous()
    if context.dim() == 3 and "token_suffix" in stored.tensors:
        saved["token_suffix"] = stored.tensors["token_suffix"]
    known = {**metadata_of_path(str(source)), **stored.metadata, **(metadata or {})}
    known.setdefault("n_ctx", str(context.shape[-2]))
    ordered = {key: known[key] for key in METADATA if known.get(key)}
    for key, text in ordered.items():
        if not is_printable(text):
            raise ConfigError(f"{key} of the copy would be {text!r}, which is no printable text; "
                              f"--{key.replace('_', '-')} writes another")
    content = with_sorted_header(save(saved, ordered))
    write_atomically(Path(target), lambda file: file.write(content))
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in saved.items())
    logger.info("%s: %s; %s", target, shapes, describe_metadata(ordered))


def with_sorted_header(content: bytes) -> bytes:
    """Sorts the entries in the header of a safetensors file, given as bytes.

    The library writes metadata in random order, and a prompt is known by a hash of its file.
    """
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    header = json.dumps(entries, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]
