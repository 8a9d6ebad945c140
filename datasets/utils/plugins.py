"""Imports plugins: modules outside the package that register methods, data sets, metrics, …"""
from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from .errors import ConfigError, UserError, one_line

VARIABLE = "PROMPTCAL_PLUGINS"  # module names, separated by commas or colons
GROUP = "promptcal.plugins"  # entry points of installed packages


def load_plugins(names: Iterable[str] = ()) -> None:
    """Imports plugins: those called `names`, of the environment variable, of installed packages.

    The variable then has the names too, so that processes which are started from here import the
    same plugins.

    Args:
        names: Names of modules. A text may hold several, separated by commas, colons or spaces.
    """
    modules: dict[str, None] = {}  # each once, in order
    for text in (os.environ.get(VARIABLE, ""), *names):
        for name in re.split(r"[,:\s]+", text):
            if name:
                modules[name] = None
    if modules:
        os.environ[VARIABLE] = ",".join(modules)
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)  # as `python -m` does
    for name in modules:
        import_plugin(name, f"plugin '{name}'")
    for entry in entry_points(group=GROUP):
        package = entry.dist.name if entry.dist else "a package"
        import_plugin(entry.module, f"plugin '{entry.module}' of the installed package {package}")


def import_plugin(name: str, what: str) -> None:
    """Imports a plugin; any error becomes one line with the place where it was raised.

    Args:
        name: Name of the module.
        what: The plugin in words, for the message.
    """
    if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
        raise ConfigError(f"{what} is not a module's name: write it as in Python's import, such as "
                          f"lab.hinge for lab/hinge.py")
    try:
        import_module(name)
    except (Exception, SystemExit) as error:
        absent = ""
        if isinstance(error, ModuleNotFoundError) and error.name:
            absent = error.name
        # Not something that the plugin imports, but itself or a package that holds it.
        if absent and f"{name}.".startswith(f"{absent}."):
            raise ConfigError(f"{what} is not found: there is no module '{absent}' in "
                              f"{Path.cwd()} or among the installed packages") from error
        if isinstance(error, UserError):
            raise ConfigError(f"{what}: {error}") from error
        where = ""
        if not isinstance(error, SyntaxError):  # which says where it is
            for frame in traceback.extract_tb(error.__traceback__):
                if "importlib" not in frame.filename:
                    where = f" ({frame.filename}, line {frame.lineno})"
        raise ConfigError(f"{what} cannot be imported: {type(error).__name__}: "
                          f"{one_line(error, 300)}{where}") from error
