"""The compiled kernels.

Compiling takes about 20 seconds, so the result is kept on disk for later processes.

numba's own cache trusts its files: a damaged one changes pixels or ends the process. Here a file is
only loaded if nobody but this user can write to it and its SHA-256 is right. Otherwise kernels are
compiled again.
"""
from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.errors import UserError
from ..utils.files import open_regular, write_atomically

logger = logging.getLogger(__name__)

DIGEST = hashlib.sha256().digest_size
# A fork waits until compiling has finished: the child would inherit numba's locks, held by a thread
# that it lacks.
compiling = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=compiling.acquire,
        after_in_parent=compiling.release,
        after_in_child=compiling.release,
    )


@cache
def numba_works() -> bool:
    """Whether numba can be imported; a warning if not."""
    try:
        import numba  # noqa: F401 - takes half a second, and may fail
    except (
        Exception
    ) as error:  # it refuses some versions of numpy, and llvmlite some systems, each in its own way
        logger.warning(
            "numba does not work here (%s): Pillow makes the views, which takes ten times as long",
            error,
        )
        return False
    return True


def compiled_kernels() -> Callable[..., None]:
    """`kernels.make_views`, loaded or compiled on the first call. Other threads wait for it."""
    with compiling:
        return load_or_compile()


@cache
def load_or_compile() -> Callable[..., None]:
    import numba
    from numba.core.compiler import CompileResult
    from numba.core.serialize import dumps

    from . import kernels

    views: Any = numba.njit(nogil=True)(kernels.make_views)
    target = views.targetctx
    target.refresh()
    machine = target.codegen().magic_tuple()  # the CPU and its features
    versions = repr((numba.__version__, np.__version__, sys.version, machine))
    key = hashlib.sha256(Path(kernels.__file__).read_bytes() + versions.encode()).hexdigest()
    # Without a home folder pathlib's function fails; this one leaves the path as it is.
    home_cache = os.path.expanduser("~/.cache")  # noqa: PTH111
    folder = os.environ.get("XDG_CACHE_HOME") or home_cache
    file = Path(folder, "promptcal", f"kernels-{key}")
    content = read_verified(file)
    if content is not None:
        compiled = pickle.loads(content)  # noqa: S301 - verified
        views.add_overload(CompileResult._rebuild(target, *compiled))
        return views
    logger.info("compiling the kernels that make views, about 20 seconds, once")
    views.compile(kernels.SIGNATURE)
    if file.is_absolute():  # a user without a home has no folder for it
        write_verified(file, dumps(views.overloads[kernels.SIGNATURE.args]._reduce()))
    return views


def read_verified(path: Path) -> bytes | None:
    """A file's content after its digest.

    None if it is absent or damaged, or if another user can write to it.
    """
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            stored = file.read()
    except OSError:
        return None
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        return None
    content = stored[DIGEST:]
    if stored[:DIGEST] != hashlib.sha256(content).digest():
        return None
    return content


def write_verified(path: Path, content: bytes) -> None:
    """Ignores a full or read-only disk: then the next process compiles again."""
    def write(file: Any) -> None:
        Path(file.name).chmod(0o600)
        file.writelines((hashlib.sha256(content).digest(), content))

    try:
        write_atomically(path, write)
    except UserError as error:
        logger.info("%s", error)
