"""Calibrated test-time adaptation of CLIP.

    import promptcal as pc

    model = pc.load_clip("small")
    print(pc.evaluate("SoC", model, "LandCover"))            # a whole run
    pc.adapt("SoC", model, ["forest", "river"], "tile.png")  # one image
"""
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__version__ = "1.1.0"

# Before anything imports them: a script outside of the environment gets one line.
REQUIRED = ("torch", "torchvision", "clip", "yacs", "numpy", "PIL", "tqdm", "tabulate")
absent = [name for name in REQUIRED if find_spec(name) is None]
if absent and Path(sys.argv[0]).resolve().parent.name == "tools":
    print(f"error: {sys.executable} has no {', '.join(absent)}: activate the environment, or run "
          f"pip install -e . in the checkout", file=sys.stderr)
    raise SystemExit(2)

# The parts are links to folders at the top of a checkout. Where links are not supported, look there
# directly.
if not Path(__file__).with_name("trainers").is_dir():
    __path__.append(str(Path(__file__).resolve().parents[2]))

PUBLIC = {
    "Adapter": "trainers.api",
    "adapt": "trainers.api",
    "build_dataset": "datasets",
    "evaluate": "trainers.predict.evaluate",
    "load_clip": "trainers.vlm.loading",
    "make_views": "datasets.views",
}

__all__ = [*PUBLIC, "list_backbones", "list_datasets", "list_methods"]


def list_methods() -> list[str]:
    """The registered methods.

    Wherever a method is named, any spelling of these works: `soc`, `O-TPT`.
    """
    from promptcal.trainers.registry import TRAINER_REGISTRY

    return sorted(TRAINER_REGISTRY, key=str.lower)


def list_datasets() -> list[str]:
    """The registered data sets. LandCover and LandCoverShift need no files."""
    from promptcal.datasets import DATASET_REGISTRY

    return sorted(DATASET_REGISTRY, key=str.lower)


def list_backbones() -> list[str]:
    """The backbones that have a name.

    `load_clip` also takes a path, `open_clip:MODEL/TAG` and `hf:FOLDER`.
    """
    from promptcal.trainers.vlm.loading import BACKBONES, SMALL

    return [SMALL, *BACKBONES]


def __getattr__(name: str) -> Any:
    """Imports on first use: torch takes seconds."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    """What completion shows: the functions, not what this file imports."""
    return [*__all__, "__version__"]
