"""How tests are distributed over processes. Shared fixtures are in `common.py`."""
from __future__ import annotations

from collections import Counter

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Loads the fixtures where tests run. The process that only distributes tests does not need torch."""
    if not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("common")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with many slow tests first, so that all processes end at about the same time. The order within a file
    stays."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
