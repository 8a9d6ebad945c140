"""The experiments on corruptions, streams, online methods and texts: their tables, curves and
captions."""
from pathlib import Path

import pytest
from promptcal.tools.reproduce import main
from promptcal.trainers.experiments.definition import read_experiment
from promptcal.trainers.experiments.plan import Workspace, expand

from finished_experiments import outcome_of
from made_runs import row_labels

SMALL = ["--set", "TTA.VIEWS", "10", "DATALOADER.NUM_WORKERS", "0"]


def demo(tmp_path: Path, name: str, limit: int, *only: str) -> tuple[str, str]:
    """The tables of an experiment's demo, and its page."""
    main([name, "--demo", "--limit", str(limit), "--only", *only, "--output-dir", str(tmp_path), *SMALL])
    out = tmp_path / "demo" / "experiments" / name
    return (out / "tables.md").read_text(), (out / "report.html").read_text()


@pytest.mark.slow
def test_corruptions(tmp_path):
    tables, page = demo(tmp_path, "corruptions", 2, "ZeroShot", "TPS")
    assert "LandCover at severity 5" in tables and "LandCover at severity 3" not in tables
    for name in ("gaussian noise", "defocus blur", "fog", "contrast", "Average"):
        assert name in tables
    caption = (
        "against severity, LandCover, small CLIP, 20 bins. Seed 0. "
        "Texts: “a photo of a [class].” Test images of each: 2."
    )
    assert caption in page


def test_severities_are_points_of_one_curve_and_the_highest_a_table(tmp_path):
    def keep(run):
        is_shown = run.variant["DATASET.CORRUPTION"] in ("fog", "contrast")
        return run.dataset == "cifar10_c" and run.method in ("ZeroShot", "TPT") and is_shown

    outcome = outcome_of(tmp_path, "corruptions", keep=keep)
    assert len(outcome.figures) == 1 and outcome.figures[0].startswith("severity_")
    assert outcome.tables[0].columns == ["fog", "contrast", "Average"]


@pytest.mark.slow
def test_streams(tmp_path):
    tables, page = demo(tmp_path, "streams", 48, "ZeroShot", "TDA", "OnZeta")
    for row in (
        "Zero-shot", "TDA, random order", "TDA, correlated order", "TDA, sorted order",
        "OnZeta, sorted order",
    ):
        assert f"| {row}" in tables
    assert "Classes among 64 successive images" in tables
    for order in ("random", "correlated", "sorted"):
        assert f"Order of the images: {order}. Over the stream, LandCover, small CLIP" in page


def test_descriptions_have_one_row_for_all_data_sets(tmp_path):
    tables, page = demo(tmp_path, "descriptions", 6, "ZeroShot", "TDA")
    head = tables.split("\n|", 2)[1]
    assert "initial prompt | templates “ensemble” | descriptions" in head
    texts = "Texts: 8 templates and 2 sentences per class (landcover_descriptions.json), mean feature."
    assert texts in page

    outcome = outcome_of(tmp_path, "descriptions", keep=lambda run: run.dataset in ("dtd", "ucf101"))
    assert row_labels(outcome.tables[0]) == ["Zero-shot", "TPS", "VTE", "TDA", "DMN", "DPE"]
    assert len(outcome.tables[0].columns) == 5
    assert outcome.tables[1].columns == ["DTD", "UCF101", "Average"]
    for block in outcome.tables[0].blocks:
        for row in block.rows:
            assert None not in row.entries


def test_values_per_set_are_marked(tmp_path):
    outcome = outcome_of(tmp_path, "online", keep=lambda run: run.dataset in ("dtd", "eurosat"))
    labels = row_labels(outcome.tables[0])
    marked = [label.partition(",")[0] for label in labels if "values tuned per set on test labels" in label]
    assert marked == ["TDA", "DMN", "BoostAdapter", "DPE", "DOTA"]
    assert {"TDA", "DMN", "SoC", "Zero-shot"} < set(labels)
    plan = expand(read_experiment("online"), Workspace(output=tmp_path))
    for run in plan:
        if (run.method, run.dataset) == ("BoostAdapter", "imagenet"):
            assert not run.variant
