"""A report that would come out the same is recognised, and one that would not is not."""
from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import make_run
from promptcal.trainers.report import stamp


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path, "TPT", n=20)


@pytest.fixture
def out(tmp_path: Path, run: Path) -> Path:
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "report.html").write_text("<p>")
    stamp.remember(folder, stamp.made_from([run]), ["a sentence"])
    return folder


def test_an_unchanged_report_tells_what_it_told(run: Path, out: Path):
    assert stamp.told_before(out, stamp.made_from([run])) == ["a sentence"]


def test_other_predictions_or_code_make_another_report(run: Path, out: Path, tmp_path: Path, monkeypatch):
    before = stamp.made_from([run])
    assert stamp.made_from([run, make_run(tmp_path, "SoC", n=20)]) != before
    package = tmp_path / "package"
    (package / "trainers").mkdir(parents=True)
    monkeypatch.setattr(stamp, "PACKAGE", package)
    (package / "trainers" / "tpt.py").write_text("1")
    first = stamp.made_from([run])
    (package / "trainers" / "tpt.py").write_text("2")
    assert len({before, first, stamp.made_from([run])}) == 3
    monkeypatch.undo()
    (run / "predictions.npz").write_bytes(b"other")
    assert stamp.made_from([run]) != before
    assert stamp.told_before(out, stamp.made_from([run])) is None


@pytest.mark.parametrize("damage", [
    lambda out: (out / "report.html").unlink(), stamp.forget, lambda out: (out / stamp.STAMP).write_text("[")])
def test_a_lost_page_or_stamp_means_writing_anew(run: Path, out: Path, damage):
    damage(out)
    assert stamp.told_before(out, stamp.made_from([run])) is None
