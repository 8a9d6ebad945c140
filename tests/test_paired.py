"""Two methods on the same images: differences with intervals, McNemar's test, corrected p-values, aligned images."""
from dataclasses import replace

import numpy as np
import pytest
from made_runs import compared, entry, make_run
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.functional.significance import holm, mcnemar, paired_bootstrap
from promptcal.trainers.report.comparison import Row
from promptcal.trainers.report.metrics import METRICS, Samples
from promptcal.trainers.report.paired import RESAMPLES, pair_tests, paired_table
from promptcal.trainers.report.table_model import Entry
from promptcal.trainers.report.verdict import judge


def test_mcnemar_by_hand():
    """5 images that only the first gets right, 1 that only the second does: 2 (1 + 6) / 2⁶."""
    first = np.array([1] * 5 + [0] * 1 + [1] * 20, bool)
    second = np.array([0] * 5 + [1] * 1 + [1] * 20, bool)
    assert mcnemar(first, second) == mcnemar(second, first) == pytest.approx(14 / 64)
    assert mcnemar(first, first) == 1
    assert mcnemar(np.ones(3000), np.zeros(3000)) < 1e-300
    with pytest.raises(ValueError, match="same images"):
        mcnemar(first, second[:3])


def test_pairs_agree_with_the_formula_on_one_data_set(tmp_path):
    for trainer in ("OTPT", "SoC"):
        make_run(tmp_path, trainer, n=200)
    main, = compared(tmp_path)
    column, = main.common_columns()
    pairs = {(one.first.method, one.second.method): one for one in pair_tests(main, 100)}
    assert len(pairs) == 3  # zero-shot is made of the runs' own logits
    tops = [main.cells[Row(name), column][0].tuned for name in ("OTPT", "SoC")]
    found = pairs["OTPT", "SoC"]
    squared = [cal.squared_calibration_error(*top) for top in tops]
    assert found.squared.value == pytest.approx(squared[1] - squared[0])
    assert found.errors == pytest.approx([max(0, one) ** 0.5 for one in squared])
    assert found.accuracy.value == pytest.approx(cal.accuracy(*tops[1]) - cal.accuracy(*tops[0]))
    alone = paired_bootstrap(cal.squared_calibration_error, *tops, repeats=3 * RESAMPLES)  # the same resamples
    assert [found.squared.low, found.squared.high] == pytest.approx([alone.low, alone.high])
    table = paired_table(main, "pairs", "", list(pairs.values()))
    cell = entry(table, "Pair", "O-TPT → SoC", "Difference of squares")
    assert cell.value == pytest.approx(1e4 * found.squared.value) and cell.text == f"{cell.value:+.1f}"
    assert "corrected by Holm's method for 3 pairs" in table.notes[0]
    assert Entry(-0.04, low=-0.9, high=-0.01, signed=True).spread == "[-0.9, +0.0]"  # no minus before zero
    assert pair_tests(main, 0) == [] and paired_table(main, "pairs", "", []) is None


def test_p_values_are_corrected_over_all_pairs_and_can_be_small_enough(tmp_path, monkeypatch):
    for trainer, sharpness in (("TPT", 1.0), ("CTPT", 1.05), ("OTPT", 3.0), ("SoC", 4.0)):
        make_run(tmp_path, trainer, n=600, sharpness=sharpness)
    main, = compared(tmp_path)
    found = pair_tests(main, 1)
    monkeypatch.setattr("promptcal.trainers.report.paired.corrected", list)
    alone = pair_tests(main, 1)
    assert len(found) == 10
    for name in ("squared", "accuracy"):
        assert [getattr(one, name).p for one in found] == pytest.approx(holm([getattr(one, name).p for one in alone]))
    assert min(one.squared.p for one in found) == pytest.approx(0.01, rel=0.01)  # 200 resamples per pair
    assert {one.squared.significant for one in found} == {True, False}


def test_the_verdict_follows_the_tests_and_names_the_correction(tmp_path):
    for trainer in ("TPT", "OTPT", "SoC"):
        make_run(tmp_path, trainer, n=300)
    main, = compared(tmp_path)
    pairs = pair_tests(main, 1)

    def judged(p: float, sign: int = 1) -> str:
        lowered = {"SoC": -1, "OTPT": 0, "TPT": 1, "ZeroShot": 0}
        return judge(main, [replace(pair, squared=replace(
            pair.squared, p=p, value=sign * (lowered[pair.second.method] - lowered[pair.first.method]),
        )) for pair in pairs]).sentence

    assert judged(0.01).startswith("SoC is the best calibrated of the tuned methods: ECE ")
    assert judged(0.01).endswith("p is corrected by Holm's method for 6 pairs.")
    assert "show no difference in calibration to O-TPT with " in judged(0.06) and "p = 0.060)" in judged(0.06)
    assert "lowest ECE of the tuned methods" in judged(0.01, -1) and "but TPT is better calibrated" in judged(0.01, -1)


def test_several_sets_and_seeds_are_averaged(tmp_path):
    for trainer in ("OTPT", "SoC"):
        for dataset in ("UCF101", "EuroSAT"):
            for seed in (0, 1):
                make_run(tmp_path, trainer, dataset, seed, n=100 + 50 * (dataset == "UCF101"))
    main, = compared(tmp_path)
    found = next(one for one in pair_tests(main, 20) if one.first == Row("OTPT"))
    means = [np.mean([cal.squared_calibration_error(*m.tuned) for column in main.common_columns()
                      for m in main.cells[Row(name), column]]) for name in ("OTPT", "SoC")]
    assert found.seeds == 2 and found.squared.value == pytest.approx(means[1] - means[0])


def test_one_image_is_no_difference(tmp_path):
    """Every resample of one image that only one method gets right points the same way; the exact test does not."""
    for trainer in ("OTPT", "SoC"):
        folder = make_run(tmp_path, trainer, n=100, sharpness=1.5)
    arrays = dict(np.load(folder / "predictions.npz"))
    right = np.flatnonzero(arrays["logits"].argmax(1) == arrays["label"])[:4]
    arrays["logits"][right, arrays["label"][right]] -= 60
    np.savez(folder / "predictions.npz", **arrays)
    main, = compared(tmp_path)
    pairs = [one for one in pair_tests(main, 200) if one.first == Row("OTPT")]
    accuracy = entry(paired_table(main, "pairs", "", pairs), "Pair", "O-TPT → SoC", "Accuracy difference")
    assert accuracy.value == pytest.approx(-4) and accuracy.high < 0 and not accuracy.best
    assert pairs[0].accuracy.p >= 2 / 2**4


def test_intervals_stay_where_values_can_be():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60, 3)) * 3
    label = np.where(rng.random(60) < 0.9, logits.argmax(1), 0)
    top = cal.top_class(logits, label)
    samples = Samples(logits, np.full((60, 3), 1 / 3), label, top, top, top, 20)
    for name in ("accuracy", "rms_calibration_error", "aurc"):
        found = METRICS[name].measure(samples, 100)
        assert 0 <= found.low <= found.value <= found.high <= 1
    assert METRICS["rms_calibration_error"].measure(samples, 0).value == cal.rms_calibration_error(*top)
    for name in ("ece", "ece_sals", "ece_temperature", "smooth_ece", "ace", "mce", "classwise_ece"):
        assert np.isnan(METRICS[name].measure(samples, 100).low)  # chance adds to each of them
