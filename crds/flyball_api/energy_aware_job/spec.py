"""The spec of an EnergyAwareJob, which people write: what the job can use, may spend and should optimise."""

from __future__ import annotations

from typing import Literal

from flyball_api.names import GPU_RESOURCE, MANAGED_BY_FLYBALL
from flyball_api.reading import ApiStruct, Count, JsonObject, Time

Objective = Literal["Time", "Energy", "Balanced"]


class GpuRange(ApiStruct, frozen=True):
    """How many GPUs a job can use; raises ValueError unless 1 <= min <= max."""

    min: Count
    max: Count
    resource_name: str = GPU_RESOURCE

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise ValueError(f"min {self.min} and max {self.max} must be 1 <= min <= max")


class Training(ApiStruct, frozen=True):
    """What must be known of a training to predict its time and energy; raises ValueError for no samples at all."""

    global_batch_size: Count
    iterations: Count | None = None
    max_local_batch_size: Count | None = None
    model_class: str = ""

    def __post_init__(self) -> None:
        if self.global_batch_size < 1:
            raise ValueError(f"globalBatchSize {self.global_batch_size} must be at least 1")


class JobEnergy(ApiStruct, frozen=True):
    """The energy that a job may spend over all its restarts; None: as much as it needs.

    `max_overrun_permille`: how far a throttled job may go beyond it; None: to its end.
    """

    budget_kilojoules: Count | None = None
    on_exhausted: Literal["Throttle", "Suspend", "Fail"] = "Throttle"
    max_overrun_permille: Count | None = None


class ClockBounds(ApiStruct, frozen=True):
    """Bounds on the SM clock; None: the GPU's own."""

    min_megahertz: Count | None = None
    max_megahertz: Count | None = None


class JobPowerLimit(ApiStruct, frozen=True):
    """The highest power limit of each of a job's GPUs; None: what the caps allow."""

    max_watts: Count | None = None


class Elasticity(ApiStruct, frozen=True):
    """How a job may be resized and moved."""

    mode: Literal["CheckpointRestart", "Never"] = "CheckpointRestart"
    min_seconds_between_resizes: Count = 600


class FailurePolicy(ApiStruct, frozen=True):
    """How often a job is started again after a failure.

    `restarts_window_seconds`: after so long without one those before it count no more; None: they always do.
    """

    max_restarts: Count = 3
    restarts_window_seconds: Count | None = None


class Recurrence(ApiStruct, frozen=True):
    """What is learned over the runs of a job that comes again: which of `batch_sizes` reaches the target at least cost."""

    batch_sizes: tuple[Count, ...]
    target_metric: str
    energy_weight_permille: Count = 500

    @property
    def energy_weight(self) -> float:
        """What a joule weighs against a second, 0 to 1: Zeus' eta."""
        return min(1.0, self.energy_weight_permille / 1000)


class MeasuredClocks(ApiStruct, frozen=True):
    """At which clocks a job measures the stages of its pipeline; raises ValueError where these are none."""

    highest_megahertz: Count
    lowest_megahertz: Count
    step_megahertz: Count = 60

    def __post_init__(self) -> None:
        if not 1 <= self.lowest_megahertz <= self.highest_megahertz or not self.step_megahertz:
            raise ValueError(
                f"from {self.highest_megahertz} down to {self.lowest_megahertz} MHz by {self.step_megahertz} are no clocks"
            )

    @property
    def megahertz(self) -> range:
        """From the highest downwards."""
        return range(self.highest_megahertz, self.lowest_megahertz - 1, -self.step_megahertz)


class PlanSource(ApiStruct, frozen=True):
    """Where a pipeline's plan is: a key of a ConfigMap in the job's namespace.

    `measure`: as long as there is none, the job measures its stages, and the operator has one made and puts it there.
    """

    config_map: str
    key: str = "plan.json"
    measure: MeasuredClocks | None = None


class PipelineParallelism(ApiStruct, frozen=True):
    """A job's pipelines, and the plan by which their computations run; one that was stored without a plan cannot run."""

    stages: Count
    microbatches: Count = 0
    plan: PlanSource | None = None


class EnergyAwareJobSpec(ApiStruct, frozen=True):
    """EnergyAwareJob.spec."""

    gpus: GpuRange
    training: Training
    template: JsonObject
    objective: Objective = "Balanced"
    energy: JobEnergy = JobEnergy()
    deadline: Time | None = None
    flexible_until: Time | None = None
    clocks: ClockBounds = ClockBounds()
    power_limit: JobPowerLimit = JobPowerLimit()
    elasticity: Elasticity = Elasticity()
    profile_key: str | None = None
    pipeline: PipelineParallelism | None = None
    recurrence: Recurrence | None = None
    priority: int = 0
    suspend: bool = False
    managed_by: str = MANAGED_BY_FLYBALL
    failure_policy: FailurePolicy = FailurePolicy()
    startup_timeout_seconds: Count | None = None
    ttl_seconds_after_finished: Count | None = None
