"""From run folders to a report: what is found, what is measured, what is written, in which form."""
import csv
import re
import shutil
import subprocess

import numpy as np
import pytest
from promptcal.datasets.utils.errors import DataError
from promptcal.trainers.report import render
from promptcal.trainers.report.core import make_tests
from promptcal.trainers.report.figures import style
from promptcal.trainers.report.figures.select import NamedFigure, report_figures, sals_groups
from promptcal.trainers.report.layout import default_layout
from promptcal.trainers.report.load import read_run
from promptcal.trainers.report.metrics import METRICS, Metric
from promptcal.trainers.report.published_rows import PublishedOptions
from promptcal.trainers.report.special_tables import decision_table, metric_tables
from promptcal.trainers.report.tables import results_table
from promptcal.trainers.report.write import write_figures

from common import run_tool
from made_runs import by_label, compared, entry, make_benchmark, make_run, report_on

NONE = PublishedOptions()


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    return make_benchmark(tmp_path_factory.mktemp("runs"))


def verdict_of(grid):
    return make_tests([grid], default_layout())[0].verdict


def test_subsets_of_one_data_set_never_enter_one_average(tmp_path):
    """The whole set and a part of it, of which one method lacks a second data set: the whole set decides alone."""
    for trainer in ("TPT", "OTPT", "SoC"):
        make_run(tmp_path, trainer, n=300, images="whole", folder=f"{trainer}/300")
    alone = verdict_of(compared(tmp_path)[0])
    for trainer in ("TPT", "OTPT", "SoC"):
        make_run(tmp_path, trainer, n=100, images="part", folder=f"{trainer}/100", sharpness=9.0)
    make_run(tmp_path, "SoC", "EuroSAT", n=80)
    main = compared(tmp_path)[0]
    assert verdict_of(main).sentence == alone.sentence
    assert verdict_of(main).basis.endswith("300 test images: UCF101 300.")
    table = results_table(main, "t", "", ["ece"], NONE)
    assert table.columns == ["UCF101, 300 images", "UCF101, 100 images", "EuroSAT"]
    told = [note for note in table.notes if "several sets of test images" in note]
    assert len(told) == 1 and "300, 100" in told[0] and "use the largest" in told[0]
    make_run(tmp_path, "CTPT", "DTD", n=90)  # a stray run does not keep the others from being compared
    main = compared(tmp_path)[0]
    assert verdict_of(main).lines[0].ece == alone.lines[0].ece and "C-TPT" in [row.label for row in main.rows]
    assert any("without C-TPT" in note for note in main.notes)


def test_demo_runs_stay_out_where_there_are_others(tmp_path):
    make_run(tmp_path, "SoC", "LandCover", n=30, classes=24, backbone="small")
    assert report_on(tmp_path).tables[0].columns == ["LandCover"]
    make_run(tmp_path, "SoC", "UCF101", n=30)
    mixed = report_on(tmp_path)
    assert [table.columns for table in mixed.tables if "Accuracy and" in table.title] == [["UCF101"]]
    assert any("1 run on embedded demo data left out" in note for note in mixed.notes)
    assert ["LandCover"] in [table.columns for table in report_on(tmp_path, demo=True).tables]


def test_a_learnt_prompt_without_tuning_is_not_called_zero_shot(tmp_path):
    prompt = {"kind": "learnt", "protocol": "CoOp 2 shots", "hash": "p0", "position": "end"}
    make_run(tmp_path, "SoC", changes={"model.prompt": prompt})
    main, = compared(tmp_path)
    assert [row.label for row in main.rows] == ["CoOp, 2 shots, untuned", "SoC, CoOp 2 shots"]
    assert "CoOp, 2 shots, untuned has" in verdict_of(main).sentence


def test_a_second_report_removes_figures_that_no_longer_belong(tmp_path):
    def blank(name):
        return NamedFigure(name, "", style.new_figure(1, 1))

    write_figures(tmp_path, [blank("old"), blank("both")])
    (tmp_path / "figures" / "mine.png").write_bytes(b"")
    write_figures(tmp_path, [blank("both"), blank("new")])
    left = {path.name for path in (tmp_path / "figures").iterdir()}
    assert left == {"both.png", "both.pdf", "new.png", "new.pdf", "mine.png", "figures.json"}


def test_a_metric_is_one_entry(tmp_path, monkeypatch):
    """Added to the table, it is in every form of the report; a mean over images has its interval."""
    top_two = Metric("Top-2 accuracy", lambda s: (np.mean, two_best(s)), higher_is_better=True, interval=True)
    monkeypatch.setitem(METRICS, "top_two", top_two)
    run = read_run(make_run(tmp_path, n=50))
    data = run.load_predictions()
    expected = 100 * np.mean([y in np.argsort(z)[-2:] for y, z in zip(data.label, data.logits, strict=True)])
    report = report_on(tmp_path)
    table = next(table for table in report.tables if "Top-2 accuracy (%)" in table.columns)
    shown = entry(table, table.blocks[0].label, "SoC", "Top-2 accuracy (%)")
    assert shown.value == pytest.approx(expected) and shown.low < shown.high
    assert "Top-2 accuracy" in report.page.read_text(encoding="utf-8")
    assert "Top-2 accuracy" in (tmp_path / "report" / "tables.csv").read_text(encoding="utf-8")


def two_best(samples):
    return (np.argsort(-samples.logits, axis=1)[:, :2] == samples.label[:, None]).any(axis=1)


def test_markdown_terminal_and_csv(benchmark):
    table = results_table(compared(benchmark)[0], "t", "Title_1", ["ece"], NONE)
    text = render.markdown(table)
    assert "### Title\\_1" in text
    soc = entry(table, "ECE", "SoC", "UCF101")
    assert f"**{soc.text}** {soc.spread} ({soc.delta})" in text
    assert f"*{soc.text} {soc.spread} ({soc.delta})" in render.terminal(table)
    rows = list(csv.DictReader(render.to_csv([table]).splitlines()))
    cell = next(r for r in rows if (r["row"], r["column"]) == ("SoC", "UCF101"))
    assert (float(cell["value"]), cell["best"], cell["published"]) == (soc.value, "1", "0")  # not rounded


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(benchmark, tmp_path):
    main, = compared(benchmark)
    odd = r"Odd & signs_100% #1 $x$ {} ~ ^ \ λ “q” 漢"
    tables = [results_table(main, "a", odd, ["accuracy", "ece"], NONE), *metric_tables(main, "b")]
    body = render.LATEX_HEAD + "".join(map(render.latex, tables))
    head = r"\documentclass{article}\usepackage{booktabs,graphicx,xcolor}\begin{document}"
    (tmp_path / "t.tex").write_text(f"{head}{body}\\end{{document}}", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1500:]
    assert "Overfull" not in done.stdout


def test_the_tool_writes_everything(tmp_path, real_pictures):
    for trainer in ("TPT", "OTPT", "SoC"):
        make_run(tmp_path / "runs", trainer, n=3783)  # as many as UCF101 has, so that published rows are shown
    done = run_tool("report.py", tmp_path / "runs", "--out", tmp_path / "out", "--published", "--baseline", "O-TPT")
    assert done.returncode == 0, done.stderr
    assert "SoC is the best calibrated of the tuned methods" in done.stdout
    assert "O-TPT (published: Fillioux et al. (2026), Table 1)" in done.stdout
    assert "Everything against O-TPT on the same images" in done.stdout
    assert "SoC is better calibrated than O-TPT on the same 3,783 images (p < 0.001, Holm over 3)" in done.stdout
    for name in ("report.html", "tables.md", "tables.tex", "tables.csv", "figures/reliability_grid.png",
                 "figures/reliability_grid.pdf", "figures/selective_ucf101.png", "figures/sals.pdf"):
        assert (tmp_path / "out" / name).stat().st_size > 1000, name


def test_the_verdict_names_the_best_and_how_the_worst_fails(benchmark, tmp_path):
    verdict = verdict_of(compared(benchmark)[0])
    assert verdict.best == "SoC"
    assert verdict.sentence.startswith("SoC is the best calibrated of the tuned methods")
    assert re.search(r"TPT has an ECE of [\d.]+\u00a0% and is over-confident by [\d.]+ points", verdict.sentence)
    assert [line.ece for line in verdict.lines] == sorted(line.ece for line in verdict.lines)
    assert "800 test images" in verdict.basis
    assert len(verdict.findings) == 4 and "SoC is better calibrated than TPT" in " ".join(verdict.findings)
    make_run(tmp_path, "OTPT", n=60, sharpness=1.35)
    make_run(tmp_path, "SoC", n=60, sharpness=1.3)
    sentence = verdict_of(compared(tmp_path)[0]).sentence
    assert "no difference in calibration to" in sentence and "could be seen" in sentence  # too few images


def test_decisions_are_near_the_top(benchmark, tmp_path):
    main = compared(benchmark)[0]
    table = decision_table(main, "t", "")
    expected = {"Accuracy above 0.8 (%)", "Errors at 80 % coverage (%)", "LAC coverage (%)", "LAC size"}
    assert expected <= set(table.columns)
    make_run(tmp_path, "SoC")
    report = report_on(tmp_path)
    assert report.tables[1].title.startswith("Decisions by confidence")
    shown = entry(report.tables[1], "UCF101", "SoC", "Accuracy above 0.8 (%)")
    assert shown.low < shown.value < shown.high
    assert max(len(" ".join(table.notes).split()) for table in report.tables if "Pairs" not in table.title) < 150


def test_figures_of_sals_and_class_pairs(benchmark, tmp_path):
    groups = {name: by_label(group) for name, group in sals_groups(compared(benchmark)[0]).items()}
    assert set(groups) == {"Pets", "UCF101", "EuroSAT", "Average"}
    expected = np.mean([groups[name]["SoC"].after for name in ("UCF101", "EuroSAT")])
    assert groups["Average"]["SoC"].after == pytest.approx(expected)
    for trainer in ("OTPT", "SoC"):
        make_run(tmp_path, trainer)
    found = {figure.name: figure for figure in report_figures(compared(tmp_path))}
    assert len(found["class_pairs_ucf101"].figure.axes) == 2


def test_nothing_to_report_is_one_line_with_status_2(tmp_path):
    done = run_tool("report.py", tmp_path)
    assert done.returncode == 2 and "no finished run" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    (make_run(tmp_path) / "predictions.npz").unlink()
    with pytest.raises(DataError, match="no run could be measured"):
        report_on(tmp_path)
