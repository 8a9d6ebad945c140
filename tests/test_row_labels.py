"""Row labels: which settings they state, which runs share a row, and what stands beside them in
CSV, LaTeX, figures."""
import csv
import shutil
import subprocess

import numpy as np
import pytest
from promptcal.trainers.config.settings import setting_words
from promptcal.trainers.report.figures.select import reliability_figure, sals_groups
from promptcal.trainers.report.report_tables import decision_table, metric_tables, results_table
from promptcal.trainers.report.table import Entry, latex, markdown, to_csv

from common import run_tool
from made_runs import by_label, compared, entry, labels, make_run, report_on, verdict_of

LAMBDA = "TRAINER.SOC.LAMBDA"


def learnt(protocol: str, digest: str) -> dict:
    prompt = {"kind": "learnt", "protocol": protocol, "hash": digest, "position": "end"}
    return {"model.prompt": prompt}


def test_a_methods_only_runs_with_other_settings_do_not_have_its_bare_name(tmp_path):
    make_run(tmp_path, "TPT", settings={"TRAINER.REGULARISERS": "hingepairs:50"})
    make_run(tmp_path, "RTPT", settings={"TRAINER.REGULARISERS": "ctpt:20,otpt:5"}, sharpness=1.0)
    make_run(tmp_path, "OTPT")
    make_run(
        tmp_path, "TDA",
        settings={"TRAINER.TDA.VALUES": "paper", "TTA.VIEWS": 16, "TRAINER.TDA.VIEWS": "all"},
    )
    main, = compared(tmp_path)
    zero_shot, *tuned = labels(main)
    tda, = set(tuned) - {"TPT, hingepairs:50", "R-TPT, ctpt:20,otpt:5", "O-TPT"}
    assert zero_shot == "Zero-shot" and tda.startswith("TDA, ")
    assert {"values tuned per set on test labels", "16 views"} <= set(tda.split(", "))
    verdict = verdict_of(main)
    assert verdict.best == "R-TPT, ctpt:20,otpt:5" and "R-TPT, ctpt:20,otpt:5" in verdict.sentence
    table = results_table(main, "t", "", ["ece"])
    tex = latex(table)
    assert "TPT, hingepairs:50 &" in tex and "\nTPT &" not in tex
    lines = csv.DictReader(to_csv([table]).splitlines())
    assert "TPT, hingepairs:50" in {line["row"] for line in lines}
    assert "TPT, hingepairs:50" in by_label(sals_groups(main)["UCF101"])


def test_settings_that_differ_between_data_sets_are_never_averaged(tmp_path):
    for dataset, weight in (("UCF101", 5.0), ("EuroSAT", 30.0)):
        make_run(tmp_path, "SoC", dataset, settings={LAMBDA: weight})
        make_run(tmp_path, "Mine", dataset, settings={"TRAINER.MINE.WEIGHT": weight})  # of a plugin that is not loaded
        make_run(tmp_path, "OTPT", dataset)
    main, = compared(tmp_path)
    assert labels(main) == ["Zero-shot", "O-TPT", "SoC", "SoC, λ 5", "Mine, WEIGHT 5", "Mine, WEIGHT 30"]
    assert "Average" not in results_table(main, "t", "", ["ece"]).columns
    texts = set()
    for axes in reliability_figure(main, "r").figure.axes:
        texts |= {axes.get_title(), axes.get_ylabel()}
    assert {"SoC, λ 5", "SoC"} <= texts


def test_zero_shot_is_never_ranked_among_tuned_methods(tmp_path):
    make_run(tmp_path, "Mine")  # of a plugin that is not loaded
    assert verdict_of(compared(tmp_path)[0]).sentence.startswith("Mine has an ECE of ")


def test_every_run_is_in_a_table(tmp_path):
    """Runs that differ in two settings at once belong to no sweep of one setting."""
    for number, (steps, weight) in enumerate(((2, 30.0), (1, 5.0), (2, 5.0))):
        make_run(tmp_path, "SoC", settings={"TTA.STEPS": steps, LAMBDA: weight}, folder=f"r{number}")
    folders = set()
    for grid in compared(tmp_path):
        for cell in grid.cells.values():
            folders |= {measured.run.folder.name for measured in cell}
            changed = set()
            for measured in cell:
                if not measured.from_tuned_run:
                    changed.add(str(measured.record.changed))
            assert len(changed) <= 1
    assert folders == {"r0", "r1", "r2"}


def test_a_part_of_a_data_set_is_not_its_column(tmp_path):
    """Results on half of the classes, or on unequal ones, are not the data set's."""
    parts = ["base classes", "imbalance 1.5", "new classes"]
    for part in parts:
        for trainer in ("TPT", "SoC"):
            changes = {"data.subset": part}
            make_run(tmp_path, trainer, folder=f"{part}/{trainer}", images=part, changes=changes)
        main, = compared(tmp_path / part)
        table = results_table(main, "t", "", ["accuracy"])
        assert table.columns == [f"UCF101 ({part})"]
        assert f"UCF101 ({part}) 400" in verdict_of(main).basis
    several, = compared(tmp_path)
    columns = [several.column_label(column) for column in several.columns]
    assert columns == [f"UCF101 ({part}), 400 images" for part in parts]


def test_two_settings_never_have_one_name():
    assert setting_words("OPTIM.LR", 0.01) != setting_words("TRAINER.FPP.LR", 0.01)
    assert setting_words(LAMBDA, 5.00000001) != setting_words(LAMBDA, 5.0) == "λ 5"


def test_one_prompt_per_seed_is_one_row(tmp_path):
    """As `train --seed 1 2 --model-dir DIR` makes them; two data sets have prompts of one protocol
    too."""
    for dataset in ("UCF101", "EuroSAT"):
        for seed in (1, 2):
            make_run(tmp_path, "CoOp", dataset, seed)
            make_run(tmp_path, "SoC", dataset, seed, changes=learnt("CoOp 4 shots", f"{dataset}{seed}"))
    main, = compared(tmp_path)
    soc = "SoC, CoOp 4 shots"
    untuned = "CoOp, 4 shots, untuned"
    assert [label for label in labels(main) if "4 shots" in label] == [untuned, soc]
    for (row, _), cell in main.cells.items():
        if row.label in (soc, untuned):
            assert len(cell) == 2
    table = results_table(main, "t", "", ["ece"])
    assert entry(table, "ECE", soc, "Average").std > 0
    assert entry(table, "ECE", soc, "UCF101").seeds == 2


def test_what_is_not_a_number_has_no_spread(tmp_path):
    right = np.zeros((20, 8)) + 9 * np.eye(8)[0]
    for seed in (0, 1):  # all right: no AUROC
        make_run(tmp_path, "SoC", seed=seed, n=20, label=np.zeros(20, int), logits=(1 + seed / 10) * right)
    table = decision_table(compared(tmp_path)[0], "t", "")
    auroc = entry(table, "UCF101", "SoC", "AUROC (%)")
    assert (auroc.text, auroc.spread, auroc.std) == ("–", "", None)
    text = markdown(table) + latex(table)
    assert "nan" not in text and "± is the sample standard deviation over seeds" in text
    assert Entry(float("nan"), std=float("nan")).spread == ""
    assert Entry(1.0, low=float("nan"), high=1.0).spread == ""
    assert metric_tables(compared(tmp_path)[0], "m")


def test_published_rows_are_cited(tmp_path):
    for trainer in ("OTPT", "SoC"):
        make_run(tmp_path, trainer, n=3783)
    report_on(tmp_path, published=True)
    out = tmp_path / "report"
    text = (out / "tables.tex").read_text(encoding="utf-8")
    bib = (out / "tables.bib").read_text(encoding="utf-8")
    row = r"\textit{O-TPT (published: Fillioux et al. (2026), Table 1)}~\cite{fillioux2026soc} &"
    assert row in text
    assert bib.startswith("@inproceedings{fillioux2026soc,") and bib.count("@") == 1
    if shutil.which("pdflatex") and shutil.which("bibtex"):
        head = r"\documentclass{article}\usepackage{booktabs,graphicx,xcolor}\begin{document}\input{tables}"
        (out / "t.tex").write_text(head + r"\bibliographystyle{plain}\bibliography{tables}\end{document}")
        subprocess.run(["pdflatex", "-interaction=batchmode", "t.tex"], cwd=out, check=True)
        done = subprocess.run(["bibtex", "t"], cwd=out, capture_output=True, text=True)
        assert "warning" not in done.stdout.lower()
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
    rows = []
    for grid in compared(tmp_path):
        rows += labels(grid)
    for words in ("fp16", "no AugMix", "weight decay 0", "2 steps"):
        assert f"SoC, {words}" in " | ".join(rows)


def test_a_run_made_again_is_named_by_the_words_of_the_setting_that_differs(tmp_path):
    """The default of AugMix was edited between the two runs, so neither has changed it."""
    for augmix in (True, False):
        make_run(tmp_path, "SoC", folder=f"{augmix}", changes={"views.augmix": augmix})
    assert labels(compared(tmp_path)[0]) == ["Zero-shot", "SoC", "SoC, AugMix"]
