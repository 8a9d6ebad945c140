"""All views of an image in one compiled call that does not hold the GIL: Pillow's arithmetic, bit
for bit.

Pillow resizes one axis after the other. In each pass a pixel is a weighted sum of input pixels,
with weights of 22 fractional bits, rounded to 8 bits. Shears and rotations are bilinear, computed
in float64 and truncated. AugMix's operations on levels are tables of 256.

All kernels are in this file because the key of the compiled code on disk is a hash of this file
alone. Slice assignments take long to compile, so loops are written out. `np.int64(0)` instead of
`0` as an argument avoids that numba compiles a function twice.
"""
from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba import types

njit: Any = numba.njit  # its own type hints refuse numpy's integers
COLOURS, LEVELS = 3, 256
BITS = 22  # of the fraction of a resizing weight
HALF, BLACK, WHITE = np.int32(1 << BITS - 1), np.int32(0), np.int32(LEVELS - 1)
STEP = 32  # pixels that one step of a vectorised loop takes; lines are padded to whole steps

# AugMix at severity 1 (Hendrycks et al., ICLR 2020): m·x + (1 − m)·Σᵢ wᵢ·chainᵢ(x), w ~
# Dirichlet(1, 1, 1), m ~ Beta(1, 1), each chain of one to three operations.
CHAINS, LONGEST_CHAIN = 3, 3
# An operation's strength is drawn between these, on a scale that ends at 10
LOWEST_LEVEL, SEVERITY = 0.1, 1.0
AUTOCONTRAST, EQUALIZE, POSTERIZE, ROTATE, SOLARIZE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y = (
    range(9)
)
KINDS = np.array([1, 1, 1, 3, 1, 3, 3, 2, 2])  # of these operations
CHANGES_LEVELS, TRANSLATES, WARPS = 1, 2, 3  # a warp is a shear or rotation
# Chains by the kinds of their operations, in the order in which they are added: float32 sums depend
# on the order.
SUM_ORDER = (
    (1, 11, 111),
    (2, 22, 12, 222, 122, 112),
    (3, 23, 32, 13, 223, 232, 322, 123, 132, 113),
    (21, 221, 211, 121),
    (31, 231, 311, 131),
    (212,),
    (312,),
    (213,),
    (33, 233, 323, 332, 313, 133),
    (321,),
    (331,),
    (333,),
)
PLACES = np.zeros(334, np.int64)  # in SUM_ORDER; 0 for chains that move no pixel
for place, kinds in enumerate(SUM_ORDER):
    PLACES[list(kinds)] = place
MOST_DEGREES = 30
# Cosine and sine of whole angles, rounded as Pillow rounds them.
ROTATIONS = np.array([
    [round(function(-math.radians(degrees % 360)), 15) for function in (math.cos, math.sin)]
    for degrees in range(-MOST_DEGREES, MOST_DEGREES + 1)
])

SIGNATURE = types.void(
    types.uint8[:, :, ::1], types.int64[:, ::1], types.boolean[::1], types.boolean, types.npy_rng,
    types.uint8[:, :, :, ::1], types.float32[:, :, :, ::1],
)
Matrix = tuple[float, float, float, float, float, float]


def make_views(
    picture: np.ndarray,
    boxes: np.ndarray,
    flips: np.ndarray,
    bicubic: bool,
    rng: np.random.Generator,
    crops: np.ndarray,
    mixed: np.ndarray,
) -> None:
    """Writes a view of each box of an image (H, W, 3), uint8.

    The first is the plain view: AugMix does not change it, and it may be `bicubic`. Compiled with
    SIGNATURE by `kernel_cache`.

    Without AugMix `mixed` is empty and views go to `crops`, uint8 (n, 3, S, S). With AugMix they go
    to `mixed`, float32 (n, 3, S, S), and `crops` is scratch memory (3, 3, S, S). `boxes` (n, 8) are
    left, top, width, height, the width and height to which that is resized, and the first column
    and row of the result that are shown.
    """
    height, num_rows_first = picture.shape[0], 0
    for n in range(len(boxes)):
        num_rows_first += is_rows_first(boxes[n])
    columns = transposed_planes(picture[: height if num_rows_first < len(boxes) else 0])
    rows = transposed_planes(picture[: height if num_rows_first else 0].transpose(1, 0, 2))
    for n in range(len(boxes)):
        resize(
            rows,
            columns,
            boxes[n],
            flips[n],
            bicubic and n == 0,
            crops[n if len(mixed) == 0 else 0],
        )
        if len(mixed) and n == 0:
            write_weighted(crops[0], np.float32(1), mixed[0])
        elif len(mixed):
            mix(crops, rng, mixed[n])


# Resizing


@njit
def is_rows_first(box: np.ndarray) -> bool:
    """Whether Pillow, since version 13, resizes the vertical axis first.

    The order changes some pixels by one level.
    """
    shrink = box[3] - box[5]
    return shrink > 0 and shrink > 2 * (box[2] - box[4])


@njit
def transposed_planes(picture: np.ndarray) -> np.ndarray:
    """(H, W, 3) -> (3, W, H + STEP), in blocks that fit the CPU's cache."""
    height, width = picture.shape[:2]
    out = np.empty((COLOURS, width, height + STEP), np.uint8)
    for top in range(0, height, STEP):
        for left in range(0, width, STEP):
            for x in range(left, min(left + STEP, width)):
                for y in range(top, min(top + STEP, height)):
                    for colour in range(COLOURS):
                        out[colour, x, y] = picture[y, x, colour]
    return out


@njit
def resize(
    rows: np.ndarray,
    columns: np.ndarray,
    box: np.ndarray,
    flip: bool,
    bicubic: bool,
    out: np.ndarray,
) -> None:
    """Writes the view of a box (see `make_views`) to `out`, uint8 (3, S, S)."""
    size = out.shape[-1]
    left, top, width, height, full_width, full_height, first_x, first_y = box
    x_starts, x_weights = filter_weights(width, full_width, first_x, size, flip, bicubic)
    y_starts, y_weights = filter_weights(
        height, full_height, first_y, size, np.bool_(False), bicubic
    )
    block = np.empty((4, max(width, height, size) + STEP), np.uint8)
    sums = np.empty(block.shape[1], np.int32)
    fours = -(-size // 4) + STEP // 4
    half, turned = (
        np.empty((max(width, height), fours), np.uint32),
        np.empty((size, fours), np.uint32),
    )
    for colour in range(COLOURS):
        if is_rows_first(box):
            weigh_transposed(
                rows[colour, top : top + height],
                left,
                y_starts,
                y_weights,
                block,
                sums,
                half[:width],
            )
            weigh_transposed(
                half[:width].view(np.uint8), np.int64(0), x_starts, x_weights, block, sums, turned
            )
            levels = turned.view(np.uint8)
            for y in range(size):
                for x in range(size):
                    out[colour, y, x] = levels[y, x]
        else:
            weigh_transposed(
                columns[colour, left : left + width],
                top,
                x_starts,
                x_weights,
                block,
                sums,
                half[:height],
            )
            lines = half[:height].view(np.uint8)
            for y in range(size):
                weigh(lines, np.int64(0), y_starts[y], y_weights[y], sums, out[colour, y])


@njit
def filter_weights(
    length: int, full: int, first: int, size: int, flip: bool, bicubic: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Of an axis that is resized from `length` to `full`, for the `size` output pixels from `first`
    on: the first input pixel of each (size,), and the weights of it and those that follow (size,
    taps), two taps or a multiple of four. Shrinking widens the filter (antialiasing).
    """
    scale = length / full
    stretch = max(scale, 1.0)
    reach = (2.0 if bicubic else 1.0) * stretch
    most = math.ceil(reach) * 2 + 1
    found = np.empty(most)
    starts, weights = np.empty(size, np.int64), np.zeros((size, most + 3), np.int32)
    taps = 1
    for i in range(size):
        centre = (first + i + 0.5) * scale
        low = max(int(centre - reach + 0.5), 0)
        count = min(int(centre + reach + 0.5), length) - low
        total = 0.0
        for k in range(count):
            x = abs((low + k - centre + 0.5) * (1 / stretch))
            if not bicubic:
                found[k] = max(1 - x, 0.0)
            elif x < 1:  # Keys' kernel with a = −1/2
                found[k] = (1.5 * x - 2.5) * x * x + 1
            else:
                found[k] = (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2 else 0.0
            total += found[k]
        place = size - 1 - i if flip else i
        starts[place] = low
        for k in range(count):
            weight = found[k] / total
            weights[place, k] = np.int32(weight * (1 << BITS) + math.copysign(0.5, weight))
        taps = max(taps, count)
    return starts, weights[:, : 2 if taps <= 2 else -(-taps // 4) * 4]


@njit
def weigh_transposed(
    lines: np.ndarray,
    begin: int,
    starts: np.ndarray,
    weights: np.ndarray,
    block: np.ndarray,
    sums: np.ndarray,
    out: np.ndarray,
) -> None:
    """Weighted sums of lines, from their pixel `begin` on, as columns of `out`, uint32 (pixels, S /
    4): bytes are transposed four at a time, little-endian.
    """
    size, padded = len(starts), -(-len(out) // STEP) * STEP
    fours = sums.view(np.uint32)
    for column in range(-(-size // 4)):
        for j in range(4):
            place = min(4 * column + j, size - 1)
            weigh(lines, begin, starts[place], weights[place], sums, block[j, :padded])
        for i in range(padded):
            fours[i] = (
                np.uint32(block[0, i])
                | np.uint32(block[1, i]) << np.uint32(8)
                | np.uint32(block[2, i]) << np.uint32(16)
                | np.uint32(block[3, i]) << np.uint32(24)
            )
        for i in range(len(out)):  # in a loop of its own, so that the one above is vectorised
            out[i, column] = fours[i]


@njit(forceinline=True)
def weigh(
    lines: np.ndarray,
    begin: int,
    start: int,
    weights: np.ndarray,
    sums: np.ndarray,
    out: np.ndarray,
) -> None:
    """The weighted sum of lines from `start` on: of two or four, or four at a time.

    Beyond the last line weights are 0.
    """
    taps, last = len(weights), len(lines) - 1
    if taps == 2:
        v, w, a, b = (
            weights[0],
            weights[1],
            lines[start, begin:],
            lines[min(start + 1, last), begin:],
        )
        for i in range(len(out)):
            out[i] = rounded(np.int32(HALF + v * np.int32(a[i]) + w * np.int32(b[i])))
        return
    if taps > 4:
        for i in range(len(out)):
            sums[i] = HALF
    for k in range(0, taps, 4):
        v, w, x, y = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        a, b = lines[min(start + k, last), begin:], lines[min(start + k + 1, last), begin:]
        c, d = lines[min(start + k + 2, last), begin:], lines[min(start + k + 3, last), begin:]
        if taps == 4:
            for i in range(len(out)):
                out[i] = rounded(
                    np.int32(
                        HALF
                        + v * np.int32(a[i])
                        + w * np.int32(b[i])
                        + x * np.int32(c[i])
                        + y * np.int32(d[i])
                    )
                )
        else:
            for i in range(len(out)):
                sums[i] += (
                    v * np.int32(a[i])
                    + w * np.int32(b[i])
                    + x * np.int32(c[i])
                    + y * np.int32(d[i])
                )
    if taps > 4:
        for i in range(len(out)):
            out[i] = rounded(sums[i])


@njit(forceinline=True)
def rounded(total: np.int32) -> np.int32:
    return min(max(np.int32(total >> BITS), BLACK), WHITE)


# AugMix


@njit
def mix(pixels: np.ndarray, rng: np.random.Generator, out: np.ndarray) -> None:
    """Writes AugMix of the view pixels[0] to `out`, float32 (3, S, S), not rounded.

    `pixels` (3, 3, S, S) has room for two more images.

    The view itself and chains that only change levels are one table. The other chains are added one
    by one.
    """
    keep, weights, lengths, places, operations, values = draw_mix(rng, out.shape[-1])
    counts = np.zeros((COLOURS, LEVELS), np.int64)  # the view's histogram, computed on first use
    table, levels = np.empty((COLOURS, LEVELS), np.uint8), np.empty((COLOURS, LEVELS), np.float32)
    unchanged, is_changed = 0.0, False
    for chain in range(CHAINS):
        unchanged += weights[chain] if lengths[chain] == 0 else 0.0
    plain = np.float32(keep + unchanged)
    for colour in range(COLOURS):
        for level in range(LEVELS):
            levels[colour, level] = np.float32(level) * plain
    for chain in range(CHAINS):
        if lengths[chain] and places[chain] == 0:
            is_changed = True
            level_table(
                pixels[0],
                operations[chain],
                values[chain],
                np.int64(0),
                lengths[chain],
                counts,
                table,
            )
            for colour in range(COLOURS):
                for level in range(LEVELS):
                    levels[colour, level] += np.float32(weights[chain]) * np.float32(
                        table[colour, level]
                    )
    if is_changed:
        look_up(pixels[0], levels, out)
    else:
        write_weighted(pixels[0], plain, out)
    for place in range(1, len(SUM_ORDER)):
        for chain in range(CHAINS):
            if places[chain] == place:
                add_chain(
                    pixels,
                    operations[chain],
                    values[chain],
                    lengths[chain],
                    weights[chain],
                    counts,
                    table,
                    out,
                )


@njit
def draw_mix(
    rng: np.random.Generator, size: int,
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The view's own weight, the chains' weights, lengths and places in SUM_ORDER (3,), their
    operations (3, 3) and these operations' parameters. Operations without effect, such as a
    rotation by 0 degrees, are left out.
    """
    weights, lengths, places = (
        np.empty(CHAINS),
        np.zeros(CHAINS, np.int64),
        np.zeros(CHAINS, np.int64),
    )
    operations, values = (
        np.zeros((CHAINS, LONGEST_CHAIN), np.int64),
        np.zeros((CHAINS, LONGEST_CHAIN)),
    )
    total = 0.0
    for chain in range(CHAINS):  # Dirichlet(1, 1, 1) as numpy draws it
        weights[chain] = rng.standard_gamma(1.0)
        total += weights[chain]
    keep = rng.beta(1.0, 1.0)
    for chain in range(CHAINS):
        weights[chain] = (1 - keep) * (weights[chain] * (1 / total))
        kinds = 0
        for _ in range(rng.integers(1, LONGEST_CHAIN + 1)):
            operation = rng.integers(0, len(KINDS))
            share = rng.uniform(LOWEST_LEVEL, SEVERITY) / 10
            sign, value = 2 * rng.integers(0, 2) - 1, 0.0
            if operation == POSTERIZE:
                value = float(4 - int(share * 4))  # bits kept
            elif operation == SOLARIZE:
                value = float(256 - int(share * 256))  # the level from which on pixels are inverted
            elif operation == ROTATE:
                value = float(sign * int(share * 30))  # degrees counter-clockwise
            elif KINDS[operation] == WARPS:
                value = sign * share * 0.3  # slope of a shear
            elif KINDS[operation] == TRANSLATES:
                value = float(int(sign * share * size / 3))  # pixels
            if value != 0 or KINDS[operation] == CHANGES_LEVELS:
                operations[chain, lengths[chain]], values[chain, lengths[chain]] = operation, value
                lengths[chain] += 1
                kinds = 10 * kinds + KINDS[operation]
        places[chain] = PLACES[kinds]
    return keep, weights, lengths, places, operations, values


@njit
def add_chain(
    pixels: np.ndarray,
    operations: np.ndarray,
    values: np.ndarray,
    length: int,
    weight: float,
    counts: np.ndarray,
    table: np.ndarray,
    out: np.ndarray,
) -> None:
    """Adds a chain's weight times what it makes of the view pixels[0]."""
    now, i = 0, np.int64(0)  # the current image in `pixels`, the next operation
    while i < length:
        image, result, begin = pixels[now], pixels[2 if now == 1 else 1], i
        while i < length and KINDS[operations[i]] == CHANGES_LEVELS:
            i += 1
        if i > begin:
            if now > 0:
                counts = np.zeros((COLOURS, LEVELS), np.int64)
            level_table(image, operations, values, begin, i, counts, table)
            look_up(image, table, result)
        else:
            if KINDS[operations[i]] == TRANSLATES:
                translate(image, operations[i], int(values[i]), result)
            else:
                warp(image, matrix(operations[i], values[i], out.shape[-1]), result)
            i += 1
        now = 2 if now == 1 else 1
    add_weighted(pixels[now], np.float32(weight), out)


# Operations on levels: a table for each colour. Tables compose exactly, and so do histograms and
# tables.


@njit
def level_table(
    image: np.ndarray,
    operations: np.ndarray,
    values: np.ndarray,
    begin: int,
    end: int,
    counts: np.ndarray,
    table: np.ndarray,
) -> None:
    """Writes the table (3, 256) of the operations from `begin` to `end`.

    `counts` (3, 256) is the image's histogram, or zeros, and then it is computed where it is
    needed.
    """
    changed = np.empty(LEVELS, np.int64)  # histogram after the table
    for i in range(begin, end):
        operation = operations[i]
        use_counts = operation in (AUTOCONTRAST, EQUALIZE)
        if use_counts and counts[0].sum() == 0:
            count_levels(image, counts)
        for colour in range(COLOURS):
            levels = table[colour]
            if i == begin:
                for level in range(LEVELS):
                    levels[level] = level
            if use_counts:
                for level in range(LEVELS):
                    changed[level] = 0
                for level in range(LEVELS):
                    changed[levels[level]] += counts[colour, level]
            if operation == EQUALIZE:
                equalize(changed, levels)
            elif operation == AUTOCONTRAST:
                low, high = extremes(changed)
                scale = 255.0 / max(high - low, 1)
                for level in range(LEVELS if high > low else 0):
                    levels[level] = min(max(int(levels[level] * scale + -low * scale), 0), 255)
            elif operation == POSTERIZE:
                mask = 0xFF << (8 - int(values[i]))
                for level in range(LEVELS):
                    levels[level] = levels[level] & mask
            else:
                for level in range(LEVELS):
                    levels[level] = (
                        levels[level] if levels[level] < values[i] else 255 - levels[level]
                    )


@njit
def extremes(counts: np.ndarray) -> tuple[int, int]:
    low, high = 0, LEVELS - 1
    while counts[low] == 0:
        low += 1
    while counts[high] == 0:
        high -= 1
    return low, high


@njit
def count_levels(image: np.ndarray, counts: np.ndarray) -> None:
    """The histogram of an image, added to `counts` (3, 256).

    Four neighbours, which are often equal, have counters of their own: to increment one counter
    again takes longer.
    """
    for colour in range(COLOURS):
        some, flat = np.zeros((4, LEVELS), np.int32), image[colour].reshape(-1)
        whole = len(flat) // 4 * 4
        for i in range(0, whole, 4):
            some[0, flat[i]] += 1
            some[1, flat[i + 1]] += 1
            some[2, flat[i + 2]] += 1
            some[3, flat[i + 3]] += 1
        for i in range(whole, len(flat)):
            some[0, flat[i]] += 1
        for level in range(LEVELS):
            counts[colour, level] += (
                some[0, level] + some[1, level] + some[2, level] + some[3, level]
            )


@njit
def equalize(counts: np.ndarray, table: np.ndarray) -> None:
    """Spreads levels so that all occur about equally often, after what the table (256,) does."""
    _, highest = extremes(counts)
    step = (counts.sum() - counts[highest]) // 255
    if step > 0:
        new, below = np.empty(LEVELS, np.int64), step // 2
        for level in range(LEVELS):
            new[level] = min(below // step, 255)
            below += counts[level]
        for level in range(LEVELS):
            table[level] = new[table[level]]


@njit
def look_up(image: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    for colour in range(COLOURS):
        levels, flat, found = table[colour], image[colour].reshape(-1), out[colour].reshape(-1)
        for i in range(len(flat)):
            found[i] = levels[flat[i]]


@njit
def write_weighted(image: np.ndarray, weight: np.float32, out: np.ndarray) -> None:
    flat, total = image.reshape(-1), out.reshape(-1)
    for i in range(len(flat)):
        total[i] = weight * np.float32(flat[i])


@njit
def add_weighted(image: np.ndarray, weight: np.float32, out: np.ndarray) -> None:
    flat, total = image.reshape(-1), out.reshape(-1)
    for i in range(len(flat)):
        total[i] += weight * np.float32(flat[i])


# Operations that move pixels


@njit
def translate(image: np.ndarray, operation: int, by: int, out: np.ndarray) -> None:
    """Moves the content by whole pixels, to the left or up. Black where nothing is left."""
    size = image.shape[-1]
    x, y = (by, 0) if operation == TRANSLATE_X else (0, by)
    left, right = max(-x, 0), min(size - x, size)
    for colour in range(COLOURS):
        for row in range(size):
            shown = out[colour, row]
            for i in range(size):
                shown[i] = 0
            if 0 <= row + y < size:
                source, part = image[colour, row + y, left + x :], shown[left:right]
                for i in range(len(part)):
                    part[i] = source[i]


@njit
def matrix(operation: int, value: float, size: int) -> Matrix:
    """(a, b, c, d, e, f): pixel (x, y) shows what lies at (a·x + b·y + c, d·x + e·y + f)."""
    if operation == SHEAR_X:
        return 1.0, value, 0.0, 0.0, 1.0, 0.0
    if operation == SHEAR_Y:
        return 1.0, 0.0, 0.0, value, 1.0, 0.0
    centre = size / 2
    cos, sin = ROTATIONS[int(value) + MOST_DEGREES]
    return (
        cos,
        sin,
        cos * -centre + sin * -centre + centre,
        -sin,
        cos,
        -sin * -centre + cos * -centre + centre,
    )


@njit
def warp(image: np.ndarray, by: Matrix, out: np.ndarray) -> None:
    """Writes an image (3, S, S), uint8, with its pixels moved by a matrix, black where no pixel of
    the image lands.
    """
    size, wide = image.shape[-1], image.shape[-1] + 2
    padded = replicated(image).reshape((COLOURS, wide * wide))
    a, b, c, d, e, f = by
    is_shear_x, is_shear_y = d == 0 and e == 1 and f == 0, a == 1 and b == 0 and c == 0
    # Of the four pixels that x is made of, the place of the upper left one, minus x
    corner = np.empty(size, np.int32)
    right, down = np.empty(size), np.empty(size)  # weights of those to the right, and below
    for y in range(size):
        if is_shear_y:
            for x in range(size):
                corner[x] = 1
        else:
            for x in range(size):
                column = a * (x + 0.5) + b * (y + 0.5) + c - 0.5
                right[x] = column - np.floor(column)
                corner[x] = np.int32(np.floor(column) + 1) - x
        if is_shear_x:
            for x in range(size):
                corner[x] += (y + 1) * wide
        else:
            for x in range(size):
                row = d * (x + 0.5) + e * (y + 0.5) + f - 0.5
                down[x] = row - np.floor(row)
                corner[x] += np.int32(np.floor(row) + 1) * wide
        first, last = np.int64(0), size
        while first < last and is_outside(first, y, by, size):
            first += 1
        while first < last and is_outside(last - 1, y, by, size):
            last -= 1
        for colour in range(COLOURS):
            for x in range(first):
                out[colour, y, x] = 0
            for x in range(last, size):
                out[colour, y, x] = 0
        while first < last:  # up to the `end` of the pixels whose corners follow one another
            end, beyond = first + 1, last + 1
            while end + 1 < beyond:
                middle = (end + beyond) // 2
                if corner[middle - 1] == corner[first]:
                    end = middle
                else:
                    beyond = middle
            begin, u, v = corner[first] + first, right[first:end], down[first:end]
            for colour in range(COLOURS):
                upper, lower, shown = (
                    padded[colour, begin:],
                    padded[colour, begin + wide :],
                    out[colour, y, first:end],
                )
                if is_shear_x:
                    for i in range(len(shown)):
                        shown[i] = np.int32(upper[i] + (float(upper[i + 1]) - upper[i]) * u[i])
                elif is_shear_y:
                    for i in range(len(shown)):
                        shown[i] = np.int32(upper[i] + (float(lower[i]) - upper[i]) * v[i])
                else:
                    for i in range(len(shown)):
                        above = upper[i] + (float(upper[i + 1]) - upper[i]) * u[i]
                        below = lower[i] + (float(lower[i + 1]) - lower[i]) * u[i]
                        shown[i] = np.int32(above + (below - above) * v[i])
            first = end


@njit
def is_outside(x: int, y: int, by: Matrix, size: int) -> bool:
    a, b, c, d, e, f = by
    column, row = a * (x + 0.5) + b * (y + 0.5) + c, d * (x + 0.5) + e * (y + 0.5) + f
    return column < 0 or column >= size or row < 0 or row >= size


@njit
def replicated(image: np.ndarray) -> np.ndarray:
    """With its border repeated around it, which Pillow shows up to half a pixel outside.

    (3, S + 2, S + 2)
    """
    size = image.shape[-1]
    padded = np.empty((COLOURS, size + 2, size + 2), np.uint8)
    for colour in range(COLOURS):
        for y in range(size + 2):
            source, target = image[colour, min(max(y - 1, 0), size - 1)], padded[colour, y]
            for x in range(size):
                target[x + 1] = source[x]
            target[0], target[size + 1] = source[0], source[size - 1]
    return padded
