"""What the benchmark and the doctor share: CPU time of Python code, the machine it is measured on,
and inputs: CLIPs of real shapes with random weights, class names of realistic lengths, random view
features, drawn images, photographs.

CPU time hardly depends on what other programs do. With one thread it is what a clock shows on an
idle machine.
"""
from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from promptcal.datasets.utils.errors import ConfigError
from promptcal.datasets.views.images import is_image_name, open_image
from promptcal.datasets.views.loader import num_threads
from promptcal.trainers.runs.summary import environment
from promptcal.trainers.vlm.openai_clip import CLIP, tokenizer
from torch import Tensor

K = TypeVar("K")
MIN_SECONDS = 0.3  # a quick task repeats for at least this long per round
IMAGE_SIZE = (500, 375)  # a common size in ImageNet
# Embedding; image: size, layers, width, patch; text: length, vocabulary, width, heads, layers
SHAPES = {
    "ViT-B/16": (512, 224, 12, 768, 16, 77, 49408, 512, 8, 12),
    "ViT-L/14": (768, 224, 24, 1024, 14, 77, 49408, 768, 12, 12),
    "tiny": (32, 32, 2, 64, 16, 77, 49408, 64, 1, 2),  # for tests
    "thin": (16, 32, 1, 64, 16, 77, 49408, 64, 1, 12),  # as deep as ViT-B/16, to count operations
}
# How many of ImageNet's 1000 names have 1, 2, 3, ... tokens.
NAME_TOKENS = (246, 508, 155, 49, 24, 9, 7, 1, 0, 0, 1)


def interleaved(
    tasks: Mapping[K, Callable], rounds: int, clock: Callable = time.process_time
) -> dict[K, float]:
    """Median seconds of each task.

    The tasks take turns, so that a change of the clock rate affects all of them.
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


def machine() -> dict:
    """Processor, cores that this process may use, running processes in the last minute, and package
    versions.
    """
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    return {"processor": processor(), "cores": num_threads(-1), "load": load,
            "versions": environment(torch.device("cpu"), gpu_name="")["versions"]}


def processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        )
    return platform.processor() or platform.machine()


def random_clip(shape: str) -> CLIP:
    with torch.random.fork_rng(devices=[]):  # the seed of the CPU alone
        torch.manual_seed(0)
        model = CLIP(*SHAPES[shape]).eval().requires_grad_(False)
    model.logit_scale.fill_(np.log(100.0))  # as in OpenAI's models
    return model


def class_names(count: int) -> list[str]:
    """Names with ImageNet's distribution of lengths, made of words that are one token each."""
    words = [word.removesuffix("</w>") for word in tokenizer.encoder if word.endswith("</w>")]
    words = [word for word in words if word.isascii() and word.isalpha() and len(word) > 3]
    up_to = np.cumsum(NAME_TOKENS) / sum(NAME_TOKENS)
    lengths = 1 + np.searchsorted(up_to, (np.arange(count) + 0.5) / count)
    ends = np.cumsum(lengths)
    return [" ".join(words[(end - length + n) % len(words)] for n in range(length))
            for length, end in zip(lengths, ends, strict=True)]


def random_features(*shape: int) -> Tensor:
    """Unit features, as the image tower gives them."""
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(0)), dim=-1)


def drawn_images(count: int) -> list[Image.Image]:
    """Images with about the size and detail of photographs."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(IMAGE_SIZE, Image.Resampling.BICUBIC), dtype=np.int16)
        images.append(
            Image.fromarray((smooth + rng.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8))
        )
    return images


def photographs(folder: Path, count: int) -> list[Image.Image]:
    """Up to `count` of the images in a folder, evenly spread."""
    files = sorted(path for path in folder.expanduser().rglob("*") if is_image_name(path.name))
    if not files:
        raise ConfigError(
            f"{folder} has no images: give a folder with photographs, or omit --photos"
        )
    return [open_image(files[i * len(files) // count]) for i in range(count)]
