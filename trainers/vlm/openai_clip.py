"""The one place that imports OpenAI's `clip`.

`clip.clip` begins with `from pkg_resources import packaging`, only to compare torch's version. Current setuptools has
no `pkg_resources` any more (and torch excludes the old setuptools that has), so a stand-in with that one attribute is
put in its place for the duration of the import. PyPI's package called `clip` is a clipboard tool: who installed that
one is told which to take.

Checkouts of CoOp, MaPLe and their kin hold a `clip` folder of their own, some with another model in it, and stand first
on the path when Python is started in them. The installed package is taken there too, and theirs stays theirs.
"""
from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path

import packaging.version

INSTALL_HINT = (
    "The installed module 'clip' is not OpenAI's CLIP (the PyPI package 'clip' is a clipboard tool). "
    "Run: pip uninstall -y clip && pip install openai-clip"
)


def _import_clip() -> types.ModuleType:
    try:
        with _importable(), _beside_a_checkouts_own():
            module = importlib.import_module("clip")
    except ImportError as error:
        raise ImportError("OpenAI's CLIP is not installed. Run: pip install openai-clip") from error
    if not hasattr(module, "tokenize"):
        raise ImportError(INSTALL_HINT)
    return module


@contextmanager
def _importable() -> Iterator[None]:
    """`pkg_resources`, with the one attribute that `clip` asks of it."""
    stand_in = types.ModuleType("pkg_resources")
    stand_in.packaging = packaging
    real = sys.modules.get("pkg_resources")
    sys.modules["pkg_resources"] = stand_in
    try:
        yield
    finally:
        if real is None:
            del sys.modules["pkg_resources"]
        else:
            sys.modules["pkg_resources"] = real


@contextmanager
def _beside_a_checkouts_own() -> Iterator[None]:
    """While this lasts, `clip` is the installed package. Where another one comes first on the path, that one is put
    back afterwards, loaded or still to be loaded."""
    path = list(sys.path)
    installed = [place for place in path if Path(place).name in ("site-packages", "dist-packages")]
    first, ours = PathFinder.find_spec("clip", path), PathFinder.find_spec("clip", installed)
    if first is None or ours is None or first.origin == ours.origin:
        yield
        return
    theirs = _take_away_clip()
    sys.path[:] = [*installed, *path]
    try:
        yield
    finally:
        sys.path[:] = path
        _take_away_clip()
        sys.modules.update(theirs)


def _take_away_clip() -> dict[str, types.ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == "clip"]
    return {name: sys.modules.pop(name) for name in names}


clip = _import_clip()
CLIP = clip.model.CLIP
tokenizer = clip.clip._tokenizer  # the BPE tokenizer all of OpenAI's models share
WEIGHT_URLS: dict[str, str] = clip.clip._MODELS  # name -> address; the last folder of the address is the SHA-256
