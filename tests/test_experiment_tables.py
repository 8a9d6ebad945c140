"""An experiment's tables beside the published ones, and the published ones against themselves."""
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run
from promptcal.trainers.experiments import vs_published
from promptcal.trainers.experiments.definition import read_experiment
from promptcal.trainers.experiments.finished_runs import FinishedRuns
from promptcal.trainers.experiments.layouts import penalties
from promptcal.trainers.experiments.layouts.averages import averages, deviations
from promptcal.trainers.experiments.layouts.results import by_dataset
from promptcal.trainers.experiments.outcome import write_outcome
from promptcal.trainers.experiments.plan import PlannedRun, Workspace, expand
from promptcal.trainers.report.load import read_run
from promptcal.trainers.report.measure import measure


def finished_runs(
    tmp_path: Path, name: str, workspace: Workspace | None = None,
    keep: Callable[[PlannedRun], bool] = lambda run: True, **settings: object,
) -> FinishedRuns:
    """An experiment whose runs are random numbers."""
    workspace = workspace or Workspace(output=tmp_path)
    experiment = read_experiment(name)
    found = {}
    for run in filter(keep, expand(experiment, workspace)):
        make_run(tmp_path, run.method, run.dataset_name, run.seed, run.backbone, n=120,
                 settings={**run.variant, **settings}, folder=str(run.folder.relative_to(tmp_path)),
                 data_hash=run.dataset)
        found[run] = measure(read_run(run.folder))
    return FinishedRuns(experiment, workspace, found)


def table_of(number):
    return f" (published: Fillioux et al. (2026), Table {number})"


def rows_of(table, block=0):
    return {row.label: row.entries for row in table.blocks[block].rows}


def test_results_stand_beside_the_published_ones_with_the_difference(tmp_path):
    (table,) = by_dataset(finished_runs(tmp_path, "table1", keep=lambda run: run.dataset in ("dtd", "eurosat")))
    assert table.columns == ["DTD", "EuroSAT", "Average"]
    rows = rows_of(table, block=1)
    ours, theirs, gap = (rows[f"SoC{suffix}"][1] for suffix in ("", table_of(1), ": ours − published"))
    assert theirs.text == "3.2"
    assert gap.value == pytest.approx(float(ours.text) - 3.2)
    assert gap.text.startswith(("+", "-"))
    assert rows[f"SoC{table_of(1)}"][2] is None  # the paper's average is over other data sets


def test_runs_with_other_settings_are_not_compared_with_the_paper(tmp_path):
    workspace = Workspace(output=tmp_path, opts=("TTA.VIEWS", 16))
    finished = finished_runs(tmp_path, "normalisation", workspace, lambda run: run.dataset == "dtd",
                             **{"TTA.VIEWS": 16})
    assert finished.other_settings == {"TTA.VIEWS": 16} and not finished.compared
    outcome = write_outcome(finished.experiment, workspace, list(finished.measured), {}, dict(finished.measured))
    assert not any("published" in row.label for block in outcome.tables[0].blocks for row in block.rows)
    assert "these runs have other settings (TTA.VIEWS 16)" in outcome.page.read_text()
    assert any("are the same method" in note for note in outcome.tables[0].notes)


def test_of_a_sweep_only_the_default_value_has_a_published_row(tmp_path):
    (table,) = by_dataset(finished_runs(tmp_path, "lambda", keep=lambda r: r.dataset == "ucf101"), "TRAINER.SOC.LAMBDA")
    rows = rows_of(table, block=1)
    assert rows[f"SoC, λ 30{table_of(1)}"][0].text == "6.5"
    assert {label for label in rows if "(published" in label} == {
        f"{name}{table_of(1)}" for name in ("TPT", "C-TPT", "O-TPT", "SoC, λ 30")}


def test_averages_use_the_sets_that_all_cells_have(tmp_path):
    def keep(run):
        return run.dataset in ("dtd", "eurosat", "ucf101") and (run.dataset, run.variant.get("TRAINER.SOC.NORM")) != (
            "ucf101", "shift")

    finished = finished_runs(tmp_path, "normalisation", keep=keep)
    (table,) = averages(finished)
    assert table.columns == ["(S - min) / (max - min)", "S / max", "S - min"]
    own = [m.metrics["ece"].value for run, m in finished.measured.items()
           if run.variant == {"TRAINER.SOC.NORM": "max"} and run.dataset != "ucf101"]
    assert {"SoC, STATS flow", "SoC, STATS flow_delta"} < set(rows_of(table, 1))
    assert rows_of(table, 1)["SoC"][1].value == pytest.approx(100 * np.mean(own))
    assert rows_of(table, 1)[f"SoC{table_of(7)}"][1].text == "7.3"
    assert any("Left out" in note and "UCF101" in note for note in table.notes)
    assert any("do not compare" in note for note in table.notes)


def test_deviations_over_seeds(tmp_path):
    finished = finished_runs(tmp_path, "seeds")
    (table,) = deviations(finished)
    values = [100 * m.metrics["accuracy"].value for run, m in finished.measured.items()
              if run.method == "OTPT" and run.dataset == "dtd"]
    rows = rows_of(table)
    assert len(values) == 3
    assert rows["O-TPT"][0].value == pytest.approx(np.std(values, ddof=1))
    assert rows[f"O-TPT{table_of(6)}"][0].text == "0.06"
    assert rows["O-TPT"][-1].value == pytest.approx(np.mean([entry.value for entry in rows["O-TPT"][:-1]]))
    assert rows[f"O-TPT{table_of(6)}"][-1].text == "0.12"


def test_counted_operations_agree_with_the_published_ones():
    """But for a few small terms that the paper leaves out."""
    (table,) = penalties.complexity(FinishedRuns(read_experiment("complexity"), Workspace(), {}))
    rows = rows_of(table)
    for method in ("O-TPT", "SoC"):
        for ours, theirs in zip(rows[method][1:], rows[f"{method}{table_of(8)}"][1:], strict=True):
            assert ours.value == pytest.approx(theirs.value, rel=5e-3)
    closed = rows["O-TPT, closed form (used here)"]
    assert closed[-1].value < rows["O-TPT"][-1].value / 4


def test_inverse_weighting_has_the_strongest_effect():
    """Falling with the number of classes, as the paper's lead over O-TPT does, and far above the printed ratio."""
    sizes = [penalties.relative_gradients(penalties.simulated_prototypes(k)) for k in (10, 47, 100, 397, 1000)]
    inverse = [size["inverse"] for size in sizes]
    assert inverse == sorted(inverse, reverse=True) and 0.1 < inverse[-1] < 10
    assert all(size["ratio"] < size["inverse"] / 10 for size in sizes)
    assert all(size["live"] == pytest.approx(2 * size["ratio"]) for size in sizes)
    assert all(size["inverse, flow"] != pytest.approx(size["inverse"]) for size in sizes)


def test_errors_in_the_published_tables_are_listed():
    notes = vs_published.slip_notes(["vitl_2step"])
    assert any("accuracy of SoC, ImageNet: difference printed 1.4, the printed cells give -0.8" in n for n in notes)
    assert any("EuroSAT: difference printed -0.7, the printed cells give +5.2" in note for note in notes)
    assert not any("rounding" in note for note in notes)
    assert vs_published.slip_notes(["complexity"]) == []
