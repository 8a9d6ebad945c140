"""Row labels: which settings they state, which runs share a row, and what stands beside them in CSV, LaTeX, figures."""
import csv
import shutil
import subprocess

import numpy as np
import pytest
from promptcal.trainers.config.settings import setting_words
from promptcal.trainers.report import render
from promptcal.trainers.report.core import make_tests
from promptcal.trainers.report.figures.select import reliability_figure, sals_groups
from promptcal.trainers.report.layout import default_layout
from promptcal.trainers.report.published_rows import PublishedOptions
from promptcal.trainers.report.special_tables import decision_table, metric_tables
from promptcal.trainers.report.table_model import Entry
from promptcal.trainers.report.tables import results_table

from common import run_tool
from made_runs import (
    by_label,
    compared,
    entry,
    labels,
    make_run,
    report_on,
)

NONE = PublishedOptions()
LAMBDA = "TRAINER.SOC.LAMBDA"


def verdict_of(grid):
    return make_tests([grid], default_layout())[0].verdict


def learnt(protocol: str, digest: str) -> dict:
    return {"model.prompt": {"kind": "learnt", "protocol": protocol, "hash": digest, "position": "end"}}


def test_a_methods_only_runs_with_other_settings_do_not_have_its_bare_name(tmp_path):
    make_run(tmp_path, "TPT", settings={"TRAINER.REGULARISERS": "hingepairs:50"})
    make_run(tmp_path, "RTPT", settings={"TRAINER.REGULARISERS": "ctpt:20,otpt:5"}, sharpness=1.0)
    make_run(tmp_path, "OTPT")
    make_run(tmp_path, "TDA", settings={"TRAINER.TDA.VALUES": "paper", "TTA.VIEWS": 16, "TRAINER.TDA.VIEWS": "all"})
    main, = compared(tmp_path)
    expected = ["Zero-shot", "TPT, hingepairs:50", "R-TPT, ctpt:20,otpt:5", "O-TPT"]
    assert [label for label in labels(main) if not label.startswith("TDA")] == expected
    tda, = (label for label in labels(main) if label.startswith("TDA"))
    assert {"values tuned per set on test labels", "16 views"} <= set(tda.split(", "))
    verdict = verdict_of(main)
    assert verdict.best == "R-TPT, ctpt:20,otpt:5" and "R-TPT, ctpt:20,otpt:5" in verdict.sentence
    table = results_table(main, "t", "", ["ece"], NONE)
    assert "TPT, hingepairs:50 &" in render.latex(table) and "\nTPT &" not in render.latex(table)
    assert "TPT, hingepairs:50" in {line["row"] for line in csv.DictReader(render.to_csv([table]).splitlines())}
    assert "TPT, hingepairs:50" in by_label(sals_groups(main)["UCF101"])


def test_settings_that_differ_between_data_sets_are_never_averaged(tmp_path):
    for dataset, weight in (("UCF101", 5.0), ("EuroSAT", 30.0)):
        make_run(tmp_path, "SoC", dataset, settings={LAMBDA: weight})
        make_run(tmp_path, "OTPT", dataset)
    main, = compared(tmp_path)
    assert labels(main) == ["Zero-shot", "O-TPT", "SoC", "SoC, λ 5"]
    assert "Average" not in results_table(main, "t", "", ["ece"], NONE).columns
    axes = reliability_figure(main, "r").figure.axes
    assert {"SoC, λ 5", "SoC"} <= {text for one in axes for text in (one.get_title(), one.get_ylabel())}


def test_a_default_of_a_data_set_needs_no_label(tmp_path):
    """λ of SoC is 14 on ImageNet-A and 30 on UCF101, both by default."""
    make_run(tmp_path, "SoC", "UCF101")
    make_run(tmp_path, "SoC", "ImageNetA")
    make_run(tmp_path, "SoC", "ImageNet", settings={LAMBDA: 14.0})
    assert labels(compared(tmp_path)[0]) == ["Zero-shot", "SoC", "SoC, λ 14"]


def test_runs_of_an_unknown_method_share_a_row_only_with_equal_settings(tmp_path):
    for dataset, weight in (("UCF101", 5.0), ("EuroSAT", 30.0)):
        make_run(tmp_path, "Mine", dataset, settings={"TRAINER.MINE.WEIGHT": weight})
    assert sorted(labels(compared(tmp_path)[0])) == ["Mine, WEIGHT 30", "Mine, WEIGHT 5", "Zero-shot"]


def test_zero_shot_is_never_ranked_among_tuned_methods(tmp_path):
    make_run(tmp_path, "Mine")  # of a plugin that is not loaded
    assert verdict_of(compared(tmp_path)[0]).sentence.startswith("Mine has an ECE of ")


def test_every_run_is_in_a_table(tmp_path):
    """Runs that differ in two settings at once belong to no sweep of one setting."""
    for number, (steps, weight) in enumerate(((2, 30.0), (1, 5.0), (2, 5.0))):
        make_run(tmp_path, "SoC", settings={"TTA.STEPS": steps, LAMBDA: weight}, folder=f"r{number}")
    shown = {m.run.folder.name for grid in compared(tmp_path) for cell in grid.cells.values() for m in cell}
    assert shown == {"r0", "r1", "r2"}
    for grid in compared(tmp_path):
        for cell in grid.cells.values():
            assert len({str(m.record.changed) for m in cell if not m.from_tuned_run}) <= 1


def test_a_part_of_a_data_set_is_not_its_column(tmp_path):
    """Results on half of the classes, or on unequal ones, are not the data set's."""
    parts = ("base classes", "new classes", "imbalance 1.5")
    for part in parts:
        for trainer in ("TPT", "SoC"):
            make_run(tmp_path, trainer, folder=f"{part}/{trainer}", images=part, changes={"data.subset": part})
        only, = compared(tmp_path / part)
        table = results_table(only, "t", "", ["accuracy"], NONE)
        assert table.columns == [f"UCF101 ({part})"] and f"UCF101 ({part}) 400" in verdict_of(only).basis
    several, = compared(tmp_path)
    assert [several.column_label(column) for column in several.columns] == [
        f"UCF101 ({part}), 400 images" for part in sorted(parts)]


def test_two_settings_never_have_one_name():
    assert setting_words("OPTIM.LR", 0.01) != setting_words("TRAINER.FPP.LR", 0.01)
    assert setting_words(LAMBDA, 5.00000001) != setting_words(LAMBDA, 5.0) == "λ 5"


def test_one_prompt_per_seed_is_one_row(tmp_path):
    """As `train --seed 1 2 --model-dir DIR` makes them; two data sets have prompts of one protocol too."""
    for dataset in ("UCF101", "EuroSAT"):
        for seed in (1, 2):
            make_run(tmp_path, "CoOp", dataset, seed)
            make_run(tmp_path, "SoC", dataset, seed, changes=learnt("CoOp 4 shots", f"{dataset}{seed}"))
    main, = compared(tmp_path)
    untuned, soc = (label for label in labels(main) if "4 shots" in label)
    assert soc == "SoC, CoOp 4 shots" and untuned == "CoOp, 4 shots, untuned"
    assert {len(cell) for (row, _), cell in main.cells.items() if row.label in (soc, untuned)} == {2}
    table = results_table(main, "t", "", ["ece"], NONE)
    assert entry(table, "ECE", soc, "Average").std > 0 and entry(table, "ECE", soc, "UCF101").seeds == 2


def test_other_prompts_are_never_pooled(tmp_path):
    make_run(tmp_path, "SoC", seed=1, folder="a", changes=learnt("CoOp 4 shots", "aaaa"))
    make_run(tmp_path, "SoC", seed=2, folder="b", changes=learnt("CoOp 2 shots", "bbbb"), sharpness=3.0)
    cells = [cell for grid in compared(tmp_path) for (row, _), cell in grid.cells.items() if row.method == "SoC"]
    assert len(cells) >= 2 and {len(cell) for cell in cells} == {1}


def test_what_is_not_a_number_has_no_spread(tmp_path):
    right = np.zeros((20, 8)) + 9 * np.eye(8)[0]
    for seed in (0, 1):  # all right: no AUROC
        make_run(tmp_path, "SoC", seed=seed, n=20, label=np.zeros(20, int), logits=(1 + seed / 10) * right)
    table = decision_table(compared(tmp_path)[0], "t", "")
    shown = entry(table, "UCF101", "SoC", "AUROC (%)")
    assert (shown.text, shown.spread, shown.std) == ("–", "", None)
    text = render.markdown(table) + render.latex(table)
    assert "nan" not in text and "± is the sample standard deviation over seeds" in text
    assert Entry(float("nan"), std=float("nan")).spread == Entry(1.0, low=float("nan"), high=1.0).spread == ""
    assert metric_tables(compared(tmp_path)[0], "m")


def test_published_rows_are_cited(tmp_path):
    for trainer in ("OTPT", "SoC"):
        make_run(tmp_path, trainer, n=3783)
    report_on(tmp_path, published=True)
    out = tmp_path / "report"
    text, bib = ((out / f"tables.{ending}").read_text(encoding="utf-8") for ending in ("tex", "bib"))
    assert r"\textit{O-TPT (published: Fillioux et al. (2026), Table 1)}~\cite{fillioux2026soc} &" in text
    assert bib.startswith("@inproceedings{fillioux2026soc,") and bib.count("@") == 1
    if shutil.which("pdflatex") and shutil.which("bibtex"):
        (out / "t.tex").write_text(r"\documentclass{article}\usepackage{booktabs,graphicx,xcolor}\begin{document}"
                                   r"\input{tables}\bibliographystyle{plain}\bibliography{tables}\end{document}")
        subprocess.run(["pdflatex", "-interaction=batchmode", "t.tex"], cwd=out, check=True)
        assert "warning" not in subprocess.run(["bibtex", "t"], cwd=out, capture_output=True, text=True).stdout.lower()
    report_on(tmp_path)
    assert not (out / "tables.bib").exists()


@pytest.mark.slow
def test_labels_are_those_of_the_records_whatever_the_files_in_configs_say(tmp_path, monkeypatch):
    """A method's yaml that changed since does not relabel its runs."""
    make_run(tmp_path, "SoC")
    before = labels(compared(tmp_path)[0])
    monkeypatch.setattr("promptcal.trainers.config.layers.default_settings", lambda *_: {LAMBDA: 1.0})
    assert labels(compared(tmp_path)[0]) == before == ["Zero-shot", "SoC"]
    assert run_tool("report.py", tmp_path, "--no-figures").returncode == 0


def test_settings_are_stated_in_words(tmp_path):
    settings = {"MODEL.PREC": "fp16", "TTA.AUGMIX": "off", "OPTIM.WEIGHT_DECAY": 0.0, "TTA.STEPS": 2}
    for key, value in settings.items():
        make_run(tmp_path, "SoC", settings={key: value}, folder=key)
    shown = {setting_words(key, value) for key, value in settings.items()}
    assert shown == {"fp16", "no AugMix", "weight decay 0", "2 steps"}
    stated = " | ".join(row.label for grid in compared(tmp_path) for row in grid.rows)
    assert all(f"SoC, {words}" in stated for words in shown)


def test_a_run_made_again_is_named_by_the_words_of_the_setting_that_differs(tmp_path):
    """The default of AugMix was edited between the two runs, so neither has changed it."""
    for augmix in (True, False):
        make_run(tmp_path, "SoC", folder=f"{augmix}", changes={"views.augmix": augmix})
    assert labels(compared(tmp_path)[0]) == ["Zero-shot", "SoC", "SoC, AugMix"]
