"""The compiled kernels. Compiling takes about 20 seconds, so the result is kept on disk for later processes.

numba's own cache trusts its files: a damaged one changes pixels or ends the process. Here a file is only loaded from a
folder that nobody but this user can write to, and only if its SHA-256 is right. Otherwise kernels are compiled again.
"""
from __future__ import annotations

import hashlib
import logging
import os
import pickle
import stat
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.files import read_regular, write_atomically

logger = logging.getLogger(__name__)

DIGEST = hashlib.sha256().digest_size
# A fork waits until compiling has finished: the child would inherit numba's locks, held by a thread that it lacks.
compiling = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=compiling.acquire, after_in_parent=compiling.release, after_in_child=compiling.release)


@cache
def numba_works() -> bool:
    """Whether numba can be imported; a warning if not."""
    try:
        import numba  # noqa: F401 - takes half a second, and may fail
    except Exception as error:  # it refuses some versions of numpy, and llvmlite some systems, each in its own way
        logger.warning("numba does not work here (%s): Pillow makes the views, which takes ten times as long", error)
        return False
    return True


def compiled_kernels() -> Callable[..., None]:
    """`kernels.make_views`, loaded or compiled on the first call. Other threads wait meanwhile."""
    with compiling:
        return load_or_compile()


@cache
def load_or_compile() -> Callable[..., None]:
    import numba
    from numba.core.caching import NullCache
    from numba.core.compiler import CompileResult
    from numba.core.serialize import dumps

    from . import kernels

    versions = (numba.__version__, np.__version__, sys.version)

    class VerifiedCache(NullCache):
        """What numba calls before and after it compiles."""

        file: Path | None = None

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            target_context.refresh()
            source, folder = Path(kernels.__file__).read_bytes(), private_folder()
            machine = target_context.codegen().magic_tuple()  # the CPU and its features
            if folder:
                key = hashlib.sha256(source + repr((versions, machine)).encode())
                self.file = folder / f"kernels-{key.hexdigest()}"
            content = read_verified(self.file) if self.file else None
            if content is not None:
                return CompileResult._rebuild(target_context, *pickle.loads(content))  # noqa: S301 - verified
            logger.info("compiling the kernels that make views, about 20 seconds%s",
                        ", once" if folder else ": there is no folder of this user's to keep them in")
            return None

        def save_overload(self, sig: Any, data: Any) -> None:
            if self.file:
                write_verified(self.file, dumps(data._reduce()))

    views: Any = numba.njit(nogil=True)(kernels.make_views)
    views._cache = VerifiedCache()
    views.compile(kernels.SIGNATURE)
    return views


def private_folder() -> Path | None:
    """Where compiled kernels are kept: a folder that only this user can read and write."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "promptcal" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if is_private(folder.lstat()) else None
    except (OSError, RuntimeError):  # the latter from a user without a home
        return None


def is_private(status: os.stat_result) -> bool:
    if not hasattr(os, "getuid"):  # Windows, where a user's folders are private
        return True
    return status.st_uid == os.getuid() and not stat.S_ISLNK(status.st_mode) and not status.st_mode & 0o077


def read_verified(path: Path) -> bytes | None:
    """A file's content without the digest that it begins with; None if it is absent, another user's or damaged."""
    try:
        content = read_regular(path) if is_private(path.lstat()) else b""
    except OSError:
        return None
    digest, content = content[:DIGEST], content[DIGEST:]
    return content if digest == hashlib.sha256(content).digest() else None


def write_verified(path: Path, content: bytes) -> None:
    """Ignores a full or read-only disk: then the next process compiles again."""
    try:
        write_atomically(path, lambda file: file.writelines((hashlib.sha256(content).digest(), content)))
        path.chmod(0o600)
    except OSError as error:
        logger.info("the compiled kernels cannot be kept in %s (%s)", path.parent, error.strerror)
