"""How tests are shared out. What they share themselves is in `common.py`."""
from __future__ import annotations

from collections import Counter

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """The fixtures, where tests are run: the process that only shares them out among others does without torch, which
    costs it ten seconds at its beginning and its end."""
    if not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("common")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with many slow tests first: the processes that share the files out then end together. The order within a
    file stays."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
