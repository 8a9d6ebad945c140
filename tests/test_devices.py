"""Without a GPU: every method on a second device. The cases are in `device_cases.py`.

They run in a process of their own: torch must know the device before its first backward pass, and
other tests of this process may have made one.
"""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).with_name("device_cases.py")


def test_every_method_and_whole_runs_on_a_second_device():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=CASES.parents[1], check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
