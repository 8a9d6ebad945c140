"""The experiment that checks this toolbox against published figures: its rule, its reasons, its
page and its file."""
import json
import re
from dataclasses import replace
from functools import partial

import pytest
from promptcal.datasets import build_dataset
from promptcal.trainers.experiments import reproduce as commands
from promptcal.trainers.experiments.definition import read_experiment
from promptcal.trainers.experiments.outcome import write_outcome
from promptcal.trainers.experiments.plan import Workspace
from promptcal.trainers.experiments.verify import (
    AGREES,
    DIFFERS,
    FAILED,
    REASONS,
    UNPUBLISHED,
    Check,
    Verification,
    explain,
    make_checks,
)
from promptcal.trainers.report import published
from promptcal.trainers.report.grid import grid_of
from promptcal.trainers.vlm.small import card_results

from common import PROJECT, run_tool
from finished_experiments import finished_runs
from folders import names
from hosted_sets import hosted
from made_runs import cells_of, entry, make_run, measured_runs


def check(ours: float, method: str = "SoC", doubtful=(), **figures: float) -> Check:
    return Check("EuroSAT", method, method, "ece", {0: ours - 0.1, 1: ours + 0.1}, figures,
                 dict.fromkeys(doubtful, "a slip"), margin=0.5)


def test_a_cell_agrees_within_the_published_range_and_its_margin():
    assert [check(ours, cots=7.0, otpt=8.0).verdict for ours in (6.4, 6.6, 7.5, 8.4, 8.6)] == [
        DIFFERS, AGREES, AGREES, AGREES, DIFFERS]
    assert check(8.6, cots=7.0, otpt=8.0).difference == pytest.approx(0.6)
    # A figure with a known slip neither widens the range nor counts as published.
    assert check(8.4, cots=7.0, otpt=8.0, doubtful=["otpt"]).verdict == DIFFERS
    assert check(8.0, otpt=8.0, doubtful=["otpt"]).verdict == UNPUBLISHED
    assert check(8.0).verdict == UNPUBLISHED


def test_reasons_follow_from_what_agrees_and_what_differs():
    zero = check(7.0, method="ZeroShot", cots=7.1)
    assert explain(check(7.3, cots=7.1), zero) == []  # it agrees
    # the source has not moved
    assert explain(check(12.0, cots=7.1), zero) == ["loss scaler", "precision"]
    assert explain(check(12.0, cots=10.5), zero) == ["AugMix"]
    # within twice the margin
    assert explain(check(11.3, cots=10.5), zero) == ["AugMix", "precision"]
    other = check(9.0, method="ZeroShot", cots=7.1)
    assert explain(other, other) == ["templates"]
    assert explain(check(12.0, cots=10.0), other) == ["templates"]  # off by as much as zero-shot
    # off in the other direction: moved less
    assert explain(check(8.0, cots=10.0), other) == ["AugMix"]
    assert explain(replace(check(12.0, cots=7.1), fewer_images=True), zero) == ["images"]
    assert set(REASONS) == {"images", "templates", "AugMix", "loss scaler", "precision"}


def test_published_cells_of_every_source_and_the_margin(tmp_path):
    verification = finished_runs(tmp_path, "verify", keep=lambda run: run.dataset in ("dtd", "eurosat")).verification
    checks = {(c.dataset, c.trainer, c.metric): c for c in verification.checks}
    assert len(checks) == 2 * 5 * 2
    cell = checks["DTD", "OTPT", "ece"]
    assert cell.published == {"cots": 7.66, "otpt_readme": 7.88} and len(cell.by_seed) == 3
    # twice Table 6's largest deviation, 0.42
    assert cell.allowed == pytest.approx((7.66 - 0.84, 7.88 + 0.84))
    assert checks["EuroSAT", "SoC", "accuracy"].published == {"cots": 42.04}
    slip = checks["EuroSAT", "TPT", "ece"]
    assert slip.published["otpt_readme"] == 13.2 and slip.counted == {"cots": 20.15}
    (table,) = verification.tables()
    assert table.columns == [
        "ours", "Liang et al. (2026)", "Sharifdeen et al. (2025)", "allowed", "verdict",
        "may explain it",
    ]
    assert entry(table, "EuroSAT: ECE", "TPT", "Sharifdeen et al. (2025)").text == "13.20†"
    assert entry(table, "EuroSAT: ECE", "TPT", "verdict").text.startswith("differs by ")
    assert entry(table, "EuroSAT: ECE", "TPT", "may explain it").text == "images"  # 120 of 8,100
    assert any("does not count: equal to C-TPT's" in note for note in table.notes)


def test_other_settings_corruptions_and_prompts_are_cells_of_their_own(tmp_path):
    """λ 1, λ 60 and fog of one method on one data set: four cells, and published figures beside the
    default alone."""
    sets = {"plain": {}, "low": {"settings": {"TRAINER.SOC.LAMBDA": 1.0}},
            "high": {"settings": {"TRAINER.SOC.LAMBDA": 60.0}},
            "fog": {"images": "fog", "changes": {"data.corruption": "fog", "data.severity": 5}}}
    for name, given in sets.items():
        make_run(tmp_path, "SoC", "EuroSAT", backbone="ViT-B/16", folder=name, **given)
    checks = make_checks(grid_of(measured_runs(tmp_path).test, "ViT-B/16", ""), ["ece"], is_demo=False)
    assert sorted((check.method, check.dataset) for check in checks) == [
        ("SoC", "EuroSAT"), ("SoC", "EuroSAT fog 5"), ("SoC, λ 1", "EuroSAT"), ("SoC, λ 60", "EuroSAT"),
    ]
    for check in checks:
        assert bool(check.published) == ((check.method, check.dataset) == ("SoC", "EuroSAT"))


def verification_of(tmp_path) -> Verification:
    """Of all runs below tmp_path/runs."""
    runs = measured_runs(tmp_path / "runs").test
    return Verification(read_experiment("verify"), runs, is_demo=False)


def test_backbones_have_cells_of_their_own(tmp_path):
    for backbone in ("ViT-B/16", "ViT-L/14"):
        for trainer in ("ZeroShot", "TPT"):
            make_run(tmp_path / "runs", trainer, "EuroSAT", backbone=backbone)
    table = verification_of(tmp_path).tables()[-1]
    assert len(table.blocks) == 4
    for block in table.blocks:
        assert block.label.startswith(("ViT-B/16, EuroSAT: ", "ViT-L/14, EuroSAT: "))
        assert [row.label for row in block.rows] == ["Zero-shot", "TPT"]


def test_a_cell_whose_images_fell_back_to_zero_shot_is_not_judged(tmp_path):
    make_run(tmp_path / "runs", "TPT", "EuroSAT", backbone="ViT-B/16", flagged=400)
    make_run(tmp_path / "runs", "CTPT", "EuroSAT", backbone="ViT-B/16")
    verification = verification_of(tmp_path)
    assert {(check.trainer, check.verdict == FAILED) for check in verification.checks} == {
        ("TPT", True), ("CTPT", False)}
    assert verification.summary().endswith(" 2 are not judged, because too many images failed.")
    assert "TPT on EuroSAT 400 of 400" in "\n".join(verification.tables()[-1].notes)


def test_doubtful_cells_are_printed_as_they_are_listed():
    for source, about in published.content()["sources"].items():
        for item in about.get("doubtful", ()):
            cell = published.find_for_run(item["metric"], item["method"], item["column"], "ViT-B/16", source=source)
            assert cell and item["why"]


def test_the_file_has_versions_and_hardware_and_no_paths(tmp_path):
    finished = finished_runs(tmp_path, "verify", keep=lambda run: run.dataset == "dtd")
    outcome = write_outcome(finished.experiment, finished.workspace, finished.plan, {}, {})
    text = (outcome.page.parent / "verify.json").read_text(encoding="utf-8")
    record = json.loads(text)
    assert str(tmp_path) not in text and record["backbone"] == ["ViT-B/16"] and not record["demo"]
    assert record["computed_with"][0]["runs"] == 15
    assert record["computed_with"][0]["versions"] == {"promptcal": "1.1.0"}
    assert record["data"]["DescribableTextures"]["n"] == 120 and len(record["cells"]) == 10
    assert {cell["verdict"] for cell in record["cells"]} <= {AGREES, DIFFERS, UNPUBLISHED}
    assert finished.verification.verdict().sentence == record["summary"]
    page = outcome.page.read_text(encoding="utf-8")
    assert f'<p class="verdict">{record["summary"]}</p>' in page and "verify.json" in page


def test_the_card_is_the_reference_of_the_demo(tmp_path):
    card = card_results("LandCover")
    assert card["TPT"] == {"accuracy": 62.1, "ece": 8.5} and len(card) == 5
    assert card_results("LandCoverShift")["SoC"]["ece"] == 9.1 and card_results("UCF101") == {}
    workspace = Workspace(output=tmp_path, demo=True)
    finished = finished_runs(tmp_path, "verify", workspace)
    assert {run.cfg.TEST.LIMIT for run in finished.plan} == {960}
    (table,) = finished.verification.tables()
    assert entry(table, "LandCover: Accuracy", "C-TPT", "card").text == "60.00"
    other = Verification(finished.experiment, finished.runs, is_demo=False)
    assert {c.verdict for c in other.checks} == {UNPUBLISHED}  # nobody published LandCover


def test_the_demo_ends_in_a_verdict_per_cell(tmp_path):
    done = run_tool("reproduce.py", "verify", "--demo", "--limit", 2, "--only", "ZeroShot", "--output-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Of 2 cells \(method, data set, metric\) \d agree", done.stdout)
    record = json.loads((tmp_path / "demo/experiments/verify/verify.json").read_text(encoding="utf-8"))
    assert record["demo"]
    assert record["computed_with"][0]["versions"]["torch"] and record["computed_with"][0]["device"]


def test_missing_data_is_downloaded_below_the_root(tmp_path, monkeypatch):
    """From a host that serves a small DTD; the other data sets are not touched."""
    cls, archives = hosted("DescribableTextures", tmp_path, monkeypatch)
    monkeypatch.setattr(commands, "download_dataset", partial(commands.download_dataset, mirror=str(archives)))
    root = tmp_path / "data"
    commands.download_missing(read_experiment("verify"), Workspace(str(root), tmp_path / "out"), ["dtd"])
    assert len(build_dataset("DescribableTextures", root).test)
    assert names(root) == [cls.folder]
    assert run_tool("reproduce.py", "verify").stderr.strip().endswith("give the folder with --root")


def test_the_readme_says_that_no_real_run_was_made_until_one_is_committed():
    committed = (PROJECT / "configs" / "experiments" / "verify.json").is_file()
    for name in ("README.md", "trainers/README.md"):
        text = (PROJECT / name).read_text(encoding="utf-8")
        assert ("No run with real CLIP weights" in text) != committed, name


@pytest.mark.parametrize("seeds", [(1,), (1, 2)])
def test_plus_minus_is_explained_where_a_cell_has_it(tmp_path, seeds):
    finished = finished_runs(tmp_path, "verify", keep=lambda run: run.dataset == "dtd" and run.seed in seeds)
    table = finished.verification.tables()[-1]
    assert ("± " in "".join(cell.spread for cell in cells_of(table))) == (len(seeds) > 1)
    assert ("±: standard deviation over seeds." in " ".join(table.notes)) == (len(seeds) > 1)
