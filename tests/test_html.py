"""The report page: one file, nothing from outside, safe against odd names. In a real browser: test_browser.py."""
import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from made_runs import make_run
from markupsafe import escape
from promptcal.datasets import build_dataset
from promptcal.trainers.report import thumbnails as material
from promptcal.trainers.report.load import read_run, text_similarity
from promptcal.trainers.report.measure import measure
from promptcal.trainers.report.write import write_report

EVIL = "<script>alert('x')</script> & \"q\""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    names = [EVIL, *(f"class {k}" for k in range(1, 8))]
    for trainer in ("OTPT", "SoC"):
        make_run(root, trainer, n=150, classnames=names, folder=f"<{trainer}>")
    return write_report([root], root / "report", repeats=5, published=True).page


class Outline(HTMLParser):
    """Checks that tags close in order, and gathers addresses and texts."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for key, value in attrs if key in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_one_well_formed_file_without_network_in_which_names_are_text(page):
    text = page.read_text(encoding="utf-8")
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert all(address.startswith(("data:", "#")) for address in outline.addresses)
    assert outline.tags.count("script") == 2  # the page's own, and the thumbnails as inert JSON
    assert "@import" not in text
    assert "<script>alert" not in text and str(escape(EVIL)) in text and html.escape("<SoC>") in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}  # clip paths of the figures
    assert text.count('<details class="run" id="run-') == 2 and text.count('class="mistake"') == 24
    for words in ("of the tuned methods", "Classwise ECE", "TTA.STEPS", "SoC (published: ", "var(--ink"):
        assert words in text, words
    figures = re.findall(r'<figure[^>]* id="figure-([^"]+)"', text)
    assert {"reliability_grid", "selective_ucf101", "sals"} <= set(figures)


def test_the_thumbnail_of_a_mistake_of_several_runs_is_stored_once(tmp_path):
    dataset = build_dataset("LandCover", "")
    facts = {"dataset": "LandCover", "n": 1, "classes": len(dataset.classnames), "classnames": dataset.classnames,
             "index": [400], "label": [dataset.test[400].label]}
    for trainer in ("TPT", "SoC"):
        folder = make_run(tmp_path, trainer, **facts)
        logits = 9.0 * np.eye(len(dataset.classnames))[[(dataset.test[400].label + 1) % len(dataset.classnames)]]
        arrays = dict(np.load(folder / "predictions.npz"))
        np.savez(folder / "predictions.npz", **{**arrays, "logits": logits})
    text = write_report([tmp_path], tmp_path / "report", repeats=0, with_figures=False).page.read_text(encoding="utf-8")
    assert text.count('data-thumbnail="t0"') == 2
    store = json.loads(re.search(r'id="thumbnails">(.*?)</script>', text)[1])
    measured = measure(read_run(folder))
    assert list(store.values()) == list(material.thumbnails(measured.run, measured.mistakes).values())


def test_missing_or_other_data_means_no_thumbnails(tmp_path):
    other = measure(read_run(make_run(tmp_path, dataset="LandCover", n=50, classes=24)))  # with other class names
    gone = measure(read_run(make_run(tmp_path, dataset="UCF101", data_root=str(tmp_path / "none"))))
    for measured in (other, gone):
        assert measured.mistakes and material.thumbnails(measured.run, measured.mistakes) == {}
    assert text_similarity(gone.run) is None
