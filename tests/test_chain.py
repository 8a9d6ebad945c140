"""Valid settings in any combination run; bad ones get one line and leave no folder; the order of
options does not matter."""
import os
import tempfile
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from promptcal.datasets.utils.errors import UserError
from promptcal.trainers import TRAINER_REGISTRY, build_cfg, build_trainer
from promptcal.trainers.config.settings import run_path
from promptcal.trainers.runs.run_dir import read_predictions

EXAMPLES = int(os.environ.get("PROMPTCAL_CHAINS", 12))  # runs; more for a longer test
ANY = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

VALID = st.fixed_dictionaries({}, optional={
    "SEED": st.integers(0, 3),
    "TTA.VIEWS": st.integers(2, 12),
    "TTA.SELECT": st.sampled_from([0.5, 1.0]),
    "TTA.STEPS": st.integers(0, 2),
    "TTA.EPISODES": st.integers(1, 5),
    "TTA.AUGMIX": st.sampled_from(["on", "off"]),
    "TTA.JACOBIAN": st.sampled_from(["on", "off", "auto"]),
    "TEST.PART": st.integers(1, 5),
    "TEST.LIMIT": st.integers(0, 9),
    "TEST.BINS": st.integers(1, 30),
    "MODEL.PREC": st.sampled_from(["auto", "fp32", "bf16"]),
    "OPTIM.LR": st.sampled_from([0.005, 1.0, 1e20]),
    "PROMPT.CTX_INIT": st.sampled_from(["a photo of a", "a", "itap of a"]),
    "INPUT.SIZE": st.sampled_from([0, 32]),
    "DATASET.SUBSAMPLE_CLASSES": st.sampled_from(["all", "base", "new"]),
    "DATALOADER.ON_BAD_IMAGE": st.sampled_from(["error", "skip"]),
})
BAD = [
    ("SEED", -1), ("TTA.VIEWS", 0), ("TTA.SELECT", 0.001), ("TTA.STEPS", -1), ("TEST.PART", 0),
    ("OPTIM.LR", 0.0), ("PROMPT.CTX_INIT", ""), ("INPUT.SIZE", 224), ("TEST.SPLIT", "val"),
    ("DEVICE", "tpu"), ("MODEL.INIT_WEIGHTS", "nowhere.pth.tar"),
    ("MODEL.BACKBONE.NAME", "nowhere.pt"),
]
TRAINERS = st.sampled_from(sorted(set(TRAINER_REGISTRY) - {"CoOp"}))  # which needs training images


@pytest.fixture
def run(clip_file, image_folder):
    def run(trainer: str, folder: Path, opts: list) -> dict:
        cfg = build_cfg(trainer, "image_folder", opts=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "TTA.VIEWS", 10,
            "TTA.SELECT", 0.5, "TRAINER.FPP.STEPS", 3, "OUTPUT_DIR", folder, *opts,
        ])
        return build_trainer(cfg).run()
    return run


@settings(ANY, max_examples=EXAMPLES)
@given(TRAINERS, VALID)
def test_valid_settings_run(run, trainer, values):
    with tempfile.TemporaryDirectory() as folder:
        results = run(trainer, Path(folder), [*chain(*values.items())])
        predictions = read_predictions(Path(folder))
    assert len(predictions["index"]) == results["n"]
    assert np.isfinite(predictions["logits"]).all()


@pytest.mark.parametrize(("key", "value"), BAD)
def test_bad_settings_get_one_line_and_leave_no_folder(run, key, value, tmp_path):
    with pytest.raises(UserError) as error:
        run("SoC", tmp_path / "run", [key, value])
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
    assert not (tmp_path / "run").exists()


@settings(ANY, max_examples=40)
@given(st.data(), TRAINERS, VALID)
def test_the_order_of_options_does_not_matter(data, trainer, values):
    """Nor whether they are given as `KEY VALUE` or `KEY=VALUE`, as text or number."""
    def build(opts: list) -> tuple[Path, str]:
        # 0.5 keeps one of two views.
        cfg = build_cfg(trainer, "landcover", opts=["TTA.SELECT", 0.5, *opts])
        return run_path(cfg), cfg.dump()

    as_typed = []
    for key, value in data.draw(st.permutations(list(values.items()))):
        if data.draw(st.booleans()):
            as_typed.append(f"{key}={value}")
        else:
            as_typed += [key, str(value)]
    assert build(as_typed) == build([*chain(*values.items())])
