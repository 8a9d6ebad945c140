"""Tables: which runs may stand side by side, what is best, and where the paper's figures belong."""
import numpy as np
import pytest
from made_runs import by_label, compared, entry, make_benchmark, make_run
from promptcal.trainers.report.gallery import lambda_points, make_figures, prompt_errors, step_panels
from promptcal.trainers.report.load import find_runs
from promptcal.trainers.report.tables import paper_table
from promptcal.trainers.report.verdict import judge


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory):
    return make_benchmark(tmp_path_factory.mktemp("runs"))


def table_of(number):
    return f"(published: Fillioux et al. (2026), Table {number})"


def test_paper_layout(benchmark):
    main, = compared(benchmark)
    table = paper_table(main, "t", "title", ["accuracy", "ece"])
    assert table.columns == ["Pets", "UCF101", "EuroSAT", "Average"]
    assert [row.label for row in table.blocks[0].rows] == ["Zero-shot", "TPT", "C-TPT", "O-TPT", "SoC"]
    soc, otpt = (entry(table, "ECE", name, "UCF101") for name in ("SoC", "O-TPT"))
    runs = [m for (row, column), cell in main.cells.items() for m in cell
            if row.method == "SoC" and column.dataset == "UCF101"]
    values = [100 * m.metrics["ece"].value for m in runs]
    assert (soc.value, soc.std, soc.seeds) == (np.mean(values), np.std(values, ddof=1), 2)
    assert soc.difference == pytest.approx(float(soc.text) - float(otpt.text))
    assert (soc.best, soc.better, otpt.best, otpt.difference) == (True, True, False, None)
    assert entry(table, "ECE", "SoC", "Pets") is None
    average = entry(table, "ECE", "TPT", "Average")
    parts = [entry(table, "ECE", "TPT", name).value for name in ("UCF101", "EuroSAT")]
    assert average.value == pytest.approx(np.mean(parts))
    assert any("leaves out Pets" in note for note in table.notes)
    assert any("Test images: Pets 400, UCF101 400, EuroSAT 400. 20 bins." in note for note in table.notes)
    assert not entry(table, "ECE", "Zero-shot", "UCF101").best  # the reference, though lower


def test_sweeps_leave_the_main_table_and_get_their_own(tmp_path):
    for trainer in ("OTPT", "SoC"):
        make_run(tmp_path, trainer, folder=f"{trainer}1")
        make_run(tmp_path, trainer, folder=f"{trainer}2", settings={"TTA.STEPS": 2}, sharpness=3.0)
        make_run(tmp_path, trainer, folder=f"{trainer}p", settings={"PROMPT.CTX_INIT": "art of a"}, sharpness=2.2)
    for weight in (10.0, 50.0):
        make_run(tmp_path, "SoC", folder=f"l{weight}", settings={"TRAINER.SOC.LAMBDA": weight}, sharpness=weight / 20)
    main, prompts, weights, steps = compared(tmp_path)
    assert {m.run.settings["TTA.STEPS"] for cell in main.cells.values() for m in cell} == {1}
    assert {m.run.settings["TRAINER.SOC.LAMBDA"] for cell in main.cells.values() for m in cell
            if m.run.trainer == "SoC"} == {30}
    assert [row.label for row in weights.rows] == ["SoC, λ 10", "SoC, λ 30", "SoC, λ 50"]
    assert [row.label for row in steps.rows] == ["O-TPT, 1 step", "O-TPT, 2 steps", "SoC, 1 step", "SoC, 2 steps"]
    assert set(prompt_errors(prompts, prompts.columns[0])) == {"a photo of a", "art of a"}
    assert sorted(by_label(lambda_points(weights, weights.columns[0]))["SoC"]) == [10, 30, 50]
    pair = by_label(step_panels(steps)["ECE (%)"][""])["SoC"]
    two = next(m for (row, _), cell in steps.cells.items() for m in cell if row.label == "SoC, 2 steps")
    assert pair.after == pytest.approx(100 * two.metrics["ece"].value)
    names = {item.name for item in make_figures([main, prompts, weights, steps], lambda run: None)}
    assert names >= {"reliability_grid", "selective_ucf101", "sals", "steps", "prompts_ucf101", "lambda_ucf101"}


def test_a_sweep_on_one_data_set_does_not_change_the_others(tmp_path):
    """λ is 14 on ImageNet-A by default, and 30 elsewhere."""
    for trainer in ("TPT", "OTPT", "SoC"):
        make_run(tmp_path, trainer, "UCF101")
        make_run(tmp_path, trainer, "ImageNetA")
    for weight in (10.0, 50.0):
        make_run(tmp_path, "SoC", "UCF101", folder=f"l{weight}", settings={"TRAINER.SOC.LAMBDA": weight})
    main, weights = compared(tmp_path)
    assert [column.dataset for column in main.columns] == ["UCF101", "ImageNetA"]
    assert main.common_columns() == main.columns and [row.label for row in main.rows] == [
        "Zero-shot", "TPT", "O-TPT", "SoC"]
    assert {m.run.dataset: m.run.settings["TRAINER.SOC.LAMBDA"] for (row, _), cell in main.cells.items() for m in cell
            if row.method == "SoC"} == {"UCF101": 30, "ImageNetA": 14}
    assert [row.label for row in weights.rows] == ["SoC, λ 10", "SoC, λ 30", "SoC, λ 50"]
    assert [column.dataset for column in weights.columns] == ["UCF101"] and weights.title == "ViT-L/14: λ of SoC"


def test_differences_and_bold_within_a_setting(tmp_path):
    for steps in (1, 2):
        for trainer, sharp in (("OTPT", 1.5 + steps), ("SoC", 1.2 + steps)):
            make_run(tmp_path, trainer, folder=f"{trainer}{steps}", settings={"TTA.STEPS": steps}, sharpness=sharp)
    table = paper_table(compared(tmp_path)[1], "t", "", ["ece"])
    for steps in ("1 step", "2 steps"):
        soc, otpt = (entry(table, "ECE", f"{name}, {steps}", "UCF101") for name in ("SoC", "O-TPT"))
        assert soc.difference == pytest.approx(float(soc.text) - float(otpt.text))
        assert (soc.best, otpt.best) == (True, False)
    assert any("setting by setting" in note for note in table.notes)


def test_coop_saw_labels_and_is_no_rival(tmp_path):
    make_run(tmp_path, "CoOp", sharpness=1.0)
    make_run(tmp_path, "OTPT")
    make_run(tmp_path, "SoC")
    comparison = compared(tmp_path)[0]
    coop = entry(paper_table(comparison, "t", "", ["ece"]), "ECE", "CoOp", "UCF101")
    assert (coop.best, coop.difference) == (False, None)
    verdict = judge(comparison)
    order = [line.row.method for line in verdict.lines]
    assert order.index("CoOp") < order.index("SoC")
    assert verdict.best == "SoC" and "CoOp" not in verdict.sentence
    for trainer in ("OTPT", "SoC"):
        make_run(tmp_path, trainer, "EuroSAT")
    comparison = compared(tmp_path)[0]
    table = paper_table(comparison, "t", "", ["ece"])
    assert entry(table, "ECE", "SoC", "Average") and entry(table, "ECE", "CoOp", "Average") is None
    assert "CoOp" not in [line.row.method for line in judge(comparison).lines]


def test_published_rows_stand_only_beside_the_papers_settings(tmp_path):
    make_run(tmp_path, "OTPT")
    make_run(tmp_path, "SoC", settings={"TTA.VIEWS": 16, "TRAINER.SOC.LAMBDA": 1.0})
    table = paper_table(compared(tmp_path)[0], "t", "", ["ece"], with_published=True)
    assert [row.label for row in table.blocks[0].rows] == [
        "Zero-shot", "Zero-shot (published: Fillioux et al. (2026), Table 1)", "O-TPT",
        "O-TPT (published: Fillioux et al. (2026), Table 1)", "SoC, λ 1, TTA.VIEWS 16"]


def test_published_rows_are_labelled_and_never_compared(benchmark):
    table = paper_table(compared(benchmark)[0], "t", "", ["ece", "ece_sals"], with_published=True)
    assert entry(table, "ECE (", f"O-TPT {table_of(1)}", "EuroSAT").text == "17.7"
    assert entry(table, "ECE + SaLS", f"SoC {table_of(10)}", "EuroSAT").text == "3.4"
    published = [row for block in table.blocks for row in block.rows if row.published]
    assert all(e is None or (not e.best and e.difference is None) for row in published for e in row.entries)
    notes = " ".join(table.notes)
    assert "not measured here" in notes
    assert "UCF101 400 of 3,783" in notes
    assert entry(table, "ECE (", f"O-TPT {table_of(1)}", "Average") is None  # the paper's is over eleven sets


def test_the_papers_average_stands_beside_the_same_sets(tmp_path):
    for dataset in ("ImageNetA", "ImageNetV2", "ImageNetR", "ImageNetSketch"):
        make_run(tmp_path, "SoC", dataset, data_hash=dataset, n=50)
    table = paper_table(compared(tmp_path)[0], "t", "", ["ece"], with_published=True)
    assert entry(table, "ECE", f"SoC {table_of(2)}", "Average").text == "8.4"
    make_run(tmp_path, backbone="small")
    table = paper_table(compared(tmp_path)[1], "t", "", ["ece"], with_published=True)
    assert not any(row.published for row in table.blocks[0].rows)
    assert any("Fillioux et al. (2026) print no numbers for small CLIP" in note for note in table.notes)



def test_runs_that_are_not_comparable_get_notes(tmp_path):
    make_run(tmp_path, "SoC", bins=10, weights_hash="aaa")
    make_run(tmp_path, "OTPT", bins=20, weights_hash="bbb")
    make_run(tmp_path, "OTPT", bins=20, weights_hash="bbb", seed=1)
    make_run(tmp_path, "TPT", settings={"TTA.STEPS": 2}, folder="a")
    other = make_run(tmp_path, "TPT", settings={"TTA.STEPS": 2}, folder="b")
    arrays = dict(np.load(other / "predictions.npz"))
    np.savez(other / "predictions.npz", **{**arrays, "zero_shot_logits": arrays["zero_shot_logits"][::-1]})
    notes = " ".join(compared(tmp_path)[0].notes)
    for words in ("10 bins are computed again with 20", "view seeds differ", "O-TPT: 0, 1",
                  "TPT, 2 steps: seed 0 counts more than once", "weights behind 'ViT-L/14' differ",
                  "zero-shot accuracy differs"):
        assert words in notes, words


def test_backbones_get_tables_of_their_own_and_a_zero_shot_row_from_the_tuned_runs(tmp_path):
    make_run(tmp_path, backbone="ViT-B/16")
    make_run(tmp_path, backbone="ViT-L/14")
    first, second = compared(tmp_path)
    assert (first.backbone, second.backbone) == ("ViT-B/16", "ViT-L/14")
    run = find_runs([tmp_path])[0][0]
    shown = entry(paper_table(first, "t", "", ["ece"]), "ECE", "Zero-shot", "UCF101")
    assert shown.value == pytest.approx(run.results["zero_shot_ece"])
