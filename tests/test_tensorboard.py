"""What a run leaves in TensorBoard, read back from the event file."""
import numpy as np
import pytest
from made_runs import make_run, simulate
from promptcal.trainers.report.load import read_run
from promptcal.trainers.report.tensorboard_figures import write_tensorboard_figures
from promptcal.trainers.runs import tensorboard as board
from promptcal.trainers.runs.tensorboard import Progress
from records import make
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
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
    broken = make_run(tmp_path, "SoC", n=20)
    (broken / "predictions.npz").write_bytes(b"PK")
    write_tensorboard_figures(broken)  # costs nothing but a warning
    assert "no figures for TensorBoard" in caplog.text


def test_final_metrics_settings_and_table(tmp_path):
    """In one TensorBoard run, the curves'."""
    run = read_run(make_run(tmp_path, "SoC", n=40))
    results = {**run.results, "confidence": 50.0, "zero_shot_confidence": 50.0, "seconds_per_image": 0.1,
               "flagged": 0, "skipped": [], "init_weights": ""}
    board.write_final(tmp_path / "run", make(), results)
    (folder,) = (tmp_path / "run").iterdir()
    assert all(path.is_file() for path in folder.iterdir())
    events = EventAccumulator(str(folder)).Reload()
    assert events.Scalars("final/ece")[0].value == pytest.approx(results["ece"], rel=1e-5)
    starts = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    shown = HParamsPluginData.FromString(starts).session_start_info.hparams
    assert shown["method"].string_value == "SoC" and shown["λ"].number_value == 30.0
    assert f"{results['accuracy']:.2f}" in str(events.Tensors("results/text_summary")[0].tensor_proto.string_val)


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


