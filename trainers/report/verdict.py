"""The verdict: which method is best calibrated, how the others err, and what the images can show.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...datasets.utils.cli import counted
from ..functional.intervals import LEVEL, Estimate
from ..functional.significance import smallest_difference
from ..registry import TRAINER_REGISTRY, method_info
from .grid import Column, Grid, Row
from .pairs import Pair
from .words import is_untuned_prompt, joined_with_and, joined_with_or, listed

PERCENT = "\u00a0%"  # a number and its sign stay on one line
NEITHER = 0.5  # points of over-confidence below which a method is called neither
# Methods that are not shown to differ from the baseline: more of them share a sentence.
MOST_UNDECIDED = 4


@dataclass(frozen=True)
class Line:
    """Averages of one method over the data sets that all methods have, in percent."""

    row: Row
    ece: float
    accuracy: float
    over_confidence: float

    @property
    def direction(self) -> str:
        """In words: by how much confidence exceeds accuracy, or falls short of it."""
        if abs(self.over_confidence) < NEITHER:
            return "neither over- nor under-confident on average"
        return f"{side(self.over_confidence)} by {abs(self.over_confidence):.1f} points"


@dataclass(frozen=True)
class Verdict:
    """What a page says first.

    Attributes:
        lines: Lines of the methods, best first.
        best: Label of the best row; "" if none is called best.
        sentence: Which method is best calibrated.
        findings: Sentences about the methods against the baseline.
        basis: What it was measured on.
        backbone: The backbone, as tables name it.
    """

    lines: Sequence[Line]
    best: str
    sentence: str
    basis: str
    backbone: str
    findings: Sequence[str] = ()


def judge(
    grid: Grid, pairs: Sequence[Pair], against_baseline: Sequence[Pair] = ()
) -> Verdict | None:
    """Sorts the methods of a main table by ECE; the tests of `pairs` decide what is said of them.

    Rows with too many failed images are left out. None if the methods share no data set.

    Args:
        pairs: The tests of all pairs of tuned methods.
    """
    columns = grid.common_columns()
    if not columns:
        return None
    lines = []
    for row in grid.rows_on(columns):
        if grid.is_ranked(row, columns):
            lines.append(make_line(grid, row, columns))
    if not lines:
        return None
    lines.sort(key=lambda line: line.ece)
    tuned = candidates(lines)
    unknown = [line for line in tuned if line.row.method not in TRAINER_REGISTRY]
    counts = []
    for label, numbers in grid.counts(columns).items():
        counts.append(f"{label} {joined_with_and([f'{number:,}' for number in numbers])}")
    total = sum(column.n for column in columns)
    basis = (f"ECE in percent, {grid.bins} bins; lower is better. Backbone {grid.heading}, "
             f"{total:,} test images: {', '.join(counts)}.")
    findings = finding_sentences(against_baseline)
    if len(tuned) > 1 and len(unknown) == len(tuned):
        return Verdict(lines, "", unranked_sentence(unknown), basis, grid.backbone, findings)
    sentence = verdict_sentence(lines, tuned, pairs)
    return Verdict(lines, tuned[0].row.label, sentence, basis, grid.backbone, findings)


def make_line(grid: Grid, row: Row, columns: Sequence[Column]) -> Line:
    """A row's means over some columns, in percent."""
    return Line(
        row=row,
        ece=100 * grid.mean(row, columns, "ece"),
        accuracy=100 * grid.mean(row, columns, "accuracy"),
        over_confidence=100 * grid.mean(row, columns, "signed_error"),
    )


def candidates(lines: Sequence[Line]) -> list[Line]:
    """The methods that may be called best.

    They are the tuned ones; without any, all but zero-shot; without these, all.
    """
    tuned = []
    not_zero_shot = []
    for line in lines:
        info = method_info(line.row.method)
        if info.tuned:
            tuned.append(line)
        if not info.zero_shot:
            not_zero_shot.append(line)
    return tuned or not_zero_shot or list(lines)


def unranked_sentence(lines: Sequence[Line]) -> str:
    """The methods of plugins that are not loaded: what they are is not known."""
    figures = [f"{line.row.label} {line.ece:.1f}{PERCENT}" for line in lines]
    return (
        f"ECE: {joined_with_and(figures)}. They are not ranked, because nothing is known of these "
        "methods without their plugins."
    )


def verdict_sentence(lines: Sequence[Line], tuned: Sequence[Line], pairs: Sequence[Pair]) -> str:
    """Whether the method of lowest ECE is better calibrated than every other tuned one.

    Args:
        lines: All methods, the lowest ECE first.
        tuned: The tuned ones of them.
    """
    best = tuned[0]
    others = tuned[1:]
    if not others:
        sentence = f"{best.row.label} has an ECE of {best.ece:.1f}{PERCENT}: {best.direction}."
    else:
        sentence = lead_sentence(best, others, pairs)
        worst = others[-1]
        if worst is not others[0]:
            sentence += (f" {worst.row.label} has an ECE of {worst.ece:.1f}{PERCENT} and is "
                         f"{worst.direction}.")
    for line in lines:
        if method_info(line.row.method).zero_shot and line not in tuned:
            name = f"{line.row.label} CLIP"
            if is_untuned_prompt(line.row.record):
                name = line.row.label
            sentence += f" {name} has {line.ece:.1f}{PERCENT}."
            break
    return sentence


def lead_sentence(best: Line, others: Sequence[Line], pairs: Sequence[Pair]) -> str:
    """What the tests say about the method of lowest ECE.

    ECE is for comparison with papers. The tests are of over-confidence and of the debiased squared
    error, to which chance adds nothing.

    Args:
        best: The method of lowest ECE.
        others: The other tuned methods, by ECE.
    """
    lowest = f"{best.row.label} has the lowest ECE of the tuned methods, {best.ece:.1f}{PERCENT}"
    equal = [line.row.label for line in others if f"{line.ece:.1f}" == f"{best.ece:.1f}"]
    if equal:  # as printed
        lowest += f", as {'has' if len(equal) == 1 else 'have'} {joined_with_and(equal)}"
    tested = {}
    for other in others:
        for pair in pairs:
            if pair.has(best.row) and pair.has(other.row):
                tested[other.row] = pair
    if not tested:
        second = others[0]
        return (
            f"{lowest}, before {second.row.label} with {second.ece:.1f}{PERCENT}; they share no "
            f"images."
        )
    undecided = []
    open_pairs = []
    for row, pair in tested.items():
        if pair.better is row:
            return f"{lowest}, but {pair_sentence(pair)}"
        if pair.better is None:
            undecided.append(row.label)
            open_pairs.append(pair)
    if len(tested) == len(others) and not open_pairs:
        nearest = tested[others[0].row]
        return (f"{best.row.label} is the best calibrated of the tuned methods, with an ECE of "
                f"{best.ece:.1f}{PERCENT}. {pair_sentence(nearest)}")
    closest = min(open_pairs, key=lambda pair: pair.p)
    compared = listed(undecided, 3) if len(undecided) > 3 else joined_with_or(undecided)
    return (f"{lowest}, but no difference in calibration from {compared} is shown. "
            f"{pair_sentence(closest)}")


def finding_sentences(pairs: Sequence[Pair]) -> list[str]:
    """What the tests of methods against the baseline show, a sentence or two for each.

    Of many methods the tests may show nothing. They share one sentence.
    """
    undecided = [pair for pair in pairs if shows_nothing(pair)]
    if len(undecided) <= MOST_UNDECIDED:
        return [pair_sentence(pair) for pair in pairs]
    sentences = [pair_sentence(pair) for pair in pairs if not shows_nothing(pair)]
    first = undecided[0]
    others = listed([pair.second.label for pair in undecided], MOST_UNDECIDED)
    closest = min(undecided, key=lambda pair: pair.p)
    sentences.append(
        f"No difference between {first.first.label} and {others} is shown, neither in calibration "
        f"nor in accuracy. The least p is that of {closest.second.label} "
        f"({p_words(closest.p)}, {closest.family}). {power_sentence(closest)}")
    return sentences


def shows_nothing(pair: Pair) -> bool:
    """Whether the tests of a pair show a difference neither in calibration nor in accuracy."""
    is_opposite = pair.over[0] * pair.over[1] < 0 and pair.comparison.over.p < LEVEL
    is_decided = pair.better is not None or pair.is_significant or is_opposite
    return not is_decided and pair.accuracy_p >= LEVEL


def pair_sentence(pair: Pair) -> str:
    """What the tests of a pair show, in one or two sentences."""
    if pair.better is not None:
        return better_sentence(pair)
    if pair.is_significant:
        return disagreement_sentence(pair)
    if pair.over[0] * pair.over[1] < 0 and pair.comparison.over.p < LEVEL:
        return opposite_sentence(pair)
    names = f"{pair.first.label} and {pair.second.label}"
    sentence = (
        f"No difference in calibration between {names} is shown ({p_words(pair.p)}, {pair.family})"
    )
    accuracy = pair.comparison.accuracy
    if pair.accuracy_p < LEVEL:
        better = pair.second if accuracy.value > 0 else pair.first
        low, high = sorted((abs(accuracy.low), abs(accuracy.high)))
        return (
            f"{sentence}; {better.label} is more accurate by {100 * abs(accuracy.value):.1f} "
            f"points [{100 * low:.1f}, {100 * high:.1f}] ({p_words(pair.accuracy_p)})."
        )
    return f"{sentence}. {power_sentence(pair)}"


def better_sentence(pair: Pair) -> str:
    """One method is better calibrated."""
    is_second = pair.better is pair.second
    winner, loser = (pair.second, pair.first) if is_second else (pair.first, pair.second)
    over = pair.over[::-1] if is_second else pair.over
    errors = pair.errors[::-1] if is_second else pair.errors
    sentence = (
        f"{winner.label} is better calibrated than {loser.label} on the same "
        f"{counted(pair.comparison.images, 'image')} ({p_words(pair.p)}, {pair.family}): "
        f"{over_words(over[0], unit=False)} instead of {over_words(over[1], over[0])}; debiased "
        f"RMS error {100 * errors[0]:.1f} instead of {100 * errors[1]:.1f}{PERCENT}."
    )
    if pair.comparison.level < LEVEL <= pair.comparison.squared.p:
        sentence += " Mean confidence is nearer to accuracy; bin by bin no difference is shown."
    elif pair.comparison.squared.p < LEVEL <= pair.comparison.level:
        sentence += " It is nearer bin by bin; on average no difference is shown."
    accuracy = pair.comparison.accuracy
    if not is_second:
        accuracy = Estimate(-accuracy.value, -accuracy.high, -accuracy.low, accuracy.p)
    return f"{sentence} {accuracy_words(accuracy, pair.accuracy_p)}"


def accuracy_words(accuracy: Estimate, p: float) -> str:
    """The difference in accuracy, and whether it may be chance.

    Args:
        accuracy: The difference with its interval, as fractions.
    """
    words = (f"Accuracy {signed(accuracy.value)} points "
             f"[{signed(accuracy.low)}, {signed(accuracy.high)}]")
    if p < LEVEL:
        return f"{words} ({p_words(p)})."
    return f"{words} may be chance."


def disagreement_sentence(pair: Pair) -> str:
    """Calibration differs, but the two parts of the test point in different directions."""
    nearer_on_average = pair.second if abs(pair.over[1]) < abs(pair.over[0]) else pair.first
    nearer_by_bins = pair.second if pair.comparison.squared.value < 0 else pair.first
    return (f"{pair.first.label} and {pair.second.label} are calibrated differently "
            f"({p_words(pair.p)}, {pair.family}): {nearer_on_average.label} is nearer on average, "
            f"{nearer_by_bins.label} bin by bin.")


def opposite_sentence(pair: Pair) -> str:
    """One method is over-confident, the other under-confident, and neither is shown to be better.
    """
    over = pair.comparison.over
    low, high = sorted((abs(over.low), abs(over.high)))
    return (f"{pair.first.label} is {over_words(pair.over[0])}, {pair.second.label} "
            f"{over_words(pair.over[1], unit=False)} (difference {100 * abs(over.value):.1f} "
            f"[{100 * low:.1f}, {100 * high:.1f}], {p_words(over.p)}); which of them is better "
            f"calibrated is not shown ({p_words(pair.p)}, {pair.family}).")


def power_sentence(pair: Pair) -> str:
    """The difference that these images could show."""
    comparison = pair.comparison
    if comparison.clusters < 2 or comparison.sd_difference != comparison.sd_difference:
        return "One image shows no difference."
    tests = 1
    if " over " in pair.family:
        tests = int(pair.family.rpartition(" ")[2])
    alike = 100 * smallest_difference(comparison.images, comparison.sd_difference, tests)
    near_zero = 100 * smallest_difference(comparison.images, comparison.sd_sum, tests)
    return (f"With {comparison.images:,} images a difference of about {alike:.1f} points of "
            f"over-confidence could be shown, or of {near_zero:.0f} points if one method is nearly "
            "calibrated.")


def side(over_confidence: float) -> str:
    """In which direction confidence is wrong, in words."""
    return "over-confident" if over_confidence > 0 else "under-confident"


def over_words(value: float, other: float | None = None, unit: bool = True) -> str:
    """Over-confidence in words; the side is left out if it is that of `other`.

    Args:
        other: Over-confidence of the method named before; None if there is none.
        unit: Whether "points" is written.
    """
    number = f"{100 * abs(value):.1f}"
    if other is not None:
        if value * other > 0:
            return f"{number} points"
        return f"{side(value)} by {number} points"
    words = f"{side(value)} by {number}"
    if unit and other is None:
        return f"{words} points"
    return words


def signed(value: float) -> str:
    """A difference in points with its sign."""
    points = round(100 * value, 1) + 0.0  # + 0.0 avoids -0.0
    return f"{points:+.1f}".replace("-", "−")


def p_words(p: float) -> str:
    """A p-value as text."""
    if p < 0.001:
        return "p < 0.001"
    if p >= 0.1:
        return f"p = {p:.2f}"
    return f"p = {p:.3f}"
