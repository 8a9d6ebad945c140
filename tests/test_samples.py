"""SoC on real pictures: the six sample sets that lie beside the project, with the embedded
model."""

import numpy as np
import pytest
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.runs.run_dir import read_predictions, read_results

from data_roots import SHARED

SAMPLES = SHARED / "samples"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the real samples are not beside the project, in ../shared/samples")
@pytest.mark.parametrize(("key", "classes"), [
    ("caltech101", 100),
    ("oxford_pets", 37),
    ("oxford_flowers", 102),
    ("dtd", 10),
    ("fgvc_aircraft", 100),
    ("imagenet", 1000),
])
def test_soc_runs_on_real_pictures(key, classes, tmp_path):
    """Its accuracy is chance, since the embedded model has seen other things; what counts is that
    it runs."""
    cfg = build_cfg("SoC", f"configs/datasets/{key}.yaml", opts=[
        "DATASET.ROOT", SAMPLES, "MODEL.BACKBONE.NAME", "small", "TEST.LIMIT", 4, "TTA.VIEWS", 16,
        "DATALOADER.NUM_WORKERS", 0, "OUTPUT_DIR", tmp_path / "run"])
    results = build_trainer(cfg).run()
    assert (results["n"], results["classes"], results["flagged"]) == (4, classes, 0)
    assert read_results(tmp_path / "run")["accuracy"] == results["accuracy"]
    predictions = read_predictions(tmp_path / "run")
    for name in ("logits", "zero_shot_logits"):
        assert predictions[name].shape == (4, classes) and np.isfinite(predictions[name]).all()
    assert not np.array_equal(predictions["logits"], predictions["zero_shot_logits"])
