"""One run folder, one owner."""
from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from ...datasets.errors import UserError
from .files import read_json

BEAT = 10.0  # seconds between signs of life
SILENCE = 120.0  # seconds without one after which an owner on another machine counts as gone


class RunLock:
    """A file that names the owner's host and process, and is touched while the owner lives.

    A lock is stale, and taken over, when its process on this host is gone or its owner elsewhere has been silent.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        self.released = threading.Event()

    def __enter__(self) -> RunLock:
        owner = {"host": socket.gethostname(), "pid": os.getpid()}
        for _ in range(2):
            try:
                descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                self.remove_if_stale()
                continue
            except OSError as error:
                raise UserError(f"cannot write {self.path}: {error.strerror}; choose another --output-dir") from error
            with os.fdopen(descriptor, "w") as file:
                json.dump(owner, file)
            threading.Thread(target=self.beat, daemon=True).start()
            return self
        raise self.taken()

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.path.unlink(missing_ok=True)

    def beat(self) -> None:
        while not self.released.wait(BEAT):
            with suppress(FileNotFoundError):
                os.utime(self.path)

    def remove_if_stale(self) -> None:
        owner = read_json(self.path)
        if not isinstance(owner, dict):  # its writer is between making and filling it, or was killed there
            time.sleep(0.2)
            owner = read_json(self.path) or {}
        here = owner.get("host") == socket.gethostname()
        if not (here and not alive(owner.get("pid", 0))) and self.silence() <= SILENCE:
            raise self.taken()
        self.take_away(owner)

    def take_away(self, owner: dict) -> None:
        """Removes the lock of an owner that is gone, but not that of somebody who has just taken it over."""
        aside = self.path.with_name(f".lock.{os.getpid()}")
        try:
            self.path.rename(aside)  # of several processes that do this, one succeeds
        except FileNotFoundError:
            return
        found = read_json(aside) or {}
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
        owner = read_json(self.path) or {}
        return UserError(
            f"{self.path.parent} is in use by process {owner.get('pid', '?')} on {owner.get('host', '?')}: wait for "
            f"it, or choose another --output-dir (if that process is gone, remove {self.path})"
        )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
