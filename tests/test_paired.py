"""Two methods on the same images: differences with intervals, corrected p-values, and the sentences
about them."""
from dataclasses import replace

import numpy as np
import pytest
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.functional.intervals import Estimate
from promptcal.trainers.functional.significance import compare_calibration, holm, shaffer
from promptcal.trainers.report.pairs import ASSUMPTIONS, Pair, PairTests, pairs_table
from promptcal.trainers.report.table import Entry, latex
from promptcal.trainers.report.verdict import judge, pair_sentence

from made_runs import compared, entry, make_run


def pair_tests(root) -> PairTests:
    return PairTests(compared(root)[0])


def pair_of(pairs, *methods: str) -> Pair:
    return next(pair for pair in pairs if {pair.first.method, pair.second.method} == set(methods))


def test_pairs_agree_with_the_formulas_on_one_data_set(tmp_path):
    for trainer in ("OTPT", "SoC"):
        make_run(tmp_path, trainer, n=200)
    tests = pair_tests(tmp_path)
    pairs = tests.all_pairs()
    assert len(pairs) == 3  # zero-shot is made of the runs' own logits
    grid = tests.grid
    column, = grid.common_columns()
    tops = {row.method: grid.cells[row, column][0].tuned for row in grid.rows}
    alone = compare_calibration([tuple(tops["OTPT"])], [tuple(tops["SoC"])])
    pair = pair_of(pairs, "OTPT", "SoC")
    assert pair.comparison == alone
    assert pair.errors == pytest.approx(
        [cal.rms_calibration_error(*tops[name]) for name in ("OTPT", "SoC")]
    )
    assert pair.over == pytest.approx([cal.signed_error(*tops[name]) for name in ("OTPT", "SoC")])
    table = pairs_table(grid, "pairs", "", pairs)
    cell = entry(table, "Pair", "O-TPT → SoC", "Difference")
    assert cell.value == pytest.approx(100 * alone.over.value)
    assert cell.low == pytest.approx(100 * alone.over.low)
    assert entry(table, "Pair", "O-TPT → SoC", "Images").text == "200"
    assert "Shaffer over 3" in table.notes[0] and ASSUMPTIONS in table.notes
    # no minus before zero
    assert Entry(-0.04, low=-0.9, high=-0.01, signed=True).spread == "[-0.9, +0.0]"
    assert pairs_table(grid, "pairs", "", []) is None
    head = latex(table).partition(r"\midrule")[0]  # short headers, explained in the caption
    assert r"& Over 1 & Over 2 & $\Delta$ over" in head and "over: over-confidence" in head
    assert all(len(column) <= 8 for column in table.short_columns)
    assert "Over-confidence, first" in table.columns


def test_families_are_corrected_each_by_its_method(tmp_path):
    for trainer, sharpness in (("TPT", 1.0), ("CTPT", 1.05), ("OTPT", 3.0), ("SoC", 4.0)):
        make_run(tmp_path, trainer, n=600, sharpness=sharpness)
    tests = pair_tests(tmp_path)
    pairs = tests.all_pairs()
    assert len(pairs) == 10
    calibration = shaffer([pair.comparison.p for pair in pairs])
    accuracy = shaffer([pair.comparison.accuracy.p for pair in pairs])
    for number, pair in enumerate(pairs):
        assert pair.p == pytest.approx(calibration[number])
        assert pair.accuracy_p == pytest.approx(accuracy[number])
    assert {pair.is_significant for pair in pairs} == {True, False}
    baseline = next(row for row in tests.rows if row.label == "O-TPT")
    against = tests.against({row: baseline for row in tests.rows if row is not baseline})
    assert len(against) == 4 and {pair.family for pair in against} == {"Holm over 4"}
    corrected = holm([pair.comparison.p for pair in against])
    assert [pair.p for pair in against] == pytest.approx(corrected)


def test_a_row_without_the_common_images_makes_the_family_holms(tmp_path):
    for trainer in ("TPT", "OTPT", "SoC"):
        make_run(tmp_path, trainer, n=120)
    make_run(tmp_path, "CTPT", n=60, images="pilot", names=[f"UCF101 test {k}" for k in range(60)])
    pairs = pair_tests(tmp_path).all_pairs()
    assert {pair.family for pair in pairs} == {f"Holm over {len(pairs)}"}
    assert pair_of(pairs, "CTPT", "SoC").comparison.images == 60
    assert pair_of(pairs, "TPT", "SoC").comparison.images == 120


def test_several_sets_and_seeds_are_one_cluster_per_image(tmp_path):
    for trainer in ("OTPT", "SoC"):
        for dataset in ("UCF101", "EuroSAT"):
            for seed in (0, 1):
                make_run(tmp_path, trainer, dataset, seed, n=100 + 50 * (dataset == "UCF101"))
    tests = pair_tests(tmp_path)
    pair = pair_of(tests.all_pairs(), "OTPT", "SoC")
    assert pair.seeds == 2 and (pair.comparison.images, pair.comparison.clusters) == (250, 250)
    grid = tests.grid
    means = []
    for name in ("OTPT", "SoC"):
        row = next(row for row in grid.rows if row.method == name)
        errors = []
        for column in grid.common_columns():
            for measured in grid.cells[row, column]:
                errors.append(cal.squared_calibration_error(*measured.tuned))
        means.append(np.mean(errors))
    assert pair.comparison.squared.value == pytest.approx(means[1] - means[0])


def test_untuned_prompts_are_paired_with_their_own_seed(tmp_path):
    """Three seeds have a prompt each, and SoC ran from all three: three seeds of both."""
    prompt = {"kind": "learnt", "protocol": "four", "position": "end"}
    for seed in (1, 2, 3):
        make_run(tmp_path, "SoC", seed=seed, changes={"model.prompt": {**prompt, "hash": f"h{seed}"}})
    pair, = pair_tests(tmp_path).all_pairs()
    assert pair.first.name == "prompt four, untuned" and pair.seeds == 3


def test_the_verdict_follows_the_tests(tmp_path):
    for trainer in ("TPT", "OTPT", "SoC"):
        make_run(tmp_path, trainer, n=300)
    tests = pair_tests(tmp_path)
    pairs = tests.all_pairs()

    def judged(p: float, winner: str = "SoC") -> str:
        changed = []
        for pair in pairs:
            better = 0
            if winner in (pair.first.method, pair.second.method):
                better = -1 if pair.second.method == winner else 1
            changed.append(replace(pair, p=p, comparison=replace(pair.comparison, p=p, better=better)))
        return judge(tests.grid, changed).sentence

    assert judged(0.01).startswith("SoC is the best calibrated of the tuned methods, with an ECE of ")
    assert "(p = 0.010, Shaffer over 6)" in judged(0.01)
    assert "no difference in calibration from O-TPT or TPT is shown" in judged(0.06)
    assert "has the lowest ECE of the tuned methods" in judged(0.01, "TPT")
    assert "but TPT is better calibrated than SoC" in judged(0.01, "TPT")


def test_sentences_for_every_outcome(tmp_path):
    for trainer in ("TPT", "SoC"):
        make_run(tmp_path, trainer, n=960)
    pair = pair_of(pair_tests(tmp_path).all_pairs(), "TPT", "SoC")
    comparison = pair.comparison
    chance = Estimate(0.01, -0.01, 0.03, 0.3)

    def said(p=0.02, over=(0.069, 0.011), accuracy_p=1.0, comparison_over=comparison.over, **changes) -> str:
        changed = replace(comparison, **{"accuracy": chance, "over": comparison_over, **changes})
        return pair_sentence(
            replace(pair, p=p, over=over, errors=(0.088, 0.023), accuracy_p=accuracy_p, comparison=changed))

    squared = comparison.squared
    assert said(better=-1, level=0.01, squared=replace(squared, p=0.01)) == (
        "SoC is better calibrated than TPT on the same 960 images (p = 0.020, Shaffer over 3): over-confident by 1.1 "
        "instead of 6.9 points; debiased RMS error 2.3 instead of 8.8\u00a0%. Accuracy +1.0 points [−1.0, +3.0] may be "
        "chance."
    )
    for changes, words in (
        ({"better": -1, "level": 0.01, "squared": replace(squared, p=0.3)}, "bin by bin no difference is shown."),
        ({"better": -1, "level": 0.3, "squared": replace(squared, p=0.01)}, "on average no difference is shown."),
        ({"better": 1}, "TPT is better calibrated than SoC"),
        ({"better": 1, "over": (-0.02, 0.05)}, "under-confident by 2.0 instead of over-confident by 5.0 points"),
        ({"better": 0, "squared": replace(squared, value=0.01, p=0.01)},
         "are calibrated differently (p = 0.020, Shaffer over 3): SoC is nearer on average, TPT bin by bin"),
        ({"better": 0, "p": 0.093, "over": (-0.025, 0.069), "comparison_over": Estimate(0.093, 0.07, 0.116, 1e-9)},
         "SoC over-confident by 6.9 (difference 9.3 [7.0, 11.6], p < 0.001); which of them is better"),
        ({"better": 0, "p": 1.0, "over": (0.05, 0.06)}, "is shown (p = 1.00, Shaffer over 3). With 960 images a "),
        ({"better": 0, "p": 1.0, "over": (0.05, 0.06), "accuracy_p": 0.02,
          "accuracy": Estimate(0.012, 0.003, 0.021, 0.01)},
         "SoC is more accurate by 1.2 points [0.3, 2.1] (p = 0.020)."),
    ):
        assert words in said(**changes)


def test_one_image_is_no_difference(tmp_path):
    for trainer in ("OTPT", "SoC"):
        make_run(tmp_path, trainer, n=1, classes=3)
    pair = pair_of(pair_tests(tmp_path).all_pairs(), "OTPT", "SoC")
    assert (pair.p, pair.accuracy_p) == (1, 1) and "One image" in pair_sentence(pair)
