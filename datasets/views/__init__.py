"""From pictures to the views that test-time tuning looks at."""
from importlib import import_module

PUBLIC = {"ViewMaker": ".crops"}

__all__ = list(PUBLIC)


def __getattr__(name: str) -> object:
    """Imported on first use: opening a picture needs no torch."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name], __name__), name)
