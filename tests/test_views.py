"""The views: Pillow's own, by compiled loops or with tensors."""
from __future__ import annotations

import errno
import importlib.util
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import MagicMock

import numpy as np
import PIL
import pytest
import reference_views as pillow
import torch
import torchvision.transforms as T
from PIL import Image
from promptcal.datasets.views import ViewMaker, chains, compiled, devices, make_views, maker, points, resample, warps
from promptcal.datasets.views.augmix import OPERATIONS, Mix, draw_mix, parameter
from promptcal.datasets.views.crops import draw_crops
from promptcal.datasets.views.pixels import Pixels
from promptcal.trainers.vlm.image_tower import normalise_pixels
from promptcal.trainers.vlm.openai_clip import clip

# Older ones always resize columns first, which changes some pixels of tall crops by one level.
SAME_ORDER = int(PIL.__version__.split(".")[0]) >= 13


@pytest.fixture(params=["loops", "tensors"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a CPU makes views, and as any other device does."""
    assert compiled.serves(torch.device("cpu")) and not compiled.serves(torch.device("cuda"))
    if request.param == "tensors":
        monkeypatch.setattr(compiled, "serves", lambda device: False)


def picture(size: tuple[int, int] = (90, 60), seed: int = 0) -> Image.Image:
    """Smooth shapes and some noise, as in a photograph."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 18, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    noisy = np.asarray(coarse) + rng.normal(0, 6, (size[1], size[0], 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


@pytest.mark.usefixtures("both_ways")
def test_the_plain_view_is_clips_own():
    for size in ((90, 60), (60, 90), (32, 32), (20, 40), (37, 301)):
        image = picture(size)
        expected = clip.clip._transform(32)(image)
        views = ViewMaker(count=1, size=32, augmix=False, seed=0)(image, 0)
        torch.testing.assert_close(normalise_pixels(views, Pixels(32))[0], expected)


@pytest.mark.usefixtures("both_ways")
def test_a_plain_view_squashed_or_bilinear():
    """As other families of backbones want it."""
    image = picture((90, 60))
    drawn = ViewMaker(1, 32, False, 0).prepare(image, 0).picture
    for interpolation, pillows in (("bicubic", Image.Resampling.BICUBIC), ("bilinear", Image.Resampling.BILINEAR)):
        expected = pillow.pixels(image.resize((32, 32), pillows))
        assert torch.equal(maker.plain_view(drawn, 32, "squash", interpolation), expected)


SIZES = [(90, 60), (60, 90), (300, 40), (40, 300), (33, 32), (1, 1), (700, 500)]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("size", SIZES)
def test_crops_are_pillows_to_the_bit(size: tuple[int, int]):
    views = ViewMaker(count=17, size=32, augmix=False, seed=4)(picture(size), 7)
    assert views.shape == (17, 3, 32, 32) and views.dtype == torch.uint8
    expected = pillow.make_views(picture(size), 7, 17, 32, augmix=False, seed=4)
    assert (views - expected).abs().max() <= (0 if SAME_ORDER else 1)


@pytest.mark.usefixtures("both_ways")
def test_crops_at_the_real_size():
    image = picture((500, 375))
    expected = pillow.make_views(image, 7, 9, 224, False, 0)
    assert (ViewMaker(9, 224, False, 0)(image, 7) - expected).abs().max() <= (0 if SAME_ORDER else 1)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("seed", [14, 35])
def test_many_bright_pixels_add_up_exactly(seed: int):
    """To more than a float32 holds: 313 in each sum, of a picture that is shrunk to a seventy-eighth."""
    image = Image.fromarray(np.random.default_rng(seed).integers(240, 256, (2500, 2500, 3), dtype=np.uint8))
    drawn = ViewMaker(1, 32, False, 0).prepare(image, 0).picture
    assert torch.equal(maker.plain_view(drawn, 32), pillow.pixels(pillow.plain_view(image, 32)))


def test_how_many_are_resized_at_once_changes_no_view(monkeypatch: pytest.MonkeyPatch):
    """Outside of a CPU memory decides."""
    whole = make_views(picture(), 5, 9, 32, augmix=False)
    monkeypatch.setattr(compiled, "serves", lambda device: False)
    for numbers in (1, 3 * 32 * 90, 5 * 3 * 32 * 90):
        monkeypatch.setattr(resample, "NUMBERS", numbers)
        assert torch.equal(make_views(picture(), 5, 9, 32, augmix=False), whole)


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
    mixed = torch.zeros(3, *image.size)
    chains.augmix(pillow.pixels(image)[None].contiguous(), [Mix(0.0, ((1.0, steps),))], mixed[None])
    assert torch.equal(mixed, mixed.round())
    return mixed.byte()


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("size", [32, 96, 224])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_pillows(name: str, size: int):
    operation = pillow.OPERATIONS[OPERATIONS.index(name)]
    for seed, (share, sign) in enumerate(((0.0101937, 1), (0.0371519, -1), (0.0683491, 1), (0.0998713, -1))):
        image = picture((size, size), seed)
        value = parameter(name, share, sign, size)
        steps = [(name, value)] if value or name in chains.POINTS else []
        assert torch.equal(through_chain(image, *steps), pillow.pixels(operation(image, share, sign)))


@pytest.mark.usefixtures("both_ways")
def test_levels_next_to_whole_numbers_are_cut_off_as_pillows():
    """A shear that brings levels within 1e-9 of the next, below it."""
    pixels = np.zeros((224, 224, 3), np.uint8)
    pixels[184, 1::2] = 192
    image, share = Image.fromarray(pixels), 0.04469662752179805
    steps = ("shear x", parameter("shear x", share, 1, 224))
    assert torch.equal(through_chain(image, steps), pillow.pixels(pillow.OPERATIONS[5](image, share, 1)))


@pytest.mark.usefixtures("both_ways")
def test_whole_chains_are_pillows_before_they_are_mixed():
    for seed in range(12):
        image = picture((96, 96), seed)
        _, *theirs = pillow.chains(image, np.random.default_rng(seed))
        ours = draw_mix(96, np.random.default_rng(seed)).chains
        for (weight, result), (our_weight, steps) in zip(theirs, ours, strict=True):
            assert weight == pytest.approx(our_weight)
            assert torch.equal(through_chain(image, *steps), pillow.pixels(result))


def test_autocontrast_is_pillows_for_all_extremes():
    low, high = np.triu_indices(256, 1)
    tables = points.autocontrast(*(torch.from_numpy(extreme)[:, None] for extreme in (low, high)))[:, 0]
    scale = 255.0 / (high - low)
    exact = np.arange(256) * scale[:, None] + (-low * scale)[:, None]
    assert np.array_equal(tables, exact.astype(int).clip(0, 255))


@pytest.mark.usefixtures("both_ways")
def test_histograms_are_pillows():
    image = picture((50, 40))
    counts = points.histogram(pillow.pixels(image).contiguous())
    assert counts.tolist() == np.reshape(image.histogram(), (3, 256)).tolist()


@pytest.mark.usefixtures("both_ways")
def test_flat_pictures_have_nothing_to_stretch_or_equalize():
    for colour in ((90, 90, 90), (0, 0, 0), (255, 255, 255)):
        flat = Image.new("RGB", (32, 32), colour)
        for name in ("autocontrast", "equalize"):
            assert torch.equal(through_chain(flat, (name, 0)), pillow.pixels(flat))
        both = through_chain(flat, ("solarize", 231), ("autocontrast", 0), ("equalize", 0))
        assert both.unique().tolist() == [255 - colour[0] if colour[0] >= 231 else colour[0]]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("size", [32, 80])
def test_mixed_views_are_pillows_mixed_without_rounding(size: int):
    image = picture((120, 90))
    ours, theirs = make_views(image, 5, 24, size), pillow.make_views(image, 5, 24, size, True, 0)
    assert ours.dtype == torch.float32 and (ours[1:] % 1).any()
    assert (ours - theirs).abs().max() < (1e-3 if SAME_ORDER else 2)


@pytest.mark.usefixtures("both_ways")
def test_mixing_a_view_with_itself_changes_nothing():
    views = torch.stack([pillow.pixels(picture((32, 32), seed)) for seed in range(3)]).contiguous()
    nothing = Mix(0.25, ((0.25, ()), (0.25, ()), (0.25, ())))
    mixed = torch.zeros(views.shape)
    chains.augmix(views, [nothing] * 3, mixed)
    torch.testing.assert_close(mixed, views.float())


def test_how_many_are_moved_at_once_changes_no_view(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled, "serves", lambda device: False)
    together = make_views(picture(), 5, 20, 48)
    monkeypatch.setattr(warps, "AT_ONCE", 3)
    assert torch.equal(make_views(picture(), 5, 20, 48), together)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("no locator"),
                                   EOFError("Ran out of input")], ids=["full", "read-only", "damaged"])
def test_where_nothing_can_be_kept_loops_are_compiled_all_the_same(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def njit(signature: str, nogil: bool, cache: bool = False) -> Callable:
        if cache:
            raise error
        return lambda loop: loop

    monkeypatch.setattr(compiled.numba, "njit", njit)
    assert compiled.compiled("i8(i8)")(lambda number: number + 1)(6) == 7


def test_threads_wait_for_the_one_that_compiles(monkeypatch: pytest.MonkeyPatch):
    made = []

    def njit(signature: str, nogil: bool, cache: bool) -> Callable:
        time.sleep(0.05)
        made.append(signature)
        return lambda loop: loop

    monkeypatch.setattr(compiled.numba, "njit", njit)
    loop = compiled.compiled("i8(i8)")(lambda number: number + 1)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(loop, range(4))) == [1, 2, 3, 4]
    assert len(made) == 1


def test_views_without_numba(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setitem(sys.modules, "numba", None)  # an import then fails
    spec = importlib.util.spec_from_file_location("compiled_without_numba", compiled.__file__)
    without = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(without)
    assert not without.serves(torch.device("cuda")) and not caplog.text
    assert not any(without.serves(torch.device("cpu")) for _ in range(3))
    assert caplog.text.count("numba does not work here") == 1


def test_numbers_go_to_a_gpu_by_way_of_pinned_memory(monkeypatch: pytest.MonkeyPatch):
    tensor = MagicMock()
    monkeypatch.setattr(torch, "from_numpy", lambda array: tensor)
    gpu = torch.device("cuda")
    assert devices.sent(np.zeros(3), gpu) is tensor.pin_memory().to.return_value
    tensor.pin_memory().to.assert_called_with(gpu, non_blocking=True)


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
