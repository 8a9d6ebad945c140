"""Which class is drawn how, and the seeds that make each tile what it is, in any order and any process."""
from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from . import built, fields, nature
from .canvas import Board
from .conditions import CONDITIONS, colour_cast, mixed, rotated

GENERATOR_VERSION = 1  # part of every fingerprint; raise it when any tile would come out differently

DRAWERS: dict[str, Callable[[Board], None]] = {
    "annual crop land": fields.annual_crop,
    "permanent crop land": fields.permanent_crop,
    "orchard": fields.orchard,
    "vineyard": fields.vineyard,
    "rice paddy": fields.rice_paddy,
    "pasture": fields.pasture,
    "herbaceous vegetation": fields.herbaceous,
    "golf course": fields.golf_course,
    "wetland": fields.wetland,
    "residential area": built.residential,
    "industrial area": built.industrial,
    "car park": built.car_park,
    "airport": built.airport,
    "river": nature.river,
    "canal": nature.canal,
    "lake": nature.lake,
    "sea": nature.sea,
    "harbour": nature.harbour,
    "beach": nature.beach,
    "highway": built.highway,
    "railway": built.railway,
    "forest": nature.forest,
    "desert": nature.desert,
    "snow": nature.snow,
}
CLASSNAMES = list(DRAWERS)
CLEAR_SHARE = 0.4  # of the tiles of LandCover; the others lie under one of the other conditions


def tile_rng(*key: str | int) -> np.random.Generator:
    """A generator that depends on the key alone; words enter by their CRC, so that it is the same everywhere."""
    return np.random.default_rng([zlib.crc32(k.encode()) if isinstance(k, str) else k for k in key])


def draw(classname: str, rng: np.random.Generator) -> np.ndarray:
    """A plain tile of the class, floats from 0 to 1."""
    board = Board(rng)
    DRAWERS[classname](board)
    return board.finish()


def under(condition: str, picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """The picture under a condition, floats from 0 to 1."""
    return np.clip(CONDITIONS[condition](picture, rng, strength), 0, 1)


def to_bytes(picture: np.ndarray) -> np.ndarray:
    return (np.clip(picture, 0, 1) * 255).round().astype(np.uint8)


def tile(split: str, classname: str, number: int) -> np.ndarray:
    """Tile `number` of a class: (SIZE, SIZE, 3) uint8, two in five clear, the others under some condition."""
    rng = tile_rng("landcover", split, classname, number)
    picture = draw(classname, rng)
    if rng.random() >= CLEAR_SHARE:
        picture = under(str(rng.choice(list(CONDITIONS)[1:])), picture, rng, rng.uniform(0.4, 1.0))
    return to_bytes(picture)


def shifted_tile(split: str, classname: str, number: int) -> np.ndarray:
    """A tile of the shift set: turned, mixed with another class, cast in colour or under a strong condition."""
    rng = tile_rng("landcover_shift", split, classname, number)
    picture = draw(classname, rng)
    if rng.random() < 0.5:
        picture = rotated(picture, rng, 1.0)
    if rng.random() < 0.3:
        other = str(rng.choice([name for name in CLASSNAMES if name != classname]))
        picture = mixed(picture, draw(other, rng), rng, rng.uniform(0.3, 0.8))
    if rng.random() < 0.5:
        picture = colour_cast(picture, rng, rng.uniform(0.3, 0.7))
    for condition in rng.choice(["hazy", "noisy", "blurry"], 2, replace=False):
        if rng.random() < 0.4:
            picture = under(str(condition), picture, rng, rng.uniform(0.4, 0.8))
    return to_bytes(picture)
