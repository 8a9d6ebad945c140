"""What a report reads and recomputes of finished runs."""
import json

import numpy as np
import pytest
from made_runs import make_run
from promptcal.datasets.utils.errors import DataError
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.report import render
from promptcal.trainers.report.measure import measure
from promptcal.trainers.report.reading import find_runs, read_run
from promptcal.trainers.report.write import write_report


def test_only_complete_runs_are_found(tmp_path):
    make_run(tmp_path, folder="done")
    half = make_run(tmp_path, folder="half")
    (half / "results.json").write_text('{"trainer": "So', encoding="utf-8")
    unfinished = make_run(tmp_path, folder="unfinished")
    results = json.loads((unfinished / "results.json").read_text())
    (unfinished / "results.json").write_text(json.dumps({**results, "complete": False}))
    lacking = make_run(tmp_path, folder="lacking")
    (lacking / "results.json").write_text(json.dumps({key: results[key] for key in ("trainer", "n")}))
    (tmp_path / "begun").mkdir()
    runs, notes = find_runs([tmp_path, tmp_path / "done"])
    assert [run.folder.name for run in runs] == ["done"]
    assert len(notes) == 3
    assert any("not valid JSON" in note for note in notes)
    assert any("lacks dataset" in note for note in notes)


def test_a_missing_path_is_an_error(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        find_runs([tmp_path / "nowhere"])


@pytest.mark.parametrize("damage", ["missing", "no archive", "other shape", "other names"])
def test_damaged_predictions_are_an_error(tmp_path, damage):
    run = read_run(make_run(tmp_path))
    path = run.folder / "predictions.npz"
    if damage == "missing":
        path.unlink()
    elif damage == "no archive":
        path.write_bytes(b"PK half of it")
    elif damage == "other names":
        np.savez(path, a=np.zeros(3))
    else:
        arrays = dict(np.load(path))
        np.savez(path, **{**arrays, "logits": arrays["logits"][:10]})
    with pytest.raises(DataError, match=r"predictions\.npz"):
        run.load_predictions()


def test_figures_are_recomputed_from_predictions_with_any_bins(tmp_path):
    run = read_run(make_run(tmp_path, "OTPT", bins=20))
    measured = measure(run, bins=20)
    assert 100 * measured.metrics["ece"].value == pytest.approx(run.results["ece"])
    assert 100 * measured.zero_shot_metrics["accuracy"].value == pytest.approx(run.results["zero_shot_accuracy"])
    data = run.load_predictions()
    outcome = cal.top_class(data.logits, data.label)
    assert measure(run, bins=7).metrics["ece"].value == cal.ece(*outcome, bins=7)
    scaled = cal.sals(data.logits, data.zero_shot_logits)
    assert (scaled.argmax(1) == data.logits.argmax(1)).all()
    assert measured.metrics["ece_sals"].value == cal.ece(*cal.top_class(scaled, data.label))
    assert measured.metrics["ece_temperature"].value < measured.metrics["ece"].value
    assert np.isnan(measured.metrics["ece"].low)


def test_bootstrap_gives_every_metric_an_interval(tmp_path):
    measured = measure(read_run(make_run(tmp_path, n=100)), repeats=20)
    assert all(m.low <= m.value <= m.high for m in measured.metrics.values())


def test_classes_and_mistakes_by_hand(tmp_path):
    folder = make_run(tmp_path, n=4, classes=2, classnames=["cat", "dog"])
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    zero = np.array([[0.6, 0.4], [0.6, 0.4], [0.6, 0.4], [0.6, 0.4]])
    np.savez(folder / "predictions.npz", index=[3, 5, 7, 9], label=np.array([1, 1, 0, 0]), logits=np.log(p),
             zero_shot_logits=np.log(zero), flagged=np.zeros(4, bool))
    measured = measure(read_run(folder))
    first, second = measured.mistakes
    assert (first.index, first.truth, first.after[0][0]) == (3, "dog", "cat")
    assert first.after[0][1] == pytest.approx(0.9)
    assert first.before == (("cat", pytest.approx(0.6)), ("dog", pytest.approx(0.4)))
    assert (second.index, second.truth) == (9, "cat")
    dog = next(row for row in measured.classes if row.name == "dog")
    assert (dog.n, dog.accuracy, dog.zero_shot_accuracy, dog.confused_with) == (2, 0.5, 0.0, "cat")
    assert dog.gap == pytest.approx(0.85 - 0.5)


def test_temperature_is_fitted_on_the_validation_run_where_there_is_one(tmp_path):
    run = make_run(tmp_path, trainer="TPT")
    make_run(tmp_path, trainer="TPT", split="val", n=100, folder="validation", sharpness=5.0)
    make_run(tmp_path, trainer="TPT", split="val", n=100, folder="other", seed=1)
    report = write_report([tmp_path], tmp_path / "out", repeats=0, with_figures=False)
    runs = {r.folder.name: r for r in find_runs([tmp_path])[0]}
    alone, fitted = measure(read_run(run)), measure(read_run(run), validation=runs["validation"])
    assert len(alone.temperatures) == 2 and len(fitted.temperatures) == 1
    assert fitted.temperatures[0] > max(alone.temperatures)  # the validation logits are sharper
    shown = next(table for table in report.tables if "posthoc" in table.name)
    assert f"{100 * fitted.metrics['ece_temperature'].value:.1f}" in render.markdown(shown)
    assert report.tables[0].columns == ["UCF101"]  # validation runs have no column of their own
