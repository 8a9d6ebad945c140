"""Finds the files that define classes, and hashes them, so that any edit gives another hash.

Files are hashed whole. That is stricter than looking at what a class uses, and it misses nothing:
a constant below the class, a function inside `if`, a second definition of the same name.

A process runs the code that it has loaded, whatever becomes of the files. So each file is read once
in a process, that of a registered class when it is registered.
"""
from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

PACKAGE = __name__.partition(".datasets.")[0]


def plugin_source(classes: Iterable[type]) -> str:
    """Returns a hash of the source of classes that are defined outside this package; "" if none is.

    It covers the files of the classes, of their bases outside this package, and the modules of
    their own folders that these import. A function that another module has put into such a class
    counts with that module. Files are known by name, so that a folder may be moved.
    """
    files: set[Path] = set()
    without_file: list[str] = []  # byte code of classes that were defined interactively
    values: list[str] = []  # of attributes, which a script may have set after the class was made
    for method_or_reader in classes:
        for cls in method_or_reader.__mro__:
            if not is_plugin(cls):
                continue
            path = source_file(cls)
            if path is not None and is_of_library(path) and not has_package_base(cls):
                continue
            if path is not None:
                files |= imported_files(path, top_folder(path, cls.__module__))
                values += parameters_in(vars(cls))
            for function in added_functions(cls):
                added_path = absolute_path(function.__code__.co_filename)
                files |= imported_files(added_path, top_folder(added_path, module_of(function)))
            if path is None or not has_source(cls):
                without_file.append(byte_code(cls))
    if not files and not without_file:
        return ""
    return hash_files(files, [*without_file, *values])


def parameters_of(instance: object) -> list[str]:
    """The plain values that an object of a plugin's class has been given, such as a strength."""
    return parameters_in(vars(instance))


def parameters_in(values: Mapping[str, object]) -> list[str]:
    """Numbers, texts and tuples of them, by name.

    Lists are data, such as class names. A text that may be a path is left out: folders may be
    moved.
    """
    parameters = []
    for name, value in sorted(values.items()):
        if name.startswith("__") or isinstance(value, list) or not is_plain(value):
            continue
        text = repr(value)
        if "/" not in text and "\\" not in text:
            parameters.append(f"{name} {text}")
    return parameters


def module_source(module: ModuleType) -> str:
    """Hashes the source of a plugin's module and of the modules of its folder that it imports.

    It is "" if the module has no file.
    """
    if not module.__file__ or not Path(module.__file__).is_file():
        return ""
    path = absolute_path(module.__file__)
    return hash_files(imported_files(path, top_folder(path, module.__name__)))


def has_package_base(cls: type) -> bool:
    """Whether a class is derived from one of this package, as those of an installed plugin are."""
    return any(not is_plugin(base) and base is not object for base in cls.__mro__)


def is_plugin(cls: type) -> bool:
    """Whether a class is defined outside this package."""
    return not f"{cls.__module__}.".startswith(f"{PACKAGE}.") and cls.__module__ != "builtins"


def source_file(cls: type) -> Path | None:
    """Returns the file that defines a class; None if it was defined interactively."""
    try:
        name = inspect.getsourcefile(cls)
    except (OSError, TypeError):
        return None
    if name is None or not Path(name).is_file():
        return None
    return absolute_path(name)


def absolute_path(name: str) -> Path:
    """The path of a file. A link is not followed: Python looks for other modules beside the link.
    """
    return Path(os.path.abspath(name))  # noqa: PTH100 - pathlib's keeps `..`


def has_source(cls: type) -> bool:
    """Whether the text of a class is known. That of a class made by `exec` or `type` is not."""
    try:
        inspect.getsource(cls)
    except (OSError, TypeError):
        return False
    return True


def functions_of(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """The functions in the body of a class by name: of properties, of decorators that say what
    they wrap, and below these."""
    for name, value in sorted(vars(cls).items()):
        if isinstance(value, property):
            value = value.fget
        value = getattr(value, "func", value)  # a cached property keeps its function there
        while value is not None:
            if isinstance(value, FunctionType):
                yield name, value
            value = getattr(value, "__wrapped__", None)


def added_functions(cls: type) -> list[FunctionType]:
    """Returns the functions of a plugin's class that another file of a plugin defines."""
    path_of_class = source_file(cls)
    added = []
    for _, function in functions_of(cls):
        path = absolute_path(function.__code__.co_filename)
        if not path.is_file() or path == path_of_class:
            continue
        if is_of_plugin(function):
            added.append(function)
    return added


def is_replaced(cls: type, name: str) -> bool:
    """Whether a method of a class is one of this package's that other code has replaced.

    Args:
        cls: The class, which may take the method over from one of its bases.
        name: Name of the method.
    """
    for owner in cls.__mro__:
        if name in vars(owner):
            functions = [function for key, function in functions_of(owner) if key == name]
            return not is_plugin(owner) and any(is_foreign(function) for function in functions)
    return False


def replaced_functions(cls: type) -> list[str]:
    """Names of functions of a class of this package, or of its module, that other code replaced."""
    names = [name for name in vars(cls) if is_replaced(cls, name)]
    for name, value in vars(sys.modules[cls.__module__]).items():
        if isinstance(value, FunctionType) and is_foreign(value):
            names.append(name)
    return names


def is_foreign(function: FunctionType) -> bool:
    """Whether a function is none that the methods and readers of this package have or import.

    Known by the module's name, because torch, whose decorators they have, may lie anywhere.
    """
    module = module_of(function)
    library = module.partition(".")[0]
    in_package = f"{module}.".startswith(f"{PACKAGE}.")
    return not in_package and library != "torch" and library not in sys.stdlib_module_names


def is_of_plugin(function: FunctionType) -> bool:
    """Whether a function is neither this package's nor a library's."""
    in_package = f"{module_of(function)}.".startswith(f"{PACKAGE}.")
    return not in_package and not is_of_library(Path(function.__code__.co_filename))


def module_of(function: FunctionType) -> str:
    """The module in which a function was defined. `functools.wraps` gives it another `__module__`.
    """
    return str(function.__globals__.get("__name__", ""))


def is_of_library(path: Path) -> bool:
    """Whether a file belongs to Python or to an installed library, such as one of decorators."""
    folders = sysconfig.get_paths()
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        if path.is_relative_to(folders[name]):
            return True
    return False


def byte_code(cls: type) -> str:
    """Describes a class as Python has compiled it: its functions, and the plain values of its body.
    """
    parts = [cls.__qualname__]
    for name, function in functions_of(cls):
        if not is_of_library(Path(function.__code__.co_filename)):
            parts.append(f"{name} {describe_function(function, set())}")
    for name, value in sorted(vars(cls).items()):
        if is_plain(value) and not name.startswith("__"):
            parts.append(f"{name} {value!r}")
    return "\n".join(parts)


def describe_function(function: FunctionType, seen: set[str]) -> str:
    """Describes a function: its code, and the plain values and functions of its module it uses.

    Args:
        function: The function.
        seen: Names of functions that are described already. Those that are described here are
            added, so that functions which call each other end.
    """
    parts = [*describe_code(function.__code__), repr(function.__defaults__)]
    for name in sorted(names_in(function.__code__)):
        value = function.__globals__.get(name)
        if is_plain(value) and not name.startswith("__"):
            parts.append(f"{name} {value!r}")
        if not isinstance(value, FunctionType) or name in seen:
            continue
        if value.__module__ == function.__module__:
            seen.add(name)
            parts.append(f"{name} {describe_function(value, seen)}")
    return " ".join(parts)


def describe_code(code: CodeType) -> list[str]:
    """Describes what a code object does, and those in it, such as a comprehension's.

    Its file and its line numbers are left out: they do not change what it does.
    """
    parts = [code.co_code.hex(), repr(code.co_names)]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            parts += describe_code(constant)
        else:
            parts.append(repr(constant))
    return parts


def names_in(code: CodeType) -> set[str]:
    """The names that a code object uses, with those of the code objects in it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


def is_plain(value: object) -> bool:
    """Whether a value has a text that is the same in every process."""
    if isinstance(value, tuple | list):
        return all(is_plain(item) for item in value)
    return isinstance(value, bool | int | float | str)


def top_folder(path: Path, module: str = "") -> Path:
    """Returns the folder of a plugin: that of its file, or of the package that the file belongs to.

    Args:
        path: The file.
        module: Dotted name of the file's module, by which a package without `__init__.py` is
            recognised.
    """
    packages = module.split(".")
    if path.stem != "__init__":
        packages.pop()
    folder = path.parent
    while True:
        is_package = (folder / "__init__.py").is_file()
        has_package_above = is_package and (folder.parent / "__init__.py").is_file()
        has_name_above = len(packages) > 1 and packages[-1] == folder.name
        if not has_package_above and not has_name_above:
            return folder
        packages = packages[:-1]
        folder = folder.parent


def imported_files(path: Path, folder: Path) -> set[Path]:
    """Returns a file and the files that it imports, also through each other.

    Args:
        path: The file.
        folder: The folder in or below which imported files count.
    """
    files = {path}
    waiting = [path]  # files whose imports are not looked at yet
    while waiting:
        current = waiting.pop()
        for imported in direct_imports(current, folder):
            if imported not in files:
                files.add(imported)
                waiting.append(imported)
    return files


def direct_imports(path: Path, folder: Path) -> set[Path]:
    """Returns the files that the import statements of a file name, wherever in it these are.

    Args:
        path: The file.
        folder: The folder in or below which imported files count.
    """
    try:
        statements = import_statements(read_source(path))
    except (OSError, SyntaxError, ValueError):
        return set()
    files: set[Path] = set()
    # Where Python looks for modules: a plugin may have added folders of its own.
    top_places = [folder, folder.parent]
    for entry in sys.path:
        search_folder = absolute_path(entry)
        if search_folder.is_relative_to(folder):
            top_places.append(search_folder)
    for node in statements:
        if isinstance(node, ast.Import):
            for alias in node.names:
                files |= files_of_module(alias.name.split("."), top_places)
        elif isinstance(node, ast.ImportFrom):
            parts = []
            if node.module:
                parts = node.module.split(".")
            places = top_places
            if node.level:  # the number of dots of a relative import
                places = [path.parents[node.level - 1]]
            for alias in node.names:
                modules = files_of_module([*parts, alias.name], places)
                if not modules and node.level and not parts:
                    # `from . import X`, where X is no module, but a name in the package's own file.
                    modules = files_of_module(["__init__"], places)
                files |= modules
        elif isinstance(node, ast.Call):
            name = imported_by_name(node)
            files |= files_of_module(name.strip(".").split("."), top_places)
    return {file for file in files if file.is_relative_to(folder)}


@lru_cache(maxsize=500)  # a plan asks for the files of the same methods for every run
def import_statements(source: bytes) -> list[ast.AST]:
    """The import statements in the text of a file, and calls that import a module by its name."""
    statements: list[ast.AST] = []
    for node in ast.walk(ast.parse(source)):
        is_statement = isinstance(node, ast.Import | ast.ImportFrom)
        if is_statement or (isinstance(node, ast.Call) and imported_by_name(node)):
            statements.append(node)
    return statements


def imported_by_name(call: ast.Call) -> str:
    """The module that a call such as `import_module("helpers")` names; "" for other calls."""
    function = ""
    if isinstance(call.func, ast.Name):
        function = call.func.id
    elif isinstance(call.func, ast.Attribute):  # importlib.import_module
        function = call.func.attr
    if function in ("import_module", "__import__") and call.args:
        first = call.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return first.value
    return ""


def files_of_module(parts: list[str], places: Iterable[Path]) -> set[Path]:
    """Returns the files of a module and of the packages around it.

    Args:
        parts: Parts of the module's dotted name.
        places: Folders below which the module is looked for.
    """
    files: set[Path] = set()
    for place in places:
        for length in range(1, len(parts) + 1):
            stem = place.joinpath(*parts[:length])
            for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
                if candidate.is_file():
                    files.add(absolute_path(str(candidate)))
    return files


@cache
def read_source(path: Path) -> bytes:
    """The content of a file when this process has first asked for it: of the code that it runs."""
    return path.read_bytes()


def hash_files(files: Iterable[Path], texts: Iterable[str] = ()) -> str:
    """Hashes the names and contents of files, whatever their line ends, and further texts.

    Args:
        files: Paths of the files.
        texts: Texts that are hashed too.

    Returns:
        The hash, 16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for path in sorted(files):
        content = read_source(path).replace(b"\r\n", b"\n")
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    for text in sorted(texts):
        digest.update(text.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]
