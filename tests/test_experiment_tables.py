"""An experiment's tables beside the published ones."""
import re

import numpy as np
import pytest
from promptcal.trainers.experiments.definition import names, read_experiment
from promptcal.trainers.experiments.layouts import LAYOUTS, layout_fields
from promptcal.trainers.experiments.outcome import build_layout, write_outcome
from promptcal.trainers.experiments.plan import Workspace
from promptcal.trainers.report import published
from promptcal.trainers.report.figures.select import FIGURES

from finished_experiments import finished_runs, outcome_of, plan_of
from made_runs import entry, make_record, row_labels


def table_of(number):
    return f" (published: Fillioux et al. (2026), Table {number})"


def only(*datasets):
    """Keeps the runs on these data sets."""
    return lambda run: run.dataset in datasets


def has_published_row(table):
    return "published" in "".join(row_labels(table))


def first_table(finished):
    """Of the outcome of an experiment's measured runs."""
    return write_outcome(finished.experiment, finished.workspace, finished.plan, {}, {}).tables[0]


def rows_of(table, block=0):
    return {row.label: row.entries for row in table.blocks[block].rows}


def test_every_layout_is_data_that_the_report_knows():
    used = set()
    for name in names():
        experiment = read_experiment(name)
        used.add(experiment.layout)
        layout = build_layout(experiment, Workspace())
        assert set(layout.figures) <= set(FIGURES)
        assert layout.tables or layout_fields(experiment.layout)["study"]
    assert used == set(LAYOUTS)


def test_an_experiment_may_describe_its_layout_itself():
    fields = {"tables": [{"columns": "metric"}, {"columns": "dataset", "rows": "swept"}], "figures": ["sals"]}
    assert layout_fields(fields) is fields
    for bad in ({"table": []}, {"tables": [{"rows": "swept"}]}, {"tables": [{"columns": "dataset", "row": 1}]}):
        with pytest.raises(ValueError, match="table"):
            layout_fields(bad)


def test_results_stand_beside_the_published_ones_with_the_difference(tmp_path):
    outcome = outcome_of(tmp_path, "table1", keep=only("dtd", "eurosat"), whole=True)
    table = outcome.tables[0]
    assert table.columns == ["DTD", "EuroSAT", "Average"]
    rows = rows_of(table, block=1)
    ours = rows["SoC"][1]
    theirs = rows[f"SoC{table_of(1)}"][1]
    gap = rows["SoC: ours − published"][1]
    assert theirs.text == "3.2"
    assert gap.value == pytest.approx(float(ours.text) - 3.2)
    assert gap.text.startswith(("+", "-"))
    assert rows[f"SoC{table_of(1)}"][2] is None  # the paper's average is over other data sets
    assert "Everything against TPT" in "".join(table.title for table in outcome.tables)
    assert "is better calibrated than TPT" in outcome.page.read_text()


def test_runs_with_other_settings_or_fewer_images_have_no_published_row(tmp_path):
    workspace = Workspace(output=tmp_path, opts=("TTA.VIEWS", 16))
    outcome = outcome_of(tmp_path, "normalisation", workspace, only("dtd"), **{"TTA.VIEWS": 16})
    assert not has_published_row(outcome.tables[0])
    assert "print no numbers for ViT-L/14 under these settings" in outcome.page.read_text()
    assert "are the same method" in " ".join(outcome.tables[0].notes)
    fewer = outcome_of(tmp_path / "fewer", "table1", keep=only("eurosat"))
    assert not has_published_row(fewer.tables[0])


def test_of_a_sweep_only_the_default_value_has_a_published_row(tmp_path):
    outcome = outcome_of(tmp_path, "lambda", keep=only("ucf101"), whole=True)
    rows = rows_of(outcome.tables[0], block=1)
    assert rows[f"SoC, λ 30{table_of(1)}"][0].text == "6.5"
    published = [label for label in rows if "(published" in label]
    methods = ("TPT", "C-TPT", "O-TPT", "SoC, λ 30")
    assert sorted(published) == sorted(f"{method}{table_of(1)}" for method in methods)
    assert "lambda_ucf101" in outcome.figures


def test_averages_use_the_sets_that_all_cells_have(tmp_path):
    def keep(run):
        is_missing = (run.dataset, run.variant.get("TRAINER.SOC.NORM")) == ("ucf101", "shift")
        return run.dataset in ("dtd", "eurosat", "ucf101") and not is_missing

    finished = finished_runs(tmp_path, "normalisation", keep=keep)
    table = first_table(finished)
    assert table.columns == ["(S - min) / (max - min)", "S / max", "S - min"]
    values = []
    for run in finished.runs:
        norm = run.record.method["settings"].get("TRAINER.SOC.NORM")
        if norm == "max" and run.record.data["dataset"] != "UCF101":
            values.append(run.metrics["ece"].value)
    rows = rows_of(table, 1)
    assert len(rows) == 3 and "flow_delta" in " ".join(rows)
    assert rows["SoC"][1].value == pytest.approx(100 * np.mean(values))
    assert re.search("Left out.*UCF101", "\n".join(table.notes))


@pytest.mark.slow
def test_published_averages_stand_beside_all_their_data_sets(tmp_path):
    """Table 7 is over eight data sets; with one less there is nothing to compare with."""
    def keep(run):
        return "TRAINER.SOC.STATS" not in run.variant and (is_whole or run.dataset != "dtd")

    for is_whole in (True, False):
        outcome = outcome_of(tmp_path / str(is_whole), "normalisation", keep=keep, whole=True)
        rows = rows_of(outcome.tables[0], 1)
        if is_whole:
            assert rows[f"SoC{table_of(7)}"][1].text == "7.3"
        else:
            assert f"SoC{table_of(7)}" not in rows


def test_prompts_that_coop_has_learnt_are_columns(tmp_path):
    outcome = outcome_of(tmp_path, "coop", keep=only("dtd", "eurosat"))
    table = outcome.tables[0]
    assert table.columns == ["Baseline", "2-shots", "4-shots"]
    rows = rows_of(table)
    untuned = ["CoOp, 2 shots, untuned", "CoOp, 4 shots, untuned"]
    assert list(rows) == ["Zero-shot", *untuned, "TPT", "C-TPT", "O-TPT", "SoC"]
    for method in ("TPT", "C-TPT", "O-TPT", "SoC"):
        plain, *learnt = rows[method]
        assert plain.difference is None
        for number, cell in enumerate(learnt, start=1):
            start = rows[untuned[number - 1]][number]
            assert cell.difference == pytest.approx(float(cell.text) - float(start.text))


def test_published_prompts_are_those_of_coops_own_training(tmp_path):
    """Not those of another method, or of other epochs, from the same number of shots."""
    def is_published(protocol: str) -> bool:
        prompt = {"kind": "learnt", "protocol": protocol, "position": "end", "hash": protocol}
        records = []
        for name in published.tables_of()["coop"]["datasets"]:
            images = published.find("datasets", "images", "", name)
            changes = {"model.prompt": prompt}
            records.append(make_record("SoC", name, n=int(images.value), changes=changes))
        varied = ("model.prompt.protocol",)
        return published.is_published_set("coop", records, varied)

    assert is_published("CoOp 2 shots")
    assert is_published("CoOp 2 shots (n_ctx 4, class_token_position end, settings 1f0c9a3e)")
    assert not is_published("CoOp 2 shots (epochs 5, n_ctx 4)")
    assert not is_published("KgCoOp 2 shots")


def test_averages_over_data_sets_have_the_spread_of_their_seeds(tmp_path):
    """A cell of one data set too, which is a column beside the published one."""
    finished = finished_runs(tmp_path, "seeds", keep=only("dtd", "ucf101"), whole=True)
    table = first_table(finished)
    accuracies = []
    values = {}
    for run in finished.runs:
        if (run.method, run.record.data["dataset"]) == ("OTPT", "DescribableTextures"):
            accuracies.append(100 * run.value("accuracy"))
        if run.method == "SoC":
            values.setdefault(run.seed, []).append(100 * run.value("ece"))
    deviation = pytest.approx(np.std(accuracies, ddof=1))
    assert entry(table, "Accuracy (%)", "O-TPT", "DTD").std == deviation
    block = "Accuracy: standard deviation over seeds"
    assert entry(table, block, "O-TPT", "DTD").value == deviation
    assert entry(table, block, f"O-TPT{table_of(6)}", "DTD").text == "0.06"
    means = [np.mean(values_of_seed) for values_of_seed in values.values()]
    average = entry(table, "ECE (%)", "SoC", "Average")
    assert average.std == pytest.approx(np.std(means, ddof=1)) and average.seeds == 3
    assert "± is the sample standard deviation over seeds." in " ".join(table.notes)


@pytest.mark.parametrize(("name", "figures", "columns"), [
    ("reliability", {"reliability_main", "reliability_all"}, {"Flowers", "EuroSAT"}),
    ("sals", {"sals"}, {"Flowers"}),
    ("selective", {"selective"}, {"> 0.8"}),
    ("two_steps", {"steps"}, {"EuroSAT"}),
    ("class_pairs", {"class_pairs_eurosat"}, {"most alike third"}),
    ("backbones", set(), {"ViT-B/16", "ViT-L/14"}),
])
def test_every_figure_of_the_paper_is_one_command(tmp_path, name, figures, columns):
    outcome = outcome_of(tmp_path, name, keep=only("oxford_flowers", "eurosat"))
    assert figures <= set(outcome.figures)
    assert columns <= set(outcome.tables[0].columns)


def test_prompts_have_a_summary_a_figure_and_a_note_on_what_is_missing(tmp_path):
    experiment, workspace, plan = plan_of(tmp_path, "prompts", keep=only("dtd"), whole=True)
    known = {}
    outcome = write_outcome(experiment, workspace, plan, {plan[-1]: "out of memory"}, known)
    assert len(known) == len(plan) - 1
    assert outcome.figures == ["prompts_dtd"]
    assert outcome.tables[0].columns == ["DTD: mean", "DTD: worst", "DTD: lowest of 17"]
    assert list(rows_of(outcome.tables[0])) == ["O-TPT", "SoC"]
    assert "SoC, “a bad photo of the”" in rows_of(outcome.tables[1])
    page = outcome.page.read_text()
    for words in ("(published: Fillioux et al. (2026), Table ", "ours − published", "out of memory"):
        assert words in page
    folder = outcome.page.parent
    assert "?" not in (folder / "tables.tex").read_text()  # what LaTeX has no sign for
    assert {path.stem for path in (folder / "figures").glob("*.png")} == set(outcome.figures)


def test_counted_operations_agree_with_the_published_ones(tmp_path):
    """But for a few small terms that the paper leaves out."""
    outcome = write_outcome(read_experiment("complexity"), Workspace(output=tmp_path), [], {}, {})
    rows = rows_of(outcome.tables[0])
    for method in ("O-TPT", "SoC"):
        for ours, theirs in zip(rows[method][1:], rows[f"{method}{table_of(8)}"][1:], strict=True):
            assert ours.value == pytest.approx(theirs.value, rel=5e-3)
    closed = rows["O-TPT, closed form (used here)"]
    assert closed[-1].value < rows["O-TPT"][-1].value / 4
