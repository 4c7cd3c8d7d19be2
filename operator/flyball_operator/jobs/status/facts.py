"""What a job's status is made from, beside the job itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flyball_api.energy_aware_job import BackOff, IncarnationFailure, MeasuredPlan, RecurringRun
from flyball_api.values.units import MILLIWATTS_PER_WATT, MilliwattsPerGpu, NodeMilliwatts
from flyball_planner.snapshot import JobDecision

from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep
from flyball_operator.jobs.runs.memory import Refusal
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.runs.queue import PlanPlace
from flyball_operator.jobs.starts.obstacles import StartObstacle


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Everything that a status is made from, beside the job itself.

    `granted`: every pod is on its node, with its planned limit in a grant that its agent acknowledged; `applied_milliwatts`
    is the highest limit read back from the job's GPUs (0: none known), `drawn_milliwatts` what they draw by their agents
    (None: not known). `last_failed` is the last incarnation that `restarts` counts. `outcome` is "Succeeded" or "Failed"
    once the job has ended; `refusal` says why no pods can be made of it. `unplanned`: it wants GPUs, and no plan has seen
    it yet.
    `observing`: the operator does nothing of what is decided.

    `back_off` is the pause before its next start, in which it `gives_back` its GPUs or not; `obstacle` what keeps the pods
    of this start from running; `bounds_beyond` which of its bounds no GPU can take; `failures` how its last incarnations
    ended, the newest first. `queue` is its place among those that wait. `pace_band` is between which shares of the time
    that its model says an iteration will take at its size and clock (0.1 and 0.9 quantiles). `run` is which run of a
    recurring job it is, or is to be. `measured_plan` is what became of a plan of what it has measured of its pipeline.
    """

    progress: JobProgress
    step: JobStep
    decision: JobDecision | None
    epoch: int
    granted: bool
    restarts: int
    now: datetime
    last_failed: int = 0
    applied_milliwatts: MilliwattsPerGpu = MilliwattsPerGpu(0)
    drawn_milliwatts: NodeMilliwatts | None = None
    outcome: str = ""
    outcome_message: str = ""
    unplanned: bool = False
    refusal: Refusal | None = None
    last_resize: datetime | None = None
    observing: bool = False
    failures: tuple[IncarnationFailure, ...] = ()
    start_attempts: int = 0
    highest_incarnation: int = 0
    back_off: BackOff | None = None
    gives_back: bool = False
    bounds_beyond: str = ""
    obstacle: StartObstacle | None = None
    queue: PlanPlace | None = None
    pace_band: tuple[float, float] | None = None
    run: RecurringRun | None = None
    measured_plan: MeasuredPlan | None = None

    @property
    def on_lost_node(self) -> bool:
        """Whether one of its pods is on a node whose kubelet no longer reports."""
        return self.obstacle is not None and self.obstacle.node_lost

    @property
    def runs(self) -> bool:
        """Whether all of its pods are known to run now."""
        return self.step.phase == JobPhase.RUNNING and not self.on_lost_node

    @property
    def measured(self) -> tuple[object, ...]:
        """What somebody has reported or reckoned anew: all else of a running job's figures follows by the clock."""
        progress = self.progress
        return (
            progress.iterations,
            progress.last_report,
            progress.consumed_millijoules,
            progress.watts,
            progress.clock_megahertz,
            self.drawn_milliwatts,
            self.applied_milliwatts,
        )

    @property
    def watts(self) -> int | None:
        """What the job's GPUs draw: over an iteration, as its processes say, or else now, as their agents do."""
        if self.progress.watts:
            return round(self.progress.watts)
        return None if self.drawn_milliwatts is None else round(self.drawn_milliwatts / MILLIWATTS_PER_WATT)
