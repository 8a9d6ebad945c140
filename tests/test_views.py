"""Views are Pillow's, bit for bit until AugMix mixes them, and compiled code from a damaged cache
is never run."""
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np
import PIL
import pytest
import torch
import torchvision.transforms as T
from numba import types
from PIL import Image
from promptcal.datasets.views import ViewMaker, kernel_cache, kernels, make_views, reference
from promptcal.datasets.views.geometry import Pixels, draw_crops
from promptcal.trainers.vlm.image_tower import normalise_pixels
from promptcal.trainers.vlm.openai_clip import clip

# Before version 13 Pillow always resizes columns first, which changes some pixels of tall crops by
# one level.
SAME_ORDER = int(PIL.__version__.split(".")[0]) >= 13


def photo(size: tuple[int, int] = (90, 60), seed: int = 0) -> Image.Image:
    """Smooth shapes and some noise, as in a photograph."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 18, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    noisy = np.asarray(coarse) + rng.normal(0, 6, (size[1], size[0], 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def test_the_plain_view_is_clips_own():
    for size in ((90, 60), (60, 90), (32, 32), (20, 40), (37, 301)):
        views = ViewMaker(1, 32, augmix=False, seed=0)(photo(size), 0)
        torch.testing.assert_close(normalise_pixels(views, Pixels(32))[0], clip.clip._transform(32)(photo(size)))
    for how in ("bicubic", "bilinear"):  # of models that squash their images
        view = ViewMaker(1, 32, False, 0, "squash", how)(photo(), 0)[0]
        assert torch.equal(view, reference.to_tensor(photo().resize((32, 32), Image.Resampling[how.upper()])))


ODD = [(1, 1), (2, 3), (20000, 20), (40, 300)]


@pytest.mark.parametrize(("size", "pixels"), [
    *((size, 32) for size in [(90, 60), (60, 90), (300, 40), (33, 32), (700, 500), *ODD]),
    ((500, 375), 224),
    ((50, 70), 7),
    ((90, 60), 1),
])
def test_crops_are_pillows_to_the_bit(size, pixels):
    maker = ViewMaker(17, pixels, augmix=False, seed=4)
    views = maker(photo(size), 7)
    expected = reference.make_views(photo(size), 7, maker)
    assert views.shape == (17, 3, pixels, pixels) and views.dtype == expected.dtype == torch.uint8
    assert (views.int() - expected.int()).abs().max() <= (0 if SAME_ORDER else 1)


@pytest.mark.parametrize("seed", [14, 35])
def test_many_bright_pixels_add_up_exactly(seed):
    """To more than a float32 holds: 313 in each sum, of an image that is shrunk to a
    seventy-eighth."""
    image = Image.fromarray(np.random.default_rng(seed).integers(240, 256, (2500, 2500, 3), dtype=np.uint8))
    maker = ViewMaker(1, 32, False, 0)
    assert torch.equal(maker(image, 0)[0], reference.to_tensor(reference.plain_view(image, maker)))


@pytest.mark.parametrize(
    ("image", "size", "index"),
    [
        *((photo((120, 90), seed), 32, seed) for seed in range(4)), (photo((300, 200)), 96, 9),
        (photo((500, 375)), 224, 2), *((photo(size), 32, 1) for size in ODD),
        (photo().convert("L").convert("RGB"), 32, 5),
        *((Image.new("RGB", (40, 40), (level,) * 3), 32, level) for level in (0, 90, 255)),
    ],
    ids=range(14),
)
def test_mixed_views_are_pillows_mixed_without_rounding(image, size, index):
    """Each chain is Pillow's to the bit: one wrong level shows unless the chain has a weight below
    0.0002."""
    maker = ViewMaker(64 if size < 100 else 24, size, augmix=True, seed=0)
    ours = maker(image, index)
    theirs = reference.make_views(image, index, maker)
    assert ours.dtype == theirs.dtype == torch.float32 and ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < (2e-4 if SAME_ORDER else 2)


def test_levels_next_to_whole_numbers_are_cut_off_as_pillows():
    """A shear that brings levels within 1e-9 of the next, below it."""
    pixels = np.zeros((224, 224, 3), np.uint8)
    pixels[184, 1::2] = 192
    share = 0.04469662752179805
    out = np.empty((3, 224, 224), np.uint8)
    image = Image.fromarray(pixels)
    kernels.warp(reference.to_tensor(image).numpy(), kernels.matrix(kernels.SHEAR_X, share * 0.3, 224), out)
    assert np.array_equal(out, reference.to_tensor(reference.OPERATIONS[kernels.SHEAR_X](image, share, 1)))


@pytest.mark.parametrize("size", [(640, 480), (300, 1000)])
def test_crops_are_distributed_as_torchvisions(size):
    boxes, flips = draw_crops(size, 4000, np.random.default_rng(0))
    left, top, width, height = boxes.T
    assert (boxes[:, :2] >= 0).all() and (boxes[:, :2] + boxes[:, 2:] <= size).all()
    torch.manual_seed(0)
    blank = Image.new("RGB", size)
    drawn = []
    for _ in range(4000):
        drawn.append(T.RandomResizedCrop.get_params(blank, [0.08, 1.0], [3 / 4, 4 / 3]))
    theirs = np.array(drawn)
    for ours, column in ((top, 0), (left, 1), (height, 2), (width, 3)):
        for share in (0.1, 0.5, 0.9):
            difference = np.quantile(ours, share) - np.quantile(theirs[:, column], share)
            assert abs(difference) < 0.04 * max(size)
    assert 0.45 < flips.mean() < 0.55


@pytest.mark.parametrize("mix", [True, False])
def test_draws_depend_on_seed_and_index_alone(mix):
    views = make_views(photo(), 3, 6, 16, mix)
    assert torch.equal(views, make_views(photo(), 3, 6, 16, mix))
    memory = torch.zeros_like(views)
    assert make_views(photo(), 3, 6, 16, mix, out=memory) is memory and torch.equal(memory, views)
    for wrong in (memory[:5], memory.double(), memory.transpose(0, 1).contiguous().transpose(0, 1)):
        with pytest.raises(ValueError, match="out must be a contiguous"):
            make_views(photo(), 3, 6, 16, mix, out=wrong)
    assert not torch.equal(views[1:], make_views(photo(), 3, 6, 16, mix, seed=1)[1:])
    assert not torch.equal(views[1:], make_views(photo(), 4, 6, 16, mix)[1:])


def test_memory_is_used_again_only_when_no_tensor_refers_to_it():
    maker = ViewMaker(5, 16, augmix=True, seed=0)
    first = maker(photo(), 0)
    copy = first.clone()
    address = first.data_ptr()
    part = first[2].numpy()
    del first
    others = [maker(photo(), index) for index in range(1, 4)]
    assert np.array_equal(part, copy[2]) and address not in [views.data_ptr() for views in others]
    del part
    assert maker(photo(), 9).data_ptr() == address


@pytest.fixture
def without_numba(monkeypatch) -> Iterator[None]:
    for function in (kernel_cache.numba_works, kernel_cache.view_pipeline):
        function.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)  # an import then fails
    yield
    for function in (kernel_cache.numba_works, kernel_cache.view_pipeline):
        function.cache_clear()


@pytest.mark.parametrize("mix", [True, False])
def test_without_numba_pillow_makes_the_views(mix, without_numba, caplog):
    maker = ViewMaker(5, 32, mix, 0, "squash", "bilinear")
    for index in range(3):
        assert torch.equal(maker(photo(), index), reference.make_views(photo(), index, maker))
    assert kernel_cache.view_pipeline() == f"pillow-{PIL.__version__}" != kernel_cache.PIPELINE
    assert caplog.text.count("numba does not work here") == 1


def test_numba_that_must_not_compile_counts_as_absent(monkeypatch, caplog):
    kernel_cache.numba_works.cache_clear()
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert not kernel_cache.numba_works()
    assert "numba does not work here (NUMBA_DISABLE_JIT is set)" in caplog.text
    kernel_cache.numba_works.cache_clear()


def next_number(number: int) -> int:
    return number + 1


@pytest.fixture
def small_kernel(monkeypatch, tmp_path) -> Iterator[Path]:
    """A kernel that compiles in no time, and the folder where it is kept."""
    monkeypatch.setattr(kernels, "make_views", next_number)
    monkeypatch.setattr(kernels, "SIGNATURE", types.int64(types.int64))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel_cache.load_or_compile.cache_clear()
    yield tmp_path / "promptcal"
    kernel_cache.load_or_compile.cache_clear()


def compiles(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether a new process would compile. What it runs is right in any case."""
    kernel_cache.load_or_compile.cache_clear()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert kernel_cache.compiled_kernels()(6) == 7
    return "compiling" in caplog.text


@pytest.mark.posix
def test_a_damaged_or_foreign_file_of_compiled_code_is_never_run(small_kernel, caplog, monkeypatch):
    assert compiles(caplog) and not compiles(caplog)
    (file,) = small_kernel.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    compiled = file.read_bytes()
    damaged = []
    for k in range(0, len(compiled), len(compiled) // 200):
        damaged.append(compiled[:k] + bytes([compiled[k] ^ 1]) + compiled[k + 1 :])
    for content in (*damaged, b"", compiled[:-1], compiled + b"x"):
        file.write_bytes(content)
        assert kernel_cache.read_verified(file) is None
    assert compiles(caplog) and not compiles(caplog)
    file.chmod(0o660)  # others could change it
    assert compiles(caplog) and not compiles(caplog)
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    assert compiles(caplog)


def test_where_nothing_can_be_kept_kernels_are_compiled_all_the_same(small_kernel, caplog, monkeypatch):
    small_kernel.write_text("in the way")
    assert compiles(caplog) and compiles(caplog)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # of a user without a home
    assert compiles(caplog) and not Path("~").exists()


@pytest.mark.posix
def test_a_fork_waits_until_another_thread_has_compiled(small_kernel):
    def compile_slowly() -> None:
        with kernel_cache.compiling:
            begun.set()
            time.sleep(0.5)

    begun = threading.Event()
    thread = threading.Thread(target=compile_slowly)
    thread.start()
    begun.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)
        os._exit(kernel_cache.compiled_kernels()(6))
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("picture", ["cat.png", Path("cat.png"), np.zeros((8, 8, 3)), None])
def test_what_is_no_picture_is_named(picture):
    with pytest.raises(TypeError, match=f"must be a PIL image.* not a {type(picture).__name__}$"):
        make_views(picture, 0, count=2)
