"""The demo's picture and sentences, on made-up runs whose truth is known."""
from __future__ import annotations

import pytest
from made_runs import SHARPNESS, make_run
from promptcal.trainers.report.demo_summary import BINS, SHOWN_BINS, overview, sentences, standings
from promptcal.trainers.report.reading import read_run


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("runs")
    return standings([read_run(make_run(root, trainer, n=800)) for trainer in SHARPNESS], "TPT")


def test_each_method_stands_beside_the_reference(found):
    """TPT is made the sharpest, so every other method's ECE is lower, and 800 images suffice to tell."""
    changes = {standing.diagram.method: standing.change for standing in found}
    assert list(changes) == list(SHARPNESS) and changes["TPT"] is None
    assert all(change.real and change.value < 0 for method, change in changes.items() if method != "TPT")
    ece = {standing.diagram.method: standing.diagram.ece for standing in found}
    assert changes["SoC"].value == pytest.approx(ece["SoC"] - ece["TPT"])


def test_diagrams_have_few_bins_and_the_table_s_error(found, tmp_path):
    for standing in found:
        run = read_run(make_run(tmp_path, standing.diagram.method, n=800))
        assert len(standing.diagram.table.count) == SHOWN_BINS < BINS
        assert 100 * standing.diagram.ece == pytest.approx(run.results["ece"])


def test_sentences_say_what_tuning_did_and_what_is_chance(found):
    first, *others = sentences(found, "TPT")
    assert first.startswith("TPT against Zero-shot:") and "ECE +" in first and "real" in first
    assert [line.split(" against ")[0] for line in others] == ["C-TPT", "O-TPT", "SoC"]
    assert all("ECE -" in line for line in others)


def test_a_method_that_changes_nothing_may_be_chance(tmp_path):
    runs = [read_run(make_run(tmp_path, trainer, sharpness=2.0)) for trainer in ("TPT", "SoC")]
    (line,) = sentences(standings(runs, "TPT"), "TPT")
    assert "may be chance" in line


def test_picture_is_small_enough_for_a_readme(found, tmp_path):
    picture = overview(found, "TPT")
    picture.figure.savefig(tmp_path / "overview.png", dpi=130)
    assert 20e3 < (tmp_path / "overview.png").stat().st_size < 200e3
    assert "800 images" in picture.caption
