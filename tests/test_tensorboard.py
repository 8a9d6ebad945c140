"""What a run leaves in TensorBoard, read back from the event file."""
import numpy as np
from made_runs import make_run, simulate
from promptcal.trainers.report.load import read_run
from promptcal.trainers.report.tensorboard_figures import write_tensorboard_figures
from promptcal.trainers.runs import tensorboard as board
from promptcal.trainers.runs.progress import Progress
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData


def test_figures_of_a_finished_run_reach_its_event_files_once(tmp_path, real_pictures, caplog):
    folder = make_run(tmp_path, "OTPT", n=200)
    for _ in range(2):
        write_tensorboard_figures(folder)
    assert len(list((folder / "tensorboard").iterdir())) == 1
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "histograms": 0}).Reload()
    assert set(events.Tags()["images"]) == {"reliability/tuned", "reliability/zero_shot"}
    assert set(events.Tags()["histograms"]) == {"confidence/tuned", "confidence/zero_shot"}
    image = events.Images("reliability/tuned")[0]
    assert image.step == 200 and min(image.width, image.height) > 300
    assert events.Histograms("confidence/tuned")[0].histogram_value.num == 200
    run = read_run(folder)
    assert f"| O-TPT | {run.results['accuracy']:.2f} | {run.results['ece']:.2f} |" in board.text_table(run.results)
    broken = make_run(tmp_path, "SoC", n=20)
    (broken / "predictions.npz").write_bytes(b"PK")
    write_tensorboard_figures(broken)  # costs nothing but a warning
    assert "no figures for TensorBoard" in caplog.text


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
