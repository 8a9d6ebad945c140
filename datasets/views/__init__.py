"""From pictures to the views that test-time tuning looks at."""
from importlib import import_module

# Goes with every result and every view feature that is kept, and changes whenever views do. Version 0.1, which did not
# name it, made views with Pillow ("pillow-1").
PIPELINE = "tensor-4"
PUBLIC = {"ViewMaker": ".maker", "make_views": ".maker"}

__all__ = ["PIPELINE", *PUBLIC]


def __getattr__(name: str) -> object:
    """Imported on first use: opening a picture needs no torch."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name], __name__), name)


def pipeline() -> str:
    return PIPELINE
