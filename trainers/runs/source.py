"""Hashes of the code of a method: a method that was edited is another method.

Files are hashed whole. That is stricter than looking at what a class uses, and it misses nothing:
a constant below the class, a function inside `if`, a second definition of the same name.
"""
from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable
from pathlib import Path

from ... import __version__

PACKAGE = __name__.partition(".trainers.")[0]
TRAINERS = Path(__file__).resolve().parents[1]
FORMULAS = TRAINERS / "functional"
LIFE_CYCLE = f"{PACKAGE}.trainers.base"  # of runs: it holds no formula of a method


def method_source(classes: Iterable[type]) -> dict[str, str]:
    """The source of a method and of the terms that are added to it.

    Args:
        classes: The method's class and those of added regularisers.

    Returns:
        version: Of this package, to whose files `hash` belongs.
        hash: Of the files of this package that define the classes, and of the formulas in
            `trainers/functional` that these files import.
        plugin: Of the files outside this package: those of the classes and the modules of their
            own folders that they import. Empty for a built-in method.
    """
    built_in: set[Path] = set()
    plugin: set[Path] = set()
    without_file: list[str] = []
    for method in classes:
        for cls in method.__mro__:
            if cls is object or cls.__module__ == LIFE_CYCLE:
                continue
            path = source_file(cls)
            if not is_plugin(cls):
                if path is not None:
                    built_in |= imported_files(path, FORMULAS)
                continue
            if path is not None:
                plugin |= imported_files(path, top_folder(path))
            if path is None or not has_source(cls):
                without_file.append(byte_code(cls))
    plugin_hash = ""
    if plugin or without_file:
        plugin_hash = hash_files(plugin, without_file)
    return {"version": __version__, "hash": hash_files(built_in), "plugin": plugin_hash}


def class_source(cls: type) -> str:
    """A hash of the files outside this package that define a class, such as a user's data set."""
    return method_source([cls])["plugin"]


def is_plugin(cls: type) -> bool:
    """Whether a class is defined outside this package."""
    return not f"{cls.__module__}.".startswith(f"{PACKAGE}.") and cls.__module__ != "builtins"


def source_file(cls: type) -> Path | None:
    """The file that defines a class; None if it was defined interactively."""
    try:
        name = inspect.getsourcefile(cls)
    except (OSError, TypeError):
        return None
    if name is None or not Path(name).is_file():
        return None
    return Path(name).resolve()


def has_source(cls: type) -> bool:
    """Whether the text of a class is known. That of a class made by `exec` or `type` is not."""
    try:
        inspect.getsource(cls)
    except (OSError, TypeError):
        return False
    return True


def byte_code(cls: type) -> str:
    """The functions of a class as Python has compiled them."""
    parts = [cls.__qualname__]
    for name, value in sorted(vars(cls).items()):
        code = getattr(value, "__code__", None)
        if code is not None:
            parts.append(f"{name} {code.co_code.hex()} {code.co_consts!r}")
    return "\n".join(parts)


def top_folder(path: Path) -> Path:
    """The folder of a plugin: that of its file, or of the package that the file belongs to."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder


def imported_files(path: Path, folder: Path) -> set[Path]:
    """A file and the files in or below `folder` that it imports, also through each other."""
    files = {path}
    waiting = [path]
    while waiting:
        current = waiting.pop()
        for imported in direct_imports(current, folder):
            if imported not in files:
                files.add(imported)
                waiting.append(imported)
    return files


def direct_imports(path: Path, folder: Path) -> set[Path]:
    """The files in or below `folder` that the import statements of a file name, wherever these are."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    files: set[Path] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                files |= files_of_module(alias.name.split("."), [folder, folder.parent])
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            places = [folder, folder.parent]
            if node.level:
                places = [path.parents[node.level - 1]]
            for alias in node.names:
                files |= files_of_module([*parts, alias.name], places)
    return {file for file in files if file.is_relative_to(folder)}


def files_of_module(parts: list[str], places: Iterable[Path]) -> set[Path]:
    """The files of a module and of the packages around it, looked for below some folders."""
    files: set[Path] = set()
    for place in places:
        for length in range(1, len(parts) + 1):
            stem = place.joinpath(*parts[:length])
            for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
                if candidate.is_file():
                    files.add(candidate.resolve())
    return files


def hash_files(files: Iterable[Path], texts: Iterable[str] = ()) -> str:
    """A hash of the names and contents of files, with any line ends, and of further texts."""
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    for text in sorted(texts):
        digest.update(text.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]
