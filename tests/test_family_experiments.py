"""The experiments on the whole field: every method is in them, and one command makes the table."""
from __future__ import annotations

from pathlib import Path

import pytest
from promptcal.tools.reproduce import main
from promptcal.trainers import TRAINER_REGISTRY
from promptcal.trainers.experiments.definition import read_experiment


def test_family_holds_every_method_that_needs_no_training():
    methods = set(read_experiment("family").methods)
    assert methods == set(TRAINER_REGISTRY) - {"CoOp", "FPP"} and len(methods) >= 13
    assert {"accuracy", "ece", "ece_cots", "seconds"} <= set(read_experiment("family").metrics)


def test_combine_holds_every_pair():
    terms = read_experiment("combine").runs[0].sweep["TRAINER.REGULARISERS"]
    pairs = {tuple(part.partition(":")[0] for part in text.split(",")) for text in terms if "," in text}
    names = ("ctpt", "otpt", "atpt", "soc")
    assert pairs == {(a, b) for i, a in enumerate(names) for b in names[i + 1 :]}


@pytest.mark.slow
def test_one_command_makes_the_tables(tmp_path: Path, capsys):
    main(["family", "--demo", "--limit", "4", "--only", "ZeroShot", "TPT", "TPS", "ZERO", "TDA", "landcover",
          "--output-dir", str(tmp_path), "--set", "TTA.VIEWS", "20"])
    text = (tmp_path / "demo" / "experiments" / "family" / "tables.md").read_text(encoding="utf-8")
    head, table = text.split("\n### ")[0].split("|:--", 1)  # the first table
    for label in ("Accuracy (%)", "ECE (%)", "ECE + CoTS (%)", "Seconds an image"):
        assert label in head, label
    rows = {line.split("|")[1].strip(): line.split("|")[2:6] for line in table.splitlines() if line.startswith("| ")}
    assert set(rows) >= {"Zero-shot", "TPT", "TPS", "ZERO", "TDA"}
    assert all(cell.strip() for cell in rows["TPT"]) and not rows["TDA"][2].strip()  # it sees the plain view alone
    main(["posthoc", "--demo", "--limit", "4", "--only", "TPT", "landcover", "--output-dir", str(tmp_path),
          "--set", "TTA.VIEWS", "20"])
    posthoc = tmp_path / "demo" / "experiments" / "posthoc" / "tables.md"
    assert "ECE + E-CoTS (%)" in posthoc.read_text(encoding="utf-8")
