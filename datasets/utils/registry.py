"""Finds classes by name, as in Dassl: modules register them, and configs refer to their names."""
from __future__ import annotations

import ast
import difflib
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from .errors import ConfigError, UnknownNameError
from .source import is_plugin, plugin_source

T = TypeVar("T", bound=type)


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggests a known name for a misspelt one.

    Args:
        name: The name as it was written.
        known: All known names.

    Returns:
        ` Did you mean 'x'?` for the closest known name, ignoring case, or one that starts with
        `name`; "" if there is none.
    """
    lower = name.lower()
    by_lower = {known_name.lower(): known_name for known_name in known}
    # First a slip of a letter or two, then the beginning of a name, then anything similar.
    close = difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.8)
    if not close and len(name) > 2:
        close = [known_name for known_name in by_lower if known_name.startswith(lower)]
    if not close:
        close = difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.5)
    if not close:
        return ""
    return f" Did you mean '{by_lower[close[0]]}'?"


def plain_name(name: str) -> str:
    """One spelling for all: `Garden-Birds`, `garden_birds` and `GardenBirds` are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


class Registry:
    """Classes by name.

    The files of a folder are parsed for the names that they register, and imported only when a name
    is requested: a misspelt name is reported without importing torch.
    """

    def __init__(self, kind: str, folder: Path | None = None, package: str = "") -> None:
        """
        Args:
            kind: A word for the classes, for messages, such as "trainer" or "data set".
            folder: The folder whose files register classes; None = classes are only registered by
                modules that are imported.
            package: The dotted name of the folder.
        """
        self.kind = kind
        self._classes: dict[str, type[Any]] = {}
        self._folder = folder
        self._package = package

    def register(self) -> Callable[[T], T]:
        """Registers a class under its own name, as a decorator: `@TRAINER_REGISTRY.register()`.

        A name that differs from another one only in case is refused, because users write names in
        any case.
        """

        def add(cls: T) -> T:
            # A class of the folder is listed before its module is imported, so a name that this
            # module itself registers is no conflict.
            other = None
            for name in self:
                if name.lower() == cls.__name__.lower():
                    other = self.module_of(name)
            if cls.__name__ in self._classes or other not in (None, cls.__module__):
                raise ConfigError(f"{self.kind} '{cls.__name__}' is registered twice: in {other} "
                                  f"and in {cls.__module__}")
            self._classes[cls.__name__] = cls
            if is_plugin(cls):
                plugin_source([cls])  # reads its files now, when Python has just loaded them
            return cls

        return add

    def get(self, name: str) -> type[Any]:
        """Returns the class of a name. Its module is imported first if need be."""
        if name not in self:
            hint = nearest(str(name), self)
            raise UnknownNameError(f"unknown {self.kind} '{name}'.{hint} Known: "
                                   f"{', '.join(sorted(self))}; or what a plugin registers "
                                   f"(--plugin MODULE).")
        if name not in self._classes:
            importlib.import_module(self.modules[name])
        return self._classes[name]

    def find(self, name: str) -> str:
        """Returns the registered name that a user means; "" if there is none.

        The name may have any spelling, or be that of a file that registers a single class, such as
        `dtd` or a plugin's `birds`.
        """
        wanted = plain_name(name)
        by_file: dict[str, list[str]] = {}
        for registered in self:
            if plain_name(registered) == wanted:
                return registered
            module = self.module_of(registered)
            by_file.setdefault(plain_name(module.rpartition(".")[2]), []).append(registered)
        names = by_file.get(wanted, [])
        if len(names) == 1:
            return names[0]
        return ""

    @cached_property
    def modules(self) -> dict[str, str]:
        """The module of each name that a file of the folder registers."""
        modules = {}
        if self._folder is not None:
            for file in sorted(self._folder.glob("*.py")):
                for name in registered_in(file):
                    modules[name] = f"{self._package}.{file.stem}"
        return modules

    def module_of(self, name: str) -> str:
        """The module that registers a name."""
        return self.modules.get(name) or self._classes[name].__module__

    def __contains__(self, name: str) -> bool:
        return name in self._classes or name in self.modules

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.modules, *self._classes]))


def registered_in(file: Path) -> list[str]:
    """The classes of a source file that have the decorator `@…REGISTRY.register()`."""
    names = []
    for node in ast.parse(file.read_bytes(), str(file)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            if ast.unparse(decorator).endswith("REGISTRY.register()"):
                names.append(node.name)
    return names
