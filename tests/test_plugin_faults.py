"""A user's own method, or a GPU, that fails in the middle of a run: it is named, and finished parts
remain."""
import re

import numpy as np
import pytest
import torch
from promptcal.trainers.engine.adapted import Adapted
from promptcal.trainers.runs.run_dir import read_predictions

from fault_runs import parts_of

SETTINGS = ("TTA.VIEWS", 10, "TEST.PART", 2, "TTA.EPISODES", 2)
GPU_FAILURE = "CUDA error: unspecified launch failure\nCUDA kernel errors may come later"


def raise_error(error: Exception):
    def change(adapted):
        raise error

    return change


def return_one_image(adapted):
    adapted.logits = adapted.logits[:1]


@pytest.mark.parametrize(("change", "message"), [
    (raise_error(KeyError("depth")),
     "TPT failed at .*kind_b/1.png .KeyError: 'depth', line .* of .*test_plugin_faults"),
    (raise_error(RuntimeError("size of tensor a (3) must match")),
     "TPT failed at .*kind_b/1.png .RuntimeError: size of"),
    (return_one_image,
     "TPT returned logits of shape .1, 4. for 2 images of 4 classes, the first .*kind_b/1.png"),
    (raise_error(torch.AcceleratorError(GPU_FAILURE)),
     "the GPU has failed .CUDA error: unspecified launch failure.; finished parts are kept: run"),
], ids=["raises", "torch raises", "shape", "gpu"])
def test_what_fails_is_named_and_the_rest_is_kept(train, tmp_path, change, message, monkeypatch):
    """The third batch of TPT fails, which is the fifth and sixth image."""
    real = Adapted.check_shapes
    calls = []

    def check_shapes(self, *args):
        calls.append(len(self.logits))
        if len(calls) == 3:
            change(self)
        real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Adapted, "check_shapes", check_shapes)
        done = train("TPT", *SETTINGS)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.search(message, done.stderr.splitlines()[-1]), done.stderr
    assert parts_of(tmp_path / "run") == {"0000000-0000001.npz", "0000002-0000003.npz"}
    assert train("TPT", *SETTINGS).returncode == 0
    continued = read_predictions(tmp_path / "run")
    assert train("TPT", *SETTINGS, "OUTPUT_DIR", tmp_path / "whole").returncode == 0
    uninterrupted = read_predictions(tmp_path / "whole")
    np.testing.assert_array_equal(continued["logits"], uninterrupted["logits"])
