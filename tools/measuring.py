"""Provides a clock, a description of the machine, and inputs for the benchmark and the doctor.

The inputs are CLIPs of real shapes with random weights, class names of realistic lengths, random
view features, drawn images and photographs.

CPU time hardly depends on what other programs do. With one thread it is what a clock shows on an
idle machine.
"""
from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from promptcal.datasets.utils.errors import ConfigError
from promptcal.datasets.views.images import is_image_name, open_image
from promptcal.datasets.views.loader import num_threads
from promptcal.trainers.runs.summary import environment
from promptcal.trainers.vlm.openai_clip import CLIP, VOCAB_SIZE, tokenizer
from torch import Tensor

K = TypeVar("K")
MIN_SECONDS = 0.3  # a quick task repeats for at least this long per round
IMAGE_SIZE = (500, 375)  # a common size in ImageNet


class Shape(NamedTuple):
    """The arguments of OpenAI's CLIP, by their names there."""

    embed_dim: int
    image_resolution: int
    vision_layers: int
    vision_width: int
    vision_patch_size: int
    transformer_width: int
    transformer_heads: int
    transformer_layers: int
    context_length: int = 77
    vocab_size: int = VOCAB_SIZE


SHAPES = {
    "ViT-B/16": Shape(
        embed_dim=512, image_resolution=224, vision_layers=12, vision_width=768,
        vision_patch_size=16, transformer_width=512, transformer_heads=8, transformer_layers=12),
    "ViT-L/14": Shape(
        embed_dim=768, image_resolution=224, vision_layers=24, vision_width=1024,
        vision_patch_size=14, transformer_width=768, transformer_heads=12, transformer_layers=12),
    # For tests
    "tiny": Shape(
        embed_dim=32, image_resolution=32, vision_layers=2, vision_width=64,
        vision_patch_size=16, transformer_width=64, transformer_heads=1, transformer_layers=2),
    # With as many text layers as ViT-B/16, to count operations
    "thin": Shape(
        embed_dim=16, image_resolution=32, vision_layers=1, vision_width=64,
        vision_patch_size=16, transformer_width=64, transformer_heads=1, transformer_layers=12),
}
# Numbers of ImageNet's 1000 names that have 1, 2, 3, ... tokens.
NAME_TOKENS = (246, 508, 155, 49, 24, 9, 7, 1, 0, 0, 1)


def interleaved(
    tasks: Mapping[K, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
) -> dict[K, float]:
    """Measures the median seconds of each task.

    The tasks take turns, so that a change of the clock rate affects all of them.

    Args:
        tasks: The functions to time, by name.
        rounds: Number of turns of each task; in a turn a quick task repeats for `MIN_SECONDS`.
        clock: A function that returns seconds since any moment; the default is CPU time.
    """
    seconds: dict[K, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            spent = 0.0
            while spent < MIN_SECONDS:
                started = clock()
                task()
                seconds[name].append(clock() - started)
                spent += seconds[name][-1]
    return {name: median(runs) for name, runs in seconds.items()}


def machine() -> dict[str, Any]:
    """Describes this machine.

    Returns:
        `processor`: its name. `cores`: number of cores that this process may use. `load`: mean
        number of running processes in the last minute, None where the system does not count them.
        `versions`: versions of Python and the packages.
    """
    load = None
    if hasattr(os, "getloadavg"):  # not on Windows
        load = round(os.getloadavg()[0], 1)
    versions = environment(torch.device("cpu"), gpu_name="")["versions"]
    return {
        "processor": processor(), "cores": num_threads(-1), "load": load, "versions": versions,
    }


def processor() -> str:
    """The name of the processor."""
    lines: list[str] = []
    with suppress(OSError):  # Linux alone has this file
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def random_clip(shape: str) -> CLIP:
    """Builds a CLIP in evaluation mode with random weights; `shape` is a key of `SHAPES`."""
    with torch.random.fork_rng(devices=[]):  # the seed of the CPU alone
        torch.manual_seed(0)
        model = CLIP(**SHAPES[shape]._asdict()).eval().requires_grad_(False)
    model.logit_scale.fill_(np.log(100.0))  # as in OpenAI's models
    return model


def class_names(count: int) -> list[str]:
    """Makes names with ImageNet's distribution of lengths, of words that are one token each."""
    words = [word.removesuffix("</w>") for word in tokenizer.encoder if word.endswith("</w>")]
    words = [word for word in words if word.isascii() and word.isalpha() and len(word) > 3]
    # The lengths are the quantiles of ImageNet's distribution at count evenly spaced points.
    share_up_to = np.cumsum(NAME_TOKENS) / sum(NAME_TOKENS)
    lengths = 1 + np.searchsorted(share_up_to, (np.arange(count) + 0.5) / count)
    next_word = cycle(words)
    return [" ".join(islice(next_word, length)) for length in lengths.tolist()]


def random_features(*shape: int) -> Tensor:
    """Draws unit features, as the image tower gives them; the same ones for the same shape."""
    generator = torch.Generator().manual_seed(0)
    return F.normalize(torch.randn(*shape, generator=generator), dim=-1)


def drawn_images(count: int) -> list[Image.Image]:
    """Draws images with about the size and detail of photographs."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(IMAGE_SIZE, Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = smooth + rng.normal(0, 8, smooth.shape)
        images.append(Image.fromarray(noisy.clip(0, 255).astype(np.uint8)))
    return images


def photographs(folder: Path, count: int) -> list[Image.Image]:
    """Reads images from a folder and those below it, evenly spread over its files.

    Args:
        folder: The folder.
        count: Number of images. If the folder has fewer, some are returned several times.
    """
    files = sorted(path for path in folder.expanduser().rglob("*") if is_image_name(path.name))
    if not files:
        raise ConfigError(
            f"{folder} has no images: give a folder with photographs, or omit --photos"
        )
    return [open_image(files[i * len(files) // count]) for i in range(count)]
