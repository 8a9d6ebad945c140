"""Headless Chromium through Playwright, for the tests of pages."""
from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The browser makes no requests of its own. It has no screen, and no sandbox where tests run as
# root.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)


def chromium() -> str | None:
    """The browser that the system has. Playwright's own is not downloaded."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    return None


@contextmanager
def launched() -> Iterator:
    """A browser, or a skip that says what to install."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright: pip install playwright")
    if chromium() is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """An opened page, with its complaints and requests."""

    def __init__(self, browser, path: Path, **context) -> None:
        self.page = browser.new_context(**context).new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self.on_dialog)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def on_dialog(self, dialog) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()

    def __enter__(self):
        return self.page

    def __exit__(self, *_: object) -> None:
        outside = [url for url in self.requests if not url.startswith(("file:", "data:"))]
        self.page.context.close()
        assert not self.complaints, self.complaints
        assert not outside, outside
