"""The drawing board of a procedural aerial tile: noise, masks and brushes on a float picture.

A tile is drawn at twice its size and averaged down at the end, so that thin lines and edges come out smooth.
Masks are (S, S) arrays from 0 to 1, colours are triples from 0 to 1.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

SIZE = 64  # pixels of a finished tile
BOARD = 2 * SIZE  # pixels of the drawing board
Colour = Sequence[float]
Point = tuple[float, float]


def smooth(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """0 below `low`, 1 above `high`, straight in between: a soft threshold. `low` > `high` turns it round."""
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def value_noise(rng: np.random.Generator, size: int, cells: float, stretch: float = 1.0) -> np.ndarray:
    """Random values on a grid of about `cells` × `cells`, interpolated to (size, size). `stretch` > 1 draws it wide."""
    rows = max(2, round(cells) + 1)
    columns = max(2, round(cells / stretch) + 1)
    grid = Image.fromarray(rng.random((rows, columns), dtype=np.float32))
    return np.asarray(grid.resize((size, size), Image.Resampling.BICUBIC))


def fractal_noise(rng: np.random.Generator, size: int, cells: float, octaves: int = 3) -> np.ndarray:
    """Value noise at several scales, each half as strong as the one before, brought to the range 0–1."""
    total = sum(0.5**i * value_noise(rng, size, min(cells * 2**i, size)) for i in range(octaves))
    low, high = total.min(), total.max()
    return (total - low) / (high - low)


class Board:
    """One tile while it is drawn. `rgb` is the picture, (BOARD, BOARD, 3); x and y are pixel coordinates."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.rgb = np.zeros((BOARD, BOARD, 3), dtype=np.float32)
        self.y, self.x = np.mgrid[0:BOARD, 0:BOARD].astype(np.float32)
        self.sun = rng.uniform(0, 2 * np.pi)  # where shadows fall, the same for all things of a tile

    def uniform(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def colour(self, *choices: Colour, spread: float = 0.03) -> np.ndarray:
        """One of the colours, a little lighter or darker and a little off in hue."""
        base = np.asarray(choices[self.rng.integers(len(choices))])
        return np.clip(base + self.rng.normal(0, spread) + self.rng.normal(0, spread / 2, 3), 0, 1).astype(np.float32)

    def noise(self, cells: float, octaves: int = 3) -> np.ndarray:
        return fractal_noise(self.rng, BOARD, cells, octaves)

    def axes(self, angle: float) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates along and across a direction, in board pixels from the centre."""
        x, y = self.x - BOARD / 2, self.y - BOARD / 2
        return x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)

    def fill(self, colour: Colour, rough: float = 0.1, cells: float = 6) -> None:
        """Ground of one colour with light and dark mottles of strength `rough`, and fine grain."""
        mottle = (self.noise(cells) - 0.5) * 2 * rough + self.rng.normal(0, rough / 5, (BOARD, BOARD))
        self.rgb[:] = np.asarray(colour) + mottle[..., None].astype(np.float32)

    def paint(self, mask: np.ndarray, colour: Colour | np.ndarray, strength: float = 1.0) -> None:
        """Lay a colour, or a whole picture, over the board where the mask says."""
        weight = (mask * strength)[..., None].astype(np.float32)
        self.rgb += weight * (np.asarray(colour, dtype=np.float32) - self.rgb)

    def shade(self, amount: np.ndarray) -> None:
        """Make lighter (above 0) or darker (below 0), as a share of the light that is there."""
        self.rgb *= 1 + amount[..., None].astype(np.float32)

    def shadow(self, mask: np.ndarray, length: float, strength: float = 0.45) -> None:
        """Darken where the thing under `mask` throws its shadow, `length` board pixels away from the sun."""
        shift = round(length * np.sin(self.sun)), round(length * np.cos(self.sun))
        self.shade(-strength * np.roll(mask, shift, axis=(0, 1)) * (1 - mask))

    def lines(self, paths: Sequence[Sequence[Point]], width: float) -> np.ndarray:
        """A mask of polylines of one width."""
        picture = Image.new("L", (BOARD, BOARD))
        pen = ImageDraw.Draw(picture)
        for path in paths:
            pen.line([tuple(map(float, p)) for p in path], fill=255, width=max(1, round(width)), joint="curve")
        return np.asarray(picture, dtype=np.float32) / 255

    def polygons(self, shapes: Sequence[Sequence[Point]]) -> np.ndarray:
        """A mask of filled polygons."""
        picture = Image.new("L", (BOARD, BOARD))
        pen = ImageDraw.Draw(picture)
        for shape in shapes:
            pen.polygon([tuple(map(float, p)) for p in shape], fill=255)
        return np.asarray(picture, dtype=np.float32) / 255

    def discs(self, centres: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """A mask of filled circles; centres (n, 2) as x, y."""
        picture = Image.new("L", (BOARD, BOARD))
        pen = ImageDraw.Draw(picture)
        for (x, y), r in zip(centres, radii, strict=True):
            pen.ellipse((x - r, y - r, x + r, y + r), fill=255)
        return np.asarray(picture, dtype=np.float32) / 255

    def trees(self, centres: np.ndarray, radii: np.ndarray, green: Colour) -> None:
        """Round crowns with their shadows, lit from one side."""
        crowns = self.discs(centres, radii)
        self.shadow(crowns, float(np.mean(radii)) * 1.1)
        self.paint(crowns, green)
        lit = self.discs(centres - 0.35 * radii[:, None] * (np.cos(self.sun), np.sin(self.sun)), radii * 0.5)
        self.paint(lit * crowns, np.asarray(green) * 1.35 + 0.03, 0.7)

    def scatter(self, count: int) -> np.ndarray:
        """Random points (count, 2) over the board and a little beyond its edges."""
        return self.rng.uniform(-4, BOARD + 4, (count, 2))

    def finish(self) -> np.ndarray:
        """The tile: (SIZE, SIZE, 3) floats from 0 to 1, each pixel the mean of four board pixels."""
        blocks = self.rgb.reshape(SIZE, 2, SIZE, 2, 3)
        return np.clip(blocks.mean(axis=(1, 3)), 0, 1)


def box(centre: Point, length: float, width: float, angle: float) -> list[Point]:
    """The corners of a turned rectangle, its length along `angle`."""
    c, s = np.cos(angle), np.sin(angle)
    corners = ((1, 1), (1, -1), (-1, -1), (-1, 1))
    return [
        (centre[0] + i * length / 2 * c - j * width / 2 * s, centre[1] + i * length / 2 * s + j * width / 2 * c)
        for i, j in corners
    ]
