"""Imports OpenAI's `clip`; no other module does.

PyPI's package called `clip` is a clipboard tool: an error names the right one. Checkouts of CoOp,
MaPLe and similar projects hold a `clip` folder of their own, some with another model in it, and
come first on the path when Python is started in them. The installed package is taken there too, and
`import clip` still gives theirs.
"""
from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from . import clip_import  # noqa: F401


def import_clip() -> ModuleType:
    """Imports OpenAI's `clip`, also where another `clip` comes first on the path."""
    path = list(sys.path)
    theirs = {}
    installed = [
        folder for folder in path if Path(folder).name in ("site-packages", "dist-packages")
    ]
    first = PathFinder.find_spec("clip", path)
    ours = PathFinder.find_spec("clip", installed)
    other_first = first is not None and ours is not None and first.origin != ours.origin
    if other_first:
        theirs = remove_clip()
        sys.path[:] = [*installed, *path]
    try:
        module = import_module("clip")
    except ImportError as error:
        raise ImportError("OpenAI's CLIP is not installed. Run: pip install openai-clip") from error
    finally:
        if other_first:
            sys.path[:] = path
            remove_clip()
            sys.modules.update(theirs)
    if not hasattr(module, "tokenize"):
        raise ImportError(
            "The installed module 'clip' is not OpenAI's CLIP (the PyPI package 'clip' is a "
            "clipboard tool). Run: pip uninstall -y clip && pip install openai-clip"
        )
    return module


def remove_clip() -> dict[str, ModuleType]:
    """Takes `clip` and its submodules out of `sys.modules`, and returns them."""
    names = [name for name in sys.modules if name.partition(".")[0] == "clip"]
    return {name: sys.modules.pop(name) for name in names}


clip = import_clip()
CLIP = clip.model.CLIP
tokenizer = clip.clip._tokenizer  # the BPE tokenizer of all of OpenAI's models
VOCAB_SIZE = len(tokenizer.encoder)  # 49408
# Name -> address; the last folder of the address is the SHA-256
WEIGHT_URLS: dict[str, str] = clip.clip._MODELS
