"""The demo on few tiles, and its summary on made-up runs whose truth is known."""
from __future__ import annotations

import pytest
from promptcal.tools import demo
from promptcal.trainers.functional import BINS
from promptcal.trainers.report.core import make_tests
from promptcal.trainers.report.demo_summary import SHOWN_BINS, overview, summarise
from promptcal.trainers.report.layout import default_layout

from made_runs import SHARPNESS, compared, make_run


@pytest.mark.slow
def test_terminal_and_page_say_what_it_is_evidence_of(tmp_path, capsys):
    demo.main(["--out", str(tmp_path), "--images", "6"])
    told = capsys.readouterr().out
    assert "Zero-shot" in told and "20 bins" in told and demo.EVIDENCE in told
    sentence = next(line for line in told.splitlines() if "between TPT and SoC" in line or "TPT and SoC" in line)
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert sentence in page  # the same p for the same family
    assert "What this is evidence of" in page and "small CLIP" in page
    assert (tmp_path / "report" / "figures" / "overview.png").stat().st_size > 20e3
    assert len(list((tmp_path / "SoC" / "tensorboard" / "tuned").glob("*.figures"))) == 1


@pytest.fixture(scope="module")
def tests(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("runs")
    for trainer in SHARPNESS:
        make_run(root, trainer, n=800)
    return make_tests(compared(root), default_layout(baseline="TPT"))[0]


def test_each_method_is_compared_with_the_reference(tests):
    """TPT is made the sharpest, so every other method is better calibrated, and 800 images suffice to show it."""
    assert tests.baseline == "TPT" and len(tests.against_baseline) == 4
    assert all(pair.better is pair.second for pair in tests.against_baseline)
    summaries = {summary.diagram.method: summary for summary in summarise(tests.grid, tests.against_baseline)}
    assert {name: summary.differs for name, summary in summaries.items()} == {
        "ZeroShot": True, "TPT": False, "CTPT": True, "OTPT": True, "SoC": True}
    assert len(summaries["SoC"].diagram.table.count) == SHOWN_BINS < BINS
    figure = overview(tests.grid, tests.against_baseline, tests.baseline)
    assert "800 images" in figure.caption and "Holm over 4" in figure.caption


def test_findings_say_what_changes(tests):
    findings = tests.verdict.findings
    assert len(findings) == 4
    assert sum("is better calibrated than TPT on the same 800 images (p " in finding for finding in findings) == 4
    assert all("Holm over 4" in finding for finding in findings)
