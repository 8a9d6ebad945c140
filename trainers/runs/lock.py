"""The lock of a run folder: two processes never work in one folder."""
from __future__ import annotations

from pathlib import Path

from ...datasets.utils.errors import UserError
from ...datasets.utils.lock import OwnedLock


class RunLock(OwnedLock):
    """The file `lock` in a folder."""

    remedy = "choose another --output-dir"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "lock")

    def take(self) -> None:
        """Creates the file, or raises a UserError that says why not."""
        try:
            super().take()
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}; {self.remedy}") from error
