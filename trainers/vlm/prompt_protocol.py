"""Finds out how a learnt prompt was made, so that prompts of several seeds and sets share a row.

The content of a prompt differs from seed to seed. What they have in common is the protocol: the
method, the number of labelled images, epochs and tokens.
"""
from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config.settings import path_safe, short_hash
from ..registry import method_key

# Such as `2shots`, `2-shot`, `num_shots_2` or `shots2`.
SHOTS = re.compile(
    r"(?i)(\d+)[-_ ]?shots?(?![a-z])|(?<![a-z])num_shots[-_](\d+)|(?<![a-z])shots?[-_]?(\d+)"
)
SEED = re.compile(r"(?i)(?<![a-z0-9])(seed[-_]?)(\d+)(?!\d)")  # such as `seed1`
CHECKPOINT = re.compile(r"model(-best)?\.pth\.tar(-\d+)?$")
PROMPT_FOLDER = "prompt_learner"
PATH_PARTS = 5  # the last parts of a path that may say how a prompt was made
METHODS = ("CoOp", "KgCoOp", "ProGrad", "FPP")  # methods that write prompts in CoOp's format
DEFAULT_METHOD = "CoOp"  # the method if a path says the shots but no method
# What CoOp's folders and files say besides: `vit_b16_ep50_2shots/nctx16_cscFalse_ctpend/seed1`.
EPOCHS = re.compile(r"(?<![a-z])ep(\d+)(?!\d)|model\.pth\.tar-(\d+)$")
POSITION = re.compile(r"(?<![a-z])ctp(end|middle|front)")


@dataclass(frozen=True)
class PromptProtocol:
    """How a prompt was made.

    Attributes:
        text: A text that is equal for prompts that were made in the same way.
        label: The short form in tables, such as `CoOp 2 shots`.
    """

    text: str
    label: str

    @property
    def tag(self) -> str:
        """The name in folders, such as `CoOp-2-shots-1f0c9a3e`, the same for all seeds.

        Where the label does not say everything, a hash of the text follows.
        """
        name = path_safe(self.label)
        if self.text == self.label:
            return name
        return f"{name}-{short_hash(self.text.encode())}"


def prompt_protocol(
    path: str, label: str, metadata: Mapping[str, str], dataset_names: Collection[str],
) -> PromptProtocol:
    """Returns the protocol of a learnt prompt.

    Args:
        path: The path of the checkpoint, or the name of an embedded prompt.
        label: The value of PROMPT.LABEL, which wins if it is not empty.
        metadata: Facts that the checkpoint states: method, shots, epochs, n_ctx, as far as it has
            them.
        dataset_names: Names that the data set has in paths, such as EuroSAT and eurosat.
    """
    if label:
        return PromptProtocol(text=label, label=label)
    if "method" in metadata:
        return protocol_of_metadata(metadata)
    return protocol_of_path(path, dataset_names)


def protocol_of_metadata(metadata: Mapping[str, str]) -> PromptProtocol:
    """Returns the protocol that the metadata of a checkpoint states."""
    label = metadata["method"]
    if "shots" in metadata:
        label = shots_label(label, metadata["shots"])
    details = []
    for key in ("epochs", "n_ctx", "class_token_position", "settings"):
        if metadata.get(key) and not (key == "epochs" and has_default_epochs(metadata)):
            details.append(f"{key} {metadata[key]}")
    text = f"{label} ({', '.join(details)})" if details else label
    return PromptProtocol(text=text, label=label)


def has_default_epochs(metadata: Mapping[str, str]) -> bool:
    """Whether a prompt was trained as long as CoOp's scripts do for its data set.

    ImageNet has fewer epochs than other data sets, by the same protocol.
    """
    shots = metadata.get("shots", "")
    if method_key(metadata["method"]) != method_key(METHODS[0]) or not shots.isdecimal():
        return False
    return metadata["epochs"] == str(coop_epochs(int(shots), metadata.get("dataset", "")))


def coop_epochs(shots: int, dataset: str) -> int:
    """Returns the epochs of CoOp's scripts.

    They are 50 for 1 shot and for ImageNet, 100 for up to 4 shots, and 200 above.

    Args:
        shots: Number of labelled images per class; -1 = all.
        dataset: Registered name of the data set.
    """
    if shots == 1 or dataset == "ImageNet":
        return 50
    if shots in (2, 3, 4):
        return 100
    return 200


def protocol_of_path(path: str, dataset_names: Collection[str]) -> PromptProtocol:
    """Returns the protocol that the last parts of a path name.

    Seed and data set, which differ within a protocol, are replaced by `*`. CoOp's own folders say
    the number of shots: `CoOp/vit_b16_ep50_2shots/nctx16_cscFalse_ctpend`. A checkpoint of another
    epoch than they say is another protocol. What is above the folder of the method says where the
    files lie, not how they were made.

    Args:
        path: The path of the checkpoint, or the name of an embedded prompt.
        dataset_names: Names that the data set has in paths.
    """
    names = {method_key(name) for name in dataset_names}
    parts = []
    for part in folders_of(path):
        if method_key(part) in names:
            parts.append("*")
        else:
            parts.append(SEED.sub(r"\1*", part))
    method = method_in(parts)
    known = [part for part in parts if "*" not in part]
    shots = last_number(SHOTS, known)
    text = text_of_parts(parts, method)
    # A folder has one checkpoint for each epoch at which it was saved.
    epoch = last_number(EPOCHS, [Path(path).name])
    if epoch != last_number(EPOCHS, known) and epoch:
        text += f"/epoch {epoch}"
    if shots:
        return PromptProtocol(text=text, label=shots_label(method or DEFAULT_METHOD, shots))
    label = "learnt prompt"
    if known:
        label = Path(known[-1]).name.split(".")[0]
    return PromptProtocol(text=text, label=label)


def text_of_parts(parts: Sequence[str], method: str) -> str:
    """Joins the parts of a path that say how a prompt was made.

    The parts above them are replaced by a hash or, if a folder is named after the method, left out.
    A record is passed on to others, so it must not hold a path of this computer.

    Args:
        parts: The last parts, seed and data set replaced by `*`.
        method: The method that one of them is named after; "" = none.
    """
    first = len(parts) - 1  # the part from which on the path is given; at least its last one
    # From the file up: the protocol begins at the folder of the method, otherwise at the highest
    # folder that names a seed, a data set or a number of shots.
    for position, part in reversed(list(enumerate(parts))):
        if method and is_of_method(part, method):
            return "/".join(parts[position:])
        if "*" in part or SHOTS.search(part):
            first = position
    text = "/".join(parts[first:])
    above = "/".join(parts[:first]).strip("/")
    if above:
        text = f"{short_hash(above.encode())}/{text}"
    return text


def metadata_of_path(path: str) -> dict[str, str]:
    """Reads from CoOp's folder names how a prompt was made: method, shots, seed, epochs, position.
    """
    parts = folders_of(path)
    shots = last_number(SHOTS, parts)
    metadata = {}
    if shots:
        metadata["method"] = method_in(parts) or DEFAULT_METHOD
        metadata["shots"] = shots
    for part in parts:
        for seed in SEED.finditer(part):
            metadata["seed"] = seed[2]
    epochs = last_number(EPOCHS, [*parts, Path(path).name])
    if epochs:
        metadata["epochs"] = epochs
    for part in parts:
        position = POSITION.search(part)
        if position:
            metadata["class_token_position"] = position[1]
    return metadata


def folders_of(path: str) -> list[str]:
    """The last parts of a path that may say how a prompt was made."""
    parts = []
    # Two more than are wanted: `prompt_learner` and the checkpoint's own name are left out.
    for part in Path(path).parts[-PATH_PARTS - 2 :]:
        if part != PROMPT_FOLDER and not CHECKPOINT.search(part):
            parts.append(part)
    return parts[-PATH_PARTS:]


def method_in(parts: Sequence[str]) -> str:
    """The method that one of the folders is named after; "" if none is."""
    for name in METHODS:
        for part in parts:
            if is_of_method(part, name):
                return name
    return ""


def is_of_method(part: str, method: str) -> bool:
    """Whether a folder is named after a method, in any spelling.

    Args:
        part: Name of the folder.
        method: Name of the method, such as `CoOp`.
    """
    return method_key(part).startswith(method_key(method))


def last_number(pattern: re.Pattern[str], parts: Sequence[str]) -> str:
    """Returns the number that a pattern matches last.

    Args:
        pattern: A pattern with one group or several, of which one is the number.
        parts: Parts of a path, searched in their order.

    Returns:
        "" if the pattern matches nowhere.
    """
    number = ""
    for part in parts:
        for match in pattern.finditer(part):
            number = next(group for group in match.groups() if group)
    return number


def shots_label(method: str, shots: str) -> str:
    """Returns a method with its number of shots, such as `CoOp 2 shots`.

    Args:
        method: The method's label.
        shots: Number of training images per class; "-1" or "all" = all.
    """
    if shots in ("-1", "all"):
        return f"{method} all images"
    if shots == "1":
        return f"{method} 1 shot"
    return f"{method} {shots} shots"
