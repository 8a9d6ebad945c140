"""The tiles the small CLIP is trained on: many of every class under every condition, drawn once and kept in a file."""
from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from ....datasets.synthetic.canvas import SIZE
from ....datasets.synthetic.tiles import CLASSNAMES, GENERATOR_VERSION, draw, tile, tile_rng, to_bytes, under
from ....datasets.utils.files import write_atomically
from ....datasets.views.pixels import OPENAI_MEAN, OPENAI_STD
from .captions import CONDITION_WORDS, LAND

logger = logging.getLogger(__name__)

CLASSES, CONDITIONS = tuple(LAND), tuple(CONDITION_WORDS)
CLEAR_SHARE = 0.25  # of the training tiles; the rest is spread evenly over the other conditions
MEAN, STD = torch.tensor(OPENAI_MEAN), torch.tensor(OPENAI_STD)


@dataclass(frozen=True)
class TrainingTiles:
    """Pictures (N, SIZE, SIZE, 3) uint8 with the numbers of their classes and conditions, (N,) each."""

    pictures: np.ndarray
    classes: np.ndarray
    conditions: np.ndarray


def labels(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes in turn, conditions by lot."""
    rng = tile_rng("small clip labels", seed)
    share = [CLEAR_SHARE] + [(1 - CLEAR_SHARE) / (len(CONDITIONS) - 1)] * (len(CONDITIONS) - 1)
    return np.arange(count) % len(CLASSES), rng.choice(len(CONDITIONS), count, p=share)


def draw_one(job: tuple[int, int, int, int]) -> np.ndarray:
    seed, number, kind, condition = job
    rng = tile_rng("small clip", seed, number)
    picture = draw(CLASSES[kind], rng)
    return to_bytes(under(CONDITIONS[condition], picture, rng, rng.uniform(0.3, 1.0)))


def training_tiles(count: int, seed: int, cache: Path, workers: int) -> TrainingTiles:
    """`count` tiles, drawn by `workers` processes or read from `cache` if they were drawn before."""
    classes, conditions = labels(count, seed)
    jobs = [(seed, number, int(classes[number]), int(conditions[number])) for number in range(count)]
    path = cache / f"tiles-v{GENERATOR_VERSION}-seed{seed}-{count}.npy"
    return TrainingTiles(drawn_once(draw_one, jobs, path, workers), classes, conditions)


def validation_tiles(per_class: int, cache: Path, workers: int) -> tuple[Tensor, Tensor]:
    """Tiles of LandCover's validation split, as many of each class as wanted, and their labels."""
    jobs = [(label, number) for label in range(len(CLASSNAMES)) for number in range(per_class)]
    path = cache / f"validation-v{GENERATOR_VERSION}-{per_class}.npy"
    pictures = drawn_once(draw_validation, jobs, path, workers)
    return torch.from_numpy(pictures), torch.tensor([label for label, _ in jobs])


def draw_validation(job: tuple[int, int]) -> np.ndarray:
    label, number = job
    return tile("val", CLASSNAMES[label], number)


def drawn_once(function: Callable[[tuple], np.ndarray], jobs: list[tuple], path: Path, workers: int) -> np.ndarray:
    """What `function` draws for each job, by `workers` processes, or what an earlier call left at `path`."""
    if path.is_file():
        logger.info("reading tiles from %s", path)
        return np.load(path)
    with get_context("spawn").Pool(workers) as pool:
        drawn = pool.imap(function, jobs, chunksize=64)
        pictures = np.stack(list(tqdm(drawn, total=len(jobs), desc="drawing", unit="tile")))
    write_atomically(path, lambda file: np.save(file, pictures))
    return pictures


def normalised(pictures: Tensor) -> Tensor:
    """uint8 (B, H, W, 3) as CLIP takes it, (B, 3, H, W)."""
    return ((pictures.float() / 255 - MEAN) / STD).permute(0, 3, 1, 2)


def random_crops(pictures: Tensor, generator: torch.Generator, whole: float) -> Tensor:
    """Crops and flips like the views of test-time tuning: 8–100 % of the area, sides 3:4 to 4:3, bilinear.

    A share `whole` of the pictures is not cropped; all are mirrored at random, top and bottom too, as seen from above.
    """
    count = len(pictures)
    area = torch.empty(count).uniform_(0.08, 1, generator=generator)
    ratio = torch.empty(count).uniform_(-1, 1, generator=generator).mul(np.log(4 / 3)).exp()
    sides = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 1).clamp(max=1)  # (B, 2), x and y
    sides[torch.rand(count, generator=generator) < whole] = 1
    centres = (2 * torch.rand(count, 2, generator=generator) - 1) * (1 - sides)
    mirror = torch.randint(0, 2, (count, 2), generator=generator) * 2 - 1
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = (sides * mirror).unbind(1)
    matrix[:, :, 2] = centres
    grid = F.affine_grid(matrix, [count, 3, SIZE, SIZE], align_corners=False)
    return F.grid_sample(normalised(pictures), grid, padding_mode="border", align_corners=False)
