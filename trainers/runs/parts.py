"""Images in batches and parts, and the columns that are computed for them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
Columns = Mapping[str, np.ndarray]


def batched(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Consecutive pieces of at most `size` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def concatenate(parts: Sequence[Columns]) -> dict[str, np.ndarray]:
    """Concatenates the columns of batches or parts.

    A part in which no image could be read lacks the columns that a method adds, so a column is
    used if every part that has images has it.

    Args:
        parts: For each part its columns by name, each of shape (images of the part, ...).

    Returns:
        The columns by name, each of shape (all images, ...).
    """
    parts_with_images = [part for part in parts if len(part["index"]) > 0]
    if not parts_with_images:
        parts_with_images = list(parts)
    common_names = set(parts_with_images[0])
    for part in parts_with_images:
        common_names &= set(part)

    columns = {}
    for name in parts_with_images[0]:
        if name in common_names:
            arrays = [part[name] for part in parts if name in part]
            columns[name] = np.concatenate(arrays)
    return columns


chunks = batched
