"""What a GPU draws in each computation and while it waits, from readings of its energy counter that lie seconds apart.

The counter of an H200 stands still for 100 ms and then moves by what was used meanwhile, always at the same places of
the clock: a reading tells what had been used by the last of them. Where they lie, readings show by themselves, for only
with the right place does it all add up.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

# What computations of a stage draw beside each other, of what they draw: about so much.
ALIKE_SHARE = 0.1
TINY = 1e-6
WAITING = ""
# How often counters move: with every millijoule, or ten times a second; and how finely the place is looked for.
COUNTER_SECONDS, PLACES, LIKELY_PLACES = 0.1, 50, 4
FEW_READINGS = 8  # any place explains them
# To solve for all but one reading, for each of hundreds, would keep a training waiting for minutes.
LIKELY_WRONG = 16
# By a place that explains the readings so much better they are corrected; else it is chance.
MUCH_BETTER = 0.5


def watts_of_each(
    computed: Sequence[tuple[str, float, float]], readings: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """The watts of each computation and of waiting, from what was computed one after the other, and readings of the
    counter meanwhile (when, and joules)."""
    names = sorted({name for name, _, _ in computed})
    busy = [_Busy([(began, ended) for own, began, ended in computed if own == name]) for name in names]
    began = computed[0][1]
    found, off = _fit(names, busy, readings)
    if len(readings) <= FEW_READINGS:
        return found
    least = MUCH_BETTER * _squared(off)
    places = []
    for number in range(PLACES):
        place = COUNTER_SECONDS * number / PLACES
        moved = [(at - (at - place) % COUNTER_SECONDS, joules) for at, joules in readings]
        if moved[0][0] < began:
            moved = moved[1:]  # what was computed before is not known
        places.append((*_fit(names, busy, moved), moved))
    for fit, off, moved in sorted(places, key=lambda place: _squared(place[1]))[:LIKELY_PLACES]:
        if _squared(off) < least:
            found, least = fit, _squared(off)
        # One that was read as the counter moved may stand on the wrong side of it.
        for left_out in _likely_wrong(off):
            fit, off_then = _fit(names, busy, [*moved[:left_out], *moved[left_out + 1 :]])
            if _squared(off_then) < MUCH_BETTER * least:
                found, least = fit, _squared(off_then)
    return found


def _likely_wrong(off: Sequence[float]) -> list[int]:
    """The readings without which the stretches beside them, made one, explain most more: what one has too much of, the
    other lacks."""
    explained = [-2 * before * after for before, after in zip(off, off[1:])]
    gains = [off[0] ** 2, *explained, off[-1] ** 2]
    return sorted(range(len(gains)), key=lambda number: -gains[number])[:LIKELY_WRONG]


def _squared(off: Sequence[float]) -> float:
    return sum(each * each for each in off)


class _Busy:
    """How long one computation has run by any moment."""

    def __init__(self, stretches: Sequence[tuple[float, float]]) -> None:
        self._stretches = stretches
        self._begins = [began for began, _ in stretches]
        self._before = [0.0, *accumulate(ended - began for began, ended in stretches)]

    def until(self, moment: float) -> float:
        number = bisect_right(self._begins, moment)
        if not number:
            return 0.0
        began, ended = self._stretches[number - 1]
        return self._before[number - 1] + min(moment, ended) - began


def _fit(
    names: Sequence[str], busy: Sequence[_Busy], readings: Sequence[tuple[float, float]]
) -> tuple[dict[str, float], list[float]]:
    rows, joules = [], []
    by_then = [[each.until(at) for each in busy] for at, _ in readings]
    for (since, before), (until, after), were, are in zip(readings, readings[1:], by_then, by_then[1:]):
        row = [now - then for now, then in zip(are, were)]
        rows.append([*row, max(0.0, until - since - sum(row))])
        joules.append(after - before)
    return drawn(names, rows, joules)


def drawn(
    names: Sequence[str], rows: Sequence[Sequence[float]], joules: Sequence[float]
) -> tuple[dict[str, float], list[float]]:
    """The watts of each computation and of waiting, from the seconds of each in several stretches (waiting last), and
    their joules, by least squares; and the joules of each stretch that they do not explain.

    Computations are taken to draw about the same, more so the worse the joules are explained: what cannot be told apart
    draws alike, and nothing is read into readings that came late.
    """
    # What all computations draw, what waiting draws, and what each computation draws beside the others.
    columns = [[sum(row[:-1]), row[-1], *row[:-1]] for row in rows]
    size = len(names) + 2
    found = _least_squares(columns, joules, [TINY] * size)
    off = [used - sum(map(operator.mul, row, found)) for row, used in zip(columns, joules)]
    variance = _squared(off) / max(1, len(rows) - len(names) - 1)
    alike = variance / max(1.0, ALIKE_SHARE * found[0]) ** 2
    found = _least_squares(columns, joules, [TINY, TINY, *[max(TINY, alike)] * len(names)])
    watts = {name: max(0.0, found[0] + beside) for name, beside in zip(names, found[2:])}
    off = [used - sum(map(operator.mul, row, found)) for row, used in zip(columns, joules)]
    return {**watts, WAITING: max(0.0, found[1])}, off


def _least_squares(rows: Sequence[Sequence[float]], right: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The unknowns of least squares, each with a weight on being none."""
    size = len(weights)
    matrix = [
        [sum(row[i] * row[j] for row in rows) + (weights[i] if i == j else 0.0) for j in range(size)]
        for i in range(size)
    ]
    known = [sum(row[i] * value for row, value in zip(rows, right)) for i in range(size)]
    for pivot in range(size):
        for place in range(pivot + 1, size):
            share = matrix[place][pivot] / matrix[pivot][pivot]
            known[place] -= share * known[pivot]
            for column in range(pivot, size):
                matrix[place][column] -= share * matrix[pivot][column]
    found = [0.0] * size
    for place in reversed(range(size)):
        rest = sum(matrix[place][column] * found[column] for column in range(place + 1, size))
        found[place] = (known[place] - rest) / matrix[place][place]
    return found
