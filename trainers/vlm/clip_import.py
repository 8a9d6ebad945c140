"""Makes OpenAI's `clip` importable with current setuptools.

`clip.clip` begins with `from pkg_resources import packaging`, only to compare torch's version.
Current setuptools has no `pkg_resources`, or one without `packaging`. While `clip.clip` is
imported, by this package or by a user, a module with that one attribute replaces it. Needs no
torch.
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

import packaging.version

PKG_RESOURCES = "pkg_resources"


class ClipLoader(SourceFileLoader):
    """Loads `clip.clip` while a module with the attribute `packaging` replaces `pkg_resources`."""

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module's code, then puts the real `pkg_resources` back."""
        real = sys.modules.get(PKG_RESOURCES)
        stand_in = sys.modules[PKG_RESOURCES] = ModuleType(PKG_RESOURCES)
        stand_in.__dict__["packaging"] = packaging
        try:
            super().exec_module(module)
        finally:
            del sys.modules[PKG_RESOURCES]
            if real is not None:
                sys.modules[PKG_RESOURCES] = real


class ClipFinder(MetaPathFinder):
    """Finds `clip.clip` where Python would, and gives it the loader above."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the specification of `clip.clip`, and None for other modules."""
        spec = PathFinder.find_spec(name, path) if name == "clip.clip" else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = ClipLoader(name, spec.loader.path)
        return spec


if not any(isinstance(finder, ClipFinder) for finder in sys.meta_path):
    sys.meta_path.insert(0, ClipFinder())
