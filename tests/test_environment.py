"""Setting up: quiet, once, again when setup.py changes, and one clear line when the index is not reached. pip itself is
played by a script, because the tests are offline."""
from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from common import PROJECT

# Stands for python3 and for .venv/bin/python: makes the environment, answers as pip does.
PYTHON = """#!/usr/bin/env bash
case "$*" in
    *"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
    *"pip install"*)
        echo "pip $*" >> calls
        echo "Collecting torch"
        echo "  Downloading torch-2.15-cp311-manylinux_x86_64.whl (900.1 MB)"
        echo "SetuptoolsDeprecationWarning: ******** setup.py install is deprecated ********" >&2
        echo "Installing collected packages: torch"
        if [ -f offline ]; then
            echo "WARNING: Retrying after connection broken by 'NewConnectionError': Name resolution failed" >&2
            echo "ERROR: No matching distribution found for torch" >&2
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
        (tmp_path / name).write_text("first")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(PYTHON)
    (tmp_path / "bin" / "python3").chmod(0o755)
    return tmp_path


def set_up(checkout: Path) -> subprocess.CompletedProcess:
    return subprocess.run(["bash", "-c", "source tools/environment.sh; echo done"], cwd=checkout, capture_output=True,
                          text=True, env={"PATH": f"{checkout / 'bin'}:/usr/bin:/bin"}, timeout=60)


def calls(checkout: Path) -> int:
    return len((checkout / "calls").read_text().splitlines())


def test_it_is_quiet_and_done_once(checkout: Path):
    first = set_up(checkout)
    assert first.returncode == 0 and first.stdout.splitlines()[-2:] == ["Environment ready.", "done"], first
    assert "torch-2.15" in first.stdout and "(900.1 MB)" in first.stdout
    assert "deprecated" not in first.stdout + first.stderr and "Collecting" not in first.stdout
    again = set_up(checkout)
    assert again.stdout == "done\n" and calls(checkout) == 2


def test_a_changed_setup_is_noticed(checkout: Path):
    set_up(checkout)
    for text in ("second", "first"):  # and changed back
        (checkout / "setup.py").write_text(text)
        assert "setup.py has changed" in set_up(checkout).stdout
    assert calls(checkout) == 6
    (checkout / ".venv" / "bin" / "python").unlink()
    assert "Environment ready." in set_up(checkout).stdout


@pytest.mark.parametrize(("fault", "said"), [
    ("offline", "error: the package index is not reached: check the network"),
    ("impossible", "error: pip could not install what setup.py asks for"),
])
def test_what_fails_is_told_in_a_line(checkout: Path, fault: str, said: str):
    (checkout / fault).touch()
    done = set_up(checkout)
    assert done.returncode == 1 and "done" not in done.stdout
    assert done.stderr.splitlines()[-1].startswith(said) and "deprecated" not in done.stderr
    (checkout / fault).unlink()
    assert set_up(checkout).returncode == 0
