"""The rooms of the house and who may know whom: imports go down the list below, never up, never in a circle."""
from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]

FORMULAS = (
    "arrays", "objectives", "pairs", "aggregation", "calibration", "conformal", "posthoc", "theory", "operations",
    "registry", "significance",
)
# From the ground up. A room may import itself and what stands before it.
ROOMS = (
    "datasets/utils", "datasets/views", "datasets/drawing", "datasets/download", "datasets", "datasets/inventory",
    "formulas", "trainers/config", "trainers/vlm", "trainers/vlm/small", "trainers/engine", "trainers/runs",
    "trainers/fewshot", "trainers", "trainers/report", "trainers/pictures", "trainers/experiments", "trainers/dassl",
    "tools",
)
# The report reads run folders; it must work where neither weights nor data are.
REPORT_KNOWS = {"datasets/utils", "datasets/views", "datasets", "formulas", "trainers/config", "trainers/report"}


def modules() -> dict[str, Path]:
    files = [file for top in ("datasets", "trainers", "tools") for file in sorted((PROJECT / top).rglob("*.py"))]
    return {file.relative_to(PROJECT).with_suffix("").as_posix().removesuffix("/__init__"): file for file in files}


MODULES = modules()


def room_of(module: str) -> str:
    """`trainers/report/page/runs` lives in `trainers/report`: a folder that is not listed belongs to the one above."""
    file = MODULES[module]
    folder = file.parent.relative_to(PROJECT).as_posix()
    if folder == "trainers" and file.stem in FORMULAS:
        return "formulas"
    return next(room for room in sorted(ROOMS, key=len, reverse=True) if f"{folder}/".startswith(f"{room}/"))


def imports(module: str) -> Iterator[str]:
    """The project's modules that a module imports anywhere in its text, also lazily or for types alone."""
    file = MODULES[module]
    package = file.parent.relative_to(PROJECT).parts
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = list(package[: len(package) - node.level + 1]) if node.level else []
            base = above + (node.module.split(".") if node.module else [])
            names = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for name in names:
            parts = name[1:] if name[0] == "promptcal" else name
            found = next((key for key in ("/".join(parts), "/".join(parts[:-1])) if key in MODULES), None)
            if found and found != module:
                yield found


def test_imports_go_down():
    upward = [
        f"{module} imports {target}: {room_of(target)} stands above {room_of(module)}"
        for module in MODULES for target in imports(module)
        if ROOMS.index(room_of(target)) > ROOMS.index(room_of(module))
    ]
    assert not upward, "\n".join(upward)


def test_no_imports_in_a_circle():
    """Depth first; what is met again on the way down closes a circle."""
    done: set[str] = set()
    circles: list[str] = []

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            circles.append(" -> ".join([*path[path.index(module) :], module]))
        elif module not in done:
            for target in imports(module):
                visit(target, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())
    assert not circles, "\n".join(circles)


def test_the_report_knows_no_model():
    known = [
        f"{module} imports {target}" for module in MODULES if room_of(module) == "trainers/report"
        for target in imports(module) if room_of(target) not in REPORT_KNOWS
    ]
    assert not known, "\n".join(known)


def test_formulas_stand_on_utils_alone():
    for name in FORMULAS:
        rooms = {room_of(target) for target in imports(f"trainers/{name}")}
        assert rooms <= {"formulas", "datasets/utils"}, name


def test_what_answers_at_once_does_without_torch():
    lines = "import promptcal.datasets, promptcal.datasets.utils.cli, promptcal.datasets.utils.files, " \
            "promptcal.trainers.config, promptcal.trainers.registry, promptcal.tools.train, sys; " \
            "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "formulas" and (PROJECT / room).is_dir()])
def test_every_room_is_a_package(room: str):
    assert room in MODULES, f"{room}/__init__.py is missing, so the room would not be installed"
