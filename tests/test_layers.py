"""Imports go one way: down the list of layers below, never up, never in a circle.

Those inside functions and those for type checkers count: a reader has to follow them all the same.
"""
from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]

# From the bottom up: folders and single modules. A layer may import itself and those before it. A
# module belongs to the longest entry that contains it.
LAYERS = (
    "datasets/utils", "datasets/views", "datasets/synthetic", "datasets/download", "datasets",
    "datasets/download/install", "datasets/download/verify",
    "trainers/functional", "trainers/config", "trainers/registry", "trainers/vlm",
    "trainers/vlm/small", "trainers/runs/record", "trainers/runs/record_1_0", "trainers/runs",
    "trainers/engine", "trainers/fewshot", "trainers", "trainers/report", "trainers/predict",
    "trainers/experiments", "trainers/dassl", "tools",
)
# The report reads run folders. It must work without weights and data.
REPORT_IMPORTS = {
    "datasets/utils", "datasets/views", "datasets", "trainers/functional", "trainers/registry",
    "trainers/config", "trainers/report", "trainers/runs/record", "trainers/runs/record_1_0",
}
MODULES = {}
for top in ("datasets", "trainers", "tools"):
    for file in sorted((PROJECT / top).rglob("*.py")):
        module_path = file.relative_to(PROJECT).with_suffix("").as_posix()
        MODULES[module_path.removesuffix("/__init__")] = file


def layer_of(module: str) -> str:
    return max((layer for layer in LAYERS if f"{module}/".startswith(f"{layer}/")), key=len)


@cache
def imports(module: str) -> list[str]:
    """The project's modules that a module imports, inside functions and for type checkers too."""
    file = MODULES[module]
    package = file.parent.relative_to(PROJECT).parts
    found = []
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
            imported = next((key for key in ("/".join(parts), "/".join(parts[:-1])) if key in MODULES), None)
            if imported and imported != module:
                found.append(imported)
    return found


def test_imports_go_down():
    """A folder without `__init__.py` would be no module, and not be installed."""
    assert not set(LAYERS) - MODULES.keys()
    upward = []
    for module in MODULES:
        for target in imports(module):
            if LAYERS.index(layer_of(target)) > LAYERS.index(layer_of(module)):
                upward.append(f"{module} imports {target}: {layer_of(target)} is above {layer_of(module)}")
    assert not upward, "\n".join(upward)


def test_no_circular_imports():
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


@pytest.mark.parametrize(("layer", "allowed"), [
    ("trainers/report", REPORT_IMPORTS),
    ("trainers/functional", {"trainers/functional", "datasets/utils"}),
    ("datasets/utils", {"datasets/utils"}),
])
def test_what_a_layer_does_without(layer: str, allowed: set[str]):
    others = []
    for module in MODULES:
        if layer_of(module) == layer:
            for target in imports(module):
                if layer_of(target) not in allowed:
                    others.append(f"{module} imports {target}")
    assert not others, "\n".join(others)


def test_usage_errors_do_not_import_torch():
    lines = (
        "import promptcal.datasets, promptcal.datasets.utils.cli, promptcal.datasets.utils.files, "
        "promptcal.trainers.config, promptcal.trainers.registry, promptcal.tools.train as train, sys\n"
        "import promptcal.tools.predict, promptcal.tools.report, promptcal.tools.reproduce\n"
        "data = ['--trainer', 'SoC', '--dataset-config-file', 'dtd', '--root', '/nowhere']\n"
        "for words in (['--trainer', 'Sock'], ['--trainer', 'SoC', '--config-file', 'nowhere'], data):\n"
        "    try: train.main(words)\n"
        "    except ValueError as error: print(error, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=True)
    assert [line.rpartition(" ")[2] for line in done.stdout.splitlines()] == ["False"] * 3


def test_the_way_from_the_command_to_the_results_gets_no_longer():
    """How often a reader changes file. The bounds may only sink."""
    done = subprocess.run(
        [sys.executable, PROJECT / "tests" / "reading_order.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    changes, files = re.search(r"(\d+) changes between (\d+) files", done.stdout).groups()
    assert int(changes) <= 137 and int(files) <= 48, done.stdout
