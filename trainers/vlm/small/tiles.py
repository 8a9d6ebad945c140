"""The images that the small CLIP is trained on: tiles of every class under every condition, drawn by code."""
from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from ....datasets.synthetic.canvas import SIZE
from ....datasets.synthetic.tiles import CLASSNAMES, draw, tile, tile_rng, to_bytes, under
from ....datasets.views.pixels import OPENAI_MEAN, OPENAI_STD
from .captions import CONDITION_WORDS, LAND

CLASSES, CONDITIONS = tuple(LAND), tuple(CONDITION_WORDS)
CLEAR_SHARE = 0.25  # of the training tiles; the rest is spread evenly over the other conditions


def training_tiles(count: int, seed: int) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Images (N, SIZE, SIZE, 3) uint8 with the indices of their classes and conditions, (N,) each: classes in turn,
    conditions at random."""
    share = [CLEAR_SHARE] + [(1 - CLEAR_SHARE) / (len(CONDITIONS) - 1)] * (len(CONDITIONS) - 1)
    conditions = tile_rng("small clip labels", seed).choice(len(CONDITIONS), count, p=share)
    classes = np.arange(count) % len(CLASSES)
    images = []
    for number in tqdm(range(count), desc="drawing", unit="tile"):
        rng = tile_rng("small clip", seed, number)
        image = draw(CLASSES[classes[number]], rng)
        images.append(to_bytes(under(CONDITIONS[conditions[number]], image, rng, rng.uniform(0.3, 1.0))))
    return torch.from_numpy(np.stack(images)), classes, conditions


def validation_tiles(per_class: int) -> tuple[Tensor, Tensor]:
    """Tiles of LandCover's validation split, so many of each class, and their labels."""
    images = np.stack([tile("val", name, number) for name in CLASSNAMES for number in range(per_class)])
    return torch.from_numpy(images), torch.arange(len(CLASSNAMES)).repeat_interleave(per_class)


def normalised(images: Tensor) -> Tensor:
    """uint8 (B, H, W, 3) as CLIP takes it, (B, 3, H, W)."""
    return ((images.float() / 255 - torch.tensor(OPENAI_MEAN)) / torch.tensor(OPENAI_STD)).permute(0, 3, 1, 2)


def random_crops(images: Tensor, generator: torch.Generator, uncropped: float) -> Tensor:
    """Crops and flips like the views of test-time tuning: 8–100 % of the area, sides 3:4 to 4:3, bilinear.

    A share `uncropped` of the images is not cropped; all are mirrored at random, vertically too, as seen from above.
    """
    count = len(images)
    area = torch.empty(count).uniform_(0.08, 1, generator=generator)
    ratio = torch.empty(count).uniform_(-1, 1, generator=generator).mul(np.log(4 / 3)).exp()
    sides = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 1).clamp(max=1)  # (B, 2), x and y
    sides[torch.rand(count, generator=generator) < uncropped] = 1
    centres = (2 * torch.rand(count, 2, generator=generator) - 1) * (1 - sides)
    mirror = torch.randint(0, 2, (count, 2), generator=generator) * 2 - 1
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = (sides * mirror).unbind(1)
    matrix[:, :, 2] = centres
    grid = F.affine_grid(matrix, [count, 3, SIZE, SIZE], align_corners=False)
    return F.grid_sample(normalised(images), grid, padding_mode="border", align_corners=False)
