"""Loops over pixels in a CPU's memory, compiled by numba: Pillow's own arithmetic, number by number.

Where views are made on another device, or where numba does not work, tensors do the same. What was compiled is kept on
disk for the next process, and holds no lock while it runs, so that threads work side by side.
"""
from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, wraps
from threading import Lock

import numpy as np
import torch

try:
    import numba
except Exception as error:  # numba refuses some versions of numpy, and llvmlite some systems, each in its own way
    numba, fault = None, error

COLOURS, LEVELS = 3, 256
BITS = 22  # of the fraction of a weight that pictures are resized with, as in Pillow
HALF, DARKEST, BRIGHTEST = np.int32(1 << BITS - 1), np.int32(0), np.int32(LEVELS - 1)

Matrix = tuple[float, float, float, float, float, float]  # (x, y) shows what lies at (a·x + b·y + c, d·x + e·y + f)

logger = logging.getLogger(__name__)
compiling = Lock()  # threads that need a loop at once wait for the first


def serves(device: torch.device) -> bool:
    if numba is None and device.type == "cpu":
        say_once()
    return numba is not None and device.type == "cpu"


@cache
def say_once() -> None:
    logger.warning("numba does not work here (%s): on a CPU, views take twenty times as long", fault)


def inner(loop: Callable) -> Callable:
    """Part of compiled loops."""
    return loop if numba is None else numba.njit(loop, nogil=True, forceinline=True)


def compiled(signature: str) -> Callable[[Callable], Callable]:
    """Compiles a loop when it is first called. Each has one signature: of several, two processes that compile at once
    could keep one under the other's name."""

    def decorate(loop: Callable) -> Callable:
        @cache
        def quick() -> Callable:
            try:
                return numba.njit(signature, nogil=True, cache=True)(loop)
            except Exception:  # no folder can be written to, the disk is full, or what it has is damaged
                return numba.njit(signature, nogil=True)(loop)

        @wraps(loop)
        def run(*given: object) -> object:
            with compiling:
                ready = quick()
            return ready(*given)

        return run

    return decorate


@compiled(
    "void(u1[:,:,::1], i8[:,::1], i8[::1], i4[:,:,::1], i8[::1], i8[::1], i8[::1], i8[:,::1], i4[:,:,::1], i8[::1],"
    " u1[:,:,:,::1], i8[::1], b1)",
)
def resize(
    lines: np.ndarray, starts: np.ndarray, stops: np.ndarray, weights: np.ndarray, taps: np.ndarray,
    tops: np.ndarray, bottoms: np.ndarray, starts_2: np.ndarray, weights_2: np.ndarray, taps_2: np.ndarray,
    out: np.ndarray, views: np.ndarray, turned: bool,
) -> None:
    """Writes n views of a picture (3, A, B) to their places in `out` (N, 3, S, S), uint8, with B before A, or `turned`.
    Its lines, A of them, are weighed first, in the pixels from `tops` to `bottoms` of each; then what they become.

    An output pixel is the sum of `taps` lines, an even number, from its place in `starts` (n, S) on, times `weights`
    (n, S, most taps). A view has no lines at and beyond `stops` (n); weights there are 0.
    """
    size = out.shape[-1]
    longest = max((bottoms - tops).max(), size)
    fours = np.empty((longest, -(-size // 4)), np.uint32)  # bytes are turned four at a time, little-endian
    half, sums, four = fours.view(np.uint8), np.empty(longest, np.int32), np.empty(longest, np.uint32)
    for n in range(len(views)):
        length = bottoms[n] - tops[n]
        first, second = sums[:length], sums[:size]
        for colour in range(COLOURS):
            for column in range(fours.shape[1]):
                four[:length] = 0
                for j in range(4):
                    place = min(4 * column + j, size - 1)
                    weigh(lines[colour], tops[n], starts[n, place], stops[n], weights[n, place], taps[n], first)
                    for i in range(length):
                        four[i] |= np.uint32(first[i]) << np.uint32(8 * j)
                for i in range(length):
                    fours[i, column] = four[i]
            shown = out[views[n], colour]
            for place in range(size):
                weigh(half, 0, starts_2[n, place], length, weights_2[n, place], taps_2[n], second)
                if turned:
                    for i in range(size):
                        shown[i, place] = second[i]
                else:
                    for i in range(size):
                        shown[place, i] = second[i]


@inner
def weigh(
    lines: np.ndarray, begin: int, start: int, stop: int, weights: np.ndarray, taps: int, sums: np.ndarray,
) -> None:
    """The levels that weighted lines, from their pixel `begin` on, sum up to. Two lines at a time are quickest."""
    sums[:] = HALF
    for k in range(0, taps, 2):
        one, two = weights[k], weights[k + 1]
        here, there = lines[min(start + k, stop - 1), begin:], lines[min(start + k + 1, stop - 1), begin:]
        for i in range(len(sums)):
            sums[i] += one * np.int32(here[i]) + two * np.int32(there[i])
    for i in range(len(sums)):
        sums[i] = min(max(np.int32(sums[i] >> BITS), DARKEST), BRIGHTEST)


@compiled("void(u1[:,:,::1], UniTuple(f8, 6), u1[:,:,::1])")
def transform(image: np.ndarray, matrix: Matrix, out: np.ndarray) -> None:
    """Writes an image (3, S, S), uint8, as the matrix moves its pixels."""
    size, wide = image.shape[-1], image.shape[-1] + 2
    padded = replicated(image).reshape(COLOURS, -1)
    a, b, c, d, e, f = matrix
    sideways, upwards = (d, e, f) == (0, 1, 0), (a, b, c) == (1, 0, 0)  # shears
    corner = np.empty(size, np.int32)  # where the upper left one of the four pixels lies that x is made of, less x
    right, down = np.empty(size), np.empty(size)  # weights of those to the right, and below
    for y in range(size):
        for x in range(size):
            column, row = a * (x + 0.5) + b * (y + 0.5) + c - 0.5, d * (x + 0.5) + e * (y + 0.5) + f - 0.5
            whole_column, whole_row = np.floor(column), np.floor(row)
            right[x], down[x] = column - whole_column, row - whole_row
            corner[x] = np.int32(whole_row + 1) * wide + np.int32(whole_column + 1) - x
        first, last = 0, size
        while first < last and outside(first, y, matrix, size):
            first += 1
        while first < last and outside(last - 1, y, matrix, size):
            last -= 1
        out[:, y, :first] = 0
        out[:, y, last:] = 0
        while first < last:  # from x to x the four move on by one, up to the `end` where their rows or columns change
            end, beyond = first + 1, last + 1
            while end + 1 < beyond:
                middle = (end + beyond) // 2
                if corner[middle - 1] == corner[first]:
                    end = middle
                else:
                    beyond = middle
            begin, u, v = corner[first] + first, right[first:end], down[first:end]
            for colour in range(COLOURS):
                upper, lower, shown = padded[colour, begin:], padded[colour, begin + wide :], out[colour, y, first:end]
                if sideways:
                    for i in range(len(shown)):
                        shown[i] = np.int32(upper[i] + (float(upper[i + 1]) - upper[i]) * u[i])
                elif upwards:
                    for i in range(len(shown)):
                        shown[i] = np.int32(upper[i] + (float(lower[i]) - upper[i]) * v[i])
                else:
                    for i in range(len(shown)):
                        above = upper[i] + (float(upper[i + 1]) - upper[i]) * u[i]
                        below = lower[i] + (float(lower[i + 1]) - lower[i]) * u[i]
                        shown[i] = np.int32(above + (below - above) * v[i])
            first = end


@inner
def outside(x: int, y: int, matrix: Matrix, size: int) -> bool:
    a, b, c, d, e, f = matrix
    column, row = a * (x + 0.5) + b * (y + 0.5) + c, d * (x + 0.5) + e * (y + 0.5) + f
    return column < 0 or column >= size or row < 0 or row >= size


@inner
def replicated(image: np.ndarray) -> np.ndarray:
    """With its border once more around it: half a pixel beyond, Pillow still shows that. (3, S + 2, S + 2)"""
    size = image.shape[-1]
    padded = np.empty((COLOURS, size + 2, size + 2), np.uint8)
    for colour in range(COLOURS):
        for y in range(size + 2):
            source, target = image[colour, min(max(y - 1, 0), size - 1)], padded[colour, y]
            for x in range(size):
                target[x + 1] = source[x]
            target[0], target[-1] = source[0], source[-1]
    return padded


@compiled("i8[:,::1](u1[:,:,::1])")
def histogram(image: np.ndarray) -> np.ndarray:
    """(3, 256) of an image (3, H, W), uint8."""
    counts = np.zeros((COLOURS, LEVELS), np.int64)
    for colour in range(COLOURS):
        row, pixels = counts[colour], image[colour].reshape(-1)
        for i in range(len(pixels)):
            row[pixels[i]] += 1
    return counts


@compiled("void(u1[:,:,::1], u1[:,::1], u1[:,:,::1])")
def look_up(image: np.ndarray, tables: np.ndarray, out: np.ndarray) -> None:
    for colour in range(COLOURS):
        table, pixels, found = tables[colour], image[colour].reshape(-1), out[colour].reshape(-1)
        for i in range(len(pixels)):
            found[i] = table[pixels[i]]


@compiled("void(u1[:,:,::1], f4[:,::1], f4[:,:,::1])")
def look_up_and_add(image: np.ndarray, tables: np.ndarray, out: np.ndarray) -> None:
    for colour in range(COLOURS):
        table, pixels, total = tables[colour], image[colour].reshape(-1), out[colour].reshape(-1)
        for i in range(len(pixels)):
            total[i] += table[pixels[i]]


@compiled("void(u1[:,:,::1], f4, f4[:,:,::1])")
def add(image: np.ndarray, weight: np.float32, out: np.ndarray) -> None:
    pixels, total = image.reshape(-1), out.reshape(-1)
    for i in range(len(pixels)):
        total[i] += weight * np.float32(pixels[i])
