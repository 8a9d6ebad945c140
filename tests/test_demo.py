"""The demo as a newcomer meets it, on few tiles: one table, the sentences, the picture, the page."""
from __future__ import annotations

from pathlib import Path

import pytest
from promptcal.tools import demo


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    demo.main(["--out", str(out), "--images", "6"])
    return out


@pytest.mark.slow
def test_terminal_and_page_say_what_it_is_evidence_of(shown: Path, capsys: pytest.CaptureFixture):
    """The second call finds every run finished and the report as it would be written; it tells the same."""
    written = (shown / "report" / "report.html").stat().st_mtime_ns
    demo.main(["--out", str(shown), "--images", "6"])
    told = capsys.readouterr().out
    assert (shown / "report" / "report.html").stat().st_mtime_ns == written
    assert "Zero-shot" in told and "20 bins" in told
    assert "TPT against Zero-shot: accuracy" in told and "SoC against TPT: accuracy" in told
    assert demo.EVIDENCE in told
    page = (shown / "report" / "report.html").read_text(encoding="utf-8")
    assert "What this is evidence of" in page and "It says nothing of photographs" in page


@pytest.mark.slow
def test_picture_is_written(shown: Path):
    assert (shown / "report" / "figures" / "overview.png").stat().st_size > 20e3
