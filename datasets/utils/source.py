"""The source of classes: the files that define them, and a hash that any edit changes.

Files are hashed whole. That is stricter than looking at what a class uses, and it misses nothing:
a constant below the class, a function inside `if`, a second definition of the same name.
"""
from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable
from pathlib import Path

PACKAGE = __name__.partition(".datasets.")[0]


def plugin_source(classes: Iterable[type]) -> str:
    """A hash of the source of classes that are defined outside this package; "" if none is.

    It covers the files of the classes, of their bases outside this package, and the modules of
    their own folders that these import. Files are known by name, so that a folder may be moved.
    """
    files: set[Path] = set()
    without_file: list[str] = []
    for given_class in classes:
        for cls in given_class.__mro__:
            if not is_plugin(cls) or not has_package_base(cls):
                continue
            path = source_file(cls)
            if path is not None:
                files |= imported_files(path, top_folder(path))
            if path is None or not has_source(cls):
                without_file.append(byte_code(cls))
    if not files and not without_file:
        return ""
    return hash_files(files, without_file)


def has_package_base(cls: type) -> bool:
    """Whether a class is derived from one of this package. Others, such as `ABC`, are
    libraries'."""
    return any(not is_plugin(base) and base is not object for base in cls.__mro__)


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
    """A file and the files that it imports, also through each other.

    Args:
        path: Of the file.
        folder: Only files in or below it count.
    """
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
    """The files that the import statements of a file name, wherever these are.

    Args:
        path: Of the file.
        folder: Only files in or below it count.
    """
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
    """The files of a module and of the packages around it.

    Args:
        parts: Of the module's name.
        places: Folders below which it is looked for.
    """
    files: set[Path] = set()
    for place in places:
        for length in range(1, len(parts) + 1):
            stem = place.joinpath(*parts[:length])
            for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
                if candidate.is_file():
                    files.add(candidate.resolve())
    return files


def hash_files(files: Iterable[Path], texts: Iterable[str] = ()) -> str:
    """A hash of the names and contents of files, with any line ends, and of further texts.

    Args:
        files: Their paths.
        texts: Any texts.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    for text in sorted(texts):
        digest.update(text.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]
