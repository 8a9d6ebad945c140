"""How tests are distributed over processes, and which need POSIX. Shared fixtures are in
`common.py`."""
from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

# In a test file: it starts processes by fork, sends them signals or limits them.
USES_POSIX = re.compile(r"^(from (processes|test_readme) import|import (fcntl|resource)$)", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-posix", action="store_true",
                     help="only tests that run on Windows and macOS; on Linux, with what these "
                          "lack taken away")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Loads the fixtures where tests run. The process that only distributes tests does not need
    torch."""
    if not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("common")
        if config.getoption("without_posix") and sys.platform == "linux":
            import without_posix

            # pytest names its own folder after the user's number.
            config.option.basetemp = config.option.basetemp or tempfile.mkdtemp()
            without_posix.take_away()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("without_posix") or not collection_path.name.startswith("test_"):
        return None
    if USES_POSIX.search(collection_path.read_text(encoding="utf-8")):
        return True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with many slow tests first, so that all processes end at about the same time. The order
    within a file stays."""
    if config.getoption("without_posix"):
        items[:] = [item for item in items if not item.get_closest_marker("posix")]
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
