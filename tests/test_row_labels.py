"""Row labels: which settings they state, which runs share a row, and what stands beside them in CSV, LaTeX, figures."""
import csv
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from made_runs import by_label, compared, entry, make_run
from promptcal.trainers.experiments.layouts.averages import averages
from promptcal.trainers.report import render
from promptcal.trainers.report.comparison import show_setting
from promptcal.trainers.report.gallery import reliability_figure, sals_groups
from promptcal.trainers.report.load import read_run
from promptcal.trainers.report.paired import pair_tests
from promptcal.trainers.report.table_model import Entry
from promptcal.trainers.report.tables import metrics_table, paper_table
from promptcal.trainers.report.verdict import judge
from promptcal.trainers.report.write import write_report
from test_experiment_tables import finished_runs


def labels(comparison):
    return [row.label for row in comparison.rows]


def with_prompt(root, trainer, seed, path, content, **kwargs):
    """A run that starts from a learnt prompt, with the hash of the prompt's content in its fingerprint."""
    folder = make_run(root, trainer, seed=seed, settings={"MODEL.INIT_WEIGHTS": path}, **kwargs)
    results = (folder / "results.json").read_text(encoding="utf-8")
    results = results.replace('"fingerprint": {', f'"fingerprint": {{"prompt": "{content}", ')
    (folder / "results.json").write_text(results, encoding="utf-8")


def test_a_methods_only_runs_with_other_settings_do_not_have_its_bare_name(tmp_path):
    make_run(tmp_path, "TPT", settings={"TRAINER.REGULARISERS": "hingepairs:50"})
    make_run(tmp_path, "RTPT", settings={"TRAINER.REGULARISERS": "ctpt:20,otpt:5"}, sharpness=1.0)
    make_run(tmp_path, "OTPT")
    make_run(tmp_path, "TDA", settings={
        "TRAINER.TDA.VALUES": "paper", "TTA.VIEWS": 16, "TRAINER.TDA.VIEWS": "confident"})
    main, = compared(tmp_path)
    expected = ["Zero-shot", "TPT, hingepairs:50", "R-TPT, ctpt:20,otpt:5", "O-TPT"]
    assert [label for label in labels(main) if not label.startswith("TDA")] == expected
    tda, = (label for label in labels(main) if label.startswith("TDA"))
    assert {"values tuned per set on test labels", "TTA.VIEWS 16"} <= set(tda.split(", "))
    assert judge(main).best == "R-TPT, ctpt:20,otpt:5" and "R-TPT, ctpt:20,otpt:5" in judge(main).sentence
    table = paper_table(main, "t", "", ["ece"])
    assert "TPT, hingepairs:50 &" in render.latex(table) and "\nTPT &" not in render.latex(table)
    assert "TPT, hingepairs:50" in {line["row"] for line in csv.DictReader(render.to_csv([table]).splitlines())}
    assert "TPT, hingepairs:50" in by_label(sals_groups(main)["UCF101"])


def test_added_terms_in_another_order_are_the_same_method(tmp_path):
    make_run(tmp_path, "TPT", settings={"TRAINER.REGULARISERS": "soc:50,otpt:2"})
    make_run(tmp_path, "TPT", "EuroSAT", settings={"TRAINER.REGULARISERS": "OTPT:2, SoC:50"})
    main, = compared(tmp_path)
    assert labels(main) == ["Zero-shot", "TPT, otpt:2,soc:50"]


def test_settings_that_differ_between_data_sets_are_never_averaged(tmp_path):
    for dataset, weight in (("UCF101", 5.0), ("EuroSAT", 30.0)):
        make_run(tmp_path, "SoC", dataset, settings={"TRAINER.SOC.LAMBDA": weight})
        make_run(tmp_path, "OTPT", dataset)
    main, = compared(tmp_path)
    assert labels(main) == ["Zero-shot", "O-TPT", "SoC", "SoC, λ 5"]
    assert "Average" not in paper_table(main, "t", "", ["ece"]).columns
    axes = reliability_figure(main, "r").figure.axes
    assert {"SoC, λ 5", "SoC"} <= {text for one in axes for text in (one.get_title(), one.get_ylabel())}


def test_runs_of_an_unknown_method_share_a_row_only_with_equal_settings(tmp_path):
    for dataset, weight in (("UCF101", 5.0), ("EuroSAT", 30.0)):
        make_run(tmp_path, "Mine", dataset, settings={"TRAINER.MINE.WEIGHT": weight, "TTA.VIEWS": 9})
    assert sorted(labels(compared(tmp_path)[0])) == ["Mine, WEIGHT 30", "Mine, WEIGHT 5", "Zero-shot"]


def test_zero_shot_is_never_ranked_among_tuned_methods(tmp_path):
    make_run(tmp_path, "Mine")  # of a plugin that is not loaded
    assert judge(compared(tmp_path)[0]).sentence.startswith("Mine has an ECE of ")


def test_every_run_is_in_a_table(tmp_path):
    """Runs that differ in two settings at once belong to no sweep of one setting."""
    for number, (steps, weight) in enumerate(((2, 30.0), (1, 5.0), (2, 5.0))):
        settings = {"TTA.STEPS": steps, "TRAINER.SOC.LAMBDA": weight}
        make_run(tmp_path, "SoC", settings=settings, folder=f"r{number}")
    shown = {m.run.folder.name for c in compared(tmp_path) for cell in c.cells.values() for m in cell}
    assert shown == {"r0", "r1", "r2"}
    for comparison in compared(tmp_path):
        for cell in comparison.cells.values():
            assert len({(m.run.settings["TTA.STEPS"], m.run.settings["TRAINER.SOC.LAMBDA"]) for m in cell}) == 1


def test_values_that_mean_the_default_need_no_label(tmp_path):
    make_run(tmp_path, "SoC", settings={"TTA.AUGMIX": "auto"}, folder="a")  # on, as in the yaml of UCF101
    make_run(tmp_path, "SoC", "ImageNetA", settings={"TTA.AUGMIX": "on"}, folder="b")  # λ 14, as in its yaml
    make_run(tmp_path, "ZeroShot", settings={"TTA.VIEWS": 8}, folder="c")  # which it does not use
    assert labels(compared(tmp_path)[0]) == ["Zero-shot", "SoC"]
    make_run(tmp_path, "SoC", "EuroSAT", settings={"TTA.AUGMIX": "off", "MODEL.PREC": "bf16"}, folder="d")
    make_run(tmp_path, "SoC", "ImageNet", settings={"TTA.AUGMIX": "auto", "TRAINER.SOC.LAMBDA": 14.0}, folder="e")
    assert set(labels(compared(tmp_path)[0])) == {
        "Zero-shot", "Zero-shot, PREC bf16", "SoC", "SoC, PREC bf16, AUGMIX off", "SoC, λ 14"}


def test_the_weight_of_an_added_term_takes_the_place_of_its_lambda(tmp_path):
    """λ of SoC is 14 on ImageNet-A and 30 on UCF101, and neither counts for TPT with soc:50."""
    for dataset, given in (("UCF101", 30.0), ("ImageNetA", 14.0)):
        make_run(tmp_path, "TPT", dataset, settings={"TRAINER.REGULARISERS": "soc:50", "TRAINER.SOC.LAMBDA": given})
    main, = compared(tmp_path)
    assert labels(main) == ["Zero-shot", "TPT, soc:50"]
    assert entry(paper_table(main, "t", "", ["ece"]), "ECE", "TPT, soc:50", "Average")


def test_a_part_of_a_data_set_is_not_its_column(tmp_path):
    """Results on half of the classes, or on unequal ones, are neither the data set's nor beside published ones."""
    parts = {"base classes": {"DATASET.SUBSAMPLE_CLASSES": "base"}, "new classes": {"DATASET.SUBSAMPLE_CLASSES": "new"},
             "imbalance 1.5": {"TEST.IMBALANCE": 1.5}}
    for number, (part, settings) in enumerate(parts.items()):
        for trainer in ("TPT", "SoC"):
            folder = f"{part}/{trainer}"
            make_run(tmp_path, trainer, "UCF101", settings=settings, folder=folder, data_hash=f"d{number}")
        only, = compared(tmp_path / part)
        table = paper_table(only, "t", "", ["accuracy"], with_published=True)
        assert table.columns == [f"UCF101 ({part})"] and f"UCF101 ({part}) 400" in judge(only).basis
        assert not any(row.published for block in table.blocks for row in block.rows)
    several, = compared(tmp_path)
    assert [several.column_label(column) for column in several.columns] == [
        f"UCF101 ({part}), 400 images" for part in parts]
    make_run(tmp_path / "whole", "SoC", "UCF101")
    base = read_run(tmp_path / "base classes" / "SoC")  # a validation run on all classes is not of these
    assert base.split_key() != read_run(make_run(tmp_path / "val", "SoC", split="val")).split_key()
    whole = paper_table(compared(tmp_path / "whole")[0], "t", "", ["accuracy"], with_published=True)
    assert whole.columns == ["UCF101"] and any(row.published for block in whole.blocks for row in block.rows)


def test_untuned_prompts_are_paired_with_their_own_seed(tmp_path):
    """Three seeds have a prompt each, and SoC ran from all three: three pairs, not nine."""
    for seed in (1, 2, 3):
        path = f"out/ucf101/four/seed{seed}/prompt_learner/model.pth.tar-50"
        with_prompt(tmp_path, "SoC", seed, path, f"hash{seed}")
    found = {(pair.first.name or pair.first.label, pair.second.method): pair.seeds
             for pair in pair_tests(compared(tmp_path)[0], 20)}
    assert found["CoOp prompt, untuned", "SoC"] == 3


def test_two_settings_never_have_one_name():
    assert show_setting("OPTIM.LR", 0.01) == "OPTIM.LR 0.01" and show_setting("TRAINER.FPP.LR", 0.01) == "FPP.LR 0.01"
    assert show_setting("TRAINER.SOC.LAMBDA", 5.00000001) != show_setting("TRAINER.SOC.LAMBDA", 5.0) == "λ 5"


def test_one_prompt_per_seed_is_one_row(tmp_path):
    """As `train --seed 1 2 --model-dir DIR` makes them; two data sets have prompts of one protocol too."""
    for dataset in ("UCF101", "EuroSAT"):
        for seed in (1, 2):
            make_run(tmp_path, "CoOp", dataset, seed, settings={"DATASET.NUM_SHOTS": 4})
            path = f"out/{dataset.lower()}/four/seed{seed}/prompt_learner/model.pth.tar-50"
            with_prompt(tmp_path, "SoC", seed, path, f"{dataset}{seed}", dataset=dataset)
    main, = compared(tmp_path)
    untuned, soc = (label for label in labels(main) if "prompt" in label)
    assert soc.startswith("SoC, prompt four-") and untuned.startswith("CoOp prompt, untuned, prompt four-")
    assert "CoOp, 4 shots" in labels(main) and {len(cell) for (row, _), cell in main.cells.items()
                                                if row.label != "Zero-shot"} == {2}
    table = paper_table(main, "t", "", ["ece"])
    for row in (soc, untuned):
        assert entry(table, "ECE", row, "Average").std > 0 and entry(table, "ECE", row, "UCF101").seeds == 2


@pytest.mark.parametrize(("path", "seed"), [
    ("out/four/seed1/prompt_learner/model.pth.tar-50", 1),  # trained again in the same folder
    ("out/four/seed1/prompt_learner/model.pth.tar-20", 1),  # another epoch
    ("out/four/seed1/prompt_learner/model.pth.tar-50", 2),  # another seed's
    ("out/two/seed2/prompt_learner/model.pth.tar-50", 2),  # of another training
    ("out/four/seed21/prompt_learner/model.pth.tar-50", 2),
])
def test_other_prompts_are_never_pooled(tmp_path, path, seed):
    with_prompt(tmp_path, "SoC", 1, "out/four/seed1/prompt_learner/model.pth.tar-50", "aaaa", folder="a")
    with_prompt(tmp_path, "SoC", seed, path, "bbbb", folder="b", sharpness=3.0)
    cells = [cell for c in compared(tmp_path) for (row, _), cell in c.cells.items() if row.method == "SoC"]
    assert len(cells) >= 2 and {len(cell) for cell in cells} == {1}


def test_a_prompt_is_named_by_what_the_run_read(tmp_path):
    with_prompt(tmp_path, "SoC", 0, "out/x/prompt_learner/model.pth.tar-50", "0123456789abcdef")
    run = read_run(next(tmp_path.rglob("results.json")).parent)
    assert run.prompt == "x-01234567" and run.settings["MODEL.INIT_WEIGHTS"].endswith("tar-50")


def test_averages_over_data_sets_have_the_spread_of_their_seeds(tmp_path):
    finished = finished_runs(tmp_path, "seeds", keep=lambda run: run.dataset in ("dtd", "ucf101"))
    experiment = replace(finished.experiment, across="backbone", published=[])
    table, = averages(replace(finished, experiment=experiment))
    shown = next(row for row in table.blocks[1].rows if row.label == "SoC").entries[0]
    values = {}
    for run, m in finished.measured.items():
        if run.method == "SoC":
            values.setdefault(run.seed, []).append(100 * m.value("ece"))
    assert shown.std == pytest.approx(np.std([np.mean(of) for of in values.values()], ddof=1)) and shown.seeds == 3
    assert "± is the sample standard deviation over seeds." in table.notes


def test_what_is_not_a_number_has_no_spread(tmp_path):
    for seed in (0, 1):  # all right: no AUROC
        make_run(tmp_path, "SoC", seed=seed, n=20, sharpness=0, label=np.zeros(20, int))
    folder = next(tmp_path.rglob("seed1"))
    arrays = dict(np.load(folder / "predictions.npz"))
    arrays["logits"][:, 0] = 99
    np.savez(folder / "predictions.npz", **arrays)
    table = metrics_table(compared(tmp_path)[0], "t", "", 20)
    shown = entry(table, "UCF101", "SoC", "AUROC")
    assert (shown.text, shown.spread, shown.std) == ("–", "", None)
    text = render.markdown(table) + render.latex(table)
    assert "nan" not in text and "± is the sample standard deviation over seeds" in text
    assert Entry(float("nan"), std=float("nan")).spread == Entry(1.0, low=float("nan"), high=1.0).spread == ""


def test_published_rows_are_cited(tmp_path):
    for trainer in ("OTPT", "SoC"):
        make_run(tmp_path / "runs", trainer, n=60)
    out = tmp_path / "out"
    write_report([tmp_path / "runs"], out, repeats=0, published=True, with_figures=False)
    text, bib = ((out / f"tables.{ending}").read_text(encoding="utf-8") for ending in ("tex", "bib"))
    assert r"\textit{O-TPT (published: Fillioux et al. (2026), Table 1)}~\cite{fillioux2026soc} &" in text
    assert bib.startswith("@inproceedings{fillioux2026soc,") and bib.count("@") == 1
    if shutil.which("pdflatex") and shutil.which("bibtex"):
        (out / "t.tex").write_text(r"\documentclass{article}\usepackage{booktabs,graphicx,xcolor}\begin{document}"
                                   r"\input{tables}\bibliographystyle{plain}\bibliography{tables}\end{document}")
        subprocess.run(["pdflatex", "-interaction=batchmode", "t.tex"], cwd=out, check=True)
        assert "warning" not in subprocess.run(["bibtex", "t"], cwd=out, capture_output=True, text=True).stdout.lower()
    write_report([tmp_path / "runs"], out, repeats=0, with_figures=False)
    assert not (out / "tables.bib").exists()
