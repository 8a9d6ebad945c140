"""The whole chain, whatever the settings: a config runs or gets one line; the order of options is nothing."""
from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from common import make_image_folder, openai_state, random_clip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from promptcal.datasets.utils.errors import UserError
from promptcal.trainers import TRAINER_REGISTRY, build_cfg, build_trainer
from promptcal.trainers.config.fingerprint import run_path
from promptcal.trainers.runs.run_dir import RunDir
from safetensors.torch import save_file

EXAMPLES = int(os.environ.get("PROMPTCAL_CHAINS", 12))  # configs that are run; more for a longer look

# Values that work in any combination, or nearly, and some that do not.
GOOD = {
    "SEED": st.integers(0, 3), "TTA.VIEWS": st.integers(1, 12), "TTA.SELECT": st.sampled_from([0.5, 1.0]),
    "TTA.STEPS": st.integers(0, 2), "TTA.EPISODES": st.integers(1, 5), "TTA.AUGMIX": st.sampled_from(["on", "off"]),
    "TTA.JACOBIAN": st.sampled_from(["on", "off", "auto"]), "TEST.PART": st.integers(1, 5),
    "TEST.LIMIT": st.integers(0, 9), "TEST.BINS": st.integers(1, 30), "TEST.SALS": st.booleans(),
    "MODEL.PREC": st.sampled_from(["auto", "fp32", "bf16"]), "OPTIM.LR": st.sampled_from([0.005, 1.0, 1e20]),
    "PROMPT.CTX_INIT": st.sampled_from(["a photo of a", "a", "itap of a"]), "INPUT.SIZE": st.sampled_from([0, 32]),
    "DATASET.SUBSAMPLE_CLASSES": st.sampled_from(["all", "base", "new"]),
    "DATALOADER.ON_BAD_IMAGE": st.sampled_from(["error", "skip"]),
}
BAD = [{"SEED": -1}, {"TTA.VIEWS": 0}, {"TTA.SELECT": 0.001}, {"TTA.STEPS": -1}, {"TEST.PART": 0}, {"OPTIM.LR": 0.0},
       {"PROMPT.CTX_INIT": ""}, {"INPUT.SIZE": 224}, {"TEST.SPLIT": "val"}, {"TTA.VIEWS": 10**12}, {"DEVICE": "tpu"}]
options = st.builds(dict.__or__, st.fixed_dictionaries({}, optional=GOOD), st.just({}) | st.sampled_from([{}, *BAD]))
trainers = st.sampled_from(sorted(name for name in TRAINER_REGISTRY if name[0].isupper()))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("chain")
    save_file({name: tensor.contiguous() for name, tensor in openai_state(random_clip(layers=1)).items()},
              root / "tiny.safetensors")
    return make_image_folder(root / "images", images=2), root / "tiny.safetensors"


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(trainers, options)
def test_a_config_runs_or_is_refused_with_one_line(world, trainer, chosen):
    images, weights = world
    folder = Path(tempfile.mkdtemp())
    pairs = [word for pair in chosen.items() for word in pair]
    try:
        cfg = build_cfg(trainer, "configs/datasets/image_folder.yaml", opts=[
            "DATASET.ROOT", images, "MODEL.BACKBONE.NAME", weights, "OUTPUT_DIR", folder / "run", "TTA.VIEWS", 10,
            "DATALOADER.NUM_WORKERS", 0, *pairs])
        results = build_trainer(cfg).run()
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 600, error
    else:
        predictions = RunDir(folder / "run").predictions()
        assert len(predictions["index"]) == results["n"] and np.isfinite(predictions["logits"]).all()
    finally:
        shutil.rmtree(folder)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data(), trainers, options)
def test_the_order_of_options_is_nothing(data, trainer, chosen):
    """Nor whether they are given as `KEY VALUE` or `KEY=VALUE`, text or number."""
    def folder(pairs) -> tuple | str:
        try:
            cfg = build_cfg(trainer, "configs/datasets/landcover.yaml", opts=[word for pair in pairs for word in pair])
            return run_path(cfg), cfg.dump()
        except UserError as error:
            return type(error).__name__

    words = [[f"{key}={value}"] if data.draw(st.booleans()) else [key, str(value)] for key, value in chosen.items()]
    assert folder(chosen.items()) == folder(data.draw(st.permutations(words)))
