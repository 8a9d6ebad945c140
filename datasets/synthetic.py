"""Draws the tiles of LandCover.

A tile depends on its split, class and number alone, in any order and process. It is drawn on a
board of twice its size (`Board`: noise, masks and brushes; `Land`: what each class looks like) and
averaged down, which smooths thin lines and edges. Then weather, season, light and sensor change the
finished tile.

The numbers in it are chosen by eye. The order in which random numbers are drawn belongs to a tile:
where two lines change places, every tile after them is another one (GENERATOR_VERSION).

Masks are (BOARD, BOARD) arrays from 0 to 1, colours are triples from 0 to 1, and tiles are
(SIZE, SIZE, 3) floats from 0 to 1. On the board, lengths, widths and radii are in pixels, centres
are coordinates (x, y), and angles and directions are in radians.
"""
from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageDraw, ImageFilter

GENERATOR_VERSION = 1  # part of every fingerprint; raise it when any tile changes
CLEAR_SHARE = 0.4  # share of clear tiles of LandCover; the others are under another condition
CONDITIONS = (
    "clear", "hazy", "dusk", "noisy", "blurry", "infrared", "cloudy", "dry", "snowy", "faded",
    "grey",
)
CLASSNAMES = [
    "annual crop land", "permanent crop land", "orchard", "vineyard", "rice paddy", "pasture",
    "herbaceous vegetation", "golf course", "wetland", "residential area", "industrial area",
    "car park", "airport", "river", "canal", "lake", "sea", "harbour", "beach", "highway",
    "railway", "forest", "desert", "snow",
]
# Corruptions of test tiles, one of each group of ImageNet-C (Hendrycks and Dietterich, ICLR 2019),
# and their strengths, chosen for these tiles, by severity 1 to 5.
STRENGTHS = {
    "gaussian_noise": (0.03, 0.06, 0.09, 0.12, 0.16),  # standard deviation; white is 1
    "defocus_blur": (1.5, 2.5, 3.5, 5.0, 7.0),  # radius of the disc in pixels
    "fog": (0.15, 0.25, 0.35, 0.45, 0.58),  # mean cover
    "contrast": (0.7, 0.55, 0.42, 0.32, 0.22),  # share of the contrast that is left
}
LUMA = np.array([0.30, 0.59, 0.11], dtype=np.float32)  # shares of the colours in the brightness
Array = np.ndarray
SIZE = 64  # pixels of a finished tile
BOARD = 2 * SIZE  # pixels of the drawing board
Colour = Sequence[float] | np.ndarray

# Colours that a class chooses from, and shapes of planes and ships.
SOIL = ((0.55, 0.42, 0.30), (0.62, 0.50, 0.36), (0.47, 0.36, 0.27), (0.66, 0.57, 0.44))
GRASS = ((0.40, 0.53, 0.26), (0.46, 0.56, 0.30), (0.36, 0.48, 0.25))
LEAF = ((0.17, 0.31, 0.14), (0.21, 0.36, 0.16), (0.26, 0.38, 0.18))
WATER = ((0.22, 0.34, 0.42), (0.26, 0.40, 0.45), (0.30, 0.38, 0.38))
CROPS = (
    *SOIL,
    (0.71, 0.63, 0.38), (0.76, 0.70, 0.47), (0.44, 0.56, 0.25), (0.36, 0.50, 0.22),
    (0.58, 0.60, 0.30),
)
PADDIES = (*WATER, (0.45, 0.55, 0.55), (0.36, 0.50, 0.28), (0.44, 0.58, 0.32), (0.55, 0.60, 0.58))
ASPHALT = ((0.36, 0.36, 0.37), (0.44, 0.43, 0.43), (0.30, 0.30, 0.31))
CONCRETE = ((0.62, 0.61, 0.58), (0.55, 0.54, 0.52), (0.68, 0.66, 0.62))
CAR = (
    (0.85, 0.85, 0.86), (0.15, 0.15, 0.17), (0.60, 0.14, 0.13), (0.20, 0.30, 0.52),
    (0.55, 0.56, 0.58),
)
WAGON = ((0.60, 0.20, 0.17), (0.25, 0.35, 0.55), (0.70, 0.70, 0.70), (0.35, 0.30, 0.28))
ROOF = (
    (0.62, 0.32, 0.24), (0.68, 0.42, 0.33), (0.45, 0.40, 0.38), (0.56, 0.50, 0.45),
    (0.40, 0.28, 0.24),
)
FLAT_ROOF = ((0.80, 0.80, 0.79), (0.66, 0.67, 0.68), (0.50, 0.56, 0.63), (0.72, 0.66, 0.60))
# Outlines of an airliner, from above; its length is 1.
FUSELAGE = ((0.5, 0.065), (0.5, -0.065), (-0.5, -0.065), (-0.5, 0.065))
WINGS = ((0.12, 0), (-0.18, 0.48), (-0.26, 0.48), (-0.10, 0), (-0.26, -0.48), (-0.18, -0.48))
TAIL = ((-0.36, 0), (-0.47, 0.17), (-0.52, 0.17), (-0.48, 0), (-0.52, -0.17), (-0.47, -0.17))
DEEP = ((0.10, 0.25, 0.40), (0.12, 0.30, 0.42), (0.08, 0.22, 0.34), (0.15, 0.33, 0.40))
MURKY = ((0.36, 0.40, 0.32), (0.40, 0.38, 0.28), (0.26, 0.37, 0.40))
SHALLOW = ((0.28, 0.58, 0.60), (0.34, 0.56, 0.58), (0.30, 0.48, 0.50))
SAND = ((0.86, 0.77, 0.58), (0.90, 0.83, 0.66), (0.80, 0.70, 0.52))
DUNE = ((0.80, 0.65, 0.44), (0.76, 0.58, 0.38), (0.84, 0.72, 0.53), (0.70, 0.55, 0.40))
CONTAINER = ((0.65, 0.25, 0.20), (0.22, 0.38, 0.58), (0.30, 0.50, 0.35), (0.80, 0.55, 0.25))
CROWN = ((0.16, 0.28, 0.14), (0.20, 0.34, 0.16), (0.13, 0.24, 0.15), (0.27, 0.37, 0.17))
HULL = ((0.5, 0), (0.2, 0.16), (-0.5, 0.16), (-0.5, -0.16), (0.2, -0.16))


# Tiles

def tile_rng(*key: str | int) -> Generator:
    """Returns a generator that depends on the key alone.

    Words are hashed with CRC, which is the same on every machine.
    """
    numbers = []
    for part in key:
        if isinstance(part, str):
            part = zlib.crc32(part.encode())
        numbers.append(part)
    return np.random.default_rng(numbers)


def draw(classname: str, rng: Generator) -> Array:
    """Draws a clear tile of a class, floats from 0 to 1.

    Args:
        classname: Name of the class, from CLASSNAMES. The method of `Land` that draws it has the
            same name.
        rng: The tile's generator.
    """
    land = Land(rng)
    getattr(land, classname.replace(" ", "_"))()
    # The board has twice the size of a tile.
    pixels = land.rgb.reshape(SIZE, 2, SIZE, 2, 3).mean(axis=(1, 3))
    return np.clip(pixels, 0, 1)


def blend(image: Array, colour: Colour, weight: Array | float) -> Array:
    """Mixes an image with a colour or another image.

    Args:
        image: The image, floats from 0 to 1.
        colour: The colour, or the other image.
        weight: Weight of the colour: 0 leaves the image as it is, 1 replaces it.
    """
    return image + weight * (np.asarray(colour, dtype=np.float32) - image)


def to_bytes(image: Array) -> Array:
    """Converts floats from 0 to 1 to uint8 from 0 to 255."""
    return (np.clip(image, 0, 1) * 255).round().astype(np.uint8)


def apply_condition(condition: str, image: Array, rng: Generator, strength: float) -> Array:
    """Returns a tile under a condition of weather, season, light or sensor.

    Args:
        condition: Name of the condition, from CONDITIONS.
        image: A tile, floats from 0 to 1.
        rng: The tile's generator.
        strength: Strength of the condition, about 0.3 for slight and 1 for strong.
    """
    red = image[..., 0:1]
    green = image[..., 1:2]
    blue = image[..., 2:3]
    light = (image @ LUMA)[..., None]
    result = image  # clear
    match condition:
        case "hazy":
            veil = 0.7 * strength * (0.75 + 0.4 * (fractal_noise(rng, SIZE, 2, 2)[..., None] - 0.5))
            result = blend(image, (0.80, 0.82, 0.84), veil)
        case "dusk":
            dark = image * (1 - 0.75 * strength) * np.array([1.08, 0.92, 1.0])
            result = dark + 0.05 * strength * np.array([0.5, 0.3, 0.7])
        case "noisy":
            grain = rng.normal(0, 0.22 * strength, image.shape)
            result = image + 0.6 * grain + 0.4 * grain.mean(-1, keepdims=True) * 1.7
        case "blurry":
            blur = ImageFilter.GaussianBlur(0.5 + 1.5 * strength)
            result = np.asarray(Image.fromarray(to_bytes(image)).filter(blur), np.float32) / 255
        case "infrared":
            # False colour: infrared, which plants reflect, is red, red is green, green is blue.
            near_infrared = np.clip(0.9 * green + 3.0 * (green - 0.5 * red - 0.5 * blue), 0, 1)
            false_colour = np.concatenate([near_infrared, red * 0.85, green * 0.85], -1)
            result = blend(image, false_colour, min(1.0, 0.4 + 0.6 * strength))
        case "cloudy":
            noise = fractal_noise(rng, SIZE, 3, 4)
            cover = smooth(noise, 0.75 - 0.35 * strength, 0.95 - 0.25 * strength)[..., None]
            shade = np.roll(cover, (6, -5), axis=(0, 1))
            result = blend(image * (1 - 0.35 * shade), (0.95, 0.95, 0.96), 0.95 * cover)
        case "dry":  # green turns to straw
            straw = light * np.array([1.35, 1.10, 0.72]) + 0.05
            greenness = np.clip(6 * (green - np.maximum(red, blue)) + 0.35, 0, 1)
            result = blend(image, straw, greenness * strength)
        case "snowy":
            # Flat, light ground is covered most; dark crowns, walls and water stay half bare.
            rough = 0.5 * (fractal_noise(rng, SIZE, 8, 3)[..., None] - 0.5)
            cover = 0.25 + 0.6 * smooth(light + rough, 0.45 - 0.3 * strength, 0.55)
            result = blend(image, (0.93, 0.95, 0.98), cover * min(1.0, 0.2 + 0.8 * strength))
        case "faded":
            pale = blend(image, light, 0.5 * strength)
            result = blend(pale, (0.78, 0.76, 0.70), 0.55 * strength)
        case "grey":
            result = blend(image, light * np.ones(3), min(1.0, 0.5 + 0.5 * strength))
    return np.clip(result, 0, 1)


def rotated(image: Array, rng: Generator) -> Array:
    """Rotates a tile by any angle and enlarges it a little, with mirrored corners."""
    pad = SIZE // 2
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
    wide = Image.fromarray(to_bytes(padded))
    turned = wide.rotate(float(rng.uniform(15, 345)), Image.Resampling.BILINEAR)
    edge = pad + int(rng.integers(0, 11))
    part = turned.crop((edge, edge, 2 * SIZE - edge, 2 * SIZE - edge)).resize((SIZE, SIZE))
    return np.asarray(part, np.float32) / 255


def mixed(image: Array, other: Array, rng: Generator, strength: float) -> Array:
    """Lays a ragged corner of another tile, or all of it half transparent, over a tile.

    Args:
        image: A tile, floats from 0 to 1.
        other: The other tile.
        rng: The tile's generator.
        strength: Share of the other tile, from 0 for little to 1 for much.
    """
    if rng.random() >= 0.5:
        return blend(image, other, rng.uniform(0.2, 0.2 + 0.25 * strength))
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    angle = rng.uniform(0, 2 * np.pi)
    side = (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle)
    side = side + 0.2 * (fractal_noise(rng, SIZE, 4) - 0.5)
    cover = smooth(side, 0.30 - 0.22 * strength, 0.34 - 0.22 * strength)
    return blend(image, other, cover[..., None])


def tile(split: str, classname: str, number: int) -> Array:
    """Draws a tile of LandCover: two in five are clear, the others under a condition.

    Args:
        split: Name of the split: `train`, `val` or `test`.
        classname: Name of the class, from CLASSNAMES.
        number: Number of the image within split and class, from 0.

    Returns:
        The tile, uint8 (SIZE, SIZE, 3).
    """
    rng = tile_rng("landcover", split, classname, number)
    image = draw(classname, rng)
    if rng.random() >= CLEAR_SHARE:
        image = apply_condition(str(rng.choice(CONDITIONS[1:])), image, rng, rng.uniform(0.4, 1.0))
    return to_bytes(image)


def shifted_tile(split: str, classname: str, number: int) -> Array:
    """Draws a tile of LandCoverShift, unlike the tiles that the small CLIP was trained on.

    It may be rotated, mixed with another class, have a colour cast, and be under strong conditions.

    Returns:
        The tile, uint8 (SIZE, SIZE, 3).
    """
    rng = tile_rng("landcover_shift", split, classname, number)
    image = draw(classname, rng)
    if rng.random() < 0.5:
        image = rotated(image, rng)
    if rng.random() < 0.3:
        other = str(rng.choice([name for name in CLASSNAMES if name != classname]))
        image = mixed(image, draw(other, rng), rng, rng.uniform(0.3, 0.8))
    if rng.random() < 0.5:
        # A badly balanced sensor: each channel has its own gain and offset.
        cast = rng.uniform(0.3, 0.7)
        gain = rng.uniform(1 - 0.55 * cast, 1 + 0.4 * cast, 3)
        offset = rng.uniform(-0.12, 0.12, 3) * cast
        image = image * gain + offset
    for condition in rng.choice(["hazy", "noisy", "blurry"], 2, replace=False):
        if rng.random() < 0.4:
            image = apply_condition(str(condition), image, rng, rng.uniform(0.4, 0.8))
    return to_bytes(image)


def corrupt(tile: Array, corruption: str, severity: int, rng: Generator) -> Array:
    """Corrupts a tile. With equal generators, severities differ only in strength.

    Args:
        tile: The tile, uint8 (SIZE, SIZE, 3).
        corruption: Name of the corruption, a key of STRENGTHS.
        severity: Severity of the corruption, 1 to 5.
        rng: The corruption's generator.

    Returns:
        The corrupted tile, uint8 (SIZE, SIZE, 3).
    """
    image = tile.astype(np.float64) / 255
    strength = STRENGTHS[corruption][severity - 1]
    match corruption:
        case "gaussian_noise":
            image = image + rng.normal(0, strength, image.shape)
        case "defocus_blur":
            image = blurred(image, strength)
        case "fog":
            cover = strength * (0.7 + 0.6 * fractal_noise(rng, SIZE, 2, 3)[..., None])
            image = image + np.clip(cover, 0, 1) * (0.85 - image)
        case "contrast":
            image = (image - image.mean((0, 1))) * strength + image.mean((0, 1))
    return to_bytes(image)


def blurred(image: Array, radius: float) -> Array:
    """Averages an image over a disc with a soft edge. Beyond the image its border is repeated."""
    reach = int(np.ceil(radius))
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    offsets = np.arange(-reach, reach + 1)
    disc = np.clip(radius + 0.5 - np.hypot(*np.meshgrid(offsets, offsets)), 0, 1)
    # What the disc covers around each pixel, (SIZE, SIZE, 3, w, w).
    windows = np.lib.stride_tricks.sliding_window_view(padded, disc.shape, axis=(0, 1))
    return np.einsum("hwcij,ij->hwc", windows, disc / disc.sum())


# The board

def smooth(values: np.ndarray, low: float | np.ndarray, high: float | np.ndarray) -> np.ndarray:
    """Applies a soft threshold: 0 below `low`, 1 above `high`, linear in between.

    With `low` above `high` it is reversed: 1 below `high`, 0 above `low`.
    """
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def to_edge(values: np.ndarray, period: float) -> np.ndarray:
    """Returns the distance of each value to the nearest multiple of `period`."""
    return np.minimum(values % period, period - values % period)


def value_noise(
    rng: np.random.Generator, size: int, cells: float, stretch: float = 1.0,
) -> np.ndarray:
    """Draws random values on a coarse grid, and interpolates between its points.

    Args:
        rng: The tile's generator.
        size: Number of pixels of each side of the result.
        cells: Number of cells of the grid in each direction.
        stretch: Width of a cell by its height.

    Returns:
        Values from about 0 to 1, (size, size).
    """
    shape = max(2, round(cells) + 1), max(2, round(cells / stretch) + 1)
    grid = Image.fromarray(rng.random(shape, dtype=np.float32))
    return np.asarray(grid.resize((size, size), Image.Resampling.BICUBIC))


def fractal_noise(
    rng: np.random.Generator, size: int, cells: float, octaves: int = 3,
) -> np.ndarray:
    """Sums value noise at several scales, each half as strong as the one before.

    Args:
        rng: The tile's generator.
        size: Number of pixels of each side of the result.
        cells: Number of cells of the coarsest grid in each direction, doubled from scale to scale.
        octaves: Number of scales.

    Returns:
        Values from 0 to 1, (size, size).
    """
    total: np.ndarray | int = 0
    for octave in range(octaves):
        noise = value_noise(rng, size, min(cells * 2**octave, size))
        total = total + 0.5**octave * noise
    total = np.asarray(total)
    return (total - total.min()) / (total.max() - total.min())


def board_points(points: Any, angle: float, centre: Any = BOARD / 2) -> np.ndarray:
    """Returns board coordinates of points that are given along and across a direction.

    Args:
        points: Points in pixels from the centre, along and across, (..., 2).
        angle: Angle of the direction, in radians.
        centre: Centre in board coordinates.

    Returns:
        The coordinates x and y, (..., 2).
    """
    along, across = np.moveaxis(np.asarray(points, float), -1, 0)
    x = along * np.cos(angle) - across * np.sin(angle)
    y = along * np.sin(angle) + across * np.cos(angle)
    return np.stack([x, y], -1) + centre


def box(centre: Any, length: float, width: float, angle: float) -> np.ndarray:
    """Returns the corners of a rotated rectangle.

    Returns:
        The coordinates x and y, (4, 2).
    """
    corners = np.array(((1, 1), (1, -1), (-1, -1), (-1, 1)))
    return board_points(corners * (length / 2, width / 2), angle, centre)


class Board:
    """One tile while it is drawn.

    Attributes:
        rng: The tile's generator.
        rgb: The image, (BOARD, BOARD, 3).
        x: Column of each pixel, (BOARD, BOARD).
        y: Row of each pixel, (BOARD, BOARD).
        sun: Direction of all shadows, in radians.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.rgb = np.zeros((BOARD, BOARD, 3), dtype=np.float32)
        self.y, self.x = np.mgrid[0:BOARD, 0:BOARD].astype(np.float32)
        self.sun = rng.uniform(0, 2 * np.pi)

    def uniform(self, low: float, high: float) -> float:
        """Draws a number between two ends."""
        return float(self.rng.uniform(low, high))

    def angle(self) -> float:
        """Draws the angle of a line, which has no direction: from 0 to π."""
        return self.uniform(0, np.pi)

    def chance(self, share: float) -> bool:
        """True for this share of the tiles."""
        return bool(self.rng.random() < share)

    def colour(self, *choices: Colour, spread: float = 0.03) -> np.ndarray:
        """Draws one of the colours, a little lighter or darker and of a slightly different hue.

        Args:
            choices: The colours.
            spread: Standard deviation of the brightness; that of each channel is half of it.
        """
        base = np.asarray(choices[self.rng.integers(len(choices))])
        lighter = base + self.rng.normal(0, spread)
        varied = lighter + self.rng.normal(0, spread / 2, 3)
        return np.clip(varied, 0, 1).astype(np.float32)

    def noise(self, cells: float, octaves: int = 3) -> np.ndarray:
        """Draws fractal noise over the board, from 0 to 1; see `fractal_noise`."""
        return fractal_noise(self.rng, BOARD, cells, octaves)

    def axes(
        self, angle: float, centre: Any = (BOARD / 2, BOARD / 2),
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns coordinates of all pixels along and across a direction, from a centre."""
        x = self.x - centre[0]
        y = self.y - centre[1]
        return x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)

    def direction(self) -> tuple[float, np.ndarray, np.ndarray]:
        """Draws a direction. Returns its angle, and the coordinates along and across it."""
        angle = self.angle()
        return angle, *self.axes(angle)

    def fill(self, colour: Colour, rough: float = 0.1, cells: float = 6) -> None:
        """Draws ground of one colour with light and dark patches and fine grain.

        Args:
            colour: The colour.
            rough: Largest difference of a patch from the colour, where white is 1.
            cells: Number of patches side by side.
        """
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
        """Draws irregular patches of one of the colours, where noise exceeds a soft threshold.

        Args:
            cells: Number of cells of the noise, see `fractal_noise`.
            octaves: Number of scales of the noise.
            low: Level of noise below which there is nothing of a patch.
            high: Level of noise above which there is all of it.
            colours: The colours, of which one is drawn.
            strength: Opacity of the patches, from 0 to 1.
        """
        self.paint(smooth(self.noise(cells, octaves), low, high), self.colour(*colours), strength)

    def strip(self, distance: np.ndarray, width: float, colour: Colour) -> None:
        """Draws a road or the like around a line."""
        self.paint(smooth(distance, width / 2 + 0.5, width / 2 - 0.5), colour)

    def shade(self, amount: np.ndarray) -> None:
        """Makes the image lighter (above 0) or darker (below 0) by a share."""
        self.rgb *= 1 + amount[..., None].astype(np.float32)

    def stand(
        self, mask: np.ndarray, colour: Colour, height: float, dark: float = 0.45,
        strength: float = 1.0,
    ) -> None:
        """Draws an object that stands on the ground and has a shadow.

        Args:
            mask: Mask of the object, (BOARD, BOARD).
            colour: Colour of the object.
            height: Number of pixels by which the shadow is moved away from the sun.
            dark: Share of the light that the shadow takes.
            strength: Opacity of the object, from 0 to 1.
        """
        shift = round(height * np.sin(self.sun)), round(height * np.cos(self.sun))
        self.shade(-dark * np.roll(mask, shift, axis=(0, 1)) * (1 - mask))
        self.paint(mask, colour, strength)

    def mask(self, kind: str, shapes: Iterable[Any], **options: Any) -> np.ndarray:
        """Returns a mask of shapes of one kind.

        Args:
            kind: Name of a method of Pillow's ImageDraw, such as `polygon`.
            shapes: Coordinates of each shape, as the method takes them.
            options: Further arguments of the method.
        """
        image = Image.new("L", (BOARD, BOARD))
        draw = getattr(ImageDraw.Draw(image), kind)
        for shape in shapes:
            draw(np.ravel(shape).tolist(), fill=255, **options)
        return np.asarray(image, dtype=np.float32) / 255

    def boxes(
        self, centres: Iterable[Any], length: float, width: float, angle: float,
    ) -> np.ndarray:
        """Returns a mask of equal rectangles; see `box` for the arguments."""
        return self.mask("polygon", (box(centre, length, width, angle) for centre in centres))

    def discs(self, centres: np.ndarray, radii: np.ndarray | float) -> np.ndarray:
        """Returns a mask of discs with centres (n, 2) and radii (n,), or one radius for all."""
        radii = np.broadcast_to(radii, len(centres))[:, None]
        return self.mask("ellipse", np.hstack([centres - radii, centres + radii]))

    def trees(self, centres: np.ndarray, radii: np.ndarray, green: Colour) -> None:
        """Draws round crowns with their shadows, lit from one side."""
        crowns = self.discs(centres, radii)
        self.stand(crowns, green, float(np.mean(radii)) * 1.1)
        towards_sun = 0.35 * radii[:, None] * (np.cos(self.sun), np.sin(self.sun))
        lit = self.discs(centres - towards_sun, radii * 0.5)
        self.paint(lit * crowns, np.asarray(green) * 1.35 + 0.03, 0.7)

    def scatter(self, count: int) -> np.ndarray:
        """Draws points (count, 2) over the board and a little beyond its edges."""
        return self.rng.uniform(-4, BOARD + 4, (count, 2))

    def grove(
        self, fewest: int, most: int, smallest: float, largest: float, *greens: Colour,
    ) -> None:
        """Draws scattered trees of one of the greens.

        Args:
            fewest: Least number of trees.
            most: Number that the number of trees stays below.
            smallest: Least radius of a crown, in pixels.
            largest: Greatest radius of a crown, in pixels.
            greens: The colours, of which one is drawn.
        """
        count = int(self.rng.integers(fewest, most))
        centres = self.scatter(count)
        radii = self.rng.uniform(smallest, largest, count)
        self.trees(centres, radii, self.colour(*greens))


class Land(Board):
    """A board with a method per class, and what these share."""

    def plots(self, low: float, high: float) -> tuple[float, list[np.ndarray], np.ndarray]:
        """Divides the board into rectangular plots of one size.

        Args:
            low: Least width of a plot, in pixels.
            high: Greatest width of a plot, in pixels.

        Returns:
            The direction of the plots, a mask for each, and the distance of each pixel from the
            nearest edge.
        """
        angle, along, across = self.direction()
        size = self.uniform(low, high)
        along = along + self.uniform(0, size)
        across = across + self.uniform(0, size)
        longer = size * self.uniform(1.0, 1.8)
        column = np.floor(along / longer)
        row = np.floor(across / size)
        number = (column - column.min()) * 16 + (row - row.min())  # fewer than 16 rows fit
        masks = [(number == plot).astype(np.float32) for plot in np.unique(number)]
        return angle, masks, np.minimum(to_edge(along, longer), to_edge(across, size))

    def rows(
        self, angle: float, spacing: float, bend: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns a wave across rows, such as vines or furrows.

        Args:
            angle: Direction of the rows, in radians.
            spacing: Number of pixels from row to row.
            bend: Number of pixels by which the rows curve.

        Returns:
            The wave, from −1 between rows to 1 on them, and the coordinate along the rows.
        """
        along, across = self.axes(angle)
        across = across + bend * np.sin(along / BOARD * np.pi + self.angle())
        across = across + self.uniform(0, spacing)
        return np.cos(2 * np.pi * across / spacing), along

    def maybe_barn(self) -> None:
        """Draws a barn with its shadow in a fifth of the tiles."""
        if self.chance(0.2):
            centre = self.scatter(1)
            length = self.uniform(10, 16)
            width = self.uniform(6, 9)
            roof = self.boxes(centre, length, width, self.angle())
            self.stand(roof, self.colour((0.55, 0.33, 0.27), (0.55, 0.54, 0.53)), 3)

    def annual_crop_land(self) -> None:
        """A patchwork of bare, green and ripe fields with fine furrows, and tracks between them."""
        angle, masks, edge = self.plots(40, 160)
        for inside in masks:
            self.paint(inside, self.colour(*CROPS))
            furrow, _ = self.rows(angle + (np.pi / 2) * self.rng.integers(2), self.uniform(4, 9))
            self.shade(inside * furrow * self.uniform(0.0, 0.13))
        self.shade((self.noise(5) - 0.5) * 0.2)
        self.paint(smooth(edge, 2.2, 1.2), self.colour((0.70, 0.63, 0.50), (0.33, 0.42, 0.22)), 0.9)
        self.maybe_barn()

    def permanent_crop_land(self) -> None:
        """Plots of bushes in broad uneven rows: coarser than vines, closer than fruit trees."""
        angle, masks, edge = self.plots(70, 140)
        self.fill(self.colour(*SOIL, GRASS[0]))
        leaf = self.colour(*LEAF, (0.30, 0.40, 0.26))
        spacing = self.uniform(8, 14)
        lumps = self.noise(26, 2)
        for inside in masks:
            wave, _ = self.rows(angle + (np.pi / 2) * self.chance(0.4), spacing, self.uniform(0, 3))
            self.stand(smooth(wave + 1.5 * (lumps - 0.5), 0.0, 0.5) * inside, leaf, 2.5, 0.4, 0.95)
            self.paint(smooth(wave + lumps, 1.0, 1.6) * inside, leaf * 1.35, 0.6)
        self.paint(smooth(edge, 3.5, 2.0), self.colour(SOIL[3]), 0.9)

    def orchard(self) -> None:
        """Round crowns on a regular grid over mown grass or soil."""
        self.fill(self.colour(*GRASS, *SOIL[:2]))
        spacing = self.uniform(9, 19)
        angle = self.angle()
        lane = spacing * self.uniform(1.0, 1.6)
        i, j = np.meshgrid(np.arange(-14, 15), np.arange(-14, 15))
        grid = np.stack([i * spacing + self.uniform(0, spacing), j * lane], -1)
        points = board_points(grid.reshape(-1, 2), angle)
        points = points + self.rng.normal(0, 0.7, points.shape)
        is_near = np.abs(points - BOARD / 2).max(1) < BOARD / 2 + 8
        is_planted = self.rng.random(len(points)) > 0.05
        points = points[is_near & is_planted]
        radii = spacing * self.uniform(0.28, 0.42) * self.rng.uniform(0.8, 1.15, len(points))
        self.trees(points, radii, self.colour(*LEAF))

    def vineyard(self) -> None:
        """Thin unbroken rows, close together and slightly curved, crossed by a track."""
        self.fill(self.colour(*SOIL[:2], (0.70, 0.62, 0.47), GRASS[1]), 0.09)
        wave, along = self.rows(self.angle(), self.uniform(5, 10), self.uniform(0, 12))
        vines = smooth(wave + 0.5 * (self.noise(40, 1) - 0.5), 0.1, 0.5)
        self.stand(vines, self.colour(*LEAF, (0.33, 0.43, 0.20)), 1.5, 0.3, 0.9)
        if self.chance(0.6):
            track = smooth(np.abs(along - self.uniform(-40, 40)), 4.5, 3.0)
            self.paint(track, self.colour((0.75, 0.67, 0.53)))
        self.shade((self.noise(3) - 0.5) * 0.25)

    def rice_paddy(self) -> None:
        """Flooded terraces: flat cells of water and young green between thin banks of earth."""
        along, across = self.axes(self.angle())
        slope = across + self.uniform(18, 45) * (self.noise(2.5, 2) - 0.5)
        step = self.uniform(14, 26)
        cell = self.uniform(30, 60)
        terrace = np.floor(slope / step)
        # The golden ratio moves the banks of each terrace away from those of its neighbours.
        along = along + (terrace * 0.618 % 1) * cell
        column = np.floor(along / cell)
        key = ((terrace - terrace.min()) * 31 + (column - column.min())).astype(int)
        # 29 and 31 have no common factor, so neighbouring cells have colours of their own.
        self.rgb[:] = np.stack([self.colour(*PADDIES) for _ in range(29)])[key % 29]
        self.patches(24, 2, 0.45, 0.8, (0.42, 0.58, 0.28), strength=0.35)
        bank = np.minimum(to_edge(slope, step), to_edge(along, cell))
        self.paint(smooth(bank, 2.0, 0.9), self.colour((0.50, 0.45, 0.30), (0.40, 0.42, 0.22)), 0.9)

    def pasture(self) -> None:
        """Even grass in large plots, with hedges, paths, and grazing animals as pale dots."""
        self.fill(self.colour(*GRASS, (0.50, 0.62, 0.32)), cells=3)
        _, masks, edge = self.plots(75, 220)
        for inside in masks:
            self.shade(inside * self.uniform(-0.08, 0.08))
        hedge = smooth(edge + 5 * (self.noise(22, 1) - 0.5), 3.0, 1.5)
        self.stand(hedge, self.colour(*LEAF), 2, 0.35, 0.95)
        if self.chance(0.6):
            path = self.mask("line", [self.scatter(3)], width=2, joint="curve")
            self.paint(path, (0.62, 0.58, 0.42), 0.5)
        if self.chance(0.5):
            centre = self.rng.uniform(25, BOARD - 25, 2)
            animals = self.rng.integers(8, 26)
            herd = self.rng.normal(centre, 18, (animals, 2))
            self.paint(self.discs(herd, 1.3), self.colour((0.88, 0.86, 0.80), (0.30, 0.22, 0.17)))
        self.maybe_barn()

    def herbaceous_vegetation(self) -> None:
        """Herbs and tall grass: rough patches of green, olive and straw with low shrubs, without
        edges."""
        self.fill(self.colour((0.47, 0.52, 0.31), (0.52, 0.53, 0.33), (0.43, 0.49, 0.30)), 0.12, 9)
        self.patches(7, 3, 0.45, 0.75, (0.63, 0.59, 0.40), (0.58, 0.55, 0.37), strength=0.7)
        self.patches(11, 3, 0.55, 0.8, (0.33, 0.42, 0.22), (0.38, 0.46, 0.25), strength=0.8)
        self.grove(10, 60, 1.2, 3.2, *LEAF)
        self.shade(self.rng.normal(0, 0.05, (BOARD, BOARD)))

    def golf_course(self) -> None:
        """Mown fairways in darker rough, sand bunkers, round greens, clumps of trees, sometimes a
        pond."""
        self.fill(self.colour((0.29, 0.43, 0.21), (0.33, 0.46, 0.24)), 0.12, 8)
        stripe, _ = self.rows(self.angle(), self.uniform(7, 11))
        fairway = smooth(self.noise(2.6, 1), 0.48, 0.53)
        self.paint(fairway, self.colour((0.46, 0.63, 0.30), (0.50, 0.66, 0.34)))
        self.shade(fairway * np.sign(stripe) * 0.05)
        greens = self.discs(self.scatter(2), self.rng.uniform(8, 13, 2))
        self.paint(greens, self.colour((0.56, 0.74, 0.40)))
        if self.chance(0.4):
            self.patches(2.5, 2, 0.80, 0.83, *WATER, strength=1.0)
        centres = self.rng.uniform(8, BOARD - 8, (self.rng.integers(3, 7), 2))
        bunkers = np.repeat(centres, 3, 0) + self.rng.normal(0, 2.5, (len(centres) * 3, 2))
        sand = self.discs(bunkers, self.rng.uniform(2, 4, len(bunkers)))
        self.paint(sand, self.colour((0.90, 0.84, 0.68)))
        trees = np.repeat(self.scatter(5), 6, 0) + self.rng.normal(0, 7, (30, 2))
        self.trees(trees, self.rng.uniform(2, 4.5, 30), self.colour(*LEAF))

    def wetland(self) -> None:
        """Reeds and moss with dark pools and winding creeks."""
        self.fill(self.colour((0.38, 0.42, 0.25), (0.45, 0.42, 0.28), (0.33, 0.40, 0.24)), 0.14, 12)
        self.patches(10, 3, 0.5, 0.8, (0.52, 0.50, 0.30), (0.42, 0.52, 0.27), strength=0.7)
        water = self.colour((0.16, 0.22, 0.25), (0.22, 0.29, 0.31), (0.27, 0.35, 0.40))
        wet = self.noise(self.uniform(4, 8), 3)
        level = self.uniform(0.50, 0.70)
        self.paint(smooth(wet, level, level + 0.05), water)
        self.paint(smooth(np.abs(self.noise(3, 2) - 0.5), 0.035, 0.02), water)

    def cars(self, points: np.ndarray, angle: float, length: float) -> None:
        """Draws cars at the points, all along one direction, in several colours."""
        for number, colour in enumerate(CAR):
            mask = self.boxes(points[number::len(CAR)], length, length * 0.5, angle)
            self.paint(mask, self.colour(colour, spread=0.05))

    def hall(self, centre: np.ndarray, length: float, width: float, angle: float) -> None:
        """Draws a large ribbed flat roof; see `box` for the arguments."""
        roof = self.boxes([centre], length, width, angle)
        self.stand(roof, self.colour(*FLAT_ROOF), 5, 0.5)
        along, across = self.axes(angle)
        ribs = across
        if self.chance(0.5):
            ribs = along
        self.shade(0.12 * np.cos(2 * np.pi * ribs / self.uniform(5, 10)) * roof)

    def residential_area(self) -> None:
        """Streets with rows of small houses, gardens and trees."""
        self.fill(self.colour(*GRASS, (0.44, 0.46, 0.34)), 0.14, 9)
        angle, along, across = self.direction()
        block = self.uniform(38, 52)
        house = self.uniform(12, 16)
        shift = self.uniform(0, block)
        street = self.colour(*ASPHALT, (0.55, 0.53, 0.50))
        self.strip(np.abs((across + shift) % block - block / 2), 6, street)
        if self.chance(0.6):
            self.strip(np.abs(along - self.uniform(-40, 40)), 6, street)
        rows = np.arange(-3, 4) * block - shift + block / 2
        places = np.arange(-80, 80, house * 1.15) + self.uniform(0, house)
        grid = []  # houses on both sides of each street
        for row in rows:
            for side in (-1, 1):
                for along_street in places:
                    grid.append((along_street, row + side * (8 + house * 0.4)))
        centres = board_points(grid, angle) + self.rng.normal(0, 0.6, (len(grid), 2))
        centres = centres[self.rng.random(len(grid)) > 0.12]
        lengths = self.rng.uniform(0.68, 0.88, len(centres)) * house
        widths = self.rng.uniform(0.5, 0.7, len(centres)) * house
        roofs = []
        lit_halves = []
        for centre, length, width in zip(centres, lengths, widths, strict=True):
            roofs.append(box(centre, length, width, angle))
            middle = board_points((0, width / 4), angle, centre)
            lit_halves.append(box(middle, length, width / 2, angle))
        self.stand(self.mask("polygon", roofs), self.colour(*ROOF), 3)
        for first in range(3):  # two houses in five have roofs of another colour
            self.paint(self.mask("polygon", roofs[first::7]), self.colour(*ROOF))
        self.shade(0.28 * self.mask("polygon", lit_halves))
        self.grove(12, 40, 1.5, 3.5, *LEAF)

    def industrial_area(self) -> None:
        """Big halls on concrete yards, tanks and lorries."""
        self.fill(self.colour(*CONCRETE, *ASPHALT[:2]), 0.08)
        angle = self.angle()
        size = self.uniform(44, 62)
        for i, j in product((-1, 0, 1), repeat=2):
            if not self.chance(0.12):
                position = np.array([i * size * 1.1, j * size]) + self.rng.normal(0, 4, 2)
                length = size * self.uniform(0.6, 0.95)
                width = size * self.uniform(0.45, 0.8)
                self.hall(board_points(position, angle), length, width, angle)
        if self.chance(0.5):
            corner = self.rng.uniform(15, BOARD - 15, (1, 2))
            tanks = corner + np.array([[0, 0], [11, 0], [0, 11], [11, 11]])
            self.stand(self.discs(tanks, 4.6), self.colour((0.85, 0.85, 0.84)), 3)
        lorries = self.boxes(self.scatter(int(self.rng.integers(3, 9))), 8, 3, angle)
        self.paint(lorries, self.colour((0.90, 0.90, 0.90), *CAR))

    def car_park(self) -> None:
        """Asphalt with stall lines and long rows of cars, sometimes trees or a shop's roof."""
        self.fill(self.colour(*ASPHALT, CONCRETE[1]), 0.05)
        angle, along, across = self.direction()
        bay = self.uniform(24, 32)
        stall = bay * 0.19
        shift = self.uniform(0, bay)
        share = self.uniform(0.2, 0.95)
        points = []
        for row in np.arange(-4, 5) * bay + shift:
            for side in (-1, 1):
                for position in np.arange(-90, 90, stall):
                    if self.chance(share):
                        points.append((position, row + side * bay * 0.17))
        from_row = np.abs((across - shift + bay / 2) % bay - bay / 2)
        lines = smooth(np.abs((along + stall / 2) % stall - stall / 2), 0.8, 0.3)
        marks = lines * (from_row < bay * 0.32)
        self.paint(marks, (0.85, 0.85, 0.83), 0.6)
        self.cars(self.rng.permutation(board_points(points, angle)), angle + np.pi / 2, bay * 0.25)
        if self.chance(0.35):
            self.hall(board_points((0, 75), angle), 150, 60, angle)
        if self.chance(0.4):
            self.grove(4, 10, 2, 3.5, *LEAF)

    def airport(self) -> None:
        """A broad runway with markings, and either an apron with airliners or a taxiway."""
        self.fill(self.colour(*GRASS, (0.55, 0.54, 0.38)), 0.07, 4)
        angle, along, across = self.direction()
        grey = self.colour(*ASPHALT, *CONCRETE[:2])
        position = self.uniform(-30, 10)
        width = self.uniform(20, 30)
        runway = np.abs(across - position)
        self.strip(runway, width, grey)
        self.paint(smooth(np.abs(runway - width * 0.44), 1.0, 0.4), (0.88, 0.88, 0.86), 0.7)
        self.paint(smooth(runway, 1.6, 0.9) * (along % 18 < 11), (0.92, 0.92, 0.90))
        if self.chance(0.5):  # the stripes of the threshold
            end = np.abs(along - self.uniform(-45, 45)) < 8
            self.paint(end * (runway % 4 < 2) * (runway < width * 0.4), (0.92, 0.92, 0.90))
        if self.chance(0.65):
            self.paint(smooth(across, position + 34, position + 35), self.colour(*CONCRETE))
            for spot in np.arange(-70, 80, 30) + self.uniform(0, 20):
                centre = board_points((spot, position + 50), angle)
                size = self.uniform(21, 27)
                course = angle - np.pi / 2
                outlines = []
                for part in (FUSELAGE, WINGS, TAIL):
                    outlines.append(board_points(size * np.array(part), course, centre))
                self.stand(self.mask("polygon", outlines), (0.95, 0.95, 0.96), 2.5)
        else:
            taxiway = self.colour(*ASPHALT, *CONCRETE[:2])
            self.strip(np.abs(across - position - 42), 9, taxiway)
            outside = (across < position) | (across > position + 42)
            self.strip(np.abs(along - self.uniform(-40, 40)) + 99 * outside, 9, taxiway)

    def surroundings(self) -> None:
        """Draws the land beside a road, railway or canal: fields, pasture, houses or plain ground.
        """
        choice = self.rng.integers(5)
        if choice < 3:
            (self.annual_crop_land, self.pasture, self.residential_area)[choice]()
        else:
            self.fill(self.colour(*GRASS, *SOIL), 0.14, 7)
            self.grove(5, 40, 2, 4, *LEAF)

    def highway(self) -> None:
        """Two carriageways with lane marks and traffic, straight or in a wide curve."""
        self.surroundings()
        angle, along, across = self.direction()
        bend = self.uniform(-25, 25) if self.chance(0.6) else 0.0
        curve = bend * (along / (BOARD / 2)) ** 2
        middle = curve + self.uniform(-20, 20)
        distance = np.abs(across - middle)
        width = self.uniform(15, 32)
        self.strip(distance, width + 8, self.colour(*GRASS, *SOIL[:2]))
        self.strip(distance, width, self.colour(*ASPHALT))
        self.strip(distance, 2.5, self.colour((0.45, 0.52, 0.33), (0.72, 0.72, 0.70)))
        lane = width / 4
        dashes = smooth(np.abs(distance - lane - 0.5), 0.9, 0.4) * (along % 9 < 5)
        self.paint(dashes, (0.93, 0.93, 0.90))
        self.paint(smooth(np.abs(distance - width / 2 + 1.2), 0.9, 0.4), (0.90, 0.90, 0.86), 0.8)
        places = self.rng.uniform(-80, 80, self.rng.integers(4, 14))
        sides = self.rng.choice([-1.5, -0.6, 0.6, 1.5], len(places)) * lane
        offset = float(np.mean(middle - curve))
        points = np.stack([places, bend * (places / (BOARD / 2)) ** 2 + offset + sides], 1)
        self.cars(board_points(points, angle), angle, 5)

    def railway(self) -> None:
        """Ballast with sleepers and pairs of rails, one to five tracks, sometimes a train."""
        self.surroundings()
        _, along, across = self.direction()
        bend = self.uniform(-20, 20) if self.chance(0.5) else 0.0
        line = across - bend * (along / (BOARD / 2)) ** 2 - self.uniform(-20, 20)
        tracks = int(self.rng.integers(1, 6))
        gap = 10.0
        width = tracks * gap + 4
        ballast = self.colour((0.50, 0.44, 0.39), (0.44, 0.40, 0.37), (0.56, 0.51, 0.46))
        self.strip(np.abs(line), width, ballast)
        self.shade((np.abs(line) < width / 2) * self.rng.normal(0, 0.08, (BOARD, BOARD)))
        for track in range(tracks):
            off = np.abs(line - (track - (tracks - 1) / 2) * gap)
            sleepers = (off < 3.6) * smooth(np.abs(along % 3.4 - 1.7), 0.9, 0.5)
            self.paint(sleepers, (0.27, 0.23, 0.20), 0.75)
            self.paint(smooth(np.abs(off - 2.2), 0.9, 0.4), (0.80, 0.78, 0.76))
            if self.chance(0.25):
                start = self.uniform(-70, 20)
                train = (off < 3.6) & (along > start) & (along < start + self.uniform(40, 90))
                wagons = train & ((along - start) % 20 > 1.5)
                self.stand(wagons.astype(np.float32), self.colour(*WAGON), 2.5)

    def countryside(self) -> None:
        """Draws grass or bare ground with woods."""
        self.fill(self.colour(*GRASS, *GRASS, *SOIL[:2]), 0.14, 5)
        woods = smooth(self.noise(5), 0.55, 0.62) * smooth(self.noise(40, 1), 0.2, 0.6)
        self.paint(woods, self.colour(*LEAF), 0.9)

    def ripples(self, mask: np.ndarray | np.float32, strength: float) -> None:
        """Draws small waves under a mask."""
        noise = value_noise(self.rng, BOARD, 44, 3.0)
        _, _, across = self.direction()
        swell = np.sin(across / self.uniform(2.0, 4.5) + 5 * self.noise(4, 2))
        self.shade(mask * strength * (0.6 * swell + 0.8 * (noise - 0.5)))

    def river(self) -> None:
        """A winding stream of changing width between green or sandy banks."""
        self.countryside()
        _, along, across = self.direction()
        phase = self.uniform(0, 2 * np.pi)
        turns = self.uniform(1.0, 2.4)
        bend = self.uniform(4, 26) * np.sin(along / BOARD * turns * np.pi + phase)
        bend = bend + 12 * (self.noise(2.5, 2) - 0.5)
        width = self.uniform(9, 24) * (0.75 + 0.5 * self.noise(3, 1))
        distance = np.abs(across - bend)
        banks = smooth(distance, width / 2 + 6, width / 2 + 1)
        self.paint(banks, self.colour(*SAND, *LEAF, *LEAF), 0.75)
        water = smooth(distance, width / 2 + 0.7, width / 2 - 0.7)
        self.paint(water, self.colour(*WATER, *MURKY, DEEP[0]))
        self.ripples(water, 0.04)

    def canal(self) -> None:
        """A straight channel with walls and a towpath, sometimes a barge."""
        self.surroundings()
        angle, along, across = self.direction()
        position = self.uniform(-25, 25)
        width = self.uniform(11, 24)
        distance = np.abs(across - position - self.uniform(-9, 9) * (along / (BOARD / 2)) ** 2)
        if self.chance(0.7):
            towpath = smooth(distance, width / 2 + 7, width / 2 + 6)
            self.paint(towpath, self.colour(*GRASS, *CONCRETE))
        walls = smooth(distance, width / 2 + 2.5, width / 2 + 1.5)
        self.paint(walls, self.colour(*CONCRETE, SOIL[1]))
        water = smooth(distance, width / 2 + 0.5, width / 2 - 0.5)
        self.paint(water, self.colour(*WATER, *MURKY, DEEP[0]))
        self.ripples(water, 0.03)
        if self.chance(0.4):
            centre = board_points((self.uniform(-45, 45), position), angle)
            barge = self.boxes([centre], self.uniform(20, 32), width * 0.35, angle)
            colour = self.colour((0.55, 0.30, 0.22), (0.30, 0.30, 0.33), (0.80, 0.79, 0.75))
            self.paint(barge, colour)

    def lake(self) -> None:
        """Still water with a closed, uneven shore."""
        self.countryside()
        centre = self.rng.normal(BOARD / 2, 12, 2)
        squeeze = self.uniform(1.0, 1.7)
        along, across = self.axes(self.angle(), centre)
        radius = np.hypot(along, across * squeeze)
        radius = radius + self.uniform(20, 50) * (self.noise(3.5, 3) - 0.5)
        size = self.uniform(32, 78)
        self.paint(smooth(radius, size + 5, size + 1), self.colour(*SAND, *LEAF, *LEAF), 0.7)
        water = smooth(radius, size + 0.8, size - 0.8)
        self.paint(water, self.colour(*WATER, *DEEP, MURKY[2]))
        self.shade(-0.15 * smooth(radius, size, size * 0.4) * water)
        self.ripples(water, 0.025)

    def sea(self) -> None:
        """Open water to every edge: swell, whitecaps, sometimes a ship with its wake."""
        self.fill(self.colour(*DEEP, *DEEP, WATER[1]), 0.05, 3)
        self.ripples(np.float32(1), self.uniform(0.02, 0.16))
        if self.chance(0.6):
            foam = smooth(value_noise(self.rng, BOARD, 50, 2.5), 0.86, 1.0)
            self.paint(foam, (0.88, 0.92, 0.94), self.uniform(0.2, 0.7))
        if self.chance(0.3):
            position = self.rng.uniform(30, BOARD - 30, (1, 2))
            course = self.rng.uniform(0, 2 * np.pi, 1)
            length = self.uniform(9, 16)
            waves = [((-0.5, 0), (-2.7, side)) for side in (-0.7, 0, 0.7)]
            wake = length * board_points(waves, course[0], 0)
            foam = self.mask("line", position + wake, width=2, joint="curve")
            self.paint(foam, (0.9, 0.94, 0.96), 0.6)
            self.vessels(position, course, length)

    def vessels(self, centres: np.ndarray, angles: np.ndarray, length: float) -> None:
        """Draws boats with a pointed bow, most of them white, and a darker cabin."""
        hulls = []
        cabins = []
        for centre, angle in zip(centres, angles, strict=True):
            hulls.append(centre + length * board_points(HULL, angle, 0))
            aft = board_points((-0.1 * length, 0), angle, centre)
            cabins.append(box(aft, length * 0.4, length * 0.16, angle))
        self.paint(self.mask("polygon", hulls), (0.94, 0.94, 0.94))
        self.paint(self.mask("polygon", hulls[::5]), self.colour(*CAR))
        self.paint(self.mask("polygon", cabins), (0.55, 0.50, 0.45))

    def harbour(self) -> None:
        """A quay with sheds or containers, and piers with moored boats."""
        self.fill(self.colour(*DEEP, *WATER), 0.05, 3)
        self.ripples(np.float32(1), 0.03)
        angle, _, across = self.direction()
        shore = self.uniform(-48, -22)
        self.paint(smooth(across, shore + 0.5, shore - 0.5), self.colour(*CONCRETE))
        for position in np.arange(-80, 80, 34) + self.uniform(0, 20):
            if self.chance(0.5):
                self.hall(board_points((position, shore - 16), angle), 26, 16, angle)
            else:
                stack = []
                for column in range(5):
                    for row in range(2):
                        container = (position + 4.5 * column, shore - 8 - 9 * row)
                        stack.append(board_points(container, angle))
                for first in range(3):
                    self.paint(self.boxes(stack[first::3], 3.5, 8, angle), self.colour(*CONTAINER))
        berth = self.uniform(26, 36)
        reach = self.uniform(50, 85)
        length = self.uniform(9, 13)
        piers = np.arange(-90, 90, berth) + self.uniform(0, berth)
        lines = [board_points(((pier, shore), (pier, shore + reach)), angle) for pier in piers]
        planks = self.mask("line", lines, width=3)
        self.paint(planks, self.colour((0.72, 0.70, 0.66), (0.60, 0.53, 0.45)))
        berths = []  # across the piers, along them, side of the pier
        for pier in piers:
            for spot in np.arange(shore + 6, shore + reach, length * 0.55):
                for side in (-1, 1):
                    berths.append((pier + side * (length / 2 + 2.5), spot, side))
        moored = np.array(berths)
        moored = moored[self.rng.random(len(moored)) < 0.7]
        courses = np.where(moored[:, 2] < 0, angle + np.pi, angle)
        self.vessels(board_points(moored[:, :2], angle), courses, length)

    def beach(self) -> None:
        """Sand between surf and green land, with parasols; shallow water turns deep."""
        self.fill(self.colour(*DEEP), 0.05, 3)
        along, across = self.axes(self.uniform(0, 2 * np.pi))
        shore = across + 10 * np.sin(along / 60 + self.uniform(0, 6))
        shore = shore + 12 * (self.noise(4, 2) - 0.5)
        shore += self.uniform(-12, 22)
        self.paint(smooth(shore, -50, 0), self.colour(*SHALLOW), 0.9)
        self.ripples((shore < 0).astype(np.float32), 0.05)
        for reach in (-14.0, -7.0, -1.0):
            surf = np.abs(shore - reach - 5 * (self.noise(9, 2) - 0.5))
            self.paint(smooth(surf, 2.4, 0.8), (0.95, 0.97, 0.97), self.uniform(0.3, 0.95))
        sand = self.colour(*SAND)
        self.paint(smooth(shore, 0, 1.5), sand * 0.85)
        self.paint(smooth(shore, 5, 10), sand)
        self.shade((shore > 2) * 0.12 * (self.noise(20, 2) - 0.5))
        back = self.uniform(30, 60)
        land = smooth(shore + 10 * (self.noise(8, 2) - 0.5), back, back + 3)
        self.paint(land, self.colour(*GRASS, *LEAF))
        if self.chance(0.5):
            spots = self.scatter(60)
            x, y = spots.astype(int).T % BOARD
            spots = spots[(shore[y, x] > 10) & (shore[y, x] < back - 6)]
            self.paint(self.discs(spots, 1.7), self.colour((0.85, 0.25, 0.22), (0.95, 0.95, 0.95)))

    def forest(self) -> None:
        """Crown beside crown with dark gaps, sometimes a clearing."""
        self.rgb[:] = self.colour(*CROWN)
        cell = self.uniform(5, 13)
        side = int(np.sqrt(int((BOARD / cell + 2) ** 2)))  # trees along each side of the grid
        grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1) * cell - cell / 2
        trees = grid + self.rng.uniform(-0.45, 0.45, grid.shape) * cell
        column = ((self.x + cell) / cell).astype(int).clip(0, side - 1)
        row = ((self.y + cell) / cell).astype(int).clip(0, side - 1)
        rows = []
        columns = []
        for i, j in product((-1, 0, 1), repeat=2):
            rows.append((row + i).clip(0, side - 1))
            columns.append((column + j).clip(0, side - 1))
        r = np.array(rows)  # (9, BOARD, BOARD): the trees around a pixel
        c = np.array(columns)
        distance = np.hypot(self.x - trees[r, c, 0], self.y - trees[r, c, 1])
        tree = np.take_along_axis(r * side + c, distance.argmin(0)[None], 0)[0]
        tone = self.rng.normal(0, 0.14, int(tree.max()) + 1)[tree]
        self.shade(tone + 0.35 - 0.9 * np.clip(distance.min(0) / cell, 0, 1))
        lit = (self.x * np.cos(self.sun) + self.y * np.sin(self.sun)) / BOARD
        self.shade((self.noise(4) - 0.5) * 0.3 - 0.05 * lit)
        if self.chance(0.35):
            self.patches(2.5, 2, 0.70, 0.74, *GRASS, strength=0.9)

    def desert(self) -> None:
        """Dunes with crests lit from one side, or gravel with dry gullies."""
        self.fill(self.colour(*DUNE), 0.06, 4)
        _, along, across = self.direction()
        spacing = self.uniform(14, 40)
        ridge = ((across + 26 * (self.noise(3, 2) - 0.5) + 0.25 * along) / spacing) % 1
        height = np.where(ridge < 0.75, ridge / 0.75, (1 - ridge) / 0.25)
        self.shade(self.uniform(0.08, 0.24) * (height - 0.6))
        self.shade(0.05 * np.sin(across / 1.3 + 8 * self.noise(5, 1)))
        if self.chance(0.4):
            self.paint(smooth(np.abs(self.noise(3, 3) - 0.5), 0.03, 0.0), (0.55, 0.42, 0.30), 0.6)
        if self.chance(0.5):
            count = int(self.rng.integers(5, 40))
            stones = self.discs(self.scatter(count), self.rng.uniform(0.8, 2, count))
            self.paint(stones, (0.42, 0.36, 0.25), 0.8)

    def snow(self) -> None:
        """Snowfields with blue shade in the hollows, rock and trees."""
        relief = self.noise(self.uniform(2.5, 5), 4)
        slope = np.gradient(relief)
        light = slope[0] * np.sin(self.sun) + slope[1] * np.cos(self.sun)
        self.rgb[:] = self.colour((0.92, 0.94, 0.97), (0.88, 0.91, 0.95), spread=0.02)
        self.paint(smooth(light, 0.0, 0.02), (0.66, 0.74, 0.86), 0.8)
        self.shade(0.04 * (self.noise(20, 2) - 0.5))
        if self.chance(0.6):
            rock = smooth(relief + 0.5 * (self.noise(14, 3) - 0.5), 0.78, 0.84)
            self.paint(rock, self.colour((0.36, 0.34, 0.34), (0.45, 0.41, 0.38)), 0.9)
        if self.chance(0.3):
            self.grove(5, 30, 1.2, 2.4, (0.17, 0.26, 0.20))
