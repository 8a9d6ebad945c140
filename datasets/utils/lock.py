"""Locks a file or a folder for one process at a time, on any system and any disk."""
from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from .errors import UserError
from .files import read_json

logger = logging.getLogger(__name__)

TOUCH_SECONDS = 10.0  # between two touches of the file
# Seconds without a touch after which an owner on another machine is taken to be dead. It is the
# time of twelve touches, so that a slow disk is not mistaken for a dead owner.
SILENCE = 120.0
RETRY_SECONDS = 0.2  # between attempts of a process that waits
# On Windows `os.kill(pid, 0)` is not a question: it sends Ctrl-C.
PROCESSES_CAN_BE_ASKED_FOR = sys.platform != "win32"


class LockedError(UserError):
    """Another process holds the lock."""


class OwnedLock:
    """A file that names its owner's host and process, and is touched while the owner lives.

    The lock of a dead process on this host, or of a silent one on another host, is taken over. A
    process on this host that is only stopped (Ctrl-Z) keeps its lock. On Windows a dead process is
    known by its silence. Not `filelock`: it needs a file system with locks, which cluster disks are
    often mounted without, it cannot name the owner, and it leaves its file in the data root.
    """

    remedy = "choose another folder"  # advice to a process that finds the lock taken

    def __init__(self, path: Path) -> None:
        self.path = path
        self.token = secrets.token_hex(8)
        self.owner = {
            "host": socket.gethostname(),
            "system": system_id(),
            "pid": os.getpid(),
            "started": start_time(os.getpid()),
            "token": self.token,
        }

    @contextmanager
    def held(self) -> Iterator[Self]:
        """Holds the lock, or raises a LockedError that names the owner."""
        self.take()
        released = threading.Event()
        try:
            threading.Thread(target=self.touch_until, args=(released,), daemon=True).start()
            yield self
        finally:
            released.set()
            # A forked process leaves it to its parent.
            if self.is_ours() and os.getpid() == self.owner["pid"]:
                with suppress(OSError):  # the disk is lost: the file is taken over later
                    self.path.unlink()

    @contextmanager
    def awaited(self, work: str) -> Iterator[Self]:
        """Holds the lock. Waits, with a message, while another process has it.

        Args:
            work: Words that complete "another process …" in the message.
        """
        with ExitStack() as stack:
            is_announced = False
            while True:
                try:
                    stack.enter_context(self.held())
                    break
                except LockedError:
                    if not is_announced:
                        logger.info("another process %s; waiting for it", work)
                        is_announced = True
                time.sleep(RETRY_SECONDS)
            yield self

    def take(self) -> None:
        """Creates the file, or raises a LockedError, or an OSError where no file can be written."""
        owner: dict = {}
        for _ in range(2):
            with suppress(FileExistsError):
                return self.create(self.owner)
            # Released, or taken over by another process, in the meantime.
            with suppress(FileNotFoundError):
                owner = read_owner(self.path)
                if not self.is_gone(owner):
                    break
                self.remove(owner)
        raise LockedError(
            f"{self.path.parent} is in use by process {owner.get('pid', '?')} on "
            f"{owner.get('host', '?')}: wait for it, or {self.remedy} (if it is gone, remove "
            f"{self.path})")

    def create(self, owner: dict) -> None:
        """Creates the file. Only one of several processes that try at the same time succeeds."""
        descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(owner, file)
        except OSError:  # a full disk must not leave a file without an owner
            self.path.unlink()
            raise

    def remove(self, owner: dict) -> None:
        """Removes the file of an owner that is gone."""
        aside = self.path.with_name(f".{self.path.name.lstrip('.')}.{self.token}")
        self.path.rename(aside)  # only one of several processes succeeds
        removed_owner = read_owner(aside)
        aside.unlink()
        if removed_owner != owner:  # the new lock of another process that was faster
            with suppress(FileExistsError):
                self.create(removed_owner)

    def is_ours(self) -> bool:
        """Whether the file still names this owner: another process may have taken it over."""
        return read_owner(self.path) == self.owner

    def touch_until(self, released: threading.Event) -> None:
        """Renews the file's time until the lock is released: others see that its owner lives."""
        while not released.wait(TOUCH_SECONDS):
            with suppress(OSError):  # a shared disk may be away for a while
                if self.is_ours():
                    os.utime(self.path)

    def is_gone(self, owner: dict) -> bool:
        """Whether the owner is dead. A file that names no owner may be about to be written."""
        same_host = owner.get("host") == self.owner["host"]
        same_system = owner.get("system") == self.owner["system"]
        if not (same_host and same_system) or not PROCESSES_CAN_BE_ASKED_FOR:
            return self.is_silent()
        try:
            os.kill(owner["pid"], 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False  # it lives, and belongs to another user
        # Another process with the same number.
        return start_time(owner["pid"]) != owner.get("started")

    def is_silent(self) -> bool:
        """Whether the file has not been touched for SILENCE seconds.

        The clock is that of the file system, which all machines share.
        """
        probe = self.path.with_name(f".clock.{self.token}")
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
        return now - self.path.stat().st_mtime > SILENCE


class FolderLock(OwnedLock):
    """The file `lock` in a folder that only one process at a time works in."""

    remedy = "choose another --output-dir"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "lock")

    def take(self) -> None:
        """Creates the file, or raises a UserError that says why not."""
        try:
            super().take()
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}; {self.remedy}") from error


def read_owner(path: Path) -> dict:
    """Reads the owner that a lock file names; {} if it names none."""
    owner = read_json(path)
    # Process numbers from 0 down stand for groups of processes.
    if isinstance(owner, dict) and isinstance(owner.get("pid"), int) and owner["pid"] > 0:
        return owner
    return {}


def system_id() -> str:
    """Identifies this boot of this machine and this container; "" if unknown.

    Process numbers are unique within it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def start_time(pid: int) -> str | None:
    """Returns the time at which a process started, in the system's own unit; None if unknown."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return status.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
