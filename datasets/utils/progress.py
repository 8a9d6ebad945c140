"""Shows how far long work is: a bar on a terminal, plain lines in a file, a pipe or a job's log."""
from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TextIO, TypeVar

from tqdm import tqdm

INTERVAL = 30.0  # seconds between plain lines, at least
SAMPLE_EVERY = 1.0  # seconds between the moments that an estimate may start from
MOST_SAMPLES = 200  # largest number of samples; beyond it every second one is dropped

T = TypeVar("T")


class PlainProgress:
    """Lines such as `SoC: 640 of 5,000 img, 2:10 passed, about 14:30 left`.

    The remaining time follows from the speed in the second half of the time so far: the first
    images are slower because code is compiled and models are loaded, and images of an earlier run
    are counted at once.
    """

    def __init__(
        self,
        total: float | None,
        desc: str,
        unit: str,
        initial: float = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            total: Number at which the count ends; None if unknown.
            desc: Words for the work, with which each line begins.
            unit: Word for the things that are counted.
            initial: Number of those that are done already; they do not count for the speed.
            stream: The file to which lines are written; None = standard error.
            clock: A function that returns seconds since any moment.
        """
        self.total = total
        self.desc = desc
        self.unit = unit.strip()
        self.stream = stream
        self.clock = clock
        self.n = initial
        self.postfix = ""
        self.began = clock()
        self.last_line = self.began
        self.last_count = self.began
        self.samples = [(self.began, initial)]  # moments, each with the count at that moment

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def update(self, count: float = 1) -> None:
        """Counts, and writes a line if the last one is long ago."""
        self.n += count
        now = self.clock()
        self.last_count = now
        if now - self.samples[-1][0] >= SAMPLE_EVERY:
            self.samples.append((now, self.n))
            if len(self.samples) > MOST_SAMPLES:
                self.samples = self.samples[::2]
        finished = self.total is not None and self.n >= self.total
        if now - self.last_line >= INTERVAL and not finished:
            self.last_line = now
            print(self.line(now), file=self.stream or sys.stderr, flush=True)

    def set_postfix_str(self, text: str) -> None:
        """Sets the text at the end of the next line."""
        self.postfix = text

    def close(self) -> None:
        """Writes nothing: commands say themselves when something is done."""

    def line(self, now: float) -> str:
        """Returns the line that is written at a moment."""
        unit = self.unit
        size = 1.0
        if unit == "B":
            unit = "MB"
            size = 1e6
        amount = f"{self.n / size:,.0f}"
        if self.total is not None:
            amount += f" of {self.total / size:,.0f}"
        parts = [f"{self.desc}: {amount} {unit}", f"{duration(now - self.began)} passed"]
        left = self.seconds_left(now)
        if left is not None:
            parts.append(f"about {duration(left)} left")
        if self.postfix:
            parts.append(self.postfix)
        return ", ".join(parts)

    def seconds_left(self, now: float) -> float | None:
        """Estimates the remaining seconds from the speed in the second half of the time so far.

        Returns None if nothing was counted in that time or the total is unknown.
        """
        if self.total is None:
            return None
        middle = self.began + (now - self.began) / 2
        start, count = self.samples[0]
        for moment, counted in self.samples:
            if moment > middle:
                break
            start = moment
            count = counted
        if self.n <= count:
            return None
        return (self.total - self.n) * (now - start) / (self.n - count)


def duration(seconds: float) -> str:
    """Returns seconds as text such as `0:42` or `3:05:10`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"


def show_progress(
    items: Iterable[T], desc: str, unit: str = "it", total: float | None = None, shown: bool = True,
) -> Iterator[T]:
    """Shows how many of some items are done while they are used.

    Args:
        items: The items.
        desc: Words for the work.
        unit: Word for an item.
        total: Number of items; None if unknown.
        shown: Whether anything is shown.

    Yields:
        The items.
    """
    with progress_bar(total, desc, unit, shown=shown) as bar:
        for item in items:
            yield item
            bar.update()


def progress_bar(
    total: float | None,
    desc: str,
    unit: str = "it",
    initial: float = 0,
    shown: bool = True,
    delay: float = 0,
) -> tqdm | PlainProgress:
    """Shows how far long work is; to be used as a context manager.

    Args:
        total: Number at which the count ends; None if unknown.
        desc: Words for the work.
        unit: Word for the things that are counted; `B` (bytes) is shown in larger units.
        initial: Number of those that are done already.
        shown: Whether anything is shown.
        delay: Seconds before a bar appears.
    """
    if not shown or sys.stderr.isatty():
        return tqdm(
            total=total, initial=initial, desc=desc, unit=unit, unit_scale=unit == "B",
            dynamic_ncols=True, disable=not shown, delay=delay)
    return PlainProgress(total, desc, unit, initial)
