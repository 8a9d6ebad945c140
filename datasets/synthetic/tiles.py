"""The tiles of LandCover by class, split and number. Each depends on these alone, in any order and process."""
from __future__ import annotations

import zlib

import numpy as np
from PIL import Image, ImageDraw

from . import built, fields, nature
from .canvas import SIZE, Board
from .conditions import CONDITIONS, colour_cast, mixed, rotated, to_bytes, under

GENERATOR_VERSION = 1  # part of every fingerprint; raise it when any tile changes
CLEAR_SHARE = 0.4  # of the tiles of LandCover; the others are under one of the other conditions
DRAWERS = {draw.__name__.replace("_", " "): draw for draw in (
    fields.annual_crop_land, fields.permanent_crop_land, fields.orchard, fields.vineyard, fields.rice_paddy,
    fields.pasture, fields.herbaceous_vegetation, fields.golf_course, fields.wetland,
    built.residential_area, built.industrial_area, built.car_park, built.airport,
    nature.river, nature.canal, nature.lake, nature.sea, nature.harbour, nature.beach,
    built.highway, built.railway, nature.forest, nature.desert, nature.snow,
)}
CLASSNAMES = list(DRAWERS)


def tile_rng(*key: str | int) -> np.random.Generator:
    """A generator that depends on the key alone; words are hashed with CRC, which is the same on every machine."""
    return np.random.default_rng([zlib.crc32(k.encode()) if isinstance(k, str) else k for k in key])


def draw(classname: str, rng: np.random.Generator) -> np.ndarray:
    """A clear tile of the class, floats from 0 to 1."""
    board = Board(rng)
    DRAWERS[classname](board)
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


def contact_sheet() -> Image.Image:
    """Eight clear and four shifted tiles per class, then four classes under every condition, for inspection by eye."""
    rows = {name: [to_bytes(draw(name, tile_rng("sheet", name, number))) for number in range(8)]
            + [shifted_tile("sheet", name, number) for number in range(4)] for name in CLASSNAMES}
    plain = [draw(name, tile_rng("sheet", name, 0)) for name in ("vineyard", "residential area", "river", "forest")]
    rows |= {condition: [to_bytes(under(condition, image, tile_rng("sheet", condition), strength))
                         for image in plain for strength in (0.3, 0.65, 1.0)] for condition in CONDITIONS}
    label, step = 130, SIZE + 4  # pixels of a row's name and of a tile with its margin
    sheet = Image.new("RGB", (label + 12 * step, len(rows) * step), "white")
    pen = ImageDraw.Draw(sheet)
    for row, (name, tiles) in enumerate(rows.items()):
        pen.text((4, row * step + SIZE // 2), name, fill="black")
        for column, image in enumerate(tiles):
            sheet.paste(Image.fromarray(image), (label + column * step, row * step))
    return sheet
