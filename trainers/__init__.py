"""The methods, one per file. The registry finds every file that registers a trainer."""
from importlib import import_module
from typing import Any

from .vlm import clip_import  # noqa: F401 (`import clip` works from here on)

PUBLIC = {
    "Adapter": ".api",
    "TRAINER_REGISTRY": ".registry",
    "adapt": ".api",
    "build_cfg": ".config.build",
    "build_trainer": ".registry",
    "load_clip": ".vlm.loading",
}

__all__ = list(PUBLIC)


def __getattr__(name: str) -> Any:
    """Imported on first use: importing torch takes seconds, and usage errors must not wait for it.
    """
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name], __name__), name)
