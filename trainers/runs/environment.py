"""The versions and the hardware that a result was computed with."""
from __future__ import annotations

import platform
import sys
from importlib import metadata

import torch

from ... import __version__

PACKAGES = ("torch", "torchvision", "openai-clip", "numpy", "pillow")
# Named if they were imported: module -> package.
OPTIONAL = {"numba": "numba", "open_clip": "open_clip_torch", "transformers": "transformers"}


def environment(device: torch.device) -> dict[str, object]:
    """Versions and hardware, for results.json."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    packages = (*PACKAGES, *(package for module, package in OPTIONAL.items() if module in sys.modules))
    return {
        "versions": {"promptcal": __version__, "python": platform.python_version(),
                     **{package: metadata.version(package) for package in packages}},
        "device": f"{device} ({name})",
        "threads": torch.get_num_threads(),
    }
