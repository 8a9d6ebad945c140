"""A user's own method, or a GPU, that fails in the middle of a run: it is named, and finished parts are kept."""
import re

import numpy as np
import pytest
import torch
from promptcal.trainers.runs.run_dir import read_predictions
from promptcal.trainers.tpt import TPT

SETTINGS = ("TTA.VIEWS", 10, "TEST.PART", 2, "TTA.EPISODES", 2)


def raising(error: Exception):
    def change(_):
        raise error
    return change


def shortened(adapted):
    adapted.logits = adapted.logits[:1]
    return adapted


@pytest.mark.parametrize(("change", "said"), [
    (raising(KeyError("depth")), "TPT failed at .*kind_b/1.png .KeyError: 'depth', line .* of .*test_plugin_faults"),
    (raising(RuntimeError("size of tensor a (3) must match")), "TPT failed at .*kind_b/1.png .RuntimeError: size of"),
    (shortened, "TPT returned logits of shape .1, 4. for 2 images of 4 classes, the first of them .*kind_b/1.png"),
    (raising(torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors may come later")),
     "the GPU has failed .CUDA error: unspecified launch failure.; finished parts are kept: run the command again"),
], ids=["raises", "torch raises", "shape", "gpu"])
def test_what_fails_is_named_and_the_rest_is_kept(train, tmp_path, change, said, monkeypatch):
    """The third batch of TPT fails, which is the fifth and sixth image."""
    real, calls = TPT.adapt, []

    def adapt(self, views):
        calls.append(len(views))
        adapted = real(self, views)
        return change(adapted) if len(calls) == 3 else adapted

    with monkeypatch.context() as patch:
        patch.setattr(TPT, "adapt", adapt)
        done = train("TPT", *SETTINGS)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.search(said, done.stderr.splitlines()[-1]), done.stderr
    kept = sorted(path.name for path in (tmp_path / "run" / "parts").glob("*.npz"))
    assert kept == ["0000000-0000001.npz", "0000002-0000003.npz"]
    assert train("TPT", *SETTINGS).returncode == 0
    found = read_predictions(tmp_path / "run")
    assert train("TPT", *SETTINGS, "OUTPUT_DIR", tmp_path / "whole").returncode == 0
    np.testing.assert_array_equal(found["logits"], read_predictions(tmp_path / "whole")["logits"])
