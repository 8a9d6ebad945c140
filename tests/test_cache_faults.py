"""The store of view features: always of the images that are there, and shared where it may be; removed, cut or damaged
while a run reads it, and built by two runs at once."""
import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from promptcal.datasets import base
from promptcal.datasets.utils.errors import UserError
from promptcal.datasets.utils.lock import FolderLock
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.engine.features import ViewStore
from promptcal.trainers.runs.run_dir import RunDir, read_predictions

from common import make_image_folder, run_tool
from processes import Process, forked

SETTINGS = ("TEST.PART", 3, "TTA.VIEWS", 10, "TTA.EPISODES", 2, "DATALOADER.NUM_WORKERS", 0, "TTA.JACOBIAN", "off")


@pytest.fixture
def run(clip_file, image_folder, tmp_path):
    def run(trainer: str, folder: str, *opts: object) -> dict[str, np.ndarray]:
        build_trainer(build_cfg(trainer, "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / folder,
            "CACHE.DIR", tmp_path / "cache", *SETTINGS, *opts])).run()
        return read_predictions(tmp_path / folder)
    return run


def damage(cache: Path, how: str) -> None:
    for folder in cache.glob("views-*"):
        if how == "removed":
            shutil.rmtree(folder)
        for file in folder.glob("*.npz"):
            content = file.read_bytes()
            middle = len(content) // 2
            if how == "cut":
                os.truncate(file, middle)
            elif how == "flipped":
                file.write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
            elif how == "emptied":
                file.write_bytes(b"")


@pytest.mark.parametrize(("trainer", "how"), [
    ("TPT", "removed"), ("TPT", "cut"), ("TPT", "flipped"), ("TPT", "emptied"), ("TDA", "removed"), ("TDA", "flipped")])
def test_a_cache_that_goes_bad_while_it_is_read(run, tmp_path, monkeypatch, trainer, how):
    """TPT reads blocks in order; TDA, which is online, in random order, with one block in memory."""
    monkeypatch.setattr("promptcal.trainers.engine.features.MEMORY", 1)
    monkeypatch.setattr("promptcal.trainers.engine.features.BLOCK", 3)
    expected = run(trainer, "first")
    real = RunDir.write_part

    def write(folder, *args):
        real(folder, *args)
        damage(tmp_path / "cache", how)

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "write_part", write)
        found = run(trainer, "second")
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_a_disk_that_goes_away_while_the_cache_is_made(run, tmp_path, monkeypatch):
    """It becomes read-only, as a failed disk does, after the first block: the run ends with one line, and the same
    command continues."""
    monkeypatch.setattr("promptcal.trainers.engine.features.BLOCK", 3)
    real, cache = os.replace, tmp_path / "cache"

    def replace(source, target):
        if cache in Path(target).parents and list(cache.glob("views-*/*.npz")):
            raise OSError(errno.EROFS, "Read-only file system")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(UserError, match=f"^cannot write {cache}.*: Read-only file system; .*choose another"):
            run("ZeroShot", "run", "TTA.VIEWS", 1, "TTA.SELECT", 1)
    assert not (tmp_path / "run" / "lock").exists()
    assert run("ZeroShot", "run", "TTA.VIEWS", 1, "TTA.SELECT", 1)["index"].tolist() == list(range(12))


@pytest.mark.parametrize("trainer", ["TPT", "TDA"])
def test_a_repaired_image_is_read_again(run, image_folder, trainer):
    """With the same name and size: its content is another."""
    victim = image_folder / "kind_b" / "1.png"
    whole = victim.read_bytes()
    victim.write_bytes(bytes(len(whole)))
    assert 4 not in run(trainer, "skipping", "DATALOADER.ON_BAD_IMAGE", "skip")["index"]
    assert 4 not in run(trainer, "again", "DATALOADER.ON_BAD_IMAGE", "skip")["index"]
    with pytest.raises(UserError, match=r"kind_b/1\.png"):
        run(trainer, "strict")
    victim.write_bytes(whole)
    assert run(trainer, "repaired", "DATALOADER.ON_BAD_IMAGE", "skip")["index"].tolist() == list(range(12))
    assert run(trainer, "strict")["index"].tolist() == list(range(12))


@pytest.mark.parametrize("trainer", ["TPT", "TDA"])
def test_a_run_that_stops_at_a_bad_image_continues_when_it_is_repaired(
    run, image_folder, tmp_path, caplog, trainer,
):
    """Without a cache parts are there by then. An image that was predicted must be what it was."""
    opts = ("CACHE.DIR", "", "TEST.ORDER", "sorted", "SEED", 1)
    expected = run(trainer, "whole", *opts)
    victim = image_folder / "kind_d" / "2.png"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:60])
    with pytest.raises(UserError, match=r"cannot read image .*kind_d/2\.png"):
        run(trainer, "run", *opts)
    first = image_folder / "kind_a" / "0.png"
    before = first.read_bytes()
    first.write_bytes((image_folder / "kind_b" / "0.png").read_bytes())
    victim.write_bytes(whole)
    with pytest.raises(UserError, match="was made with other data: 2 images changed"):
        run(trainer, "run", *opts)
    first.write_bytes(before)
    caplog.set_level("INFO")
    found = run(trainer, "run", *opts)
    assert "resuming: 9 of 12 images were predicted before" in caplog.text
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)
    records = [json.loads((tmp_path / folder / "record.json").read_text()) for folder in ("whole", "run")]
    assert records[0]["data"] == records[1]["data"]


@pytest.mark.slow
def test_two_runs_that_build_the_same_cache(run, clip_file, image_folder, tmp_path):
    """Both end, neither reads half a file; and one that is killed leaves no obstacle."""
    def start(trainer: str, folder: str) -> Process:
        return Process("train.py", "--trainer", trainer, "--dataset-config-file", "configs/datasets/image_folder.yaml",
                       "--root", image_folder, "--backbone", clip_file, "--output-dir", tmp_path / folder, *SETTINGS,
                       "CACHE.DIR", tmp_path / "cache")

    killed = start("CTPT", "killed")
    processes = [start("TPT", "one"), start("SoC", "two")]
    killed.wait_for((tmp_path / "cache").exists)
    killed.send(signal.SIGKILL)
    for process in processes:
        _, complaint = process.communicate()
        assert process.returncode == 0, complaint
    shutil.rmtree(tmp_path / "cache")
    for trainer, folder in (("TPT", "one"), ("SoC", "two")):
        expected = run(trainer, f"{folder} alone")
        np.testing.assert_array_equal(read_predictions(tmp_path / folder)["logits"], expected["logits"])


@pytest.fixture
def command(clip_file, tmp_path):
    """Runs tools/train.py on a folder of images; returns the logits, or the line that refuses it."""
    def command(root: Path, folder: str, *opts: object, trainer: str = "TPT") -> np.ndarray | str:
        done = run_tool(
            "train.py", "--trainer", trainer, "--dataset-config-file", "configs/datasets/image_folder.yaml", "--root",
            root, "--backbone", clip_file, "--output-dir", tmp_path / folder, *SETTINGS, *opts)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
        return read_predictions(tmp_path / folder)["logits"]
    return command


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """The paths of the images that were opened."""
    real, paths = base.open_image, []

    def open_image(path: str) -> Image.Image:
        paths.append(path)
        return real(path)

    monkeypatch.setattr(base, "open_image", open_image)
    return paths


def noise(seed: int, count: int) -> Iterator[Image.Image]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8))


@pytest.fixture
def clean(tmp_path) -> Path:
    """A folder of BMPs: all files have the same size."""
    folder = make_image_folder(tmp_path / "clean")
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as image:
            image.save(path.with_suffix(".bmp"))
        path.unlink()
    return folder


def overwrite(paths: list[Path]) -> None:
    """Other pixels in files of the same name, size and date."""
    for path, image in zip(paths, noise(5, len(paths)), strict=True):
        status = path.stat()
        image.save(path)
        assert path.stat().st_size == status.st_size
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("trainer", ["TPT", "ZeroShot", "TDA"])
@pytest.mark.parametrize("same_name", [False, True])
def test_two_folders_with_the_same_names_and_sizes(command, clean, tmp_path, trainer, same_name):
    noisy = tmp_path / "elsewhere" / ("clean" if same_name else "noisy")
    shutil.copytree(clean, noisy)
    overwrite(sorted(noisy.rglob("*.bmp")))
    cache = ("CACHE.DIR", tmp_path / "cache")
    expected = [command(root, f"alone {number}", trainer=trainer) for number, root in enumerate((clean, noisy))]
    stored = [command(root, f"stored {number}", *cache, trainer=trainer) for number, root in enumerate((clean, noisy))]
    assert not np.array_equal(*expected)
    assert np.array_equal(stored, expected)
    assert "other data: 12 images changed" in command(noisy, "stored 0", *cache, trainer=trainer)


def test_a_folder_that_is_replaced_by_another(command, clean, tmp_path, opened):
    """Under one path, so that nothing but the images differs; the first comes back in the end."""
    cache = ("CACHE.DIR", tmp_path / "cache")
    first = command(clean, "first", *cache)
    clean.rename(tmp_path / "aside")
    shutil.copytree(tmp_path / "aside", clean)
    overwrite(sorted(clean.rglob("*.bmp")))
    second = command(clean, "second", *cache)
    assert np.array_equal(second, command(clean, "second alone")) and not np.array_equal(first, second)
    opened.clear()
    shutil.rmtree(clean)
    (tmp_path / "aside").rename(clean)
    assert np.array_equal(command(clean, "third", *cache), first) and not opened


def test_half_of_the_files_replaced_by_others_of_the_same_size(command, clean, tmp_path, opened):
    cache = ("CACHE.DIR", tmp_path / "cache")
    before = command(clean, "before", *cache)
    half = sorted(clean.rglob("*.bmp"))[::2]
    overwrite(half)
    assert "other data: 6 images changed" in command(clean, "before", *cache)
    opened.clear()
    after = command(clean, "after", *cache)
    assert opened == [str(path) for path in half]  # the others are in the store
    assert np.array_equal(after, command(clean, "alone"))
    same = [np.array_equal(old, new) for old, new in zip(before, after, strict=True)]
    assert same == [False, True] * 6


def test_images_that_change_places(command, clean, tmp_path):
    """Views are drawn from the position: an image at another position has other features."""
    cache = ("CACHE.DIR", tmp_path / "cache")
    command(clean, "before", *cache)
    first, second = sorted(clean.rglob("*.bmp"))[:2]
    first.rename(tmp_path / "aside.bmp")
    second.rename(first)
    (tmp_path / "aside.bmp").rename(second)
    assert np.array_equal(command(clean, "after", *cache), command(clean, "alone"))


@pytest.mark.parametrize("block", [4, 64])
@pytest.mark.parametrize("order", [("pilot", "full"), ("full", "pilot")])
def test_a_pilot_and_a_full_run_share(command, clean, tmp_path, opened, monkeypatch, order, block):
    monkeypatch.setattr("promptcal.trainers.engine.features.BLOCK", block)
    limits = {"pilot": ("TEST.LIMIT", 5), "full": ()}
    expected = {name: command(clean, f"{name} alone", *limits[name]) for name in order}
    opened.clear()
    for name in order:
        logits = command(clean, name, *limits[name], "CACHE.DIR", tmp_path / "cache")
        assert np.array_equal(logits, expected[name])
    assert len(opened) == len(set(opened)) == 12


def test_labels_class_names_and_methods_share(command, clean, tmp_path, opened):
    cache = ("CACHE.DIR", tmp_path / "cache")
    command(clean, "first", *cache)
    opened.clear()
    (clean / "classnames.txt").write_text("kind_a cat\nkind_b dog\nkind_c ship\nkind_d truck\n")
    for trainer, opts in (("TPT", ()), ("SoC", ("TTA.STEPS", 2)), ("RTPT", ())):
        command(clean, trainer, *cache, *opts, trainer=trainer)
    assert not opened
    for opts in (("SEED", 1), ("TTA.VIEWS", 11), ("TTA.AUGMIX", "off"), ("MODEL.PREC", "bf16")):
        command(clean, str(opts), *cache, *opts)
        assert len(opened) == 12, opts
        opened.clear()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_store_changes_no_bit(command, clean, tmp_path, precision):
    for trainer in ("TPT", "ZeroShot"):
        opts = ("MODEL.PREC", precision)
        alone = command(clean, f"{trainer} alone", *opts, trainer=trainer)
        for number in range(2):
            stored = command(clean, f"{trainer} {number}", *opts, "CACHE.DIR", tmp_path / "cache", trainer=trainer)
            assert np.array_equal(alone, stored)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("how", ["other pixels", "no image", "removed"])
def test_an_image_that_changes_after_the_run_has_begun(
    command, clean, tmp_path, monkeypatch, how, cached,
):
    """Its predictions would be filed under the old image."""
    victim = clean / "kind_c" / "1.bmp"
    real = ViewStore.fill

    def change(store: ViewStore, *args: object) -> None:
        if how == "other pixels":
            overwrite([victim])
        elif how == "no image":
            victim.write_bytes(b"nothing")
        else:
            victim.unlink()
        real(store, *args)

    monkeypatch.setattr(ViewStore, "fill", change)
    opts = ("CACHE.DIR", tmp_path / "cache") if cached else ()
    line = command(clean, "run", *opts, "DATALOADER.ON_BAD_IMAGE", "skip")
    assert f"{victim} has changed since this run began" in line


def test_an_image_that_is_only_touched_goes_on(command, clean, monkeypatch):
    expected = command(clean, "alone")
    real = ViewStore.fill

    def touch(store: ViewStore, *args: object) -> None:
        os.utime(clean / "kind_c" / "1.bmp", (1, 1))
        real(store, *args)

    monkeypatch.setattr(ViewStore, "fill", touch)
    assert np.array_equal(command(clean, "run"), expected)


def test_the_lock_of_a_killed_builder_is_no_obstacle(command, clean, tmp_path):
    cache = ("CACHE.DIR", tmp_path / "cache")
    expected = command(clean, "first", *cache, "TEST.LIMIT", 5)
    (folder,) = (tmp_path / "cache").glob("views-*")

    def die() -> None:
        FolderLock(folder).take()
        os.kill(os.getpid(), signal.SIGKILL)

    forked(die)
    assert (folder / "lock").exists()
    started = time.monotonic()
    assert len(command(clean, "second", *cache)) == 12
    assert time.monotonic() - started < 10 and not (folder / "lock").exists()
    assert len(expected) == 5


def test_a_lock_that_is_never_released_is_not_waited_for_without_end(
    command, clean, tmp_path, monkeypatch,
):
    """As of a stopped process, or of one on another machine."""
    monkeypatch.setattr("promptcal.trainers.engine.cache.LOCK_SECONDS", 0.2)
    cache = ("CACHE.DIR", tmp_path / "cache")
    command(clean, "first", *cache, "TEST.LIMIT", 5)
    (folder,) = (tmp_path / "cache").glob("views-*")
    (folder / "lock").write_text(json.dumps({"host": "another", "system": "", "pid": 7}))
    assert np.array_equal(command(clean, "second", *cache), command(clean, "alone"))
    with np.load(folder / "0000000.npz") as arrays:
        assert sorted(arrays["index"].tolist()) == list(range(12))


def test_a_file_does_not_grow_without_end(command, clean, tmp_path, monkeypatch):
    monkeypatch.setattr("promptcal.trainers.engine.features.MOST_ROWS", 20)
    cache = ("CACHE.DIR", tmp_path / "cache")
    for number in range(4):
        logits = command(clean, f"run {number}", *cache)
        for path, image in zip(sorted(clean.rglob("*.bmp")), noise(number, 12), strict=True):
            image.save(path)
    assert len(logits) == 12
    (file,) = (tmp_path / "cache").glob("views-*/*.npz")
    with np.load(file) as arrays:
        assert len(arrays["index"]) == 20
