"""The lock of a run folder: two processes never work in one folder."""
from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...datasets.utils.errors import UserError
from ...datasets.utils.files import read_json

TOUCH_SECONDS = 10.0  # between touches of the file
SILENCE = 120.0  # seconds without a touch after which an owner on another machine is taken to be dead


class RunLock:
    """A file that names its owner's host and process, and is touched while the owner lives.

    The lock of a dead process on this host, or of a silent one on another host, is taken over. A process on this host
    that is only stopped (Ctrl-Z) keeps its lock. Not `filelock`: it needs a file system with locks, which cluster disks
    are often mounted without, and it cannot name the owner.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        self.token = secrets.token_hex(8)
        self.owner = {"host": socket.gethostname(), "system": system_id(), "pid": os.getpid(),
                      "started": start_time(os.getpid()), "token": self.token}

    @contextmanager
    def held(self) -> Iterator[RunLock]:
        """Holds the lock, or raises a UserError that names the owner."""
        self.take()
        released = threading.Event()
        try:
            threading.Thread(target=self.touch_until, args=(released,), daemon=True).start()
            yield self
        finally:
            released.set()
            if self.is_ours() and os.getpid() == self.owner["pid"]:  # a forked process leaves it to its parent
                with suppress(OSError):  # of a lost disk: the file is taken over later
                    self.path.unlink()

    def take(self) -> None:
        owner: dict = {}
        try:
            for _ in range(2):
                with suppress(FileExistsError):
                    return self.create(self.owner)
                with suppress(FileNotFoundError):  # released, or taken over by another process, in the meantime
                    owner = read_owner(self.path)
                    if not self.is_gone(owner):
                        break
                    self.remove(owner)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}; choose another --output-dir") from error
        raise UserError(f"{self.path.parent} is in use by process {owner.get('pid', '?')} on {owner.get('host', '?')}: "
                        f"wait for it, or choose another --output-dir (if it is gone, remove {self.path})")

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
        aside = self.path.with_name(f".lock.{self.token}")
        self.path.rename(aside)  # only one of several processes succeeds
        found = read_owner(aside)
        aside.unlink()
        if found != owner:  # the new lock of another process that was faster
            with suppress(FileExistsError):
                self.create(found)

    def is_ours(self) -> bool:
        """Whether the file still names this owner: another process may have taken it over."""
        return read_owner(self.path) == self.owner

    def touch_until(self, released: threading.Event) -> None:
        while not released.wait(TOUCH_SECONDS):
            with suppress(OSError):  # a shared disk may be away for a while
                if self.is_ours():
                    os.utime(self.path)

    def is_gone(self, owner: dict) -> bool:
        """Whether the owner is dead. A file that names no owner may be about to be written. Silence is measured by the
        clock of the file system, which all machines share."""
        if (owner.get("host"), owner.get("system")) != (self.owner["host"], self.owner["system"]):
            probe = self.path.with_name(f".clock.{self.token}")
            probe.touch()
            now = probe.stat().st_mtime
            probe.unlink()
            return now - self.path.stat().st_mtime > SILENCE
        try:
            os.kill(owner["pid"], 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False  # it lives, and belongs to another user
        return start_time(owner["pid"]) != owner.get("started")  # another process with the same number


def read_owner(path: Path) -> dict:
    """The owner that a lock file names; empty if it names none."""
    owner = read_json(path)
    if isinstance(owner, dict) and isinstance(owner.get("pid"), int) and owner["pid"] > 0:  # 0 and below are groups
        return owner
    return {}


def system_id() -> str:
    """This boot of this machine and this container, within which process numbers are unique; "" if unknown."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def start_time(pid: int) -> str | None:
    """When a process started, in the system's own unit; None if unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
