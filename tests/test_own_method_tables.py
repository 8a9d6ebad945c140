"""Tables about one's own method: baselines, learnt prompts, shared settings, captions and LaTeX
that can be pasted."""
from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from promptcal.trainers.config.settings import setting_words
from promptcal.trainers.experiments.definition import read_experiment
from promptcal.trainers.experiments.plan import Workspace, expand
from promptcal.trainers.functional import balanced_accuracy, macro_f1
from promptcal.trainers.report.load import read_run
from promptcal.trainers.report.table import Table

from common import run_tool
from made_runs import cells_of, compared, entry, labels, make_run, report_on, row_labels

LAMBDA = "TRAINER.SOC.LAMBDA"
DESCRIPTIONS = "PROMPT.DESCRIPTIONS"


def main_table(root: Path, **options) -> Table:
    return report_on(root, **options).tables[0]


def learnt(shots: int, digest: str) -> dict:
    protocol = f"CoOp/vit_b16_ep50_{shots}shots/nctx16_cscFalse_ctpend/seed*"
    prompt = {"kind": "learnt", "protocol": protocol, "position": "end", "hash": digest}
    return {"model.prompt": prompt, "names.prompt": f"CoOp {shots} shots"}


def stated(table: Table) -> list[str]:
    """The rows that state a difference."""
    return [row.label for row in table.blocks[0].rows if row.entries[0].difference is not None]


@pytest.fixture(scope="module")
def two_new_methods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("new")
    for number, trainer in enumerate(("ZeroShot", "TPT", "OTPT", "SoC", "Mine")):
        make_run(root, trainer, n=60, sharpness=1.2 + 0.2 * number)
    return root


def test_which_rows_state_a_difference(two_new_methods, tmp_path):
    table = main_table(two_new_methods)
    assert stated(table) == ["O-TPT", "SoC"]  # Mine is of a plugin that is not loaded
    tpt, soc = (entry(table, "ECE", name, "UCF101") for name in ("TPT", "SoC"))
    assert soc.difference == pytest.approx(float(soc.text) - float(tpt.text))
    assert "difference from TPT" in table.caption
    ours = main_table(two_new_methods, baseline="o-tpt", ours=["mine"])
    assert stated(ours) == ["Mine"] and "difference from O-TPT" in ours.caption
    done = run_tool("report.py", two_new_methods, "--baseline", "soc", "--ours", "TPT", "--ours", "Mine",
                    "--no-figures", "--out", tmp_path / "out")
    assert done.returncode == 0 and "difference from SoC" in done.stdout
    for option, name in (("--baseline", "CTPT"), ("--ours", "Yours")):
        done = run_tool("report.py", two_new_methods, option, name, "--out", tmp_path / "none")
        assert done.returncode == 2
        assert f"{option} {name}: none of these runs is of that method" in done.stderr
        assert not (tmp_path / "none").exists()


def test_methods_of_unknown_plugins_are_not_ranked(tmp_path):
    make_run(tmp_path, "Mine", n=60)
    make_run(tmp_path, "Yours", n=60, sharpness=3.0)
    verdict, = report_on(tmp_path).verdicts
    assert verdict.best == "" and "not ranked" in verdict.sentence and "best" not in verdict.sentence


@pytest.mark.parametrize("with_others", [False, True])
def test_rows_from_learnt_prompts(tmp_path, with_others):
    """The same labels in the same order, whatever else is in the report."""
    for shots in (4, 2):
        for trainer in ("TPT", "SoC"):
            for seed in (1, 2):
                make_run(tmp_path, trainer, seed=seed, n=60, folder=f"{shots}/{trainer}/{seed}",
                         changes=learnt(shots, f"{shots}{seed}"))
    if with_others:
        for trainer in ("ZeroShot", "TPT", "SoC"):
            make_run(tmp_path, trainer, n=60)
        make_run(tmp_path, "SoC", n=60, folder="sweep", settings={LAMBDA: 5.0}, changes=learnt(2, "21"))
    table = main_table(tmp_path)
    rows = [row.label for row in table.blocks[0].rows if "CoOp" in row.label]
    assert rows == [
        "CoOp, 2 shots, untuned", "CoOp, 4 shots, untuned", "TPT, CoOp 2 shots",
        "TPT, CoOp 4 shots", "SoC, CoOp 2 shots", "SoC, CoOp 4 shots",
    ]
    for metric in ("Accuracy", "ECE"):
        for shots in ("2 shots", "4 shots"):
            tuned = entry(table, metric, f"SoC, CoOp {shots}", "UCF101")
            untuned = entry(table, metric, f"CoOp, {shots}, untuned", "UCF101")
            assert tuned.difference == pytest.approx(float(tuned.text) - float(untuned.text))
    sweeps = [grid for grid in compared(tmp_path) if grid.stated]
    assert len(sweeps) == with_others
    for grid in sweeps:
        assert labels(grid) == ["CoOp, 2 shots, untuned", "SoC, CoOp 2 shots, λ 5", "SoC, CoOp 2 shots, λ 30"]


def test_a_setting_that_all_rows_share_stands_in_the_caption(tmp_path):
    for trainer in ("ZeroShot", "TPT", "SoC"):
        settings = {} if trainer == "ZeroShot" else {"TTA.STEPS": 2}
        make_run(tmp_path, trainer, n=60, settings=settings)
    table = main_table(tmp_path)
    assert row_labels(table) == ["Zero-shot", "TPT", "SoC"]
    assert table.title == "Accuracy and ECE, ViT-L/14, 2 steps"
    make_run(tmp_path, "OTPT", n=60)
    assert row_labels(main_table(tmp_path)) == ["Zero-shot", "TPT, 2 steps", "O-TPT", "SoC, 2 steps"]


def test_what_does_not_depend_on_the_seed_has_no_spread(tmp_path):
    for seed in (0, 1):
        for trainer in ("ZeroShot", "SoC"):
            make_run(tmp_path, trainer, seed=seed, n=60)
    tables = report_on(tmp_path).tables
    assert "±" in entry(tables[0], "ECE", "SoC", "UCF101").spread
    for table in tables:
        spreads = "".join(cell.spread for cell in cells_of(table))
        assert ("±" in table.caption) == ("±" in spreads), table.name
        for block in table.blocks:
            for row in block.rows:
                if row.label == "Zero-shot":
                    assert not [cell for cell in row.entries if cell and "±" in cell.spread], table.name


def test_captions_notes_and_sources(tmp_path):
    """LaTeX: two sentences, the rest as comments and in a file; one column where it fits; sources that exist."""
    for trainer in ("TPT", "SoC"):
        make_run(tmp_path, trainer, n=60, flagged=3)
    tables = report_on(tmp_path).tables
    tex = (tmp_path / "report" / "tables.tex").read_text(encoding="utf-8")
    captions = re.findall(r"\\caption\{(.*)\}\n", tex)
    assert not any("±" in caption for caption in captions)  # one seed
    assert len(captions) == len(tables)
    for caption in captions:
        assert len(re.findall(r"[.!?](?=\s|$)", caption)) <= 2, caption
    assert r"\begin{table}[t]" in tex and r"\begin{table*}[t]" in tex and "tables.bib" not in tex
    notes = (tmp_path / "report" / "tables_notes.tex").read_text(encoding="utf-8")
    for text in (tex, notes):
        assert "Not ranked, because more than" in text
    assert r"\paragraph{Table~\ref{tab:results_1}.}" in notes
    make_run(tmp_path / "paper", "SoC", n=3783)
    report_on(tmp_path / "paper", published=True)
    folder = tmp_path / "paper" / "report"
    assert "tables.bib" in (folder / "tables.tex").read_text(encoding="utf-8") and (folder / "tables.bib").is_file()


def test_metrics_of_unequal_classes_stand_beside_accuracy(tmp_path):
    label = np.repeat(np.arange(8), [200, 20, 20, 20, 20, 20, 20, 80])
    make_run(tmp_path / "unequal", "SoC", label=label)
    make_run(tmp_path / "equal", "SoC", label=np.repeat(np.arange(8), 50))
    names = ["Balanced accuracy (%)", "Macro-F1 (%)"]
    decisions = report_on(tmp_path / "unequal").tables[1]
    assert decisions.columns[:3] == ["Accuracy (%)", *names]
    data = read_run(next((tmp_path / "unequal").rglob("results.json")).parent).load_predictions()
    for name, metric in zip(names, (balanced_accuracy, macro_f1), strict=True):
        cell = entry(decisions, "UCF101", "SoC", name)
        assert cell.value == pytest.approx(100 * metric(logits=data.logits, labels=data.label))
    assert not set(names) & set(report_on(tmp_path / "equal").tables[1].columns)


def test_a_file_of_descriptions_per_data_set_is_one_row(tmp_path):
    """Files of one label belong together, but not two files on one data set."""
    for dataset in ("UCF101", "EuroSAT"):
        make_run(tmp_path, "ZeroShot", dataset, n=60)
        make_run(tmp_path, "ZeroShot", dataset, n=60, settings={DESCRIPTIONS: f"{dataset.lower()}-1a2b"})
    row = f"Zero-shot, {setting_words(DESCRIPTIONS, 'of each data set')}"
    _, texts = compared(tmp_path)
    assert labels(texts) == ["Zero-shot, no descriptions", row]
    assert len(texts.common_columns()) == 2
    make_run(tmp_path, "ZeroShot", "UCF101", n=60, settings={DESCRIPTIONS: "ucf101-3c4d"})
    all_labels = [label for grid in compared(tmp_path) for label in labels(grid)]
    assert len([label for label in all_labels if "-3c4d" in label]) == 1 and row not in all_labels


def test_two_sets_of_images_are_both_counted(tmp_path):
    make_run(tmp_path, "SoC", n=60)
    make_run(tmp_path, "SoC", n=40, folder="pilot", changes={"data.subset": "40 of 60 images"})
    assert "Test images: UCF101 60 and 40" in main_table(tmp_path).caption


def test_pages_name_files_without_their_folders(tmp_path):
    data = tmp_path / "secret" / "mine.yaml"
    data.parent.mkdir()
    data.write_text("DATASET:\n  NAME: LandCover\n")
    experiment = replace(read_experiment("table1"), datasets=[str(data)])
    run = expand(experiment, Workspace(backbone="/home/me/secret/x.pt"))[0]
    assert run.described == "ZeroShot on mine, x, seed 0"
