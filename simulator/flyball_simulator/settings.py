"""The settings of one simulation, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from flyball_planner.snapshot import Objective

REFERENCE_GPU = "NVIDIA-A100-SXM4-40GB"  # what the measured throughputs were taken on
MAX_GPUS = 1 << 20  # more than any cluster has; a number that was mistyped must not become arrays of terabytes


class Knowledge(StrEnum):
    """What a policy knows of a job's seconds and joules."""

    IDEAL = "ideal"  # the truth
    FITTED = "fitted"  # a prior, then models fitted to what was measured in the run
    NOISY = "noisy"  # the truth, disturbed by `model_error`


@dataclass(frozen=True, slots=True)
class CapStep:
    """From `at_seconds` on the cluster may draw `fraction` of all its GPUs' default power limits."""

    at_seconds: float
    fraction: float


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """At `at_seconds` a node, counted from 0, fails, or is there again (`up`)."""

    at_seconds: float
    node: int
    up: bool


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """Everything that one run depends on besides its jobs; the same settings and jobs give the same result.

    `power_limit_fraction` is PowerFlow's eta: of all GPUs' default power limits. `cap_steps` change it over time.
    `clock_megahertz` is the cluster's clock for policies that do not choose one; None: the highest. `price` is in
    job-seconds per joule; `energy_budget_watts`, the mean draw that is to be met, moves it from there. `price_signal` and
    `carbon_grams_per_kwh` are (second, value) steps: the first scales the price, the second turns joules into grams.
    With `shifts` jobs that can wait are put off to where the grid emits least (`flyball_planner.shifting`).
    `restart_scale` multiplies what resizes cost. A node that fails (`node_events`) takes its jobs back to their last
    checkpoint: they save themselves every `checkpoint_seconds`, and whenever they are stopped in order. Raises ValueError
    for a figure out of its range.
    """

    policy: str
    gpus: int
    gpus_per_node: int = 8
    gpu_product: str = REFERENCE_GPU
    power_limit_fraction: float | None = None
    cap_steps: tuple[CapStep, ...] = ()
    clock_megahertz: int | None = None
    price: float | None = None
    energy_budget_watts: float | None = None
    price_signal: tuple[tuple[float, float], ...] = ()
    carbon_grams_per_kwh: tuple[tuple[float, float], ...] = ()
    shifts: bool = False
    node_events: tuple[NodeEvent, ...] = ()
    checkpoint_seconds: float = 1800.0
    seed: int = 0
    knowledge: Knowledge = Knowledge.FITTED
    noise: float = 0.03  # relative deviation of what is measured
    model_error: float = 0.0  # relative deviation of what NOISY predicts
    prior_error: float = 0.0  # relative deviation of the priors of FITTED
    measure_clocks: bool = True  # policies that measure jobs through the clocks do so
    measure_every_job: bool = False  # each at each of its sizes, not each kind once
    max_measured: int = 16  # jobs at once
    objective: Objective = Objective.TIME  # of every job; powerflow-strict trades joules for seconds by it
    guard_fraction: float = 0.05  # a GPU's power limit stands this far above what its job was predicted to draw
    restart_scale: float = 1.0
    power_off_empty_nodes: bool = False
    node_overhead_watts: float = 0.0  # of a powered node beside its GPUs
    boot_seconds: float = 120.0
    boot_joules: float = 50_000.0  # of a node beside what it draws idle: a host at 400 W for two minutes
    planning_interval_seconds: float = 30.0

    def __post_init__(self) -> None:
        per_node = self.gpus_per_node
        if per_node < 1 or per_node & (per_node - 1):
            raise ValueError(f"gpus per node is {per_node}, and must be a power of two")
        if self.gpus > MAX_GPUS:
            raise ValueError(f"gpus is {self.gpus}, and must be at most {MAX_GPUS}")
        if self.gpus < per_node or self.gpus % per_node:
            raise ValueError(f"gpus is {self.gpus}, and must be a multiple of the {per_node} GPUs of a node")
        if self.power_limit_fraction is not None and not 0 < self.power_limit_fraction <= 1:
            raise ValueError(f"power limit {self.power_limit_fraction} must be a fraction above 0, at most 1")
        if self.energy_budget_watts is not None and not self.energy_budget_watts > 0:
            raise ValueError(f"energy budget {self.energy_budget_watts} W must be above 0")
        for name in (
            "noise",
            "model_error",
            "prior_error",
            "restart_scale",
            "node_overhead_watts",
            "boot_seconds",
            "boot_joules",
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, and must not be negative")
        if not self.checkpoint_seconds > 0:
            raise ValueError(f"checkpoint interval {self.checkpoint_seconds} s must be above 0")
        for event in self.node_events:
            if not 0 <= event.node < self.gpus // per_node or not event.at_seconds >= 0:
                raise ValueError(f"{event} must be of a node from 0 to {self.gpus // per_node - 1}, at 0 s or later")
        if self.shifts and not self.carbon_grams_per_kwh:
            raise ValueError("jobs are put off by the grid's carbon: give carbon_grams_per_kwh with shifts")
        if self.planning_interval_seconds <= 0:
            raise ValueError(f"planning interval {self.planning_interval_seconds} s must be above 0")


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster from `seconds` on, until the next sample."""

    seconds: float
    watts: float  # everything: busy and idle GPUs, powered nodes
    cap_watts: float | None
    busy_gpus: int
    powered_nodes: int
    running_jobs: int
    waiting_jobs: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a run came to. `completion_seconds` (JCT) by job; joules by where they went; `samples` over time."""

    settings: SimulationSettings
    trace: str
    completion_seconds: Mapping[str, float]
    makespan_seconds: float
    joules: Mapping[str, float]  # gpu, idle, node
    max_watts: float
    cap_watts: float | None
    cap_violation_seconds: float
    restarts: int
    node_failures: int  # of nodes that were up or off; `evictions` of their jobs
    evictions: int
    lost_gpu_seconds: float  # between the evicted jobs' last checkpoints and the failures
    migrations: int
    profiling_joules: float
    carbon_grams: float | None
    plans: int
    wall_seconds: float
    samples: tuple[Sample, ...] = field(default=(), repr=False)
