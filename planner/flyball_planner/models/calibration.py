"""A GPU model's idle power, knee and voltage slope from measurements over its clocks.

P = idle*V(f) + A_i*V(f)^2*f for every workload i, V = 1 + s*max(0, f - f_b)/f_max (PowerFlow section 4.2, the physical
parameterisation), by least squares of relative errors; an idle series has A = 0. For each f_b the best idle and s are
found, and the A_i inside that in closed form, so that the profile of the error over f_b comes with the fit. It has to be
looked at: often many knees fit nearly alike, because a lower knee with a smaller slope draws almost the same curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from flyball_planner.models.measurements import Series

Array = NDArray[np.float64]

AT_THE_LIMIT = 0.95  # of the largest power limit: from here on the GPU lowers its clock in the heavier moments at least
PAST_THE_LIMIT = 1.03  # drawn for as long as a measurement takes: the limit was another one
LEAST_POINTS = 6
KNEES = 60
STEEPEST = 5.0
CHI_SQUARE_95 = 3.84  # one parameter


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was fitted, and how well.

    `activities` are the A_i in W/MHz by series (0 for idle ones). `profile` is (knee MHz, root mean square relative error)
    for every knee that was tried; knees within the interval of `knee` fit about as well as the best.
    """

    idle: Estimate
    knee: Estimate
    slope: Estimate
    idle_was_given: bool
    activities: dict[str, float]
    profile: tuple[tuple[float, float], ...]
    used_points: int
    limited_points: int
    most_watts: float
    mean_error: float

    def passed(self, max_power_limit_watts: float) -> bool:
        """Whether more was drawn than this limit allows: then the measured GPU had another one."""
        return self.most_watts > PAST_THE_LIMIT * max_power_limit_watts

    @property
    def knee_is_weak(self) -> bool:
        """Whether the data leave the knee open by more than an eighth of its value, or do not bound it at all."""
        tried = [knee for knee, _ in self.profile]
        open_end = self.knee.low <= tried[0] or self.knee.high >= tried[-1]
        return open_end or self.knee.high - self.knee.low > self.knee.value / 8


def below_limit(series: Sequence[Series], max_power_limit_watts: float) -> tuple[list[Series], int]:
    """The points at which the GPU can have held its clock, and how many others were left out.

    Where more is drawn than the limit allows, the measured GPU had another one, and every point stays.
    """
    if max(float(each.watts.max()) for each in series) > PAST_THE_LIMIT * max_power_limit_watts:
        return list(series), 0
    kept, left_out = [], 0
    for each in series:
        inside = each.watts < AT_THE_LIMIT * max_power_limit_watts
        left_out += int((~inside).sum())
        if inside.any():
            kept.append(Series(each.name, each.idle, each.clocks_megahertz[inside], each.watts[inside]))
    return kept, left_out


def calibrate(
    series: Sequence[Series],
    max_clock_megahertz: float,
    max_power_limit_watts: float,
    idle_watts: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Fit idle power (unless given), knee and slope; `progress` is called with (knees tried, knees in all).

    Raises ValueError where there are too few points below the power limit, or no busy workload.
    """
    kept, limited = below_limit(series, max_power_limit_watts)
    busy = [each for each in kept if not each.idle]
    count = sum(len(each.watts) for each in busy)
    if count < LEAST_POINTS or not any(len(np.unique(each.clocks_megahertz)) >= 4 for each in busy):
        raise ValueError(
            f"{count} points of running workloads lie below {AT_THE_LIMIT:.0%} of the {max_power_limit_watts:g} W limit; "
            f"at least {LEAST_POINTS} are needed, four clocks of one workload among them"
        )
    if any(each.watts[each.clocks_megahertz > max_clock_megahertz].size for each in kept):
        raise ValueError(f"some clocks are above the GPU's highest, {max_clock_megahertz:g} MHz")
    lowest = min(float(each.watts.min()) for each in kept)
    clocks = np.unique(np.concatenate([each.clocks_megahertz for each in busy]))
    knees = np.linspace(clocks[0], clocks[-2], KNEES)
    fits = []
    for position, knee in enumerate(knees):
        fits.append(_fit_at(kept, float(knee), max_clock_megahertz, idle_watts, lowest))
        if progress is not None:
            progress(position + 1, len(knees))
    squares = np.array([fit.squares for fit in fits])
    best = int(squares.argmin())
    points = sum(len(each.watts) for each in kept)
    spent = len(kept) + 2 + (idle_watts is None)
    # Neighbouring clocks err alike, so that they say less than as many independent points would.
    effective = max(1.0, (points - spent) * _independent_share(kept, fits[best].errors))
    accepted = np.flatnonzero(squares <= squares[best] * (1.0 + CHI_SQUARE_95 / effective))
    spacing = float(knees[1] - knees[0])
    inflation = math.sqrt(max(points - spent, 1) / effective)
    errors = fits[best].errors
    return Calibration(
        idle=Estimate(fits[best].idle, *_span([(fits[i].idle, fits[i].idle_error * inflation) for i in accepted])),
        knee=Estimate(
            float(knees[best]),
            max(float(knees[0]), float(knees[accepted].min() - spacing)),
            min(float(knees[-1]), float(knees[accepted].max() + spacing)),
        ),
        slope=Estimate(fits[best].slope, *_span([(fits[i].slope, fits[i].slope_error * inflation) for i in accepted])),
        idle_was_given=idle_watts is not None,
        activities=dict(zip((each.name for each in kept), fits[best].activities, strict=True)),
        profile=tuple((float(k), math.sqrt(fit.squares / points)) for k, fit in zip(knees, fits, strict=True)),
        used_points=points,
        limited_points=limited,
        most_watts=max(float(each.watts.max()) for each in series),
        mean_error=float(np.abs(errors).mean()),
    )


@dataclass(frozen=True, slots=True)
class _Fit:
    squares: float
    idle: float
    idle_error: float
    slope: float
    slope_error: float
    activities: tuple[float, ...]
    errors: Array


def _fit_at(series: Sequence[Series], knee: float, top: float, idle_watts: float | None, lowest: float) -> _Fit:
    """The best idle power and slope at one knee."""
    free_idle = idle_watts is None

    def split(point: Array) -> tuple[float, float]:
        return float(point[0]), float(point[1]) if free_idle else float(idle_watts or 0.0)

    def errors(point: Array) -> Array:
        return np.concatenate([_series_errors(each, knee, top, *split(point))[0] for each in series])

    start = [0.5, 0.5 * lowest] if free_idle else [0.5]
    high = [STEEPEST, lowest * (1.2 if any(each.idle for each in series) else 1.0)] if free_idle else [STEEPEST]
    found = least_squares(errors, start, bounds=(np.zeros(len(start)), high), x_scale=start)
    slope, idle = split(found.x)
    freedom = max(1, len(found.fun) - len(start) - len(series))
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * float(found.fun @ found.fun) / freedom
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return _Fit(
        float(found.fun @ found.fun),
        idle,
        float(spread[1]) if free_idle else 0.0,
        slope,
        float(spread[0]),
        tuple(_series_errors(each, knee, top, slope, idle)[1] for each in series),
        np.asarray(found.fun),
    )


def _series_errors(series: Series, knee: float, top: float, slope: float, idle: float) -> tuple[Array, float]:
    """Relative errors of one workload's power under its own best activity, and that activity (W/MHz)."""
    voltage = 1.0 + slope * np.maximum(0.0, series.clocks_megahertz - knee) / top
    static = idle * voltage / series.watts
    if series.idle:
        return static - 1.0, 0.0
    dynamic = voltage * voltage * series.clocks_megahertz / series.watts
    activity = max(0.0, float(dynamic @ (1.0 - static)) / float(dynamic @ dynamic))
    return static + activity * dynamic - 1.0, activity


def _independent_share(series: Sequence[Series], errors: Array) -> float:
    """(1 - r)/(1 + r), with r the correlation of errors at neighbouring clocks: how many points one point is worth."""
    first, products, squares = 0, 0.0, 0.0
    for each in series:
        own = errors[first : first + len(each.watts)]
        products += float(own[1:] @ own[:-1])
        squares += float(own @ own)
        first += len(own)
    correlation = min(max(products / squares, 0.0), 0.95) if squares > 0 else 0.0
    return (1.0 - correlation) / (1.0 + correlation)


def _span(estimates: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """From the lowest to the highest end of several intervals of two standard errors, none below zero."""
    return max(0.0, min(value - 2 * error for value, error in estimates)), max(v + 2 * e for v, e in estimates)
