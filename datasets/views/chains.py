"""AugMix's chains on tensors: all views of a picture at once, or a few, on any device.

A step is done for all chains that do the same, so that a GPU gets few large jobs. Nothing waits for the device.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from . import points, warps
from .augmix import CHAINS, LONGEST_CHAIN, POINTS, Mix, Step


@dataclass(eq=False)
class Picture:
    """A view that chains share until one of them moves its pixels."""

    pixels: Tensor  # uint8 (3, S, S)
    counts: Tensor | None = None  # its histogram (3, 256), once somebody asked


@dataclass(eq=False)
class Chain:
    """What a chain has come to: a picture, and the table that its pixels have yet to go through."""

    picture: Picture
    weight: float
    steps: tuple[Step, ...]
    table: Tensor | None = None  # (3, 256)


def augmix(views: Tensor, mixes: Sequence[Mix]) -> Tensor:
    """The mixed views of uint8 ones (n, 3, S, S), float32, not rounded."""
    pictures = [Picture(view) for view in views]
    chains = [
        [Chain(picture, weight, steps) for weight, steps in mix.chains]
        for picture, mix in zip(pictures, mixes, strict=True)
    ]
    run_chains([chain for three in chains for chain in three])
    mixed = own_share(views, pictures, chains, [mix.keep for mix in mixes])
    for slot in range(CHAINS):  # one chain of each view after the other: the order of a sum is the same everywhere
        moved = [(i, three[slot]) for i, three in enumerate(chains) if three[slot].picture is not pictures[i]]
        add_moved(mixed, moved)
    return mixed


def run_chains(chains: Sequence[Chain]) -> None:
    """Takes all steps of all chains."""
    for place in range(LONGEST_CHAIN):
        active = [chain for chain in chains if len(chain.steps) > place]
        change_pixels([chain for chain in active if chain.steps[place][0] in POINTS], place)
        moving = [chain for chain in active if chain.steps[place][0] not in POINTS]
        settle([chain for chain in moving if chain.table is not None])
        for (name, dtype, turn), group in grouped(moving, partial(kind_of_move, place=place)).items():
            values = [chain.steps[place][1] for chain in group]
            moved = move(stack(chain.picture.pixels for chain in group), name, values, turn, dtype)
            for chain, pixels in zip(group, moved, strict=True):
                chain.picture = Picture(pixels)


def kind_of_move(chain: Chain, place: int) -> tuple[str, torch.dtype, float]:
    """What chains must share to be moved at once. Where a table follows, which would magnify a difference of one
    level, float64; a rotation's angle, because few angles occur and each has a grid of its own."""
    name, value = chain.steps[place]
    exact = any(later in POINTS for later, _ in chain.steps[place + 1 :])
    return name, torch.float64 if exact else torch.float32, value if name == "rotate" else 0


def move(images: Tensor, name: str, values: Sequence[float], turn: float, dtype: torch.dtype) -> Iterable[Tensor]:
    """Images (n, 3, S, S) after one of the operations that move pixels, by `values` (n)."""
    if name == "rotate":
        return warps.rotate(images, int(turn), dtype)
    if name.startswith("shear"):
        return (warps.shear_x if name == "shear x" else warps.shear_y)(images, values, dtype)
    sideways = name == "translate x"
    return [warps.translate(one, *((by, 0) if sideways else (0, by))) for one, by in zip(images, values, strict=True)]


def change_pixels(chains: Sequence[Chain], place: int) -> None:
    """Puts the tables of point operations behind those that wait already."""
    for (name, fresh), group in grouped(chains, lambda c: (c.steps[place][0], c.table is None)).items():
        old = None if fresh else stack(chain.table for chain in group)
        new = tables(name, [chain.picture for chain in group], old, [chain.steps[place][1] for chain in group])
        for chain, table in zip(group, new if fresh else points.compose(old, new), strict=True):
            chain.table = table


def tables(name: str, pictures: Sequence[Picture], old: Tensor | None, values: Sequence[float]) -> Tensor:
    """The tables (n, 3, 256) of a point operation on what the tables `old` make of the pictures."""
    device = pictures[0].pixels.device
    if name in ("posterize", "solarize"):
        return stack(getattr(points, name)(value, device) for value in values)
    if name == "autocontrast":
        images = stack(picture.pixels for picture in pictures)
        return points.autocontrast(*(points.extremes(images) if old is None else points.extremes_after(images, old)))
    new = [p for p in dict.fromkeys(pictures) if p.counts is None]
    if new:
        for picture, counts in zip(new, points.histogram(stack(p.pixels for p in new)), strict=True):
            picture.counts = counts
    counts = stack(picture.counts for picture in pictures)
    return points.equalize(counts if old is None else points.histogram_after(counts, old))


def settle(chains: Sequence[Chain]) -> None:
    """Sends pixels through the tables that they have yet to go through."""
    if chains:
        tables = stack(chain.table for chain in chains).byte()
        pixels = points.look_up(stack(chain.picture.pixels for chain in chains), tables)
        for chain, changed in zip(chains, pixels, strict=True):
            chain.picture, chain.table = Picture(changed), None


def own_share(
    views: Tensor, pictures: Sequence[Picture], chains: Sequence[Sequence[Chain]], keep: Sequence[float],
) -> Tensor:
    """The part of the mix that follows from each pixel of the view itself: what is kept, and the chains that moved
    nothing. Their weighted sum is one table."""
    still = [[chain for chain in three if chain.picture is p] for p, three in zip(pictures, chains, strict=True)]
    plain = [k + sum(c.weight for c in three if c.table is None) for k, three in zip(keep, still, strict=True)]
    plain = torch.tensor(plain, dtype=torch.float32).to(views.device, non_blocking=True)
    tables = [(i, chain) for i, three in enumerate(still) for chain in three if chain.table is not None]
    if not tables:
        return views * plain.view(-1, 1, 1, 1)
    level = points.identity(views.device)
    table = (plain[:, None] * level)[:, None].repeat(1, 3, 1)  # (n, 3, 256)
    for i, chain in tables:
        table[i].add_(chain.table, alpha=chain.weight)
    return points.look_up(views, table)


def add_moved(mixed: Tensor, moved: Sequence[tuple[int, Chain]]) -> None:
    """Adds chains that moved pixels to the views with these numbers."""
    tabled = [(i, chain) for i, chain in moved if chain.table is not None]
    if tabled:
        pixels = stack(chain.picture.pixels for _, chain in tabled)
        looked = points.look_up(pixels, stack(chain.table for _, chain in tabled).float())
        for (i, chain), result in zip(tabled, looked, strict=True):
            mixed[i].add_(result, alpha=chain.weight)
    for i, chain in moved:
        if chain.table is None:
            mixed[i].add_(chain.picture.pixels, alpha=chain.weight)


def grouped(chains: Iterable[Chain], key: Callable[[Chain], Hashable]) -> dict[Hashable, list[Chain]]:
    groups = defaultdict(list)
    for chain in chains:
        groups[key(chain)].append(chain)
    return groups


def stack(tensors: Iterable[Tensor]) -> Tensor:
    """As torch.stack; a single tensor is not copied."""
    tensors = list(tensors)
    return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)
