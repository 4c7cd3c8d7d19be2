"""How much shorter one policy's jobs take than another's, at the same total energy.

Each policy's sweep gives points (energy, JCT), one a setting. They need not be monotone: below some clock everything takes
longer *and* more energy. A policy's user would take no setting that another beats in both, so a policy's curve is the lower
Pareto envelope of its points by mean JCT, with straight lines between neighbours; what lies between two settings is
rather better than the chord (curves are convex where they matter), which touches both policies alike. The p99 JCT is read
off the *same* settings as the mean, so that no policy is credited with two settings at once.

Two policies are compared from the larger of their least energies to the smaller of the energies of their fastest points:
there both draw exactly that energy, and nothing is extrapolated. Seeds are compared one by one (a seed's trace needs its
own energy), at the same fractions of the range that the pair shares in that seed. What is reported is the geometric mean
over seeds, so that "a against b" is the reciprocal of "b against a", and the 95 % t-interval of the logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FRACTIONS = tuple(step / 10 for step in range(11))
"""Where in the shared range a pair is compared: from its least energy (0) to its most (1)."""

CONFIDENCE = 0.95
SAME_ENERGY = 1e-9  # relative: two ranges that touch in one point up to rounding

Curves = Mapping[str, Mapping[int, "Envelope"]]


@dataclass(frozen=True, slots=True)
class Point:
    """One run: total energy in joules, mean and p99 JCT in seconds."""

    energy_joules: float
    mean_jct_seconds: float
    p99_jct_seconds: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Over seeds: geometric mean, and the interval's ends; these are None with fewer than two seeds."""

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        logs = np.log(ratios)
        mean = float(logs.mean())
        if len(logs) < 2:
            return cls(math.exp(mean), None, None)
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


@dataclass(frozen=True, slots=True)
class Comparison:
    """`policy` against `against` at one energy; the JCT ratios are the other's over the policy's: above 1 is better.

    `energy_joules` is the mean over the `seeds` seeds that share a range. `fraction` tells where in the range. `best` and
    `median` mark, of the pair's energies, the one of the highest ratio and the one of the median ratio. Where the pair
    shares no range, energy and ratios are None, `note` says so, and, if the policy's fastest setting needs less energy than
    any of the other's, `mean_jct_ratio_at_less_energy` is the ratio of these two.
    """

    policy: str
    against: str
    energy_joules: float | None
    mean_jct_ratio: float | None
    p99_jct_ratio: float | None
    low: float | None
    high: float | None
    p99_low: float | None
    p99_high: float | None
    fraction: float | None
    seeds: int
    best: bool = False
    median: bool = False
    note: str | None = None
    mean_jct_ratio_at_less_energy: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None or name not in ("note", "mean_jct_ratio_at_less_energy")
        }


class Envelope:
    """The points that no other point of the same sweep beats in energy and mean JCT: energy rises, mean JCT falls.

    Raises ValueError where there is no point, or one is not positive and finite.
    """

    def __init__(self, points: Iterable[Point]) -> None:
        kept: list[Point] = []
        for point in sorted(points, key=lambda p: (p.energy_joules, p.mean_jct_seconds)):
            if not all(math.isfinite(value) and value > 0 for value in asdict(point).values()):
                raise ValueError(f"{point} must be positive and finite")
            if not kept or point.mean_jct_seconds < kept[-1].mean_jct_seconds:
                kept.append(point)
        if not kept:
            raise ValueError("an envelope needs at least one point")
        self.points = tuple(kept)
        self._joules = np.array([p.energy_joules for p in kept])
        self._mean = np.array([p.mean_jct_seconds for p in kept])
        self._p99 = np.array([p.p99_jct_seconds for p in kept])

    @property
    def least_joules(self) -> float:
        return self.points[0].energy_joules

    @property
    def most_joules(self) -> float:
        """Of the fastest point: more energy buys nothing."""
        return self.points[-1].energy_joules

    def at(self, joules: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and p99 JCT at energies of the range."""
        return np.interp(joules, self._joules, self._mean), np.interp(joules, self._joules, self._p99)


def shared_range(one: Envelope, other: Envelope) -> tuple[float, float] | None:
    """The joules that both curves cover; None where there are none."""
    low = max(one.least_joules, other.least_joules)
    high = min(one.most_joules, other.most_joules)
    if high < low:
        return (low, low) if low - high <= SAME_ENERGY * low else None
    return low, high


def compare_all(points: Mapping[str, Mapping[int, Sequence[Point]]]) -> list[Comparison]:
    """Every policy against every other, both ways round; `points` is by policy, then by seed."""
    curves = {name: {seed: Envelope(found) for seed, found in seeds.items()} for name, seeds in points.items()}
    return [entry for policy, against in permutations(curves, 2) for entry in compare_pair(curves, policy, against)]


def compare_pair(curves: Curves, policy: str, against: str) -> list[Comparison]:
    """The pair at each of FRACTIONS of its shared range, once where that is one point; or one entry that it has none."""
    common = sorted(curves[policy].keys() & curves[against].keys())
    ranges = {}
    for seed in common:
        found = shared_range(curves[policy][seed], curves[against][seed])
        if found is not None:
            ranges[seed] = found
    if not ranges:
        return [_nothing_shared(curves, policy, against, common)]
    lows = np.array([low for low, _ in ranges.values()])
    spans = np.array([high for _, high in ranges.values()]) - lows
    fractions = FRACTIONS if (spans > SAME_ENERGY * lows).any() else (0.0,)
    note = None
    if len(ranges) < len(common):
        note = f"{len(ranges)} of {len(common)} seeds share an energy range"
    entries = []
    for fraction in fractions:
        joules = lows + fraction * spans
        mean_ratios, p99_ratios = [], []
        for place, seed in enumerate(ranges):
            ours = curves[policy][seed].at(joules[place : place + 1])
            others = curves[against][seed].at(joules[place : place + 1])
            mean_ratios.append(float(others[0][0] / ours[0][0]))
            p99_ratios.append(float(others[1][0] / ours[1][0]))
        mean, p99 = Ratio.of(mean_ratios), Ratio.of(p99_ratios)
        entries.append(
            Comparison(
                policy=policy,
                against=against,
                energy_joules=float(joules.mean()),
                mean_jct_ratio=mean.mean,
                p99_jct_ratio=p99.mean,
                low=mean.low,
                high=mean.high,
                p99_low=p99.low,
                p99_high=p99.high,
                fraction=fraction,
                seeds=len(ranges),
                note=note,
            )
        )
    return _flagged(entries)


def _flagged(entries: list[Comparison]) -> list[Comparison]:
    order = sorted(range(len(entries)), key=lambda index: entries[index].mean_jct_ratio or 0.0)
    best, median = order[-1], order[(len(order) - 1) // 2]
    return [replace(entry, best=index == best, median=index == median) for index, entry in enumerate(entries)]


def _nothing_shared(curves: Curves, policy: str, against: str, seeds: Sequence[int]) -> Comparison:
    note = f"shares no energy range: no seed was run of both {policy} and {against}"
    ratio = None
    if seeds:
        ours, others = ([curves[name][seed] for seed in seeds] for name in (policy, against))
        spans = [
            f"{name} {min(c.least_joules for c in found):.4g} to {max(c.most_joules for c in found):.4g} J"
            for name, found in ((policy, ours), (against, others))
        ]
        note = f"shares no energy range in any seed; over all seeds: {spans[0]}, {spans[1]}"
        if all(a.most_joules <= b.least_joules for a, b in zip(ours, others, strict=True)):
            ratio = Ratio.of(
                [
                    b.points[0].mean_jct_seconds / a.points[-1].mean_jct_seconds
                    for a, b in zip(ours, others, strict=True)
                ]
            ).mean
    return Comparison(
        policy=policy,
        against=against,
        energy_joules=None,
        mean_jct_ratio=None,
        p99_jct_ratio=None,
        low=None,
        high=None,
        p99_low=None,
        p99_high=None,
        fraction=None,
        seeds=0,
        note=note,
        mean_jct_ratio_at_less_energy=ratio,
    )
