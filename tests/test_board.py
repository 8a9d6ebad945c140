"""What a run leaves in TensorBoard, read back from the event file."""
import json

import numpy as np
import pytest
from made_runs import make_run, simulate
from promptcal.trainers.report.figures import board as drawings
from promptcal.trainers.report.reading import read_run
from promptcal.trainers.runs import board
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter


def test_pictures_reach_the_event_file(tmp_path):
    run = read_run(make_run(tmp_path, "OTPT", n=200))
    data = run.load_predictions()
    with SummaryWriter(str(tmp_path / "tensorboard")) as writer:
        drawings.write_pictures(writer, run.results, vars(data))
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


def test_a_run_without_mistakes_has_no_picture_of_them(tmp_path):
    folder = make_run(tmp_path, n=3, classes=3)
    results = json.loads((folder / "results.json").read_text())
    with SummaryWriter(str(tmp_path / "tensorboard")) as writer:
        columns = {"label": np.arange(3), "logits": 9.0 * np.eye(3), "zero_shot_logits": 9.0 * np.eye(3)}
        drawings.write_pictures(writer, results, columns)
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
