"""Runs that are passed on: what a copy holds, and that the report reads it beside other runs."""
from __future__ import annotations

import getpass
import json
import platform
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from promptcal.trainers.report.core import measure
from promptcal.trainers.report.export import export_runs, find_path
from promptcal.trainers.report.layout import default_layout
from promptcal.trainers.report.load import find_runs
from safetensors.torch import save_file

from common import Done, run_tool
from dassl_files import random_prompt
from made_runs import make_run

FEW_VIEWS = ("TTA.VIEWS", 8, "TTA.SELECT", 0.25)
OF_TOP_CLASS = {"accuracy", "balanced_accuracy", "macro_f1", "ece", "rms_calibration_error",
                "signed_error", "selective_accuracy", "share_above",
                "risk", "auroc", "aurc", "smooth_ece", "ace", "mce"}


@pytest.fixture
def runs(train, tmp_path: Path) -> Path:
    """Three methods on the same images; C-TPT starts from a prompt of a file."""
    prompt = tmp_path / "secret-place" / "prompt.safetensors"
    prompt.parent.mkdir()
    save_file({"ctx": random_prompt()}, prompt)
    for name, *args in (("TPT",), ("SoC",), ("CTPT", "MODEL.INIT_WEIGHTS", prompt)):
        done: Done = train(name, *args, *FEW_VIEWS, "--output-dir", tmp_path / "output" / name)
        assert done.returncode == 0, done.stderr
    return tmp_path / "output"


def measured(*paths: Path) -> dict[str, dict[str, float]]:
    """The metrics of each run by its method."""
    runs, notes = find_runs(paths)
    assert not notes
    values = {}
    for measured_run in measure(runs, default_layout()).test:
        metrics = {}
        for name, metric in measured_run.metrics.items():
            metrics[name] = float(metric.value)
        values[measured_run.run.trainer] = metrics
    return values


def test_a_copy_holds_no_paths_names_or_pictures(runs, tmp_path):
    done = run_tool("export.py", runs, "--out", tmp_path / "copies")
    assert done.returncode == 0 and "3 runs in" in done.stdout, done.stderr
    names = ["predictions.npz", "record.json", "results.json"]
    files = sorted((tmp_path / "copies").rglob("*.[jn]*"))
    assert [path.name for path in files] == names * 3
    private = [str(tmp_path), "secret-place", "kind_a/0.png", ".png", platform.node()]
    if getpass.getuser() != "root":  # a word that other texts may hold
        private.append(getpass.getuser())
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                content = b"".join(map(archive.read, archive.namelist()))
        for text in private:
            assert text.encode() not in content, (path, text)
            assert text.encode("utf-32-le") not in content, (path, text)  # as numpy stores text
    columns = np.load(files[0].with_name("predictions.npz"))
    assert {"index", "label", "image", "cluster", "confidence", "prediction"} < set(columns.files)
    assert not {"logits", "zero_shot_logits", "text", "filename"} & set(columns.files)


def test_the_report_reads_copies(runs, tmp_path):
    export_runs([runs], tmp_path / "copies")
    export_runs([runs], tmp_path / "with_logits", with_logits=True)
    expected = measured(runs)
    for method, metrics in measured(tmp_path / "copies").items():
        assert set(metrics) == {*OF_TOP_CLASS, "seconds"} & set(expected[method])
        for name, value in metrics.items():
            assert value == pytest.approx(expected[method][name], nan_ok=True), name
    assert measured(tmp_path / "with_logits") == expected

    done = run_tool("report.py", tmp_path / "copies", "--out", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    assert "figure is left out" not in done.stdout + done.stderr  # SaLS needs logits
    assert "3 runs exported without logits: metrics that need them are –" in done.stdout


def test_copies_pair_with_other_runs_by_image(tmp_path):
    """TPT of another lab and our SoC, image by image; a run and its copy count once."""
    ours = tmp_path / "ours"
    theirs = make_run(ours, "TPT", n=800)
    soc = make_run(ours, "SoC", n=800)
    export_runs([theirs], tmp_path / "theirs")
    outputs = []
    copies = tmp_path / "theirs"
    for number, paths in enumerate(([ours], [soc, copies], [ours, copies])):
        done = run_tool("report.py", *paths, "--out", tmp_path / f"report{number}", "--no-figures")
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    alone, mixed, both = outputs
    pairs = re.findall("^.*SoC is better calibrated than TPT.*$", alone, re.MULTILINE)
    assert pairs
    for line in pairs:
        assert line in mixed  # the same comparison, image by image
    brier_row = re.search("^  TPT .*$", mixed[mixed.index("Brier"):], re.MULTILINE)[0]
    assert brier_row.split() == ["TPT", "–", "–"]
    assert "is the same run as" in both
    rows = re.compile("^ *TPT .*$", re.MULTILINE)
    assert rows.findall(alone) == rows.findall(both) != []


def test_what_cannot_be_exported(runs, tmp_path):
    copies = tmp_path / "copies"
    assert run_tool("export.py", runs, "--out", copies).returncode == 0
    done = run_tool("export.py", runs, "--out", copies)
    assert done.returncode == 2 and "holds a run already: choose another --out" in done.stderr
    done = run_tool("export.py", copies, "--out", tmp_path / "again", "--logits")
    assert done.returncode == 2 and "was exported without logits" in done.stderr
    assert run_tool("export.py", copies, "--out", tmp_path / "again").returncode == 0
    assert measured(tmp_path / "again") == measured(copies)
    (tmp_path / "empty").mkdir()
    done = run_tool("export.py", tmp_path / "empty", "--out", tmp_path / "none")
    assert done.returncode == 2 and "no finished run" in done.stderr


@pytest.mark.parametrize(("content", "place"), [
    ({"names": {"dataset": "/home/anna/photos"}}, "names.dataset: /home/anna/photos"),
    ({"a": [{"b": "see C:\\Users\\anna"}]}, "a.b: see C:\\Users\\anna"),
    ({"names": {"backbone": "ViT-B/16"}, "tag": "and/or", "n": 3}, ""),
])
def test_paths_are_found(content, place):
    assert find_path(content) == place
    assert json.loads(json.dumps(content)) == content
