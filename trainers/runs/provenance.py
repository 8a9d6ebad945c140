"""On what a result was computed."""
from __future__ import annotations

import platform
from importlib import metadata

import torch

PACKAGES = ("promptcal", "torch", "torchvision", "openai-clip", "numpy", "pillow")


def environment(device: torch.device) -> dict:
    """Versions and hardware, for results.json."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "versions": {"python": platform.python_version(), **{p: metadata.version(p) for p in PACKAGES}},
        "device": f"{device} ({name})",
        "threads": torch.get_num_threads(),
    }
