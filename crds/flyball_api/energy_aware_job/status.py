"""The status of an EnergyAwareJob, which the operator writes: what the job was given, how far it is, what it has used."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from flyball_api.energy.frontier import Tradeoff
from flyball_api.reading import ApiStruct, Count, Time
from flyball_api.values.conditions import StoredCondition

MAX_EXPLANATION_LENGTH = 1024
MAX_ERROR_PERMILLE = 1_000_000
ErrorPermille = Annotated[int, Meta(ge=-1000, le=MAX_ERROR_PERMILLE)]


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


class MeasuredPlan(ApiStruct, frozen=True):
    """What became of the plan that was to be made of what a job has measured of its pipeline.

    `profile` tells what was measured from all else that could have been: of the same no other plan is made.
    """

    outcome: Literal["Made", "NotMade"]
    profile: str
    time: Time
    message: str = ""


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
    """How one incarnation ended before the job was done, other than by the operator; `counted`: as one of its failures."""

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
    """EnergyAwareJob.status; a field without a value is None, which removes it from the object (`writing.to_patch`)."""

    observed_generation: Count | None = None
    time: Time | None = None
    conditions: tuple[StoredCondition, ...] = ()
    allocation: JobAllocation | None = None
    applied: JobAllocation | None = None
    progress: Progress | None = None
    energy: EnergyUse | None = None
    prediction: Prediction | None = None
    recurrence: RecurringRun | None = None
    measured_plan: MeasuredPlan | None = None
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
