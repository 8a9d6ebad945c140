"""Runs that look alike and are not, and runs that are the same and do not look it: never mixed, never a silent word."""
import csv

import numpy as np
import pytest
from promptcal.trainers.report.choices import choice_tables
from promptcal.trainers.report.core import measure
from promptcal.trainers.report.differences import Differences
from promptcal.trainers.report.layout import TableSpec, default_layout
from promptcal.trainers.report.load import find_runs
from promptcal.trainers.report.pairs import PairTests
from promptcal.trainers.report.published_rows import PublishedOptions
from promptcal.trainers.report.spec_tables import spec_tables

from common import run_tool
from made_runs import compared, entry, labels, make_run, measured_runs, report_on

LAMBDA = "TRAINER.SOC.LAMBDA"


def main_table(report):
    return report.tables[0]


def rows(table, block: int = 0) -> list[str]:
    return [row.label for row in table.blocks[block].rows]


# Failed images

def test_a_run_whose_images_fell_back_to_zero_shot_is_shown_but_not_ranked(tmp_path):
    make_run(tmp_path, "TPT")
    make_run(tmp_path, "OTPT")
    make_run(tmp_path, "SoC", flagged=400)  # its zero-shot predictions have the lowest ECE of all
    report = report_on(tmp_path)
    table = main_table(report)
    assert entry(table, "ECE", "SoC", "UCF101").value < entry(table, "ECE", "O-TPT", "UCF101").value
    assert not entry(table, "ECE", "SoC", "UCF101").best and entry(table, "ECE", "O-TPT", "UCF101").best
    notes = " ".join(table.notes)
    assert "SoC on UCF101 400 of 400" in notes and "Not ranked" in notes
    verdict = report.verdicts[0]
    assert "SoC" not in verdict.sentence and "SoC" not in " ".join(verdict.findings)
    assert "SoC" not in [line.row.label for line in verdict.lines]
    pairs = next(table for table in report.tables if "Pairs" in table.title)
    assert not any("SoC" in row for row in rows(pairs))


@pytest.mark.parametrize(("flagged", "skipped", "ranked"), [(4, 0, True), (5, 0, False), (0, 4, True), (0, 5, False)])
def test_up_to_one_percent_of_failures_is_ranked_and_told(tmp_path, flagged, skipped, ranked):
    make_run(tmp_path, "OTPT")
    make_run(tmp_path, "SoC", flagged=flagged, skipped=range(skipped))
    table = main_table(report_on(tmp_path))
    assert entry(table, "ECE", "SoC", "UCF101").best is ranked
    told = "zero-shot prediction" if flagged else "could not be read"
    assert any(told in note for note in table.notes)
    assert any("Not ranked" in note for note in table.notes) is not ranked


# Rows

@pytest.mark.parametrize(("changes", "words"), [
    ({"method.source": {"version": "1.1.0", "hash": "edited", "plugin": "edited"}}, "code edited"),
    ({"numerics.precision": "bf16"}, "bf16"),
    ({"numerics.engine": 7}, "engine 7"),
    ({"views.pipeline": "pillow-13.0.0"}, "views pillow-13.0.0"),
    ({"changed": {"PROMPT.DESCRIPTIONS": ["", "cupl-2222"]}}, "descriptions cupl-2222"),
])
def test_seeds_that_differ_in_more_than_the_seed_are_never_pooled(tmp_path, changes, words):
    first = {"changed": {"PROMPT.DESCRIPTIONS": ["", "cupl-1111"]}} if "changed" in changes else {}
    make_run(tmp_path, "SoC", seed=0, changes=first, folder="a")
    make_run(tmp_path, "SoC", seed=1, changes=changes, folder="b", sharpness=4.0)
    cells = [cell for grid in compared(tmp_path) for (row, _), cell in grid.cells.items() if row.method == "SoC"]
    assert {len(cell) for cell in cells} == {1}
    names = [label for grid in compared(tmp_path) for label in labels(grid)]
    assert any(words in name for name in names), names


def test_equal_runs_count_once_and_different_runs_of_one_seed_have_rows(tmp_path):
    make_run(tmp_path, "SoC", folder="a")
    make_run(tmp_path, "SoC", folder="copy of a")
    grid, = compared(tmp_path)
    assert labels(grid) == ["Zero-shot", "SoC"] and all(len(cell) == 1 for cell in grid.cells.values())
    assert any("copy of a is the same run as a and counts once" in note for note in grid.notes)
    make_run(tmp_path, "SoC", folder="b", changes={"numerics.jacobian": True}, sharpness=3.0)
    make_run(tmp_path, "SoC", folder="c", changes={"numerics.part": 2}, sharpness=3.0)
    grid, = compared(tmp_path)
    assert {"SoC, Jacobian on", "SoC, parts of 2 images"} <= set(labels(grid))
    assert all(len(cell) == 1 for cell in grid.cells.values())


def test_a_default_that_was_edited_between_runs_makes_two_rows_and_keeps_labels(tmp_path):
    """Labels come from the record: λ 30 was the default of one run, λ 25 that of the other."""
    make_run(tmp_path, "SoC", folder="a")
    edited = {**compared(tmp_path)[0].rows[1].record.method["settings"], LAMBDA: 25.0}
    make_run(tmp_path, "SoC", folder="b", changes={"method.settings": edited}, sharpness=3.0)
    grid, = compared(tmp_path)
    assert labels(grid) == ["Zero-shot", "SoC", "SoC, λ 25"]


def test_two_trainings_of_a_prompt_are_two_rows(tmp_path):
    prompt = {"kind": "learnt", "protocol": "CoOp 4 shots", "position": "end"}
    for name, digest in (("a", "1" * 16), ("b", "2" * 16)):
        make_run(tmp_path, "SoC", folder=name, changes={"model.prompt": {**prompt, "hash": digest}})
    for seed in (1, 2):
        make_run(tmp_path, "SoC", "EuroSAT", seed, changes={"model.prompt": {**prompt, "hash": f"{seed}" * 16}})
    grid, = compared(tmp_path)
    tuned = [label for label in labels(grid) if label.startswith("SoC")]
    assert tuned == ["SoC, CoOp 4 shots", "SoC, CoOp 4 shots, prompt 22222222"]
    assert max(len(cell) for cell in grid.cells.values()) == 2  # one prompt per seed is one row


# Columns

def test_the_same_images_under_two_names_are_one_column(tmp_path):
    shared = {"images": "same", "names": [f"picture {k}" for k in range(50)], "n": 50}
    make_run(tmp_path, "TPT", changes={"names.dataset": "laptop"}, **shared)
    make_run(tmp_path, "SoC", changes={"names.dataset": "cluster"}, **shared)
    table = main_table(report_on(tmp_path))
    assert table.columns == ["cluster"] or table.columns == ["laptop"]
    assert any("has the same images as" in note for note in table.notes)


def test_other_images_under_one_name_are_two_columns(tmp_path):
    make_run(tmp_path, "SoC", images="a", n=50, folder="a")
    make_run(tmp_path, "SoC", images="b", n=50, folder="b")
    assert main_table(report_on(tmp_path)).columns == ["UCF101, 50 images (a)", "UCF101, 50 images (b)"]


def test_weights_of_one_name_are_two_tables(tmp_path):
    make_run(tmp_path, "SoC", backbone="mine", weights="a" * 16)
    make_run(tmp_path, "TPT", backbone="mine", weights="b" * 16)
    first, second = compared(tmp_path)
    assert (first.backbone, second.backbone) == ("mine (weights aaaaaa)", "mine (weights bbbbbb)")


# Pairs

def test_pairs_are_of_the_images_that_both_have(tmp_path):
    """Equal predictors that skipped different files differ by exactly 0."""
    for trainer, skipped in (("TPT", [0, 1, 2]), ("CTPT", [7, 8])):
        make_run(tmp_path, trainer, skipped=skipped, sharpness=2.0)
    grid, = compared(tmp_path)
    tests = PairTests(grid)
    pair = next(pair for pair in tests.all_pairs() if {pair.first.method, pair.second.method} == {"TPT", "CTPT"})
    found = pair.comparison
    assert (found.over.value, found.accuracy.value, found.squared.value, found.p) == (0, 0, 0, 1)
    assert found.images == 395
    table = next(table for table in report_on(tmp_path).tables if "Pairs" in table.title)
    assert entry(table, "Pair", "TPT → C-TPT", "Images").text == "395"
    assert any("numbers differ" in note for note in table.notes)


def test_differences_in_a_table_are_of_the_images_that_both_have(tmp_path):
    make_run(tmp_path, "OTPT", skipped=[0, 1, 2], sharpness=2.0)
    make_run(tmp_path, "SoC", skipped=[7, 8, 9], sharpness=2.0)
    table = main_table(report_on(tmp_path))
    assert entry(table, "Accuracy", "SoC", "UCF101").difference == 0
    assert entry(table, "ECE", "SoC", "UCF101").difference == 0
    assert any("images that both have" in note for note in table.notes)


def test_a_pilot_is_compared_on_its_images(tmp_path):
    """TPT ran on all images, SoC on the first 100 of them."""
    make_run(tmp_path, "TPT", n=400)
    whole = [f"UCF101 test {k}" for k in range(100)]
    make_run(tmp_path, "SoC", n=100, names=whole, images="pilot", changes={"data.subset": "100 of 400 images"})
    grid, = compared(tmp_path)
    pair = next(pair for pair in PairTests(grid).all_pairs()
                if {pair.first.method, pair.second.method} == {"TPT", "SoC"})
    assert pair.comparison.images == 100


def test_corruptions_of_one_image_are_one_cluster(tmp_path):
    for trainer in ("TPT", "SoC"):
        for severity in (1, 5):
            names = [f"fog {severity} {k}" for k in range(120)]
            make_run(tmp_path, trainer, n=120, names=names, clusters=[f"tile {k}" for k in range(120)],
                     images=f"fog {severity}", folder=f"{trainer}{severity}",
                     changes={"data.corruption": "fog", "data.severity": severity})
    report = report_on(tmp_path)
    assert main_table(report).columns == ["UCF101 fog 1", "UCF101 fog 5", "Average"]
    table = next(table for table in report.tables if "Pairs" in table.title)
    row = rows(table)[0]
    assert entry(table, "Pair", row, "Images").value == 240 and entry(table, "Pair", row, "Clusters").value == 120
    assert any("240 images" in note and "120 clusters" in note for note in table.notes)


def test_groups_of_images_have_intervals_of_accuracy_and_over_confidence_only(tmp_path):
    make_run(tmp_path, "SoC", n=200, clusters=[f"patient {k // 10}" for k in range(200)])
    make_run(tmp_path / "alone", "SoC", n=200)
    grouped = next(run for run in measured_runs(tmp_path).test if run.run.name.startswith("UCF101"))
    alone = measured_runs(tmp_path / "alone").test[0]
    for name in ("accuracy", "signed_error"):
        ours, theirs = grouped.metrics[name], alone.metrics[name]
        assert ours.high - ours.low != pytest.approx(theirs.high - theirs.low)
    assert np.isnan(grouped.metrics["brier"].low) and not np.isnan(alone.metrics["brier"].low)


# Validation

def val_names(first: int, count: int) -> list[str]:
    return [f"UCF101 val {k}" for k in range(first, first + count)]


def temperature_of(root):
    return next(run for run in measured_runs(root).test if run.run.trainer == "SoC")


def test_of_several_validation_runs_the_largest_counts_whatever_the_order_of_folders(tmp_path):
    make_run(tmp_path, "SoC", folder="test", sharpness=2.0)
    make_run(tmp_path, "SoC", split="val", n=200, folder="m", sharpness=2.0)
    alone = temperature_of(tmp_path)
    for name in ("a trial", "z trial"):
        make_run(tmp_path, "SoC", split="val", n=3, folder=name, sharpness=40.0)
    measured = temperature_of(tmp_path)
    assert measured.temperature_from == 200 and measured.value("ece_temperature") == alone.value("ece_temperature")
    text = " ".join(note for table in report_on(tmp_path).tables for note in table.notes)
    assert "Fitted on validation images: SoC on UCF101 (200)" in text


def test_validation_images_that_are_test_images_are_left_out_or_refused(tmp_path):
    make_run(tmp_path, "SoC", folder="test", sharpness=2.0)
    some = [*val_names(0, 95), *(f"UCF101 test {k}" for k in range(5))]
    make_run(tmp_path, "SoC", split="val", n=100, folder="val", names=some, sharpness=9.0)
    report = report_on(tmp_path)
    assert temperature_of(tmp_path).temperature_from == 95
    assert any("SoC on UCF101: 5 of 100 validation images are test images and are left out" in note
               for note in report.notes)
    many = [*val_names(0, 80), *(f"UCF101 test {k}" for k in range(20))]
    make_run(tmp_path, "SoC", split="val", n=100, folder="val", names=many, sharpness=9.0)
    report = report_on(tmp_path)
    assert temperature_of(tmp_path).temperature_from == 0
    assert any("validation is refused, because 20 of 100" in note for note in report.notes)


def test_a_copy_of_a_test_image_in_another_cluster_name_is_found_by_its_cluster(tmp_path):
    make_run(tmp_path, "SoC", folder="test", clusters=[f"patient {k // 4}" for k in range(400)])
    make_run(tmp_path, "SoC", split="val", n=100, folder="val", clusters=[f"patient {k}" for k in range(100)])
    assert temperature_of(tmp_path).temperature_from == 0


@pytest.mark.parametrize("changes", [
    {"method.settings": {"TTA.SELECT": 0.5, "TTA.STEPS": 1}},  # its default was another one
    {"views.augmix": False},
    {"model.prompt": {"kind": "learnt", "protocol": "CoOp 2 shots", "hash": "trained again", "position": "end"}},
])
def test_a_validation_run_with_other_settings_or_another_prompt_counts_for_no_test_run(tmp_path, changes):
    prompt = {"kind": "learnt", "protocol": "CoOp 2 shots", "hash": "first", "position": "end"}
    make_run(tmp_path, "SoC", folder="test", changes={"model.prompt": prompt} if "model.prompt" in changes else {})
    make_run(tmp_path, "SoC", split="val", n=100, folder="held out", changes=changes)
    measured = measured_runs(tmp_path)
    assert measured.test[0].temperature_from == 0
    assert any("not of the settings, data set and seed of any test run here: held out" in note
               for note in measured.notes)


def test_validation_images_of_another_data_set_of_the_same_name_are_not_used(tmp_path):
    for place in ("laptop", "clinic"):
        names = [f"{place} {k}" for k in range(100)]
        make_run(tmp_path, "SoC", "ImageFolder", n=100, images=place, names=names, folder=f"{place}/test")
    make_run(tmp_path, "SoC", "ImageFolder", n=90, split="val", folder="clinic/val")
    measured = measured_runs(tmp_path)
    assert [run.temperature_from for run in measured.test] == [0, 0]
    assert any("Several data sets are called ImageFolder" in note for note in measured.notes)


def test_validation_images_under_the_same_corruption_come_first(tmp_path):
    fog = {"data.corruption": "fog", "data.severity": 5}
    make_run(tmp_path, "SoC", folder="test")
    make_run(tmp_path, "SoC", split="val", n=100, folder="fog", changes=fog)
    measured = measured_runs(tmp_path)
    assert measured.test[0].temperature_from == 100
    assert any("fitted on validation images of UCF101 fog 5" in note for note in measured.notes)
    make_run(tmp_path, "SoC", split="val", n=50, folder="clear")
    assert measured_runs(tmp_path).test[0].temperature_from == 50


def test_a_second_report_on_the_same_runs_has_the_notes_and_the_validation_runs_of_the_first(tmp_path):
    """As the experiments of one `reproduce` share measured runs."""
    for value in (10.0, 30.0):
        make_run(tmp_path, "SoC", settings={LAMBDA: value}, folder=f"test {value}")
        names = [*val_names(0, 95), *(f"UCF101 test {k}" for k in range(5))]
        make_run(tmp_path, "SoC", settings={LAMBDA: value}, split="val", n=100, names=names, folder=f"val {value}")
    known = {}
    reports = []
    for _ in range(2):
        runs, _ = find_runs([tmp_path])
        measured = measure(runs, default_layout(), known)
        (table,) = choice_tables(measured.test, measured.validation, ["LAMBDA"], "ece")
        reports.append((measured.notes, rows(table), table.notes))
    assert reports[0] == reports[1]
    assert any("left out of validation" in note for note in reports[1][0])
    assert "SoC: validation images" in reports[1][1]


def test_report_and_reproduce_fit_the_same_temperature(tmp_path):
    """Both measure by one function; here through both commands."""
    out = tmp_path / "out"
    done = run_tool("reproduce.py", "posthoc", "--demo", "--limit", 12, "--only", "TPT", "landcover", "--output-dir",
                    out, "--set", "TTA.VIEWS", 10)
    assert done.returncode == 0, done.stderr
    done = run_tool("report.py", out / "demo", "--demo", "--no-figures", "--posthoc", "--out", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    values = []
    for file in (out / "demo/experiments/posthoc/tables.csv", tmp_path / "report/tables.csv"):
        found = set()
        for line in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
            if "ECE + temperature" in line["block"] + line["column"] and line["row"].startswith("TPT"):
                found.add(round(float(line["value"]), 9))
        values.append(found)
    assert values[0] and values[0] <= values[1]


# Learnt prompts

def test_prompts_whose_protocols_begin_alike_have_labels_that_tell_them_apart(tmp_path):
    start = "CoOp 2 shots (epochs 50, n_ctx 16, class_token_position end, settings"
    for number in range(3):
        prompt = {"kind": "learnt", "protocol": f"{start} {number}{'f' * 15})", "hash": str(number), "position": "end"}
        make_run(tmp_path, "SoC", folder=str(number), changes={"model.prompt": prompt, "names.prompt": "CoOp 2 shots"})
    (grid,) = compared(tmp_path)
    assert len(grid.rows) == 6 == len(set(labels(grid)))
    assert "SoC, CoOp 2 shots, prompt … 1fffffffffffffff)" in labels(grid)


def test_seeds_of_coop_are_pooled_though_each_draws_its_own_training_images(tmp_path):
    for seed in (0, 1):
        training = {"settings": {"DATASET.NUM_SHOTS": 2}, "images": f"drawn with seed {seed}"}
        make_run(tmp_path, "CoOp", seed=seed, changes={"method.training": training})
    (grid,) = compared(tmp_path)
    row = next(row for row in grid.rows if row.method == "CoOp")
    assert [run.seed for run in grid.cells[row, grid.columns[0]]] == [0, 1]


# Pilots

def test_a_pilot_and_the_whole_set_are_not_averaged_and_have_columns_of_other_names(tmp_path):
    for value in (10.0, 30.0):
        for n in (50, 400):
            make_run(tmp_path, "SoC", n=n, settings={LAMBDA: value}, folder=f"{value}/{n}",
                     changes={"data.corruption": "fog", "data.severity": 5})
    measured = measured_runs(tmp_path).test
    spec = TableSpec(name="t", title="t", columns=LAMBDA, metrics=["accuracy"])
    (table,) = spec_tables(measured, spec, PublishedOptions(), Differences())
    whole = [run for run in measured if run.n == 400]
    for cell, run in zip(table.blocks[0].rows[0].entries, whole, strict=True):
        assert cell.value == pytest.approx(100 * run.value("accuracy"))
    assert any("Left out for a larger set" in note and "UCF101 fog 5, 50 images" in note for note in table.notes)
    spec = TableSpec(name="t", title="t", columns="corruption", metrics=["accuracy"])
    (table,) = spec_tables(measured, spec, PublishedOptions(), Differences())
    assert [name for name in table.columns if "fog" in name] == ["UCF101 fog 5, 400 images", "UCF101 fog 5, 50 images"]


# Choices and pairs

def test_values_are_chosen_among_runs_that_differ_in_the_key_alone(tmp_path):
    """A third run has λ 10 too, by another default of TTA.SELECT, and the name that sorts first."""
    for value, sharpness in ((10.0, 2.0), (30.0, 4.0)):
        make_run(tmp_path, "SoC", settings={LAMBDA: value}, sharpness=sharpness, folder=f"run {value}")
    record = next(run for run in find_runs([tmp_path])[0] if run.name == "run 10.0").record
    settings = {**record.method["settings"], "TTA.SELECT": 0.5}
    make_run(tmp_path, "SoC", settings={LAMBDA: 10.0}, sharpness=40.0, folder="a",
             changes={"method.settings": settings})
    measured = measured_runs(tmp_path)
    (table,) = choice_tables(measured.test, measured.validation, ["LAMBDA"], "ece")
    assert entry(table, "chosen value", "SoC: best in hindsight", "UCF101").text == "10"
    assert any(note.startswith("a is left out of the choice") and "SELECT 0.5" in note for note in table.notes)


def test_images_that_a_table_groups_by_patient_and_a_folder_does_not_are_the_same_images(tmp_path):
    names = [f"picture {k}" for k in range(200)]
    patients = [f"patient {k // 20}" for k in range(200)]
    for value in (10.0, 30.0):
        make_run(tmp_path, "SoC", "UCF101", n=200, names=names, settings={LAMBDA: value}, folder=f"folder {value}")
        make_run(tmp_path, "SoC", "EuroSAT", n=200, names=names, clusters=patients, settings={LAMBDA: value},
                 folder=f"table {value}")
    measured = measured_runs(tmp_path)
    (table,) = choice_tables(measured.test, measured.validation, ["LAMBDA"], "ece")
    assert not any("other data sets" in row for row in rows(table))
    assert any("UCF101 shares images with EuroSAT" in note for note in table.notes)

    make_run(tmp_path, "TPT", "UCF101", n=200, names=names, folder="TPT")
    make_run(tmp_path, "TPT", "EuroSAT", n=200, names=names, folder="TPT on the table")
    grid = compared(tmp_path)[0]
    pair = PairTests(grid).against(next(row for row in grid.rows if row.label == "TPT"))[0]
    assert (pair.comparison.images, pair.comparison.clusters) == (400, 10)


# What a report does not know

def test_a_run_on_another_split_or_of_an_unknown_method_is_named_or_shown(tmp_path):
    make_run(tmp_path, "SoC")
    make_run(tmp_path, "TPT", split="validation", folder="odd")
    make_run(tmp_path, "Mine", "Unheard of", folder="mine")
    report = report_on(tmp_path)
    assert any("odd is left out: its split 'validation' is neither test nor val" in note for note in report.notes)
    assert "Mine" in rows(main_table(report)) and "Unheard of" in main_table(report).columns


def test_no_path_user_or_host_in_tables_page_and_captions(tmp_path):
    for trainer in ("TPT", "SoC"):
        make_run(tmp_path / "secret place", trainer)
    (make_run(tmp_path / "secret place", "OTPT", folder="broken") / "predictions.npz").unlink()
    report = report_on(tmp_path / "secret place", with_figures=True)
    out = tmp_path / "secret place" / "report"
    for name in ("report.html", "tables.md", "tables.tex", "tables.csv"):
        assert str(tmp_path) not in (out / name).read_text(encoding="utf-8"), name
    assert any(note.startswith("broken is left out") for note in report.notes)
