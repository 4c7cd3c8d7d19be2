"""AFS-L (Hwang et al., NSDI 2021, section 4, algorithm 1): GPU by GPU to the job for which one does most.

Of two jobs, a that would end first with what it has been given so far, and b, the next GPU goes to b iff
(p_b' - p_b) / p_b' > (p_a' - p_a) / p_a, with throughput p now and p' with that GPU: when a ends its GPUs will be b's,
never the other way round. A job without GPUs never ends; of two of them the shorter comes first. The winner of all is
found by pairs, from the job that ends first on. A share is a power of two here, so that what is handed out is the next
doubling; its p' is what one of its GPUs contributes, (p(2n) - p(n)) / n, without which large steps would look better than
small ones. Not aware of energy, and with no rule against restarts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_planner.policies.view import Array, Choice, ClusterView, JobView, Knob, Traits

NEVER = -1.0  # the gain of a job that no GPU would help
EVERYTHING = 1.0  # (p' - 0) / p': what a longer job's first GPUs are worth


class Afs:
    """Elastic sharing for mean JCT; one clock for all."""

    name = "afs"
    traits = Traits(knob=Knob.CLOCK, elastic=True, repacks=True, preempts=True)

    def decide(self, view: ClusterView) -> list[Choice]:
        fixed = [job for job in view.jobs if job.gpus and not job.resizable]
        free = view.gpus - sum(job.gpus for job in fixed)
        candidates = [_Candidate(job, _speeds(view, job)) for job in view.jobs if job.resizable or not job.gpus]
        candidates.sort(key=_remaining)
        line = _Line(candidates)
        while (place := line.find_winner(free)) is not None:
            free -= line.candidate_at(place).step
            line.grow(place)
        shares = [(job, job.gpus) for job in fixed]
        shares += [(candidate.job, candidate.gpus) for candidate in candidates if candidate.gpus]
        return [Choice(job.uid, gpus, view.clock_of(job, gpus)) for job, gpus in shares]

    def precedence(self, view: ClusterView) -> list[str]:
        candidates = (_Candidate(job, _speeds(view, job)) for job in view.jobs)
        return [candidate.job.uid for candidate in sorted(candidates, key=_remaining)]


def _speeds(view: ClusterView, job: JobView) -> list[float]:
    table = job.performance
    return [1.0 / table.seconds_rows[row][view.clock_of(job, gpus)] for row, gpus in enumerate(table.sizes)]


@dataclass(slots=True)
class _Candidate:
    """A job, its throughput at each size, and the size position that it has been given so far (-1: none)."""

    job: JobView
    speeds: list[float]
    row: int = -1

    @property
    def gpus(self) -> int:
        return self.job.performance.sizes[self.row] if self.row >= 0 else 0

    @property
    def step(self) -> int:
        """GPUs to the next size; there must be one."""
        return self.job.performance.sizes[self.row + 1] - self.gpus

    def gain(self) -> float:
        """The relative gain in speed of one more GPU; NEVER where the next size is no faster, or there is none."""
        if self.row + 1 == len(self.speeds) or self.speeds[self.row + 1] <= self.speeds[self.row]:
            return NEVER
        return (self.speeds[self.row + 1] / self.speeds[self.row] - 1.0) / self.step


def _remaining(candidate: _Candidate) -> tuple[float, float, str]:
    """The seconds left at the smallest size: of two jobs without GPUs the shorter comes first."""
    return (candidate.job.remaining_iterations / candidate.speeds[0], *candidate.job.order)


class _Line:
    """Jobs in the order in which they would end, and which of them gets the next GPUs.

    `_as_shorter[i]` is what a GPU is worth to the i-th against a job behind it, `_as_longer[i]` against one before it.
    """

    def __init__(self, candidates: list[_Candidate]) -> None:
        """From the candidates in the order of their remaining time; none of them has GPUs yet."""
        self._candidates = candidates
        self._who: NDArray[np.intp] = np.arange(len(candidates))
        self._seconds: Array = np.full(len(candidates), math.inf)
        self._as_shorter: Array = np.full(len(candidates), math.inf)
        self._as_longer: Array = np.full(len(candidates), EVERYTHING)
        self._steps: Array = np.array([candidate.step for candidate in candidates], dtype=np.float64)

    def find_winner(self, free: int) -> int | None:
        """The place of who wins all pairs, from the first to end on; None where nobody gains by what is free."""
        if not self._candidates:
            return None
        too_large = self._steps > free  # what does not fit now will not later: steps only grow
        self._as_shorter[too_large] = self._as_longer[too_large] = NEVER
        best = int((self._as_shorter > NEVER).argmax())
        if self._as_shorter[best] == NEVER:
            return None
        while True:
            beats = self._as_longer[best + 1 :] > self._as_shorter[best]
            following = int(beats.argmax()) if len(beats) else 0
            if not len(beats) or not beats[following]:
                return best
            best += 1 + following

    def candidate_at(self, place: int) -> _Candidate:
        return self._candidates[int(self._who[place])]

    def grow(self, place: int) -> None:
        """Give the job at `place` its next size, by which it ends sooner."""
        candidate = self.candidate_at(place)
        candidate.row += 1
        seconds = candidate.job.remaining_iterations / candidate.speeds[candidate.row]
        gain = candidate.gain()
        step = candidate.step if gain > 0 else 0
        as_longer = gain / (1.0 + gain) if gain > 0 else NEVER
        ahead = int(np.searchsorted(self._seconds[:place], seconds, side="right"))
        self._who[ahead + 1 : place + 1], self._who[ahead] = self._who[ahead:place].copy(), self._who[place]
        for values, value in (
            (self._seconds, seconds),
            (self._as_shorter, gain),
            (self._as_longer, as_longer),
            (self._steps, step),
        ):
            values[ahead + 1 : place + 1] = values[ahead:place].copy()
            values[ahead] = value
