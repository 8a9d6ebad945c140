"""Figures by the data they show; drawing is tried by what the axes hold, never by pixels."""
import re
from itertools import combinations

import numpy as np
import pytest
from made_runs import compared, make_run, simulate
from matplotlib.colors import to_hex
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.functional import theory
from promptcal.trainers.registry import TRAINER_REGISTRY, method_info
from promptcal.trainers.report.before_after import change_pictures, no_picture, telling_images
from promptcal.trainers.report.figures import class_pairs, matrices, style
from promptcal.trainers.report.figures import comparison as figures_compare
from promptcal.trainers.report.figures import reliability as figures
from promptcal.trainers.report.figures.comparison import Pair, Point
from promptcal.trainers.report.figures.plane import draw_plane, merged_labels, pareto_front
from promptcal.trainers.report.figures.svg import inline_svg
from promptcal.trainers.report.reading import read_run


@pytest.fixture(scope="module")
def outcome():
    label, logits, _ = simulate(sharpness=2.0)
    return cal.top_class(logits, label)


def bars(axes):
    return [patch for patch in axes.patches if patch.get_width() > 0]


def test_diagram_data(outcome):
    data = figures.diagram("title", "SoC", *outcome, bins=10)
    assert data.ece == cal.ece(*outcome, bins=10)
    assert data.table.count.sum() == data.n == len(outcome[0])
    assert data.density.sum() == pytest.approx(1)
    assert data.confidence - data.accuracy == pytest.approx(cal.signed_error(*outcome))


def test_diagram_drawing_shows_the_data(outcome):
    data = figures.diagram("SoC on UCF101", "SoC", *outcome)
    figure = figures.draw_diagram(data)
    top, strip, low = figure.axes
    filled = data.table.count > 0
    heights = sorted(bar.get_height() for bar in bars(top)[: filled.sum()])
    np.testing.assert_allclose(heights, sorted(data.table.accuracy[filled]))
    np.testing.assert_allclose([bar.get_height() for bar in bars(low)], data.table.share)
    assert f"ECE {100 * data.ece:.1f}" in [text.get_text() for text in top.texts]
    assert [line.get_xdata()[0] for line in low.lines] == [data.accuracy, data.confidence]
    np.testing.assert_allclose(strip.images[0].get_array()[0] ** 2, data.density)
    assert to_hex(bars(top)[0].get_facecolor()).upper() == style.lighter(method_info("SoC").colour, 0.25)


def test_gaps_are_coloured_by_direction():
    data = figures.diagram("", "SoC", np.array([0.3, 0.9]), np.array([1, 0]), bins=2)
    top = figures.draw_diagram(data).axes[0]
    under, over = [bar for bar in bars(top) if bar.get_hatch()][::-1]
    assert (to_hex(over.get_edgecolor()).upper(), over.get_height()) == (figures.OVER, pytest.approx(0.9))
    assert (to_hex(under.get_edgecolor()).upper(), under.get_height()) == (figures.UNDER, pytest.approx(-0.7))


def panels_of(figure):
    """Those that show a run."""
    return [axes for axes in figure.axes if axes.axison and axes.patches and not axes.images]


def test_grid_has_a_place_for_each_method_and_data_set(outcome):
    data = figures.diagram("", "SoC", *outcome)
    figure = figures.draw_grid({"OTPT": {"DTD": data}, "SoC": {"DTD": data, "Pets": data}})
    assert len(panels_of(figure)) == 3
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["DTD", "Pets"]
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()] == ["O-TPT", "SoC"]


def test_grid_of_many_methods_lies_on_its_side(outcome):
    data = figures.diagram("", "SoC", *outcome)
    figure = figures.draw_grid({name: {"DTD": data} for name in ("TPT", "OTPT", "SoC")})
    assert [axes.get_title() for axes in panels_of(figure)] == ["TPT", "O-TPT", "SoC"]
    assert figure.get_figwidth() > figure.get_figheight()


def test_a_long_line_of_diagrams_goes_on_below(outcome):
    data = figures.diagram("", "SoC", *outcome)
    names = ["ZeroShot", "TPT", "RTPT", "Penalty", "ZSNorm", "CTPT", "OTPT", "SoC"]
    figure = figures.draw_grid({name: {"DTD": data} for name in names})
    shown = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in shown][-2:] == ["O-TPT", "SoC"] and len(shown) == 8
    assert figure.get_figwidth() < 11 and not figure.axes[-1].axison


def test_selection_matches_counting(outcome):
    confidence, correct = outcome
    data = figures.selection(confidence, correct, [0.0, 0.5, 0.9])
    kept = confidence > 0.5
    assert data.accuracy[1] == correct[kept].mean()
    assert data.coverage[1] == kept.mean()
    figure = figures.draw_selective({"ZeroShot": data, "SoC": data}, "DTD")
    np.testing.assert_array_equal(figure.axes[0].lines[1].get_ydata(), data.accuracy)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Zero-shot", "SoC"]


def test_pairs_are_hatched_after():
    figure = figures_compare.draw_pairs({"DTD": {"OTPT": Pair(14, 10), "SoC": Pair(11, 9)}}, "ECE (%)", "plain", "SaLS")
    shown = bars(figure.axes[0])
    assert [bar.get_height() for bar in shown] == [14, 10, 11, 9]
    assert [bool(bar.get_hatch()) for bar in shown] == [False, True, False, True]


def test_two_panels_show_both_metrics():
    panels = {"ECE (%)": {"SoC": Pair(5.4, 6.6)}, "accuracy (%)": {"SoC": Pair(72.3, 71.8)}}
    left, right = figures_compare.draw_two_panels(panels, "one step", "two steps").axes
    assert [bar.get_height() for bar in bars(left)] == [5.4, 6.6]
    assert left.get_ylim()[0] == 0
    assert right.get_ylim()[0] > 60
    assert "axis does not start at 0" in [text.get_text() for text in right.texts]


@pytest.mark.parametrize("groups", [1, 11])
@pytest.mark.parametrize("methods", [("SoC",), ("CTPT", "OTPT", "SoC"), ("TPT", "CTPT", "OTPT", "SoC")])
def test_the_legend_of_pairs_is_not_cut_off(methods: tuple[str, ...], groups: int):
    row = {method: Pair(14, 10) for method in methods}
    for figure in (
        figures_compare.draw_pairs({f"set {n}": row for n in range(groups)}, "ECE (%)", "plain", "with SaLS"),
        figures_compare.draw_two_panels({"ECE (%)": row, "accuracy (%)": row}, "one step", "two steps"),
    ):
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box, whole = legend.get_window_extent(), figure.bbox
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0


def test_lambda_path_is_in_order_of_lambda():
    sweep = {30.0: Point(77, 5), 10.0: Point(76, 7), 20.0: Point(76.5, 6)}
    axes = draw_plane("DTD", {"SoC": sweep}, {"OTPT": Point(76, 8)}).axes[0]
    assert axes.lines[0].get_xdata().tolist() == [76, 76.5, 77]
    assert {"10", "20", "30"} <= {text.get_text() for text in axes.texts}


def test_labels_that_would_overprint_are_one():
    sweep = {30.0: Point(77, 5), 40.0: Point(77.001, 5.001), 10.0: Point(70, 9)}
    axes = draw_plane("", {"SoC": sweep}, {}).axes[0]
    assert [text for text, _ in merged_labels(sweep, axes)] == ["10", "30, 40"]


def test_pareto_front_by_hand():
    best, cheap, beaten = Point(80, 9), Point(70, 3), Point(69, 5)
    assert pareto_front([beaten, best, cheap, Point(80, 12)]) == [cheap, best]


def test_prompts_are_sorted_by_their_worst_method():
    ece = {"bad": {"OTPT": 20.0, "SoC": 9.0}, "good": {"OTPT": 8.0, "SoC": 7.0}}
    assert figures_compare.sort_prompts(ece) == ["good", "bad"]
    axes = figures_compare.draw_prompts("DTD", ece).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["“good […]”", "“bad […]”"]


def test_pair_errors_by_hand():
    p = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.6, 0.4]])
    data = class_pairs.pair_errors(np.log(p), np.array([1, 1, 1, 0]), np.array([[1, 0.8], [0.8, 1]]))
    assert (data.predicted.tolist(), data.label.tolist(), data.count.tolist()) == ([0], [1], [2])
    assert data.error == pytest.approx([0.8])
    assert data.similarity.tolist() == [0.8]


def test_pair_errors_without_mistakes_can_be_drawn():
    data = class_pairs.pair_errors(np.eye(3) * 9, np.arange(3), np.eye(3))
    assert len(data.count) == 0
    assert class_pairs.draw_pair_errors({"SoC": data}).axes[0].get_title() == "SoC: 0 mistakes"


def test_pair_errors_refuse_a_similarity_of_other_classes():
    with pytest.raises(ValueError, match="similarity"):
        class_pairs.pair_errors(np.eye(3), np.arange(3), np.eye(4))


def test_geometry_figure_states_where_the_floor_holds():
    rng = np.random.default_rng(0)
    before = rng.normal(size=(5, 16)) + 2 * rng.normal(size=16)
    s = theory.similarity(before)
    unit = before / np.linalg.norm(before, axis=1, keepdims=True)
    after = theory.step_features(unit, 2 * s, 1e-4)
    data = class_pairs.spread(before, after, 50.0, theory.on_sphere(s, theory.shift_orthogonal(s, 1e-4)))
    assert data.mu_after < data.mu_before
    assert data.floor_after > data.floor_before
    np.testing.assert_allclose(data.measured, data.predicted, rtol=0.02)
    figure = class_pairs.draw_spread({"OTPT": data})
    assert len(figure.axes) == 3
    assert class_pairs.FLOOR_NOTE in figure.get_supxlabel()
    np.testing.assert_array_equal(figure.axes[2].collections[0].get_offsets()[:, 0], data.predicted)


def test_saved_as_png_and_pdf_and_the_same_twice(outcome, tmp_path, real_pictures):
    figure = figures.draw_diagram(figures.diagram("", "SoC", *outcome))
    first = [path.read_bytes() for path in style.save(figure, tmp_path / "a" / "figure.1")]
    second = [path.read_bytes() for path in style.save(figure, tmp_path / "b" / "figure.1")]
    assert first == second
    assert first[0].startswith(b"\x89PNG")
    assert first[1].startswith(b"%PDF")


def test_every_method_has_its_own_colour_in_any_spelling():
    own = [method_info(name).colour for name in TRAINER_REGISTRY]
    assert len(set(own)) == len(own)
    assert method_info("O-TPT").colour == method_info("OTPT").colour == method_info("otpt").colour
    assert method_info("MyMethod").colour == method_info("MyMethod").colour
    assert method_info("MyMethod").colour not in own


def test_an_incomplete_grid_keeps_the_names_of_its_rows(outcome):
    data = figures.diagram("", "SoC", *outcome)
    figure = figures.draw_grid({"OTPT": {"Pets": data, "DTD": data}, "SoC": {"Pets": data}, "TPT": {"Pets": data}})
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()] == ["Pets", "DTD"]
    figure = figures.draw_grid({"OTPT": {"DTD": data}, "SoC": {"Pets": data, "DTD": data}})
    assert {axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()} == {"O-TPT", "SoC"}
    assert len(figure.legends) == 1  # what the hatching means


def test_ticks_of_selective_accuracy_differ():
    """On a range of two points as on a whole one."""
    for low, high in ((0.001, 0.02), (0.5, 0.9)):
        series = {"SoC": figures.Selection(figures.THRESHOLDS, np.linspace(low, high, 20), np.linspace(1, 0.1, 20))}
        figure = figures.draw_selective(series)
        figure.draw_without_rendering()
        labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert len(labels) == len(set(labels)) > 2


def test_heat_map_frames_the_best_and_leaves_gaps_blank():
    figure = matrices.draw_heat_map({"TPT": {"DTD": 9.0, "Pets": 4.0}, "SoC": {"DTD": 3.0}}, "ECE (%)")
    axes = figure.axes[0]
    assert sorted(text.get_text() for text in axes.texts) == ["3.0", "4.0", "9.0"]
    assert [patch.get_y() for patch in axes.patches] == [pytest.approx(0.56)]  # the second row; Pets has no rival


def test_classes_that_go_together_are_neighbours():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(200, 2))
    logits = shared[:, [0, 1, 0, 1, 0, 1]] + 0.1 * rng.normal(size=(200, 6))
    matrix = matrices.class_correlation(logits)
    order = matrices.cluster_order(matrix)
    assert sorted([sorted(order[:3].tolist()), sorted(order[3:].tolist())]) == [[0, 2, 4], [1, 3, 5]]
    after = matrix.copy()
    after[0, 3] = after[3, 0] = matrix[0, 3] + 0.7
    assert matrices.moved_pairs(matrix, after, 1) == [(0, 3, pytest.approx(0.7))]


def test_pictures_of_changes_are_drawn(tmp_path):
    for trainer in ("TPT", "OTPT", "SoC"):
        for dataset in ("UCF101", "EuroSAT"):
            make_run(tmp_path, trainer, dataset, n=60)
    made = [picture for make in change_pictures(compared(tmp_path)[0], "", no_picture) for picture in make()]
    names = {picture.name for picture in made}
    assert names == {"plane", "heat_ece", "heat_accuracy", "confidence", "images_ucf101", "class_similarity_ucf101"}
    for picture in made:
        picture.figure.draw_without_rendering()


def test_the_surest_mistake_is_shown(tmp_path):
    run = read_run(make_run(tmp_path, "SoC", n=60))
    data = run.load_predictions()
    p = np.exp(cal.log_softmax(data.logits))
    wrong = p.argmax(1) != data.label
    assert telling_images({"SoC": data})[0] == np.where(wrong, p.max(1), 0).argmax()


def test_type_on_a_coloured_cell_can_be_read():
    values = {f"row {k}": {"column": float(k)} for k in range(40)}
    for best_is_low in (True, False):
        axes = matrices.draw_heat_map(values, "", best_is_low).axes[0]
        image = axes.images[0]
        for words in axes.texts:
            cell = style.luminance(image.cmap(image.norm(float(words.get_text()))))
            high, low = sorted((cell, style.luminance(words.get_color())), reverse=True)
            assert (high + 0.05) / (low + 0.05) > 4.5


def test_labels_along_a_path_overprint_neither_points_nor_each_other():
    near = {10.0: Point(70, 5), 20.0: Point(70.9, 5.05), 30.0: Point(71.8, 5.3), 100.0: Point(72.6, 5.2)}
    figure = draw_plane("", {"SoC": near}, {"TPT": Point(66, 9), "OTPT": Point(72.2, 5.25)})
    figure.draw_without_rendering()
    axes = figure.axes[0]
    labels = [text for text in axes.texts if text.get_text() in ("10", "20", "30", "100")]
    boxes = [text.get_window_extent() for text in labels]
    assert len(boxes) == 4
    assert not any(first.overlaps(second) for first, second in combinations(boxes, 2))
    points = [axes.transData.transform((p.accuracy, p.ece)) for p in near.values()]
    assert not any(box.contains(*point) for box in boxes for point in points)


def test_methods_stand_in_the_order_of_papers_whichever_the_first_set_has():
    groups = {"Pets": {"SoC": Pair(3, 2)}, "DTD": {"TPT": Pair(9, 4), "SoC": Pair(4, 3)}}
    labels = [text.get_text() for text in figures_compare.draw_pairs(groups, "", "a", "b").legends[0].get_texts()]
    assert labels[:2] == ["TPT", "SoC"]


def test_a_drawing_in_the_page_is_short_and_keeps_its_words():
    with style.styled():
        figure = style.new_figure(3, 2)
        axes = figure.subplots()
        axes.plot([0.012345, 0.0456789], [1.23456789, 2.3456789])
        axes.set_xticks([0.0125, 0.0375], ["0.0125", "font-family: 0.0375;"])
    long, text = style.encode(figure, "svg", 100).decode(), inline_svg(figure, "x")
    assert len(text) < 0.7 * len(long)
    assert ">0.0125<" in text and ">font-family: 0.0375;<" in text
    assert not re.search(r'd="[^"]*\.\d{3}', text) and "url(#x-" in text
