"""Set-up: quiet, done once, again when a dependency changes, one line when it fails.

And which `promptcal` is imported. pip is replaced by a script, because the tests are offline.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common import PROJECT

# In place of python3 and .venv/bin/python: makes the environment, answers as pip does. Code that it
# reads from its input is run by the real Python.
PYTHON = f"""#!/usr/bin/env bash
case "$*" in
    -) exec {sys.executable} - ;;
    *"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
    *"--editable"*)
        echo "${{@: -1}}" >> calls
        echo "Collecting torch"
        echo "  Downloading torch-2.15-cp311-manylinux_x86_64.whl (900.1 MB)"
        echo "SetuptoolsDeprecationWarning: ******** setup.py install is deprecated ********" >&2
        echo "Installing collected packages: torch"
        if [ -f offline ]; then
            echo "WARNING: Retrying after connection broken by 'NewConnectionError': Name resolution failed" >&2
            exit 1
        elif [ -f impossible ]; then
            echo "ERROR: torch needs another Python" >&2
            exit 1
        fi ;;
esac
exit 0
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    shutil.copy(PROJECT / "tools" / "environment.sh", tmp_path / "tools")
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(PROJECT / name, tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(PYTHON)
    (tmp_path / "bin" / "python3").chmod(0o755)
    return tmp_path


def set_up(checkout: Path, what: str) -> subprocess.CompletedProcess:
    command = ["bash", "-c", f"source tools/environment.sh {what}; echo done"]
    path = f"{checkout / 'bin'}:/usr/bin:/bin"
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, env={"PATH": path}, timeout=60)


def test_the_demo_installs_what_it_needs_and_the_tests_add_the_rest(checkout):
    first = set_up(checkout, "demo")
    assert first.returncode == 0, first
    assert first.stdout.splitlines()[-2:] == ["Environment ready.", "done"]
    assert "torch-2.15" in first.stdout and "(900.1 MB)" in first.stdout
    assert "deprecated" not in first.stdout + first.stderr and "Collecting" not in first.stdout
    assert set_up(checkout, "demo").stdout == "done\n"
    assert "Environment ready." in set_up(checkout, "tests").stdout
    assert set_up(checkout, "tests").stdout == "done\n"
    assert set_up(checkout, "demo").stdout == "done\n"
    assert (checkout / "calls").read_text().split() == [".", ".[dev]"]
    (checkout / ".venv" / "bin" / "python").unlink()  # an environment without Python is made again
    assert "Environment ready." in set_up(checkout, "tests").stdout
    assert set_up(checkout, "demo").stdout == "done\n"
    assert (checkout / "calls").read_text().split() == [".", ".[dev]", ".[dev]"]


@pytest.mark.parametrize(("name", "before", "after", "printed"), [
    ("pyproject.toml", '"torch>=2.6"', '"torch>=2.7"', "Environment ready."),
    ("pyproject.toml", '"pytest>=8"', '"pytest>=9"', "Environment ready."),
    ("pyproject.toml", "promptcal.tools.command:run", "promptcal.tools.command:main", "Environment ready."),
    ("setup.py", "PARTS", "FOLDERS", "Environment ready."),
    ("pyproject.toml", "disallow_untyped_defs = true", "disallow_untyped_defs = false", "done\n"),
    ("pyproject.toml", "--durations=10", "--durations=20", "done\n"),
    ("pyproject.toml", "# CVE-2025-32434", "# safe loading", "done\n"),
])
def test_a_change_installs_again_if_it_is_of_what_is_installed(checkout, name, before, after, printed):
    set_up(checkout, "tests")
    text = (checkout / name).read_text()
    assert before in text
    for changed in (text.replace(before, after), text):  # and changed back
        (checkout / name).write_text(changed)
        done = set_up(checkout, "tests").stdout
        assert done == printed or printed in done.splitlines()


@pytest.mark.parametrize("fault", ["offline", "impossible"])
def test_a_failure_is_one_line(checkout, fault):
    (checkout / fault).touch()
    done = set_up(checkout, "demo")
    assert done.returncode == 1 and "done" not in done.stdout
    message = "error: pip could not install what pyproject.toml asks for: check the network"
    assert done.stderr.splitlines()[-1].startswith(message) and "deprecated" not in done.stderr
    (checkout / fault).unlink()
    assert set_up(checkout, "demo").returncode == 0


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Another clone, whose commands say so."""
    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "output", "tests")
    clone = Path(shutil.copytree(PROJECT, tmp_path / "promptcal", symlinks=True, ignore=ignored))
    with (clone / "datasets" / "utils" / "cli.py").open("a") as file:
        file.write('print("the other clone")\n')
    return clone


def python(*args: object, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / ".package")}
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd, env=environment, capture_output=True, text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.posix
def test_promptcal_is_a_regular_package_wherever_python_starts(clone):
    """The clone's parent has a folder `promptcal`, the clone, which is not the package."""
    code = "import promptcal; from promptcal import datasets; print(promptcal.__version__, datasets.__file__)"
    version, file = python("-c", code, cwd=clone.parent).split()
    assert version == python("-m", "promptcal", "--version", cwd=clone).split()[1]
    assert Path(file).samefile(PROJECT / "datasets" / "__init__.py")


def test_a_folder_beside_a_script_does_not_shadow_the_package(tmp_path):
    (tmp_path / "promptcal").mkdir()
    code = "import promptcal.trainers; print(promptcal.trainers.__file__)"
    (tmp_path / "script.py").write_text(code)
    imported = Path(python("script.py", cwd=tmp_path).strip())
    assert imported.samefile(PROJECT / "trainers" / "__init__.py")


@pytest.mark.posix
def test_a_script_runs_the_code_of_its_own_clone(clone):
    """Also in the environment of another clone."""
    assert "the other clone" in python(clone / "tools" / "train.py", "--help", cwd=PROJECT)
    assert "the other clone" not in python(PROJECT / "tools" / "train.py", "--help", cwd=clone)
