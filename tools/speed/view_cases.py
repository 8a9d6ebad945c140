"""The making of views, beside the public pipeline: one core, from decoded pictures to normalised numbers."""
from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image
from torch import Tensor

from ...datasets.utils.errors import ConfigError
from ...datasets.views.images import is_image_name, open_image
from ...datasets.views.maker import ViewMaker
from ...datasets.views.pixels import OPENAI_MEAN, OPENAI_STD, Pixels
from ...datasets.views.reference import chains
from ...trainers.vlm.image_tower import normalise_pixels
from .image_cases import make_pictures
from .profiling import interleaved
from .records import BaselineComparison
from .text_cases import VIEWS

logger = logging.getLogger(__name__)

WITH_AUGMIX, PLAIN_VIEWS = "crops, flips and AugMix", "crops and flips"
CHUNK = 8  # views that are normalised together, as the image tower takes them on a CPU
PHOTOS = 4  # that are looked at


def view_speed(size: int, rounds: int, photos: str) -> list[BaselineComparison]:
    """Views a second, without and with AugMix."""
    logger.info("views")
    found = []
    with TemporaryDirectory() as folder:
        pictures = [open_image(path) for path in pictures_of(photos, Path(folder))]
        for mix in (False, True):
            maker = ViewMaker(VIEWS, size, augmix=mix, seed=0)
            seconds = interleaved({
                "ours": lambda maker=maker: [our_views(maker, picture) for picture in pictures],
                "public": lambda mix=mix: [public_views(picture, size, mix) for picture in pictures],
            }, rounds)
            made = VIEWS * len(pictures)
            found.append(BaselineComparison(
                "views", WITH_AUGMIX if mix else PLAIN_VIEWS, "", 0, "views/s",
                made / seconds["ours"], made / seconds["public"],
            ))
    return found


def pictures_of(photos: str, folder: Path) -> Sequence[Path]:
    """Some of the user's photographs, or pictures that are as large and as detailed."""
    if not photos:
        return [Path(item.impath) for item in make_pictures(folder / "images", 2).test]
    files = sorted(path for path in Path(photos).expanduser().rglob("*") if is_image_name(path.name))
    if not files:
        raise ConfigError(f"{photos} has no pictures: give a folder with photographs, or leave --photos out")
    return [files[i * len(files) // PHOTOS] for i in range(min(PHOTOS, len(files)))]


def our_views(maker: ViewMaker, picture: Image.Image) -> None:
    for views in maker(picture, 0).split(CHUNK):
        normalise_pixels(views, Pixels(maker.size))


def public_views(picture: Image.Image, size: int, mix: bool) -> Tensor:
    """As the public code of TPT and its kin makes them: view by view, each chain's result normalised before mixing."""
    finish = T.Compose([T.ToTensor(), T.Normalize(OPENAI_MEAN, OPENAI_STD)])
    plain = T.Compose([T.Resize(size, T.InterpolationMode.BICUBIC), T.CenterCrop(size), finish])
    crop = T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip()])
    rng = np.random.default_rng(0)
    views = [plain(picture)]
    for _ in range(VIEWS - 1):
        parts = chains(crop(picture), rng) if mix else [(1.0, crop(picture))]
        views.append(sum(weight * finish(part) for weight, part in parts))
    return torch.stack(views)
