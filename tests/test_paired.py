"""Two methods on the same images: differences with intervals, McNemar's test, debiased ECE, aligned images."""
import numpy as np
import pytest
from made_runs import compared, entry, make_run
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.functional.significance import mcnemar
from promptcal.trainers.report.comparison import Row
from promptcal.trainers.report.metrics import METRICS, Samples
from promptcal.trainers.report.paired import ece_difference, pair, paired_table
from promptcal.trainers.report.table_model import Entry


def calibrated(n, seed):
    """A model that is right as often as it says."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.3, 1, n)
    return confidence, rng.random(n) < confidence


def test_debiased_ece_takes_off_what_chance_adds():
    """Over many small samples of a calibrated model, whose true error is zero."""
    plain, debiased = np.mean([
        (cal.ece(*calibrated(300, seed)), cal.debiased_ece(*calibrated(300, seed))) for seed in range(100)
    ], axis=0)
    assert plain > 0.05
    assert debiased < 0.65 * plain  # to first order: a bin of one image shows no spread to take off
    confidence, correct = np.full(10_000, 0.9), np.arange(10_000) < 6000
    assert cal.debiased_ece(confidence, correct) == pytest.approx(0.3, abs=1e-6)  # what is no chance stays
    assert cal.debiased_ece([0.5], [1]) == 0.5


def test_mcnemar_by_hand():
    """5 images that only the first gets right, 1 that only the second does: 2 (1 + 6) / 2⁶."""
    first = np.array([1] * 5 + [0] * 1 + [1] * 20, bool)
    second = np.array([0] * 5 + [1] * 1 + [1] * 20, bool)
    assert mcnemar(first, second) == mcnemar(second, first) == pytest.approx(14 / 64)
    assert mcnemar(first, first) == 1
    assert mcnemar(np.ones(3000), np.zeros(3000)) < 1e-300
    with pytest.raises(ValueError, match="same images"):
        mcnemar(first, second[:3])


def test_a_centred_interval_surrounds_the_value_and_a_plain_one_does_not():
    outcome = calibrated(300, 0)
    plain, centred = (cal.bootstrap(cal.ece, *outcome, repeats=300, centred=c) for c in (False, True))
    assert plain.value - plain.low < 0.2 * (plain.high - plain.value)
    assert 0.4 < (centred.value - centred.low) / (centred.high - centred.value) < 2.5


def test_pairs_agree_with_the_formula_on_one_data_set(tmp_path):
    for trainer in ("OTPT", "SoC"):
        make_run(tmp_path, trainer, n=200)
    main, = compared(tmp_path)
    columns = main.common_columns()
    found = ece_difference(main, Row("OTPT"), Row("SoC"), columns, 100)
    tops = [main.cells[Row(name), columns[0]][0].tuned for name in ("OTPT", "SoC")]
    expected = cal.ece(tops[1].confidence, tops[1].correct) - cal.ece(tops[0].confidence, tops[0].correct)
    assert found.value == pytest.approx(expected)
    assert found.low < found.value < found.high
    table = paired_table(main, "pairs", "", 50)
    cell = entry(table, "Pair", "O-TPT → SoC", "ECE difference")
    assert cell.value == pytest.approx(100 * expected) and cell.text == f"{100 * expected:+.1f}"
    assert Entry(-0.04, low=-0.9, high=-0.01, signed=True).spread == "[-0.9, +0.0]"  # no minus before zero
    p = entry(table, "Pair", "O-TPT → SoC", "p").value
    assert p == pytest.approx(mcnemar(tops[0].correct, tops[1].correct))
    assert paired_table(main, "pairs", "", 0) is None


def test_several_sets_and_seeds_are_averaged(tmp_path):
    for trainer in ("OTPT", "SoC"):
        for dataset in ("UCF101", "EuroSAT"):
            for seed in (0, 1):
                make_run(tmp_path, trainer, dataset, seed, n=100 + 50 * (dataset == "UCF101"))
    main, = compared(tmp_path)
    shared = pair(main, Row("OTPT"), Row("SoC"), main.common_columns())
    assert shared.confidence[0].shape == (250, 2)
    means = [main.mean(Row(name), main.common_columns(), "ece") for name in ("OTPT", "SoC")]
    found = ece_difference(main, Row("OTPT"), Row("SoC"), main.common_columns(), 20)
    assert found.value == pytest.approx(means[1] - means[0])


def test_one_image_is_no_difference(tmp_path):
    """Every redraw of one image that only one method gets right points the same way; the exact test does not."""
    for trainer in ("OTPT", "SoC"):
        folder = make_run(tmp_path, trainer, n=100, sharpness=1.5)
    arrays = dict(np.load(folder / "predictions.npz"))
    right = np.flatnonzero(arrays["logits"].argmax(1) == arrays["label"])[:4]
    arrays["logits"][right, arrays["label"][right]] -= 60
    np.savez(folder / "predictions.npz", **arrays)
    main, = compared(tmp_path)
    table = paired_table(main, "pairs", "", 200)
    accuracy = entry(table, "Pair", "O-TPT → SoC", "Accuracy difference")
    assert accuracy.value == pytest.approx(-4) and accuracy.high < 0 and not accuracy.best
    assert entry(table, "Pair", "O-TPT → SoC", "p").value == pytest.approx(2 / 2**4)


def test_each_data_set_is_redrawn_on_its_own():
    """Else the sizes of the sets would vary, which they do not."""
    group = np.repeat([0, 1], (90, 10))

    def sizes(rows):
        assert (rows == group).all()
        return float(rows.mean())

    found = cal.bootstrap(sizes, group, repeats=20, group=group)
    assert found.low == found.value == found.high == pytest.approx(0.1)


def test_intervals_stay_where_values_can_be():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60, 3)) * 3
    label = np.where(rng.random(60) < 0.9, logits.argmax(1), 0)
    top = cal.top_class(logits, label)
    samples = Samples(logits, np.full((60, 3), 1 / 3), label, top, top, top, 20)
    for name in ("accuracy", "ece", "ece_debiased", "ace", "mce"):
        found = METRICS[name].measure(samples, 100)
        assert 0 <= found.low <= found.value <= found.high <= 1
