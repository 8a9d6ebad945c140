"""The methods. Every module in this folder is imported, so that the trainers it defines are registered."""
import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

from .api import adapt  # noqa: E402
from .config import build_cfg  # noqa: E402
from .registry import TRAINER_REGISTRY, build_trainer  # noqa: E402
from .vlm.loading import load_clip  # noqa: E402

__all__ = ["TRAINER_REGISTRY", "adapt", "build_cfg", "build_trainer", "load_clip"]
