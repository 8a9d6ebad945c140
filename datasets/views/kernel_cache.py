"""Compiles the kernels that make views, and keeps the result on disk for later processes.

Compiling takes about 20 seconds.

numba's own cache trusts its files: a damaged one changes pixels or ends the process. Here a file is
only loaded if no other user can write to it and its SHA-256 is right. Otherwise kernels are
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
import PIL

from ..utils.errors import UserError
from ..utils.files import open_regular, user_cache_folder, write_atomically

logger = logging.getLogger(__name__)

# The name of the pipeline goes with every result and every cached view feature. It changes whenever
# views do.
PIPELINE = "views-1"  # views by the compiled kernels
# Views by Pillow, where numba does not work. Pillow's version is added to the name. Mixed views
# differ in their last bits.
FALLBACK = "pillow"
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
    """Whether numba can be imported and compiles. Logs a warning if not."""
    # The import takes half a second. It may raise anything: numba refuses some versions of numpy,
    # and llvmlite some systems.
    try:
        import numba

        if getattr(numba.config, "DISABLE_JIT", False):
            raise ImportError("NUMBA_DISABLE_JIT is set")
    except Exception as error:
        logger.warning(
            "numba does not work here (%s): Pillow makes the views, which takes ten times as long",
            error,
        )
        return False
    return True


@cache
def view_pipeline() -> str:
    """The name of the pipeline that makes views on this machine."""
    if numba_works():
        return PIPELINE
    return f"{FALLBACK}-{PIL.__version__}"


def compile_kernels() -> None:
    """Compiles the kernels if that is necessary. In the main thread Ctrl-C can interrupt it."""
    if numba_works():
        compiled_kernels()


def compiled_kernels() -> Callable[..., None]:
    """`kernels.make_views`, loaded or compiled on the first call. Other threads wait for it."""
    with compiling:
        return load_or_compile()


@cache
def load_or_compile() -> Callable[..., None]:
    """Loads or compiles `kernels.make_views`, once per process; see `compiled_kernels`."""
    import numba
    from numba.core.compiler import CompileResult
    from numba.core.serialize import dumps

    from .kernels import SIGNATURE, make_views

    views: Any = numba.njit(nogil=True)(make_views)
    target = views.targetctx
    target.refresh()
    machine = target.codegen().magic_tuple()  # the CPU and its features
    versions = repr((numba.__version__, np.__version__, sys.version, machine))
    source = Path(__file__).with_name("kernels.py").read_bytes()
    key = hashlib.sha256(source + versions.encode()).hexdigest()
    folder = user_cache_folder()
    content = None
    if folder is not None:
        content = read_verified(folder / f"kernels-{key}")
    if content is not None:
        compiled = pickle.loads(content)  # noqa: S301 - verified
        views.add_overload(CompileResult._rebuild(target, *compiled))
        return views
    logger.info("compiling the kernels that make views, about 20 seconds, once")
    views.compile(SIGNATURE)
    if folder is not None:
        compiled_code = dumps(views.overloads[SIGNATURE.args]._reduce())
        write_verified(folder / f"kernels-{key}", compiled_code)
    return views


def read_verified(path: Path) -> bytes | None:
    """Reads a file's content, which follows its digest.

    Returns None if the file is absent or damaged, or if another user can write to it.
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
    """Writes a file's digest and content, for this user alone.

    A full or read-only disk is ignored: then the next process compiles again.

    Args:
        path: The file.
        content: The bytes after the digest.
    """
    def write(file: Any) -> None:
        Path(file.name).chmod(0o600)
        file.writelines((hashlib.sha256(content).digest(), content))

    try:
        write_atomically(path, write)
    except UserError as error:
        logger.info("%s", error)
