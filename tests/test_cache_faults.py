"""The store of view features.

It is always of the images that are there, and shared where it may be. It may be removed, cut or
damaged while a run reads it, and two runs may build it at once.
"""
import errno
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from promptcal.datasets import base
from promptcal.trainers.engine.predict import Predictor
from promptcal.trainers.runs.run_dir import RunDir, read_predictions

from common import make_image_folder
from processes import Process

FEATURES = "promptcal.trainers.engine.features"
SETTINGS = ("TEST.PART", 3, "TTA.VIEWS", 10, "TTA.EPISODES", 2, "TTA.JACOBIAN", "off", "DATALOADER.NUM_WORKERS", 0)


@pytest.fixture
def cache(tmp_path) -> tuple:
    return ("CACHE.DIR", tmp_path / "cache")


@pytest.fixture
def start(train, tmp_path):
    """Runs tools/train.py on a folder of images."""
    def start(root, folder, *opts, trainer="TPT"):
        return train(trainer, "--root", root, "--output-dir", tmp_path / folder, *SETTINGS, *opts)
    return start


@pytest.fixture
def predict(start, tmp_path):
    """The predictions of such a run."""
    def predict(root, folder, *opts, trainer="TPT") -> dict[str, np.ndarray]:
        done = start(root, folder, *opts, trainer=trainer)
        assert done.returncode == 0, done.stderr
        return read_predictions(tmp_path / folder)
    return predict


@pytest.fixture
def logits_of(predict):
    def logits_of(*args, **kwargs) -> np.ndarray:
        return predict(*args, **kwargs)["logits"]
    return logits_of


@pytest.fixture
def refusal(start):
    """The line with which such a run ends."""
    def refusal(*args, **kwargs) -> str:
        done = start(*args, **kwargs)
        assert done.returncode != 0
        return done.stderr.strip().splitlines()[-1]
    return refusal


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """The paths of the images that were opened."""
    open_image = base.open_image
    paths = []

    def noted(path: str) -> Image.Image:
        paths.append(path)
        return open_image(path)

    monkeypatch.setattr(base, "open_image", noted)
    return paths


@pytest.fixture
def clean(tmp_path) -> Path:
    """A folder of BMPs: all files have the same size."""
    folder = make_image_folder(tmp_path / "clean")
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as image:
            image.save(path.with_suffix(".bmp"))
        path.unlink()
    return folder


def noise(seed: int, count: int) -> Iterator[Image.Image]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8))


def overwrite(paths: list[Path]) -> None:
    """Other pixels in files of the same name, size and date."""
    for path, image in zip(paths, noise(5, len(paths)), strict=True):
        status = path.stat()
        image.save(path)
        assert path.stat().st_size == status.st_size
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def assert_equal(predictions: dict, expected: dict) -> None:
    assert predictions.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_array_equal(predictions[name], column, err_msg=name)


# Damage

def damage(cache_dir: Path, how: str) -> None:
    for folder in cache_dir.glob("views-*"):
        if how == "removed":
            shutil.rmtree(folder)
        for file in folder.glob("*.npz"):
            content = bytearray(file.read_bytes())
            middle = len(content) // 2
            if how == "cut":
                os.truncate(file, middle)
            elif how == "flipped":
                content[middle] ^= 255
                file.write_bytes(content)
            elif how == "emptied":
                file.write_bytes(b"")


@pytest.mark.parametrize(("trainer", "how"), [
    ("TPT", "removed"), ("TPT", "cut"), ("TPT", "flipped"), ("TPT", "emptied"),
    ("TDA", "removed"), ("TDA", "flipped"),
])
def test_a_cache_that_goes_bad_while_it_is_read(predict, image_folder, cache, tmp_path, monkeypatch, trainer, how):
    """TPT reads blocks in order; TDA, which is online, in random order, with one in memory."""
    monkeypatch.setattr(f"{FEATURES}.MEMORY", 1)
    monkeypatch.setattr(f"{FEATURES}.BLOCK", 3)
    expected = predict(image_folder, "first", *cache, trainer=trainer)
    write_part = RunDir.write_part

    def write_and_damage(run_dir, *args):
        write_part(run_dir, *args)
        damage(tmp_path / "cache", how)

    monkeypatch.setattr(RunDir, "write_part", write_and_damage)
    assert_equal(predict(image_folder, "second", *cache, trainer=trainer), expected)
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_a_disk_that_goes_away_while_the_cache_is_made(predict, refusal, image_folder, tmp_path, monkeypatch):
    """It becomes read-only, as a failed disk does, after the first block: the run ends with one
    line, and the same command continues."""
    monkeypatch.setattr(f"{FEATURES}.BLOCK", 3)
    cache_dir = tmp_path / "cache"
    opts = ("CACHE.DIR", cache_dir, "TTA.VIEWS", 1, "TTA.SELECT", 1)
    replace = os.replace

    def read_only(source, target):
        if cache_dir in Path(target).parents and list(cache_dir.glob("views-*/*.npz")):
            raise OSError(errno.EROFS, "Read-only file system")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", read_only)
        line = refusal(image_folder, "run", *opts, trainer="ZeroShot")
    assert line.startswith(f"error: cannot write {cache_dir}")
    assert ": Read-only file system; " in line and "choose another" in line
    assert not (tmp_path / "run" / "lock").exists()
    predictions = predict(image_folder, "run", *opts, trainer="ZeroShot")
    assert predictions["index"].tolist() == list(range(12))


@pytest.mark.parametrize("trainer", ["TPT", "TDA"])
def test_a_repaired_image_is_read_again(predict, refusal, image_folder, cache, trainer):
    """With the same name and size: its content is another."""
    skip = (*cache, "DATALOADER.ON_BAD_IMAGE", "skip")
    victim = image_folder / "kind_b" / "1.png"
    content = victim.read_bytes()
    victim.write_bytes(bytes(len(content)))
    for folder in ("skipping", "again"):
        assert 4 not in predict(image_folder, folder, *skip, trainer=trainer)["index"]
    assert "kind_b/1.png" in refusal(image_folder, "strict", *cache, trainer=trainer)
    victim.write_bytes(content)
    for folder, opts in (("repaired", skip), ("strict", cache)):
        predictions = predict(image_folder, folder, *opts, trainer=trainer)
        assert predictions["index"].tolist() == list(range(12))


@pytest.mark.parametrize("trainer", ["TPT", "TDA"])
def test_a_run_that_stops_at_a_bad_image_continues_when_it_is_repaired(
    predict, refusal, start, image_folder, tmp_path, trainer,
):
    """Without a cache parts are there by then. An image that was predicted must be what it was."""
    opts = ("TEST.ORDER", "sorted", "SEED", 1)
    expected = predict(image_folder, "expected", *opts, trainer=trainer)
    victim = image_folder / "kind_d" / "2.png"
    content = victim.read_bytes()
    victim.write_bytes(content[:60])
    line = refusal(image_folder, "run", *opts, trainer=trainer)
    assert "cannot read image" in line and "kind_d/2.png" in line

    first = image_folder / "kind_a" / "0.png"
    first_content = first.read_bytes()
    first.write_bytes((image_folder / "kind_b" / "0.png").read_bytes())
    victim.write_bytes(content)
    line = refusal(image_folder, "run", *opts, trainer=trainer)
    assert "was made with other data: 2 images changed" in line

    first.write_bytes(first_content)
    done = start(image_folder, "run", *opts, trainer=trainer)
    assert "resuming: 9 of 12 images were predicted before" in done.stdout
    assert_equal(read_predictions(tmp_path / "run"), expected)
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    expected_record = json.loads((tmp_path / "expected" / "record.json").read_text())
    assert record["data"] == expected_record["data"]


# Two runs at once

@pytest.mark.slow
def test_two_runs_that_build_the_same_cache(logits_of, clip_file, image_folder, cache, tmp_path):
    """Both end, neither reads half a file; and a third that is killed leaves no obstacle."""
    def begin(trainer: str, folder: str) -> Process:
        return Process(
            "train.py", "--trainer", trainer,
            "--dataset-config-file", "configs/datasets/image_folder.yaml",
            "--root", image_folder, "--backbone", clip_file, "--output-dir", tmp_path / folder,
            *SETTINGS, *cache)

    killed = begin("CTPT", "killed")
    processes = [begin("TPT", "first"), begin("SoC", "second")]
    killed.wait_for((tmp_path / "cache").exists)
    killed.send(signal.SIGKILL)
    for process in processes:
        _, complaint = process.communicate()
        assert process.returncode == 0, complaint
    for trainer, folder in (("TPT", "first"), ("SoC", "second")):
        expected = logits_of(image_folder, f"{folder} alone", trainer=trainer)
        assert np.array_equal(read_predictions(tmp_path / folder)["logits"], expected)


def test_a_lock_that_is_never_released_is_not_waited_for_without_end(logits_of, clean, cache, tmp_path, monkeypatch):
    """As of a stopped process, or of one on another machine."""
    monkeypatch.setattr("promptcal.trainers.engine.cache.LOCK_SECONDS", 0.2)
    logits_of(clean, "first", *cache, "TEST.LIMIT", 5)
    (folder,) = (tmp_path / "cache").glob("views-*")
    (folder / "lock").write_text(json.dumps({"host": "another", "system": "", "pid": 7}))
    assert np.array_equal(logits_of(clean, "second", *cache), logits_of(clean, "alone"))
    with np.load(folder / "0000000.npz") as arrays:
        assert sorted(arrays["index"].tolist()) == list(range(12))


# Features of the images that are there

@pytest.mark.parametrize(("trainer", "same_name"), [
    ("TPT", False), ("TPT", True), ("ZeroShot", False), ("TDA", True),
])
def test_two_folders_with_the_same_names_and_sizes(logits_of, refusal, clean, cache, tmp_path, trainer, same_name):
    noisy = tmp_path / "elsewhere" / ("clean" if same_name else "noisy")
    shutil.copytree(clean, noisy)
    overwrite(sorted(noisy.rglob("*.bmp")))
    alone = []
    stored = []
    for number, root in enumerate((clean, noisy)):
        alone.append(logits_of(root, f"alone {number}", trainer=trainer))
        stored.append(logits_of(root, f"stored {number}", *cache, trainer=trainer))
    assert not np.array_equal(alone[0], alone[1])
    assert np.array_equal(stored, alone)
    line = refusal(noisy, "stored 0", *cache, trainer=trainer)
    assert "other data: 12 images changed" in line


def test_half_of_the_files_replaced_by_others_of_the_same_size(logits_of, refusal, clean, cache, opened):
    before = logits_of(clean, "before", *cache)
    half = sorted(clean.rglob("*.bmp"))[::2]
    overwrite(half)
    assert "other data: 6 images changed" in refusal(clean, "before", *cache)
    opened.clear()
    after = logits_of(clean, "after", *cache)
    assert opened == list(map(str, half))  # the others are in the store
    assert np.array_equal(after, logits_of(clean, "alone"))
    equal = (before == after).all(axis=1)
    assert equal.tolist() == [False, True] * 6


def test_images_that_change_places(logits_of, clean, cache, tmp_path):
    """Views are drawn from the position: an image at another position has other features."""
    logits_of(clean, "before", *cache)
    first, second = sorted(clean.rglob("*.bmp"))[:2]
    first.rename(tmp_path / "aside.bmp")
    second.rename(first)
    (tmp_path / "aside.bmp").rename(second)
    assert np.array_equal(logits_of(clean, "after", *cache), logits_of(clean, "alone"))


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("change", ["other pixels", "no image", "removed"])
def test_an_image_that_changes_after_the_run_has_begun(refusal, clean, cache, monkeypatch, change, cached):
    """Its predictions would be filed under the old image."""
    victim = clean / "kind_c" / "1.bmp"
    predict_images = Predictor.predict

    def change_and_predict(predictor):
        if change == "other pixels":
            overwrite([victim])
        elif change == "no image":
            victim.write_bytes(b"nothing")
        else:
            victim.unlink()
        predict_images(predictor)

    monkeypatch.setattr(Predictor, "predict", change_and_predict)
    opts = cache if cached else ()
    line = refusal(clean, "run", *opts, "DATALOADER.ON_BAD_IMAGE", "skip")
    assert f"{victim} has changed since this run began" in line


def test_an_image_that_is_only_touched_goes_on(logits_of, clean, monkeypatch):
    predict_images = Predictor.predict
    touched = []

    def touch_and_predict(predictor):
        os.utime(clean / "kind_c" / "1.bmp", (1, 1))
        touched.append(predictor)
        predict_images(predictor)

    monkeypatch.setattr(Predictor, "predict", touch_and_predict)
    assert len(logits_of(clean, "run")) == 12
    assert touched


# What is shared

@pytest.mark.parametrize(("runs", "block"), [(("pilot", "full"), 4), (("full", "pilot"), 4), (("pilot", "full"), 64)])
def test_a_pilot_and_a_full_run_share(logits_of, clean, cache, opened, monkeypatch, runs, block):
    monkeypatch.setattr(f"{FEATURES}.BLOCK", block)
    limits = {"pilot": ("TEST.LIMIT", 5), "full": ()}
    expected = {name: logits_of(clean, f"{name} alone", *limits[name]) for name in runs}
    opened.clear()
    for name in runs:
        logits = logits_of(clean, name, *limits[name], *cache)
        assert np.array_equal(logits, expected[name])
    assert len(opened) == len(set(opened)) == 12


def test_labels_class_names_and_methods_share(logits_of, clean, cache, opened):
    logits_of(clean, "first", *cache)
    opened.clear()
    (clean / "classnames.txt").write_text("kind_a cat\nkind_b dog\nkind_c ship\nkind_d truck\n")
    for trainer, opts in (("TPT", ()), ("SoC", ("TTA.STEPS", 2)), ("RTPT", ())):
        logits_of(clean, trainer, *cache, *opts, trainer=trainer)
    assert not opened
    for opts in (("SEED", 1), ("TTA.VIEWS", 11), ("TTA.AUGMIX", "off"), ("MODEL.PREC", "bf16")):
        logits_of(clean, str(opts), *cache, *opts)
        assert len(opened) == 12, opts
        opened.clear()


@pytest.mark.parametrize("trainer", ["TPT", "ZeroShot"])
def test_a_store_changes_no_bit(logits_of, clean, cache, trainer):
    """Features are rounded to the stored type in any case. Of fp32, see the tests of two
    folders."""
    opts = ("MODEL.PREC", "bf16")
    alone = logits_of(clean, "alone", *opts, trainer=trainer)
    for folder in ("written", "read"):
        stored = logits_of(clean, folder, *opts, *cache, trainer=trainer)
        assert np.array_equal(alone, stored)


def test_a_file_does_not_grow_without_end(logits_of, clean, cache, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{FEATURES}.MOST_ROWS", 20)
    for number in range(3):
        assert len(logits_of(clean, f"run {number}", *cache)) == 12
        for path, image in zip(sorted(clean.rglob("*.bmp")), noise(number, 12), strict=True):
            image.save(path)
    (file,) = (tmp_path / "cache").glob("views-*/*.npz")
    with np.load(file) as arrays:
        assert len(arrays["index"]) == 20
