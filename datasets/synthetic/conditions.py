"""What weather, season, light and sensor do to a finished tile, and the harsher changes of the shift set.

Each function takes a picture (SIZE, SIZE, 3) of floats from 0 to 1, a random generator and a strength (about 0.3 for
slight, 1 for strong), and returns a new picture; the caller clips it.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageFilter

from .canvas import SIZE, fractal_noise, smooth

Array = np.ndarray
Change = Callable[[Array, np.random.Generator, float], Array]
LUMA = np.array([0.30, 0.59, 0.11], dtype=np.float32)


def _towards(picture: Array, colour: Array | tuple[float, ...], weight: Array | float) -> Array:
    return picture + weight * (np.asarray(colour, dtype=np.float32) - picture)


def _luma(picture: Array) -> Array:
    return (picture @ LUMA)[..., None]


def _as_image(picture: Array) -> Image.Image:
    return Image.fromarray((np.clip(picture, 0, 1) * 255).round().astype(np.uint8))


def _as_picture(image: Image.Image) -> Array:
    return np.asarray(image, dtype=np.float32) / 255


def clear(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    return picture


def hazy(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    veil = 0.7 * strength * (0.75 + 0.4 * (fractal_noise(rng, SIZE, 2, 2)[..., None] - 0.5))
    return _towards(picture, (0.80, 0.82, 0.84), veil)


def dusk(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    dim = 1 - 0.75 * strength
    return picture * dim * np.array([1.08, 0.92, 1.0]) + 0.05 * strength * np.array([0.5, 0.3, 0.7])


def noisy(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    grain = rng.normal(0, 0.22 * strength, picture.shape)
    return picture + 0.6 * grain + 0.4 * grain.mean(-1, keepdims=True) * 1.7


def blurry(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    return _as_picture(_as_image(picture).filter(ImageFilter.GaussianBlur(0.5 + 1.5 * strength)))


def infrared(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    """False colour: plants reflect infrared, which is shown as red; red as green, green as blue."""
    red, green, blue = picture[..., 0], picture[..., 1], picture[..., 2]
    near = np.clip(0.9 * green + 3.0 * (green - 0.5 * red - 0.5 * blue), 0, 1)
    return _towards(picture, np.stack([near, red * 0.85, green * 0.85], -1), min(1.0, 0.4 + 0.6 * strength))


def cloudy(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    cover = smooth(fractal_noise(rng, SIZE, 3, 4), 0.75 - 0.35 * strength, 0.95 - 0.25 * strength)[..., None]
    shade = np.roll(cover, (6, -5), axis=(0, 1))
    return _towards(picture * (1 - 0.35 * shade), (0.95, 0.95, 0.96), 0.95 * cover)


def dry(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    """Drought: whatever is green turns to straw and dust."""
    green = np.clip(6 * (picture[..., 1:2] - np.maximum(picture[..., :1], picture[..., 2:])) + 0.35, 0, 1)
    straw = _luma(picture) * np.array([1.35, 1.10, 0.72]) + 0.05
    return _towards(picture, straw, green * strength)


def snowy(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    """Snow lies thickest on flat, light ground and leaves dark crowns, walls and water half bare."""
    lies = smooth(_luma(picture)[..., 0] + 0.5 * (fractal_noise(rng, SIZE, 8, 3) - 0.5), 0.45 - 0.3 * strength, 0.55)
    return _towards(picture, (0.93, 0.95, 0.98), (0.25 + 0.6 * lies[..., None]) * min(1.0, 0.2 + 0.8 * strength))


def faded(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    return _towards(_towards(picture, _luma(picture), 0.5 * strength), (0.78, 0.76, 0.70), 0.55 * strength)


def grey(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    return _towards(picture, _luma(picture) * np.ones(3), min(1.0, 0.5 + 0.5 * strength))


def colour_cast(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    """A badly balanced sensor: each channel with its own gain and offset."""
    return picture * rng.uniform(1 - 0.55 * strength, 1 + 0.4 * strength, 3) + rng.uniform(-0.12, 0.12, 3) * strength


def rotated(picture: Array, rng: np.random.Generator, strength: float) -> Array:
    """Turned by any angle and a little enlarged, the corners mirrored in."""
    pad = SIZE // 2
    wide = _as_image(np.pad(picture, ((pad, pad), (pad, pad), (0, 0)), mode="reflect"))
    turned = wide.rotate(float(rng.uniform(15, 345)), Image.Resampling.BILINEAR)
    edge = pad + int(rng.integers(0, 1 + round(10 * strength)))
    return _as_picture(turned.crop((edge, edge, 2 * SIZE - edge, 2 * SIZE - edge)).resize((SIZE, SIZE)))


def mixed(picture: Array, other: Array, rng: np.random.Generator, strength: float) -> Array:
    """Part of another tile laid over this one: a ragged corner of it, or the whole of it half transparent."""
    if rng.random() < 0.5:
        y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
        angle = rng.uniform(0, 2 * np.pi)
        side = (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle) + 0.2 * (fractal_noise(rng, SIZE, 4) - 0.5)
        return _towards(picture, other, smooth(side, 0.30 - 0.22 * strength, 0.34 - 0.22 * strength)[..., None])
    return _towards(picture, other, rng.uniform(0.2, 0.2 + 0.25 * strength))


CONDITIONS: dict[str, Change] = {
    change.__name__: change
    for change in (clear, hazy, dusk, noisy, blurry, infrared, cloudy, dry, snowy, faded, grey)
}
