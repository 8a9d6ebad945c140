"""A run of many small parts for tests of faults, and its predictions without any fault."""
from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from promptcal.trainers.runs.run_dir import read_predictions

from common import Done, make_image_folder, openai_state, random_clip, run_tool
from folders import RUN_FILES, names

IMAGES = 37


class FaultRuns:
    """37 images in four classes, and weights.

    They are 18 parts of two images and one of one, which no number of ranks divides evenly.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.images = root / "images"
        self.weights = root / "tiny.pt"
        torch.save(openai_state(random_clip()), self.weights)
        make_image_folder(self.images, images=IMAGES // 4)
        shutil.copy(self.images / "kind_b" / "0.png", self.images / "kind_d" / "9.png")

    def arguments(self, run: Path, *args: object) -> list[object]:
        """Of tools/train.py."""
        return [
            "--trainer", "SoC", "--dataset-config-file", "configs/datasets/image_folder.yaml",
            "--root", self.images, "--backbone", self.weights, "--output-dir", run,
            "TEST.PART", 2, "TTA.VIEWS", 16, "TTA.SELECT", 0.25, "TTA.EPISODES", 2,
            "TTA.JACOBIAN", "off", *args,
        ]

    def here(self, run: Path, *args: object) -> Done:
        """The command in this process."""
        return run_tool("train.py", *self.arguments(run, *args))

    def finish_here(self, run: Path, *args: object) -> None:
        done = self.here(run, *args)
        assert done.returncode == 0, done.stderr

    @cached_property
    def whole(self) -> dict[str, np.ndarray]:
        """The predictions of an uninterrupted run in one process."""
        self.finish_here(self.root / "whole")
        predictions = read_predictions(self.root / "whole")
        assert predictions["index"].tolist() == list(range(IMAGES))
        return predictions

    def assert_whole(self, run: Path) -> None:
        assert_same(run, self.whole)


def assert_same(run: Path, expected: dict[str, np.ndarray]) -> None:
    """Bit for bit, for the same samples; and only the results are left."""
    predictions = read_predictions(run)
    assert predictions.keys() == expected.keys()
    for name in expected:
        assert np.array_equal(predictions[name], expected[name])
    assert names(run) == RUN_FILES


def parts_of(run: Path) -> set[str]:
    return {path.name for path in (run / "parts").glob("*.npz")}
