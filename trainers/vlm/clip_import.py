"""Makes OpenAI's `clip` importable with current setuptools.

`clip.clip` begins with `from pkg_resources import packaging`, only to compare torch's version. Current setuptools has
no `pkg_resources`, or one without `packaging`. While `clip.clip` is imported, by this package or by a user, a module
with that one attribute stands in its place. Needs no torch.
"""
from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

import packaging.version

PKG_RESOURCES = "pkg_resources"


class ClipLoader(SourceFileLoader):
    """Runs `clip/clip.py` with a stand-in for `pkg_resources`."""

    def exec_module(self, module: types.ModuleType) -> None:
        stand_in = types.ModuleType(PKG_RESOURCES)
        stand_in.__dict__["packaging"] = packaging
        real = sys.modules.get(PKG_RESOURCES)
        sys.modules[PKG_RESOURCES] = stand_in
        try:
            super().exec_module(module)
        finally:
            del sys.modules[PKG_RESOURCES]
            if real is not None:
                sys.modules[PKG_RESOURCES] = real


class ClipFinder(MetaPathFinder):
    """Finds `clip.clip` where Python finds it, and loads it with a ClipLoader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == "clip.clip" else None
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        spec.loader = ClipLoader(fullname, spec.loader.path)
        return spec


if not any(isinstance(finder, ClipFinder) for finder in sys.meta_path):
    sys.meta_path.insert(0, ClipFinder())
