"""Clocks: raised from each job's lowest, largest marginal return first, as far as every cap bears (PowerFlow section 5.2).

Below its base clock a job gains time and energy alike, so there the scarce thing is the cap's watts: steps go by relative
speed gained per watt, which is also the order in which a falling cap takes them back (smallest loss per watt). Above,
PowerFlow's equation 21: seconds gained per joule. A step that does not fit ends its job's climb (`strict`: tested before
it is taken). The order of steps never depends on what was taken, so the greedy is one sort, and whole blocks of steps are
taken at once until a cap is nearly reached.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flyball_planner.ledger.caps import WATT_TOLERANCE, Accounting
from flyball_planner.ledger.options import DRAW, LIMIT
from flyball_planner.ledger.state import Candidate, PlanState

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

BLOCK = 2048  # steps taken at once while they all fit
NO_GAIN = 1e-12  # relative to the iteration: a clock that gains less than this gains nothing


def assign_clocks(
    state: PlanState, candidates: Sequence[Candidate], tops: Mapping[int, int] | None = None
) -> dict[int, int]:
    """The position of each placed candidate's clock among its GPU's clocks, by the candidate's index.

    `tops`: where each candidate's climb ends, by its index, within its own bounds; None: where its objective says.
    """
    placed = [candidate for candidate in candidates if candidate.option is not None]
    if not placed:
        return {}
    climb = _Climb(state, placed, tops)
    return dict(zip((candidate.index for candidate in placed), climb.run().tolist(), strict=True))


class _Climb:
    """The arrays of one climb: (jobs, clocks) for curves, (jobs, caps) for how many GPUs of a job count in a cap."""

    def __init__(self, state: PlanState, placed: Sequence[Candidate], tops: Mapping[int, int] | None) -> None:
        options = [candidate.option for candidate in placed if candidate.option is not None]
        ceiling = np.array([_ceiling(candidate) for candidate in placed])
        top = (
            [option.top_index for option in options]
            if tops is None
            else [tops[candidate.index] for candidate in placed]
        )
        self.lowest: Indices = np.minimum(np.array([option.lowest_index for option in options]), ceiling)
        self.top: Indices = np.minimum(np.array(top), ceiling)
        self.base: Indices = np.minimum(np.array([option.base_index for option in options]), self.top)
        self.gpus = np.array([option.gpus for option in options], dtype=np.float64)
        width = max(option.curves.seconds.shape[1] for option in options)
        self.seconds = _stack([option.curves.seconds[option.row] for option in options], width)
        self.joules = _stack([option.curves.joules[option.row] for option in options], width)
        self.watts = (
            _stack([option.curves.limit_watts[option.row] for option in options], width),
            _stack([option.curves.draw_watts[option.row] for option in options], width),
        )
        self.by_limits = [account.accounting is Accounting.LIMITS for account in state.accounts]
        counted = np.zeros((len(placed), len(state.accounts)))
        idle = np.zeros((len(placed), len(state.accounts)))
        for row, candidate in enumerate(placed):
            for pool, gpus in candidate.parts:
                for cap in state.pools[pool].cap_indices:
                    counted[row, cap] += gpus
                    one = state.pools[pool]
                    idle[row, cap] += gpus * (one.idle_limit_watts if self.by_limits[cap] else one.idle_draw_watts)
        self.counted = counted
        self.headroom = np.array([account.headroom_watts for account in state.accounts]) + idle.sum(axis=0)

    def run(self) -> Indices:
        """Positions of the clocks; every job at its top where all caps bear that."""
        at_top = self._used(self.top)
        if np.all(at_top <= self.headroom + WATT_TOLERANCE):
            return self.top
        capped = np.asarray((self.counted > 0).any(axis=1))
        chosen = np.where(capped, self.lowest, self.top)
        job, position = self._ordered_steps(capped)
        slack = self.headroom - self._used(self.lowest)
        limits = np.array(self.by_limits)[:, None]
        climbing = np.ones(len(chosen), dtype=bool)
        for start in range(0, len(job), BLOCK):
            block = slice(start, start + BLOCK)
            still = climbing[job[block]]
            jobs, positions = job[block][still], position[block][still]
            rise = np.where(limits, self._rise(LIMIT, jobs, positions), self._rise(DRAW, jobs, positions))
            cost = self.counted[jobs].T * rise
            total = cost.sum(axis=1)
            if np.all(total <= slack + WATT_TOLERANCE):
                chosen += np.bincount(jobs, minlength=len(chosen))
                slack -= total
            else:
                self._take_one_by_one(jobs, cost, chosen, slack, climbing)
        return chosen

    def _take_one_by_one(
        self, jobs: Indices, cost: Array, chosen: Indices, slack: Array, climbing: NDArray[np.bool_]
    ) -> None:
        """Steps of a block that does not fit whole: a step that does not fit ends its job's climb."""
        left = slack.tolist()
        caps = {job: np.flatnonzero(self.counted[job]).tolist() for job in np.unique(jobs).tolist()}
        for job, costs in zip(jobs.tolist(), cost.T.tolist(), strict=True):
            if not climbing[job]:
                continue
            if any(costs[cap] > left[cap] + WATT_TOLERANCE for cap in caps[job]):
                climbing[job] = False
                continue
            for cap in caps[job]:
                left[cap] -= costs[cap]
            chosen[job] += 1
        slack[:] = left

    def _used(self, chosen: Indices) -> Array:
        rows = np.arange(len(chosen))
        return np.array(
            [
                float(self.counted[:, cap] @ self.watts[LIMIT if limits else DRAW][rows, chosen])
                for cap, limits in enumerate(self.by_limits)
            ]
        )

    def _rise(self, kind: int, job: Indices, position: Indices) -> Array:
        return self.watts[kind][job, position + 1] - self.watts[kind][job, position]

    def _ordered_steps(self, capped: NDArray[np.bool_]) -> tuple[Indices, Indices]:
        """Every step (job, clock position it starts from) in the order in which the greedy takes them."""
        positions = np.arange(self.seconds.shape[1] - 1)[None, :]
        gained = self.seconds[:, :-1] - self.seconds[:, 1:]
        gains = (gained > NO_GAIN * self.seconds[:, :-1]) | (positions < self.lowest[:, None])
        reachable = np.logical_and.accumulate(gains, axis=1)
        wanted = capped[:, None] & (positions >= self.lowest[:, None]) & (positions < self.top[:, None]) & reachable
        above = positions >= self.base[:, None]
        in_limits = (self.counted[:, np.array(self.by_limits)] > 0).any(axis=1)
        rise = np.where(
            np.asarray(in_limits)[:, None], np.diff(self.watts[LIMIT], axis=1), np.diff(self.watts[DRAW], axis=1)
        )
        watts = np.maximum(rise * self.gpus[:, None], 0.0)
        joules = np.maximum(np.diff(self.joules, axis=1), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            below_rank = np.log(self.seconds[:, :-1] / self.seconds[:, 1:]) / watts
            above_rank = gained / joules
        rank = np.where(above, above_rank, below_rank)
        # A step can only be taken after the ones below it, so it can rank no higher than they do.
        rank = np.where(wanted, rank, np.inf)
        rank = np.where(above, _running_minimum(np.where(above, rank, np.inf)), _running_minimum(rank))
        free = np.isinf(rank)
        gained_rank = _running_minimum(np.where(wanted & free, gained, np.inf))
        job, position = np.nonzero(wanted)
        keys = (
            position,
            job,
            -np.where(free, gained_rank, 0.0)[job, position],
            -rank[job, position],
            above[job, position],
        )
        order = np.lexsort(keys)
        return job[order], position[order]


def _ceiling(candidate: Candidate) -> int:
    """The highest position that the candidate's clock may have where it stays."""
    assert candidate.option is not None  # noqa: S101 - only placed candidates climb
    clocks = candidate.option.curves.clocks_megahertz
    if not candidate.staying or candidate.clock_ceiling >= clocks[-1]:
        return len(clocks) - 1
    return max(0, bisect_right(clocks, candidate.clock_ceiling) - 1)


def _stack(rows: Sequence[Array], width: int) -> Array:
    """Rows of one width; GPUs with fewer clocks repeat their last, which no step reaches."""
    if all(len(row) == width for row in rows):
        return np.stack(rows)
    return np.stack([np.concatenate([row, np.full(width - len(row), row[-1])]) for row in rows])


def _running_minimum(values: Array) -> Array:
    return np.asarray(np.minimum.accumulate(values, axis=1))
