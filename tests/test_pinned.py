"""Every method end to end on 24 tiles with the embedded model, pinned to recorded numbers.

The tolerance is far above rounding and far below what a wrong formula does: half of λ, another
sign, one view more.
"""
import numpy as np
import pytest
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.runs.run_dir import read_predictions

TOLERANCE = 0.05  # percent points of confidence
CONFIDENCE = {"ZeroShot": 49.051, "TPT": 65.132, "CTPT": 53.660, "OTPT": 53.470, "SoC": 52.309}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("pinned")

    def run(trainer: str, *opts: object) -> tuple[dict, dict[str, np.ndarray]]:
        folder = root / "-".join(map(str, (trainer, *opts)))
        shared = ["OUTPUT_DIR", folder, "CACHE.DIR", root / "cache", "TEST.LIMIT", 24]
        cfg = build_cfg(trainer, "landcover", opts=[*shared, "DATALOADER.NUM_WORKERS", 0, *opts])
        return build_trainer(cfg).run(), read_predictions(folder)

    run("TPT")  # fills the cache for all
    return run


@pytest.mark.parametrize("trainer", CONFIDENCE)
def test_figures_are_the_recorded_ones(run, trainer):
    results, predictions = run(trainer)
    assert predictions["label"].tolist() == list(range(24))
    assert results["confidence"] == pytest.approx(CONFIDENCE[trainer], abs=TOLERANCE)
    zero_shot = pytest.approx(CONFIDENCE["ZeroShot"], abs=TOLERANCE)
    assert results["zero_shot_confidence"] == zero_shot


@pytest.mark.parametrize(("trainer", "key", "value"), [
    ("TPT", "TTA.STEPS", 2),
    ("CTPT", "TRAINER.CTPT.LAMBDA", 25),
    ("OTPT", "TRAINER.OTPT.LAMBDA", 9),
    ("SoC", "TRAINER.SOC.LAMBDA", 15),
    ("SoC", "TRAINER.SOC.SCALE", "ratio"),
    ("SoC", "TRAINER.SOC.STATS", "flow"),
])
def test_the_tolerance_would_notice(run, trainer, key, value):
    results, _ = run(trainer, key, value)
    assert abs(results["confidence"] - CONFIDENCE[trainer]) > TOLERANCE


def test_inverse_scaling_makes_minmax_and_shift_the_same(run):
    """Huber is homogeneous of degree two: a factor on s̃ and δ cancels against |L_TPT| /
    |L_Huber|."""
    _, expected = run("SoC")
    _, shifted = run("SoC", "TRAINER.SOC.NORM", "shift")
    np.testing.assert_allclose(shifted["logits"], expected["logits"], atol=1e-3)
