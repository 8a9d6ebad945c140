"""What a run leaves in TensorBoard, read back from the event files, and the names it has there."""
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from promptcal.tools import tensorboard_runs
from promptcal.trainers.config.settings import event_folders
from promptcal.trainers.report.tensorboard_figures import write_tensorboard_figures
from promptcal.trainers.runs.tensorboard import (
    ACCURACY,
    CONFIDENCE,
    ECE,
    HPARAMS_COLUMNS,
    HPARAMS_METRICS,
    OVER_CONFIDENCE,
    Progress,
    hparams_values,
    write_final,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer import event_file_writer

from browser import launched
from common import run_tool
from folders import names, results_of
from made_runs import make_run, simulate
from records import make

FEW_VIEWS = ("TTA.VIEWS", 8, "TTA.SELECT", 0.25)


def events_of(folder: Path) -> EventAccumulator:
    everything = {"images": 0, "histograms": 0, "scalars": 0}
    return EventAccumulator(str(folder), size_guidance=everything).Reload()


def hparams_of(events: EventAccumulator, tag: str) -> HParamsPluginData:
    metadata = events.summary_metadata[f"_hparams_/{tag}"]
    return HParamsPluginData.FromString(metadata.plugin_data.content)


def test_curves_of_tuned_and_zero_shot_overlay(train, tmp_path, real_pictures):
    """Two event folders with curves of the same names, the last points those of results.json."""
    assert train("SoC", *FEW_VIEWS, "TTA.EPISODES", 2).returncode == 0
    results = results_of(tmp_path / "run")
    board = tmp_path / "run" / "tensorboard"
    assert names(board) == ["tuned", "zero-shot"]
    shared = {
        ACCURACY: "accuracy",
        ECE: "ece",
        CONFIDENCE: "confidence",
        OVER_CONFIDENCE: "over_confidence",
    }
    for name, prefix in (("tuned", ""), ("zero-shot", "zero_shot_")):
        events = events_of(board / name)
        for tag, key in shared.items():
            points = events.Scalars(tag)
            assert [point.step for point in points] == [2, 4, 6, 8, 10, 12]
            assert points[-1].value == pytest.approx(results[prefix + key], abs=1e-4)
        assert not events.Tags()["histograms"]
    tuned = events_of(board / "tuned")
    others = {"episode/loss", "episode/penalty", "episode/seconds per image"}
    assert set(tuned.Tags()["scalars"]) == {*shared, *others}
    for tag in tuned.Tags()["scalars"]:
        assert len(tuned.Scalars(tag)) > 1  # no chart has a single point
    assert set(events_of(board / "zero-shot").Tags()["scalars"]) == set(shared)
    assert tuned.Tags()["images"] == ["reliability"]
    assert "results/text_summary" in tuned.Tags()["tensors"]


def test_other_bins_have_a_curve_of_their_own(train, tmp_path, monkeypatch):
    """The first run's curve keeps its bins; the table and the log are those of results.json."""
    # Event files of one second are read in the order of their names, in which 10 is before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))
    options = (*FEW_VIEWS, "TTA.EPISODES", 2)
    assert train("SoC", *options).returncode == 0
    before = json.loads((tmp_path / "run" / "results.json").read_text())
    time.sleep(1)  # event files are read in the order of their seconds
    assert train("SoC", *options, "TEST.BINS", 5).returncode == 0
    after = json.loads((tmp_path / "run" / "results.json").read_text())
    for name, key in (("tuned", "ece"), ("zero-shot", "zero_shot_ece")):
        events = events_of(tmp_path / "run" / "tensorboard" / name)
        assert events.Scalars(ECE)[-1].value == pytest.approx(before[key], abs=1e-4)
        (point,) = events.Scalars(f"{ECE}, 5 bins")
        assert point.value == pytest.approx(after[key], abs=1e-4) and point.step == after["n"]
    tuned = events_of(tmp_path / "run" / "tensorboard" / "tuned")
    table = tuned.Tensors("results/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "5 bins" in table
    assert f"* ece: {after['ece']:.2f}%" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(("changes", "expected"), [
    ([{}, {"data.corruption": "gaussian_noise", "data.severity": 3},
      {"data.corruption": "gaussian_noise", "data.severity": 5}, {"data.subset": "48 of 960 images"},
      {"numerics.precision": "bf16"}],
     ["SoC, fp32, UCF101", "SoC, fp32, UCF101 gaussian noise 3", "SoC, fp32, UCF101 gaussian noise 5",
      "SoC, fp32, UCF101, 48 of 960 images", "SoC, bf16, UCF101"]),
    # Two data sets of one name, other class names, and other code, which has no influence on zero-shot.
    ([{}, {"data.images": "other", "data.listing": "other"}, {"data.classes": "8:other"}, {"numerics.engine": 9}],
     [..., "SoC, images other", "SoC, class names 8:other", "SoC, engine 9",
      ..., "Zero-shot, images other", "Zero-shot, class names 8:other"]),
], ids=["settings", "no setting"])
def test_names_state_what_differs(tmp_path, changes, expected):
    folders = []
    for number, change in enumerate(changes):
        folders.append(make_run(tmp_path, "SoC", changes=change, folder=str(number)))
    names = list(tensorboard_runs.named_event_folders(folders))
    if ... in expected:
        assert len(names) == len(expected)
    for name, wanted in zip(names, expected, strict=False):
        assert wanted in (name, ...)


@pytest.mark.parametrize(("method", "name"), [
    ("a\0b/\x1b", "a?b-?"), ("..", "run"), ("λ" * 300, "λ" * 120),
])
def test_names_of_foreign_runs_are_names_of_files(tmp_path, method, name):
    folder = make_run(tmp_path, "SoC", changes={"names.method": method})
    assert next(iter(tensorboard_runs.named_event_folders([folder]))) == name


def test_zero_shot_has_one_folder(train, tmp_path):
    assert train("ZeroShot").returncode == 0
    assert names(tmp_path / "run" / "tensorboard") == ["zero-shot"]
    events = events_of(tmp_path / "run" / "tensorboard" / "zero-shot")
    assert events.Tags()["images"] == ["reliability"]
    assert "_hparams_/experiment" in events.summary_metadata


def test_the_figure_is_drawn_once(tmp_path, real_pictures, caplog):
    folder = make_run(tmp_path, "OTPT", n=200)
    for _ in range(2):
        write_tensorboard_figures(folder)
    assert len(list((folder / "tensorboard" / "tuned").iterdir())) == 1
    image = events_of(folder / "tensorboard" / "tuned").Images("reliability")[0]
    assert image.step == 200 and image.width > 1.3 * image.height > 400  # two diagrams side by side
    broken = make_run(tmp_path, "SoC", n=20)
    (broken / "predictions.npz").write_bytes(b"PK")
    write_tensorboard_figures(broken)  # costs nothing but a warning
    assert "no figures for TensorBoard" in caplog.text


def test_hparams_have_seven_settings_and_three_metrics_in_order(tmp_path):
    results = {
        "trainer": "SoC", "dataset": "UCF101", "backbone": "ViT-L/14", "seed": 3, "n": 40,
        "split": "test", "classes": 8, "bins": 20, "flagged": 0, "skipped": [], "init_weights": "",
    }
    for prefix in ("", "zero_shot_"):
        for key in ("accuracy", "ece", "ace", "confidence", "over_confidence"):
            results[prefix + key] = 50.0
    write_final(tmp_path, make(), results)
    events = events_of(tmp_path / "tensorboard" / "tuned")
    experiment = hparams_of(events, "experiment").experiment
    names = sorted((info.name, info.display_name) for info in experiment.hparam_infos)
    titles = [title for _, title in names]
    assert titles == ["method", "data set", "backbone", "prompt", "λ", "steps", "seed"]
    metrics = [(info.name.tag, info.display_name) for info in experiment.metric_infos]
    assert metrics == [(ACCURACY, "accuracy"), (ECE, "ECE"), (OVER_CONFIDENCE, "over-confidence")]
    values = hparams_of(events, "session_start_info").session_start_info.hparams
    assert set(values) == {name for name, _ in names}
    assert values["1 method"].string_value == "SoC" and values["5 λ"].number_value == 30.0
    record = make(**{"data.corruption": "fog", "data.severity": 3, "data.split": "val"})
    assert hparams_values(record)["data set"] == "UCF101 fog 3, val"


def test_a_small_set_has_a_curve(tmp_path):
    label, logits, zero_shot_logits = simulate(n=52)
    with Progress("SoC", 52, 20, event_folders(tmp_path, "SoC"), shown=True) as progress:
        for start in range(0, 48, 4):
            part = slice(start, start + 4)
            progress.advance({
                "label": label[part],
                "logits": logits[part],
                "zero_shot_logits": zero_shot_logits[part],
                "bad_index": np.empty(0),
                "seconds": np.ones(1),
            })
        # The end of the part: no second point.
        progress.log({"label": label, "logits": logits, "seconds": np.ones(12)})
    for folder in ("tuned", "zero-shot"):
        events = events_of(tmp_path / "tensorboard" / folder)
        assert [scalar.step for scalar in events.Scalars(ECE)] == list(range(4, 49, 4))


def test_names_begin_with_what_differs(train, tmp_path):
    """Zero-shot curves that are the same are shown once: those of ZeroShot's run if there is
    one."""
    runs = tmp_path / "runs"

    def run(trainer: str, folder: Path, *options: object) -> None:
        assert train(trainer, "--output-dir", folder, *FEW_VIEWS, *options).returncode == 0

    for trainer in ("TPT", "SoC"):
        for seed in (1, 2):
            run(trainer, runs / f"{trainer}{seed}", "--seed", seed)
    swept = runs / "swept"
    run("SoC", swept, "--seed", 1, "TRAINER.SOC.LAMBDA", 5)

    def shown(*folders: Path) -> dict[str, Path]:
        return tensorboard_runs.named_event_folders(tensorboard_runs.find_runs(folders))

    names = shown(runs)
    tuned = {"SoC, seed 1", "SoC, seed 2", "SoC, λ 5, seed 1", "TPT, seed 1", "TPT, seed 2"}
    assert set(names) == {*tuned, "Zero-shot"}
    assert names["SoC, λ 5, seed 1"] == swept.resolve() / "tensorboard" / "tuned"
    assert names["Zero-shot"].is_dir() and names["Zero-shot"].name == "zero-shot"
    assert set(shown(swept)) == {"SoC", "Zero-shot"}

    run("SoC", runs / "limited", "TEST.LIMIT", 8)
    assert {"Zero-shot", "Zero-shot, 8 of 12 images"} < set(shown(runs))
    assert "SoC, 8 of 12 images, seed 0" in shown(runs)

    run("ZeroShot", tmp_path / "zero")
    names = shown(swept, tmp_path / "zero")
    assert len(names) == 2 and names["Zero-shot, seed 0"].is_relative_to(tmp_path / "zero")


@pytest.mark.posix
def test_tensorboard_is_started_on_the_names(train, tmp_path, monkeypatch):
    assert train("SoC", *FEW_VIEWS).returncode == 0
    visible = {}

    def start(command: list[str]) -> SimpleNamespace:
        links = Path(command[command.index("--logdir") + 1])
        for link in links.iterdir():
            visible[link.name] = link.resolve()
        assert command[:3] == [sys.executable, "-m", "tensorboard.main"] and "6100" in command
        return SimpleNamespace(wait=lambda: 0, poll=lambda: 0)

    monkeypatch.setattr(subprocess, "Popen", start)
    done = run_tool("tensorboard_runs.py", tmp_path / "run", "--port", 6100)
    assert done.returncode == 0, done.stderr
    assert "1 run; the page is http://localhost:6100/?smoothing=0" in done.stdout
    events = (tmp_path / "run" / "tensorboard").resolve()
    assert visible == {"SoC": events / "tuned", "Zero-shot": events / "zero-shot"}
    done = run_tool("tensorboard_runs.py", tmp_path / "nowhere")
    assert done.returncode == 2 and "is not a folder" in done.stderr


@pytest.mark.slow
def test_the_page_in_a_browser(train, tmp_path):
    """Runs by their names, charts in order, no smoothing, and only the asked columns in HPARAMS."""
    for trainer in ("TPT", "SoC"):
        done = train(trainer, *FEW_VIEWS, "--output-dir", tmp_path / "runs" / trainer)
        assert done.returncode == 0, done.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with launched() as browser:
        process = subprocess.Popen(
            [sys.executable, tensorboard_runs.__file__, str(tmp_path / "runs"), "--port", port],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            lines = iter(process.stdout.readline, "")
            address = next(line for line in lines if "the page is" in line).split()[-1]
            assert any("Press CTRL+C" in line for line in lines)
            page = browser.new_page(viewport={"width": 2400, "height": 900})
            page.goto(address)
            page.get_by_text("calibration/4 over-confidence").wait_for(timeout=60_000)
            charts = [chart.inner_text() for chart in page.get_by_text("calibration/").all()]
            tags = [ACCURACY, ECE, CONFIDENCE, OVER_CONFIDENCE]
            assert charts == [tag.replace("/", "\n/") for tag in tags]
            runs = page.locator("tb-data-table").first.inner_text().split("\n")
            assert {"SoC", "TPT", "Zero-shot"} <= set(runs)
            smoothing = page.locator("input[type=number]").first
            assert smoothing.input_value() == "0"

            page.goto(f"http://localhost:{port}/#hparams")
            page.get_by_text("Trial ID", exact=True).wait_for(timeout=60_000)
            settings = page.locator(".hparam-checkbox").all_inner_texts()
            metrics = page.locator(".metric-checkbox").all_inner_texts()
            assert settings == list(HPARAMS_COLUMNS) and metrics == list(HPARAMS_METRICS.values())
        finally:
            process.terminate()
            process.wait(timeout=30)
