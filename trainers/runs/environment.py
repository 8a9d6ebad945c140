"""On what a result was computed."""
from __future__ import annotations

import platform
import sys
from importlib import metadata

import torch

PACKAGES = ("promptcal", "torch", "torchvision", "openai-clip", "numpy", "pillow")
# Told where they were used: module -> package.
LIBRARIES = {"numba": "numba", "open_clip": "open_clip_torch", "transformers": "transformers"}


def environment(device: torch.device) -> dict:
    """Versions and hardware, for results.json."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    packages = (*PACKAGES, *(package for module, package in LIBRARIES.items() if module in sys.modules))
    return {
        "versions": {"python": platform.python_version(), **{p: metadata.version(p) for p in packages}},
        "device": f"{device} ({name})",
        "threads": torch.get_num_threads(),
    }
