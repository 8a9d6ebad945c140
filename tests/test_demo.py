"""The demo on few tiles, and its summary on made-up runs whose truth is known."""
from __future__ import annotations

import pytest
from made_runs import SHARPNESS, make_run
from promptcal.tools import demo
from promptcal.trainers.functional import BINS
from promptcal.trainers.report.demo_summary import SHOWN_BINS, overview, sentences, summarise
from promptcal.trainers.report.load import read_run


@pytest.mark.slow
def test_terminal_and_page_say_what_it_is_evidence_of(tmp_path, capsys):
    demo.main(["--out", str(tmp_path), "--images", "6"])
    told = capsys.readouterr().out
    assert "Zero-shot" in told and "20 bins" in told and demo.EVIDENCE in told
    assert "TPT against Zero-shot: accuracy" in told and "SoC against TPT: accuracy" in told
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "What this is evidence of" in page and "small CLIP" in page
    assert (tmp_path / "report" / "figures" / "overview.png").stat().st_size > 20e3
    assert len(list((tmp_path / "SoC" / "tensorboard" / "tuned").glob("*.figures"))) == 1


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("runs")
    return summarise([read_run(make_run(root, trainer, n=800)) for trainer in SHARPNESS], "TPT")


def test_each_method_is_compared_with_the_reference(found, tmp_path):
    """TPT is made the sharpest, so every other method's ECE is lower, and 800 images suffice to show it."""
    changes = {one.diagram.method: one.change for one in found}
    assert list(changes) == list(SHARPNESS) and changes["TPT"] is None
    assert all(change.significant and change.value < 0 for method, change in changes.items() if method != "TPT")
    ece = {one.diagram.method: one.diagram.ece for one in found}
    errors = {one.diagram.method: one.error.value for one in found}
    assert changes["SoC"].value == pytest.approx(errors["SoC"] ** 2 - errors["TPT"] ** 2, abs=1e-3)
    run = read_run(make_run(tmp_path, "SoC", n=800))
    assert 100 * ece["SoC"] == pytest.approx(run.results["ece"])
    assert len(found[0].diagram.table.count) == SHOWN_BINS < BINS
    assert "800 images" in overview(found, "TPT").caption


def test_sentences_say_what_changes_and_what_may_be_chance(found, tmp_path):
    first, *others, last = sentences(found, "TPT")
    assert first.startswith("TPT against Zero-shot:") and "ECE +" in first and "significant" in first
    assert "Holm's method for 4 comparisons" in last
    assert [line.split(" against ")[0] for line in others] == ["C-TPT", "O-TPT", "SoC"]
    assert all("ECE -" in line for line in others)
    runs = [read_run(make_run(tmp_path, trainer, sharpness=2.0)) for trainer in ("TPT", "SoC")]
    line, _ = sentences(summarise(runs, "TPT"), "TPT")
    assert "may be chance" in line
