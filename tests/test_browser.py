"""The report page in a real browser: what a reader clicks, in both themes, on a phone, with hostile
names."""
import warnings

import pytest

from browser import Visit, launched
from made_runs import make_run, numbered, report_on

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)> & \"q\""
PHONE = {"width": 390, "height": 844}
BRIGHTNESS = """(element, key) =>
    getComputedStyle(element)[key].match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b)"""
SORT_VALUES = "body => [...body.rows].map(row => row.cells[1].dataset.value)"
OPEN_ALL = "document.querySelectorAll('details').forEach(part => { part.open = true; })"


@pytest.fixture(scope="module")
def browser():
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    options = {"n": 120, "classnames": [EVIL, *numbered("class", 7, first=1)]}
    for trainer in ("TPT", "OTPT", "SoC"):
        for dataset in ("UCF101", "EuroSAT"):
            for seed in (0, 1):
                folder = f"<{trainer}>/{dataset}/{seed}"
                make_run(root, trainer, dataset, seed, folder=folder, **options)
    make_run(root, EVIL, "UCF101", folder="evil", changes={"data.listing": EVIL}, **options)
    for steps in (1, 2):  # tables and figures of sweeps
        make_run(root, "SoC", "EuroSAT", settings={"TTA.STEPS": steps}, folder=f"steps/{steps}", **options)
    for weight in (5, 60):
        make_run(root, "SoC", "UCF101", settings={"TRAINER.SOC.LAMBDA": weight},
                 folder=f"lambda/{weight}", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a figure without room for what it shows
        return report_on(root, with_figures=True).page


def test_a_click_sorts_a_table_and_a_second_reverses_it(browser, page):
    with Visit(browser, page) as view:
        table = view.locator("table.sortable").nth(1)  # ECE, beside accuracy
        head = table.locator("thead th").nth(1)
        button = head.locator("button")
        assert "↕" in button.evaluate("b => getComputedStyle(b, '::after').content")
        button.click()
        cells = table.locator("tbody").evaluate(SORT_VALUES)
        values = [float(cell) for cell in cells if cell]
        assert len(values) > 3 and values == sorted(values)
        assert not any(cells[len(values) :])  # empty cells stay last
        assert head.get_attribute("aria-sort") == "ascending"
        button.focus()
        view.keyboard.press("Enter")
        cells = table.locator("tbody").evaluate(SORT_VALUES)
        assert [float(cell) for cell in cells if cell] == values[::-1]


def test_filters_narrow_the_list_and_the_sections(browser, page):
    with Visit(browser, page) as view:
        runs = view.locator("details.run")
        assert view.locator(".filters output").inner_text() == "17 of 17 runs"
        view.locator("[data-filter=method]").select_option("SoC")
        view.locator("[data-filter=seed]").select_option("1")
        assert view.locator(".filters output").inner_text() == "2 of 17 runs"
        assert runs.locator("visible=true").filter(has=view.locator("summary")).count() >= 2
        visible = view.locator("table.runs tbody tr:visible th").all_inner_texts()
        assert visible == ["SoC on UCF101", "SoC on EuroSAT"]
        view.locator("[data-filter=text]").fill("eurosat")
        assert view.locator("table.runs tbody tr:visible").count() == 1
        view.locator("table.runs tbody tr:visible a").click()
        section = view.locator("details.run:visible")
        assert section.count() == 1 and section.evaluate("part => part.open")
        assert section.locator("svg.diagram").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes_reach_page_and_figures(browser, page, scheme):
    with Visit(browser, page, color_scheme=scheme) as view:
        ground = view.locator("body").evaluate(f"e => ({BRIGHTNESS})(e, 'backgroundColor')")
        assert (ground < 200) == (scheme == "dark")
        ink = view.locator("figure svg text").first.evaluate(f"e => ({BRIGHTNESS})(e, 'fill')")
        assert (ink > 400) == (scheme == "dark")


def test_a_phone_needs_no_sideways_scrolling(browser, page):
    with Visit(browser, page, viewport=PHONE) as view:
        view.evaluate(OPEN_ALL)
        assert view.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        wide = view.locator(".scroll.wide").first
        assert "scroll sideways" in wide.evaluate("box => getComputedStyle(box, '::after').content")
        assert wide.get_attribute("tabindex") == "0"
        button = view.locator("button.zoom").first
        button.click()  # enlarges the figure, which then scrolls
        enlarged = view.locator("dialog svg").bounding_box()
        assert enlarged["width"] > 1.5 * PHONE["width"] > button.bounding_box()["width"]
        assert view.locator("dialog div").evaluate("box => box.scrollWidth > box.clientWidth")
        view.keyboard.press("Escape")
        assert not view.locator("dialog").is_visible()


def test_what_a_screen_reader_needs_and_names_are_text(browser, page):
    with Visit(browser, page) as view:
        assert view.locator("table:not(:has(caption))").count() == 0
        assert view.locator("table th:not([scope])").count() == 0
        assert view.locator("svg:not([role]):not(button svg)").count() == 0
        ids = view.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids))
        view.evaluate(OPEN_ALL)
        assert view.locator("img[onerror]").count() == 0
        assert EVIL in view.locator("body").inner_text()
