"""The methods, one a file; a file that registers a trainer is found by the registry."""
from importlib import import_module

from .vlm import clip_import  # noqa: F401 (`import clip` works from here on)

PUBLIC = {
    "TRAINER_REGISTRY": ".registry", "adapt": ".api", "build_cfg": ".config.build", "build_trainer": ".registry",
    "load_clip": ".vlm.loading",
}

__all__ = list(PUBLIC)


def __getattr__(name: str) -> object:
    """Imported on first use: torch takes seconds, and a usage error must not wait for it."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name], __name__), name)
