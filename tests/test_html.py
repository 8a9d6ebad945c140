"""The report page: one file, nothing from outside, safe against odd names.

test_browser.py opens it in a real browser.
"""
import html
import json
import re
from html.parser import HTMLParser

import pytest
from markupsafe import escape

from common import make_image_folder, run_tool
from made_runs import make_run, report_on

EVIL = "<script>alert('x')</script> & \"q\""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    names = [EVIL, "b", "c", "d", "e", "f", "g", "h"]
    for trainer in ("OTPT", "SoC"):
        make_run(root, trainer, n=150, classnames=names, folder=f"<{trainer}>")
    return report_on(root, with_figures=True).page


class Outline(HTMLParser):
    """Checks that tags close in order, and gathers addresses and texts."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self):
        super().__init__()
        self.open = []
        self.addresses = []
        self.tags = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            if key in ("src", "href", "xlink:href"):
                self.addresses.append(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_one_well_formed_file_without_network_in_which_names_are_text(page):
    text = page.read_text(encoding="utf-8")
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    for address in outline.addresses:
        assert address.startswith(("data:", "#"))
    assert outline.tags.count("script") == 2  # the page's own, and the thumbnails as inert JSON
    assert "@import" not in text
    assert "<script>alert" not in text
    assert str(escape(EVIL)) in text and html.escape("<SoC>") in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}  # clip paths of the figures
    assert text.count('<details class="run" id="run-') == 2 and text.count('class="mistake"') == 24
    sections = ("of the tuned methods", "Classwise ECE", "TTA.STEPS", "Debiased RMS error")
    for words in (*sections, "var(--ink"):
        assert words in text, words
    figures = re.findall(r'<figure[^>]* id="figure-([^"]+)"', text)
    assert {"reliability_grid", "selective_ucf101", "sals"} <= set(figures)


@pytest.fixture
def mistaken(clip_file, tmp_path):
    """Runs of two methods on an image folder, whose random weights are mostly wrong."""
    images = make_image_folder(tmp_path / "images")
    for trainer in ("ZeroShot", "TPT"):
        done = run_tool(
            "train.py", "--trainer", trainer, "--dataset-config-file", "image_folder",
            "--root", images, "--backbone", clip_file, "--output-dir", tmp_path / "runs" / trainer,
            "TTA.VIEWS", 10, "DATALOADER.NUM_WORKERS", 0)
        assert done.returncode == 0, done.stderr
    return tmp_path


def thumbnails_of(root, *args):
    done = run_tool("report.py", root / "runs", "--no-figures", *args)
    assert done.returncode == 0, done.stderr
    text = (root / "runs" / "report" / "report.html").read_text(encoding="utf-8")
    return json.loads(re.search(r'id="thumbnails">(.*?)</script>', text)[1]), text


def test_thumbnails_come_from_a_root_that_the_user_gives_and_from_nowhere_else(mistaken):
    """The folder that the runs name is still there, and is not looked at without --root."""
    assert thumbnails_of(mistaken)[0] == {}
    store, text = thumbnails_of(mistaken, "--root", mistaken / "images")
    assert store
    for uri in store.values():
        assert uri.startswith("data:image/jpeg")
    assert text.count("data-thumbnail=") > len(store)  # each picture is stored once for both runs
    above, _ = thumbnails_of(mistaken, "--root", mistaken)
    assert above.keys() == store.keys()
    for path in (mistaken / "images").rglob("*.png"):  # the same name, other content
        path.write_bytes(path.read_bytes() + b" ")
    assert thumbnails_of(mistaken, "--root", mistaken / "images")[0] == {}


def test_a_report_never_reads_below_the_root_of_a_config_and_never_downloads(tmp_path, monkeypatch):
    make_run(tmp_path / "runs", "SoC", "UCF101", n=40)

    def forbidden(*args, **kwargs):
        raise AssertionError("the report looked for data")

    monkeypatch.setattr("promptcal.datasets.build_dataset", forbidden)
    monkeypatch.setattr("socket.create_connection", forbidden)
    done = run_tool("report.py", tmp_path / "runs", "--no-figures")
    assert done.returncode == 0, done.stderr
