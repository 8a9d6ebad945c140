"""An experiment's tables beside the paper's, and the paper against itself."""
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run
from promptcal.trainers.experiments import layouts, vs_published
from promptcal.trainers.experiments.definition import names, read_experiment
from promptcal.trainers.experiments.finished_runs import Material
from promptcal.trainers.experiments.layouts import complexity, scaling
from promptcal.trainers.experiments.layouts.averages import averages
from promptcal.trainers.experiments.layouts.deviations import deviations
from promptcal.trainers.experiments.layouts.results import results
from promptcal.trainers.experiments.outcome import make, write_outcome
from promptcal.trainers.experiments.plan import Place, expand
from promptcal.trainers.report import published
from promptcal.trainers.report.load import read_run
from promptcal.trainers.report.measure import measure


def made_material(tmp_path: Path, name: str, place: Place | None = None, keep=lambda run: True) -> Material:
    """An experiment whose runs are random numbers."""
    place = place or Place(output=tmp_path)
    experiment = read_experiment(name)
    found = {}
    for run in expand(experiment, place):
        if keep(run):
            make_run(tmp_path, run.method, run.dataset_name, run.seed, run.backbone, n=120, settings=dict(run.variant),
                     folder=str(run.folder.relative_to(tmp_path)), data_hash=run.dataset)
            found[run] = measure(read_run(run.folder))
    return Material(experiment, place, found)


def rows_of(table, block=0):
    return {row.label: row.entries for row in table.blocks[block].rows}


def test_results_stand_beside_the_published_ones_with_the_difference(tmp_path):
    (table,) = results(made_material(tmp_path, "table1", keep=lambda run: run.dataset in ("dtd", "eurosat")))
    assert table.columns == ["DTD", "EuroSAT", "Average"]
    rows = rows_of(table, block=1)
    ours, theirs, gap = (rows[f"SoC{suffix}"][1] for suffix in ("", " (published)", ": ours − published"))
    assert theirs.text == "3.2"
    assert gap.value == pytest.approx(float(ours.text) - 3.2)
    assert gap.text.startswith(("+", "-"))
    assert rows["SoC (published)"][2] is None  # the paper's average is over other data sets


def test_demo_tables_have_no_published_rows(tmp_path):
    place = Place(output=tmp_path, demo=True)
    (table,) = results(made_material(tmp_path, "table1", place))
    assert not any("published" in row.label for block in table.blocks for row in block.rows)


def test_runs_with_other_settings_are_not_set_beside_the_paper(tmp_path):
    place = Place(output=tmp_path, opts=("TTA.VIEWS", 16))
    experiment = read_experiment("normalisation")
    found = {}
    for run in expand(experiment, place):
        if run.dataset == "dtd":
            make_run(tmp_path, run.method, run.dataset_name, settings={**run.variant, "TTA.VIEWS": 16},
                     folder=str(run.folder.relative_to(tmp_path)))
            found[run] = measure(read_run(run.folder))
    material = Material(experiment, place, found)
    assert material.other_settings == {"TTA.VIEWS": 16} and not material.compared
    outcome = write_outcome(experiment, place, list(found), {}, dict(found))
    assert not any("published" in row.label for block in outcome.tables[0].blocks for row in block.rows)
    assert "these runs have other settings (TTA.VIEWS 16)" in outcome.page.read_text()
    assert any("are the same method" in note for note in outcome.tables[0].notes)


def test_of_a_sweep_only_the_usual_value_has_a_published_row(tmp_path):
    (table,) = results(made_material(tmp_path, "lambda", keep=lambda r: r.dataset == "ucf101"), "TRAINER.SOC.LAMBDA")
    rows = rows_of(table, block=1)
    assert rows["SoC, λ 30 (published)"][0].text == "6.5"
    assert {label for label in rows if "(published)" in label} == {
        "TPT (published)", "C-TPT (published)", "O-TPT (published)", "SoC, λ 30 (published)"}


def test_averages_use_the_sets_that_all_cells_have(tmp_path):
    def keep(run):
        return run.dataset in ("dtd", "eurosat", "ucf101") and (run.dataset, run.variant.get("TRAINER.SOC.NORM")) != (
            "ucf101", "shift")

    material = made_material(tmp_path, "normalisation", keep=keep)
    (table,) = averages(material)
    assert table.columns == ["(S - min) / (max - min)", "S / max", "S - min"]
    own = [m.metrics["ece"].value for run, m in material.found.items()
           if run.variant == {"TRAINER.SOC.NORM": "max"} and run.dataset != "ucf101"]
    assert {"SoC, flow", "SoC, flow_delta"} < set(rows_of(table, 1))
    assert rows_of(table, 1)["SoC"][1].value == pytest.approx(100 * np.mean(own))
    assert rows_of(table, 1)["SoC (published)"][1].text == "7.3"
    assert any("Left out" in note and "UCF101" in note for note in table.notes)
    assert any("do not compare" in note for note in table.notes)


def test_deviations_over_seeds(tmp_path):
    material = made_material(tmp_path, "seeds")
    (table,) = deviations(material)
    values = [100 * m.metrics["accuracy"].value for run, m in material.found.items()
              if run.method == "OTPT" and run.dataset == "dtd"]
    rows = rows_of(table)
    assert len(values) == 3
    assert rows["O-TPT"][0].value == pytest.approx(np.std(values, ddof=1))
    assert rows["O-TPT (published)"][0].text == "0.06"
    assert rows["O-TPT"][-1].value == pytest.approx(np.mean([entry.value for entry in rows["O-TPT"][:-1]]))
    assert rows["O-TPT (published)"][-1].text == "0.12"


def test_counted_operations_agree_with_the_published_ones():
    """But for a few small terms that the paper leaves out."""
    (table,) = complexity.complexity(Material(read_experiment("complexity"), Place(), {}))
    rows = rows_of(table)
    for method in ("O-TPT", "SoC"):
        for ours, theirs in zip(rows[method][1:], rows[f"{method} (published)"][1:], strict=True):
            assert ours.value == pytest.approx(theirs.value, rel=5e-3)
    closed = rows["O-TPT, closed form (used here)"]
    assert closed[-1].value < rows["O-TPT"][-1].value / 4


def test_inverse_weighting_is_the_one_that_is_felt():
    """Falling with the number of classes, as the paper's lead over O-TPT does, and far above the printed ratio."""
    sizes = [scaling.relative_gradients(scaling.simulated_prototypes(k)) for k in (10, 47, 100, 397, 1000)]
    inverse = [size["inverse"] for size in sizes]
    assert inverse == sorted(inverse, reverse=True) and 0.1 < inverse[-1] < 10
    assert all(size["ratio"] < size["inverse"] / 10 for size in sizes)
    assert all(size["live"] == pytest.approx(2 * size["ratio"]) for size in sizes)
    assert all(size["inverse, flow"] != pytest.approx(size["inverse"]) for size in sizes)


def test_every_reading_of_the_weight_has_a_row(tmp_path):
    material = made_material(tmp_path, "scaling", keep=lambda run: run.dataset == "eurosat")
    (table,) = results(material, "TRAINER.SOC.SCALE")
    own = {label for label in rows_of(table, 1) if label.startswith("SoC") and "published" not in label}
    assert own == {f"SoC, {name}" for name in scaling.READINGS}


def test_a_layout_is_one_file(tmp_path, monkeypatch):
    """Dropped into the folder, it is known by its name and makes the page of an experiment."""
    (tmp_path / "headcount.py").write_text(
        "from promptcal.trainers.report.table_model import Entry, RowBlock, Table, TableRow\n"
        "def show(material):\n"
        "    row = TableRow('runs', 'SoC', [Entry(len(material.found), 0)])\n"
        "    return [Table('headcount', 'Runs', ['count'], [RowBlock('', [row])])], []\n", encoding="utf-8",
    )
    monkeypatch.setattr(layouts, "__path__", [*layouts.__path__, str(tmp_path)])
    assert "headcount" in layouts.layout_names()
    material = made_material(tmp_path / "runs", "delta", keep=lambda run: run.dataset == "eurosat")
    material = replace(material, experiment=replace(material.experiment, layout="headcount", note=""))
    (table,), pictures = make(material)
    assert table.blocks[0].rows[0].entries[0].value == len(material.found) > 0
    assert pictures == []


def test_slips_of_the_paper_are_told_where_its_tables_are_shown():
    notes = vs_published.slip_notes(["vitl_2step"])
    assert any("accuracy of SoC, ImageNet: difference printed 1.4, the printed cells give -0.8" in n for n in notes)
    assert any("EuroSAT: difference printed -0.7, the printed cells give +5.2" in note for note in notes)
    assert not any("rounding" in note for note in notes)
    assert vs_published.slip_notes(["complexity"]) == []


def test_published_tables_name_only_what_experiments_use():
    """Every published table of results is shown by some experiment."""
    used = {table for name in names() for table in read_experiment(name).published}
    assert used >= set(published.tables()) - {"datasets"}
    assert used <= set(published.tables_of(None))
