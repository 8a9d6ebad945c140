"""A name → class table in Dassl's manner: modules register what they define, configs refer to it by name."""
from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tabulate import tabulate

from .errors import UnknownNameError

T = TypeVar("T", bound=type)


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the known name closest to `name`, ignoring case, or nothing if none is close."""
    by_lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""


class Registry:
    """Classes by name. Registering a name twice is a programming error; asking for an unknown one a user's."""

    def __init__(self, kind: str) -> None:
        self.kind = kind  # what is registered, for messages: "trainer", "data set"
        self._classes: dict[str, type] = {}

    def register(self) -> Callable[[T], T]:
        """Use as a decorator: `@TRAINER_REGISTRY.register()`; the name is the class's own."""

        def add(cls: T) -> T:
            if cls.__name__ in self._classes:
                raise KeyError(f"{self.kind} '{cls.__name__}' is registered twice")
            self._classes[cls.__name__] = cls
            return cls

        return add

    def get(self, name: str) -> type:
        if name not in self._classes:
            hint = nearest(name, self._classes)
            raise UnknownNameError(f"unknown {self.kind} '{name}'.{hint} Known: {', '.join(sorted(self))}.")
        return self._classes[name]

    def __contains__(self, name: str) -> bool:
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def __repr__(self) -> str:
        rows = [(name, f"{cls.__module__}.{cls.__qualname__}") for name, cls in sorted(self._classes.items())]
        return tabulate(rows, headers=[self.kind, "class"])
