"""The report page: one file, nothing from outside, safe against odd names, and right in a real browser."""
import base64
import html
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from made_runs import make_run
from PIL import Image
from promptcal.datasets import build_dataset
from promptcal.trainers.report import thumbnails as material
from promptcal.trainers.report.measure import measure
from promptcal.trainers.report.reading import read_run
from promptcal.trainers.report.write import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDS_BROWSER = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
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

    VOID = ("meta", "img", "br", "link")

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for key, value in attrs if key in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_one_well_formed_file_without_network(page):
    text = page.read_text(encoding="utf-8")
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert all(address.startswith(("data:", "#")) for address in outline.addresses)
    assert outline.tags.count("script") == 1
    assert "@import" not in text
    assert "url(" not in text


def test_odd_names_are_text(page):
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert html.escape(EVIL) in text
    assert html.escape("<SoC>") in text


def test_tables_figures_and_runs_are_there(page):
    text = page.read_text(encoding="utf-8")
    assert "is the best calibrated of the tuned methods" in text
    assert text.count('<details class="run">') == 2
    assert text.count('class="mistake"') == 24
    assert "Classwise ECE" in text
    assert "TTA.STEPS" in text
    assert "SoC (published)" in text
    for image in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", text):
        assert b"<svg" in base64.b64decode(image)


def test_mistakes_have_thumbnails_when_the_data_is_there(tmp_path):
    dataset = build_dataset("LandCover", "")
    index = [0, 400, 900]
    folder = make_run(
        tmp_path, dataset="LandCover", n=3, classes=len(dataset.classnames), classnames=dataset.classnames, index=index,
        label=[dataset.test[i].label for i in index],
    )
    measured = measure(read_run(folder))
    found = material.thumbnails(measured.run, measured.mistakes)
    assert set(found) == {mistake.index for mistake in measured.mistakes}
    text = write_report([tmp_path], tmp_path / "report", repeats=0, with_figures=False).page.read_text(encoding="utf-8")
    assert all(uri in text for uri in found.values())


def test_thumbnails_of_other_data_are_not_shown(tmp_path):
    folder = make_run(tmp_path, dataset="LandCover", n=50, classes=24)  # class names that the data set does not have
    measured = measure(read_run(folder))
    assert measured.mistakes
    assert material.thumbnails(measured.run, measured.mistakes) == {}


def test_absent_data_and_weights_are_no_error(tmp_path):
    run = read_run(make_run(tmp_path, dataset="UCF101", backbone="no/such.pt", data_root=str(tmp_path / "none")))
    measured = measure(run)
    assert material.thumbnails(run, measured.mistakes) == {}
    assert material.text_similarity(run) is None


def test_text_similarity_with_the_runs_own_backbone(clip_file, tmp_path):
    run = read_run(make_run(tmp_path, backbone=str(clip_file), folder="r", classes=5))
    similarity = material.text_similarity(run)
    assert similarity.shape == (5, 5)
    assert similarity.diagonal() == pytest.approx(1)


def test_a_thumbnail_is_small_and_square():
    uri = material.data_uri(Image.new("L", (900, 30)))
    assert uri.startswith("data:image/jpeg;base64,")
    assert len(uri) < 5000


def browse(page, folder, script, *flags, frame=None):
    """What `script` leaves as the body's text once the page has loaded in Chromium; `frame` is a width in pixels."""
    copy = folder / "page.html"
    text = page.read_text(encoding="utf-8")
    if frame:
        copy.write_text(text, encoding="utf-8")
        frame = f'<iframe src="page.html" style="width:{frame}px;height:900px;border:0"></iframe>'
        text = f"<!doctype html><body>{frame}</body>"
        copy = folder / "frame.html"
    probe = f"<script>addEventListener('load', () => {{ document.body.textContent = String({script}); }});</script>"
    copy.write_text(text.replace("</body>", f"{probe}</body>"), encoding="utf-8")
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         f"--user-data-dir={folder / 'profile'}", *flags, "--dump-dom", copy.as_uri()],
        capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0, done.stderr[-500:]
    return re.search(r"<body[^>]*>(.*?)</body>", done.stdout, re.DOTALL).group(1)


@NEEDS_BROWSER
def test_a_click_sorts_each_block_and_a_second_turns_it_round(page, tmp_path):
    script = """(() => {
      const table = document.querySelector("table.sortable"), body = table.tBodies[1];
      const column = 1, head = table.tHead.querySelectorAll("th")[column];
      const values = () => [...body.rows].slice(1).map(row => Number(row.cells[column].dataset.value));
      head.querySelector("button").click(); const up = values();
      head.querySelector("button").click(); const down = values();
      const sorted = [...up].sort((a, b) => a - b);
      return [up.length > 3, up.join() === sorted.join(), down.join() === sorted.reverse().join(),
              body.rows[0].className, head.getAttribute("aria-sort")].join(" ");
    })()"""
    assert browse(page, tmp_path, script) == "true true true block descending"


@NEEDS_BROWSER
def test_a_phone_needs_no_sideways_scrolling(page, tmp_path):
    script = "(w => [w.innerWidth, w.document.documentElement.scrollWidth])(frames[0])"
    inner, content = map(int, browse(page, tmp_path, script, frame=390).split(","))
    assert inner == 390
    assert content <= 390


@NEEDS_BROWSER
@pytest.mark.parametrize(("scheme", "dark"), [("1", False), ("0", True)])
def test_light_and_dark(page, tmp_path, scheme, dark):
    script = r"getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number).reduce((a, b) => a + b)"
    brightness = int(browse(page, tmp_path, script, f"--blink-settings=preferredColorScheme={scheme}"))
    assert (brightness < 200) == dark


@NEEDS_BROWSER
def test_every_image_loads(page, tmp_path):
    copy = tmp_path / "eager.html"
    copy.write_text(page.read_text(encoding="utf-8").replace('loading="lazy"', ""), encoding="utf-8")
    script = "(i => [i.length >= 5, i.every(x => x.complete && x.naturalWidth > 0)])([...document.images])"
    assert browse(copy, tmp_path, script) == "true,true"
