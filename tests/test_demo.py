"""The demo on few tiles, and its summary on made-up runs whose truth is known."""
from __future__ import annotations

import re

import pytest
from promptcal.tools import demo
from promptcal.trainers.functional import BINS
from promptcal.trainers.report.core import make_tests
from promptcal.trainers.report.figures.reliability import SHOWN_BINS, overview, summarise
from promptcal.trainers.report.layout import default_layout

from made_runs import SHARPNESS, compared, make_run


@pytest.mark.slow
def test_terminal_and_page_say_what_it_is_evidence_of(tmp_path, capsys):
    demo.main(["--out", str(tmp_path), "--images", "6"])
    output = capsys.readouterr().out
    assert "Zero-shot" in output and "20 bins" in output and demo.EVIDENCE in output
    sentence = re.search(r"^.*TPT and SoC.*$", output, re.MULTILINE)[0]
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
    """TPT has the sharpest logits: every other method is better calibrated, and 800 images show it."""
    assert tests.baseline == "TPT" and len(tests.against_baseline) == 4
    assert [pair.better is pair.second for pair in tests.against_baseline] == [True] * 4
    summaries = summarise(tests.grid, tests.against_baseline)
    assert {len(summary.diagram.table.count) for summary in summaries} == {SHOWN_BINS} and SHOWN_BINS < BINS
    differs = {summary.diagram.method: summary.differs for summary in summaries}
    assert differs == {"ZeroShot": True, "TPT": False, "CTPT": True, "OTPT": True, "SoC": True}
    figure = overview(tests.grid, tests.against_baseline, tests.baseline)
    assert "800 images" in figure.caption and "Holm over 4" in figure.caption

    findings = tests.verdict.findings
    assert len(findings) == 4
    for finding in findings:
        assert "is better calibrated than TPT on the same 800 images (p " in finding
        assert "Holm over 4" in finding
