"""The views: the exact pipeline, the same with any workers and in any order."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms as T
import torchvision.transforms.functional as F
from PIL import Image
from promptcal.datasets import build_dataset
from promptcal.datasets.utils.errors import UserError, explaining_faults
from promptcal.datasets.views.augmix import OPERATIONS, augmix
from promptcal.datasets.views.crops import ViewMaker, draw_crops, plain_view
from promptcal.datasets.views.loader import noticing_lost_workers, view_loader
from promptcal.datasets.views.pixels import Pixels
from promptcal.trainers.vlm.image_tower import normalise_pixels
from promptcal.trainers.vlm.openai_clip import clip


def picture(size: tuple[int, int] = (90, 60), seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (12, 18, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)


def test_the_plain_view_is_clips_own():
    for size in ((90, 60), (60, 90), (32, 32), (20, 40)):
        image = picture(size)
        expected = clip.clip._transform(32)(image)
        views = ViewMaker(count=1, size=32, augmix=False, seed=0)(image, 0)
        torch.testing.assert_close(normalise_pixels(views, Pixels(32))[0], expected)


def test_crops_are_torchvisions_bilinear_ones():
    image, maker = picture(), ViewMaker(count=9, size=32, augmix=False, seed=4)
    views = maker(image, 7)
    assert views.shape == (9, 3, 32, 32) and views.dtype == torch.uint8
    boxes, flips = draw_crops(image.size, 8, np.random.default_rng([4, 7]))
    for view, (left, top, width, height), flip in zip(views[1:], boxes, flips, strict=True):
        expected = F.resized_crop(image, top, left, height, width, [32, 32], T.InterpolationMode.BILINEAR)
        expected = F.hflip(expected) if flip else expected
        assert torch.equal(view, F.pil_to_tensor(expected))


@pytest.mark.parametrize("size", [(640, 480), (300, 1000)])
def test_crops_are_distributed_as_torchvisions(size: tuple[int, int]):
    boxes, flips = draw_crops(size, 4000, np.random.default_rng(0))
    left, top, width, height = boxes.T
    assert (left >= 0).all() and (top >= 0).all()
    assert (left + width <= size[0]).all() and (top + height <= size[1]).all()
    torch.manual_seed(0)
    blank = Image.new("RGB", size)
    theirs = np.array([T.RandomResizedCrop.get_params(blank, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)])
    for ours, column in ((top, 0), (left, 1), (height, 2), (width, 3)):
        for share in (0.1, 0.5, 0.9):
            tolerance = 0.04 * max(size)
            assert abs(np.quantile(ours, share) - np.quantile(theirs[:, column], share)) < tolerance
    assert 0.45 < flips.mean() < 0.55


def test_pictures_too_long_for_a_crop_give_the_central_one():
    for size in ((2000, 2), (2, 2000), (1, 1)):
        boxes, _ = draw_crops(size, 5, np.random.default_rng(0))
        assert (boxes[:, 2:] >= 1).all() and (boxes[:, :2] + boxes[:, 2:] <= size).all()
        assert ViewMaker(count=3, size=16, augmix=True, seed=0)(picture(size), 0).shape == (3, 3, 16, 16)


@pytest.mark.parametrize("size", [(1, 1), (20000, 20)])
def test_pictures_of_odd_sizes_have_all_views(size: tuple[int, int]):
    views = ViewMaker(8, 32, True, 0)(picture(size), 0)
    assert views.shape == (8, 3, 32, 32) and views.dtype == torch.uint8


def test_augmix_mixes_with_weights_that_sum_to_one():
    flat = Image.new("RGB", (32, 32), (90, 90, 90))
    assert OPERATIONS[2](flat, 0.1, 1).getpixel((0, 0)) == (80, 80, 80)  # posterize to four bits
    image = picture((32, 32))
    mixed = [augmix(image, np.random.default_rng(seed)) for seed in range(20)]
    assert all(m.dtype == np.uint8 and m.shape == (32, 32, 3) for m in mixed)
    distance = [np.abs(m.astype(int) - np.asarray(image)).mean() for m in mixed]
    assert 0 < np.mean(distance) < 40


def test_nine_operations_at_full_and_no_strength():
    image = picture((32, 32))
    assert len(OPERATIONS) == 9
    for operation in OPERATIONS:
        for share in (0.0, 0.1):
            assert operation(image, share, -1).size == (32, 32)


@pytest.mark.parametrize("mix", [True, False])
def test_draws_depend_on_seed_and_index_alone(mix: bool):
    image = picture()
    views = ViewMaker(count=6, size=16, augmix=mix, seed=0)(image, 3)
    assert torch.equal(views, ViewMaker(count=6, size=16, augmix=mix, seed=0)(image, 3))
    assert not torch.equal(views, ViewMaker(count=6, size=16, augmix=mix, seed=1)(image, 3))
    assert not torch.equal(views, ViewMaker(count=6, size=16, augmix=mix, seed=0)(image, 4))
    assert torch.equal(views[0], F.pil_to_tensor(plain_view(image, 16)))


def test_workers_and_order_change_no_view(image_folder: Path):
    dataset = build_dataset("ImageFolder", image_folder)
    maker = ViewMaker(count=5, size=16, augmix=True, seed=0)
    found = {}
    orders = [[0, 1, 2], [3, 4, 5, 6]], [[6, 5], [4], [3, 2, 1, 0]], [[k] for k in range(7)]
    for workers, batches in zip((0, 1, 3), orders, strict=True):
        for batch in view_loader(dataset, dataset.test, maker, batches, workers, pin_memory=False):
            for index, views in zip(batch.index, batch.views, strict=True):
                assert torch.equal(found.setdefault(index, views), views)
    assert sorted(found) == list(range(7))


@pytest.mark.parametrize("error", [ConnectionResetError(), EOFError(), FileNotFoundError(2, "No such file", "/tmp/x")])
def test_a_worker_lost_while_it_hands_over_a_batch(error: Exception):
    def broken():
        yield 1
        raise error

    batches = noticing_lost_workers(broken())
    assert next(batches) == 1
    with pytest.raises(UserError, match="use fewer DATALOADER.NUM_WORKERS"), explaining_faults():
        next(batches)


def test_what_a_worker_itself_raises_is_kept():
    def failing():
        raise OSError("Caught OSError in DataLoader worker process 0.")
        yield

    with pytest.raises(OSError, match="Caught"):
        next(noticing_lost_workers(failing()))
