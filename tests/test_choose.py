"""Settings chosen on validation images and on other data sets, beside the best in hindsight."""
from pathlib import Path

import pytest
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers.experiments.definition import read_experiment
from promptcal.trainers.experiments.plan import Workspace, expand, work_groups
from promptcal.trainers.experiments.reproduce import make_plans, read_experiments
from promptcal.trainers.report.choices import choice_tables, refers_to

from common import run_tool
from made_runs import entry, make_run, measured_runs

LAMBDA = "TRAINER.SOC.LAMBDA"
# The sharper the made-up logits, the higher the ECE: by data set, the order of λ on test and on validation images.
SHARPNESS = {
    "UCF101": {"test": {10: 1.2, 30: 2.2, 50: 3.2}, "val": {10: 2.2, 30: 1.2, 50: 3.2}},
    "EuroSAT": {"test": {10: 3.2, 30: 2.2, 50: 1.2}, "val": {10: 3.2, 30: 2.2, 50: 1.2}},
    "OxfordPets": {"test": {10: 3.2, 30: 2.2, 50: 1.2}, "val": {10: 3.2, 30: 2.2, 50: 1.2}},
}


def make_sweep(root: Path, seeds=(0,), without=(), key: str = LAMBDA, trainer: str = "SoC") -> Path:
    for dataset, splits in SHARPNESS.items():
        for split, values in splits.items():
            for value, sharpness in values.items():
                for seed in seeds if (dataset, split, value) not in without else ():
                    make_run(root, trainer, dataset, seed, settings={key: value}, sharpness=sharpness, split=split,
                             folder=f"{dataset}/{trainer}/{split}/{value}/seed{seed}")
    return root


def tables_of(root: Path, name: str = "LAMBDA", criterion: str = "ece"):
    measured = measured_runs(root)
    return choice_tables(measured.test, measured.validation, [name], criterion)


def chosen(table, rule: str, method: str = "SoC") -> list[str]:
    columns = table.columns[:-1] if "Average" in table.columns else table.columns
    values = []
    for column in columns:
        try:
            cell = entry(table, "chosen value", f"{method}: {rule}", column)
        except LookupError:  # nothing was chosen by this rule
            return []
        values.append(cell.text if cell else "")
    return values


def test_each_rule_chooses_what_it_may_see(tmp_path):
    """On UCF101 the validation images favour λ 30, the other data sets 50, and its own test images 10."""
    (table,) = tables_of(make_sweep(tmp_path, seeds=(0, 1)))
    assert table.columns == ["Pets", "UCF101", "EuroSAT", "Average"]
    assert chosen(table, "validation images") == ["50", "30", "50"]
    assert chosen(table, "best in hindsight") == ["50", "10", "50"]
    assert chosen(table, "default") == ["30", "30", "30"]
    assert chosen(table, "other data sets")[1] == "50"
    by_value: dict = {}
    for run in measured_runs(tmp_path / "UCF101").test:
        by_value.setdefault(run.record.method["settings"][LAMBDA], []).append(100 * run.value("ece"))
    for rule, value in (("validation images", 30), ("other data sets", 50), ("best in hindsight", 10)):
        shown = entry(table, "ECE", f"SoC: {rule}", "UCF101").value
        assert shown == pytest.approx(sum(by_value[value]) / 2)  # the test result of the chosen value, over both seeds
    hindsight, validation = (entry(table, "ECE", f"SoC: {rule}", "Average").value
                             for rule in ("best in hindsight", "validation images"))
    assert hindsight < validation
    notes = " ".join(table.notes)
    assert "lowest ECE on validation images" in notes and "uses the test labels" in notes
    assert "SoC: values 10, 30, 50; 2 seeds; test images: Pets 400, UCF101 400, EuroSAT 400" in notes
    assert "SoC on UCF101: all values are judged on the same 400 validation images" in notes


def test_the_labels_of_a_data_set_do_not_influence_its_leave_one_out_choice(tmp_path, monkeypatch):
    """With λ 50 so bad on UCF101 that its own results would rule it out in any mean, the others still choose it."""
    monkeypatch.setitem(SHARPNESS["UCF101"], "test", {10: 1.2, 30: 1.3, 50: 60})
    (table,) = tables_of(make_sweep(tmp_path))
    own = [entry(table, "ECE", f"SoC: {rule}", "UCF101").value for rule in ("other data sets", "best in hindsight")]
    assert chosen(table, "other data sets")[1] == "50" and own[0] > own[1] + 20


def test_missing_validation_runs_are_named_and_nothing_is_chosen_on_test_images(tmp_path):
    make_sweep(tmp_path, without=[("UCF101", "val", 30)])
    for value, sharpness in SHARPNESS["EuroSAT"]["test"].items():  # validation images that are the test images
        make_run(tmp_path, "SoC", "EuroSAT", settings={LAMBDA: value}, sharpness=sharpness, split="val",
                 names=[f"EuroSAT test {k}" for k in range(400)], folder=f"EuroSAT/SoC/val/{value}/seed0")
    (table,) = tables_of(tmp_path)
    assert chosen(table, "validation images") == ["50", "", ""]
    assert entry(table, "ECE", "SoC: validation images", "Average") is None
    assert any("SoC on UCF101: no run with TEST.SPLIT val at λ 30." in note for note in table.notes)
    assert any("SoC on EuroSAT: refused, because 400 of 400 validation images are test images" in note
               for note in table.notes)


def test_part_of_the_test_list_as_validation_is_found_by_image(tmp_path):
    """ImageNet's validation list is its test list; with TEST.LIMIT the lists differ, and some images are the same."""
    for value, sharpness in SHARPNESS["UCF101"]["test"].items():
        make_run(tmp_path, "SoC", settings={LAMBDA: value}, sharpness=sharpness, folder=f"test/{value}")
        names = [f"UCF101 test {k}" for k in range(5)] + [f"UCF101 val {k}" for k in range(95)]
        make_run(tmp_path, "SoC", settings={LAMBDA: value}, sharpness=SHARPNESS["UCF101"]["val"][value], split="val",
                 n=100, names=names, folder=f"val/{value}")
    (table,) = tables_of(tmp_path)
    assert chosen(table, "validation images") == ["30"]
    notes = " ".join(table.notes)
    assert "5 of 100 validation images are test images and are left out" in notes
    assert "judged on the same 95 validation images" in notes


def test_all_values_are_judged_on_the_same_images_and_a_trial_decides_nothing(tmp_path):
    """λ 30 has a trial of three images with a perfect score, λ 10 a run on more images than the others have."""
    for value, sharpness in SHARPNESS["UCF101"]["test"].items():
        make_run(tmp_path, "SoC", settings={LAMBDA: value}, sharpness=sharpness, folder=f"test/{value}")
    for value, sharpness in {10: 1.2, 30: 3.0, 50: 2.0}.items():
        make_run(tmp_path, "SoC", settings={LAMBDA: value}, sharpness=sharpness, split="val", n=200,
                 folder=f"val/{value}")
    make_run(tmp_path, "SoC", settings={LAMBDA: 30}, sharpness=1.0, split="val", n=3, folder="val/trial")
    make_run(tmp_path, "SoC", settings={LAMBDA: 10}, sharpness=60.0, split="val", n=300, folder="val/more",
             names=[f"UCF101 val other {k}" for k in range(300)])
    (table,) = tables_of(tmp_path)
    assert chosen(table, "validation images") == ["10"]
    assert "judged on the same 200 validation images" in " ".join(table.notes)


def test_another_corruption_of_the_same_images_is_no_other_data_set(tmp_path):
    for corruption in ("fog", "snow"):
        for value, sharpness in SHARPNESS["UCF101"]["test"].items():
            make_run(tmp_path, "SoC", settings={LAMBDA: value}, sharpness=sharpness, folder=f"{corruption}/{value}",
                     images=corruption, names=[f"{corruption} {k}" for k in range(400)],
                     clusters=[f"tile {k}" for k in range(400)],
                     changes={"data.corruption": corruption, "data.severity": 5})
    (table,) = tables_of(tmp_path)
    assert chosen(table, "other data sets") == [] and chosen(table, "best in hindsight") == ["10", "10"]
    assert any("shares images with" in note for note in table.notes)


def test_any_swept_setting_by_key_or_short_name(tmp_path):
    assert refers_to("lambda", LAMBDA) and refers_to("λ", LAMBDA) and refers_to(LAMBDA, LAMBDA)
    assert refers_to("δ", "TRAINER.SOC.DELTA") and refers_to("steps", "TTA.STEPS")
    assert not refers_to("LAMBDA", "TTA.STEPS") and not refers_to("OTPT.LAMBDA", LAMBDA)
    make_sweep(tmp_path, key="TTA.STEPS", trainer="TPT")
    (table,) = tables_of(tmp_path, "steps", "accuracy")
    assert "TTA.STEPS chosen without test labels" in table.title
    assert any("highest Accuracy on validation images" in note for note in table.notes)
    with pytest.raises(ConfigError, match="--choose LAMBDA: no such setting is swept here. Swept: TTA.STEPS"):
        tables_of(tmp_path, "LAMBDA")
    with pytest.raises(ConfigError, match="--choose-by eec: no such metric. Did you mean 'ece'"):
        tables_of(tmp_path, "steps", "eec")


def test_a_setting_whose_values_are_lists(tmp_path):
    for number, values in enumerate(([0.5, 0.5], [0.1, 0.9])):
        make_run(tmp_path, "SoC", settings={"TRAINER.SOC.PAIR": values}, folder=f"{number}", sharpness=1.2 + number)
    (table,) = tables_of(tmp_path, "PAIR")
    assert chosen(table, "best in hindsight") == ["[0.5, 0.5]"]


def test_the_report_shows_the_choice(tmp_path):
    make_sweep(tmp_path)
    done = run_tool("report.py", tmp_path, "--choose", "LAMBDA", "--choose-by", "nll", "--no-figures")
    assert done.returncode == 0, done.stderr
    assert "λ chosen without test labels, ViT-L/14" in done.stdout and "lowest mean NLL" in done.stdout
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert page.index("λ chosen without test labels") < page.index("Further tables</h2>")
    assert "SoC: best in hindsight" in (tmp_path / "report" / "tables.csv").read_text(encoding="utf-8")


def test_validation_runs_are_planned_where_there_are_validation_images():
    plan = expand(read_experiment("lambda"), Workspace(choose=("λ",)))
    val = [run for run in plan if run.split == "val"]
    assert len(plan) == 32 + 20 and len(val) == 20 and {run.method for run in val} == {"SoC"}
    assert all("SPLIT-val" in run.folder.parts[-2] and "validation images" in run.described for run in val)
    assert all(len({run.split for run in group}) == 1 for group in work_groups(plan))  # other images, other features
    steps = expand(read_experiment("two_steps"), Workspace(choose=("STEPS",)))
    assert {run.dataset for run in steps} - {run.dataset for run in steps if run.split == "val"} == {"imagenet"}
    with pytest.raises(ConfigError, match="--choose lamda: no such setting is swept here. Did you mean 'LAMBDA'"):
        make_plans(read_experiments("lambda"), Workspace(choose=("lamda",)), [])


@pytest.mark.slow
def test_an_experiment_runs_its_validation_runs_and_shows_the_choice(tmp_path):
    done = run_tool("reproduce.py", "lambda", "--demo", "--limit", 4, "--only", "SoC", "--choose", "LAMBDA",
                    "--output-dir", tmp_path, "--set", "TTA.VIEWS", 20)
    assert done.returncode == 0, done.stderr
    assert "10 runs done now" in done.stdout and "Demo: λ chosen without test labels" in done.stdout
    assert "judged on the same 4 validation images" in done.stdout
    main = done.stdout.partition("chosen without")[0]
    assert "SoC, λ 50" in main and "LandCover 4." in main  # validation runs are no columns of the main table
