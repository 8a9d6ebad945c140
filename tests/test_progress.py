"""Plain lines of progress where there is no terminal: rare, and with a time left that comes true."""
import io
import re
from itertools import pairwise

import pytest
from promptcal.datasets.utils import progress
from promptcal.datasets.utils.progress import INTERVAL, PlainProgress, duration

LINE = re.compile(
    r"SoC: (?P<done>[\d,]+) of (?P<total>[\d,]+) img, (?P<passed>[\d:]+) passed, about (?P<left>[\d:]+) left.*")


def seconds(text: str) -> int:
    total = 0
    for part in text.split(":"):
        total = 60 * total + int(part)
    return total


@pytest.mark.parametrize("slow", [0, 90, 600], ids=["even", "slow start", "very slow start"])
def test_lines_are_rare_and_the_time_left_comes_true(slow):
    """1,000 images of two seconds, after a start in which ten images take long; 300 were done before."""
    now = 0.0
    stream = io.StringIO()
    bar = PlainProgress(1300, "SoC", "img", stream=stream, clock=lambda: now)
    bar.update(300)
    times = []
    for number in range(1000):
        now += slow / 10 if number < 10 else 2.0
        before = stream.tell()
        bar.update()
        if stream.tell() > before:
            times.append(now)
    matches = [LINE.fullmatch(line) for line in stream.getvalue().splitlines()]
    assert len(times) == len(matches) > 50 and all(matches)
    assert min(later - earlier for earlier, later in pairwise(times)) >= INTERVAL
    for moment, match in zip(times, matches, strict=True):
        assert seconds(match["passed"]) == pytest.approx(moment, abs=1)
        if moment > slow * 3:
            assert (now - moment) / 2 <= seconds(match["left"]) <= (now - moment) * 2 + 1


def test_other_work_in_between_does_not_count():
    """As the encoding of view features, which has a bar of its own, before a run's first image."""
    now = 0.0
    stream = io.StringIO()
    bar = PlainProgress(960, "SoC", "img", stream=stream, clock=lambda: now)
    bar.update(160)
    now += 600.0
    bar.unpause()
    for _ in range(40):
        now += 1.0
        bar.update()
    assert stream.getvalue() == "SoC: 190 of 960 img, 0:30 passed, about 12:50 left\n"


def test_durations():
    assert [duration(seconds) for seconds in (0.4, 59.6, 3661)] == ["0:00", "1:00", "1:01:01"]


def test_a_run_without_a_terminal_writes_plain_lines(train, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    done = train("ZeroShot", "TEST.PART", 4)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ZeroShot: 8 of 12 img, 0:0\d passed, about 0:0\d left, acc [\d.]+, ECE [\d.]+$",
                     done.stderr, re.MULTILINE), done.stderr
    assert "\r" not in done.stderr and "it/s" not in done.stderr
