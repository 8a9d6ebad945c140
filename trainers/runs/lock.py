"""One run folder, one owner."""
from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from ...datasets.utils.errors import UserError
from ...datasets.utils.files import read_json

BEAT = 10.0  # seconds between signs of life
SILENCE = 120.0  # seconds without one after which an owner on another machine counts as gone


class RunLock:
    """A file that names the owner's host and process, and is touched while the owner lives.

    A lock is stale, and taken over, when its process on this host is gone or its owner elsewhere has been silent. A
    process on this host that is merely stopped (Ctrl-Z) keeps it. Clocks need not agree, and may be set back: silence
    is measured by the shared file system's own.

    By hand, because `filelock` needs a file system with locks, which cluster disks often are mounted without; there it
    cannot keep two machines apart, nor take over from one that has crashed. And it cannot say who holds a lock.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        self.owner = {"host": socket.gethostname(), "pid": os.getpid(), "started": started(os.getpid())}
        self.released = threading.Event()

    def __enter__(self) -> RunLock:
        try:
            self.take()
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}; choose another --output-dir") from error
        threading.Thread(target=self.beat, daemon=True).start()
        return self

    def take(self) -> None:
        for _ in range(2):
            try:
                descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                self.remove_if_stale()
                continue
            with os.fdopen(descriptor, "w") as file:
                json.dump(self.owner, file)
            return
        raise self.taken()

    def __exit__(self, *_: object) -> None:
        self.released.set()
        if self.ours():
            self.path.unlink(missing_ok=True)

    def ours(self) -> bool:
        """Whether the lock still names this process: another may have taken it for gone."""
        return read_owner(self.path) == self.owner

    def beat(self) -> None:
        while not self.released.wait(BEAT):
            with suppress(OSError):  # a shared disk may be away for a while
                if self.ours():
                    os.utime(self.path)

    def remove_if_stale(self) -> None:
        owner = read_owner(self.path)
        if not owner:  # its writer is between making and filling it, or was killed there
            time.sleep(0.2)
            owner = read_owner(self.path)
        here = owner.get("host") == self.owner["host"]
        gone = not alive(owner) if here else self.silence() > SILENCE
        if not gone:
            raise self.taken()
        self.take_away(owner)

    def take_away(self, owner: dict) -> None:
        """Removes the lock of an owner that is gone, but not that of somebody who has just taken it over."""
        aside = self.path.with_name(f".lock.{os.getpid()}")
        try:
            self.path.rename(aside)  # of several processes that do this, one succeeds
        except FileNotFoundError:
            return
        found = read_owner(aside)
        if found != owner:
            with suppress(FileExistsError):
                os.link(aside, self.path)
        aside.unlink()
        if found != owner:
            raise self.taken()

    def silence(self) -> float:
        """Seconds since the owner's last sign of life, by the clock of the file system that both share."""
        try:
            last = self.path.stat().st_mtime
        except FileNotFoundError:
            return float("inf")
        probe = self.path.with_name(f".clock.{os.getpid()}")
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
        return now - last

    def taken(self) -> UserError:
        owner = read_owner(self.path)
        return UserError(
            f"{self.path.parent} is in use by process {owner.get('pid', '?')} on {owner.get('host', '?')}: wait for "
            f"it, or choose another --output-dir (if that process is gone, remove {self.path})"
        )


def read_owner(path: Path) -> dict:
    """Who a lock file names; empty where it names nobody."""
    owner = read_json(path)
    pid = owner.get("pid") if isinstance(owner, dict) else None
    return owner if isinstance(pid, int) and pid > 0 else {}  # 0 and below would stand for groups of processes


def alive(owner: dict) -> bool:
    """Whether the process that a lock names is still there, and is not another one that was given its number."""
    try:
        os.kill(owner["pid"], 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is there, and somebody else's
    return owner.get("started") in (None, started(owner["pid"]))


def started(pid: int) -> str | None:
    """When a process began, in the system's own count; None where the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
