"""AugMix's chains, of all views of a picture at once, on any device.

A step is done for all chains that do the same, so that a GPU gets few large jobs. Nothing waits for the device.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import points, warps
from .augmix import POINTS, TRANSLATIONS, Mix, Step
from .devices import sent


@dataclass(eq=False)
class Layer:
    """A view that chains share until one of them moves its pixels, or what has become of one."""

    pixels: Tensor  # (3, h, w)
    top: int = 0  # where they lie; all else is black
    left: int = 0
    counts: Tensor | None = None  # its histogram (3, 256), once somebody asked

    def translated(self, step: Step, size: int) -> Layer:
        """What lies so many pixels further on, black beyond the border as in Pillow's `crop`. Nothing is copied."""
        name, by = step
        top, left = (self.top, self.left - int(by)) if name == "translate x" else (self.top - int(by), self.left)
        cut = self.pixels[:, max(-top, 0) : max(size - top, 0), max(-left, 0) : max(size - left, 0)]
        return Layer(cut, max(top, 0), max(left, 0))

    def whole(self, size: int) -> Tensor:
        """With the black around. (3, size, size)"""
        _, height, width = self.pixels.shape
        if height == width == size:
            return self.pixels
        return F.pad(self.pixels, (self.left, size - width - self.left, self.top, size - height - self.top))


@dataclass(eq=False)
class Chain:
    """What a chain has come to: a picture, uint8, the table that its pixels have yet to go through, and what it has yet
    to do."""

    picture: Layer
    mixed: Tensor  # (3, S, S): the sum that it becomes part of
    weight: float
    steps: tuple[Step, ...]
    table: Tensor | None = None  # (3, 256)

    @property
    def next(self) -> str:
        return self.steps[0][0] if self.steps else ""

    def finish(self, picture: Layer) -> None:
        """Takes the last steps, all of them translations, and adds the result to the mix."""
        size = self.mixed.shape[-1]
        for step in self.steps:
            picture = picture.translated(step, size)
        points.add(picture.whole(size), self.weight, self.mixed)


def augmix(views: Tensor, mixes: Sequence[Mix], mixed: Tensor) -> None:
    """Adds the mixed views of uint8 ones (n, 3, S, S) to the zeros of `mixed`, float32, not rounded; both contiguous.

    The order in which the parts of a view are summed depends on that view's chains alone.
    """
    pictures = [Layer(view) for view in views]
    chains = [
        [Chain(picture, total, weight, steps) for weight, steps in mix.chains]
        for picture, total, mix in zip(pictures, mixed, mixes, strict=True)
    ]
    moving = [chain for three in chains for chain in three]
    change_pixels(moving)
    own_share(views, mixed, [mix.keep for mix in mixes], [[c for c in three if not c.steps] for three in chains])
    moving = [chain for chain in moving if chain.steps]
    while moving:
        moving = move_pixels(moving)
        change_pixels(moving)
        for chain in moving:
            if not chain.steps:
                points.look_up_and_add(chain.picture.pixels, chain.table * chain.weight, chain.mixed)
        moving = [chain for chain in moving if chain.steps]


def change_pixels(chains: Sequence[Chain]) -> None:
    """Takes all point operations that come next, as tables: those of one operation behind those that wait already."""
    while changing := [chain for chain in chains if chain.next in POINTS]:
        for (name, fresh), group in grouped(changing, lambda chain: (chain.next, chain.table is None)):
            old = None if fresh else torch.stack([chain.table for chain in group])
            new = tables(name, [chain.picture for chain in group], old, [chain.steps[0][1] for chain in group])
            for chain, table in zip(group, new if fresh else points.compose(old, new), strict=True):
                chain.table, chain.steps = table, chain.steps[1:]


def tables(name: str, pictures: Sequence[Layer], old: Tensor | None, values: Sequence[float]) -> Tensor:
    """The tables (n, 3, 256) of a point operation on what the tables `old` make of the pictures."""
    if name in ("posterize", "solarize"):
        return torch.stack([getattr(points, name)(value, pictures[0].pixels.device) for value in values])
    if name == "autocontrast" and old is None:
        return points.autocontrast(*points.extremes([picture.pixels for picture in pictures]))
    for picture in pictures:
        if picture.counts is None:
            picture.counts = points.histogram(picture.pixels)
    counts = torch.stack([picture.counts for picture in pictures])
    if old is not None:
        counts = points.histogram_after(counts, old)
    return points.equalize(counts) if name == "equalize" else points.autocontrast(*points.extremes_of(counts))


def move_pixels(chains: Sequence[Chain]) -> list[Chain]:
    """Takes each chain's translations and the one shear or rotation that comes next. Chains that have nothing else to
    do are finished; the others are returned."""
    size, going_on = chains[0].mixed.shape[-1], []
    for chain in chains:
        if chain.table is not None:
            chain.picture, chain.table = Layer(points.look_up(chain.picture.pixels, chain.table.byte())), None
        while chain.next in TRANSLATIONS:
            chain.picture, chain.steps = chain.picture.translated(chain.steps[0], size), chain.steps[1:]
        if not chain.steps:
            chain.finish(chain.picture)
        elif chain.next in POINTS:
            chain.picture = Layer(chain.picture.whole(size))  # what is black has its place in the table
            going_on.append(chain)
    shaped = [chain for chain in chains if chain.steps and chain.next not in POINTS]
    if shaped:
        moved = warps.transform(
            [chain.picture.whole(size) for chain in shaped], [warps.matrix(*chain.steps[0], size) for chain in shaped])
        for chain, pixels in zip(shaped, moved, strict=True):
            chain.picture, chain.steps = Layer(pixels), chain.steps[1:]
            if all(later in TRANSLATIONS for later, _ in chain.steps):
                chain.finish(chain.picture)
            else:
                going_on.append(chain)
    return going_on


def own_share(
    views: Tensor, mixed: Tensor, keep: Sequence[float], still: Sequence[Sequence[Chain]],
) -> None:
    """The part of the mix that follows from each pixel of the view itself: what is kept, and the chains that moved
    nothing. Their weighted sum is one table."""
    plain = [kept + sum(c.weight for c in chains if c.table is None) for kept, chains in zip(keep, still, strict=True)]
    changed = [[chain for chain in chains if chain.table is not None] for chains in still]
    identity = points.identity(views.device).expand(3, -1)
    tables = identity * column(plain, views.device)
    for some in zip_longest(*changed):  # the first of each view, the second; never by atomic additions in any order
        weights = column([chain.weight if chain else 0.0 for chain in some], views.device)
        tables += weights * torch.stack([chain.table if chain else identity for chain in some])
    for i, (view, total) in enumerate(zip(views, mixed, strict=True)):
        if changed[i]:
            points.look_up_and_add(view, tables[i], total)
        else:
            points.add(view, plain[i], total)


def column(numbers: Sequence[float], device: torch.device) -> Tensor:
    """(n, 1, 1)"""
    return sent(np.array(numbers, np.float32), device)[:, None, None]


def grouped(
    chains: Iterable[Chain], key: Callable[[Chain], Hashable],
) -> list[tuple[Hashable, list[Chain]]]:
    """Chains that have a key in common; the keys in an order of their own."""
    groups = defaultdict(list)
    for chain in chains:
        groups[key(chain)].append(chain)
    return sorted(groups.items(), key=lambda item: str(item[0]))
