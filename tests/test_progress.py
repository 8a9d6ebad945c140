"""Plain lines of progress where there is no terminal: rare, and with a time left that comes
true."""
import io
import re
from itertools import pairwise

import pytest
from promptcal.datasets.utils import progress
from promptcal.datasets.utils.progress import INTERVAL, PlainProgress, duration

LINE = re.compile(
    r"SoC: (?P<done>[\d,]+) of (?P<total>[\d,]+) img, (?P<passed>[\d:]+) passed, "
    r"about (?P<left>[\d:]+) left.*")


def seconds(text: str) -> int:
    total = 0
    for part in text.split(":"):
        total = 60 * total + int(part)
    return total


@pytest.mark.parametrize("slow", [0, 90, 600], ids=["even", "slow start", "very slow start"])
def test_lines_are_rare_and_the_time_left_comes_true(slow):
    """1,000 images of two seconds, after ten that take `slow` seconds; 300 were done before."""
    now = 0.0
    stream = io.StringIO()
    bar = PlainProgress(1300, "SoC", "img", stream=stream, clock=lambda: now)
    bar.update(300)
    times = []
    for number in range(1000):
        if number < 10:
            now += slow / 10
        else:
            now += 2.0
        before = stream.tell()
        bar.update()
        if stream.tell() > before:
            times.append(now)
    lines = stream.getvalue().splitlines()
    assert len(times) == len(lines) > 50
    for earlier, later in pairwise(times):
        assert later - earlier >= INTERVAL
    for moment, line in zip(times, lines, strict=True):
        match = LINE.fullmatch(line)
        assert seconds(match["passed"]) == pytest.approx(moment, abs=1)
        if moment > slow * 3:
            left = now - moment
            assert left / 2 <= seconds(match["left"]) <= left * 2 + 1


def test_durations():
    assert [duration(time) for time in (0.4, 59.6, 3661)] == ["0:00", "1:00", "1:01:01"]


def test_a_run_without_a_terminal_writes_plain_lines(train, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    done = train("ZeroShot", "TEST.PART", 4)
    assert done.returncode == 0, done.stderr
    line = r"^ZeroShot: 8 of 12 img, 0:0\d passed, about 0:0\d left, acc [\d.]+, ECE [\d.]+$"
    assert re.search(line, done.stderr, re.MULTILINE), done.stderr
    assert "\r" not in done.stderr and "it/s" not in done.stderr
