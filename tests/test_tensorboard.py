"""What a run leaves in TensorBoard, read back from the event file."""
import json

import numpy as np
import pytest
from made_runs import make_run, simulate
from promptcal.trainers.report.boards import link_boards
from promptcal.trainers.report.figures import run_pictures as drawings
from promptcal.trainers.report.measure import measure
from promptcal.trainers.report.reading import find_runs, read_run
from promptcal.trainers.runs import tensorboard as board
from promptcal.trainers.runs.progress import Progress
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter


def test_pictures_reach_the_event_file(tmp_path, real_pictures):
    run = read_run(make_run(tmp_path, "OTPT", n=200))
    data = run.load_predictions()
    with SummaryWriter(str(tmp_path / "tensorboard")) as writer:
        drawings.write_figures_to_tensorboard(writer, run.results, vars(data))
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"images": 0, "histograms": 0, "tensors": 0})
    events.Reload()
    assert set(events.Tags()["images"]) == {"reliability/tuned", "reliability/zero_shot", "confusion/closest_classes"}
    assert set(events.Tags()["histograms"]) == {"confidence/tuned", "confidence/zero_shot"}
    image = events.Images("reliability/tuned")[0]
    assert image.step == 200
    assert min(image.width, image.height) > 300
    assert events.Histograms("confidence/tuned")[0].histogram_value.num == 200
    assert f"| O-TPT | {run.results['accuracy']:.2f} | {run.results['ece']:.2f} |" in board.text_table(run.results)


def test_confusions_by_hand():
    logits = np.eye(4)[[0, 1, 1, 1, 2, 3]]
    label = np.array([0, 0, 0, 1, 2, 3])
    chosen, matrix = drawings.closest_confusions(logits, label)
    assert chosen == [0, 1]
    np.testing.assert_allclose(matrix, [[1 / 3, 2 / 3], [0, 1]])


def test_closeness_can_come_from_the_prompts():
    similarity = np.array([[1, 0.2, 0.3], [0.2, 1, 0.9], [0.3, 0.9, 1]])
    chosen, matrix = drawings.closest_confusions(np.eye(3), np.arange(3), similarity, most=2)
    assert chosen == [1, 2]
    np.testing.assert_array_equal(matrix, np.eye(2))


def test_no_more_classes_than_fit():
    label, logits, _ = simulate(n=500, classes=40)
    chosen, matrix = drawings.closest_confusions(logits, label)
    assert len(chosen) == len(set(chosen)) <= drawings.CLOSEST
    assert matrix.shape == (len(chosen),) * 2


def test_a_run_without_mistakes_has_no_picture_of_them(tmp_path, real_pictures):
    folder = make_run(tmp_path, n=3, classes=3)
    results = json.loads((folder / "results.json").read_text())
    with SummaryWriter(str(tmp_path / "tensorboard")) as writer:
        columns = {"label": np.arange(3), "logits": 9.0 * np.eye(3), "zero_shot_logits": 9.0 * np.eye(3)}
        drawings.write_figures_to_tensorboard(writer, results, columns)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["images"]) == {"reliability/tuned", "reliability/zero_shot"}


def test_table_names_sals_when_it_was_measured(tmp_path):
    results = read_run(make_run(tmp_path)).results
    assert "SaLS" not in board.text_table(results)
    with_sals = {**results, "sals_accuracy": 60.0, "sals_ece": 4.0, "sals_ace": 4.5}
    assert "| SoC + SaLS | 60.00 | 4.00 | 4.50 |" in board.text_table(with_sals)
    with pytest.raises(KeyError):
        board.text_table({})


def test_settings_begin_with_what_runs_are_compared_by(tmp_path):
    run = read_run(make_run(tmp_path, "SoC", n=40))
    results = {**run.results, "confidence": 50.0, "seconds_per_image": 0.1}
    board.write_final(tmp_path, run.settings, results)
    (events,) = (tmp_path / "tensorboard").glob("events.*")
    starts = [
        HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for event in EventFileLoader(str(events)).Load() for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    ]
    start = next(data.session_start_info for data in starts if data.WhichOneof("data") == "session_start_info")
    assert start.hparams["method"].string_value == "SoC"
    assert start.hparams["method λ"].number_value == run.weight
    infos = next(data.experiment for data in starts if data.WhichOneof("data") == "experiment")
    shown = sorted(infos.hparam_infos, key=lambda info: (not info.differs, info.name))  # as TensorBoard does
    assert [info.display_name for info in shown][:6] == ["method", "λ", "steps", "data set", "seed", ""]
    assert [info.name.tag for info in infos.metric_infos][:2] == ["final/accuracy", "final/ece"]


def test_a_small_set_has_a_curve(tmp_path):
    label, logits, _ = simulate(n=48)
    with Progress(tmp_path, 48, 20, "SoC", shown=True) as progress:
        for start in range(0, 48, 4):
            part = slice(start, start + 4)
            progress.advance({"label": label[part], "logits": logits[part], "bad_index": np.empty(0),
                              "seconds": np.ones(1)})
        progress.log({"label": label, "logits": logits, "seconds": np.ones(12)})  # the end of the part: no second point
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [scalar.step for scalar in events.Scalars("running/ece")] == list(range(4, 49, 4))


def test_boards_by_names_one_can_read(tmp_path):
    for weight in (10.0, 20.0):
        folder = make_run(tmp_path / "runs", "SoC", settings={"TRAINER.SOC.LAMBDA": weight}, folder=f"l{weight}", n=40)
        with SummaryWriter(str(folder / "tensorboard")) as writer:
            writer.add_scalar("running/ece", weight, 1)
    runs, _ = find_runs([tmp_path / "runs"])
    for _ in range(2):  # a second report finds the links of the first
        found = link_boards(tmp_path / "out", [measure(run) for run in runs])
    names = {path.name for path in found.iterdir() if path.is_symlink()}
    assert names == {f"SoC on UCF101, λ {weight}, 40 images, seed 0" for weight in (10, 20)}
    events = EventAccumulator(str(found / "SoC on UCF101, λ 20, 40 images, seed 0")).Reload()
    assert events.Scalars("running/ece")[0].value == 20
    assert "custom_scalars__config__" in EventAccumulator(str(found)).Reload().Tags()["tensors"]


def test_a_method_without_weight_names_it_too(tmp_path):
    """TensorBoard asks one run alone which columns there are."""
    run = read_run(make_run(tmp_path, "TPT", n=40))
    board.write_final(tmp_path, {"TTA.STEPS": 1}, {**run.results, "confidence": 50.0, "seconds_per_image": 0.1})
    (events,) = (tmp_path / "tensorboard").glob("events.*")
    contents = [value.metadata.plugin_data.content for event in EventFileLoader(str(events)).Load()
                for value in event.summary.value if value.tag == "_hparams_/experiment"]
    assert "method λ" in {info.name for info in HParamsPluginData.FromString(contents[0]).experiment.hparam_infos}
