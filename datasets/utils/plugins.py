"""Plugins: modules outside the package that register methods, data sets, metrics and backbones when imported."""
from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from .errors import ConfigError, UserError, one_line

VARIABLE = "PROMPTCAL_PLUGINS"  # module names, separated by commas or colons
GROUP = "promptcal.plugins"  # entry points of installed packages


def load_plugins(names: Iterable[str] = ()) -> None:
    """Imports the plugins called `names`, those of the environment variable and those of installed packages. The
    variable then has the names too: processes that are started from here import the same plugins."""
    named = [name for text in (os.environ.get(VARIABLE, ""), *names) for name in re.split(r"[,:\s]+", text) if name]
    if named:
        named = list(dict.fromkeys(named))
        os.environ[VARIABLE] = ",".join(named)
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)  # as `python -m` does
    for name in named:
        import_plugin(name, f"plugin '{name}'")
    for entry in entry_points(group=GROUP):
        package = entry.dist.name if entry.dist else "a package"
        import_plugin(entry.module, f"plugin '{entry.module}' of the installed package {package}")


def import_plugin(name: str, what: str) -> None:
    """Any error of the import as one line with the place where it was raised."""
    if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
        raise ConfigError(f"{what} is not a module's name: write it as in Python's import, such as lab.hinge for "
                          f"lab/hinge.py")
    try:
        import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{what} is not found: there is no module '{error.name}' in {Path.cwd()} or among the "
                              f"installed packages") from error
        if isinstance(error, UserError):
            raise ConfigError(f"{what}: {error}") from error
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
        what = f"{what} cannot be imported: {type(error).__name__}"
        where = "" if isinstance(error, SyntaxError) else f" ({frames[-1].filename}, line {frames[-1].lineno})"
        raise ConfigError(f"{what}: {one_line(error, 300)}{where}") from error


def plugin_source(cls: type) -> str:
    """A hash of the source of a class from outside this package; "" for a class of this package.

    It covers the file of the class, those of its bases that are not this package's either, and the
    modules of their folders that these import, also through each other. A file that was edited
    anywhere is another source. Files are known by name, so that a folder may be moved.
    """
    waiting = []
    for base in cls.__mro__:
        is_derived = any(is_of_this_package(ancestor) for ancestor in base.__mro__)
        if is_derived and not is_of_this_package(base):
            waiting.append(getattr(sys.modules.get(base.__module__), "__file__", None))
    if not waiting:
        return ""
    contents: dict[str, bytes] = {}
    while waiting:
        file = waiting.pop()
        if file is None:
            contents[""] = b"defined interactively, without a file"
        elif file not in contents:
            contents[file] = b"cannot be read"
            with suppress(OSError):
                contents[file] = Path(file).read_bytes()
            waiting += imported_neighbours(contents[file], Path(file).parent)
    digest = hashlib.sha256()
    for file in sorted(contents):
        digest.update(f"{Path(file).name} {len(contents[file])}\n".encode())
        digest.update(contents[file])
    return digest.hexdigest()[:16]


def is_of_this_package(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def imported_neighbours(source: bytes, folder: Path) -> list[str]:
    """The files in `folder` or in packages in it whose names occur in the imports of a source. One
    too many, of the same name as a module from elsewhere, does no harm."""
    names: set[str] = set()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.update((node.module or "").split("."))
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                names.update(alias.name.split("."))
    files = []
    for name in sorted(names - {"", "*"}):
        if (folder / f"{name}.py").is_file():
            files.append(str(folder / f"{name}.py"))
        if (folder / name / "__init__.py").is_file():
            files += map(str, sorted((folder / name).glob("*.py")))
    return files
