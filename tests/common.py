"""Shared by the tests: small CLIPs with random weights, an image folder, commands in this
process."""
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
from matplotlib.figure import Figure
from PIL import Image
from promptcal.datasets.utils import cli
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.report import tensorboard_figures
from promptcal.trainers.report.figures import style
from promptcal.trainers.runs.run_dir import read_predictions
from promptcal.trainers.vlm.budget import Budget
from promptcal.trainers.vlm.openai_clip import CLIP

from file_server import BODY, FileServer, serving

PROJECT = Path(__file__).resolve().parents[1]
torch.set_num_threads(1)  # several test processes share a small machine
# What `small_pictures` replaces.
DRAW_GRID = tensorboard_figures.draw_grid
PIXELS = tensorboard_figures.pixels
PDF_CANVAS = style.FigureCanvasPdf


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Undoes what a command has set for the whole process: log handlers and torch's number of
    threads."""
    torch.set_num_threads(1)
    yield
    for handler in list(cli.LOGGER.handlers):
        if isinstance(handler, cli.TerminalHandler):
            cli.LOGGER.removeHandler(handler)


class EmptyPdf:
    """In place of matplotlib's canvas: embedding the fonts takes longer than drawing the figure."""

    def __init__(self, figure: Figure) -> None:
        pass

    def print_pdf(self, file: BinaryIO, metadata: dict) -> None:
        file.write(b"%PDF-1.4\n")


@pytest.fixture(scope="session", autouse=True)
def small_pictures() -> Iterator[None]:
    """Makes TensorBoard's figures grey squares and PDFs empty in tests without `real_pictures`.

    They take longer to draw than a small run.
    """
    grey = np.full((8, 8, 3), 128, np.uint8)
    with (
        mock.patch.object(tensorboard_figures, "draw_grid", lambda drawn: None),
        mock.patch.object(tensorboard_figures, "pixels", lambda figure: grey),
        mock.patch.object(style, "FigureCanvasPdf", EmptyPdf),
    ):
        yield


@pytest.fixture
def real_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of figures."""
    monkeypatch.setattr(tensorboard_figures, "draw_grid", DRAW_GRID)
    monkeypatch.setattr(tensorboard_figures, "pixels", PIXELS)
    monkeypatch.setattr(style, "FigureCanvasPdf", PDF_CANVAS)


def classes_at_once(number: int) -> Budget | None:
    """A budget that lets the text tower run in groups of so many classes; 0 = all at once."""
    if number == 0:
        return None
    return Budget(episodes=100, classes=number, views=8)


VISION_TRANSFORMER = {"vision_layers": 2, "vision_width": 64, "vision_patch_size": 16}
RESNET = {"vision_layers": (1, 1, 1, 1), "vision_width": 8, "vision_patch_size": None}


def random_clip(seed: int = 0, resnet: bool = False, width: int = 64, layers: int = 3, size: int = 32) -> CLIP:
    """A small CLIP whose random text features differ enough between classes to be worth adapting.

    Args:
        seed: Of the weights.
        resnet: Whether the image tower is a ResNet.
        width: Of the text tower.
        layers: Of the text tower.
        size: Of the images, in pixels.
    """
    torch.manual_seed(seed)
    vision = RESNET if resnet else VISION_TRANSFORMER
    model = CLIP(
        embed_dim=48,
        image_resolution=size,
        **vision,
        context_length=77,
        vocab_size=49408,
        transformer_width=width,
        transformer_heads=width // 64,
        transformer_layers=layers,
    )
    with torch.no_grad():
        model.token_embedding.weight.mul_(20)
        model.logit_scale.fill_(np.log(30.0))
    return model.eval().requires_grad_(False)


def openai_state(model: CLIP) -> dict[str, torch.Tensor]:
    """A state dict with the three entries that only OpenAI's archives have."""
    state = model.state_dict()
    state["input_resolution"] = torch.tensor(model.visual.input_resolution)
    state["context_length"] = torch.tensor(77)
    state["vocab_size"] = torch.tensor(49408)
    return state


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
            coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
            coarse.resize(size, Image.Resampling.BICUBIC).save(folder / f"{n}.png")
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
    """`python tools/<name> args`, typed in another folder than the project's, but in this process.

    `processes.Process` starts a real one.
    """
    tool = importlib.import_module(f"promptcal.tools.{name.removesuffix('.py')}")
    words = list(map(str, args))
    out = io.StringIO()
    err = io.StringIO()
    with (
        chdir(tempfile.gettempdir()),
        redirect_stdout(out),
        redirect_stderr(err),
        mock.patch.dict(os.environ, env),
    ):
        try:
            status = cli.outcome(lambda: tool.main(words))
        except SystemExit as end:  # argparse's own
            status = end.code
    return Done(status or 0, out.getvalue(), err.getvalue())


@pytest.fixture
def run_method(clip_file: Path, image_folder: Path) -> Callable[..., dict[str, np.ndarray]]:
    """Runs a method on the image folder with the tiny CLIP, without a command.

    The function takes the method, the run folder and settings; it returns the predictions.
    """
    def run(method: str, folder: Path, *settings: object) -> dict[str, np.ndarray]:
        cfg = build_cfg(method, "configs/datasets/image_folder.yaml", opts=[
            "DATASET.ROOT", image_folder,
            "MODEL.BACKBONE.NAME", clip_file,
            "OUTPUT_DIR", folder,
            "DATALOADER.NUM_WORKERS", 0,
            "TTA.VIEWS", 10,
            *settings,
        ])
        build_trainer(cfg).run()
        return read_predictions(folder)

    return run


@pytest.fixture
def train(clip_file: Path, image_folder: Path, tmp_path: Path) -> Callable[..., Done]:
    """Runs tools/train.py on the image folder with the tiny CLIP; the run folder is
    tmp_path/run."""
    def run(trainer: str, *args: object, **env: str) -> Done:
        options = [
            "--trainer", trainer,
            "--dataset-config-file", "configs/datasets/image_folder.yaml",
            "--root", image_folder,
            "--backbone", clip_file,
            "--output-dir", tmp_path / "run",
            "DATALOADER.NUM_WORKERS", 0,
        ]
        return run_tool("train.py", *options, *args, **env)

    return run
