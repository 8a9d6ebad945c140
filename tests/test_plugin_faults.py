"""A method of somebody's own, or a GPU, that fails in mid-run: it is named, and finished parts are kept."""
from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from promptcal.trainers.runs.run_dir import RunDir
from promptcal.trainers.tpt import TPT

SETTINGS = ("TTA.VIEWS", 10, "TEST.PART", 2, "TTA.EPISODES", 2)


@pytest.fixture
def broken(train, tmp_path: Path, monkeypatch):
    """Runs TPT with `change` made to what it returns for the fifth and sixth image; then as it is."""
    def run(change):
        real, calls = TPT.adapt, []

        def adapt(self, views):
            calls.append(len(views))
            adapted = real(self, views)
            return change(adapted) if len(calls) == 3 else adapted

        with monkeypatch.context() as patch:
            patch.setattr(TPT, "adapt", adapt)
            done = train("TPT", *SETTINGS)
        kept = sorted(path.name for path in (tmp_path / "run" / "parts").glob("*.npz"))
        return done, kept
    return run


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
    (raising(RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later")),
     "the GPU has failed .CUDA error: unspecified launch failure.; what was finished is kept: run the command again"),
], ids=["raises", "torch raises", "shape", "gpu"])
def test_what_fails_is_named_and_the_rest_is_kept(broken, train, tmp_path: Path, change, said: str):
    done, kept = broken(change)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.search(said, done.stderr.splitlines()[-1]), done.stderr
    assert kept == ["0000000-0000001.npz", "0000002-0000003.npz"]
    assert train("TPT", *SETTINGS).returncode == 0
    found = RunDir(tmp_path / "run").predictions()
    assert train("TPT", *SETTINGS, "OUTPUT_DIR", tmp_path / "whole").returncode == 0
    np.testing.assert_array_equal(found["logits"], RunDir(tmp_path / "whole").predictions()["logits"])


def test_lost_numbers_are_flagged(broken, tmp_path: Path):
    def losing(adapted):
        adapted.logits[1] = torch.nan
        return adapted

    done, _ = broken(losing)
    assert done.returncode == 0 and RunDir(tmp_path / "run").predictions()["flagged"].nonzero()[0].tolist() == [5]

