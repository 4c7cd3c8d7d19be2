"""What the planner sees: one frozen view of the cluster, in SI units, free of Kubernetes.

The operator and the simulator build a `ClusterSnapshot` and hand it to a policy; nothing in here is read from a
clock, a file or a network, so that the same snapshot always gives the same plan.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from flyball_planner.models.job import GpuModel, JobModel


class Objective(StrEnum):
    """What a user wants joules and seconds traded for (docs/planner.md)."""

    TIME = "Time"
    ENERGY = "Energy"
    BALANCED = "Balanced"


class Enforcement(StrEnum):
    """What a cap sums: what the limits allow (`HARD`), or the predicted draw with a guard band (`EXPECTED`)."""

    HARD = "Hard"
    EXPECTED = "Expected"


@dataclass(frozen=True, slots=True)
class NodeState:
    """One GPU node as the planner may use it.

    `gpus` counts every GPU of the node. `foreign_gpus` are held by pods that are not Flyball's, `lost_gpus` cannot be
    used; the rest is free for jobs only while `schedulable` (ready, not cordoned, its agent acknowledged).
    `foreign_power_limit_watts` is what foreign GPUs are reserved at on average, `lost_power_limit_watts` one lost GPU.
    `fixed_bound_watts`: set where the node cannot be commanded (unresponsive or not yet acknowledged): its committed watts,
    which the planner can neither lower nor use; `fixed_draw_watts`: what of it caps count that add up predicted draw (None:
    all of it). A job that already runs on a node that is not schedulable stays there
    (a cordon or an agent's restart must not restart training), unless the node is to be evacuated (`evacuate`).
    """

    name: str
    gpu_model: GpuModel
    gpus: int
    schedulable: bool = True
    foreign_gpus: int = 0
    lost_gpus: int = 0
    foreign_power_limit_watts: float = 0.0
    lost_power_limit_watts: float = 0.0
    idle_power_limit_watts: float | None = None  # None: the model's smallest limit
    fixed_bound_watts: float | None = None
    fixed_draw_watts: float | None = None
    evacuate: bool = False

    def __post_init__(self) -> None:
        if self.gpus < 0 or self.foreign_gpus < 0 or self.lost_gpus < 0:
            raise ValueError(f"node {self.name}: numbers of GPUs must not be negative")

    @property
    def usable_gpus(self) -> int:
        """GPUs that Flyball's jobs hold or may hold, if the node were schedulable."""
        return max(0, self.gpus - self.foreign_gpus - self.lost_gpus)


@dataclass(frozen=True, slots=True)
class CapConstraint:
    """One power cap over a set of nodes; `budget_watts` is what is left for GPUs after the static overhead.

    `pauses`: where not even the lowest clocks fit, jobs are paused for it. Else they stay, and their limits bear it alone.
    """

    name: str
    node_names: frozenset[str]
    budget_watts: float
    enforcement: Enforcement = Enforcement.HARD
    pauses: bool = True


@dataclass(frozen=True, slots=True)
class Allocation:
    """Where a job runs and how fast: `(node, gpus)` in rank order, one clock and one power limit for every GPU of it."""

    nodes: tuple[tuple[str, int], ...]
    clock_megahertz: int
    power_limit_watts: float

    @property
    def gpus(self) -> int:
        return sum(gpus for _, gpus in self.nodes)


@dataclass(frozen=True, slots=True)
class JobState:
    """One job that wants GPUs now. `current` is what it holds (or is being given); None while it waits.

    `model` predicts it on the GPU model that it was fitted on; `models_elsewhere` holds what was fitted on others, and
    where neither knows a node's GPU, `model` is carried over. `resizable`: False while the job may neither change its
    size nor move (too soon after the last time); its clock may change always. `size_fixed`, `bounded_by` and
    `passed_over` are for sentences: until when that is so or why, what has lowered `gpus_max`, such as a quota, and what
    the nodes lack that are not eligible (no reason for another plan). `rigid`: it is stopped for no other job, and for a
    cap last of all. `throttled`: its energy budget is spent and `onExhausted: Throttle` holds. `eligible_nodes`: where its
    pods may go (node selectors, tolerations); None: anywhere. `since_seconds`: the moment at which it last began to run or
    to wait, or got another size; None: when it was submitted. `tenant`: who shares the cluster with the other tenants'
    jobs. `observed`: its clock is lowered by caps and its own bounds alone, and what its objective would have chosen is
    only told.
    """

    uid: str
    name: str  # namespace/name, for sentences and for a stable order
    gpus_min: int
    gpus_max: int
    global_batch_size: int
    model: JobModel
    submit_time_seconds: float
    max_local_batch_size: int | None = None
    remaining_iterations: float | None = None  # None: nothing is known about the end
    attained_gpu_seconds: float = 0.0
    priority: int = 0
    objective: Objective = Objective.BALANCED
    seconds_to_deadline: float | None = None
    remaining_energy_joules: float | None = None
    throttled: bool = False
    clock_min_megahertz: int | None = None
    clock_max_megahertz: int | None = None
    power_limit_max_watts: float | None = None
    resizable: bool = True
    size_fixed: str = "now"
    bounded_by: str = ""
    passed_over: str = field(default="", compare=False)
    rigid: bool = False
    current: Allocation | None = None
    models_elsewhere: tuple[JobModel, ...] = ()
    eligible_nodes: frozenset[str] | None = None
    since_seconds: float | None = None
    tenant: str = ""
    observed: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.gpus_min <= self.gpus_max:
            raise ValueError(
                f"job {self.name}: gpus.min {self.gpus_min} and gpus.max {self.gpus_max} must be 1 <= min <= max"
            )
        if self.global_batch_size < 1:
            raise ValueError(f"job {self.name}: global batch size {self.global_batch_size} must be at least 1")

    def model_on(self, gpu_model: GpuModel) -> JobModel:
        """What predicts this job on a GPU model: fitted there if it was, else carried over."""
        for model in (self.model, *self.models_elsewhere):
            if model.gpu_model.product == gpu_model.product:
                return model.on(gpu_model)
        return self.model.on(gpu_model)


@dataclass(frozen=True, slots=True)
class Consolidation:
    """That running jobs may be moved off a node so that it can be powered off, or removed, and what that saves.

    `node_watts` is what an empty node draws beside its GPUs (whose idle watts are saved besides), `empty_seconds` how long
    an empty node is expected to stay empty. Raises ValueError for figures that are negative or infinite.
    """

    node_watts: float
    empty_seconds: float

    def __post_init__(self) -> None:
        for name in ("node_watts", "empty_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"consolidation: {name} is {getattr(self, name)}, and must be finite and not negative")


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Everything a plan may depend on. `restart_seconds` is what a resize or a migration costs a job.

    `joules_per_job_second`: the going price, what one second of one job's time is worth to the cluster; None: what the
    cluster may draw, shared equally among the jobs that want it. `consolidation`: None where empty nodes save nothing.
    `now_seconds`, in the time of the jobs' `submit_time_seconds`, is for policies that count waiting times; None: when the
    last job was submitted. Raises ValueError for two nodes, jobs or caps of one name, which no plan could tell apart.
    """

    nodes: tuple[NodeState, ...]
    jobs: tuple[JobState, ...]
    caps: tuple[CapConstraint, ...] = ()
    restart_seconds: float = 30.0
    guard_fraction: float = 0.05  # a job's power limit stands this far above its predicted draw
    joules_per_job_second: float | None = None
    consolidation: Consolidation | None = None
    now_seconds: float | None = None

    def __post_init__(self) -> None:
        kinds = {
            "node": [node.name for node in self.nodes],
            "job": [job.uid for job in self.jobs],
            "cap": [cap.name for cap in self.caps],
        }
        for kind, names in kinds.items():
            if len(set(names)) != len(names):
                twice = sorted(name for name, count in Counter(names).items() if count > 1)
                raise ValueError(f"cluster snapshot: {kind} {twice[0]!r} is there more than once")


class Admission(StrEnum):
    """Why a job has GPUs or has none (the closed list of the `Admitted` condition that a plan can decide)."""

    ADMITTED = "Admitted"
    WAITING_FOR_POWER = "WaitingForPower"
    WAITING_FOR_GPUS = "WaitingForGpus"
    WAITING_FOR_BUDGET = "WaitingForBudget"
    PREEMPTED = "Preempted"
    PLANNING_FAILED = "PlanningFailed"


@dataclass(frozen=True, slots=True)
class JobDecision:
    """The plan for one job: its allocation or None, the reason code, and one sentence that says why.

    `governed_clock_megahertz` is the clock that a job which is only observed would have there, were it not (None: it is).
    """

    uid: str
    allocation: Allocation | None
    admission: Admission
    explanation: str
    predicted_iteration_seconds: float = 0.0
    predicted_gpu_watts: float = 0.0  # one GPU's average draw at the planned size and clock
    deadline_at_risk: bool = False
    nearest_deadline_seconds: float | None = None  # where the deadline cannot be met: the nearest that can
    governed_clock_megahertz: int | None = None


@dataclass(frozen=True, slots=True)
class CapOutcome:
    """What a cap comes to under the plan: watts committed once the plan is in force, and whether it can be held."""

    name: str
    committed_watts: float
    feasible: bool
    committed_at_min_watts: float  # what its nodes count with every job paused


class ExpectedStart(NamedTuple):
    """When a waiting job would start, in seconds from the snapshot, and what that rests on in half a sentence."""

    uid: str
    seconds: float
    basis: str


@dataclass(frozen=True, slots=True)
class Queue:
    """The jobs that wait for GPUs or watts.

    `order` has their uids, first who would be admitted first; `starts` are those that can be foreseen, the earliest first,
    and `unknown` says why nothing is known of when the others start.
    """

    order: tuple[str, ...] = ()
    starts: tuple[ExpectedStart, ...] = ()
    unknown: str = ""


class PlanningFailure(NamedTuple):
    """A job that planning fails with, by its uid, and what it raised, in a line."""

    uid: str
    error: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Every job's decision, in the order of the snapshot's jobs, what each cap comes to, and who waits in which order.

    `queue` is empty under a policy that says nothing of the order in which jobs wait. `failures` are the jobs that planning
    fails with: they keep what they hold, or wait.
    """

    decisions: tuple[JobDecision, ...]
    caps: tuple[CapOutcome, ...] = ()
    migrations: tuple[str, ...] = field(default=())  # uids moved for the sake of others, size unchanged
    queue: Queue = Queue()
    failures: tuple[PlanningFailure, ...] = ()

    def decision(self, uid: str) -> JobDecision | None:
        return next((decision for decision in self.decisions if decision.uid == uid), None)
