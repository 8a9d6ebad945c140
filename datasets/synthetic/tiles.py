"""The tiles of LandCover by class, split and number. Each depends on these alone, in any order and
process.

Weather, season, light and sensor change a finished tile, (SIZE, SIZE, 3) floats from 0 to 1.
"""
from __future__ import annotations

import zlib

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageFilter

from .canvas import SIZE, Colour, fractal_noise, smooth
from .land import Land

GENERATOR_VERSION = 1  # part of every fingerprint; raise it when any tile changes
CLEAR_SHARE = 0.4  # of the tiles of LandCover; the others are under one of the other conditions
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
    "contrast": (0.7, 0.55, 0.42, 0.32, 0.22),  # what is left of it
}
LUMA = np.array([0.30, 0.59, 0.11], dtype=np.float32)
Array = np.ndarray


def tile_rng(*key: str | int) -> Generator:
    """A generator that depends on the key alone; words are hashed with CRC, which is the same on
    every machine."""
    numbers = []
    for part in key:
        if isinstance(part, str):
            part = zlib.crc32(part.encode())
        numbers.append(part)
    return np.random.default_rng(numbers)


def draw(classname: str, rng: Generator) -> Array:
    """A clear tile of the class, floats from 0 to 1."""
    land = Land(rng)
    getattr(land, classname.replace(" ", "_"))()
    # The board has twice the size of a tile.
    pixels = land.rgb.reshape(SIZE, 2, SIZE, 2, 3).mean(axis=(1, 3))
    return np.clip(pixels, 0, 1)


def towards(image: Array, colour: Colour, weight: Array | float) -> Array:
    return image + weight * (np.asarray(colour, dtype=np.float32) - image)


def to_bytes(image: Array) -> Array:
    return (np.clip(image, 0, 1) * 255).round().astype(np.uint8)


def under(condition: str, image: Array, rng: Generator, strength: float) -> Array:
    """The image under a condition; a strength is about 0.3 for slight and 1 for strong."""
    red = image[..., 0:1]
    green = image[..., 1:2]
    blue = image[..., 2:3]
    light = (image @ LUMA)[..., None]
    result = image  # clear
    match condition:
        case "hazy":
            veil = 0.7 * strength * (0.75 + 0.4 * (fractal_noise(rng, SIZE, 2, 2)[..., None] - 0.5))
            result = towards(image, (0.80, 0.82, 0.84), veil)
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
            result = towards(image, false_colour, min(1.0, 0.4 + 0.6 * strength))
        case "cloudy":
            noise = fractal_noise(rng, SIZE, 3, 4)
            cover = smooth(noise, 0.75 - 0.35 * strength, 0.95 - 0.25 * strength)[..., None]
            shade = np.roll(cover, (6, -5), axis=(0, 1))
            result = towards(image * (1 - 0.35 * shade), (0.95, 0.95, 0.96), 0.95 * cover)
        case "dry":  # green turns to straw
            straw = light * np.array([1.35, 1.10, 0.72]) + 0.05
            greenness = np.clip(6 * (green - np.maximum(red, blue)) + 0.35, 0, 1)
            result = towards(image, straw, greenness * strength)
        case "snowy":
            # Flat, light ground is covered most; dark crowns, walls and water stay half bare.
            rough = 0.5 * (fractal_noise(rng, SIZE, 8, 3)[..., None] - 0.5)
            cover = 0.25 + 0.6 * smooth(light + rough, 0.45 - 0.3 * strength, 0.55)
            result = towards(image, (0.93, 0.95, 0.98), cover * min(1.0, 0.2 + 0.8 * strength))
        case "faded":
            pale = towards(image, light, 0.5 * strength)
            result = towards(pale, (0.78, 0.76, 0.70), 0.55 * strength)
        case "grey":
            result = towards(image, light * np.ones(3), min(1.0, 0.5 + 0.5 * strength))
    return np.clip(result, 0, 1)


def rotated(image: Array, rng: Generator) -> Array:
    """Rotated by any angle and a little enlarged, with mirrored corners."""
    pad = SIZE // 2
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
    wide = Image.fromarray(to_bytes(padded))
    turned = wide.rotate(float(rng.uniform(15, 345)), Image.Resampling.BILINEAR)
    edge = pad + int(rng.integers(0, 11))
    part = turned.crop((edge, edge, 2 * SIZE - edge, 2 * SIZE - edge)).resize((SIZE, SIZE))
    return np.asarray(part, np.float32) / 255


def mixed(image: Array, other: Array, rng: Generator, strength: float) -> Array:
    """A ragged corner of another tile, or all of it half transparent, over this one."""
    if rng.random() >= 0.5:
        return towards(image, other, rng.uniform(0.2, 0.2 + 0.25 * strength))
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    angle = rng.uniform(0, 2 * np.pi)
    side = (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle)
    side = side + 0.2 * (fractal_noise(rng, SIZE, 4) - 0.5)
    cover = smooth(side, 0.30 - 0.22 * strength, 0.34 - 0.22 * strength)
    return towards(image, other, cover[..., None])


def tile(split: str, classname: str, number: int) -> Array:
    """A tile of LandCover: (SIZE, SIZE, 3) uint8, two in five clear, the others under some
    condition."""
    rng = tile_rng("landcover", split, classname, number)
    image = draw(classname, rng)
    if rng.random() >= CLEAR_SHARE:
        image = under(str(rng.choice(CONDITIONS[1:])), image, rng, rng.uniform(0.4, 1.0))
    return to_bytes(image)


def shifted_tile(split: str, classname: str, number: int) -> Array:
    """A tile of LandCoverShift: rotated, mixed with another class, with a colour cast or under
    strong conditions."""
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
            image = under(str(condition), image, rng, rng.uniform(0.4, 0.8))
    return to_bytes(image)


def corrupt(tile: Array, corruption: str, severity: int, rng: Generator) -> Array:
    """A tile (SIZE, SIZE, 3) of bytes under a corruption. With equal generators, severities differ
    only in strength."""
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
    """The mean over a disc with a soft edge; beyond the image its border is repeated."""
    reach = int(np.ceil(radius))
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    offsets = np.arange(-reach, reach + 1)
    disc = np.clip(radius + 0.5 - np.hypot(*np.meshgrid(offsets, offsets)), 0, 1)
    # (SIZE, SIZE, 3, w, w).
    windows = np.lib.stride_tricks.sliding_window_view(padded, disc.shape, axis=(0, 1))
    return np.einsum("hwcij,ij->hwc", windows, disc / disc.sum())
