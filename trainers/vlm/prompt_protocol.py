"""How a learnt prompt was made, so that the prompts of several seeds and data sets share a row.

The content of a prompt differs from seed to seed. What they have in common is the protocol: the
method, the number of labelled images, epochs and tokens.
"""
from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..registry import method_key

SHOTS = re.compile(r"(?i)(\d+)[-_ ]?shots?(?![a-z])|(?<![a-z])num_shots[-_](\d+)|(?<![a-z])shots?[-_]?(\d+)")
SEED = re.compile(r"(?i)(?<![a-z0-9])(seed[-_]?)\d+(?!\d)")
CHECKPOINT = re.compile(r"model(-best)?\.pth\.tar(-\d+)?$")
PROMPT_FOLDER = "prompt_learner"
PATH_PARTS = 5  # the last parts of a path that may say how a prompt was made
METHODS = ("CoOp", "KgCoOp", "ProGrad", "FPP")  # that write prompts in CoOp's format


@dataclass(frozen=True)
class PromptProtocol:
    """How a prompt was made.

    Attributes:
        text: Equal for prompts that were made in the same way.
        label: Its short form in tables, such as `CoOp 2 shots`.
    """

    text: str
    label: str


def prompt_protocol(
    path: str, label: str, metadata: Mapping[str, str], dataset_names: Collection[str],
) -> PromptProtocol:
    """The protocol of a learnt prompt.

    Args:
        path: Of the checkpoint, or the name of an embedded prompt.
        label: PROMPT.LABEL, which wins if it is not empty.
        metadata: Of the checkpoint: method, shots, epochs, n_ctx, as far as it has them.
        dataset_names: Names that the data set has in paths.
    """
    if label:
        return PromptProtocol(text=label, label=label)
    if "method" in metadata:
        return protocol_of_metadata(metadata)
    return protocol_of_path(path, dataset_names)


def protocol_of_metadata(metadata: Mapping[str, str]) -> PromptProtocol:
    """From what a checkpoint says about its training."""
    label = metadata["method"]
    if "shots" in metadata:
        label = shots_label(label, metadata["shots"])
    details = []
    for key in ("epochs", "n_ctx", "class_token_position", "settings"):
        if metadata.get(key):
            details.append(f"{key} {metadata[key]}")
    text = f"{label} ({', '.join(details)})" if details else label
    return PromptProtocol(text=text, label=label)


def protocol_of_path(path: str, dataset_names: Collection[str]) -> PromptProtocol:
    """From the last parts of a path, without the seed and the data set, which differ within a protocol.

    CoOp's own folders say the number of shots: `CoOp/vit_b16_ep50_2shots/nctx16_cscFalse_ctpend`.
    """
    names = {method_key(name) for name in dataset_names}
    parts = []
    for part in Path(path).parts[-PATH_PARTS - 2 :]:
        if part == PROMPT_FOLDER or CHECKPOINT.search(part):
            continue
        parts.append("*" if method_key(part) in names else SEED.sub(r"\1*", part))
    parts = parts[-PATH_PARTS:]
    known = [part for part in parts if "*" not in part]
    text = "/".join(parts)
    shots = [match for part in known for match in SHOTS.findall(part)]
    if shots:
        number = next(group for group in shots[-1] if group)
        method = next((name for name in METHODS for part in parts
                       if method_key(part).startswith(method_key(name))), METHODS[0])
        return PromptProtocol(text=text, label=shots_label(method, number))
    label = Path(known[-1]).name.split(".")[0] if known else "learnt prompt"
    return PromptProtocol(text=text, label=label)


def shots_label(method: str, shots: str) -> str:
    """Such as `CoOp 2 shots`."""
    if shots in ("-1", "all"):
        return f"{method} all images"
    return f"{method} {shots} shot" if shots == "1" else f"{method} {shots} shots"
