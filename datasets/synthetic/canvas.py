"""The drawing board of an aerial tile: noise, masks and brushes on a float image.

A tile is drawn at twice its size and averaged down at the end, which smooths thin lines and edges.
Masks are (BOARD, BOARD) arrays from 0 to 1, colours are triples from 0 to 1.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

SIZE = 64  # pixels of a finished tile
BOARD = 2 * SIZE  # pixels of the drawing board
Colour = Sequence[float] | np.ndarray


def smooth(values: np.ndarray, low: float | np.ndarray, high: float | np.ndarray) -> np.ndarray:
    """A soft threshold: 0 below `low`, 1 above `high`, linear in between. With `low` > `high` it is
    reversed."""
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def to_edge(values: np.ndarray, period: float) -> np.ndarray:
    """The distance to the nearest multiple of `period`."""
    return np.minimum(values % period, period - values % period)


def value_noise(
    rng: np.random.Generator, size: int, cells: float, stretch: float = 1.0,
) -> np.ndarray:
    """Random values on a grid of about `cells` × `cells`, interpolated to (size, size). `stretch`
    above 1 widens cells."""
    shape = max(2, round(cells) + 1), max(2, round(cells / stretch) + 1)
    grid = Image.fromarray(rng.random(shape, dtype=np.float32))
    return np.asarray(grid.resize((size, size), Image.Resampling.BICUBIC))


def fractal_noise(
    rng: np.random.Generator, size: int, cells: float, octaves: int = 3,
) -> np.ndarray:
    """Value noise at several scales, each half as strong as the one before, from 0 to 1."""
    total: np.ndarray | int = 0
    for octave in range(octaves):
        noise = value_noise(rng, size, min(cells * 2**octave, size))
        total = total + 0.5**octave * noise
    total = np.asarray(total)
    return (total - total.min()) / (total.max() - total.min())


def turned(points: Any, angle: float, centre: Any = BOARD / 2) -> np.ndarray:
    """Board coordinates of points (…, 2) that are given along and across a direction from a
    centre."""
    along, across = np.moveaxis(np.asarray(points, float), -1, 0)
    x = along * np.cos(angle) - across * np.sin(angle)
    y = along * np.sin(angle) + across * np.cos(angle)
    return np.stack([x, y], -1) + centre


def box(centre: Any, length: float, width: float, angle: float) -> np.ndarray:
    """The corners of a rotated rectangle, its length along `angle`."""
    corners = np.array(((1, 1), (1, -1), (-1, -1), (-1, 1)))
    return turned(corners * (length / 2, width / 2), angle, centre)


class Board:
    """One tile while it is drawn. `rgb` is the image, (BOARD, BOARD, 3); x and y are pixel
    coordinates."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.rgb = np.zeros((BOARD, BOARD, 3), dtype=np.float32)
        self.y, self.x = np.mgrid[0:BOARD, 0:BOARD].astype(np.float32)
        self.sun = rng.uniform(0, 2 * np.pi)  # the direction of all shadows of a tile

    def uniform(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def angle(self) -> float:
        return self.uniform(0, np.pi)

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def colour(self, *choices: Colour, spread: float = 0.03) -> np.ndarray:
        """One of the colours, a little lighter or darker and with a slightly different hue."""
        base = np.asarray(choices[self.rng.integers(len(choices))])
        lighter = base + self.rng.normal(0, spread)
        varied = lighter + self.rng.normal(0, spread / 2, 3)
        return np.clip(varied, 0, 1).astype(np.float32)

    def noise(self, cells: float, octaves: int = 3) -> np.ndarray:
        return fractal_noise(self.rng, BOARD, cells, octaves)

    def axes(
        self, angle: float, centre: Any = (BOARD / 2, BOARD / 2),
    ) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates along and across a direction, in pixels from the centre."""
        x = self.x - centre[0]
        y = self.y - centre[1]
        return x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)

    def direction(self) -> tuple[float, np.ndarray, np.ndarray]:
        """A random direction, and the coordinates along and across it."""
        angle = self.angle()
        return angle, *self.axes(angle)

    def fill(self, colour: Colour, rough: float = 0.1, cells: float = 6) -> None:
        """Ground of one colour with light and dark patches of strength `rough`, and fine grain."""
        mottle = (self.noise(cells) - 0.5) * 2 * rough
        mottle = mottle + self.rng.normal(0, rough / 5, (BOARD, BOARD))
        self.rgb[:] = np.asarray(colour) + mottle[..., None].astype(np.float32)

    def paint(self, mask: np.ndarray, colour: Colour, strength: float = 1.0) -> None:
        """Blends a colour, or a whole image, into the board under a mask."""
        weight = (mask * strength)[..., None].astype(np.float32)
        self.rgb += weight * (np.asarray(colour, dtype=np.float32) - self.rgb)

    def patches(
        self, cells: float, octaves: int, low: float, high: float, *colours: Colour,
        strength: float,
    ) -> None:
        """Irregular patches of one of the colours, where noise exceeds a soft threshold."""
        self.paint(smooth(self.noise(cells, octaves), low, high), self.colour(*colours), strength)

    def strip(self, distance: np.ndarray, width: float, colour: Colour) -> None:
        """A road or the like around a line, given the distance to it."""
        self.paint(smooth(distance, width / 2 + 0.5, width / 2 - 0.5), colour)

    def shade(self, amount: np.ndarray) -> None:
        """Makes the image lighter (above 0) or darker (below 0) by a share."""
        self.rgb *= 1 + amount[..., None].astype(np.float32)

    def stand(
        self, mask: np.ndarray, colour: Colour, height: float, dark: float = 0.45,
        strength: float = 1.0,
    ) -> None:
        """An object that stands on the ground and has a shadow, `height` pixels away from the
        sun."""
        shift = round(height * np.sin(self.sun)), round(height * np.cos(self.sun))
        self.shade(-dark * np.roll(mask, shift, axis=(0, 1)) * (1 - mask))
        self.paint(mask, colour, strength)

    def mask(self, kind: str, shapes: Iterable[Any], **options: Any) -> np.ndarray:
        """A mask of shapes of one kind, drawn by that method of ImageDraw."""
        image = Image.new("L", (BOARD, BOARD))
        draw = getattr(ImageDraw.Draw(image), kind)
        for shape in shapes:
            draw(np.ravel(shape).tolist(), fill=255, **options)
        return np.asarray(image, dtype=np.float32) / 255

    def boxes(
        self, centres: Iterable[Any], length: float, width: float, angle: float,
    ) -> np.ndarray:
        return self.mask("polygon", (box(centre, length, width, angle) for centre in centres))

    def discs(self, centres: np.ndarray, radii: np.ndarray | float) -> np.ndarray:
        radii = np.broadcast_to(radii, len(centres))[:, None]
        return self.mask("ellipse", np.hstack([centres - radii, centres + radii]))

    def trees(self, centres: np.ndarray, radii: np.ndarray, green: Colour) -> None:
        """Round crowns with their shadows, lit from one side."""
        crowns = self.discs(centres, radii)
        self.stand(crowns, green, float(np.mean(radii)) * 1.1)
        towards_sun = 0.35 * radii[:, None] * (np.cos(self.sun), np.sin(self.sun))
        lit = self.discs(centres - towards_sun, radii * 0.5)
        self.paint(lit * crowns, np.asarray(green) * 1.35 + 0.03, 0.7)

    def scatter(self, count: int) -> np.ndarray:
        """Random points (count, 2) over the board and a little beyond its edges."""
        return self.rng.uniform(-4, BOARD + 4, (count, 2))

    def grove(
        self, fewest: int, most: int, smallest: float, largest: float, *greens: Colour,
    ) -> None:
        """Scattered trees."""
        count = int(self.rng.integers(fewest, most))
        centres = self.scatter(count)
        radii = self.rng.uniform(smallest, largest, count)
        self.trees(centres, radii, self.colour(*greens))
