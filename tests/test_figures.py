"""Figures by the data that their axes hold, never by pixels."""
import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.registry import TRAINER_REGISTRY, method_info
from promptcal.trainers.report.figures import class_pairs, comparison, reliability, style
from promptcal.trainers.report.figures.comparison import BeforeAfter, Point, draw_plane, pareto_front
from promptcal.trainers.report.figures.select import layout_figures
from promptcal.trainers.report.layout import Layout

from made_runs import make_run, measured_runs, numbered, simulate


@pytest.fixture(scope="module")
def outcome():
    label, logits, _ = simulate(sharpness=2.0)
    return cal.top_class(logits, label)


def bars(axes):
    return [patch for patch in axes.patches if patch.get_width() > 0]


def heights(axes):
    return [bar.get_height() for bar in bars(axes)]


def texts(artists):
    return [artist.get_text() for artist in artists]


def colour(rgba):
    return to_hex(rgba).upper()


def test_a_diagram_shows_its_data(outcome):
    data = reliability.diagram("SoC", *outcome)
    assert data.ece == cal.ece(*outcome) and data.table.count.sum() == data.n == len(outcome[0])
    assert data.confidence - data.accuracy == pytest.approx(cal.signed_error(*outcome))
    top, strip = reliability.draw_grid({"SoC": {"UCF101": data}}).axes
    filled = data.table.count > 0
    accuracies = heights(top)[: filled.sum()]
    np.testing.assert_allclose(sorted(accuracies), sorted(data.table.accuracy[filled]))
    assert f"ECE {100 * data.ece:.1f}" in texts(top.texts)
    np.testing.assert_allclose(strip.images[0].get_array()[0] ** 2, data.density)
    expected = style.lighter(method_info("SoC").colour, 0.25)
    assert colour(bars(top)[0].get_facecolor()) == expected


def test_gaps_are_coloured_by_direction():
    data = reliability.diagram("SoC", np.array([0.3, 0.9]), np.array([1, 0]), bins=2)
    top = reliability.draw_grid({"SoC": {"UCF101": data}}).axes[0]
    over, under = [bar for bar in bars(top) if bar.get_hatch()]
    assert colour(over.get_edgecolor()) == style.OVER
    assert over.get_height() == pytest.approx(0.9)
    assert colour(under.get_edgecolor()) == style.UNDER
    assert under.get_height() == pytest.approx(-0.7)


def titles(figure):
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def row_labels(figure):
    return [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()]


def test_a_grid_has_a_panel_per_method_and_data_set(outcome):
    data = reliability.diagram("SoC", *outcome)
    figure = reliability.draw_grid({"OTPT": {"DTD": data}, "SoC": {"DTD": data, "Pets": data}})
    # Also of the row with a gap.
    assert (titles(figure), row_labels(figure)) == (["DTD", "Pets"], ["O-TPT", "SoC"])
    panels = [axes for axes in figure.axes if axes.patches and not axes.images]
    assert len(panels) == 3
    turned = reliability.draw_grid({
        "OTPT": {"Pets": data, "DTD": data}, "SoC": {"Pets": data}, "TPT": {"Pets": data},
    })
    assert (titles(turned), row_labels(turned)) == (["O-TPT", "SoC", "TPT"], ["Pets", "DTD"])
    names = ["ZeroShot", "TPT", "RTPT", "Penalty", "ZSNorm", "CTPT", "OTPT", "SoC"]
    long = reliability.draw_grid({name: {"DTD": data} for name in names})
    assert titles(long)[-2:] == ["O-TPT", "SoC"] and len(titles(long)) == 8
    assert long.get_figwidth() < 11 and not long.axes[-1].axison


def test_selection_matches_counting(outcome):
    confidence, correct = outcome
    data = cal.selective(confidence, correct, reliability.THRESHOLDS)
    figure = reliability.draw_selective({"ZeroShot": data, "SoC": data}, "DTD")
    line = figure.axes[0].lines[1]
    accuracy_above = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    assert accuracy_above[0.5] == correct[confidence > 0.5].mean()
    np.testing.assert_array_equal(figure.axes[1].lines[0].get_ydata(), data[1])
    assert texts(figure.legends[0].get_texts()) == ["Zero-shot", "SoC"]


def test_pairs_and_panels_show_their_values():
    groups = {
        "Pets": {"SoC": BeforeAfter(3, 2)},
        "DTD": {"TPT": BeforeAfter(14, 10), "SoC": BeforeAfter(11, 9)},
    }
    figure = comparison.draw_pairs({"ECE (%)": groups}, "plain", "SaLS")
    assert heights(figure.axes[0]) == [14, 10, 3, 2, 11, 9]
    assert [bool(bar.get_hatch()) for bar in bars(figure.axes[0])] == [False, True] * 3
    assert texts(figure.legends[0].get_texts())[:2] == ["TPT", "SoC"]  # the order of papers
    panels = {
        "ECE (%)": {"": {"SoC": BeforeAfter(5.4, 6.6)}},
        "accuracy (%)": {"": {"SoC": BeforeAfter(72.3, 71.8)}},
    }
    left, right = comparison.draw_pairs(panels, "one step", "two steps", numbers=True).axes
    assert heights(left) == [5.4, 6.6] and left.get_ylim()[0] == 0
    assert right.get_ylim()[0] > 60 and "axis does not start at 0" in texts(right.texts)


@pytest.mark.parametrize("groups", [1, 11])
@pytest.mark.parametrize("methods", [("SoC",), ("TPT", "CTPT", "OTPT", "SoC")])
def test_the_legend_of_pairs_is_not_cut_off(methods, groups):
    row = dict.fromkeys(methods, BeforeAfter(14, 10))
    panel = dict.fromkeys([f"set {n}" for n in range(groups)], row)
    figure = comparison.draw_pairs({"ECE (%)": panel}, "plain", "with SaLS")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and figure.bbox.y0 <= box.y0


def test_a_sweep_is_a_path_in_order_of_lambda_and_near_points_share_a_label():
    sweep = {30.0: Point(71.8, 5.3), 10.0: Point(70, 5), 20.0: Point(70.9, 5.05), 100.0: Point(72.6, 5.2)}
    others = {"TPT": Point(66, 9), "OTPT": Point(72.2, 5.25)}
    axes = draw_plane("", {"SoC": sweep}, others).axes[0]
    assert axes.lines[0].get_xdata().tolist() == [70, 70.9, 71.8, 72.6]
    assert texts(axes.texts) == ["10", "20", "30", "100"]
    near = {30.0: Point(77, 5), 40.0: Point(77.001, 5.001), 10.0: Point(70, 9)}
    axes = draw_plane("", {"SoC": near}, {}).axes[0]
    assert texts(axes.texts) == ["10", "30, 40"]


def test_pareto_front_by_hand():
    best = Point(80, 9)
    cheap = Point(70, 3)
    assert pareto_front([Point(69, 5), best, cheap, Point(80, 12)]) == [cheap, best]


def test_prompts_are_sorted_by_their_worst_method():
    ece = {"bad": {"OTPT": 20.0, "SoC": 9.0}, "good": {"OTPT": 8.0, "SoC": 7.0}}
    axes = comparison.draw_prompts("DTD", ece).axes[0]
    assert texts(axes.get_yticklabels()) == ["“good […]”", "“bad […]”"]


def test_pair_errors_by_hand():
    p = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.6, 0.4]])
    label = np.array([1, 1, 1, 0])
    data = class_pairs.pair_errors(np.log(p), label, np.array([[1, 0.8], [0.8, 1]]))
    assert (data.predicted.tolist(), data.label.tolist(), data.count.tolist()) == ([0], [1], [2])
    assert data.error == pytest.approx([0.8]) and data.similarity.tolist() == [0.8]
    none = class_pairs.pair_errors(np.eye(3) * 9, np.arange(3), np.eye(3))
    assert class_pairs.draw_pair_errors({"SoC": none}).axes[0].get_title() == "SoC: 0 mistakes"
    with pytest.raises(ValueError, match="similarity"):
        class_pairs.pair_errors(np.eye(3), np.arange(3), np.eye(4))


def test_saved_as_png_and_pdf_and_the_same_twice(outcome, tmp_path, real_pictures):
    figure = reliability.draw_grid({"SoC": {"": reliability.diagram("SoC", *outcome)}})
    png, pdf = style.save(figure, tmp_path / "a" / "figure.1")
    png_again, pdf_again = style.save(figure, tmp_path / "b" / "figure.1")
    assert png.read_bytes() == png_again.read_bytes() and pdf.read_bytes() == pdf_again.read_bytes()
    assert png.read_bytes().startswith(b"\x89PNG") and pdf.read_bytes().startswith(b"%PDF")


def test_every_method_has_its_own_colour_in_any_spelling():
    colours = [method_info(name).colour for name in TRAINER_REGISTRY]
    assert len(set(colours)) == len(colours)
    assert method_info("O-TPT").colour == method_info("OTPT").colour == method_info("otpt").colour
    assert method_info("MyMethod").colour not in colours


def test_a_figure_in_the_page_is_short_and_keeps_its_text():
    with style.styled():
        figure = style.new_figure(3, 2)
        axes = figure.subplots()
        axes.plot([0.012345, 0.0456789], [1.23456789, 2.3456789])
        axes.set_xticks([0.0125, 0.0375], ["0.0125", "font-family: 0.0375;"])
    text = style.inline_svg(figure, "x")
    assert len(text) < 0.7 * len(style.encode(figure, "svg", 100))
    assert ">0.0125<" in text and ">font-family: 0.0375;<" in text
    assert not re.search(r'd="[^"]*\.\d{3}', text) and "url(#x-" in text


def make_fog(root, severity, n, trainer="SoC", sharpness=1.5):
    """A run on all fog images of a severity, or on the first ones as with TEST.LIMIT."""
    changes = {"data.corruption": "fog", "data.severity": severity, "data.subset": f"{n} images"}
    make_run(root, trainer, "CIFAR10C", n=n, sharpness=sharpness,
             images=f"fog {severity} {n}", names=numbered(f"fog {severity}", n), changes=changes,
             folder=f"{trainer}{severity} {n}")


def test_severities_are_drawn_from_the_larger_of_two_sets_of_images(tmp_path):
    for severity in (1, 5):
        make_fog(tmp_path, severity, 200)
        make_fog(tmp_path, severity, 40, sharpness=9.0)
    runs = measured_runs(tmp_path).test
    figure, = layout_figures(runs, Layout(figures=["severity"]))
    errors = figure.figure.axes[0].lines[0]
    plotted = {run.record.data["severity"]: 100 * run.value("ece") for run in runs if run.n == 200}
    assert dict(zip(errors.get_xdata(), errors.get_ydata(), strict=True)) == pytest.approx(plotted)
    assert "Test images of each: 200." in figure.caption
    left_out = "Left out: CIFAR-10-C fog 1, 40 images; CIFAR-10-C fog 5, 40 images."
    assert figure.caption.endswith(left_out)
