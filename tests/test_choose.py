"""Settings chosen on validation images and on other data sets, beside the best in hindsight."""
from pathlib import Path

import numpy as np
import pytest
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers.experiments.definition import read_experiment
from promptcal.trainers.experiments.plan import Workspace, expand
from promptcal.trainers.experiments.planned_run import work_groups
from promptcal.trainers.experiments.reproduce import make_plans, read_experiments
from promptcal.trainers.report.choices import choice_tables, refers_to
from promptcal.trainers.report.export import export_runs

from common import run_tool
from made_runs import entry, make_run, measured_runs, numbered, simulate

LAMBDA = "TRAINER.SOC.LAMBDA"
# By data set and split, how sharp the logits are at each λ. The sharper, the higher is ECE.
SHARPNESS = {
    "UCF101": {"test": {10: 1.2, 30: 2.2, 50: 3.2}, "val": {10: 2.2, 30: 1.2, 50: 3.2}},
    "EuroSAT": {"test": {10: 3.2, 30: 2.2, 50: 1.2}, "val": {10: 3.2, 30: 2.2, 50: 1.2}},
    "OxfordPets": {"test": {10: 3.2, 30: 2.2, 50: 1.2}, "val": {10: 3.2, 30: 2.2, 50: 1.2}},
}


def make_values(
    root: Path, dataset: str, split: str, sharpness: dict, key: str = LAMBDA,
    trainer: str = "SoC", folder: str = "", **options,
) -> None:
    """A run for each value of a setting; `sharpness` is that of the logits, by value."""
    folder = folder or f"{dataset}/{split}"
    for value, sharp in sharpness.items():
        make_run(root, trainer, dataset, settings={key: value}, sharpness=sharp, split=split,
                 folder=f"{folder}/{value}", **options)


def make_sweep(root: Path, **options) -> Path:
    """Three data sets with test and validation runs for each λ."""
    for dataset, splits in SHARPNESS.items():
        for split, sharpness in splits.items():
            make_values(root, dataset, split, sharpness, **options)
    return root


def choice_table(root: Path, name: str = "LAMBDA", criterion: str = "ece"):
    measured = measured_runs(root)
    (table,) = choice_tables(measured.test, measured.validation, [name], criterion)
    return table


def chosen(table, rule: str) -> list[str]:
    """The values that SoC has by a rule, one per data set; none if nothing was chosen by it."""
    values = []
    for column in table.columns:
        if column == "Average":
            continue
        try:
            cell = entry(table, "chosen value", f"SoC: {rule}", column)
        except LookupError:
            return []
        values.append(cell.text if cell else "")
    return values


def ece_by(table, rule: str, column: str = "UCF101") -> float:
    return entry(table, "ECE", f"SoC: {rule}", column).value


def test_each_rule_chooses_what_it_may_see(tmp_path):
    """On UCF101 validation images favour λ 30, the other data sets 50, its own test images 10."""
    for seed in (0, 1):
        for dataset, splits in SHARPNESS.items():
            for split, sharpness in splits.items():
                make_values(tmp_path, dataset, split, sharpness, seed=seed,
                            folder=f"{dataset}/{split}/seed{seed}")
    table = choice_table(tmp_path)
    assert table.columns == ["Pets", "UCF101", "EuroSAT", "Average"]
    assert chosen(table, "validation images") == ["50", "30", "50"]
    assert chosen(table, "best in hindsight") == ["50", "10", "50"]
    assert chosen(table, "default") == ["30", "30", "30"]
    assert chosen(table, "other data sets")[1] == "50"
    # The cell is the test result of the chosen value, over both seeds.
    eces: dict[int, list[float]] = {10: [], 30: [], 50: []}
    for run in measured_runs(tmp_path / "UCF101").test:
        eces[run.record.method["settings"][LAMBDA]].append(100 * run.value("ece"))
    assert ece_by(table, "validation images") == pytest.approx(sum(eces[30]) / 2)
    assert ece_by(table, "other data sets") == pytest.approx(sum(eces[50]) / 2)
    assert ece_by(table, "best in hindsight") == pytest.approx(sum(eces[10]) / 2)
    in_hindsight = ece_by(table, "best in hindsight", "Average")
    assert in_hindsight < ece_by(table, "validation images", "Average")
    notes = "\n".join(table.notes)
    assert "lowest ECE on validation images" in notes and "uses the test labels" in notes
    images = "test images: Pets 400, UCF101 400, EuroSAT 400"
    assert f"SoC: values 10, 30, 50; seeds 0, 1; {images}" in notes
    assert "SoC on UCF101: all values are judged on the same 400 validation images" in notes


def test_the_labels_of_a_data_set_do_not_influence_its_leave_one_out_choice(tmp_path, monkeypatch):
    """λ 50 is so bad on UCF101 that its own results would rule it out in any mean."""
    monkeypatch.setitem(SHARPNESS["UCF101"], "test", {10: 1.2, 30: 1.3, 50: 60})
    table = choice_table(make_sweep(tmp_path))
    assert chosen(table, "other data sets")[1] == "50"
    assert ece_by(table, "other data sets") > ece_by(table, "best in hindsight") + 20


def test_missing_validation_runs_are_named_and_nothing_is_chosen_on_test_images(tmp_path):
    """UCF101 lacks λ 30. The validation images of EuroSAT are its test images."""
    make_values(tmp_path, "EuroSAT", "val", SHARPNESS["EuroSAT"]["test"],
                names=numbered("EuroSAT test", 400))
    make_values(tmp_path, "EuroSAT", "test", SHARPNESS["EuroSAT"]["test"])
    make_values(tmp_path, "UCF101", "val", {10: 2.2, 50: 3.2})
    make_values(tmp_path, "UCF101", "test", SHARPNESS["UCF101"]["test"])
    make_values(tmp_path, "OxfordPets", "val", SHARPNESS["OxfordPets"]["val"])
    make_values(tmp_path, "OxfordPets", "test", SHARPNESS["OxfordPets"]["test"])
    table = choice_table(tmp_path)
    assert chosen(table, "validation images") == ["50", "", ""]
    assert entry(table, "ECE", "SoC: validation images", "Average") is None
    notes = "\n".join(table.notes)
    assert "SoC on UCF101: no run with TEST.SPLIT val at λ 30." in notes
    refused = "SoC on EuroSAT: refused, because 400 of 400 validation images are test images"
    assert refused in notes


def test_part_of_the_test_list_as_validation_is_found_by_image(tmp_path):
    """ImageNet's validation list is its test list; with TEST.LIMIT only some images are the
    same."""
    names = numbered("UCF101 test", 5) + numbered("UCF101 val", 95)
    make_values(tmp_path, "UCF101", "test", SHARPNESS["UCF101"]["test"])
    make_values(tmp_path, "UCF101", "val", SHARPNESS["UCF101"]["val"], n=100, names=names)
    table = choice_table(tmp_path)
    assert chosen(table, "validation images") == ["30"]
    notes = "\n".join(table.notes)
    assert "5 of 100 validation images are test images and are left out" in notes
    assert "judged on the same 95 validation images" in notes


def test_all_values_are_judged_on_the_same_images_and_a_trial_decides_nothing(tmp_path):
    """λ 30 has a perfect trial of three images, λ 10 a run on more images than the others have."""
    make_values(tmp_path, "UCF101", "test", SHARPNESS["UCF101"]["test"])
    make_values(tmp_path, "UCF101", "val", {10: 1.2, 30: 3.0, 50: 2.0}, n=200)
    make_values(tmp_path, "UCF101", "val", {30: 1.0}, n=3, folder="trial")
    make_values(tmp_path, "UCF101", "val", {10: 60.0}, n=300, folder="more",
                names=numbered("UCF101 val other", 300))
    table = choice_table(tmp_path)
    assert chosen(table, "validation images") == ["10"]
    assert "judged on the same 200 validation images" in "\n".join(table.notes)


def test_a_value_whose_images_fell_back_to_zero_shot_is_never_chosen(tmp_path):
    """Zero-shot predictions have the lowest ECE of all."""
    make_sweep(tmp_path)
    for dataset in SHARPNESS:
        for split in ("test", "val"):
            make_values(tmp_path, dataset, split, {90: 1.1}, flagged=400)
    make_values(tmp_path, "UCF101", "test", {50: 3.2}, flagged=3)
    table = choice_table(tmp_path)
    for rule in ("validation images", "other data sets", "best in hindsight"):
        assert "90" not in chosen(table, rule) != []
    notes = "\n".join(table.notes)
    for column in table.columns[:-1]:
        assert (
            f"SoC on {column}: λ 90 cannot be chosen, because more than 1 % of the images failed."
            in notes
        )
    assert "at λ 50 on UCF101, seed 0: 3 with their zero-shot prediction, 0 unreadable" in notes


def test_a_validation_run_whose_images_fell_back_to_zero_shot_judges_nothing(tmp_path):
    make_sweep(tmp_path)
    make_values(tmp_path, "UCF101", "val", {30: 1.2}, flagged=5)
    table = choice_table(tmp_path)
    notes = "\n".join(table.notes)
    words = "UCF101/val/30 is not used as a validation run: 5 of 400 images have their zero-shot"
    assert words in notes
    words = "No choice on validation images for SoC on UCF101: no run with TEST.SPLIT val at λ 30"
    assert words in notes
    fitted = [
        run.temperature_from
        for run in measured_runs(tmp_path).test
        if run.record.dataset_name == "UCF101"
    ]
    assert sorted(fitted) == [0, 400, 400]


def test_values_that_are_equally_good_are_named(tmp_path):
    make_values(tmp_path, "UCF101", "test", {10: 2, 30: 2})
    make_values(tmp_path, "UCF101", "val", {10: 2, 30: 2})
    notes = "\n".join(choice_table(tmp_path).notes)
    words = "SoC on UCF101, validation images: λ 10, 30 are equally good, and the first is taken."
    assert words in notes


def test_what_a_choice_leaves_out_is_named(tmp_path):
    make_sweep(tmp_path)
    make_values(tmp_path, "UCF101", "test", {10: 1.2, 30: 2.2}, folder="pilot", n=50)
    make_values(tmp_path, "DTD", "test", {10: 1.2}, seed=1)
    make_values(tmp_path, "DTD", "test", {30: 1.2}, seed=2)
    notes = "\n".join(choice_table(tmp_path).notes)
    assert (
        "UCF101 was run on several sets of test images: the choice is made on 400 images, not on 50."
        in notes
    )
    assert "DTD is left out of the choice: its values have no common seed." in notes


def test_another_corruption_of_the_same_images_is_no_other_data_set(tmp_path):
    for corruption in ("fog", "snow"):
        make_values(tmp_path, "UCF101", "test", SHARPNESS["UCF101"]["test"], folder=corruption,
                    images=corruption, names=numbered(corruption, 400),
                    clusters=numbered("tile", 400),
                    changes={"data.corruption": corruption, "data.severity": 5})
    table = choice_table(tmp_path)
    assert chosen(table, "other data sets") == []
    assert chosen(table, "best in hindsight") == ["10", "10"]
    assert "shares images with" in "\n".join(table.notes)


def test_any_swept_setting_by_key_or_short_name(tmp_path):
    for name in ("lambda", "λ", LAMBDA):
        assert refers_to(name, LAMBDA)
    assert refers_to("δ", "TRAINER.SOC.DELTA") and refers_to("steps", "TTA.STEPS")
    assert not refers_to("LAMBDA", "TTA.STEPS") and not refers_to("OTPT.LAMBDA", LAMBDA)
    make_sweep(tmp_path, key="TTA.STEPS", trainer="TPT")
    table = choice_table(tmp_path, "steps", "accuracy")
    assert "TTA.STEPS chosen without test labels" in table.title
    assert "highest Accuracy on validation images" in "\n".join(table.notes)
    swept = "--choose LAMBDA: no such setting is swept here. Swept: TTA.STEPS"
    with pytest.raises(ConfigError, match=swept):
        choice_table(tmp_path, "LAMBDA")
    with pytest.raises(ConfigError, match="--choose-by eec: no such metric. Did you mean 'ece'"):
        choice_table(tmp_path, "steps", "eec")


def test_two_methods_that_sweep_a_setting_of_one_name_share_the_columns_of_their_table(tmp_path):
    key = "TRAINER.OTPT.LAMBDA"
    for dataset in ("UCF101", "EuroSAT"):
        make_values(tmp_path, dataset, "test", {10: 1.2, 30: 2.2})
        make_values(tmp_path, dataset, "test", {5: 2.2, 18: 1.2}, key, "OTPT", f"{dataset}/otpt")
    table = choice_table(tmp_path)
    assert table.columns == ["UCF101", "EuroSAT", "Average"]
    for method in ("SoC", "O-TPT"):
        by_column = [entry(table, "ECE", f"{method}: default", name).value for name in table.columns]
        assert by_column[2] == pytest.approx(np.mean(by_column[:2]))


def test_a_setting_whose_values_are_lists(tmp_path):
    make_run(tmp_path, settings={"TRAINER.SOC.PAIR": [0.5, 0.5]}, sharpness=1.2)
    make_run(tmp_path, settings={"TRAINER.SOC.PAIR": [0.1, 0.9]}, sharpness=2.2)
    assert chosen(choice_table(tmp_path, "PAIR"), "best in hindsight") == ["[0.5, 0.5]"]


def test_the_report_shows_the_choice(tmp_path):
    make_sweep(tmp_path)
    done = run_tool("report.py", tmp_path, "--choose", "LAMBDA", "--choose-by", "nll", "--no-figures")
    assert done.returncode == 0, done.stderr
    assert "λ chosen without test labels, ViT-L/14" in done.stdout
    assert "lowest mean NLL" in done.stdout
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert page.index("λ chosen without test labels") < page.index("Further tables</h2>")
    tables = (tmp_path / "report" / "tables.csv").read_text(encoding="utf-8")
    assert "SoC: best in hindsight" in tables


def test_validation_runs_are_planned_where_there_are_validation_images():
    plan = expand(read_experiment("lambda"), Workspace(choose=("λ",)))
    validation = [run for run in plan if run.split == "val"]
    assert (len(plan), len(validation)) == (32 + 20, 20)
    for run in validation:
        assert run.method == "SoC" and "validation images" in run.described
        assert "SPLIT-val" in run.folder.parts[-2]
    for group in work_groups(plan):  # other images have other features
        assert len({run.split for run in group}) == 1
    steps = expand(read_experiment("two_steps"), Workspace(choose=("STEPS",)))
    data_sets = {run.dataset for run in steps}
    assert data_sets - {run.dataset for run in steps if run.split == "val"} == {"imagenet"}
    unknown = "--choose lamda: no such setting is swept here. Did you mean 'LAMBDA'"
    with pytest.raises(ConfigError, match=unknown):
        make_plans(read_experiments("lambda"), Workspace(choose=("lamda",)), [])


@pytest.mark.slow
def test_an_experiment_runs_its_validation_runs_and_shows_the_choice(tmp_path):
    done = run_tool(
        "reproduce.py", "lambda", "--demo", "--limit", 4, "--only", "SoC", "--choose", "LAMBDA",
        "--output-dir", tmp_path, "--set", "TTA.VIEWS", 20)
    assert done.returncode == 0, done.stderr
    assert "10 runs done now" in done.stdout
    assert "Demo: λ chosen without test labels" in done.stdout
    assert "judged on the same 4 validation images" in done.stdout
    main_table = done.stdout.partition("chosen without")[0]
    assert "SoC, λ 50" in main_table
    assert "LandCover 4." in main_table  # validation runs are no columns of it


def test_a_metric_that_runs_lack_or_that_is_no_number_chooses_nothing(tmp_path):
    """AUROC is no number where no prediction is wrong, and copies without logits have no NLL."""
    label = simulate(n=100)[0]
    right = 10 * np.eye(8)[label]
    half_right = np.concatenate([np.roll(right[:50], 1, axis=1), right[50:]])
    for value, logits in ((10.0, right), (40.0, half_right)):
        make_run(tmp_path / "runs", "SoC", n=100, settings={LAMBDA: value}, logits=logits, label=label)
    table = choice_table(tmp_path / "runs", criterion="auroc")
    assert chosen(table, "best in hindsight") == ["40"]
    assert ("SoC on UCF101, best in hindsight: λ 10 cannot be chosen, because AUROC is no number "
            "there.") in table.notes
    export_runs([tmp_path / "runs"], tmp_path / "copies")
    table = choice_table(tmp_path / "copies", criterion="nll")
    assert chosen(table, "best in hindsight") == []
    assert "No choice for SoC: NLL was not measured of" in "\n".join(table.notes)


def test_a_default_that_was_edited_between_the_runs_is_no_default(tmp_path):
    make_values(tmp_path, "UCF101", "test", {10.0: 1.2, 30.0: 2.2})
    (run, *_) = measured_runs(tmp_path).test
    settings = {**run.record.method["settings"], LAMBDA: 25.0}
    make_run(tmp_path, "SoC", folder="25", changes={"method.settings": settings})
    table = choice_table(tmp_path)
    assert chosen(table, "default") == []
    assert any("the default of λ was edited between the runs (" in note for note in table.notes)
