"""The views: Pillow's own, made of tensors; the same on any device, with any workers and in any order."""
from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path

import numpy as np
import PIL
import pytest
import reference_views as pillow
import torch
import torchvision.transforms as T
from PIL import Image
from promptcal.datasets import build_dataset
from promptcal.datasets.utils.errors import UserError, explaining_faults
from promptcal.datasets.views import ViewMaker, chains, make_views, maker, points, warps
from promptcal.datasets.views.augmix import OPERATIONS, Mix, draw_mix, parameter
from promptcal.datasets.views.crops import draw_crops
from promptcal.datasets.views.loader import end_quietly, noticing_lost_workers, view_loader
from promptcal.datasets.views.pixels import Pixels
from promptcal.trainers.vlm.image_tower import normalise_pixels
from promptcal.trainers.vlm.openai_clip import clip

# Older ones always resize columns first, which changes some pixels of tall crops by one level.
SAME_ORDER = int(PIL.__version__.split(".")[0]) >= 13


def picture(size: tuple[int, int] = (90, 60), seed: int = 0) -> Image.Image:
    """Smooth shapes and some noise, as in a photograph."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 18, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    noisy = np.asarray(coarse) + rng.normal(0, 6, (size[1], size[0], 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def test_the_plain_view_is_clips_own():
    for size in ((90, 60), (60, 90), (32, 32), (20, 40), (37, 301)):
        image = picture(size)
        expected = clip.clip._transform(32)(image)
        views = ViewMaker(count=1, size=32, augmix=False, seed=0)(image, 0)
        torch.testing.assert_close(normalise_pixels(views, Pixels(32))[0], expected)


def test_a_plain_view_squashed_or_bilinear():
    """As other families of backbones want it."""
    image = picture((90, 60))
    drawn = ViewMaker(1, 32, False, 0).prepare(image, 0).picture
    for interpolation, pillows in (("bicubic", Image.Resampling.BICUBIC), ("bilinear", Image.Resampling.BILINEAR)):
        expected = pillow.pixels(image.resize((32, 32), pillows))
        assert torch.equal(maker.plain_view(drawn, 32, "squash", interpolation), expected)


SIZES = [(90, 60), (60, 90), (300, 40), (40, 300), (33, 32), (1, 1), (700, 500)]


def crops_of(image: Image.Image, maker: ViewMaker, exact: bool) -> torch.Tensor:
    drawn = maker.prepare(image, 7)
    return maker.crop(drawn.picture, drawn.recipe, exact)


@pytest.mark.parametrize("size", SIZES)
def test_crops_are_pillows_to_the_bit(size: tuple[int, int]):
    """Those that AugMix goes on with, and all on a GPU."""
    views = crops_of(picture(size), ViewMaker(count=17, size=32, augmix=True, seed=4), exact=True)
    assert views.shape == (17, 3, 32, 32) and views.dtype == torch.uint8
    expected = pillow.make_views(picture(size), 7, 17, 32, augmix=False, seed=4)
    difference = (views - expected).abs()
    assert difference.max() <= (0 if SAME_ORDER else 1)


@pytest.mark.parametrize("size", [*SIZES, (1500, 1200)])
def test_crops_without_augmix_are_one_level_off_at_most(size: tuple[int, int]):
    """On a CPU, where torch's own resizing of bytes is three times as fast; the plain view stays exact."""
    maker = ViewMaker(count=17, size=64, augmix=False, seed=4)
    quick, exact = maker(picture(size), 7), crops_of(picture(size), maker, exact=True)
    difference = (quick.int() - exact.int()).abs()
    assert difference.max() <= 1 and (difference > 0).float().mean() < 0.06 and not difference[0].any()


def test_caches_tell_quick_crops_from_exact_ones():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for made_by, differs in ((ViewMaker(5, 32, False, 0), True), (ViewMaker(5, 32, True, 0), False),
                             (ViewMaker(1, 32, False, 0), False)):
        assert (made_by.key(cpu) != made_by.key(gpu)) is differs


def test_crops_at_the_real_size():
    image = picture((500, 375))
    exact = crops_of(image, ViewMaker(9, 224, augmix=True, seed=0), exact=True)
    assert (exact - pillow.make_views(image, 7, 9, 224, False, 0)).abs().max() <= (0 if SAME_ORDER else 1)


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
    assert views.shape == (8, 3, 32, 32) and views.dtype == torch.float32
    assert views.min() >= 0 and views.max() <= 255.001


def through_chain(image: Image.Image, *steps: tuple[str, float]) -> torch.Tensor:
    """What becomes of an image in one chain. uint8 (3, S, S)"""
    mixed = torch.empty(3, *image.size)
    chains.augmix(pillow.pixels(image)[None].contiguous(), [Mix(0.0, ((1.0, steps),))], mixed[None])
    assert torch.equal(mixed, mixed.round())
    return mixed.byte()


@pytest.mark.parametrize("size", [32, 96, 224])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_pillows(name: str, size: int):
    operation = pillow.OPERATIONS[OPERATIONS.index(name)]
    for seed, (share, sign) in enumerate(((0.0101937, 1), (0.0371519, -1), (0.0683491, 1), (0.0998713, -1))):
        image = picture((size, size), seed)
        value = parameter(name, share, sign, size)
        steps = [(name, value)] if value or name in chains.POINTS else []
        ours, theirs = through_chain(image, *steps), pillow.pixels(operation(image, share, sign))
        difference = (ours.int() - theirs.int()).abs()
        assert difference.max() <= (1 if name == "rotate" else 0) and (difference > 0).float().mean() < 1e-3
        # where a table follows, even one that changes nothing, moves are computed in float64
        assert torch.equal(through_chain(image, *steps, ("solarize", 256)), theirs)


def test_whole_chains_are_pillows_before_they_are_mixed():
    """Differences of one level, which equalize or posterize would magnify, do not arise where these follow."""
    differences = []
    for seed in range(12):
        image = picture((96, 96), seed)
        _, *theirs = pillow.chains(image, np.random.default_rng(seed))
        for (weight, result), (ours, steps) in zip(
            theirs, draw_mix(96, np.random.default_rng(seed)).chains, strict=True,
        ):
            assert weight == pytest.approx(ours)
            differences.append((through_chain(image, *steps).int() - pillow.pixels(result).int()).abs())
    differences = torch.stack(differences)
    assert (differences <= 1).float().mean() > 0.999 and differences.max() <= 2
    assert (differences == 0).float().mean() > 0.999


def test_histograms_are_the_same_on_any_device():
    image = pillow.pixels(picture((50, 40))).contiguous()
    assert torch.equal(points.histogram(image), points.scattered(image))
    assert points.scattered(image).tolist() == np.reshape(picture((50, 40)).histogram(), (3, 256)).tolist()


def test_flat_pictures_have_nothing_to_stretch_or_equalize():
    for colour in ((90, 90, 90), (0, 0, 0), (255, 255, 255)):
        flat = Image.new("RGB", (32, 32), colour)
        for name in ("autocontrast", "equalize"):
            assert torch.equal(through_chain(flat, (name, 0)), pillow.pixels(flat))
        both = through_chain(flat, ("solarize", 231), ("autocontrast", 0), ("equalize", 0))
        assert both.unique().tolist() == [255 - colour[0] if colour[0] >= 231 else colour[0]]


@pytest.mark.parametrize("size", [32, 80])
def test_mixed_views_are_pillows_mixed_without_rounding(size: int):
    image = picture((120, 90))
    ours, theirs = make_views(image, 5, 24, size), pillow.make_views(image, 5, 24, size, True, 0)
    assert ours.dtype == torch.float32 and (ours[1:] % 1).any()
    difference = (ours - theirs).abs()
    assert difference.max() <= 2 and (difference < 1e-2).float().mean() > 0.99


def test_mixing_a_view_with_itself_changes_nothing():
    views = torch.stack([pillow.pixels(picture((32, 32), seed)) for seed in range(3)]).contiguous()
    nothing = Mix(0.25, ((0.25, ()), (0.25, ()), (0.25, ())))
    mixed = torch.empty(views.shape)
    chains.augmix(views, [nothing] * 3, mixed)
    torch.testing.assert_close(mixed, views.float())


def test_how_many_are_moved_at_once_changes_no_view(monkeypatch):
    """One at a time as on a CPU, or all at once as on a GPU."""
    image = picture((120, 90))
    one_by_one = make_views(image, 5, 20, 48)
    monkeypatch.setattr(warps, "batches", lambda images: [(slice(0, len(images)), torch.stack(list(images)))])
    assert torch.equal(make_views(image, 5, 20, 48), one_by_one)


def test_a_shears_weights_give_in_float32_what_float64_gives():
    """For all levels, also close to the fractions at which the result changes."""
    rng = np.random.default_rng(0)
    fractions = rng.choice(warps.farey()[1:-1], 40)
    parts = np.concatenate([rng.random(40), fractions - 1e-9, fractions + 1e-9, [0.0]])
    level = torch.arange(256.0)
    a, b = level[:, None], level[None]
    for exact, weight in zip(parts, torch.from_numpy(warps.safe_weights(parts)), strict=True):
        expected = (a.double() + (b.double() - a.double()) * exact).floor()
        assert torch.equal(torch.lerp(a, b, weight).floor(), expected.float())


def test_views_are_made_where_they_are_asked_for():
    """Nothing but the picture and the draws comes from the CPU."""
    assert make_views(picture(), 0, 6, 32, device="meta").device.type == "meta"


@pytest.mark.parametrize("mix", [True, False])
def test_draws_depend_on_seed_and_index_alone(mix: bool):
    image = picture()
    views = ViewMaker(count=6, size=16, augmix=mix, seed=0)(image, 3)
    assert torch.equal(views, ViewMaker(count=6, size=16, augmix=mix, seed=0)(image, 3))
    assert not torch.equal(views, ViewMaker(count=6, size=16, augmix=mix, seed=1)(image, 3))
    assert not torch.equal(views, ViewMaker(count=6, size=16, augmix=mix, seed=0)(image, 4))
    assert torch.equal(views[0], pillow.pixels(pillow.plain_view(image, 16)).to(views.dtype))


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


def test_a_workers_death_is_told_to_nobody_but_who_waits_for_it(image_folder: Path):
    """torch would raise in the midst of whatever this process does when the signal comes, or in its next loader."""
    dataset = build_dataset("ImageFolder", image_folder)
    maker = ViewMaker(count=2, size=16, augmix=False, seed=0)
    batches = [[k] for k in range(7)]
    for _ in range(2):  # torch sets its handler at the first loader of a process only
        before = signal.getsignal(signal.SIGCHLD)
        loader = view_loader(dataset, dataset.test, maker, batches, 1, pin_memory=False)
        next(loader)
        (worker,) = multiprocessing.active_children()
        os.kill(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        assert sum(range(10_000)) == 49_995_000  # the signal has come
        assert signal.getsignal(signal.SIGCHLD) is before
        with pytest.raises(UserError, match="use fewer DATALOADER.NUM_WORKERS"), explaining_faults():
            list(loader)
        assert len(list(view_loader(dataset, dataset.test, maker, batches[:2], 1, pin_memory=False))) == 2


def test_what_a_worker_itself_raises_is_kept():
    def failing():
        raise OSError("Caught OSError in DataLoader worker process 0.")
        yield

    with pytest.raises(OSError, match="Caught"):
        next(noticing_lost_workers(failing()))


def test_a_worker_whose_run_was_interrupted_says_nothing(monkeypatch: pytest.MonkeyPatch):
    told = []
    monkeypatch.setattr("sys.excepthook", lambda kind, *_: told.append(kind))
    end_quietly(0)
    for kind in (EOFError, ConnectionResetError, BrokenPipeError, KeyError):
        sys.excepthook(kind, kind(), None)
    assert told == [KeyError]
