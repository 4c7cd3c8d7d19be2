"""What training saves against the highest clock: the joules measured, and what the same work would have taken there.

Measured joules are scaled by what the job's model says of the two clocks at the job's own size, so that an error of the
model's scale cancels out. The highest clock is the highest that the GPU's own limit lets the job hold: what a cluster
without Flyball would run at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from flyball_planner.models.job import JobModel

from flyball_operator.report.job_series import runs

if TYPE_CHECKING:
    from flyball_api.energy_aware_job import EnergyAwareJob

    from flyball_operator.jobs.runs.progress import JobProgress
    from flyball_operator.jobs.steps.step import LiveJob


@dataclass(slots=True)
class _Known:
    """Of one job: the millijoules counted so far, and the ratio with all that it follows from."""

    millijoules: int
    progress: JobProgress | None = None  # in which they are
    model: JobModel | None = None
    point: tuple[int, int, int] = (0, 0, 0)  # GPUs, nodes, megahertz
    ratio: float = 1.0


@dataclass(slots=True)
class Savings:
    """Totals in joules since this process began to lead; what a job used before it was first seen is not in them."""

    joules: float = 0.0
    highest_clock_joules: float = 0.0
    _jobs: dict[str, _Known] = field(default_factory=dict)

    def observe(self, jobs: Iterable[LiveJob], model_of: Callable[[EnergyAwareJob], JobModel]) -> None:
        """Take in what the jobs have used since the last call; jobs that are gone are forgotten."""
        before, self._jobs = self._jobs, {}
        for job in jobs:
            progress, uid = job.memory.progress, job.view.uid
            known = before.get(uid)
            if known is not None and known.progress is progress:
                self._jobs[uid] = known
                continue
            consumed = progress.consumed_millijoules
            known = self._jobs[uid] = known or _Known(consumed)
            known.progress = progress
            used, known.millijoules = consumed - known.millijoules, max(consumed, known.millijoules)
            if used > 0:
                ratio = self._ratio(job, known, model_of)
                self.joules += used / 1e3
                self.highest_clock_joules += used / 1e3 * ratio

    def forget(self) -> None:
        """Another process leads: what jobs use meanwhile is its to count."""
        self._jobs = {}

    @staticmethod
    def _ratio(job: LiveJob, known: _Known, model_of: Callable[[EnergyAwareJob], JobModel]) -> float:
        current = job.step.current
        clock = job.memory.progress.clock_megahertz or (
            0 if job.memory.current is None else job.memory.current.clock_megahertz
        )
        if current is None or not runs(job) or not clock:
            return known.ratio
        model, point = model_of(job.view), (current.gpus, len(current.nodes), clock)
        if model is not known.model or point != known.point:
            known.ratio = highest_clock_ratio(model, *point, job.view.spec.training.global_batch_size)
            known.model, known.point = model, point
        return known.ratio


def highest_clock_ratio(model: JobModel, gpus: int, nodes: int, megahertz: int, global_batch_size: int) -> float:
    """Joules of an iteration at the highest clock over those at `megahertz`, at the same size, by the model."""
    curves = model.curves(gpus, nodes, global_batch_size)
    held = np.flatnonzero(~curves.throttles[0])
    highest = int(held[-1]) if held.size else 0
    now = model.iteration_joules(gpus, nodes, megahertz, global_batch_size)
    return float(curves.joules[0, highest]) / now if now > 0 else 1.0
