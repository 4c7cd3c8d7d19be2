"""Seconds, joules and watts of many jobs at once, over every clock, and which clocks each of them may use.

Everything here is an array over (rows, clocks); a row is one job at one size. Two thousand jobs at five sizes and eighty
clocks are a few numpy calls, which is what lets the whole cluster be planned in well under a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flyball_planner.models.job import GpuModel, evaluate, parameter_matrix
from flyball_planner.snapshot import JobState, Objective

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]

ROUNDING = 1e-9  # a limit is rounded up to whole watts, but not for the sake of a rounding error

_CODES = {Objective.TIME: 0, Objective.BALANCED: 1, Objective.ENERGY: 2}


@dataclass(frozen=True, slots=True)
class Variant:
    """What an option depends on besides the job: the GPU, the size of a node, idle watts, and how its caps count."""

    gpu_model: GpuModel
    cell_gpus: int
    idle_limit_watts: float
    idle_draw_watts: float
    by_limits: bool  # some cap over the pool sums limits
    at_min_limits: bool  # some cap over the pool allows no limit above the smallest


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every job of one plan: the guard band, the price of a second, and what a restart costs."""

    guard_fraction: float
    joules_per_job_second: float
    restart_seconds: float


class Curves(NamedTuple):
    """The curves of a batch of options, (rows, clocks): watts are one GPU's, joules all GPUs' of the job."""

    clocks_megahertz: tuple[int, ...]
    seconds: Array
    joules: Array
    gpu_watts: Array
    limit_watts: Array
    draw_watts: Array  # predicted with the guard band, and no more than the limit
    throttles: Flags  # the GPU could not hold this clock


class ClockChoice(NamedTuple):
    """Per row, positions in the clocks: the lowest, admission, base and top clock, and what the constraints say.

    `governed` is the top clock of a job that is only observed, were it not; of all others it is their top. `fastest` is the
    highest clock that the job's own bounds allow; `valid` is False where no allowed clock has a limit at the smallest
    although a cap asks for it.
    """

    lowest: Indices
    admission: Indices
    base: Indices
    top: Indices
    governed: Indices
    fastest: Indices
    valid: Flags
    meets_deadline: Flags
    within_budget: Flags


class JobColumns:
    """The jobs' constraints as arrays, one entry a job, and their model parameters per GPU model.

    `remaining` is R, the iterations left, exact only where `known`: a guess must not decide on a deadline or a budget.
    """

    def __init__(self, jobs: Sequence[JobState]) -> None:
        self._jobs = jobs
        self.objective = np.array([_CODES[job.objective] for job in jobs], dtype=np.int64)
        known = np.array([job.remaining_iterations is not None for job in jobs], dtype=bool)
        self.remaining = np.array([job.remaining_iterations or 0.0 for job in jobs], dtype=np.float64)
        self.deadline = np.where(known, [_or_infinite(job.seconds_to_deadline) for job in jobs], math.inf)
        self.budget = np.where(known, [_or_infinite(job.remaining_energy_joules) for job in jobs], math.inf)
        self.throttled = np.array([job.throttled for job in jobs], dtype=bool)
        self.observed = np.array([job.observed for job in jobs], dtype=bool)
        self.batch_size = np.array([float(job.global_batch_size) for job in jobs], dtype=np.float64)
        self.limit_bound = np.array([_or_infinite(job.power_limit_max_watts) for job in jobs], dtype=np.float64)
        self.clock_low = np.array([float(job.clock_min_megahertz or 0) for job in jobs], dtype=np.float64)
        self.clock_high = np.array([_or_infinite(job.clock_max_megahertz) for job in jobs], dtype=np.float64)
        self.current_gpus = np.array([job.current.gpus if job.current else 0 for job in jobs], dtype=np.int64)
        self.current_clock = np.array(
            [job.current.clock_megahertz if job.current else 0 for job in jobs], dtype=np.float64
        )
        self._parameters: dict[GpuModel, Array] = {}
        self.first_alike = _first_alike(self, jobs)
        """Per job, the first job whose options are the same as its own at every size."""

    def parameters(self, gpu_model: GpuModel) -> Array:
        """Every job's model parameters on a GPU model, (parameters, jobs, 1)."""
        if gpu_model not in self._parameters:
            carried = {}
            models = []
            for job in self._jobs:
                key = (id(job.model), *map(id, job.models_elsewhere))
                if key not in carried:
                    carried[key] = job.model_on(gpu_model)
                models.append(carried[key])
            self._parameters[gpu_model] = parameter_matrix(models)
        return self._parameters[gpu_model]


def _first_alike(columns: JobColumns, jobs: Sequence[JobState]) -> list[int]:
    """By everything that curves and clocks depend on. Jobs with a deadline or an energy budget never share options."""
    own = np.isfinite(columns.deadline) | np.isfinite(columns.budget)
    keys = zip(
        [(id(job.model), *map(id, job.models_elsewhere)) for job in jobs],
        columns.batch_size.tolist(),
        columns.objective.tolist(),
        columns.throttled.tolist(),
        columns.observed.tolist(),
        columns.limit_bound.tolist(),
        columns.clock_low.tolist(),
        columns.clock_high.tolist(),
        np.where(own, np.arange(len(jobs)), -1).tolist(),
        strict=True,
    )
    first: dict[tuple[object, ...], int] = {}
    return [first.setdefault(key, index) for index, key in enumerate(keys)]


def compute_curves(
    columns: JobColumns, terms: Terms, variant: Variant, job: Indices, gpus: Indices, nodes: Indices
) -> Curves:
    """The curves of the rows (job, gpus, nodes), each (rows,), on a variant's GPU (PowerFlow equations 2 to 9).

    A limit is the predicted draw with the guard band, in whole watts, within what the GPU accepts and the user allows. A
    job that is only observed has the largest of these, where no cap counts limits.
    """
    gpu_model = variant.gpu_model
    curves = evaluate(
        columns.parameters(gpu_model)[:, job, :],
        gpu_model,
        gpus[:, None].astype(np.float64),
        nodes[:, None].astype(np.float64),
        columns.batch_size[job, None],
        gpu_model.clock_array()[None, :],
    )
    guarded = curves.gpu_watts * (1.0 + terms.guard_fraction)
    bound = _limit_bound(columns, gpu_model, job)
    limit = np.clip(np.ceil(guarded - ROUNDING), gpu_model.min_power_limit_watts, bound)
    if not (variant.by_limits or variant.at_min_limits):
        limit = np.where(columns.observed[job, None], bound, limit)
    return Curves(
        gpu_model.clocks_megahertz,
        curves.seconds,
        curves.joules,
        curves.gpu_watts,
        limit,
        np.minimum(guarded, limit),
        curves.throttles,
    )


def named_clocks(
    columns: JobColumns, terms: Terms, variant: Variant, curves: Curves, job: Indices, gpus: Indices
) -> ClockChoice:
    """Which clocks each row may use, and the ones that have a name (see `ClockChoice`)."""
    lowest, fastest, valid = _allowed_range(columns, terms, variant, curves, job)
    positions = np.arange(len(curves.clocks_megahertz))[None, :]
    allowed = (positions >= lowest[:, None]) & (positions <= fastest[:, None])
    rows = np.arange(len(job))

    budget, remaining = columns.budget[job], columns.remaining[job]
    dated = np.isfinite(columns.deadline[job])
    base, meets = _base_clocks(columns, terms, variant, curves, job, gpus, allowed, dated)

    # The top clock: how far the objective lets it rise where power is no object.
    priced = np.where(
        allowed & (positions >= base[:, None]), curves.joules + terms.joules_per_job_second * curves.seconds, math.inf
    )
    within = remaining * curves.joules[rows, base] <= budget

    def top_by(objective: Indices) -> Indices:
        top = np.where(objective == 0, fastest, np.where(objective == 1, priced.argmin(axis=1), base))
        top = np.where(dated & meets & (objective != 0), base, top)  # the cheapest that meets it
        top = np.where(dated & ~meets, fastest, top)  # late in any case: as little late as can be
        if np.isfinite(budget).any():
            affordable = (
                allowed & (positions >= base[:, None]) & (remaining[:, None] * curves.joules <= budget[:, None])
            )
            top = np.where(within, np.minimum(top, _last_true(affordable)), base)
        return np.asarray(np.where(columns.throttled[job], base, np.maximum(top, base)))

    governed = top_by(columns.objective[job])
    observed = columns.observed[job]
    top = top_by(np.where(observed, _CODES[Objective.TIME], columns.objective[job])) if observed.any() else governed

    # The admission clock: fewest committed watt-seconds an iteration, as the pool's caps count; of equals the highest.
    above_idle = (
        np.maximum(curves.limit_watts - variant.idle_limit_watts, 0.0)
        if variant.by_limits and not variant.at_min_limits
        else np.maximum(curves.draw_watts - variant.idle_draw_watts, 0.0)
    )
    committed = np.where(allowed & (positions <= base[:, None]), above_idle * curves.seconds, math.inf)
    admission = committed.shape[1] - 1 - committed[:, ::-1].argmin(axis=1)
    return ClockChoice(lowest, admission, base, top, governed, fastest, valid, meets, within)


def _base_clocks(
    columns: JobColumns,
    terms: Terms,
    variant: Variant,
    curves: Curves,
    job: Indices,
    gpus: Indices,
    allowed: Flags,
    dated: Flags,
) -> tuple[Indices, Flags]:
    """The allowed clock of fewest joules an iteration, among those that meet the deadline where a row is `dated` and one
    does, and whether one does."""
    joules = np.where(allowed, curves.joules, math.inf)
    base = joules.argmin(axis=1)
    meets = np.ones(len(job), dtype=bool)
    if not dated.any():
        return base, meets
    remaining, deadline = columns.remaining[job], columns.deadline[job]
    # Room for one restart is kept always: a choice without slack would be undone by the first disturbance.
    in_time = remaining[:, None] * curves.seconds + terms.restart_seconds <= deadline[:, None]
    afforded = remaining[:, None] * curves.joules <= columns.budget[job][:, None]
    timely = np.where(in_time & afforded, joules, math.inf)
    meets = np.isfinite(timely.min(axis=1))
    chosen = timely.argmin(axis=1)
    # A clock that runs a little late against that room is raised only when half of it is gone: between two progress
    # reports the time left shrinks and the work left does not, and the clock would go up and down with every report.
    here = np.searchsorted(variant.gpu_model.clock_array(), columns.current_clock[job])
    here = np.minimum(here, curves.seconds.shape[1] - 1)
    same = (gpus == columns.current_gpus[job]) & (variant.gpu_model.clock_array()[here] == columns.current_clock[job])
    nearly = remaining * curves.seconds[np.arange(len(job)), here] + terms.restart_seconds / 2 <= deadline
    keeps = same & nearly & (here < chosen) & (here >= base)
    chosen = np.where(keeps, here, chosen)
    return np.where(meets & ~columns.throttled[job], chosen, base), meets


def _allowed_range(
    columns: JobColumns, terms: Terms, variant: Variant, curves: Curves, job: Indices
) -> tuple[Indices, Indices, Flags]:
    """First and last allowed clock per row; bounds that no clock meets leave the nearest clock there is."""
    clocks = variant.gpu_model.clock_array()
    high = np.maximum(np.searchsorted(clocks, columns.clock_high[job], side="right") - 1, 0)
    low = np.minimum(np.searchsorted(clocks, columns.clock_low[job], side="left"), high)
    if curves.throttles.any():
        high = np.maximum(np.minimum(high, _last_true(~curves.throttles)), low)
    if np.isfinite(columns.limit_bound[job]).any():
        # A clock whose draw does not fit under the user's limit would only be throttled back.
        needed = np.ceil(curves.gpu_watts * (1.0 + terms.guard_fraction) - ROUNDING)
        bound = _limit_bound(columns, variant.gpu_model, job)
        fits = (needed <= bound) | (bound >= variant.gpu_model.max_power_limit_watts)
        high = np.maximum(np.minimum(high, _last_true(fits)), low)
    valid = np.ones(len(job), dtype=bool)
    if variant.at_min_limits:
        smallest = max(variant.gpu_model.min_power_limit_watts, variant.idle_limit_watts)
        last = _last_true(curves.limit_watts <= smallest)
        valid = last >= low
        high = np.maximum(np.minimum(high, last), low)
    return low.astype(np.int64), high.astype(np.int64), valid


def _limit_bound(columns: JobColumns, gpu_model: GpuModel, job: Indices) -> Array:
    """The largest limit that GPU and user allow, (rows, 1); no user can ask for less than the GPU's smallest."""
    bound = np.clip(columns.limit_bound[job], gpu_model.min_power_limit_watts, gpu_model.max_power_limit_watts)
    return np.asarray(bound[:, None], dtype=np.float64)


def _last_true(flags: Flags) -> Indices:
    """The last position of a True in each row; -1 where there is none."""
    last = flags.shape[1] - 1 - flags[:, ::-1].argmax(axis=1)
    return np.where(flags.any(axis=1), last, -1)


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else float(value)
