"""The tiles of LandCover by class, split and number. Each depends on these alone, in any order and process."""
from __future__ import annotations

import zlib

import numpy as np

from . import land
from .canvas import Board
from .conditions import CONDITIONS, colour_cast, mixed, rotated, to_bytes, under

GENERATOR_VERSION = 1  # part of every fingerprint; raise it when any tile changes
CLEAR_SHARE = 0.4  # of the tiles of LandCover; the others are under one of the other conditions
CLASSNAMES = [
    "annual crop land", "permanent crop land", "orchard", "vineyard", "rice paddy", "pasture", "herbaceous vegetation",
    "golf course", "wetland", "residential area", "industrial area", "car park", "airport", "river", "canal", "lake",
    "sea", "harbour", "beach", "highway", "railway", "forest", "desert", "snow",
]


def tile_rng(*key: str | int) -> np.random.Generator:
    """A generator that depends on the key alone; words are hashed with CRC, which is the same on every machine."""
    return np.random.default_rng([zlib.crc32(k.encode()) if isinstance(k, str) else k for k in key])


def draw(classname: str, rng: np.random.Generator) -> np.ndarray:
    """A clear tile of the class, floats from 0 to 1."""
    board = Board(rng)
    getattr(land, classname.replace(" ", "_"))(board)
    return board.finish()


def tile(split: str, classname: str, number: int) -> np.ndarray:
    """A tile of LandCover: (SIZE, SIZE, 3) uint8, two in five clear, the others under some condition."""
    rng = tile_rng("landcover", split, classname, number)
    image = draw(classname, rng)
    if rng.random() >= CLEAR_SHARE:
        image = under(str(rng.choice(CONDITIONS[1:])), image, rng, rng.uniform(0.4, 1.0))
    return to_bytes(image)


def shifted_tile(split: str, classname: str, number: int) -> np.ndarray:
    """A tile of LandCoverShift: rotated, mixed with another class, with a colour cast or under strong conditions."""
    rng = tile_rng("landcover_shift", split, classname, number)
    image = draw(classname, rng)
    if rng.random() < 0.5:
        image = rotated(image, rng)
    if rng.random() < 0.3:
        other = str(rng.choice([name for name in CLASSNAMES if name != classname]))
        image = mixed(image, draw(other, rng), rng, rng.uniform(0.3, 0.8))
    if rng.random() < 0.5:
        image = colour_cast(image, rng, rng.uniform(0.3, 0.7))
    for condition in rng.choice(["hazy", "noisy", "blurry"], 2, replace=False):
        if rng.random() < 0.4:
            image = under(str(condition), image, rng, rng.uniform(0.4, 0.8))
    return to_bytes(image)
