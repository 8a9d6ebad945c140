"""Weather, season, light and sensor effects on a finished tile, and the stronger changes of the shift set.

Images are (SIZE, SIZE, 3) floats from 0 to 1; a strength is about 0.3 for slight and 1 for strong.
"""
from __future__ import annotations

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageFilter

from .canvas import SIZE, Colour, fractal_noise, smooth

Array = np.ndarray
CONDITIONS = ("clear", "hazy", "dusk", "noisy", "blurry", "infrared", "cloudy", "dry", "snowy", "faded", "grey")
LUMA = np.array([0.30, 0.59, 0.11], dtype=np.float32)


def towards(image: Array, colour: Colour, weight: Array | float) -> Array:
    return image + weight * (np.asarray(colour, dtype=np.float32) - image)


def to_bytes(image: Array) -> Array:
    return (np.clip(image, 0, 1) * 255).round().astype(np.uint8)


def from_pillow(image: Image.Image) -> Array:
    return np.asarray(image, dtype=np.float32) / 255


def under(condition: str, image: Array, rng: Generator, strength: float) -> Array:
    """The image under one of the conditions."""
    return np.clip(changed(condition, image, rng, strength), 0, 1)


def changed(condition: str, image: Array, rng: Generator, strength: float) -> Array:
    red, green, blue, light = (*(image[..., i : i + 1] for i in range(3)), (image @ LUMA)[..., None])
    match condition:
        case "clear":
            return image
        case "hazy":
            veil = 0.7 * strength * (0.75 + 0.4 * (fractal_noise(rng, SIZE, 2, 2)[..., None] - 0.5))
            return towards(image, (0.80, 0.82, 0.84), veil)
        case "dusk":
            tint, glow = np.array([1.08, 0.92, 1.0]), np.array([0.5, 0.3, 0.7])
            return image * (1 - 0.75 * strength) * tint + 0.05 * strength * glow
        case "noisy":
            grain = rng.normal(0, 0.22 * strength, image.shape)
            return image + 0.6 * grain + 0.4 * grain.mean(-1, keepdims=True) * 1.7
        case "blurry":
            blur = ImageFilter.GaussianBlur(0.5 + 1.5 * strength)
            return from_pillow(Image.fromarray(to_bytes(image)).filter(blur))
        case "infrared":  # false colour: infrared, which plants reflect, shown as red; red as green, green as blue
            near = np.clip(0.9 * green + 3.0 * (green - 0.5 * red - 0.5 * blue), 0, 1)
            shown = np.concatenate([near, red * 0.85, green * 0.85], -1)
            return towards(image, shown, min(1.0, 0.4 + 0.6 * strength))
        case "cloudy":
            cover = smooth(fractal_noise(rng, SIZE, 3, 4), 0.75 - 0.35 * strength, 0.95 - 0.25 * strength)[..., None]
            shade = np.roll(cover, (6, -5), axis=(0, 1))
            return towards(image * (1 - 0.35 * shade), (0.95, 0.95, 0.96), 0.95 * cover)
        case "dry":  # green turns to straw
            straw = light * np.array([1.35, 1.10, 0.72]) + 0.05
            return towards(image, straw, np.clip(6 * (green - np.maximum(red, blue)) + 0.35, 0, 1) * strength)
        case "snowy":  # flat, light ground is covered most; dark crowns, walls and water stay half bare
            rough = 0.5 * (fractal_noise(rng, SIZE, 8, 3)[..., None] - 0.5)
            cover = 0.25 + 0.6 * smooth(light + rough, 0.45 - 0.3 * strength, 0.55)
            return towards(image, (0.93, 0.95, 0.98), cover * min(1.0, 0.2 + 0.8 * strength))
        case "faded":
            return towards(towards(image, light, 0.5 * strength), (0.78, 0.76, 0.70), 0.55 * strength)
        case "grey":
            return towards(image, light * np.ones(3), min(1.0, 0.5 + 0.5 * strength))
    raise ValueError(f"unknown condition '{condition}'")


def colour_cast(image: Array, rng: Generator, strength: float) -> Array:
    """A badly balanced sensor: each channel has its own gain and offset."""
    return image * rng.uniform(1 - 0.55 * strength, 1 + 0.4 * strength, 3) + rng.uniform(-0.12, 0.12, 3) * strength


def rotated(image: Array, rng: Generator) -> Array:
    """Rotated by any angle and a little enlarged, with mirrored corners."""
    pad = SIZE // 2
    wide = Image.fromarray(to_bytes(np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")))
    turned = wide.rotate(float(rng.uniform(15, 345)), Image.Resampling.BILINEAR)
    edge = pad + int(rng.integers(0, 11))
    return from_pillow(turned.crop((edge, edge, 2 * SIZE - edge, 2 * SIZE - edge)).resize((SIZE, SIZE)))


def mixed(image: Array, other: Array, rng: Generator, strength: float) -> Array:
    """A ragged corner of another tile, or all of it half transparent, over this one."""
    if rng.random() >= 0.5:
        return towards(image, other, rng.uniform(0.2, 0.2 + 0.25 * strength))
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    angle = rng.uniform(0, 2 * np.pi)
    side = (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle) + 0.2 * (fractal_noise(rng, SIZE, 4) - 0.5)
    return towards(image, other, smooth(side, 0.30 - 0.22 * strength, 0.34 - 0.22 * strength)[..., None])
