"""A labelled sheet of tiles, for a person to judge whether they look like what they are called."""
from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from .canvas import SIZE
from .conditions import CONDITIONS
from .tiles import CLASSNAMES, draw, shifted_tile, tile_rng, to_bytes, under

LABEL = 130  # pixels left of a row for its name
GAP = 4
HEADING = 22  # pixels of a row that holds only words
SHOWN_UNDER_CONDITIONS = ("vineyard", "residential area", "river", "forest")


def contact_sheet() -> Image.Image:
    """Clear tiles of every class, then tiles of the shift set; below, four classes under every condition."""
    rows = [("", "eight clear tiles, and four of the shift set", [])]
    rows += [(name, "", class_row(name)) for name in CLASSNAMES]
    rows += [("", "conditions: slight, medium, strong", [])]
    plain = [draw(name, tile_rng("sheet", name, 0)) for name in SHOWN_UNDER_CONDITIONS]
    rows += [(condition, "", condition_row(condition, plain)) for condition in CONDITIONS]
    heights = [SIZE + GAP if tiles else HEADING for _, _, tiles in rows]
    columns = max(len(tiles) for _, _, tiles in rows)
    sheet = Image.new("RGB", (LABEL + columns * (SIZE + GAP), sum(heights) + GAP), "white")
    pen = ImageDraw.Draw(sheet)
    top = GAP
    for (label, heading, tiles), height in zip(rows, heights, strict=True):
        pen.text((GAP, top + SIZE // 2 - 6), label, fill="black")
        pen.text((LABEL, top + 4), heading, fill="black")
        for column, picture in enumerate(tiles):
            sheet.paste(Image.fromarray(picture), (LABEL + column * (SIZE + GAP), top))
        top += height
    return sheet


def class_row(name: str) -> list[np.ndarray]:
    """Eight clear tiles of a class and four of the shift set."""
    clear = [to_bytes(draw(name, tile_rng("sheet", name, number))) for number in range(8)]
    return clear + [shifted_tile("sheet", name, number) for number in range(4)]


def condition_row(condition: str, plain: list[np.ndarray]) -> list[np.ndarray]:
    """Each of the plain tiles under a slight, a medium and a strong form of the condition."""
    return [
        to_bytes(under(condition, picture, tile_rng("sheet", condition), strength))
        for picture in plain for strength in (0.3, 0.65, 1.0)
    ]
