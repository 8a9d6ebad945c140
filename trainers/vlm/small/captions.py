"""Draws the captions that the small CLIP is trained on: many wordings for land, condition, image.

Every caption names the condition under which a tile is drawn, or says that it is clear, so that the
words before the class name have a meaning. Not in the training, and so zero-shot in a test:
 * the tiles of HELD_OUT_CLASSES: only the words of their names occur, in captions of other classes;
 * the exact names HELD_OUT_NAMES: their tiles have other wordings;
 * the prompt of the tests, "a photo of a {class}." without a condition.
"""
from __future__ import annotations

import numpy as np

HELD_OUT_CLASSES = ("herbaceous vegetation",)
HELD_OUT_NAMES = ("permanent crop land", "rice paddy", "car park", "industrial area")

LAND: dict[str, tuple[str, ...]] = {
    "annual crop land": (
        "annual crop land",
        "annual crop",
        "ploughed field",
        "field of wheat",
        "arable land",
    ),
    "permanent crop land": (
        "permanent crop",
        "permanent crop of bushes",
        "plantation of bushes",
        "land with hedges",
    ),
    "orchard": (
        "orchard",
        "apple orchard",
        "permanent crop of fruit trees",
        "plantation of fruit trees",
    ),
    "vineyard": (
        "vineyard",
        "permanent crop of vines",
        "vineyard with rows of vines",
        "slope with vines",
    ),
    "rice paddy": ("paddy", "flooded paddy field", "field of rice", "terraced paddy with rice"),
    "pasture": ("pasture", "pasture land", "grazed herbaceous meadow", "meadow with cattle"),
    "golf course": ("golf course", "course for golf", "golf course with bunkers"),
    "wetland": ("wetland", "marsh", "wetland with herbaceous plants", "swamp with pools"),
    "residential area": (
        "residential area",
        "residential street",
        "area of houses",
        "suburb with houses",
    ),
    "industrial area": ("industrial zone", "area of factory halls", "industrial estate", "factory"),
    "car park": ("parking lot", "park of cars", "lot with parked cars", "car and car in rows"),
    "airport": ("airport", "runway of an airport", "airport with aeroplanes", "airfield"),
    "river": ("river", "winding river", "river between banks", "stream"),
    "canal": ("canal", "straight canal", "canal with a towpath", "waterway"),
    "lake": ("lake", "lake with its shore", "still lake", "pond"),
    "sea": ("sea", "open sea", "sea with waves", "ocean"),
    "harbour": ("harbour", "harbour with boats", "port", "marina with piers"),
    "beach": ("beach", "sandy beach", "beach with surf", "shore of sand"),
    "highway": ("highway", "highway with traffic", "motorway", "road with cars"),
    "railway": ("railway", "railway with tracks", "railway line", "train tracks"),
    "forest": ("forest", "dense forest", "forest of tall vegetation", "wood"),
    "desert": ("desert", "sandy desert", "desert without vegetation", "dunes"),
    "snow": ("snow", "field of snow", "deep snow", "snow and rock"),
}

# condition -> words before the kind of image, and words after the land
CONDITION_WORDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "clear": (("clear", "sharp", "bright"), ("on a clear day", "in good light")),
    "hazy": (("hazy", "misty"), ("in haze", "in mist")),
    "dusk": (("dark", "dim"), ("at dusk", "in the dark")),
    "noisy": (("noisy", "grainy"), ("with sensor noise", "with grain")),
    "blurry": (("blurry", "unsharp"), ("out of focus", "in a blur")),
    "infrared": (("infrared", "false colour"), ("in false colour", "in infrared")),
    "cloudy": (("cloudy", "clouded"), ("under clouds", "behind clouds")),
    "dry": (("dry", "parched"), ("in a drought", "in a dry summer")),
    "snowy": (("snowy", "wintry"), ("in winter", "under fresh snow")),
    "faded": (("faded", "pale"), ("in pale colours", "in faded colours")),
    "grey": (("grey", "colourless"), ("in grey", "without colour")),
}
IMAGES = ("photo", "aerial photo", "satellite image", "picture", "view", "image")


def with_article(words: str) -> str:
    """Puts `a` or `an` before words."""
    article = "an" if words[0] in "aeiou" else "a"
    return f"{article} {words}"


def draw_caption(rng: np.random.Generator, classname: str, condition: str) -> str:
    """Draws a caption of a class under a condition.

    Args:
        rng: Source of the random numbers.
        classname: Name of the class, a key of LAND.
        condition: Name of the condition, a key of CONDITION_WORDS.
    """
    before, after = CONDITION_WORDS[condition]
    land = str(rng.choice(LAND[classname]))
    image = str(rng.choice(IMAGES))
    if rng.random() < 0.5:
        land = f"the {land}"
    else:
        land = with_article(land)
    if rng.random() < 0.6:
        image = f"{rng.choice(before)} {image}"
        return f"{with_article(image)} of {land}."
    return f"{with_article(image)} of {land} {rng.choice(after)}."


def all_words() -> str:
    """Returns all words of all captions as one text."""
    wordings = ["a an the of", *IMAGES]
    for before, after in CONDITION_WORDS.values():
        wordings += [*before, *after]
    for lands in LAND.values():
        wordings += lands
    wordings.append(".")
    return " ".join(wordings)
