"""EnergyAwareJob: a training job that says what it can use, may spend and should optimise, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from flyball_api.conditions import StoredCondition
from flyball_api.frontier import FrontierBounds, Tradeoff
from flyball_api.names import GPU_RESOURCE, LABEL_MODE, MANAGED_BY_FLYBALL, MODE_OBSERVE
from flyball_api.reading import (
    ApiStruct,
    Count,
    InvalidObject,
    JsonObject,
    ObjectMeta,
    Time,
    read_metadata,
    read_spec,
    read_status,
)

KIND = "EnergyAwareJob"
MAX_EXPLANATION_LENGTH = 1024
MAX_ERROR_PERMILLE = 1_000_000
ErrorPermille = Annotated[int, Meta(ge=-1000, le=MAX_ERROR_PERMILLE)]


# --- spec: written by people -----------------------------------------------------------------------------------------


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


class PlanSource(ApiStruct, frozen=True):
    """Where a pipeline's plan is: a key of a ConfigMap in the job's namespace."""

    config_map: str
    key: str = "plan.json"


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
    objective: Literal["Time", "Energy", "Balanced"] = "Balanced"
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


# --- status: written by the operator ---------------------------------------------------------------------------------


class NodeGpus(ApiStruct, frozen=True):
    """GPUs on one node."""

    name: str
    gpus: Count


class JobAllocation(ApiStruct, frozen=True):
    """GPUs on nodes with their clock and limit: what the planner wants a job to have, or what it has."""

    gpus: Count = 0
    epoch: Count | None = None
    incarnation: Count | None = None
    nodes: tuple[NodeGpus, ...] = ()
    clock_megahertz: Count | None = None
    power_limit_watts: Count | None = None


class Progress(ApiStruct, frozen=True):
    """How far a job is; `estimated` where the numbers come from its model.

    `incarnation` is the one that reported the iterations, `iterations_lost` how many had to be done again.
    """

    iterations: Count = 0
    iterations_per_kilosecond: Count = 0
    attained_gpu_seconds: Count = 0
    estimated: bool = False
    incarnation: Count | None = None
    iterations_lost: Count | None = None
    last_report_time: Time | None = None
    estimated_completion_time: Time | None = None
    earliest_completion_time: Time | None = None
    latest_completion_time: Time | None = None


class Prediction(ApiStruct, frozen=True):
    """What the plan expected of a job that runs as planned, and how far beyond that it is, in thousandths of it."""

    microseconds_per_iteration: Count
    watts: Count
    time_error_permille: ErrorPermille
    energy_error_permille: ErrorPermille


class RecurringRun(ApiStruct, frozen=True):
    """The run that a recurring job is: the batch size that was chosen for it, and why, and what it costs.

    Beyond `cost_limit_joules` it is stopped (None: never); `watts_per_gpu` turn a second of a GPU into joules of cost.
    """

    decision: Count
    global_batch_size: Count
    purpose: Literal["Explore", "BestKnown", "Sample"]
    gpu_model: str
    watts_per_gpu: Count
    message: str = ""
    cost_limit_joules: Count | None = None
    cost_joules: Count | None = None


class QueuePlace(ApiStruct, frozen=True):
    """A job's place among those that wait for GPUs or watts, from 1, and when it can expect to start: as found at `time`.

    `basis` says what the expected start rests on, or why there is none.
    """

    position: Count
    waiting: Count
    time: Time
    basis: str = ""
    expected_start_time: Time | None = None


class IncarnationEnergy(ApiStruct, frozen=True):
    """The energy of one incarnation on one node, `key` being `<incarnation>/<node>`."""

    key: str
    millijoules: Count


class EnergyUse(ApiStruct, frozen=True):
    """What a job's GPUs have used and will use; settled and open incarnations add up to what is consumed."""

    consumed_kilojoules: Count = 0
    projected_kilojoules: Count | None = None
    watts: Count | None = None
    settled_millijoules: Count = 0
    settled_incarnation: Count = 0
    incarnations: tuple[IncarnationEnergy, ...] = ()


class JobSummary(ApiStruct, frozen=True):
    """The numbers of a status as people read them."""

    clock: str = ""
    power: str = ""
    progress: str = ""
    energy: str = ""
    budget: str = ""
    eta: str = ""
    finish: str = ""
    queue: str = ""
    start: str = ""


class IncarnationFailure(ApiStruct, frozen=True):
    """How one incarnation came to an end that nobody had asked for; `counted` among the job's failures or not."""

    incarnation: Count
    time: Time
    counted: bool
    reason: str
    message: str = ""
    pod: str | None = None
    node: str | None = None
    exit_code: int | None = None


class BackOff(ApiStruct, frozen=True):
    """The pause before a job is started again: until when, why, and after how many starts in a row that came to nothing."""

    until: Time
    reason: str
    message: str
    repeats: Count = 0


class EnergyAwareJobStatus(ApiStruct, frozen=True):
    """EnergyAwareJob.status; a field without a value is None, which removes it from the object (`reading.to_patch`)."""

    observed_generation: Count | None = None
    time: Time | None = None
    conditions: tuple[StoredCondition, ...] = ()
    allocation: JobAllocation | None = None
    applied: JobAllocation | None = None
    progress: Progress | None = None
    energy: EnergyUse | None = None
    prediction: Prediction | None = None
    recurrence: RecurringRun | None = None
    queue: QueuePlace | None = None
    waiting_since: Time | None = None
    tradeoff: Tradeoff | None = None
    explanation: str | None = None
    state: str | None = None
    summary: JobSummary | None = None
    restarts: Count | None = None
    last_failed_incarnation: Count | None = None
    failures: tuple[IncarnationFailure, ...] | None = None
    start_attempts: Count | None = None
    back_off: BackOff | None = None
    start_time: Time | None = None
    last_resize_time: Time | None = None
    completion_time: Time | None = None


@dataclass(frozen=True, slots=True)
class EnergyAwareJob:
    """One EnergyAwareJob; `conditions` are its status' by their types, `problems` what of the status cannot be read.

    Of a recurring job `spec.training` has the batch size that was chosen for this run, and the iterations that make as many
    samples of it; `default_batch_size` is the one that was written.

    It is only `observed` where its label or its namespace's says so: placed and started as any other, and its clock lowered
    by caps and its own bounds alone.

    It is `finished` once it has succeeded or failed, and `wants_gpus` where it asks Flyball for some, as far as its own
    words go: it has not ended, and is not suspended or another's. Both are asked for many times in each cycle.
    """

    metadata: ObjectMeta
    created: datetime
    spec: EnergyAwareJobSpec
    status: EnergyAwareJobStatus
    conditions: Mapping[str, StoredCondition]
    default_batch_size: int
    problems: tuple[str, ...] = ()
    observed: bool = False
    finished: bool = field(init=False, compare=False)
    wants_gpus: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        finished = self.has("Succeeded") or self.has("Failed")
        wants = not finished and not self.deleting and not self.spec.suspend and self.managed_by_flyball
        object.__setattr__(self, "finished", finished)
        object.__setattr__(self, "wants_gpus", wants)

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def key(self) -> str:
        return self.metadata.key

    @property
    def generation(self) -> int:
        return self.metadata.generation

    @property
    def deleting(self) -> bool:
        return self.metadata.deleting

    @property
    def profile_key(self) -> str:
        """Jobs of one namespace with the same key share what was learned about them."""
        return self.spec.profile_key or self.name

    @property
    def frontier_bounds(self) -> FrontierBounds:
        """What of its spec its choices of size and clock depend on."""
        spec = self.spec
        return FrontierBounds(
            spec.training.global_batch_size,
            spec.gpus.min,
            spec.gpus.max,
            spec.clocks.min_megahertz,
            spec.clocks.max_megahertz,
        )

    @property
    def elastic(self) -> bool:
        """It may be stopped and started again from its checkpoint."""
        return self.spec.elasticity.mode == "CheckpointRestart"

    @property
    def due(self) -> datetime | None:
        """By when it is to be done: its deadline, or the end of the time in which it may be put off."""
        both = (self.spec.deadline, self.spec.flexible_until)
        return min((instant for instant in both if instant is not None), default=None)

    @property
    def run(self) -> RecurringRun | None:
        """Which run of a recurring job it is; None where no batch size has been chosen of those that its spec has now."""
        recurrence, run = self.spec.recurrence, self.status.recurrence
        return run if recurrence is not None and run is not None and _is_of(recurrence, run) else None

    @property
    def managed_by_flyball(self) -> bool:
        return self.spec.managed_by == MANAGED_BY_FLYBALL

    def has(self, condition: str) -> bool:
        """Whether the status has the condition with status True."""
        found = self.conditions.get(condition)
        return found is not None and found.is_true

    @property
    def refusal(self) -> str:
        """Why the API server refuses the pods of the very spec that stands, in the status' words; empty: it does not."""
        admitted = self.conditions.get("Admitted")
        if admitted is None or admitted.reason != "InvalidSpec" or admitted.observed_generation != self.generation:
            return ""
        return admitted.message or "its pods are refused"

    @property
    def last_incarnation(self) -> int:
        """The incarnation that the status has last; 0: the job has never been started."""
        allocation = self.status.allocation
        return 0 if allocation is None else allocation.incarnation or 0


def read_energy_aware_job(raw: Mapping[str, Any]) -> EnergyAwareJob:
    """An EnergyAwareJob from its JSON; raises InvalidObject where its metadata or spec is not as the CRD has it."""
    metadata = read_metadata(KIND, raw)
    spec = read_spec(KIND, metadata, raw, EnergyAwareJobSpec)
    status, problems = read_status(raw, EnergyAwareJobStatus)
    if metadata.creation_timestamp is None:
        raise InvalidObject(f"{KIND} {metadata.key}: metadata.creationTimestamp is missing")
    conditions = {condition.type: condition for condition in status.conditions}
    default_batch_size = spec.training.global_batch_size
    recurrence, run = spec.recurrence, status.recurrence
    if recurrence is not None and run is not None and _is_of(recurrence, run):
        spec = msgspec.structs.replace(spec, training=_with_batch_size(spec.training, run.global_batch_size))
    return EnergyAwareJob(
        metadata,
        metadata.creation_timestamp,
        spec,
        status,
        conditions,
        default_batch_size,
        problems,
        observed=metadata.labels.get(LABEL_MODE) == MODE_OBSERVE,
    )


def _is_of(recurrence: Recurrence, run: RecurringRun) -> bool:
    return run.global_batch_size in recurrence.batch_sizes and run.global_batch_size > 0 and run.watts_per_gpu > 0


def _with_batch_size(training: Training, batch_size: int) -> Training:
    """The same training, of as many samples, by another global batch size."""
    iterations = training.iterations
    if iterations is not None:
        iterations = -(-iterations * training.global_batch_size // batch_size)
    return msgspec.structs.replace(training, global_batch_size=batch_size, iterations=iterations)
