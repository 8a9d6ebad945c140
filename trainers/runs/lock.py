"""One run folder, one owner."""
from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

from ...datasets.utils.errors import UserError
from ...datasets.utils.files import read_json

BEAT = 10.0  # seconds between signs of life
SILENCE = 120.0  # seconds without one after which an owner on another machine counts as gone
HELD: set[str] = set()  # marks of the locks that this process holds
TURN = threading.RLock()  # one thread of this process at a time makes or removes a lock file


class RunLock:
    """A file that names the owner's host and process, and is touched while the owner lives.

    A lock is stale, and taken over, when its process on this host is gone, when it is this process but nobody in it
    holds that lock, or when its owner elsewhere has been silent. A process on this host that is merely stopped (Ctrl-Z)
    keeps it. Clocks need not agree, and may be set back: silence is measured by the shared file system's own.

    By hand, because `filelock` needs a file system with locks, which cluster disks often are mounted without; there it
    cannot keep two machines apart, nor take over from one that has crashed. And it cannot say who holds a lock.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        pid = os.getpid()
        self.owner = {"host": socket.gethostname(), "system": system(), "pid": pid, "started": started(pid),
                      "mark": secrets.token_hex(8)}

    @contextmanager
    def held(self) -> Iterator[RunLock]:
        """Holds the lock, or raises what `taken` returns.

        A thread of its own makes and removes the file, because what signals raise (Ctrl-C, SIGTERM, torch's word of a
        dead worker) may strike the main thread between any two steps, there and in every `__exit__` written in Python.
        The thread holds on until a plain lock is let go, whose `with` ends in one step; and it is begun in one step,
        which `threading.Thread` is not.
        """
        wanted, answers = threading.Lock(), SimpleQueue()
        begun = False
        try:
            with wanted:
                start_new_thread(self.keep, (wanted, answers))
                begun = True
                if (failure := answers.get()) is not None:
                    begun = False
                    raise failure
                yield self
        finally:
            if begun and os.getpid() == self.owner["pid"]:  # a forked process has not got the thread
                answers.get()

    def keep(self, wanted: threading.Lock, answers: SimpleQueue) -> None:
        """The keeper's life: takes the lock and says so, gives signs of life for as long as it is wanted, removes it
        and says so."""
        try:
            if wanted.locked():  # else interrupted before this thread began
                self.take()
        except OSError as error:
            answers.put(UserError(f"cannot write {self.path}: {error.strerror}; choose another --output-dir"))
            return
        except BaseException as error:
            answers.put(error)
            return
        answers.put(None)
        while not wanted.acquire(timeout=BEAT):
            with suppress(OSError):  # a shared disk may be away for a while
                if self.ours():
                    os.utime(self.path)
        self.release()
        answers.put(None)

    def take(self) -> None:
        with TURN:
            for _ in range(2):
                try:
                    self.make(self.owner)
                except FileExistsError:
                    self.remove_if_stale()
                    continue
                HELD.add(self.owner["mark"])
                return
            raise self.taken()

    def make(self, owner: dict) -> None:
        """Makes the file, unless there is one; of several processes that do this, one succeeds."""
        descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(owner, file)
        except OSError:  # a full disk, which must not leave a lock that names nobody
            self.path.unlink()
            raise

    def release(self) -> None:
        with TURN:
            HELD.discard(self.owner["mark"])
            with suppress(OSError):  # a disk that is gone: whoever finds the file there later takes it over
                if self.ours():
                    self.path.unlink()

    def ours(self) -> bool:
        """Whether the lock still names this process: another may have taken it for gone."""
        return read_owner(self.path) == self.owner

    def remove_if_stale(self) -> None:
        with TURN:
            owner = read_owner(self.path)
            if not owner:  # its writer is between making and filling it, or was killed there
                time.sleep(0.2)
                owner = read_owner(self.path)
            if not self.gone(owner):
                raise self.taken()
            self.take_away(owner)

    def gone(self, owner: dict) -> bool:
        mine = self.owner
        if (owner.get("host"), owner.get("system", mine["system"])) != (mine["host"], mine["system"]):
            return self.silence() > SILENCE
        if (owner["pid"], owner.get("started")) == (mine["pid"], mine["started"]):
            return owner.get("mark") not in HELD
        return not alive(owner)

    def take_away(self, owner: dict) -> None:
        """Removes the lock of an owner that is gone, but not that of somebody who has just taken it over."""
        aside = self.path.with_name(f".lock.{os.getpid()}")
        try:
            self.path.rename(aside)  # of several processes that do this, one succeeds
        except FileNotFoundError:
            return
        found = read_owner(aside)
        aside.unlink()
        if found != owner:
            with suppress(FileExistsError):
                self.make(found)
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


def system() -> str:
    """What a process number is good for: this start of this machine, and the container in it, which may share its
    name with others; empty where the system does not tell."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def started(pid: int) -> str | None:
    """When a process began, in the system's own count; None where the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
