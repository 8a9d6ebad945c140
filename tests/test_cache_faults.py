"""The view cache removed, cut or damaged while a run reads it, built by two runs at once, and images repaired."""
from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from processes import Process
from promptcal.datasets.utils.errors import UserError
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.runs.run_dir import RunDir, read_predictions

SETTINGS = ("TEST.PART", 3, "TTA.VIEWS", 10, "TTA.EPISODES", 2, "DATALOADER.NUM_WORKERS", 0, "TTA.JACOBIAN", "off")


@pytest.fixture
def run(clip_file: Path, image_folder: Path, tmp_path: Path):
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
        for file in folder.glob("*.npy"):
            content = file.read_bytes()
            middle = len(content) // 2
            if how == "cut":
                os.truncate(file, middle)
            elif how == "flipped":
                file.write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
            elif how == "emptied":
                file.with_suffix(".json").write_text("")


@pytest.mark.parametrize(("trainer", "how"), [
    ("TPT", "removed"), ("TPT", "cut"), ("TPT", "flipped"), ("TPT", "emptied"), ("TDA", "removed"), ("TDA", "flipped")])
def test_a_cache_that_goes_bad_while_it_is_read(run, tmp_path: Path, monkeypatch, trainer: str, how: str):
    """TPT reads shards in order; TDA, which is online, in random order, with one shard in memory."""
    monkeypatch.setattr("promptcal.trainers.engine.features.MEMORY", 1)
    monkeypatch.setattr("promptcal.trainers.engine.features.SHARD", 3)
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


def test_a_disk_that_goes_away_while_the_cache_is_made(run, tmp_path: Path, monkeypatch):
    """It becomes read-only, as a failed disk does, after the first shard: the run ends with one line, and the same
    command continues."""
    monkeypatch.setattr("promptcal.trainers.engine.features.SHARD", 3)
    real, cache = os.replace, tmp_path / "cache"

    def replace(source, target):
        if cache in Path(target).parents and list(cache.glob("views-*/*.json")):
            raise OSError(errno.EROFS, "Read-only file system")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(UserError, match=f"^cannot write {cache}.*: Read-only file system; .*choose another"):
            run("ZeroShot", "run", "TTA.VIEWS", 1, "TTA.SELECT", 1)
    assert not (tmp_path / "run" / "lock").exists()
    assert run("ZeroShot", "run", "TTA.VIEWS", 1, "TTA.SELECT", 1)["index"].tolist() == list(range(12))


@pytest.mark.parametrize("trainer", ["TPT", "TDA"])
def test_a_repaired_image_is_read_again(run, image_folder: Path, trainer: str):
    """With the same name and size: another image, so that runs with the bad one are not continued."""
    victim = image_folder / "kind_b" / "1.png"
    whole = victim.read_bytes()
    victim.write_bytes(bytes(len(whole)))
    assert 4 not in run(trainer, "skipping", "DATALOADER.ON_BAD_IMAGE", "skip")["index"]
    assert 4 not in run(trainer, "again", "DATALOADER.ON_BAD_IMAGE", "skip")["index"]
    with pytest.raises(UserError, match=r"kind_b/1\.png"):
        run(trainer, "strict")
    victim.write_bytes(whole)
    assert run(trainer, "repaired", "DATALOADER.ON_BAD_IMAGE", "skip")["index"].tolist() == list(range(12))
    with pytest.raises(UserError, match="data was"):
        run(trainer, "strict")
    assert run(trainer, "strict again")["index"].tolist() == list(range(12))


@pytest.mark.slow
def test_two_runs_that_build_the_same_cache(run, clip_file: Path, image_folder: Path, tmp_path: Path):
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
