"""From an image file to the views that test-time adaptation uses."""
from functools import cache
from importlib import import_module
from typing import Any

import PIL

# The name goes with every result and every cached view feature. It changes whenever views do.
PIPELINE = "views-1"  # the compiled kernels
# Where numba does not work, with Pillow's version: its mixed views differ in their last bits
FALLBACK = "pillow"
PUBLIC = {"ViewMaker": ".maker", "make_views": ".maker"}

__all__ = ["FALLBACK", "PIPELINE", "pipeline", *PUBLIC]


@cache
def pipeline() -> str:
    """The name of the pipeline in use on this machine."""
    if import_module(".kernel_cache", __name__).numba_works():
        return PIPELINE
    return f"{FALLBACK}-{PIL.__version__}"


def __getattr__(name: str) -> Any:
    """Imported on first use: opening an image needs no torch."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name], __name__), name)
