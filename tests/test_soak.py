"""Mixed methods in one process, run after run, under interruptions, kills, full disks and lost caches: every run ends
with the same predictions, leaves nothing behind, and memory does not grow.

Some seconds here; `PROMPTCAL_SOAK=600 bash tools/test.sh tests/test_soak.py` for ten.
"""

import ctypes
import errno
import gc
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from promptcal.datasets.utils.errors import UserError
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.runs.run_dir import read_predictions

from common import make_image_folder
from folders import RUN_FILES, names
from processes import forked

SECONDS = float(os.environ.get("PROMPTCAL_SOAK", 3))
TUNED = ("TPT", "CTPT", "OTPT", "SoC")
# They need no gradients, which torch does not compute in a fork of a process that has computed
# some.
PLAIN = ("ZeroShot", "TDA")
FAULTS = ("interrupted", "disk full", "cache removed")
MAX_GROWTH = 50e6  # bytes, after every method and every fault


def resident() -> int:
    """Bytes in use, after the allocator has returned what is free."""
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fail_at_write(fault: str, count: int, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Brings the fault about when the run writes the `count`-th file of its folder."""
    written = 0
    replace = os.replace

    def failing_replace(source: Path, target: Path) -> None:
        nonlocal written
        written += (in_run := cache not in Path(target).parents)
        now = fault if in_run and written == count else ""
        if now == "interrupted":
            raise KeyboardInterrupt
        if now == "disk full":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)
        if now == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if now == "cache removed":
            shutil.rmtree(cache, ignore_errors=True)

    patch.setattr(os, "replace", failing_replace)


@pytest.mark.slow
def test_soak(clip_file, tmp_path, monkeypatch):
    images = make_image_folder(tmp_path / "many", images=15)
    cache = tmp_path / "cache"
    folder = tmp_path / "run"
    draw = random.Random(SECONDS)

    def run(method: str, folder: Path) -> dict[str, np.ndarray]:
        cfg = build_cfg(method, "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", images, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", folder,
            "TTA.VIEWS", 4, "TTA.SELECT", 0.5, "TEST.PART", 15, "TTA.EPISODES", 8,
            "CACHE.DIR", cache,
        ])
        build_trainer(cfg).run()
        return read_predictions(folder)

    def round(method: str, fault: str) -> None:
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt, UserError):
            fail_at_write(fault, draw.randrange(1, 5), cache, patch)
            if fault == "killed":
                assert forked(lambda: run(method, folder)).returncode == -signal.SIGKILL
            else:
                run(method, folder)
        predictions = run(method, folder)
        for name, column in expected[method].items():
            assert np.array_equal(predictions[name], column), (name, method, fault)
        assert names(folder) == RUN_FILES, (method, fault)
        assert not list(tmp_path.rglob("*.part")) and not list(tmp_path.rglob("lock"))
        shutil.rmtree(folder)

    expected = {method: run(method, tmp_path / "expected" / method) for method in (*TUNED, *PLAIN)}
    sizes = []
    started = time.monotonic()
    while len(sizes) < 2 or time.monotonic() - started < SECONDS:
        faults = draw.sample([*FAULTS, draw.choice(FAULTS)], len(TUNED))
        for method, fault in zip(TUNED, faults, strict=True):
            round(method, fault)
        for method in PLAIN:
            round(method, "killed")
        sizes.append(resident())
    assert sizes[-1] - sizes[0] < MAX_GROWTH
