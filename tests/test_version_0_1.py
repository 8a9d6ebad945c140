"""What version 0.1 left on disk: still read, or refused with the reason. The fixtures were written by that version."""
from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.config.defaults import get_cfg_default
from promptcal.trainers.config.fingerprint import check_same
from promptcal.trainers.engine.cache import ArrayCache
from promptcal.trainers.report.load import find_runs
from promptcal.trainers.report.write import write_report
from promptcal.trainers.runs.run_dir import RunDir

FIXTURES = Path(__file__).parent / "fixtures" / "version_0_1"


@pytest.fixture
def old(tmp_path: Path, monkeypatch) -> Path:
    """A copy of the folder in which version 0.1 ran `train.py`."""
    shutil.copytree(FIXTURES, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def trainer(name: str, folder: str, *opts: object):
    return build_trainer(build_cfg(name, "configs/datasets/image_folder.yaml", flags=[
        "DATASET.ROOT", "images", "MODEL.BACKBONE.NAME", "weights.safetensors", "OUTPUT_DIR", folder,
        "TTA.VIEWS", 16, "TEST.PART", 4, "CACHE.DIR", "cache", "DATALOADER.NUM_WORKERS", 0, *opts]))


def test_a_finished_run_stays_finished(old: Path, caplog):
    caplog.set_level("INFO", "promptcal")
    results = trainer("SoC", "finished").run()
    assert "nothing to compute" in caplog.text and results["versions"]["promptcal"] == "0.1.0"


def test_a_new_setting_invalidates_nothing(old: Path, monkeypatch, caplog):
    """A setting that the finished run has never heard of counts as its default there."""
    caplog.set_level("INFO", "promptcal")

    def with_a_new_key():
        cfg = get_cfg_default()
        cfg.TTA.FOO = 0
        return cfg

    for place in ("layers", "fingerprint"):
        monkeypatch.setattr(f"promptcal.trainers.config.{place}.get_cfg_default", with_a_new_key)
    trainer("SoC", "finished").run()
    assert "nothing to compute" in caplog.text
    with pytest.raises(ConfigError, match=r"TTA.FOO was 0, is 1"):
        trainer("SoC", "finished", "TTA.FOO", 1).run()


def test_a_run_of_a_later_version_is_told_apart(old: Path):
    with pytest.raises(ConfigError, match="TTA.LATER was 3, is None"):
        check_same({"SEED": 0}, {"SEED": 0, "TTA.LATER": 3}, old)


def test_an_interrupted_run_is_refused_because_its_views_were_others(old: Path):
    before = sorted(path.name for path in (old / "interrupted" / "parts").iterdir())
    with pytest.raises(ConfigError, match=r"views were made by pillow-1.*\(tensor-4\): choose another --output-dir"):
        trainer("TPT", "interrupted").run()
    assert sorted(path.name for path in (old / "interrupted" / "parts").iterdir()) == before


def test_the_view_cache_is_set_aside_with_the_reason(old: Path, caplog):
    """Mixed without rounding, views differ a little, and so do predictions; the zero-shot ones do not."""
    caplog.set_level("INFO", "promptcal")
    results = trainer("SoC", "again").run()
    assert "views as version 0.1 made them (pillow-1)" in caplog.text and results["views"] == "tensor-4"
    ours, theirs = (RunDir(Path(name)).predictions() for name in ("again", "finished"))
    np.testing.assert_allclose(ours["zero_shot_logits"], theirs["zero_shot_logits"], atol=1e-4)
    assert 0 < np.abs(ours["logits"] - theirs["logits"]).max() < 1


def test_its_key_and_checksums_are_understood(old: Path):
    folder = next((old / "cache").glob("views-*"))
    cache = ArrayCache(old / "cache", "views", json.loads((folder / "key.json").read_text()))
    array, facts = cache.read("0000000-0000003")
    assert cache.folder == folder and array.shape == (4, 16, 16) and facts["index"] == [0, 1, 2, 3]


def test_the_report_reads_it(old: Path):
    runs, notes = find_runs(["finished"])
    assert [run.trainer for run in runs] == ["SoC"] and not notes
    report = write_report([Path("finished")], Path("report"), repeats=0, with_figures=False)
    assert report.page.is_file()
