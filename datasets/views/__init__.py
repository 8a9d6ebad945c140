"""Makes the views that test-time adaptation uses from image files."""
from importlib import import_module
from typing import Any

PUBLIC = {"ViewMaker": ".maker", "make_views": ".maker", "pipeline": ".kernel_cache"}

__all__ = [*PUBLIC]


def __getattr__(name: str) -> Any:
    """Imported on first use: opening an image needs no torch."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name], __name__), name)
