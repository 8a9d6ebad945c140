"""What the tests share: small CLIPs with random weights in OpenAI's format, an image folder, the real command."""
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from promptcal.trainers.vlm.openai_clip import CLIP

PROJECT = Path(__file__).resolve().parents[1]
torch.set_num_threads(1)  # several test processes share a small machine


def random_clip(seed: int = 0, resnet: bool = False, width: int = 64, layers: int = 3, size: int = 32) -> CLIP:
    """A small CLIP whose random text features differ enough between classes to be worth adapting."""
    torch.manual_seed(seed)
    vision = {"vision_layers": (1, 1, 1, 1), "vision_width": 8, "vision_patch_size": None} if resnet else {
        "vision_layers": 2, "vision_width": 64, "vision_patch_size": 16}
    model = CLIP(
        embed_dim=48, image_resolution=size, **vision, context_length=77, vocab_size=49408, transformer_width=width,
        transformer_heads=width // 64, transformer_layers=layers,
    )
    with torch.no_grad():
        model.token_embedding.weight.mul_(20)
        model.logit_scale.fill_(np.log(30.0))
    return model.eval().requires_grad_(False)


def openai_state(model: CLIP) -> dict[str, torch.Tensor]:
    """A state dict with the three entries by which OpenAI's archives are known."""
    marks = {"input_resolution": model.visual.input_resolution, "context_length": 77, "vocab_size": 49408}
    return {**model.state_dict(), **{name: torch.tensor(value) for name, value in marks.items()}}


@pytest.fixture(scope="session")
def clip_model() -> CLIP:
    return random_clip()


@pytest.fixture(scope="session")
def clip_file(clip_model: CLIP, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.pt"
    torch.save(openai_state(clip_model), path)
    return path


def make_image_folder(root: Path, classes: int = 4, images: int = 3, size: tuple[int, int] = (48, 40)) -> Path:
    """`root/<class>/<n>.png` with pictures that differ."""
    rng = np.random.default_rng(0)
    for k in range(classes):
        folder = root / f"kind_{'abcdefgh'[k]}"
        folder.mkdir(parents=True)
        for n in range(images):
            coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(folder / f"{n}.png")
    return root


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "images")


def run_tool(name: str, *args: object, **env: str) -> subprocess.CompletedProcess:
    """`python tools/<name> args` as a user would type it, from another folder than the project's."""
    return subprocess.run(
        [sys.executable, str(PROJECT / "tools" / name), *map(str, args)], capture_output=True, text=True, timeout=300,
        cwd=os.environ.get("TMPDIR", "/tmp"), env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


@pytest.fixture
def train(clip_file: Path, image_folder: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs tools/train.py on the image folder with the tiny CLIP; the run folder is tmp_path/run."""
    def run(trainer: str, *args: object) -> subprocess.CompletedProcess:
        return run_tool(
            "train.py", "--trainer", trainer, "--dataset-config-file", "configs/datasets/image_folder.yaml",
            "--root", image_folder, "--backbone", clip_file, "--output-dir", tmp_path / "run", *args,
        )
    return run
