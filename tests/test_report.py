"""From run folders to a report: what is found, what is measured, what is written, in which form."""
import csv
import re
import shutil
import subprocess

import numpy as np
import pytest
from promptcal.datasets.utils.errors import DataError
from promptcal.trainers.report.core import write_figures
from promptcal.trainers.report.figures import style
from promptcal.trainers.report.figures.select import sals_groups
from promptcal.trainers.report.figures.style import NamedFigure
from promptcal.trainers.report.load import read_run
from promptcal.trainers.report.metrics import METRICS, Metric
from promptcal.trainers.report.report_tables import decision_table, metric_tables, results_table
from promptcal.trainers.report.table import LATEX_HEAD, latex, markdown, terminal, to_csv

from common import run_tool
from folders import names
from made_runs import by_label, compared, entry, labels, make_benchmark, make_run, report_on, verdict_of


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    """What is compared of four methods on two data sets with two seeds."""
    grid, = compared(make_benchmark(tmp_path_factory.mktemp("runs")))
    return grid


def test_subsets_of_one_data_set_never_enter_one_average(tmp_path):
    """The whole set and a part of it, of which one method lacks a second data set: the whole set
    decides alone."""
    for trainer in ("TPT", "OTPT", "SoC"):
        make_run(tmp_path, trainer, n=300, images="whole", folder=f"{trainer}/300")
    sentence = verdict_of(compared(tmp_path)[0]).sentence
    for trainer in ("TPT", "OTPT", "SoC"):
        make_run(tmp_path, trainer, n=100, images="part", folder=f"{trainer}/100", sharpness=9.0)
    make_run(tmp_path, "SoC", "EuroSAT", n=80)
    main = compared(tmp_path)[0]
    verdict = verdict_of(main)
    assert verdict.sentence == sentence
    assert verdict.basis.endswith("300 test images: UCF101 300.")
    table = results_table(main, "t", "", ["ece"])
    assert table.columns == ["UCF101, 300 images", "UCF101, 100 images", "EuroSAT"]
    note, = [note for note in table.notes if "several sets of test images" in note]
    assert "300, 100" in note and "use the largest" in note
    # a stray run does not keep the others from being compared
    make_run(tmp_path, "CTPT", "DTD", n=90)
    main = compared(tmp_path)[0]
    assert verdict_of(main).lines[0].ece == verdict.lines[0].ece
    assert "C-TPT" in labels(main) and "without C-TPT" in "\n".join(main.notes)


def test_demo_runs_stay_out_where_there_are_others(tmp_path):
    make_run(tmp_path, "SoC", "LandCover", n=30, classes=24, backbone="small")
    assert report_on(tmp_path).tables[0].columns == ["LandCover"]
    make_run(tmp_path, "SoC", "UCF101", n=30)
    mixed = report_on(tmp_path)
    assert mixed.tables[0].columns == ["UCF101"]
    assert ["LandCover"] not in [table.columns for table in mixed.tables]
    assert "1 run on embedded demo data left out" in "\n".join(mixed.notes)
    make_run(tmp_path, "TPT", "LandCover", n=30, classes=24, backbone="small")
    done = run_tool("report.py", tmp_path, "--baseline", "TPT")
    assert done.returncode == 2
    assert "They are of Zero-shot, SoC. 2 runs on embedded demo data left out; --demo" in done.stderr
    with_demo = report_on(tmp_path, demo=True)
    assert ["LandCover"] in [table.columns for table in with_demo.tables]


def test_a_second_report_removes_figures_that_no_longer_belong(tmp_path):
    def write(*figure_names: str) -> None:
        figures = [NamedFigure(name, "", style.new_figure(1, 1)) for name in figure_names]
        write_figures(tmp_path, figures)

    write("old", "both")
    (tmp_path / "figures" / "mine.png").write_bytes(b"")
    write("both", "new")
    assert names(tmp_path / "figures") == [
        "both.pdf", "both.png", "figures.json", "mine.png", "new.pdf", "new.png",
    ]


def test_a_metric_is_one_entry(tmp_path, monkeypatch):
    """Added to the table, it is in every form of the report; a mean over images has its
    interval."""
    top_two = Metric(
        "Top-2 accuracy", lambda s: (np.mean, two_best(s)), higher_is_better=True, interval=True
    )
    monkeypatch.setitem(METRICS, "top_two", top_two)
    data = read_run(make_run(tmp_path, n=50)).load_predictions()
    report = report_on(tmp_path)
    table = next(table for table in report.tables if "Top-2 accuracy (%)" in table.columns)
    cell = entry(table, table.blocks[0].label, "SoC", "Top-2 accuracy (%)")
    assert cell.value == pytest.approx(100 * np.mean(two_best(data))) and cell.low < cell.high
    assert "Top-2 accuracy" in report.page.read_text(encoding="utf-8")
    assert "Top-2 accuracy" in (tmp_path / "report" / "tables.csv").read_text(encoding="utf-8")


def two_best(samples):
    order = np.argsort(-samples.logits, axis=1)
    return (order[:, :2] == samples.label[:, None]).any(axis=1)


def test_markdown_terminal_and_csv(benchmark):
    table = results_table(benchmark, "t", "Title_1", ["ece"])
    text = markdown(table)
    assert "### Title\\_1" in text
    soc = entry(table, "ECE", "SoC", "UCF101")
    assert f"**{soc.text}** {soc.spread} ({soc.delta})" in text
    assert f"*{soc.text} {soc.spread} ({soc.delta})" in terminal(table)
    lines = csv.DictReader(to_csv([table]).splitlines())
    line = next(line for line in lines if (line["row"], line["column"]) == ("SoC", "UCF101"))
    assert float(line["value"]) == soc.value  # not rounded
    assert (line["best"], line["published"]) == ("1", "0")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(benchmark, tmp_path):
    odd = r"Odd & signs_100% #1 $x$ {} ~ ^ \ λ “q” 漢"
    tables = [results_table(benchmark, "a", odd, ["accuracy", "ece"]), *metric_tables(benchmark, "b")]
    body = LATEX_HEAD + "".join(map(latex, tables))
    head = r"\documentclass{article}\usepackage{booktabs,graphicx,xcolor}\begin{document}"
    (tmp_path / "t.tex").write_text(f"{head}{body}\\end{{document}}", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1500:]
    assert "Overfull" not in done.stdout


def test_the_tool_writes_everything(tmp_path, real_pictures):
    for trainer in ("OTPT", "SoC"):
        # as many as UCF101 has, so that published rows are shown
        make_run(tmp_path / "runs", trainer, n=3783)
    out = tmp_path / "out"
    done = run_tool("report.py", tmp_path / "runs", "--out", out, "--published", "--baseline", "O-TPT")
    assert done.returncode == 0, done.stderr
    for words in (
        "SoC is the best calibrated of the tuned methods",
        "O-TPT (published: Fillioux et al. (2026), Table 1)",
        "Everything against O-TPT on the same images",
        "SoC is better calibrated than O-TPT on the same 3,783 images (p < 0.001",
    ):
        assert words in done.stdout
    for name in (
        "report.html", "tables.md", "tables.tex", "tables.csv", "figures/reliability_grid.png",
        "figures/reliability_grid.pdf", "figures/selective_ucf101.png", "figures/sals.pdf",
    ):
        assert (out / name).stat().st_size > 1000, name


def test_many_methods_that_differ_in_nothing_share_a_sentence(tmp_path):
    for trainer in ("TPT", "CTPT", "OTPT", "SoC", "ATPT", "RTPT"):
        make_run(tmp_path, trainer, n=120, sharpness=1.5)
    make_run(tmp_path, "TPS", n=120, sharpness=0.7)
    (verdict,) = report_on(tmp_path).verdicts
    (shared,) = [finding for finding in verdict.findings if "more is shown" in finding]
    assert shared.startswith("No difference between TPT and ") and "C-TPT, O-TPT" in shared
    assert "TPS" not in shared and any("TPS" in finding for finding in verdict.findings)


def test_the_verdict_names_the_best_and_how_the_worst_fails(benchmark, tmp_path):
    verdict = verdict_of(benchmark)
    assert verdict.best == "SoC"
    assert verdict.sentence.startswith("SoC is the best calibrated of the tuned methods")
    assert re.search(
        r"TPT has an ECE of [\d.]+\u00a0% and is over-confident by [\d.]+ points", verdict.sentence
    )
    errors = [line.ece for line in verdict.lines]
    assert errors == sorted(errors)
    assert "800 test images" in verdict.basis
    assert len(verdict.findings) == 4
    assert "SoC is better calibrated than TPT" in " ".join(verdict.findings)
    groups = sals_groups(benchmark)
    assert set(groups) == {"Pets", "UCF101", "EuroSAT", "Average"}
    ece = {name: by_label(groups[name])["SoC"].after for name in groups if name != "Pets"}
    assert ece["Average"] == pytest.approx((ece["UCF101"] + ece["EuroSAT"]) / 2)
    make_run(tmp_path, "OTPT", n=60, sharpness=1.35)
    make_run(tmp_path, "SoC", n=60, sharpness=1.3)
    sentence = verdict_of(compared(tmp_path)[0]).sentence
    # too few images
    assert "no difference in calibration from" in sentence and "could be shown" in sentence


def test_decisions_are_near_the_top(benchmark, tmp_path):
    table = decision_table(benchmark, "t", "")
    expected = {"Accuracy above 0.8 (%)", "Errors at 80 % coverage (%)", "LAC coverage (%)", "LAC size"}
    assert expected <= set(table.columns)
    make_run(tmp_path, "SoC")
    report = report_on(tmp_path)
    assert report.tables[1].title.startswith("Decisions by confidence")
    cell = entry(report.tables[1], "UCF101", "SoC", "Accuracy above 0.8 (%)")
    assert cell.low < cell.value < cell.high
    for table in report.tables:
        assert "Pairs" in table.title or len(" ".join(table.notes).split()) < 150


def test_nothing_to_report_is_one_line_with_status_2(tmp_path):
    done = run_tool("report.py", tmp_path)
    assert done.returncode == 2 and "no finished run" in done.stderr
    assert done.stderr.strip().count("\n") == 0
    (make_run(tmp_path) / "predictions.npz").unlink()
    with pytest.raises(DataError, match="no run could be measured"):
        report_on(tmp_path)


def test_a_learnt_prompt_without_tuning_is_not_called_zero_shot(tmp_path):
    prompt = {"kind": "learnt", "protocol": "CoOp 2 shots", "hash": "p0", "position": "end"}
    make_run(tmp_path, "SoC", changes={"model.prompt": prompt})
    main, = compared(tmp_path)
    assert labels(main) == ["CoOp, 2 shots, untuned", "SoC, CoOp 2 shots"]
    assert "CoOp, 2 shots, untuned has" in verdict_of(main).sentence
