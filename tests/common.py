"""Shared by the tests: small CLIPs with random weights in OpenAI's format, an image folder, commands in process."""
from __future__ import annotations

import importlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import BinaryIO, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from file_server import BODY, FileServer, serving
from matplotlib.figure import Figure
from PIL import Image
from promptcal.datasets.utils import cli
from promptcal.trainers.report import tensorboard_figures
from promptcal.trainers.report.figures import style
from promptcal.trainers.vlm.budget import Budget
from promptcal.trainers.vlm.openai_clip import CLIP

PROJECT = Path(__file__).resolve().parents[1]
torch.set_num_threads(1)  # several test processes share a small machine
DRAWINGS = {(module, name): getattr(module, name) for module, name in (
    (tensorboard_figures, "draw_grid"), (tensorboard_figures, "pixels"), (style, "FigureCanvasPdf"))}


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Undoes what a command has set for the whole process: log handlers and torch's number of threads."""
    torch.set_num_threads(1)
    yield
    for handler in [handler for handler in cli.LOGGER.handlers if isinstance(handler, cli.TerminalHandler)]:
        cli.LOGGER.removeHandler(handler)


class EmptyPdf:
    """In place of matplotlib's canvas: embedding the fonts takes longer than drawing the figure."""

    def __init__(self, figure: Figure) -> None:
        pass

    def print_pdf(self, file: BinaryIO, metadata: dict) -> None:
        file.write(b"%PDF-1.4\n")


@pytest.fixture(scope="session", autouse=True)
def small_pictures() -> Iterator[None]:
    """TensorBoard's figures take longer to draw than a small run. They are grey squares, and PDFs are empty, in tests
    that do not use `real_pictures`."""
    grey = np.full((8, 8, 3), 128, np.uint8)
    with mock.patch.multiple(tensorboard_figures, draw_grid=lambda drawn: None, pixels=lambda figure: grey), \
            mock.patch.object(style, "FigureCanvasPdf", EmptyPdf):
        yield


@pytest.fixture
def real_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of figures."""
    for (module, name), drawing in DRAWINGS.items():
        monkeypatch.setattr(module, name, drawing)


def classes_at_once(number: int) -> Budget | None:
    """A budget that lets the text tower run in groups of so many classes; 0 = all at once."""
    return Budget(episodes=100, classes=number, views=8) if number else None


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
    """A state dict with the three entries that only OpenAI's archives have."""
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
    """`root/<class>/<n>.png`, each another image."""
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


@pytest.fixture
def no_internet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A host of one file."""
    with serving() as server:
        server.files["data.zip"] = BODY
        yield server


class Done(NamedTuple):
    """A finished command."""

    returncode: int
    stdout: str
    stderr: str


def run_tool(name: str, *args: object, **env: str) -> Done:
    """`python tools/<name> args`, typed in another folder than the project's, but in this process. `processes.Process`
    starts a real one."""
    tool = importlib.import_module(f"promptcal.tools.{name.removesuffix('.py')}")
    out, err = io.StringIO(), io.StringIO()
    with chdir(tempfile.gettempdir()), redirect_stdout(out), redirect_stderr(err), mock.patch.dict(os.environ, env):
        try:
            status = cli.outcome(lambda: tool.main([str(arg) for arg in args]))
        except SystemExit as end:  # argparse's own
            status = end.code
    return Done(status or 0, out.getvalue(), err.getvalue())


@pytest.fixture
def train(clip_file: Path, image_folder: Path, tmp_path: Path) -> Callable[..., Done]:
    """Runs tools/train.py on the image folder with the tiny CLIP; the run folder is tmp_path/run."""
    def run(trainer: str, *args: object, **env: str) -> Done:
        return run_tool(
            "train.py", "--trainer", trainer, "--dataset-config-file", "configs/datasets/image_folder.yaml",
            "--root", image_folder, "--backbone", clip_file, "--output-dir", tmp_path / "run",
            "DATALOADER.NUM_WORKERS", 0, *args, **env,
        )
    return run
