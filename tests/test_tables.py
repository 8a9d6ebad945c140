"""Tables: which runs may stand side by side, what is best, and where the paper's figures belong."""
import numpy as np
import pytest
from promptcal.trainers.report import published
from promptcal.trainers.report.core import report
from promptcal.trainers.report.figures.select import (
    lambda_points,
    prompt_errors,
    report_figures,
    rows_of_steps,
    step_panels,
)
from promptcal.trainers.report.layout import PLAIN, Layout, TableSpec
from promptcal.trainers.report.load import find_runs
from promptcal.trainers.report.report_tables import results_table

from made_runs import (
    by_label,
    compared,
    entry,
    labels,
    make_benchmark,
    make_run,
    measured_runs,
    numbered,
    row_labels,
    verdict_of,
)

LAMBDA = "TRAINER.SOC.LAMBDA"
SOC = Layout(published=published.SOC)


def table_with(grid, *metrics: str, layout=PLAIN):
    """The table of these metrics; none = ECE."""
    return results_table(grid, "t", "", metrics or ["ece"], layout)


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    return make_benchmark(tmp_path_factory.mktemp("runs"))


def table_of(number):
    return f"(published: Fillioux et al. (2026), Table {number})"


def size(dataset: str) -> int:
    """How many test images a data set has in papers."""
    return int(published.find("datasets", "images", "", dataset).value)


def test_paper_layout(benchmark):
    main, = compared(benchmark)
    table = results_table(main, "t", "title", ["accuracy", "ece"])
    assert table.columns == ["Pets", "UCF101", "EuroSAT", "Average"]
    assert row_labels(table) == ["Zero-shot", "TPT", "C-TPT", "O-TPT", "SoC"]
    soc = entry(table, "ECE", "SoC", "UCF101")
    otpt = entry(table, "ECE", "O-TPT", "UCF101")
    tpt = entry(table, "ECE", "TPT", "UCF101")
    values = []
    for (row, column), cell in main.cells.items():
        if row.method == "SoC" and column.dataset == "UCF101":
            values += [100 * measured.metrics["ece"].value for measured in cell]
    assert (soc.value, soc.std, soc.seeds) == (np.mean(values), np.std(values, ddof=1), 2)
    for method in (soc, otpt):
        assert method.difference == pytest.approx(float(method.text) - float(tpt.text))
    assert tpt.difference is None
    assert soc.best and soc.better and not otpt.best
    assert not entry(table, "ECE", "Zero-shot", "UCF101").best  # the reference, though lower
    assert entry(table, "ECE", "SoC", "Pets") is None
    average = entry(table, "ECE", "TPT", "Average")
    eurosat = entry(table, "ECE", "TPT", "EuroSAT")
    assert average.value == pytest.approx((tpt.value + eurosat.value) / 2)
    notes = "\n".join(table.notes)
    assert "leaves out Pets" in notes
    assert "Test images: Pets 400, UCF101 400, EuroSAT 400. 20 bins." in notes


def test_sweeps_leave_the_main_table_and_get_their_own(tmp_path):
    for trainer in ("OTPT", "SoC"):
        steps = {"TTA.STEPS": 2}
        prompt = {"PROMPT.CTX_INIT": "art of a"}
        make_run(tmp_path, trainer, folder=f"{trainer}1")
        make_run(tmp_path, trainer, folder=f"{trainer}2", settings=steps, sharpness=3.0)
        make_run(tmp_path, trainer, folder=f"{trainer}p", settings=prompt, sharpness=2.2)
    for weight in (10.0, 50.0):
        make_run(tmp_path, "SoC", settings={LAMBDA: weight}, sharpness=weight / 20)
    main, prompts, weights, steps = compared(tmp_path)
    assert labels(main) == ["Zero-shot", "O-TPT", "SoC"]
    assert labels(weights) == ["SoC, λ 10", "SoC, λ 30", "SoC, λ 50"]
    assert labels(steps) == ["O-TPT, 1 step", "O-TPT, 2 steps", "SoC, 1 step", "SoC, 2 steps"]
    assert set(prompt_errors(prompts, prompts.columns[0])) == {"a photo of a", "art of a"}
    assert sorted(by_label(lambda_points(weights, weights.columns[0]))["SoC"]) == [10, 30, 50]
    soc = by_label(step_panels(steps, *rows_of_steps(steps))["ECE (%)"][""])["SoC"]
    two_steps = entry(table_with(steps), "ECE", "SoC, 2 steps", "UCF101")
    assert soc.after == pytest.approx(two_steps.value)
    names = {item.name for item in report_figures([main, prompts, weights, steps])}
    expected = {"reliability_grid", "selective_ucf101", "sals", "steps", "prompts_ucf101", "lambda_ucf101"}
    assert names >= expected


def test_a_sweep_on_one_data_set_does_not_change_the_others(tmp_path):
    """λ is 14 on ImageNet-A by default, and 30 elsewhere."""
    for trainer in ("TPT", "OTPT", "SoC"):
        make_run(tmp_path, trainer, "UCF101")
        make_run(tmp_path, trainer, "ImageNetA")
    for weight in (10.0, 50.0):
        make_run(tmp_path, "SoC", "UCF101", settings={LAMBDA: weight})
    main, weights = compared(tmp_path)
    assert [column.dataset for column in main.columns] == ["UCF101", "ImageNet-A"]
    assert main.common_columns() == main.columns
    assert labels(main) == ["Zero-shot", "TPT", "O-TPT", "SoC"]
    settings = {}
    for (row, column), cell in main.cells.items():
        if row.method == "SoC":
            settings[column.dataset] = cell[0].record.method["settings"][LAMBDA]
    assert settings == {"UCF101": 30, "ImageNet-A": 14}
    assert labels(weights) == ["SoC, λ 10", "SoC, λ 30", "SoC, λ 50"]
    assert [column.dataset for column in weights.columns] == ["UCF101"]
    assert weights.title == "ViT-L/14: λ of SoC"


def test_differences_and_bold_within_a_setting(tmp_path):
    for steps in (1, 2):
        for trainer, sharpness in (("OTPT", 1.5 + steps), ("SoC", 1.2 + steps)):
            make_run(tmp_path, trainer, settings={"TTA.STEPS": steps}, sharpness=sharpness)
    table = table_with(compared(tmp_path)[1])
    for steps in ("1 step", "2 steps"):
        soc = entry(table, "ECE", f"SoC, {steps}", "UCF101")
        otpt = entry(table, "ECE", f"O-TPT, {steps}", "UCF101")
        assert soc.difference == pytest.approx(float(soc.text) - float(otpt.text))
        assert soc.best and not otpt.best
    assert "setting by setting" in "\n".join(table.notes)


def test_coop_saw_labels_and_is_no_rival(tmp_path):
    make_run(tmp_path, "CoOp", sharpness=1.0)
    make_run(tmp_path, "OTPT")
    make_run(tmp_path, "SoC")
    grid = compared(tmp_path)[0]
    coop = entry(table_with(grid), "ECE", "CoOp", "UCF101")
    assert (coop.best, coop.difference) == (False, None)
    verdict = verdict_of(grid)
    order = [line.row.method for line in verdict.lines]
    assert order.index("CoOp") < order.index("SoC")
    assert verdict.best == "SoC" and "CoOp" not in verdict.sentence
    for trainer in ("OTPT", "SoC"):
        make_run(tmp_path, trainer, "EuroSAT")
    grid = compared(tmp_path)[0]
    table = table_with(grid)
    assert entry(table, "ECE", "SoC", "Average") and entry(table, "ECE", "CoOp", "Average") is None
    assert "CoOp" not in [line.row.method for line in verdict_of(grid).lines]


def published_rows(root) -> list[str]:
    table = table_with(compared(root)[0], layout=SOC)
    return [row.label for row in table.blocks[0].rows if row.published]


@pytest.mark.parametrize("conditions", [
    {"n": 400},
    {"changes": {"data.subset": "base classes"}},
    {"changes": {"model.backbone": "file"}},
    {"settings": {"TTA.VIEWS": 16, LAMBDA: 1.0}},
    {"changes": {"model.prompt": {"kind": "learnt", "protocol": "CoOp 2 shots", "hash": "h"}}},
    {"dataset": "Mine"},
    {"changes": {"data.corruption": "fog", "data.severity": 5}},
    {"changes": {"data.difference": "the test split is not the published one"}},
], ids=["fewer images", "subset", "weights", "settings", "prompt", "data set", "corruption", "split"])
def test_published_rows_stand_beside_the_papers_conditions_only(tmp_path, conditions):
    """All images of the data set, OpenAI's weights, the settings of the paper: nothing else."""
    make_run(tmp_path, "SoC", **{"n": size("UCF101"), **conditions})
    assert not [label for label in published_rows(tmp_path) if label.startswith("SoC")]


def test_published_ece_stands_beside_ece_of_as_many_bins(tmp_path):
    make_run(tmp_path, "SoC", n=size("UCF101"))
    table = table_with(compared(tmp_path, bins=10)[0], "accuracy", "ece", layout=SOC)
    published_labels = []
    for block in table.blocks:
        published_labels.append([row.label for row in block.rows if row.published])
    assert published_labels == [[f"Zero-shot {table_of(1)}", f"SoC {table_of(1)}"], []]


def test_a_default_that_changed_since_leaves_the_published_neighbours(tmp_path):
    """The run was made with the defaults of its time."""
    settings = {LAMBDA: 77.0}
    make_run(tmp_path, "SoC", n=size("UCF101"), changes={"method.settings": settings})
    assert f"SoC {table_of(1)}" in published_rows(tmp_path)


def test_published_rows_are_labelled_and_never_compared(tmp_path):
    for dataset in ("EuroSAT", "UCF101"):
        for trainer in ("OTPT", "SoC"):
            make_run(tmp_path, trainer, dataset, n=size(dataset))
    table = table_with(compared(tmp_path)[0], "ece", "ece_sals", layout=SOC)
    assert entry(table, "ECE (", f"O-TPT {table_of(1)}", "EuroSAT").text == "17.7"
    assert entry(table, "ECE + SaLS", f"SoC {table_of(10)}", "EuroSAT").text == "3.4"
    for block in table.blocks:
        for row in block.rows:
            for cell in row.entries:
                if row.published and cell is not None:
                    assert not cell.best and cell.difference is None
    assert "not measured here" in " ".join(table.notes)
    # the paper's is over eleven sets
    assert entry(table, "ECE (", f"O-TPT {table_of(1)}", "Average") is None


def test_the_papers_average_stands_beside_the_same_sets(tmp_path):
    for dataset in ("ImageNetA", "ImageNetV2", "ImageNetR", "ImageNetSketch"):
        make_run(tmp_path, "SoC", dataset, n=size(dataset), classes=2)
    table = table_with(compared(tmp_path)[0], layout=SOC)
    assert entry(table, "ECE", f"SoC {table_of(2)}", "Average").text == "8.4"


def test_nothing_published_stands_beside_the_small_clip(tmp_path):
    make_run(tmp_path, backbone="small", n=30)
    (grid,) = compared(tmp_path)
    table = table_with(grid, layout=SOC)
    assert not [row for row in table.blocks[0].rows if row.published]
    assert "Fillioux et al. (2026) print no numbers for small CLIP" in "\n".join(table.notes)


def test_runs_that_are_not_comparable_get_notes(tmp_path):
    make_run(tmp_path, "SoC", bins=10)
    make_run(tmp_path, "OTPT", bins=20)
    make_run(tmp_path, "OTPT", bins=20, seed=1)
    make_run(tmp_path, "TPT", label=np.zeros(400, int))  # other labels: other zero-shot accuracy
    notes = " ".join(compared(tmp_path)[0].notes)
    for words in ("10 bins are computed again with 20", "view seeds differ", "O-TPT: 0, 1",
                  "zero-shot accuracy differs"):
        assert words in notes, words


def test_backbones_get_tables_of_their_own_and_a_zero_shot_row_from_the_tuned_runs(tmp_path):
    make_run(tmp_path, backbone="ViT-B/16")
    make_run(tmp_path, backbone="ViT-L/14")
    first, second = compared(tmp_path)
    assert (first.backbone, second.backbone) == ("ViT-B/16", "ViT-L/14")
    run = find_runs([tmp_path])[0][0]
    zero_shot = entry(table_with(first), "ECE", "Zero-shot", "UCF101")
    assert zero_shot.value == pytest.approx(run.results["zero_shot_ece"])


@pytest.mark.parametrize("shared", [False, True])
def test_folds_are_in_the_order_of_their_numbers_and_may_share_an_image(tmp_path, shared):
    """Two folds of 100 images, whose hashes are in the order of neither."""
    for fold, content in (("test=2", "b"), ("test=10", "a")):
        names = numbered(fold, 100)
        if shared:
            names[-1] = "in both"
        for trainer in ("TPT", "SoC"):
            make_run(tmp_path, trainer, n=100, folder=f"{trainer}{fold}", names=names,
                     changes={"names.part": fold, "data.images": content})
    main, = compared(tmp_path)
    columns = [main.column_label(column) for column in main.columns]
    assert columns == ["UCF101 (test=2), 100 images", "UCF101 (test=10), 100 images"]
    note, = [note for note in main.notes if "several sets" in note]
    assert note == (
        "UCF101 was run on several sets of test images (100, 100), which "
        f"{'may overlap' if shared else 'share no image'}: each has a column of its own, and averages and verdict use "
        "the first of the largest that all compared methods have, UCF101 (test=2), 100 images."
    )


def test_the_same_images_under_two_names_count_once_in_averages(tmp_path):
    """A data set, and the same images with other labels under another name."""
    names = numbered("bird", 100)
    corrected = {"names.dataset": "UCF101 corrected", "data.images": "corrected"}
    for trainer in ("TPT", "SoC"):
        make_run(tmp_path, trainer, n=100, names=names, folder=f"{trainer}/a")
        make_run(tmp_path, trainer, n=100, names=names, folder=f"{trainer}/b", changes=corrected,
                 label=np.zeros(100, int))
        make_run(tmp_path, trainer, "EuroSAT", n=100)
    main, = compared(tmp_path)
    table = table_with(main, "accuracy")
    assert table.columns == ["UCF101", "UCF101 corrected", "EuroSAT", "Average"]
    first, other, eurosat, average = [cell.value for cell in table.blocks[0].rows[-1].entries]
    assert average == pytest.approx((first + eurosat) / 2) and first != other
    note = ("UCF101 corrected and UCF101 have 100 images in common, with other labels or classes: "
            "averages and verdict count them once, as UCF101.")
    assert note in table.notes
    assert "UCF101 100, EuroSAT 100" in verdict_of(main).basis


def test_a_data_set_that_shares_a_part_of_its_images_is_not_said_to_have_other_labels(tmp_path):
    other = {"names.dataset": "Birds", "data.images": "birds"}
    make_run(tmp_path, "SoC", n=100, names=numbered("bird", 100), folder="a")
    make_run(tmp_path, "SoC", n=100, names=numbered("bird", 100, 50), folder="b", changes=other)
    main, = compared(tmp_path)
    notes = "\n".join(table_with(main, "accuracy").notes)
    assert "have 50 images in common: averages and verdict count them once" in notes


def test_temperature_is_averaged_over_the_seeds_with_a_validation_run(tmp_path):
    """A seed without one is scaled on the test images themselves, which is another measurement."""
    for seed in (1, 2, 3):
        make_run(tmp_path, "SoC", seed=seed)
        if seed > 1:
            make_run(tmp_path, "SoC", seed=seed, split="val", folder=f"val{seed}")
    main, = compared(tmp_path)
    table = table_with(main, "ece", "ece_temperature")
    cell = entry(table, "ECE + temperature", "SoC", "UCF101")
    assert cell.seeds == 2 and entry(table, "ECE", "SoC", "UCF101").seeds == 3
    values = []
    for run in main.measured:
        if run.run.trainer == "SoC" and run.seed > 1:
            values.append(100 * run.value("ece_temperature"))
    assert cell.value == pytest.approx(np.mean(values))
    words = ("Fitted on validation images: SoC on UCF101 (400 for 2 of 3 seeds, the others do not count)")
    assert words in "\n".join(table.notes)


def test_tables_and_figures_of_two_backbones_have_names_of_their_own(tmp_path):
    for backbone in ("ViT-L/14", "ViT-B/16"):
        make_run(tmp_path / "runs", "SoC", backbone=backbone)
    layout = Layout(tables=[TableSpec("results", "Results")], figures=["selective"])
    written = report([], layout, tmp_path / "out", measured=measured_runs(tmp_path / "runs"))
    assert [table.name for table in written.tables] == ["results", "results_2"]
    assert written.figures == ["selective", "selective_2"]
    assert len(list((tmp_path / "out" / "figures").glob("*.png"))) == 2
