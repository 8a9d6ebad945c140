"""Runs that look alike and are not, and equal runs that do not look it, are never mixed in
silence."""
import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from promptcal.trainers.report.arrange import arrange
from promptcal.trainers.report.choices import choice_tables
from promptcal.trainers.report.core import measure
from promptcal.trainers.report.figures.select import (
    report_figures,
    rows_of_steps,
    step_figures,
    step_panels,
)
from promptcal.trainers.report.layout import PLAIN, TableSpec, default_layout
from promptcal.trainers.report.layout_tables import spec_tables
from promptcal.trainers.report.load import find_runs
from promptcal.trainers.report.pairs import PairTests, share_images
from promptcal.trainers.report.report_tables import metric_notes

from common import run_tool
from made_runs import (
    by_label,
    compared,
    entry,
    labels,
    make_run,
    measured_runs,
    numbered,
    report_on,
    rewrite_predictions,
    row_labels,
)

LAMBDA = "TRAINER.SOC.LAMBDA"
FOG = {"data.corruption": "fog", "data.severity": 5}
LEARNT = {"kind": "learnt", "protocol": "CoOp 2 shots", "hash": "first", "position": "end"}


def pairs_table(report):
    for table in report.tables:
        if "Pairs" in table.title:
            return table
    raise LookupError("no table of pairs")


def comparison(grid, first: str, second: str):
    """Of two methods."""
    for pair in PairTests(grid).all_pairs():
        if {pair.first.method, pair.second.method} == {first, second}:
            return pair.comparison
    raise LookupError(f"no pair {first}, {second}")


def seeds_of(grid, method: str) -> list[list[int]]:
    """Of each of its rows."""
    seeds = []
    for (row, _), runs in grid.cells.items():
        if row.method == method:
            seeds.append([run.seed for run in runs])
    return seeds


def table_by(measured, columns: str, **spec):
    spec = TableSpec(**{"name": "t", "title": "t", "columns": columns, "metrics": ["accuracy"], **spec})
    (table,) = spec_tables(measured, spec, PLAIN)
    return table


def lambda_choice(measured):
    (table,) = choice_tables(measured.test, measured.validation, ["LAMBDA"], "ece")
    return table


# Failed images

def test_zero_shot_is_that_of_a_run_that_could_read_all_images(tmp_path):
    make_run(tmp_path, "CTPT", skipped=range(3))
    make_run(tmp_path, "SoC")
    (grid,) = compared(tmp_path)
    ((_, (zero_shot,)), *_) = grid.cells_on(grid.columns[0])
    assert zero_shot.from_tuned_run and zero_shot.n == 400


def test_copies_of_a_picture_that_could_not_be_read_are_not_compared(train, image_folder, tmp_path):
    """The second copy has the number of the first one where that could not be read."""
    first, *_, last = sorted(image_folder.rglob("*.png"))
    last.write_bytes(first.read_bytes())  # of another class
    content = first.read_bytes()
    train("TPT", "TTA.VIEWS", 10, "--output-dir", tmp_path / "runs" / "all")
    first.write_bytes(b"damaged")
    train("TPT", "TTA.VIEWS", 10, "DATALOADER.ON_BAD_IMAGE", "skip",
          "--output-dir", tmp_path / "runs" / "skipped")
    first.write_bytes(content)
    measured = measured_runs(tmp_path / "runs")
    shared = share_images(measured.test[:1], measured.test[1:])
    assert shared.count == measured.test[0].n - 2
    assert np.array_equal(shared.first.confidence, shared.second.confidence)
    assert np.array_equal(shared.first.correct, shared.second.correct)


def test_a_run_whose_images_fell_back_to_zero_shot_is_shown_but_not_ranked(tmp_path):
    make_run(tmp_path, "TPT")
    make_run(tmp_path, "OTPT")
    make_run(tmp_path, "SoC", flagged=400)  # its zero-shot predictions have the lowest ECE of all
    report = report_on(tmp_path)
    table = report.tables[0]
    soc = entry(table, "ECE", "SoC", "UCF101")
    otpt = entry(table, "ECE", "O-TPT", "UCF101")
    assert soc.value < otpt.value
    assert otpt.best and not soc.best
    notes = "\n".join(table.notes)
    assert "SoC on UCF101 400 of 400" in notes and "Not ranked" in notes
    verdict = report.verdicts[0]
    assert "SoC" not in "\n".join([verdict.sentence, *verdict.findings])
    assert "SoC" not in [line.row.label for line in verdict.lines]
    assert "SoC" not in "\n".join(row_labels(pairs_table(report)))
    for table in report.tables:
        if "on the same images" not in table.title:  # pairs are of rows that may be ranked
            assert "SoC on UCF101 400 of 400" in "\n".join(table.notes), table.title


@pytest.mark.parametrize(("flagged", "skipped", "ranked"), [
    (4, 0, True), (5, 0, False), (0, 4, True), (0, 5, False),
])
def test_up_to_one_percent_of_failures_is_ranked_and_told(tmp_path, flagged, skipped, ranked):
    make_run(tmp_path, "OTPT")
    make_run(tmp_path, "SoC", flagged=flagged, skipped=range(skipped))
    table = report_on(tmp_path).tables[0]
    notes = "\n".join(table.notes)
    assert entry(table, "ECE", "SoC", "UCF101").best is ranked
    assert ("zero-shot prediction" in notes) == (flagged > 0)
    assert ("could not be read" in notes) == (skipped > 0)
    assert ("Not ranked" in notes) is not ranked


# Rows

@pytest.mark.parametrize(("changes", "words"), [
    ({"method.source": {"version": "1.1.0", "hash": "edited", "plugin": "edited"}}, "code edited"),
    ({"numerics.precision": "bf16"}, "bf16"),
    ({"numerics.engine": 7}, "engine 7"),
    ({"views.pipeline": "pillow-13.0.0"}, "views pillow-13.0.0"),
    ({"changed": {"PROMPT.DESCRIPTIONS": ["", "cupl-2222"]}}, "descriptions cupl-2222"),
])
def test_seeds_that_differ_in_more_than_the_seed_are_never_pooled(tmp_path, changes, words):
    make_run(tmp_path, "SoC", seed=0, folder="a")
    make_run(tmp_path, "SoC", seed=1, changes=changes, folder="b", sharpness=4.0)
    grids = compared(tmp_path)
    for grid in grids:
        assert max(map(len, seeds_of(grid, "SoC"))) == 1
    assert words in "\n".join(label for grid in grids for label in labels(grid))


def test_an_edit_within_a_release_is_not_pooled_by_way_of_another_release(tmp_path):
    for seed, (version, code) in enumerate((("1.1.0", "a"), ("1.2.0", "b"), ("1.2.0", "edited"))):
        source = {"version": version, "hash": code, "plugin": ""}
        make_run(tmp_path, "SoC", seed=seed, changes={"method.source": source})
    for seed in (0, 1):  # each seed of CoOp draws its own training images
        training = {"settings": {"DATASET.NUM_SHOTS": 2}, "images": f"drawn with seed {seed}"}
        make_run(tmp_path, "CoOp", seed=seed, changes={"method.training": training})
    (grid,) = compared(tmp_path)
    assert seeds_of(grid, "SoC") == [[0, 1], [2]] and seeds_of(grid, "CoOp") == [[0, 1]]


def test_equal_runs_count_once_and_different_runs_of_one_seed_have_rows(tmp_path):
    make_run(tmp_path, "SoC", folder="a")
    make_run(tmp_path, "SoC", folder="copy of a")
    (grid,) = compared(tmp_path)
    assert labels(grid) == ["Zero-shot", "SoC"]
    assert {len(runs) for runs in grid.cells.values()} == {1}
    assert "copy of a is the same run as a and counts once" in "\n".join(grid.notes)
    make_run(tmp_path, "SoC", folder="b", changes={"numerics.jacobian": True}, sharpness=3.0)
    make_run(tmp_path, "SoC", folder="c", changes={"numerics.part": 2}, sharpness=3.0)
    (grid,) = compared(tmp_path)
    assert {"SoC, Jacobian on", "SoC, parts of 2 images"} <= set(labels(grid))
    assert {len(runs) for runs in grid.cells.values()} == {1}


def test_a_default_that_was_edited_between_runs_makes_two_rows_without_published_neighbours(tmp_path):
    """Labels come from the record: λ 30 was the default of one run, λ 25 that of the other."""
    folder = make_run(tmp_path, "SoC", n=3783, folder="a")
    make_run(tmp_path, "TPT", n=3783)
    edited = {**find_runs([folder])[0][0].record.method["settings"], LAMBDA: 25.0}
    make_run(tmp_path, "SoC", n=3783, folder="b", changes={"method.settings": edited}, sharpness=3.0)
    (grid,) = compared(tmp_path)
    assert labels(grid) == ["Zero-shot", "TPT", "SoC", "SoC, λ 25"]
    rows = row_labels(report_on(tmp_path, published=True).tables[0])
    published = [label.partition(" (")[0] for label in rows if "published" in label]
    assert published == ["Zero-shot", "TPT"]


PROTOCOL = "CoOp 2 shots (epochs 50, n_ctx 16, class_token_position end, settings"
FOLDERS = "CoOp/vit_b16_ep50_2shots/nctx16_cscFalse_ctpend/seed*"


def test_two_trainings_of_a_prompt_are_two_rows(tmp_path):
    """On UCF101 one seed has two prompts. On EuroSAT each of two seeds has its own."""
    prompts = [("UCF101", 0, "1" * 16), ("UCF101", 0, "2" * 16),
               ("EuroSAT", 1, "1" * 16), ("EuroSAT", 2, "2" * 16)]
    for dataset, seed, prompt_hash in prompts:
        make_run(tmp_path, "SoC", dataset, seed, folder=f"{dataset} {prompt_hash}",
                 changes={"model.prompt": {**LEARNT, "hash": prompt_hash}})
    (grid,) = compared(tmp_path)
    tuned = [label for label in labels(grid) if label.startswith("SoC")]
    assert tuned == ["SoC, CoOp 2 shots", "SoC, CoOp 2 shots, prompt 22222222"]
    assert max(len(runs) for runs in grid.cells.values()) == 2  # one prompt per seed is one row


@pytest.mark.parametrize(("prompts", "expected"), [
    ({0: {"hash": "1" * 16}, 1: {"hash": "2" * 16, "learnt_on": "ImageNet"}},
     {"SoC, CoOp 2 shots", "SoC, CoOp 2 shots, learnt on ImageNet, prompt 22222222"}),
    ({0: {"protocol": f"{PROTOCOL} 0{'f' * 15})"}, 1: {"protocol": f"{PROTOCOL} 1{'f' * 15})"}},
     {"SoC, CoOp 2 shots, prompt … 0fffffffffffffff)", "SoC, CoOp 2 shots, prompt … 1fffffffffffffff)"}),
    ({0: {"protocol": FOLDERS}, 1: {"protocol": f"{FOLDERS}/epoch 5"}},
     {"SoC, CoOp 2 shots, prompt … epoch 5", "SoC, CoOp 2 shots, prompt … seed*"}),
], ids=["data set", "protocol", "epoch"])
def test_prompts_of_two_seeds_that_were_learnt_otherwise_are_rows_that_say_how(tmp_path, prompts, expected):
    for seed, prompt in prompts.items():
        changes = {"model.prompt": {**LEARNT, **prompt}, "names.prompt": "CoOp 2 shots"}
        make_run(tmp_path, "SoC", seed=seed, changes=changes)
    (grid,) = compared(tmp_path)
    assert {label for label in labels(grid) if label.startswith("SoC")} == expected


# Columns

def test_the_same_images_under_two_names_are_one_column(tmp_path):
    shared = {"images": "same", "names": numbered("picture", 50), "n": 50}
    make_run(tmp_path, "TPT", changes={"names.dataset": "laptop"}, **shared)
    make_run(tmp_path, "SoC", changes={"names.dataset": "cluster"}, **shared)
    table = report_on(tmp_path).tables[0]
    assert table.columns in (["cluster"], ["laptop"])
    assert "has the same images as" in "\n".join(table.notes)


@pytest.mark.parametrize(("first", "second", "words"), [
    ({"images": "a"}, {"images": "b"}, "UCF101, 50 images (a)"),
    ({"changes": {"data.classes": "8:first"}}, {"changes": {"data.classes": "8:second"}}, "class names first"),
    ({"changes": {"data.subset": "50 of 90 images"}}, {}, "50 of 90 images"),
], ids=["images", "class names", "part"])
def test_other_images_under_one_name_are_two_columns(tmp_path, first, second, words):
    """So are the same images under other class names or as a part of a set. The verdict has the labels too."""
    for folder, data in (("a", first), ("b", second)):
        for trainer in ("TPT", "SoC"):
            make_run(tmp_path, trainer, n=50, folder=f"{folder} {trainer}", **{"images": "same", **data})
    report = report_on(tmp_path)
    columns = [column for column in report.tables[0].columns if column != "Average"]
    assert len(set(columns)) == 2 and any(words in column for column in columns)
    assert words in report.verdicts[0].basis


def test_data_sets_of_one_name_have_other_labels_in_all_tables_and_figures_of_a_report(tmp_path):
    """Each is in another table: of λ of SoC, of λ of O-TPT, and of another backbone."""
    for value in (10.0, 40.0):
        make_run(tmp_path, "SoC", images="a", n=50, names=numbered("a", 50), folder=f"a {value}",
                 settings={LAMBDA: value})
        make_run(tmp_path, "OTPT", images="b", n=50, names=numbered("b", 50), folder=f"b {value}",
                 settings={"TRAINER.OTPT.LAMBDA": value})
    make_run(tmp_path, "SoC", images="c", n=50, folder="c", backbone="ViT-B/16")
    report = report_on(tmp_path, with_figures=True)
    labels_of = {table.title: table.columns for table in report.tables}
    assert labels_of["Accuracy and ECE, ViT-B/16"] == ["UCF101, 50 images (c)"]
    assert labels_of["ViT-L/14: λ of SoC"] == ["UCF101, 50 images (a)"]
    assert labels_of["ViT-L/14: λ of O-TPT"] == ["UCF101, 50 images (b)"]
    lambda_figures = [name for name in report.figures if name.startswith("lambda")]
    assert lambda_figures == ["lambda_ucf101_50_images_b_2", "lambda_ucf101_50_images_a_2"]


def test_tables_of_values_and_choices_say_which_of_two_data_sets_of_one_name_they_use(tmp_path):
    for images in ("a", "b"):
        for value in (10.0, 40.0):
            make_run(tmp_path, "SoC", n=50, images=images, names=numbered(images, 50),
                     settings={LAMBDA: value}, folder=f"{images} {value}")
    measured = measured_runs(tmp_path)
    table = table_by(measured.test, LAMBDA)
    assert table.caption.endswith("Test images: UCF101 (a) 50; 20 bins.")
    assert "or the first one of equal size: UCF101 (b), 50 images." in "\n".join(table.notes)
    assert "the choice is made on 50 images (b), not on 50 (a)." in "\n".join(lambda_choice(measured).notes)


def test_weights_of_one_name_are_two_tables_and_of_two_names_one(tmp_path):
    make_run(tmp_path, "SoC", backbone="mine", weights="a" * 16)
    make_run(tmp_path, "TPT", backbone="mine", weights="b" * 16)
    make_run(tmp_path, "TPT", changes={"names.backbone": "CLIP A"})
    make_run(tmp_path, "SoC", changes={"names.backbone": "CLIP B"})
    headings = {grid.heading for grid in compared(tmp_path)}
    assert headings == {"mine (weights aaaaaa)", "mine (weights bbbbbb)", "CLIP A = CLIP B"}


# Pairs

def test_pairs_and_differences_are_of_the_images_that_both_have(tmp_path):
    """Equal predictors that skipped different files differ by exactly 0."""
    make_run(tmp_path, "OTPT", skipped=[0, 1, 2], sharpness=2.0)
    make_run(tmp_path, "SoC", skipped=[7, 8], sharpness=2.0)
    (grid,) = compared(tmp_path)
    pair = comparison(grid, "OTPT", "SoC")
    assert (pair.over.value, pair.accuracy.value, pair.squared.value, pair.p) == (0, 0, 0, 1)
    assert pair.images == 395
    report = report_on(tmp_path)
    main_table = report.tables[0]
    assert entry(main_table, "Accuracy", "SoC", "UCF101").difference == 0
    assert entry(main_table, "ECE", "SoC", "UCF101").difference == 0
    assert "images that both have" in "\n".join(main_table.notes)
    pairs = pairs_table(report)
    assert entry(pairs, "Pair", "O-TPT → SoC", "Images").text == "395"
    assert "numbers differ" in "\n".join(pairs.notes)


def test_a_pilot_is_compared_on_its_images(tmp_path):
    """TPT ran on all images, SoC on the first 100 of them."""
    make_run(tmp_path, "TPT", n=400)
    make_run(tmp_path, "SoC", n=100, names=numbered("UCF101 test", 100), images="pilot",
             changes={"data.subset": "100 of 400 images"})
    (grid,) = compared(tmp_path)
    assert comparison(grid, "TPT", "SoC").images == 100


def test_corruptions_of_one_image_are_one_cluster(tmp_path):
    for trainer in ("TPT", "SoC"):
        for severity in (1, 5):
            make_run(tmp_path, trainer, n=120, images=f"fog {severity}",
                     names=numbered(f"fog {severity}", 120), clusters=numbered("tile", 120),
                     changes={**FOG, "data.severity": severity}, folder=f"{trainer}{severity}")
    report = report_on(tmp_path)
    assert report.tables[0].columns == ["UCF101 fog 1", "UCF101 fog 5", "Average"]
    table = pairs_table(report)
    row = row_labels(table)[0]
    assert entry(table, "Pair", row, "Images").value == 240
    assert entry(table, "Pair", row, "Clusters").value == 120
    assert "240 images" in "\n".join(table.notes) and "120 clusters" in "\n".join(table.notes)


def test_groups_of_images_have_intervals_of_accuracy_and_over_confidence_only(tmp_path):
    patients = [f"patient {k // 10}" for k in range(200)]
    make_run(tmp_path / "grouped", "SoC", n=200, clusters=patients)
    make_run(tmp_path / "alone", "SoC", n=200)
    grouped = measured_runs(tmp_path / "grouped").test[0].metrics
    alone = measured_runs(tmp_path / "alone").test[0].metrics
    for name in ("accuracy", "signed_error"):
        width = alone[name].high - alone[name].low
        assert grouped[name].high - grouped[name].low != pytest.approx(width)
    assert np.isnan(grouped["brier"].low) and not np.isnan(alone["brier"].low)


# Validation

def shared_names(test_images: int) -> list[str]:
    """Of 100 validation images, some of which are test images."""
    validation = numbered("UCF101 val", 100 - test_images)
    return validation + numbered("UCF101 test", test_images)


def test_of_several_validation_runs_the_largest_counts_whatever_the_order_of_folders(tmp_path):
    make_run(tmp_path, "SoC", folder="test", sharpness=2.0)
    make_run(tmp_path, "SoC", split="val", n=200, folder="m", sharpness=2.0)
    expected = measured_runs(tmp_path).test[0].value("ece_temperature")
    for name in ("a trial", "z trial"):
        make_run(tmp_path, "SoC", split="val", n=3, folder=name, sharpness=40.0)
    measured = measured_runs(tmp_path).test[0]
    assert measured.temperature_from == 200
    assert measured.value("ece_temperature") == expected
    notes = []
    for table in report_on(tmp_path).tables:
        notes += table.notes
    assert "Fitted on validation images: SoC on UCF101 (200)" in "\n".join(notes)


def test_the_order_of_folders_changes_nothing_where_runs_have_one_name(tmp_path):
    """Two validation runs of one size, and a run with a copy that predicts otherwise."""
    make_run(tmp_path / "test", "SoC", folder="run", sharpness=2.0)
    for place, sharpness in (("a", 2.0), ("b", 9.0)):
        root = tmp_path / place / "runs"
        names = numbered(place, 100)
        make_run(root, "SoC", split="val", n=100, folder="val", images=place, names=names, sharpness=sharpness)
        make_run(root, "TPT", folder="TPT", sharpness=sharpness)
    folders = [tmp_path / "test", tmp_path / "a" / "runs", tmp_path / "b" / "runs"]
    seen = []
    for order in (folders, folders[::-1]):
        runs, _ = find_runs(order)
        measured = measure(runs, default_layout())
        (grid,) = arrange(measured.test)
        values = {}
        for (row, _), (first, *_) in grid.cells.items():
            values[row.label] = (first.value("ece"), first.value("ece_temperature"))
        seen.append((values, grid.notes))
    assert seen[0] == seen[1]
    (note,) = [note for note in seen[0][1] if "same record" in note]
    assert note.endswith("a/runs/TPT counts, b/runs/TPT does not.")


@pytest.mark.parametrize(("shared", "used", "note"), [
    (5, 95, "SoC on UCF101: 5 of 100 validation images are test images and are left out"),
    (20, 0, "validation is refused, because 20 of 100"),
])
def test_validation_images_that_are_test_images_are_left_out_or_refused(tmp_path, shared, used, note):
    make_run(tmp_path, "SoC", folder="test", sharpness=2.0)
    make_run(tmp_path, "SoC", split="val", n=100, folder="val", names=shared_names(shared))
    measured = measured_runs(tmp_path)
    assert measured.test[0].temperature_from == used
    assert note in "\n".join(measured.notes)


def test_a_copy_of_a_test_image_in_another_cluster_name_is_found_by_its_cluster(tmp_path):
    patients = [f"patient {k // 4}" for k in range(400)]
    make_run(tmp_path, "SoC", folder="test", clusters=patients)
    make_run(tmp_path, "SoC", split="val", n=100, folder="val", clusters=numbered("patient", 100))
    assert measured_runs(tmp_path).test[0].temperature_from == 0


@pytest.mark.parametrize("changes", [
    {"method.settings": {"TTA.SELECT": 0.5, "TTA.STEPS": 1}},  # its default was another one
    {"views.augmix": False},
    {"model.prompt": {**LEARNT, "hash": "trained again"}},
])
def test_a_validation_run_with_other_settings_or_another_prompt_counts_for_no_test_run(tmp_path, changes):
    test_changes = {}
    if "model.prompt" in changes:
        test_changes = {"model.prompt": LEARNT}
    make_run(tmp_path, "SoC", folder="test", changes=test_changes)
    make_run(tmp_path, "SoC", split="val", n=100, folder="held out", changes=changes)
    measured = measured_runs(tmp_path)
    assert measured.test[0].temperature_from == 0
    note = "not of the settings, data set and seed of any test run here: held out"
    assert note in "\n".join(measured.notes)


def test_a_pilot_on_another_data_set_of_the_same_name_is_found_by_its_size(tmp_path):
    make_run(tmp_path, "SoC", "ImageFolder", n=100, images="laptop", names=numbered("laptop", 100),
             folder="laptop/pilot", changes={"data.subset": "100 of 1,400 images"})
    make_run(tmp_path, "SoC", "ImageFolder", n=300, images="clinic", folder="clinic/test")
    make_run(tmp_path, "SoC", "ImageFolder", n=90, split="val", folder="clinic/val")
    measured = measured_runs(tmp_path)
    assert [run.temperature_from for run in measured.test] == [0, 0]
    assert "Several data sets are called ImageFolder" in "\n".join(measured.notes)
    shutil.rmtree(tmp_path / "laptop")
    make_run(tmp_path, "SoC", "ImageFolder", n=100, images="pilot", folder="pilot",
             names=numbered("ImageFolder test", 100), changes={"data.subset": "100 of 300 images"})
    assert [run.temperature_from for run in measured_runs(tmp_path).test] == [90, 90]


def test_validation_images_under_the_same_corruption_come_first(tmp_path):
    make_run(tmp_path, "SoC", folder="test")
    make_run(tmp_path, "SoC", split="val", n=100, folder="fog", changes=FOG)
    measured = measured_runs(tmp_path)
    assert measured.test[0].temperature_from == 100
    assert "fitted on validation images of UCF101 fog 5" in "\n".join(measured.notes)
    make_run(tmp_path, "SoC", split="val", n=50, folder="clear")
    assert measured_runs(tmp_path).test[0].temperature_from == 50


def test_a_second_report_on_the_same_runs_has_the_notes_and_validation_runs_of_the_first(tmp_path):
    """As the experiments of one `reproduce` share measured runs."""
    for value in (10.0, 30.0):
        sweep = {LAMBDA: value}
        make_run(tmp_path, "SoC", settings=sweep, folder=f"test {value}")
        make_run(tmp_path, "SoC", settings=sweep, split="val", n=100, names=shared_names(5),
                 folder=f"val {value}")
    known = {}
    reports = []
    for _ in range(2):
        runs, _ = find_runs([tmp_path])
        measured = measure(runs, default_layout(), known)
        table = lambda_choice(measured)
        reports.append((measured.notes, row_labels(table), table.notes))
    assert reports[0] == reports[1]
    assert "left out of validation" in "\n".join(measured.notes)
    assert "SoC: validation images" in row_labels(table)


def temperature_values(tables: Path) -> set[float]:
    """TPT's ECE after temperature scaling, in any block or column of a tables.csv."""
    values = set()
    for line in csv.DictReader(tables.read_text(encoding="utf-8").splitlines()):
        is_scaled = "ECE + temperature" in line["block"] + line["column"]
        if is_scaled and line["row"].startswith("TPT"):
            values.add(round(float(line["value"]), 9))
    return values


def test_report_and_reproduce_fit_the_same_temperature(tmp_path):
    """Both measure by one function; here through both commands."""
    out = tmp_path / "out"
    done = run_tool(
        "reproduce.py", "posthoc", "--demo", "--limit", 12, "--only", "TPT", "landcover",
        "--output-dir", out, "--set", "TTA.VIEWS", 10)
    assert done.returncode == 0, done.stderr
    done = run_tool(
        "report.py", out / "demo", "--demo", "--no-figures", "--posthoc",
        "--out", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    reproduced = temperature_values(out / "demo" / "experiments" / "posthoc" / "tables.csv")
    assert reproduced and reproduced <= temperature_values(tmp_path / "report" / "tables.csv")


# Learnt prompts


def test_an_untuned_prompt_has_no_value_of_a_sweep(tmp_path):
    for value in (10.0, 40.0):
        make_run(tmp_path, "SoC", settings={LAMBDA: value},
                 changes={"model.prompt": LEARNT, "names.prompt": "CoOp 2 shots"})
    _, sweep = compared(tmp_path)
    assert labels(sweep) == ["CoOp, 2 shots, untuned", "SoC, CoOp 2 shots, λ 10", "SoC, CoOp 2 shots, λ 40"]


def test_columns_of_prompts_of_as_many_shots_are_named_by_their_protocol(tmp_path):
    for name, protocol in (
        ("CoOp 2 shots", "CoOp 2 shots"), ("CoOp 2 shots", "CoOp 2 shots (epochs 5)"),
        ("KgCoOp 2 shots", "KgCoOp 2 shots"), ("CoOp 4 shots", "CoOp 4 shots"),
    ):
        prompt = {**LEARNT, "protocol": protocol, "hash": protocol}
        make_run(tmp_path, "SoC", folder=protocol, changes={"model.prompt": prompt, "names.prompt": name})
    table = table_by(measured_runs(tmp_path).test, "prompt")
    assert sorted(table.columns) == ["4-shots", "CoOp 2 shots", "CoOp 2 shots (epochs 5)", "KgCoOp 2 shots"]
    assert "CoOp, 2 shots, untuned, prompt CoOp 2 shots (epochs 5)" in row_labels(table)


# Pilots

def test_a_pilot_and_the_whole_set_are_not_averaged_and_have_columns_of_other_names(tmp_path):
    for value in (10.0, 30.0):
        for n in (50, 400):
            make_run(tmp_path, "SoC", n=n, settings={LAMBDA: value}, changes=FOG, folder=f"{value}/{n}")
    measured = measured_runs(tmp_path).test
    table = table_by(measured, LAMBDA)
    on_all_images = [run for run in measured if run.n == 400]
    for cell, run in zip(table.blocks[0].rows[0].entries, on_all_images, strict=True):
        assert cell.value == pytest.approx(100 * run.value("accuracy"))
    (note,) = [note for note in table.notes if "Left out for a larger set" in note]
    assert "UCF101 fog 5, 50 images" in note
    columns = table_by(measured, "corruption").columns
    fog_columns = [name for name in columns if "fog" in name]
    assert fog_columns == ["UCF101 fog 5, 400 images", "UCF101 fog 5, 50 images"]


# Choices and pairs

def test_values_are_chosen_among_runs_that_differ_in_the_key_alone(tmp_path):
    """A third run has λ 10 too, by another default of TTA.SELECT, and the name that sorts first."""
    make_run(tmp_path, "SoC", settings={LAMBDA: 30.0}, sharpness=4.0, folder="run 30")
    make_run(tmp_path, "SoC", settings={LAMBDA: 10.0}, sharpness=2.0, folder="run 10")
    (run_10,) = find_runs([tmp_path / "run 10"])[0]
    settings = {**run_10.record.method["settings"], "TTA.SELECT": 0.5}
    make_run(tmp_path, "SoC", settings={LAMBDA: 10.0}, sharpness=40.0, folder="a",
             changes={"method.settings": settings})
    table = lambda_choice(measured_runs(tmp_path))
    assert entry(table, "chosen value", "SoC: best in hindsight", "UCF101").text == "10"
    (note,) = [note for note in table.notes if note.startswith("a is left out of the choice")]
    assert "SELECT 0.5" in note


def test_images_that_a_table_groups_by_patient_and_a_folder_does_not_are_the_same_images(tmp_path):
    as_folder = {"dataset": "UCF101", "n": 200, "names": numbered("picture", 200)}
    patients = [f"patient {k // 20}" for k in range(200)]
    as_table = {"dataset": "EuroSAT", "n": 200, "names": numbered("picture", 200)}
    for value in (10.0, 30.0):
        sweep = {LAMBDA: value}
        make_run(tmp_path, "SoC", settings=sweep, folder=f"folder {value}", **as_folder)
        make_run(tmp_path, "SoC", settings=sweep, clusters=patients, folder=f"table {value}", **as_table)
    table = lambda_choice(measured_runs(tmp_path))
    assert "other data sets" not in "\n".join(row_labels(table))
    assert "UCF101 shares images with EuroSAT" in "\n".join(table.notes)

    make_run(tmp_path, "TPT", folder="TPT", **as_folder)
    make_run(tmp_path, "TPT", folder="TPT on the table", **as_table)
    grid = compared(tmp_path)[0]
    pair = PairTests(grid).all_pairs()[0].comparison
    assert (pair.images, pair.clusters) == (200, 10)  # counted once


# Rows, copies and baselines

def test_rows_are_compared_with_the_baseline_that_was_made_as_they_were(tmp_path):
    for engine, sharpness in ((4, 2.6), (5, 1.0)):
        made = {"numerics.engine": engine}
        make_run(tmp_path, "TPT", changes=made, sharpness=sharpness, folder=f"TPT/{engine}")
        make_run(tmp_path, "SoC", changes=made, sharpness=1.3, folder=f"SoC/{engine}")
    report = report_on(tmp_path)
    table = report.tables[0]
    for engine in (4, 5):
        base = entry(table, "ECE", f"TPT, engine {engine}", "UCF101")
        ours = entry(table, "ECE", f"SoC, engine {engine}", "UCF101")
        difference = round(float(ours.text) - float(base.text), 1)
        assert ours.difference == pytest.approx(difference)
    (against,) = [table for table in report.tables if table.title.startswith("Everything against")]
    assert "TPT, engine 5 → SoC, engine 5" in row_labels(against)


def test_the_caption_names_the_baseline_with_its_settings(tmp_path):
    make_run(tmp_path, "TPT", settings={"TTA.STEPS": 2})
    make_run(tmp_path, "SoC")
    table = report_on(tmp_path).tables[0]
    assert table.caption.endswith("in parentheses: difference from TPT, 2 steps.")


def test_runs_of_one_seed_on_two_devices_are_not_mixed_whatever_their_folders_are_called(tmp_path):
    places = {("UCF101", 0): ("cpu", "cuda"), ("UCF101", 1): ("cuda", "cpu"), ("EuroSAT", 0): ("cuda", "cpu"),
              ("EuroSAT", 1): ("cuda", "cpu")}
    for (dataset, seed), devices in places.items():
        for number, device in enumerate(devices):
            make_run(tmp_path, "SoC", dataset, seed, sharpness={"cpu": 1.3, "cuda": 3.0}[device],
                     folder=f"{dataset}/{seed}/{number}", changes={"numerics.device_type": device})
    (grid,) = compared(tmp_path)
    assert [label for label in labels(grid) if label != "Zero-shot"] == ["SoC", "SoC, on cuda"]
    for row in grid.rows[1:]:
        devices = set()
        for column in grid.columns:
            for measured in grid.cells[row, column]:
                devices.add(measured.record.numerics["device_type"])
        assert devices == {"cuda" if row.label.endswith("on cuda") else "cpu"}


def test_of_a_run_and_its_copy_with_unreadable_images_the_whole_one_counts(tmp_path):
    make_run(tmp_path, "SoC", folder="a", skipped=range(50))
    make_run(tmp_path, "SoC", folder="b")
    make_run(tmp_path, "SoC", folder="c")
    (grid,) = compared(tmp_path)
    notes = "\n".join(grid.notes)
    (cell,) = [cell for (row, _), cell in grid.cells.items() if row.label == "SoC"]
    assert [measured.run.name for measured in cell] == ["b"]
    assert "c is the same run as b and counts once." in notes
    assert "a has the same record as b but other predictions: b counts, a does not." in notes


@pytest.mark.parametrize(("tpt", "words"), [
    ({"changes": {"numerics.precision": "fp16"}}, "Precision differs between the rows (TPT: fp16; SoC: fp32)."),
    ({"changes": {"views.pipeline": "pillow-11.0"}}, "The code that makes views differs between the rows"),
    ({"changes": {"views.count": 32}},
     "The default number of views differs between the rows (TPT: 32; SoC: 64)."),
    ({"facts": {"device": "NVIDIA A100"}}, "Devices differ between the rows (TPT: NVIDIA A100; SoC: cpu)."),
], ids=["precision", "pipeline", "views", "device"])
def test_what_differs_between_the_rows_is_told_though_no_setting_says_so(tmp_path, tpt, words):
    make_run(tmp_path, "SoC", facts={"device": "cpu", "adapt_seconds_per_image": 0.1})
    make_run(tmp_path, "TPT", **tpt)
    (grid,) = compared(tmp_path)
    assert words in "\n".join([*grid.notes, *metric_notes(grid, ["ece", "seconds"])])


@pytest.mark.parametrize("changes", [
    {"numerics.precision": "bf16"}, {"numerics.device_type": "cuda"},
    {"views.pixels": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}},
])
def test_zero_shot_predictions_of_another_precision_or_input_are_no_fault_of_the_code(tmp_path, changes):
    make_run(tmp_path, "SoC")
    folder = make_run(tmp_path, "TPT", changes=changes)

    def reverse(arrays):
        arrays["zero_shot_logits"] = arrays["zero_shot_logits"][:, ::-1].copy()

    rewrite_predictions(folder, reverse)
    notes = "\n".join(compared(tmp_path)[0].notes)
    assert "recorded as the same" not in notes


def test_the_zero_shot_predictions_of_a_tested_prompt_are_no_fault_of_the_code(tmp_path):
    """They are of hand-written words in a run of CoOp, and of the prompt in one that starts there."""
    prompt = {"model.prompt": LEARNT}
    folder = make_run(tmp_path, "CoOp", changes=prompt)
    make_run(tmp_path, "SoC", changes=prompt)

    def reverse(arrays):
        arrays["zero_shot_logits"] = arrays["zero_shot_logits"][:, ::-1].copy()

    rewrite_predictions(folder, reverse)
    assert "recorded as the same" not in "\n".join(compared(tmp_path)[0].notes)


# Tables of values, choices, the CSV and the LaTeX


def test_tables_pairs_choices_and_the_csv_say_which_seeds_they_are_of(tmp_path):
    """A choice is made on the seeds that all values have, and among the values that all data sets have."""
    runs = [("UCF101", 30.0, 0), ("UCF101", 30.0, 1), ("UCF101", 10.0, 0), ("UCF101", 20.0, 0),
            ("EuroSAT", 30.0, 0), ("EuroSAT", 10.0, 0)]
    for dataset, value, seed in runs:
        make_run(tmp_path, "SoC", dataset, seed, settings={LAMBDA: value}, sharpness=1 + value / 20)
    for dataset in ("UCF101", "EuroSAT"):
        make_run(tmp_path, "TPT", dataset)
    measured = measured_runs(tmp_path)
    note = "UCF101: view seeds differ between the cells (TPT, λ None / SoC, λ 10 / SoC, λ 20: 0; SoC, λ 30: 0, 1)."
    assert note in table_by(measured.test, LAMBDA).notes
    notes = lambda_choice(measured).notes
    assert "SoC: values 10, 20, 30; seed 0; test images: UCF101 400." in notes
    assert "SoC on UCF101, other data sets: λ 20 cannot be chosen, because not all of them have it." in notes
    report = report_on(tmp_path, choose=["LAMBDA"])
    notes = pairs_table(report).notes
    assert "UCF101: view seeds differ between the rows (TPT: 0; SoC: 0, 1)." in notes
    assert any(note.startswith("A pair is compared on the seeds that both methods have") for note in notes)
    seeds = {}
    with (tmp_path / "report" / "tables.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["block"] == "ECE (%)":
                seeds[line["table"], line["row"], line["column"]] = line["seeds"]
    assert seeds["results_1", "SoC", "UCF101"] == "2"
    assert seeds["results_1", "SoC", "Average"] == ""  # not the same number everywhere
    assert seeds["choice_ViT-L-14_1", "SoC: default", "UCF101"] == "1"


def test_a_run_whose_images_fell_back_is_the_lowest_of_no_prompt(tmp_path):
    key = "PROMPT.CTX_INIT"
    for words in ("a photo of a", "itap of a"):
        make_run(tmp_path, "TPT", settings={key: words}, flagged=400)
        make_run(tmp_path, "SoC", settings={key: words}, sharpness=3.0)
    table = table_by(measured_runs(tmp_path).test, "prompts", rows=[key], metrics=["ece"])
    mean_of_tpt = entry(table, "ECE", "TPT", "UCF101: mean").value
    assert mean_of_tpt < entry(table, "ECE", "SoC", "UCF101: mean").value
    assert entry(table, "ECE", "TPT", "UCF101: lowest of 2") is None
    assert entry(table, "ECE", "SoC", "UCF101: lowest of 2").value == 2


def test_what_was_not_run_at_the_severity_of_a_table_is_named(tmp_path):
    for trainer, corruption, severity in (
        ("SoC", "fog", 5), ("SoC", "fog", 3), ("TPT", "fog", 3), ("SoC", "snow", 3),
    ):
        name = f"{corruption} {severity}"
        make_run(tmp_path, trainer, images=name, names=numbered(name, 400),
                 changes={"data.corruption": corruption, "data.severity": severity},
                 folder=f"{trainer}/{name}")
    make_run(tmp_path, "SoC", images="fog 3", names=numbered("fog 3", 400), settings={LAMBDA: 10.0},
             changes={"data.corruption": "fog", "data.severity": 3})
    table = table_by(measured_runs(tmp_path).test, "corruption")
    (note,) = [note for note in table.notes if note.startswith("Not run at severity 5")]
    for words in ("TPT on fog (up to 3)", "SoC on snow (up to 3)", "SoC, λ 10 on fog (up to 3)"):
        assert words in note


def test_names_in_letters_that_latex_lacks_differ(tmp_path):
    for trainer in ("TPT", "SoC"):
        for dataset, name in (("UCF101", "数据一"), ("EuroSAT", "数据二")):
            make_run(tmp_path, trainer, dataset, changes={"names.dataset": name})
    report_on(tmp_path)
    text = (tmp_path / "report" / "tables.tex").read_text(encoding="utf-8")
    (columns,) = [line for line in text.splitlines() if line.endswith("& Average \\\\")][:1]
    first, second = columns.split(" & ")[1:3]
    assert first.startswith("???") and second.startswith("???") and first != second


def test_rows_of_a_sweep_are_values_where_data_sets_have_other_defaults(tmp_path):
    """On UCF101 the default is λ 30 and λ 14 was given, on EuroSAT it is the other way round."""
    folder = make_run(tmp_path, "SoC", sharpness=1.1, folder="UCF101 30")
    settings = find_runs([folder])[0][0].record.method["settings"]
    make_run(tmp_path, "SoC", settings={LAMBDA: 14.0}, sharpness=1.3, folder="UCF101 14")
    make_run(tmp_path, "SoC", "EuroSAT", sharpness=1.5, folder="EuroSAT 14",
             changes={"method.settings": {**settings, LAMBDA: 14.0}})
    make_run(tmp_path, "SoC", "EuroSAT", sharpness=1.7, folder="EuroSAT 30",
             changes={"changed": {LAMBDA: [14.0, 30.0]}})
    report = report_on(tmp_path)
    (sweep,) = [table for table in report.tables if table.title.startswith("ViT-L/14: λ")]
    assert row_labels(sweep) == ["SoC, λ 14", "SoC, λ 30"]
    for measured in measured_runs(tmp_path).test:
        dataset, value = measured.run.name.split()
        cell = entry(sweep, "ECE", f"SoC, λ {value}", dataset)
        assert cell.value == pytest.approx(100 * measured.value("ece"))


def test_rows_of_a_table_of_values_have_labels_that_tell_them_apart(tmp_path):
    make_run(tmp_path, "SoC", settings={LAMBDA: 10.0})
    make_run(tmp_path, "SoC", settings={LAMBDA: 30.0}, changes={"numerics.precision": "bf16"})
    make_run(tmp_path, "SoC", settings={LAMBDA: 30.0}, n=100, folder="pilot")
    table = table_by(measured_runs(tmp_path).test, LAMBDA)
    assert sorted(row_labels(table)) == ["SoC, bf16", "SoC, fp32"]
    assert table.caption.endswith("no data set is common to all cells.")


def test_a_default_that_was_edited_within_a_sweep_is_told(tmp_path):
    """TTA.SELECT was 0.5 by default when the run with λ 10 was made."""
    folder = make_run(tmp_path, "SoC", folder="λ 30")
    settings = find_runs([folder])[0][0].record.method["settings"]
    make_run(tmp_path, "SoC", settings={LAMBDA: 10.0}, folder="λ 10",
             changes={"method.settings": {**settings, LAMBDA: 10.0, "TTA.SELECT": 0.5}})
    _, sweep = compared(tmp_path)
    note = "UCF101: the default of TTA.SELECT differs between rows (SoC, λ 10: 0.5; SoC, λ 30: 0.1)"
    assert f"{note}." in sweep.notes
    table = table_by(measured_runs(tmp_path).test, LAMBDA)
    assert "the default of TTA.SELECT differs" in "\n".join(table.notes)
    # In a main table, where the first row is of the zero-shot predictions of a run of SoC.
    for steps, select in ((1, 0.5), (2, 0.1)):
        given = {"TTA.STEPS": steps, LAMBDA: 10.0 * steps}
        make_run(tmp_path / "main", "SoC", settings=given, folder=f"{steps} steps",
                 changes={"method.settings": {**settings, **given, "TTA.SELECT": select}})
    main = compared(tmp_path / "main")[0]
    assert len(main.rows) == 3 and "the default of TTA.SELECT differs" in "\n".join(main.notes)


# The verdict

def test_every_table_and_figure_of_ece_states_the_number_of_bins(tmp_path):
    """Of runs over lambda, steps and backbones, with a choice on validation images."""
    for split in ("test", "val"):
        for settings in ({}, {LAMBDA: 10.0}, {"TTA.STEPS": 2}, {"PROMPT.CTX_INIT": "itap of a"}):
            make_run(tmp_path, "SoC", split=split, settings=settings,
                     folder=f"{split} {list(settings)}")
    make_run(tmp_path, "TDA", backbone="ViT-B/16")
    options = {"bins": 10, "choose": ["LAMBDA"]}
    tables = report_on(tmp_path, **options).tables
    tables.append(table_by(measured_runs(tmp_path, bins=10).test, "backbone"))
    for table in tables:
        if any("ECE" in block.label for block in table.blocks):
            assert "10 bins" in f"{table.caption} {' '.join(table.notes)}", table.title
    captions = [figure.caption for figure in report_figures(compared(tmp_path, bins=10))]
    assert len(captions) > 5 and all("10 bins" in caption for caption in captions)



def test_methods_of_equal_ece_are_all_named_as_the_lowest(tmp_path):
    for trainer in ("TPT", "CTPT", "SoC"):
        make_run(tmp_path, trainer, sharpness=1.5)
    make_run(tmp_path, "OTPT", sharpness=1.7)
    assert "as have C-TPT and SoC, but no difference" in report_on(tmp_path).verdicts[0].sentence


def test_a_pilot_whose_images_failed_does_not_keep_the_whole_set_from_the_tests(tmp_path):
    for trainer in ("TPT", "CTPT", "SoC"):
        make_run(tmp_path, trainer)
    make_run(tmp_path, "SoC", n=50, flagged=50, folder="pilot")
    report = report_on(tmp_path)
    assert "TPT → SoC" in row_labels(pairs_table(report))
    sentence = report.verdicts[0].sentence
    assert "share no images" not in sentence and "SoC is better calibrated than C-TPT" in sentence


def test_one_and_two_steps_are_averaged_over_the_data_sets_that_all_methods_have(tmp_path):
    key = "TTA.STEPS"
    for steps in (1, 2):
        make_run(tmp_path, "SoC", "EuroSAT", settings={key: steps}, sharpness=2.0 + steps)
        for trainer in ("TPT", "SoC"):
            make_run(tmp_path, trainer, settings={key: steps})
            make_run(tmp_path, trainer, n=50, settings={key: steps}, folder=f"{trainer}{steps}")
    (grid,) = [grid for grid in compared(tmp_path) if grid.stated]
    rows, columns = rows_of_steps(grid)
    assert [(column.label, column.n) for column in columns] == [("UCF101", 400)]
    panels = by_label(step_panels(grid, rows, columns)["ECE (%)"][""])
    for label, (one_step, _) in rows.items():
        cell = grid.cells[one_step, columns[0]]
        assert panels[label].before == pytest.approx(100 * cell[0].value("ece"))
    figure = next(step_figures(grid))
    assert figure.caption.endswith("Test images: UCF101 400. 20 bins.")


# What a report does not know

def test_a_run_on_another_split_or_of_an_unknown_method_is_named_or_shown(tmp_path):
    make_run(tmp_path, "SoC")
    make_run(tmp_path, "TPT", split="validation", folder="odd")
    make_run(tmp_path, "Mine", "Unheard of", folder="mine")
    report = report_on(tmp_path)
    note = "odd is left out: its split 'validation' is neither test nor val"
    assert note in "\n".join(report.notes)
    assert "Mine" in row_labels(report.tables[0])
    assert "Unheard of" in report.tables[0].columns


def test_no_path_user_or_host_in_tables_page_and_captions(tmp_path):
    root = tmp_path / "secret place"
    make_run(root, "TPT")
    make_run(root, "SoC")
    broken = make_run(root, "OTPT", folder="broken")
    (broken / "predictions.npz").unlink()
    report = report_on(root, with_figures=True)
    for name in ("report.html", "tables.md", "tables.tex", "tables.csv"):
        assert str(tmp_path) not in (root / "report" / name).read_text(encoding="utf-8"), name
    assert any(note.startswith("broken is left out") for note in report.notes)
