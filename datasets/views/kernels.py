"""Makes all views of an image in one compiled call that does not hold the GIL.

The arithmetic is Pillow's, bit for bit.

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
COLOURS = 3
LEVELS = 256
BITS = 22  # bits of the fraction of a resizing weight
HALF = np.int32(1 << (BITS - 1))  # added before the fraction is cut off, which rounds
BLACK = np.int32(0)
WHITE = np.int32(LEVELS - 1)
STEP = 32  # pixels that one step of a vectorised loop takes; lines are padded to whole steps

# AugMix at severity 1 (Hendrycks et al., ICLR 2020): m·x + (1 − m)·Σᵢ wᵢ·chainᵢ(x), w ~
# Dirichlet(1, 1, 1), m ~ Beta(1, 1), each chain of one to three operations.
CHAINS = 3
LONGEST_CHAIN = 3
# An operation's strength is drawn between these, on a scale that ends at 10.
LOWEST_LEVEL = 0.1
SEVERITY = 1.0
AUTOCONTRAST = 0
EQUALIZE = 1
POSTERIZE = 2
ROTATE = 3
SOLARIZE = 4
SHEAR_X = 5
SHEAR_Y = 6
TRANSLATE_X = 7
TRANSLATE_Y = 8
# Kinds of operations; a warp is a shear or rotation.
CHANGES_LEVELS = 1
TRANSLATES = 2
WARPS = 3
KINDS = np.array([1, 1, 1, 3, 1, 3, 3, 2, 2])  # kinds of the operations 0 to 8
# Chains by the kinds of their operations, in the order in which they are added: float32 sums depend
# on the order. 31 is a chain that warps and then changes levels.
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
# The position of each kind of chain in SUM_ORDER; 0 for chains that move no pixel.
POSITIONS = np.zeros(334, np.int64)
for position, kinds_of_position in enumerate(SUM_ORDER):
    POSITIONS[list(kinds_of_position)] = position
MOST_DEGREES = 30
# Cosine and sine of the angles from -MOST_DEGREES on, rounded as Pillow rounds them.
ROTATIONS = np.zeros((2 * MOST_DEGREES + 1, 2))
for row, degrees in enumerate(range(-MOST_DEGREES, MOST_DEGREES + 1)):
    angle = -math.radians(degrees % 360)
    ROTATIONS[row, 0] = round(math.cos(angle), 15)
    ROTATIONS[row, 1] = round(math.sin(angle), 15)

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
    """Writes a view of each box of an image.

    Compiled with SIGNATURE by `kernel_cache`.

    Args:
        picture: The image (H, W, 3), uint8.
        boxes: The boxes (n, 8), one row per view: left, top, width and height in the image, the
            width and height to which that is resized, and the first column and row of the result
            that are used.
        flips: Whether a view is mirrored, (n,).
        bicubic: Whether the first view, the plain one, is resized by Keys' kernel. All others are
            resized bilinearly. AugMix does not change the plain view.
        rng: Source of AugMix's random numbers.
        crops: The array to which views without AugMix are written, uint8 (n, 3, S, S). With AugMix
            it is scratch memory (3, 3, S, S).
        mixed: The array to which views with AugMix are written, float32 (n, 3, S, S). Empty
            without AugMix.
    """
    num_rows_first = 0
    for n in range(len(boxes)):
        num_rows_first += is_rows_first(boxes[n])
    # Pixels are transposed only for the order of axes that a box needs.
    num_column_lines = np.int64(0)
    if num_rows_first < len(boxes):
        num_column_lines = picture.shape[0]
    num_row_lines = np.int64(0)
    if num_rows_first > 0:
        num_row_lines = picture.shape[0]
    columns = transposed_planes(picture[:num_column_lines])
    rows = transposed_planes(picture[:num_row_lines].transpose(1, 0, 2))

    with_augmix = len(mixed) > 0
    for n in range(len(boxes)):
        crop = crops[0] if with_augmix else crops[n]
        resize(rows, columns, boxes[n], flips[n], bicubic and n == 0, crop)
        if with_augmix:
            if n == 0:
                write_weighted(crop, np.float32(1), mixed[0])
            else:
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
    """Transposes (H, W, 3) -> (3, W, H + STEP), in blocks that fit the CPU's cache."""
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
    """Writes the view of a box to `out`.

    Args:
        rows: The image's colours, (3, H, W + STEP); empty if all boxes are resized columns first.
        columns: The image's colours transposed, (3, W, H + STEP); empty if none is.
        box: Row of `boxes`, see `make_views`.
        flip: Whether the view is mirrored.
        bicubic: Whether the view is resized by Keys' kernel instead of bilinearly.
        out: The array to which the view is written, uint8 (3, S, S).
    """
    size = out.shape[-1]
    left, top, width, height, full_width, full_height, first_x, first_y = box
    x_starts, x_weights = filter_weights(width, full_width, first_x, size, flip, bicubic)
    no_flip = np.bool_(False)
    y_starts, y_weights = filter_weights(height, full_height, first_y, size, no_flip, bicubic)
    # Memory for `weigh_transposed`. Its results have four lines in each uint32.
    block = np.empty((4, max(width, height, size) + STEP), np.uint8)
    sums = np.empty(block.shape[1], np.int32)
    fours = -(-size // 4) + STEP // 4
    half = np.empty((max(width, height), fours), np.uint32)  # resized along one axis
    both = np.empty((size, fours), np.uint32)  # resized along both axes
    for colour in range(COLOURS):
        if is_rows_first(box):
            lines = rows[colour, top : top + height]
            weigh_transposed(lines, left, y_starts, y_weights, block, sums, half[:width])
            lines = half[:width].view(np.uint8)
            weigh_transposed(lines, np.int64(0), x_starts, x_weights, block, sums, both)
            levels = both.view(np.uint8)
            for y in range(size):
                for x in range(size):
                    out[colour, y, x] = levels[y, x]
        else:
            lines = columns[colour, left : left + width]
            weigh_transposed(lines, top, x_starts, x_weights, block, sums, half[:height])
            lines = half[:height].view(np.uint8)
            for y in range(size):
                weigh(lines, np.int64(0), y_starts[y], y_weights[y], sums, out[colour, y])


@njit
def filter_weights(
    length: int, full: int, first: int, size: int, flip: bool, bicubic: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the weights with which one axis is resized.

    Args:
        length: Number of input pixels.
        full: Number of output pixels.
        first: The first output pixel that is needed.
        size: Number of output pixels that are needed.
        flip: Whether the output is mirrored.
        bicubic: Whether the filter is Keys' kernel instead of a triangle.

    Returns:
        The first input pixel of each output pixel, (size,); and the weights of this pixel and of
        those that follow, (size, taps), with two taps or a multiple of four.
    """
    scale = length / full
    stretch = max(scale, 1.0)  # shrinking widens the filter (antialiasing)
    reach = (2.0 if bicubic else 1.0) * stretch
    most = math.ceil(reach) * 2 + 1
    kernel = np.empty(most)
    starts = np.empty(size, np.int64)
    weights = np.zeros((size, most + 3), np.int32)
    most_taps = 1
    for i in range(size):
        centre = (first + i + 0.5) * scale
        low = max(int(centre - reach + 0.5), 0)
        count = min(int(centre + reach + 0.5), length) - low
        total = 0.0
        for k in range(count):
            x = abs((low + k - centre + 0.5) * (1 / stretch))
            if not bicubic:
                kernel[k] = max(1 - x, 0.0)
            elif x < 1:  # Keys' kernel with a = −1/2
                kernel[k] = (1.5 * x - 2.5) * x * x + 1
            elif x < 2:
                kernel[k] = (((x - 5) * x + 8) * x - 4) * -0.5
            else:
                kernel[k] = 0.0
            total += kernel[k]

        output = size - 1 - i if flip else i
        starts[output] = low
        for k in range(count):
            weight = kernel[k] / total
            weights[output, k] = np.int32(weight * (1 << BITS) + math.copysign(0.5, weight))
        most_taps = max(most_taps, count)

    if most_taps <= 2:
        taps = 2
    else:
        taps = -(-most_taps // 4) * 4  # rounded up
    return starts, weights[:, :taps]


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
    """Writes weighted sums of lines as columns of `out`.

    Bytes are transposed four at a time, little-endian.

    Args:
        lines: Lines of one colour, uint8 (lines, pixels).
        begin: The first pixel of the lines that is used.
        starts: The first line of each sum, (S,).
        weights: The weights of that line and of those that follow, (S, taps).
        block: Scratch memory for four sums, uint8 (4, pixels).
        sums: Scratch memory, int32 (pixels,).
        out: The array of the sums, four bytes in each uint32, (pixels, S / 4).
    """
    size = len(starts)
    padded = -(-len(out) // STEP) * STEP
    fours = sums.view(np.uint32)
    for column in range(-(-size // 4)):
        for j in range(4):
            n = min(4 * column + j, size - 1)
            weigh(lines, begin, starts[n], weights[n], sums, block[j, :padded])
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
    """Writes the weighted sum of lines from `start` on: of two or four, or four at a time.

    Beyond the last line weights are 0.

    Args:
        lines: Lines of one colour, uint8 (lines, pixels).
        begin: The first pixel of each line.
        start: The first line.
        weights: Weights of the lines from `start` on, int32.
        sums: Scratch memory, int32.
        out: The array of the sum, uint8; its length is the number of pixels.
    """
    taps = len(weights)
    last = len(lines) - 1
    if taps == 2:
        v = weights[0]
        w = weights[1]
        a = lines[start, begin:]
        b = lines[min(start + 1, last), begin:]
        for i in range(len(out)):
            out[i] = rounded(np.int32(HALF + v * np.int32(a[i]) + w * np.int32(b[i])))
        return
    if taps > 4:
        for i in range(len(out)):
            sums[i] = HALF
    for k in range(0, taps, 4):
        v = weights[k]
        w = weights[k + 1]
        x = weights[k + 2]
        y = weights[k + 3]
        a = lines[min(start + k, last), begin:]
        b = lines[min(start + k + 1, last), begin:]
        c = lines[min(start + k + 2, last), begin:]
        d = lines[min(start + k + 3, last), begin:]
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
    """The level, from 0 to 255, of a weighted sum to which HALF has been added."""
    return min(max(np.int32(total >> BITS), BLACK), WHITE)


# AugMix


@njit
def mix(pixels: np.ndarray, rng: np.random.Generator, out: np.ndarray) -> None:
    """Writes AugMix of a view.

    The view itself and chains that only change levels are one table. The other chains are added one
    by one.

    Args:
        pixels: The view, and room for two more images, uint8 (3, 3, S, S).
        rng: Source of the random numbers.
        out: The array of the result, float32 (3, S, S), not rounded.
    """
    view = pixels[0]
    view_weight, weights, lengths, positions, operations, values = draw_mix(rng, out.shape[-1])
    counts = np.zeros((COLOURS, LEVELS), np.int64)  # the view's histogram, computed on first use
    table = np.empty((COLOURS, LEVELS), np.uint8)  # what a chain makes of each level

    # A chain without operations is the view again.
    unchanged = 0.0
    for chain in range(CHAINS):
        if lengths[chain] == 0:
            unchanged += weights[chain]
    plain = np.float32(view_weight + unchanged)

    levels = np.empty((COLOURS, LEVELS), np.float32)  # the weighted sum of the tables
    for colour in range(COLOURS):
        for level in range(LEVELS):
            levels[colour, level] = np.float32(level) * plain
    is_changed = False
    for chain in range(CHAINS):
        if lengths[chain] > 0 and positions[chain] == 0:
            is_changed = True
            begin = np.int64(0)
            level_table(
                view, operations[chain], values[chain], begin, lengths[chain], counts, table
            )
            weight = np.float32(weights[chain])
            for colour in range(COLOURS):
                for level in range(LEVELS):
                    levels[colour, level] += weight * np.float32(table[colour, level])
    if is_changed:
        look_up(view, levels, out)
    else:
        write_weighted(view, plain, out)

    for position in range(1, len(SUM_ORDER)):
        for chain in range(CHAINS):
            if positions[chain] == position:
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
    """Draws what AugMix does to a view.

    Operations without effect, such as a rotation by 0 degrees, are left out.

    Args:
        rng: Source of the random numbers.
        size: Number of pixels per side of the view.

    Returns:
        The view's weight; the chains' weights, lengths and positions in SUM_ORDER, (3,) each; and
        their operations and the parameters of these, (3, 3) each.
    """
    weights = np.empty(CHAINS)
    lengths = np.zeros(CHAINS, np.int64)
    positions = np.zeros(CHAINS, np.int64)
    operations = np.zeros((CHAINS, LONGEST_CHAIN), np.int64)
    values = np.zeros((CHAINS, LONGEST_CHAIN))
    total = 0.0
    for chain in range(CHAINS):  # Dirichlet(1, 1, 1) as numpy draws it
        weights[chain] = rng.standard_gamma(1.0)
        total += weights[chain]
    view_weight = rng.beta(1.0, 1.0)
    for chain in range(CHAINS):
        weights[chain] = (1 - view_weight) * (weights[chain] * (1 / total))
        kinds = 0
        for _ in range(rng.integers(1, LONGEST_CHAIN + 1)):
            operation = rng.integers(0, len(KINDS))
            share = rng.uniform(LOWEST_LEVEL, SEVERITY) / 10
            sign = 2 * rng.integers(0, 2) - 1
            value = 0.0
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
                operations[chain, lengths[chain]] = operation
                values[chain, lengths[chain]] = value
                lengths[chain] += 1
                kinds = 10 * kinds + KINDS[operation]
        positions[chain] = POSITIONS[kinds]
    return view_weight, weights, lengths, positions, operations, values


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
    """Adds a chain's weight times what it makes of the view pixels[0].

    Args:
        pixels: The view, and memory for two more images, uint8 (3, 3, S, S).
        operations: The chain's operations, (3,).
        values: Parameters of the operations, (3,).
        length: Number of operations.
        weight: Weight of the chain.
        counts: The view's histogram (3, 256), or zeros if it has not been computed.
        table: Scratch memory (3, 256), uint8.
        out: The array of the sum, float32 (3, S, S), to which the result is added.
    """
    current = 0  # the image in `pixels` that the next operation changes
    i = np.int64(0)  # the next operation
    while i < length:
        # The view itself stays: other chains start from it.
        following = 2 if current == 1 else 1
        image = pixels[current]
        result = pixels[following]
        begin = i
        while i < length and KINDS[operations[i]] == CHANGES_LEVELS:
            i += 1
        if i > begin:
            if current > 0:  # `counts` is of the view
                counts = np.zeros((COLOURS, LEVELS), np.int64)
            level_table(image, operations, values, begin, i, counts, table)
            look_up(image, table, result)
        else:
            if KINDS[operations[i]] == TRANSLATES:
                translate(image, operations[i], int(values[i]), result)
            else:
                warp(image, matrix(operations[i], values[i], out.shape[-1]), result)
            i += 1
        current = following
    add_weighted(pixels[current], np.float32(weight), out)


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
    """Writes the table of a chain's operations on levels.

    Args:
        image: The image, uint8 (3, S, S).
        operations: Operations of the chain, (3,).
        values: Parameters of the operations, (3,).
        begin: The first operation.
        end: The operation after the last one.
        counts: Histogram of the image, (3, 256), or zeros; then it is computed where it is needed.
        table: The array of the result, uint8 (3, 256).
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
                if high > low:
                    for level in range(LEVELS):
                        stretched = int(levels[level] * scale + -low * scale)
                        levels[level] = min(max(stretched, 0), 255)
            elif operation == POSTERIZE:
                mask = 0xFF << (8 - int(values[i]))
                for level in range(LEVELS):
                    levels[level] = levels[level] & mask
            else:
                for level in range(LEVELS):
                    if levels[level] >= values[i]:  # SOLARIZE
                        levels[level] = 255 - levels[level]


@njit
def extremes(counts: np.ndarray) -> tuple[int, int]:
    """Returns the lowest and the highest level that occurs in a histogram (256,)."""
    low = 0
    high = LEVELS - 1
    while counts[low] == 0:
        low += 1
    while counts[high] == 0:
        high -= 1
    return low, high


@njit
def count_levels(image: np.ndarray, counts: np.ndarray) -> None:
    """Adds the histogram of an image.

    Four neighbours, which are often equal, have counters of their own: to increment one counter
    again takes longer.

    Args:
        image: The image, uint8 (3, S, S).
        counts: The histogram, (3, 256), to which the result is added.
    """
    for colour in range(COLOURS):
        counters = np.zeros((4, LEVELS), np.int32)
        flat = image[colour].reshape(-1)
        end_of_fours = len(flat) // 4 * 4
        for i in range(0, end_of_fours, 4):
            counters[0, flat[i]] += 1
            counters[1, flat[i + 1]] += 1
            counters[2, flat[i + 2]] += 1
            counters[3, flat[i + 3]] += 1
        for i in range(end_of_fours, len(flat)):
            counters[0, flat[i]] += 1
        for level in range(LEVELS):
            for j in range(4):
                counts[colour, level] += counters[j, level]


@njit
def equalize(counts: np.ndarray, table: np.ndarray) -> None:
    """Spreads levels so that all occur about equally often, after what a table does.

    Args:
        counts: Histogram after the table, (256,).
        table: Table of one colour, (256,), which is changed.
    """
    _, highest = extremes(counts)
    step = (counts.sum() - counts[highest]) // 255
    if step > 0:
        new = np.empty(LEVELS, np.int64)
        below = step // 2
        for level in range(LEVELS):
            new[level] = min(below // step, 255)
            below += counts[level]
        for level in range(LEVELS):
            table[level] = new[table[level]]


@njit
def look_up(image: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    """Writes the entry of a table for each level of an image.

    Args:
        image: The image, uint8 (3, S, S).
        table: A table for each colour, (3, 256).
        out: The array of the result, (3, S, S).
    """
    for colour in range(COLOURS):
        levels = table[colour]
        flat = image[colour].reshape(-1)
        flat_out = out[colour].reshape(-1)
        for i in range(len(flat)):
            flat_out[i] = levels[flat[i]]


@njit
def write_weighted(image: np.ndarray, weight: np.float32, out: np.ndarray) -> None:
    """Writes an image times a weight."""
    flat = image.reshape(-1)
    total = out.reshape(-1)
    for i in range(len(flat)):
        total[i] = weight * np.float32(flat[i])


@njit
def add_weighted(image: np.ndarray, weight: np.float32, out: np.ndarray) -> None:
    """Adds an image times a weight."""
    flat = image.reshape(-1)
    total = out.reshape(-1)
    for i in range(len(flat)):
        total[i] += weight * np.float32(flat[i])


# Operations that move pixels


@njit
def translate(image: np.ndarray, operation: int, by: int, out: np.ndarray) -> None:
    """Moves the content by whole pixels, to the left or up. Black where nothing is left.

    Args:
        image: The image, uint8 (3, S, S).
        operation: The axis: TRANSLATE_X or TRANSLATE_Y.
        by: Number of pixels; negative = to the right or down.
        out: The array of the result, uint8 (3, S, S).
    """
    size = image.shape[-1]
    x = 0
    y = 0
    if operation == TRANSLATE_X:
        x = by
    else:
        y = by
    # Columns of the result that lie inside the image.
    left = max(-x, 0)
    right = min(size - x, size)
    for colour in range(COLOURS):
        for row in range(size):
            line = out[colour, row]
            for i in range(size):
                line[i] = 0
            if 0 <= row + y < size:
                source = image[colour, row + y, left + x :]
                target = line[left:right]
                for i in range(len(target)):
                    target[i] = source[i]


@njit
def matrix(operation: int, value: float, size: int) -> Matrix:
    """Computes the numbers (a, b, c, d, e, f) of a warp.

    Pixel (x, y) shows what lies at (a·x + b·y + c, d·x + e·y + f).

    Args:
        operation: The warp: SHEAR_X, SHEAR_Y or ROTATE.
        value: Slope of the shear, or degrees of the rotation counter-clockwise.
        size: Number of pixels per side.
    """
    if operation == SHEAR_X:
        return 1.0, value, 0.0, 0.0, 1.0, 0.0
    if operation == SHEAR_Y:
        return 1.0, 0.0, 0.0, value, 1.0, 0.0
    centre = size / 2
    cos, sin = ROTATIONS[int(value) + MOST_DEGREES]
    right = cos * -centre + sin * -centre + centre
    down = -sin * -centre + cos * -centre + centre
    return cos, sin, right, -sin, cos, down


@njit
def warp(image: np.ndarray, by: Matrix, out: np.ndarray) -> None:
    """Writes an image with its pixels moved by a matrix, black where no pixel of the image lands.

    Args:
        image: The image, uint8 (3, S, S).
        by: The numbers of the warp, as `matrix` returns them.
        out: The array of the result, uint8 (3, S, S).
    """
    size = image.shape[-1]
    wide = size + 2
    padded = replicated(image).reshape((COLOURS, wide * wide))
    a, b, c, d, e, f = by
    is_shear_x = d == 0 and e == 1 and f == 0
    is_shear_y = a == 1 and b == 0 and c == 0
    # Pixel x is made of four pixels of `padded`: the index of the upper left one, minus x.
    corner = np.empty(size, np.int32)
    right = np.empty(size)  # weights of the pixels to the right
    down = np.empty(size)  # weights of the pixels below
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

        # Pixels from `first` to `last` show a part of the image.
        first = np.int64(0)
        last = size
        while first < last and is_outside(first, y, by, size):
            first += 1
        while first < last and is_outside(last - 1, y, by, size):
            last -= 1
        for colour in range(COLOURS):
            for x in range(first):
                out[colour, y, x] = 0
            for x in range(last, size):
                out[colour, y, x] = 0

        while first < last:
            # Pixels whose corners follow one another: a loop over them is vectorised.
            end = end_of_run(corner, first, last)
            begin = corner[first] + first
            u = right[first:end]
            v = down[first:end]
            for colour in range(COLOURS):
                upper = padded[colour, begin:]
                lower = padded[colour, begin + wide :]
                target = out[colour, y, first:end]
                if is_shear_x:
                    for i in range(len(target)):
                        target[i] = np.int32(upper[i] + (float(upper[i + 1]) - upper[i]) * u[i])
                elif is_shear_y:
                    for i in range(len(target)):
                        target[i] = np.int32(upper[i] + (float(lower[i]) - upper[i]) * v[i])
                else:
                    for i in range(len(target)):
                        above = upper[i] + (float(upper[i + 1]) - upper[i]) * u[i]
                        below = lower[i] + (float(lower[i + 1]) - lower[i]) * u[i]
                        target[i] = np.int32(above + (below - above) * v[i])
            first = end


@njit
def end_of_run(corner: np.ndarray, first: int, last: int) -> int:
    """Finds the end of the pixels from `first` on, up to `last`, that have the corner of `first`.

    Bisection works, because all pixels of a line after one with another corner have others too.

    Args:
        corner: Corner of each pixel of a line, (S,), see `warp`.
        first: The first pixel.
        last: The pixel after the last one.
    """
    end = first + 1
    beyond = last + 1
    while end + 1 < beyond:
        middle = (end + beyond) // 2
        if corner[middle - 1] == corner[first]:
            end = middle
        else:
            beyond = middle
    return end


@njit
def is_outside(x: int, y: int, by: Matrix, size: int) -> bool:
    """Whether the centre of a pixel shows what lies beyond the image.

    Args:
        x: Column of the pixel.
        y: Row of the pixel.
        by: The numbers of the warp, as `matrix` returns them.
        size: Number of pixels per side.
    """
    a, b, c, d, e, f = by
    column = a * (x + 0.5) + b * (y + 0.5) + c
    row = d * (x + 0.5) + e * (y + 0.5) + f
    return column < 0 or column >= size or row < 0 or row >= size


@njit
def replicated(image: np.ndarray) -> np.ndarray:
    """Returns an image (3, S, S) with its border repeated around it, (3, S + 2, S + 2).

    Pillow shows the border up to half a pixel outside.
    """
    size = image.shape[-1]
    padded = np.empty((COLOURS, size + 2, size + 2), np.uint8)
    for colour in range(COLOURS):
        for y in range(size + 2):
            source = image[colour, min(max(y - 1, 0), size - 1)]
            target = padded[colour, y]
            target[0] = source[0]
            target[size + 1] = source[size - 1]
            for x in range(size):
                target[x + 1] = source[x]
    return padded
