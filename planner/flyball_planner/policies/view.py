"""What a policy sees and what it answers: tables of predicted seconds and joules in, a size and a clock for each job out.

One interface for the simulator and for the operator. A policy is a pure function of the view: whatever it remembers
(service attained, since when a job waits, the going price) is in the view, so that a restarted operator decides as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from flyball_planner.models.job import JobModel
from flyball_planner.snapshot import Objective

Array = NDArray[np.float64]


class Knob(StrEnum):
    """Which setting of a policy trades seconds for joules: what a sweep varies."""

    CLOCK = "clock"  # one clock for the whole cluster
    POWER_LIMIT = "power_limit"  # PowerFlow's eta
    PRICE = "price"  # job-seconds that a joule is worth
    NONE = "none"


class Performance:
    """One kind of job on one GPU model: what an iteration takes at each size and clock.

    `sizes` ascends (powers of two). `seconds` and `joules` (of all GPUs) are (sizes, clocks) over the clocks of the view;
    `watts` is their quotient. `efficient[s]` is the clock position of fewest joules at size position s, PowerFlow's f0. The
    `*_rows` hold the same figures as lists, which a greedy reads many times faster than an array. Jobs that are predicted
    alike share one instance. `model` is what the tables were computed from, for the global batch size `batch_size`; None
    where they were measured or given. Raises ValueError for shapes that do not match or figures that are not positive and
    finite.
    """

    __slots__ = (
        "__weakref__",
        "batch_size",
        "efficient",
        "joules",
        "joules_rows",
        "model",
        "position",
        "seconds",
        "seconds_rows",
        "sizes",
        "watts",
        "watts_rows",
    )

    def __init__(
        self,
        sizes: Sequence[int],
        seconds: Array,
        joules: Array,
        model: JobModel | None = None,
        batch_size: int | None = None,
    ) -> None:
        if seconds.shape != joules.shape or seconds.ndim != 2 or len(sizes) != len(seconds):
            raise ValueError(f"tables of {len(sizes)} sizes have shapes {seconds.shape} and {joules.shape}")
        if list(sizes) != sorted(set(sizes)) or not len(sizes) or sizes[0] < 1:
            raise ValueError(f"sizes {list(sizes)} must ascend from at least 1")
        if not (
            np.isfinite(seconds).all() and np.isfinite(joules).all() and (seconds > 0).all() and (joules > 0).all()
        ):
            raise ValueError("seconds and joules of an iteration must be positive and finite")
        self.model, self.batch_size = model, batch_size
        self.sizes = tuple(sizes)
        self.position = {gpus: index for index, gpus in enumerate(self.sizes)}
        self.seconds, self.joules, self.watts = seconds, joules, joules / seconds
        self.seconds_rows: list[list[float]] = seconds.tolist()
        self.joules_rows: list[list[float]] = joules.tolist()
        self.watts_rows: list[list[float]] = self.watts.tolist()
        self.efficient: list[int] = joules.argmin(axis=1).tolist()


@dataclass(slots=True, eq=False)
class JobView:
    """One job that wants GPUs now.

    `requested_gpus` is what its user asked for (one of `performance.sizes`): what a policy that is not elastic gives.
    `gpus` is what it holds now (0: it waits), at clock position `clock_index`. `attained_gpu_seconds` is its service so
    far. `since_seconds` is when it last changed between waiting and running, or its size. `resizable`: False while it may
    neither change size nor be paused (it is being measured, or was changed just now). `restart_seconds` is what a resize
    would cost it. `deadline_seconds` is a point in time. `objective` is its user's word, heard by `powerflow-strict` alone.
    """

    uid: str
    submit_time_seconds: float
    requested_gpus: int
    performance: Performance
    remaining_iterations: float
    restart_seconds: float = 30.0
    attained_gpu_seconds: float = 0.0
    gpus: int = 0
    clock_index: int = 0
    since_seconds: float = 0.0
    resizable: bool = True
    priority: int = 0
    deadline_seconds: float | None = None
    remaining_energy_joules: float | None = None
    objective: Objective = Objective.TIME

    @property
    def order(self) -> tuple[float, str]:
        """First come, first served; the uid makes it total."""
        return self.submit_time_seconds, self.uid


class Choice(NamedTuple):
    """A job's GPUs and clock position. The order of a policy's choices is the order in which they are placed."""

    uid: str
    gpus: int
    clock_index: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at one moment.

    `gpus` can be given to jobs, `gpus_per_node` (a power of two) on each node. `clocks_megahertz` ascends; every table's
    columns are its positions. `power_limit_watts` bounds the predicted draw of busy GPUs with `guard_fraction` above it,
    plus `idle_gpu_watts` for each idle one; None: no bound. `max_gpu_watts` is what one GPU may draw at most.
    `sunk_gpu_watts` is what a GPU draws whether anybody uses it or not (0 where empty nodes are powered off),
    `host_gpu_watts` a GPU's share of what its node draws beside its GPUs while it is not powered off (0 where it never is).
    `clock_index`: the cluster-wide clock, for policies that do not choose clocks. `price`: job-seconds per joule.
    """

    now_seconds: float
    gpus: int
    gpus_per_node: int
    clocks_megahertz: tuple[int, ...]
    jobs: Sequence[JobView]
    max_gpu_watts: float
    idle_gpu_watts: float = 0.0
    sunk_gpu_watts: float = 0.0
    host_gpu_watts: float = 0.0
    power_limit_watts: float | None = None
    guard_fraction: float = 0.0
    clock_index: int = -1  # the highest
    price: float = 0.0
    clock_rule: Callable[[JobView, int], int] | None = field(default=None, compare=False)

    @property
    def using_gpu_watts(self) -> float:
        """The watts that each GPU in use costs beside its job's own: its share of the host's, less what it draws unused."""
        return self.host_gpu_watts - self.sunk_gpu_watts

    def clock_of(self, job: JobView, gpus: int) -> int:
        """The clock position that a policy which does not choose clocks runs a job at, on so many GPUs."""
        if self.clock_rule is not None:
            return self.clock_rule(job, gpus)
        return self.clock_index % len(self.clocks_megahertz)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What has to be known of a policy besides its choices; a policy states where it differs from the plainest one."""

    knob: Knob = Knob.NONE  # what a sweep varies
    elastic: bool = False  # gives jobs other sizes than the requested one
    repacks: bool = False  # running jobs are migrated so that free GPUs on several nodes make a whole cell
    measures: bool = False  # a job that first gets a size is run through the clocks to learn its energy
    holds_limits: bool = False  # keeps within `power_limit_watts` at every instant: GPUs may be given power limits
    needs_model: bool = False  # plans with the jobs' models, not with their tables alone
    empties_nodes: bool = False  # moves jobs together where a snapshot asks for consolidation
    in_line: bool = False  # a job that does not fit holds up those behind it
    preempts: bool = False  # running jobs are paused for others
    interval_seconds: float | None = None  # how often it wants to decide even if nothing has happened
    suspend_seconds: float | None = None  # what resuming at the same size costs a job; None: as much as any restart


class Policy(Protocol):
    """Decides who runs, at which size and clock."""

    @property
    def name(self) -> str: ...
    @property
    def traits(self) -> Traits: ...

    def decide(self, view: ClusterView) -> list[Choice]:
        """The jobs that run from now on, most important first; a job that is not named waits.

        The GPUs of the choices add up to no more than `view.gpus`; each size is one of the job's.
        """
        ...


@runtime_checkable
class OrderedPolicy(Protocol):
    """A policy that puts waiting jobs in order, so that each has a place in the queue; under others there are no places."""

    def precedence(self, view: ClusterView) -> list[str]:
        """The uids of all jobs of the view in the order in which those without GPUs would be given some."""
        ...
