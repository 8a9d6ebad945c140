"""Valid settings in any combination run; bad ones get one line and leave no folder; the order of options is nothing."""
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from promptcal.datasets.utils.errors import UserError
from promptcal.trainers import TRAINER_REGISTRY, build_cfg, build_trainer
from promptcal.trainers.config.run_folder import run_path
from promptcal.trainers.runs.run_dir import read_predictions
from safetensors.torch import save_file

from common import make_image_folder, openai_state, random_clip

EXAMPLES = int(os.environ.get("PROMPTCAL_CHAINS", 12))  # configs that are run; more for a longer test
ANY = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

VALID = st.fixed_dictionaries({}, optional={
    "SEED": st.integers(0, 3), "TTA.VIEWS": st.integers(2, 12), "TTA.SELECT": st.sampled_from([0.5, 1.0]),
    "TTA.STEPS": st.integers(0, 2), "TTA.EPISODES": st.integers(1, 5), "TTA.AUGMIX": st.sampled_from(["on", "off"]),
    "TTA.JACOBIAN": st.sampled_from(["on", "off", "auto"]), "TEST.PART": st.integers(1, 5),
    "TEST.LIMIT": st.integers(0, 9), "TEST.BINS": st.integers(1, 30),
    "MODEL.PREC": st.sampled_from(["auto", "fp32", "bf16"]), "OPTIM.LR": st.sampled_from([0.005, 1.0, 1e20]),
    "PROMPT.CTX_INIT": st.sampled_from(["a photo of a", "a", "itap of a"]), "INPUT.SIZE": st.sampled_from([0, 32]),
    "DATASET.SUBSAMPLE_CLASSES": st.sampled_from(["all", "base", "new"]),
    "DATALOADER.ON_BAD_IMAGE": st.sampled_from(["error", "skip"]),
})
BAD = [{"SEED": -1}, {"TTA.VIEWS": 0}, {"TTA.SELECT": 0.001}, {"TTA.STEPS": -1}, {"TEST.PART": 0}, {"OPTIM.LR": 0.0},
       {"PROMPT.CTX_INIT": ""}, {"INPUT.SIZE": 224}, {"TEST.SPLIT": "val"}, {"DEVICE": "tpu"},
       {"MODEL.INIT_WEIGHTS": "nowhere.pth.tar"}, {"MODEL.BACKBONE.NAME": "nowhere.pt"}]
TRAINERS = sorted(name for name in TRAINER_REGISTRY if name != "CoOp")  # which needs training images


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> list[object]:
    """Settings that name images and weights."""
    root = tmp_path_factory.mktemp("chain")
    save_file({name: tensor.contiguous() for name, tensor in openai_state(random_clip(layers=1)).items()},
              root / "tiny.safetensors")
    return ["DATASET.ROOT", make_image_folder(root / "images", images=2), "MODEL.BACKBONE.NAME",
            root / "tiny.safetensors", "TTA.VIEWS", 10, "TTA.SELECT", 0.5, "TRAINER.FPP.STEPS", 3]


def run(trainer: str, world: list[object], folder: Path, chosen: dict) -> dict:
    pairs = [word for pair in chosen.items() for word in pair]
    return build_trainer(build_cfg(trainer, "image_folder", opts=[*world, "OUTPUT_DIR", folder, *pairs])).run()


@settings(ANY, max_examples=EXAMPLES)
@given(st.sampled_from(TRAINERS), VALID)
def test_valid_settings_run(world, trainer, chosen):
    with tempfile.TemporaryDirectory() as folder:
        results = run(trainer, world, Path(folder), chosen)
        predictions = read_predictions(Path(folder))
    assert len(predictions["index"]) == results["n"] and np.isfinite(predictions["logits"]).all()


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_bad_settings_get_one_line_and_leave_no_folder(world, bad, tmp_path):
    with pytest.raises(UserError) as error:
        run("SoC", world, tmp_path / "run", bad)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
    assert not (tmp_path / "run").exists()


@settings(ANY, max_examples=40)
@given(st.data(), st.sampled_from(TRAINERS), VALID)
def test_the_order_of_options_is_nothing(data, trainer, chosen):
    """Nor whether they are given as `KEY VALUE` or `KEY=VALUE`, text or number."""
    def build(pairs) -> tuple:
        opts = ["TTA.SELECT", 0.5, *(word for pair in pairs for word in pair)]  # keeps one of two views
        cfg = build_cfg(trainer, "configs/datasets/landcover.yaml", opts=opts)
        return run_path(cfg), cfg.dump()

    words = [[f"{key}={value}"] if data.draw(st.booleans()) else [key, str(value)] for key, value in chosen.items()]
    assert build(chosen.items()) == build(data.draw(st.permutations(words)))
