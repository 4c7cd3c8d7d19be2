"""The API as pydantic models. Generated from crds/*.yaml by `make models`: do not edit."""

from __future__ import annotations

from pydantic import AwareDatetime, Field
from flyball_crds.base import ApiModel
from typing import Any, Literal


class ObjectMeta(ApiModel):
    """Standard object metadata, the part of it that Flyball uses."""

    name: str
    """The object's name."""
    namespace: str | None = None
    """The object's namespace; none for cluster-scoped kinds."""
    uid: str | None = None
    """Unique over all time."""
    resource_version: str | None = None
    """Changes with every write."""
    generation: int | None = None
    """Rises with every change of spec."""
    creation_timestamp: AwareDatetime | None = None
    """When it was created."""
    deletion_timestamp: AwareDatetime | None = None
    """When its deletion was asked."""
    labels: dict[str, str] = {}
    """Labels."""
    annotations: dict[str, str] = {}
    """Annotations."""
    finalizers: list[str] = []
    """Who must agree to its end."""


class GpuRange(ApiModel):
    """How many GPUs the job can use. The same minimum and maximum make a rigid job."""

    min: int = Field(..., ge=1, le=65536)
    """The smallest number of GPUs that the job can run on, a power of two."""
    max: int = Field(..., ge=1, le=65536)
    """The largest number of GPUs that the job can make use of, a power of two."""
    resource_name: str = Field(
        default="nvidia.com/gpu",
        max_length=253,
        pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    )
    """The extended resource that the GPUs are asked for by."""


class Training(ApiModel):
    """What Flyball must know of the training to predict its time and energy at each size and clock."""

    global_batch_size: int = Field(..., ge=1, le=2147483647)
    """Samples in one iteration over all GPUs. It stays the same whatever the size, so that resizing does not change what is learned."""
    iterations: int | None = Field(default=None, ge=1, le=1000000000000)
    """Iterations (optimizer steps) to the end. Where it is missing nothing is known about the end, and the job is placed by the service it has had."""
    max_local_batch_size: int | None = Field(default=None, ge=1, le=2147483647)
    """The most samples of one iteration that one GPU's memory holds. Missing means no limit."""
    model_class: str | None = Field(
        default=None, max_length=63, pattern="^[a-z0-9]([-a-z0-9_.]*[a-z0-9])?$"
    )
    """The kind of model, such as resnet50, vgg16, bert or gpt2. It chooses the first guess of time and energy before anything is measured."""


class EnergyBudget(ApiModel):
    """The energy that the job may spend over all its restarts."""

    budget_kilojoules: int = Field(..., ge=1, le=1000000000000)
    """The most that the job's GPUs may consume, in kilojoules (3600 kJ are 1 kWh)."""
    on_exhausted: Literal["Throttle", "Suspend", "Fail"] = "Throttle"
    """What happens when the budget is used up. Throttle: smallest size at the energy-optimal clock. Suspend: checkpoint and wait with the reason WaitingForBudget until the budget is raised. Fail: the job ends as failed."""


class ClockBounds(ApiModel):
    """Bounds on the SM clock. Missing bounds are the GPU's own."""

    min_megahertz: int | None = Field(default=None, ge=1, le=10000)
    """The lowest SM clock that Flyball may lock, in megahertz. A power cap comes first."""
    max_megahertz: int | None = Field(default=None, ge=1, le=10000)
    """The highest SM clock that Flyball may lock, in megahertz."""


class PowerLimitBound(ApiModel):
    """The job's own bound on power limits. It can only lower what the caps allow."""

    max_watts: int = Field(..., ge=1, le=10000)
    """The highest power limit of each of the job's GPUs, in watts."""


class Elasticity(ApiModel):
    """How the job may be resized and moved."""

    mode: Literal["CheckpointRestart", "Never"] = "CheckpointRestart"
    """CheckpointRestart: on SIGTERM the job checkpoints, and starts again from there at another size or place. Never: once started, the job keeps its size and place, and only clocks and power limits change."""
    min_seconds_between_resizes: int = Field(default=600, ge=0, le=604800)
    """The shortest time between two resizes that only gain efficiency, in seconds. A cut that a power cap demands never waits."""


class Pipeline(ApiModel):
    """The job's pipeline parallelism, for an energy schedule of each stage's computations."""

    stages: int = Field(..., ge=2, le=1024)
    """Pipeline stages. Each size of the job must be a multiple of it."""
    microbatches: int = Field(..., ge=1, le=65536)
    """Microbatches in one iteration of one pipeline."""
    schedule: Literal[
        "OneForwardOneBackward",
        "GPipe",
        "InterleavedOneForwardOneBackward",
        "EarlyRecomputeOneForwardOneBackward",
    ] = "OneForwardOneBackward"
    """The order of forward and backward computations in the pipeline."""
    planner: Literal["Perseus", "EnvPipe", "Kareus"] = "Perseus"
    """Which method plans the energy schedule. Perseus: the whole time-energy frontier. EnvPipe: bubbles are filled under the outer envelope. Kareus: kernel schedules and clocks together."""


class Recurrence(ApiModel):
    """The job is submitted again and again, and which batch size reaches the target at the least cost is learned over its runs (Zeus)."""

    batch_sizes: list[int] = Field(..., max_length=64, min_length=1)
    """The global batch sizes to try. training.globalBatchSize, the one to start from, is one of them."""
    target_metric: str = Field(
        ...,
        max_length=128,
        pattern="^[A-Za-z][A-Za-z0-9_./-]* ?(>=|<=) ?-?[0-9]{1,12}(\\.[0-9]{1,12})?$",
    )
    """What a run trains to, such as `accuracy >= 0.75`. A run that exits with 0 has reached it, any other end has not."""
    energy_weight_permille: int = Field(default=500, ge=0, le=1000)
    """The weight of energy against time in the cost, in thousandths: 0 counts only time, 1000 only energy."""


class FailurePolicy(ApiModel):
    """What to do when the training fails."""

    max_restarts: int = Field(default=3, ge=0, le=1000)
    """How often the job is started again after a failure before it counts as failed. Resizes and moves do not count."""


class EnergyAwareJobSpec(ApiModel):
    """What the job needs, may spend and should optimise."""

    gpus: GpuRange
    """How many GPUs the job can use. The same minimum and maximum make a rigid job."""
    training: Training
    """What Flyball must know of the training to predict its time and energy at each size and clock."""
    template: dict[str, Any]
    """The PodTemplateSpec of the workers, one pod a node. Flyball adds the GPUs, the rendezvous environment and the node to the first container, and proves the template by a dry run; what the API server says is in the condition Admitted with the reason InvalidSpec. It cannot change while the job may be running."""
    objective: Literal["Time", "Energy", "Balanced"] = "Balanced"
    """What to optimise. Time: clocks rise as far as the cap allows. Energy: never above the energy-optimal clock of the job's size. Balanced: clocks rise only while a second saved costs no more joules than the cluster's going price."""
    energy: EnergyBudget | None = None
    """The energy that the job may spend over all its restarts."""
    deadline: AwareDatetime | None = None
    """When the job must be done (RFC 3339). The cheapest size and clock that meet it are taken; where none does, the condition DeadlineAtRisk names the nearest feasible time."""
    clocks: ClockBounds | None = None
    """Bounds on the SM clock. Missing bounds are the GPU's own."""
    power_limit: PowerLimitBound | None = None
    """The job's own bound on power limits. It can only lower what the caps allow."""
    elasticity: Elasticity = Field(default={}, validate_default=True)
    """How the job may be resized and moved."""
    profile_key: str | None = Field(
        default=None,
        max_length=63,
        min_length=1,
        pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    )
    """Jobs of one namespace with the same key share what was learned about their time and energy. Missing means the job's own name."""
    pipeline: Pipeline | None = None
    """The job's pipeline parallelism, for an energy schedule of each stage's computations."""
    recurrence: Recurrence | None = None
    """The job is submitted again and again, and which batch size reaches the target at the least cost is learned over its runs (Zeus)."""
    priority: int = Field(default=0, ge=-1000000, le=1000000)
    """Higher is placed first and paused last."""
    suspend: bool = False
    """Hold the job: its pods checkpoint and leave, and none are made until this is false again. While it is true the whole spec may be changed."""
    managed_by: str | None = Field(
        default=None,
        max_length=63,
        pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    )
    """The controller that runs this job. Missing or flyball.dev/operator means Flyball; with any other value Flyball leaves the job alone."""
    failure_policy: FailurePolicy = Field(default={}, validate_default=True)
    """What to do when the training fails."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=31622400)
    """Delete the job this many seconds after its end. Missing means never."""


class Condition(ApiModel):
    """One aspect of the job's state."""

    type: str = Field(
        ..., max_length=316, pattern="^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
    )
    """The name of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    observed_generation: int | None = Field(default=None, ge=0)
    """The metadata.generation that the condition was set for."""
    last_transition_time: AwareDatetime
    """When the condition's status changed last."""
    reason: str = Field(
        ...,
        max_length=1024,
        min_length=1,
        pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
    )
    """Why, in one word out of a closed list."""
    message: str = Field(..., max_length=32768)
    """Why, in a sentence."""


class NodeShare(ApiModel):
    """GPUs on one node."""

    name: str = Field(..., max_length=253)
    """The node's name."""
    gpus: int = Field(..., ge=1, le=64)
    """GPUs on that node."""


class Allocation(ApiModel):
    """What the planner wants the job to have."""

    epoch: int | None = Field(default=None, ge=0)
    """The leadership of the operator that decided this."""
    incarnation: int | None = Field(default=None, ge=0)
    """Counts the job's starts; it is part of the name of the batch Job that runs it. 0 means that it has not started."""
    gpus: int = Field(..., ge=0, le=65536)
    """GPUs over all nodes. 0 means that the job waits or is paused."""
    nodes: list[NodeShare] = Field(default=[], max_length=8192, validate_default=True)
    """The nodes, and how many GPUs of each."""
    clock_megahertz: int | None = Field(default=None, ge=0, le=10000)
    """The SM clock, in megahertz."""
    power_limit_watts: int | None = Field(default=None, ge=0, le=10000)
    """The power limit of each GPU, in watts."""


class Progress(ApiModel):
    """How far the job is."""

    iterations: int | None = Field(default=None, ge=0)
    """Iterations done over all incarnations."""
    iterations_per_kilosecond: int | None = Field(default=None, ge=0)
    """Iterations in 1000 seconds at the present size and clock."""
    attained_gpu_seconds: int | None = Field(default=None, ge=0)
    """The service that the job has had, GPUs times seconds over all incarnations."""
    estimated: bool | None = None
    """True where the numbers come from the model, because the job reports nothing."""
    last_report_time: AwareDatetime | None = None
    """When the job reported last."""
    estimated_completion_time: AwareDatetime | None = None
    """When the job will end at the present size and clock."""


class IncarnationEnergy(ApiModel):
    """The energy of one incarnation on one node."""

    key: str = Field(..., max_length=300)
    """The incarnation and the node, as <incarnation>/<node>."""
    millijoules: int = Field(..., ge=0)
    """The highest energy reported for it, in millijoules."""


class EnergyUse(ApiModel):
    """What the job's GPUs have used, and will use."""

    consumed_kilojoules: int | None = Field(default=None, ge=0)
    """Used so far over all incarnations, in kilojoules."""
    projected_kilojoules: int | None = Field(default=None, ge=0)
    """Expected at the end, what is consumed included. Missing where the end is not known."""
    watts: int | None = Field(default=None, ge=0)
    """What the job's GPUs draw now, in watts."""
    settled_millijoules: int | None = Field(default=None, ge=0)
    """The exact books, closed part; energy of incarnations that are gone, in millijoules."""
    settled_incarnation: int | None = Field(default=None, ge=0)
    """The last incarnation of the closed part. What is reported of it, or of one before it, counts no more."""
    incarnations: list[IncarnationEnergy] = Field(
        default=[], max_length=16384, validate_default=True
    )
    """The exact books, open part; energy of incarnations that may still report."""


class FrontierPoint(ApiModel):
    """One choice of size and clock."""

    gpus: int = Field(..., ge=1, le=65536)
    """GPUs over all nodes."""
    clock_megahertz: int = Field(..., ge=1, le=10000)
    """The SM clock, in megahertz."""
    seconds: int = Field(..., ge=0)
    """Time to the end at this choice, in seconds."""
    kilojoules: int = Field(..., ge=0)
    """Energy to the end at this choice, in kilojoules."""


class Summary(ApiModel):
    """The numbers of this status as people read them, for kubectl's columns; programs read the numbers themselves."""

    clock: str | None = Field(default=None, max_length=32)
    """The average SM clock, such as 1200 MHz."""
    power: str | None = Field(default=None, max_length=32)
    """What the GPUs draw, such as 2.1 kW."""
    progress: str | None = Field(default=None, max_length=32)
    """The share of the iterations done, such as 34%; with a leading ~ where it is estimated."""
    energy: str | None = Field(default=None, max_length=32)
    """Energy used so far, such as 812 MJ."""
    budget: str | None = Field(default=None, max_length=32)
    """The share of the energy budget used so far, such as 90%."""
    eta: str | None = Field(default=None, max_length=32)
    """Time to the end, such as 3h20m."""


class EnergyAwareJobStatus(ApiModel):
    """What Flyball has decided and seen. Written by the operator only."""

    observed_generation: int | None = Field(default=None, ge=0)
    """The metadata.generation that this status speaks of."""
    conditions: list[Condition] = Field(
        default=[], max_length=16, validate_default=True
    )
    """Admitted, Placed, PodsReady, Resizing, PowerLimitsEnforced, BudgetHealthy, DeadlineAtRisk, Succeeded and Failed, each with a reason out of a closed list (docs/api.md)."""
    allocation: Allocation | None = None
    """What the planner wants the job to have."""
    applied: Allocation | None = None
    """What the job has, as the pods and the node agents report it."""
    progress: Progress | None = None
    """How far the job is."""
    energy: EnergyUse | None = None
    """What the job's GPUs have used, and will use."""
    frontier: list[FrontierPoint] = Field(
        default=[], max_length=32, validate_default=True
    )
    """What time costs for the rest of the job. Sizes and clocks, none of which is beaten in both time and energy."""
    explanation: str | None = Field(default=None, max_length=1024)
    """Why the job has this allocation, in one sentence."""
    state: str | None = Field(default=None, max_length=64)
    """The condition that matters most now, in one word, for people to read; programs read the conditions."""
    summary: Summary | None = None
    """The numbers of this status as people read them, for kubectl's columns; programs read the numbers themselves."""
    restarts: int | None = Field(default=None, ge=0)
    """Restarts after failures, which count against failurePolicy.maxRestarts."""
    last_failed_incarnation: int | None = Field(default=None, ge=0)
    """The last incarnation whose failure is counted in restarts."""
    start_time: AwareDatetime | None = None
    """When the job's pods were first all running."""
    last_resize_time: AwareDatetime | None = None
    """When the job was last started at another size or place."""
    completion_time: AwareDatetime | None = None
    """When the job succeeded or failed."""


class EnergyAwareJob(ApiModel):
    """EnergyAwareJob is a training job that says what it can use (GPUs), what it may spend (joules) and when it must be done. Flyball chooses its GPU count, nodes, clocks and power limits within the cluster's power caps, and resizes and moves it through its own checkpoints."""

    api_version: Literal["flyball.dev/v1alpha1"] = "flyball.dev/v1alpha1"
    """The version of this object's schema, flyball.dev/v1alpha1."""
    kind: Literal["EnergyAwareJob"] = "EnergyAwareJob"
    """The kind of this object, EnergyAwareJob."""
    metadata: ObjectMeta
    spec: EnergyAwareJobSpec
    """What the job needs, may spend and should optimise."""
    status: EnergyAwareJobStatus = Field(default={}, validate_default=True)
    """What Flyball has decided and seen. Written by the operator only."""


class EnergyProfileSpec(ApiModel):
    """What the profile is about."""

    profile_key: str = Field(
        ..., max_length=63, min_length=1, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
    )
    """The profileKey of the jobs that share this profile; a job without one has its own name for key."""
    gpu_model: str = Field(..., max_length=128, min_length=1)
    """The GPU's product name, such as NVIDIA A100-SXM4-40GB."""


class FittedParameter(ApiModel):
    """One fitted parameter."""

    name: str = Field(
        ..., max_length=63, min_length=1, pattern="^[A-Za-z][A-Za-z0-9_]*$"
    )
    """The parameter's name in the model."""
    value: str = Field(
        ...,
        max_length=32,
        pattern="^-?[0-9]{1,20}(\\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?$",
    )
    """Its value, a decimal string in SI units."""
    standard_error: str | None = Field(
        default=None,
        max_length=32,
        pattern="^[0-9]{1,20}(\\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?$",
    )
    """Its standard error, a decimal string; missing where the data does not tell."""


class Fit(ApiModel):
    """How good the fit is."""

    time: AwareDatetime | None = None
    """When the parameters were fitted."""
    observations: int | None = Field(default=None, ge=0)
    """How many reports are behind the observations."""
    time_error_permille: int | None = Field(default=None, ge=0)
    """The mean error of predicted iteration times, in thousandths."""
    energy_error_permille: int | None = Field(default=None, ge=0)
    """The mean error of predicted iteration energies, in thousandths."""


class ObservationSummary(ApiModel):
    """What was measured at one size, local batch size and clock."""

    gpus: int = Field(..., ge=1, le=65536)
    """GPUs over all nodes."""
    nodes: int = Field(..., ge=1, le=8192)
    """Nodes."""
    local_batch_size: int = Field(..., ge=1)
    """Samples of one iteration on one GPU."""
    clock_megahertz: int = Field(..., ge=1, le=10000)
    """The average SM clock, in megahertz."""
    samples: int = Field(..., ge=1)
    """How many windows were averaged."""
    microseconds_per_iteration: int = Field(..., ge=1)
    """The mean time of one iteration, in microseconds."""
    microseconds_deviation: int | None = Field(default=None, ge=0)
    """The standard deviation of that time between windows, in microseconds."""
    millijoules_per_iteration: int | None = Field(default=None, ge=0)
    """The mean energy of one iteration over all GPUs, in millijoules."""
    millijoules_deviation: int | None = Field(default=None, ge=0)
    """The standard deviation of that energy between windows, in millijoules."""
    last_time: AwareDatetime | None = None
    """When the last window ended."""


class BatchSizeBelief(ApiModel):
    """What is believed of one batch size."""

    batch_size: int = Field(..., ge=1, le=2147483647)
    """The global batch size in samples."""
    pruned: bool = False
    """True when it missed the target, and is not tried again."""
    runs: int | None = Field(default=None, ge=0)
    """Runs with it that have ended."""
    costs: list[str] = Field(default=[], max_length=64)
    """The costs of its last runs, oldest first; the window that the belief rests on."""
    mean: str | None = Field(
        default=None,
        max_length=32,
        pattern="^-?[0-9]{1,20}(\\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?$",
    )
    """The believed mean cost in joules, a decimal string."""
    variance: str | None = Field(
        default=None,
        max_length=32,
        pattern="^-?[0-9]{1,20}(\\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?$",
    )
    """The variance of that belief in joules squared, a decimal string."""


class BatchSizeSearch(ApiModel):
    """The search for the batch size of a recurring job (Zeus), so that the next run goes on where this one ended."""

    stage: Literal["Pruning", "ThompsonSampling"] | None = None
    """Pruning: each batch size is tried, and those that miss the target are dropped. ThompsonSampling: the next is drawn from what is believed of each."""
    round: int | None = Field(default=None, ge=0)
    """How often the batch sizes have been gone through in the pruning stage."""
    runs: int | None = Field(default=None, ge=0)
    """Runs that have ended."""
    seed: int | None = Field(default=None, ge=0)
    """The seed of the draws, so that they can be repeated."""
    least_cost: str | None = Field(
        default=None,
        max_length=32,
        pattern="^-?[0-9]{1,20}(\\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?$",
    )
    """The least cost of a run that reached the target, in joules, a decimal string."""
    batch_sizes: list[BatchSizeBelief] = Field(
        default=[], max_length=64, validate_default=True
    )
    """What is believed of each batch size."""


class EnergyProfileStatus(ApiModel):
    """What was learned. Real numbers are decimal strings such as "0.0125" or "1.5e-07"."""

    conditions: list[Condition] = Field(
        default=[], max_length=16, validate_default=True
    )
    """Fitted, with a reason out of a closed list (docs/api.md)."""
    parameterisation: Literal["Physical", "Paper"] | None = None
    """Which energy model the parameters belong to. Physical: voltage rises above the knee clock. Paper: linear below the knee and cubic above."""
    parameters: list[FittedParameter] = Field(
        default=[], max_length=64, validate_default=True
    )
    """The fitted parameters of the time and energy model."""
    fit: Fit | None = None
    """How good the fit is."""
    observations: list[ObservationSummary] = Field(
        default=[], max_length=512, validate_default=True
    )
    """Summaries of what was measured, one for each size, local batch size and clock."""
    batch_size_search: BatchSizeSearch | None = None
    """The search for the batch size of a recurring job (Zeus), so that the next run goes on where this one ended."""


class EnergyProfile(ApiModel):
    """EnergyProfile is what was learned about the time and energy of one kind of job on one GPU model. It is small, written by the operator, and safe to delete; what it held is then learned again."""

    api_version: Literal["flyball.dev/v1alpha1"] = "flyball.dev/v1alpha1"
    """The version of this object's schema, flyball.dev/v1alpha1."""
    kind: Literal["EnergyProfile"] = "EnergyProfile"
    """The kind of this object, EnergyProfile."""
    metadata: ObjectMeta
    spec: EnergyProfileSpec
    """What the profile is about."""
    status: EnergyProfileStatus = Field(default={}, validate_default=True)
    """What was learned. Real numbers are decimal strings such as "0.0125" or "1.5e-07"."""


class DeviceSettings(ApiModel):
    """Settings of the GPUs that no job of this spec holds, and of all when the lease has ended."""

    idle_power_limit_milliwatts: int = Field(default=0, ge=0, le=10000000)
    """The power limit of each GPU that no pod holds. 0 means the GPU's smallest."""
    foreign_power_limit_milliwatts: int = Field(default=0, ge=0, le=10000000)
    """The power limit of each reserved GPU that a pod outside Flyball holds. 0 means the GPU's default."""
    foreign_gpus: int = Field(default=0, ge=0, le=64)
    """How many GPUs of pods outside Flyball the grant has room for. While 0, their limits are not touched."""
    failsafe_power_limit_milliwatts: int = Field(default=0, ge=0, le=10000000)
    """The power limit of each GPU when the lease has ended. 0 means the GPU's smallest."""


class LockedClocks(ApiModel):
    """The range that the SM clock of the pod's GPUs is locked to."""

    min: int = Field(..., ge=0, le=10000)
    """The lowest clock, in megahertz. 0 means the GPU's lowest."""
    max: int = Field(..., ge=1, le=10000)
    """The highest clock, in megahertz."""


class JobGrant(ApiModel):
    """One job's part of this node."""

    namespace: str = Field(..., max_length=63, min_length=1)
    """The job's namespace."""
    name: str = Field(..., max_length=63, min_length=1)
    """The EnergyAwareJob's name."""
    uid: str = Field(..., max_length=64, min_length=1, pattern="^[0-9A-Za-z-]+$")
    """The EnergyAwareJob's UID."""
    incarnation: int = Field(..., ge=0)
    """The incarnation that may use the grant."""
    pod_name: str = Field(..., max_length=253, min_length=1)
    """The name of the job's pod on this node, which tells its GPUs."""
    gpus: int = Field(..., ge=1, le=64)
    """How many GPUs the pod holds."""
    power_limit_milliwatts: int = Field(..., ge=1, le=10000000)
    """The power limit of each of the pod's GPUs."""
    clock_megahertz: LockedClocks
    """The range that the SM clock of the pod's GPUs is locked to."""


class GPUNodeSpec(ApiModel):
    """The grant. Written by the operator only; (epoch, generation) rises with every change."""

    epoch: int = Field(..., ge=0, le=1000000000000000)
    """The leadership of the operator that wrote this (transitions of its Lease). It never goes down."""
    generation: int = Field(..., ge=0, le=1000000000000000)
    """Rises with every change of spec; within an epoch it never goes down."""
    lease_seconds: int = Field(..., ge=1, le=86400)
    """How long the grant above the floor holds after the agent received it or saw the operator's Lease renewed, in seconds of CLOCK_BOOTTIME. Then the agent goes to the failsafe limits by itself."""
    grant_milliwatts: int = Field(..., ge=0, le=1000000000)
    """The most that the power limits of all GPUs of the node may add up to under this spec."""
    expected_milliwatts: int = Field(..., ge=0, le=1000000000)
    """The predicted draw of all GPUs of the node under this spec, for caps with enforcement Expected."""
    worst_hold_milliwatts: int = Field(..., ge=0, le=1000000000)
    """The largest grantMilliwatts, or limits read back, of this spec and of every earlier one that was not acknowledged when this was written. It is the operator's memory of what may still be in force."""
    worst_expected_milliwatts: int = Field(..., ge=0, le=1000000000)
    """The same bound over expectedMilliwatts."""
    devices: DeviceSettings = Field(default={}, validate_default=True)
    """Settings of the GPUs that no job of this spec holds, and of all when the lease has ended."""
    jobs: list[JobGrant] = Field(default=[], max_length=64, validate_default=True)
    """The jobs that run on this node, with the limits and clocks of their GPUs."""


class DeviceLimits(ApiModel):
    """Power limits as the driver tells them."""

    min_milliwatts: int | None = Field(default=None, ge=0, le=10000000)
    """The smallest limit that can be set."""
    max_milliwatts: int | None = Field(default=None, ge=0, le=10000000)
    """The largest limit that can be set."""
    default_milliwatts: int | None = Field(default=None, ge=0, le=10000000)
    """The limit that a reboot or a driver reload puts."""
    requested_milliwatts: int | None = Field(default=None, ge=0, le=10000000)
    """The limit that is set, as read back."""
    enforced_milliwatts: int | None = Field(default=None, ge=0, le=10000000)
    """The limit in force, the least of all limiters."""


class SupportedClocks(ApiModel):
    """The SM clocks that the GPU supports."""

    min: int | None = Field(default=None, ge=0, le=10000)
    """The lowest, in megahertz."""
    max: int | None = Field(default=None, ge=0, le=10000)
    """The highest, in megahertz."""
    step: int | None = Field(default=None, ge=0, le=10000)
    """The distance between neighbours, in megahertz."""


class PodReference(ApiModel):
    """The pod that holds the GPU; missing where none does."""

    namespace: str = Field(..., max_length=63)
    """The pod's namespace."""
    name: str = Field(..., max_length=253)
    """The pod's name."""


class Device(ApiModel):
    """One GPU."""

    uuid: str = Field(
        ...,
        max_length=64,
        pattern="^(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    )
    """The GPU's UUID, the same over reboots and renumbering."""
    index: int | None = Field(default=None, ge=0, le=1023)
    """The GPU's number in this boot."""
    model: str | None = Field(default=None, max_length=128)
    """The GPU's product name, such as NVIDIA A100-SXM4-40GB."""
    limits: DeviceLimits | None = None
    """Power limits as the driver tells them."""
    clocks_megahertz: SupportedClocks | None = None
    """The SM clocks that the GPU supports."""
    pod: PodReference | None = None
    """The pod that holds the GPU; missing where none does."""
    energy_millijoules: int | None = Field(default=None, ge=0)
    """The GPU's energy counter, in millijoules since the driver was loaded."""
    power_milliwatts: int | None = Field(default=None, ge=0, le=10000000)
    """The average draw over the last second."""
    conditions: list[Condition] = Field(default=[], max_length=8, validate_default=True)
    """Healthy, whether the GPU can be read and set."""


class Acknowledged(ApiModel):
    """The last spec that the agent has applied and read back."""

    epoch: int = Field(..., ge=0)
    """Its epoch."""
    generation: int = Field(..., ge=0)
    """Its generation."""
    time: AwareDatetime
    """When it was read back, by the node's clock; for people only."""
    limits_milliwatts: int = Field(..., ge=0, le=1000000000)
    """What the limits of all GPUs of the node added up to when read back after applying it."""
    boot_id: str = Field(..., max_length=64)
    """The boot that it was applied in."""
    driver_incarnation: str = Field(..., max_length=128)
    """The driver incarnation that it was applied in."""


class JobObservation(ApiModel):
    """One job's pod on this node."""

    namespace: str = Field(..., max_length=63, min_length=1)
    """The job's namespace."""
    name: str = Field(..., max_length=63, min_length=1)
    """The EnergyAwareJob's name."""
    uid: str = Field(..., max_length=64, min_length=1, pattern="^[0-9A-Za-z-]+$")
    """The EnergyAwareJob's UID."""
    incarnation: int = Field(..., ge=0)
    """The pod's incarnation of the job."""
    pod_name: str = Field(..., max_length=253, min_length=1)
    """The pod's name."""
    gpus: int | None = Field(default=None, ge=0, le=64)
    """How many GPUs the pod holds."""
    iterations: int | None = Field(default=None, ge=0)
    """Iterations of the job so far over all incarnations, as the training process reports them."""
    microseconds_per_iteration: int | None = Field(default=None, ge=0)
    """The time of one iteration in the last window, in microseconds."""
    millijoules_per_iteration: int | None = Field(default=None, ge=0)
    """The energy of one iteration on this node's GPUs in the last window, in millijoules."""
    clock_megahertz: int | None = Field(default=None, ge=0, le=10000)
    """The average SM clock in the last window, in megahertz."""
    local_batch_size: int | None = Field(default=None, ge=0)
    """Samples of one iteration on one GPU."""
    energy_millijoules: int | None = Field(default=None, ge=0)
    """The energy attributed to this pod since its start, in millijoules. It never goes down."""
    last_report_time: AwareDatetime | None = None
    """When the training process reported last."""
    ended: bool | None = None
    """True when the pod holds no GPU any more, so that its energy is final."""


class GPUNodeStatus(ApiModel):
    """What the node's GPUs are and do. Written by the node's agent only."""

    boot_id: str | None = Field(default=None, max_length=64)
    """The kernel's boot id; a new one means that the node has rebooted."""
    driver_incarnation: str | None = Field(default=None, max_length=128)
    """Changes whenever the GPU driver is loaded anew, which puts limits back to their defaults."""
    agent_version: str | None = Field(default=None, max_length=64)
    """The version of the agent."""
    mode: Literal["Granted", "Floor", "Failsafe", "Adopting"] | None = None
    """What the agent is doing. Granted: it holds the limits of an accepted spec. Floor: it has no grant and holds the smallest limits. Failsafe: the lease has ended. Adopting: it has started, and keeps what it finds until it knows more."""
    devices: list[Device] = Field(default=[], max_length=64, validate_default=True)
    """The node's GPUs."""
    acknowledged: Acknowledged | None = None
    """The last spec that the agent has applied and read back."""
    jobs: list[JobObservation] = Field(default=[], max_length=64, validate_default=True)
    """What was seen of the jobs on this node."""
    conditions: list[Condition] = Field(
        default=[], max_length=16, validate_default=True
    )
    """Ready, Drifted and Degraded, each with a reason out of a closed list (docs/api.md)."""


class GPUNode(ApiModel):
    """GPUNode is the contract between the operator and the agent of the node of the same name. The operator grants power in spec; the agent applies it, reads it back and acknowledges it in status."""

    api_version: Literal["flyball.dev/v1alpha1"] = "flyball.dev/v1alpha1"
    """The version of this object's schema, flyball.dev/v1alpha1."""
    kind: Literal["GPUNode"] = "GPUNode"
    """The kind of this object, GPUNode."""
    metadata: ObjectMeta
    spec: GPUNodeSpec
    """The grant. Written by the operator only; (epoch, generation) rises with every change."""
    status: GPUNodeStatus = Field(default={}, validate_default=True)
    """What the node's GPUs are and do. Written by the node's agent only."""


class LabelSelectorRequirement(ApiModel):
    """One requirement on a node's labels."""

    key: str = Field(..., max_length=317)
    """The label's key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label and the values relate."""
    values: list[str] = Field(default=[], max_length=256)
    """The values for In and NotIn; none for Exists and DoesNotExist."""


class LabelSelector(ApiModel):
    """The nodes under this cap, by their labels. Missing or empty means every GPU node."""

    match_labels: dict[str, str] | None = Field(default=None, max_length=64)
    """Labels that a node must have."""
    match_expressions: list[LabelSelectorRequirement] = Field(
        default=[], max_length=64, validate_default=True
    )
    """Requirements on a node's labels, all of which must hold."""


class ScheduleEntry(ApiModel):
    """One recurring time with a lower cap."""

    name: str = Field(
        ..., max_length=63, min_length=1, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
    )
    """The name of this entry, unique in the schedule."""
    cron: str = Field(
        ..., max_length=128, pattern="^[0-9A-Za-z*/,#-]+( [0-9A-Za-z*/,#-]+){4}$"
    )
    """When it begins, in UTC, as a cron expression of five fields (minute, hour, day of month, month, day of week)."""
    duration_seconds: int = Field(..., ge=1, le=2678400)
    """How long it lasts, in seconds."""
    watts: int = Field(..., ge=1, le=1000000000000)
    """The cap while it lasts in watts, static overhead included."""


class PeriodicEnergyBudget(ApiModel):
    """The energy that the nodes' GPUs may use in each period. Flyball spreads it over the period."""

    kilojoules: int = Field(..., ge=1, le=1000000000000000)
    """Energy for one period, in kilojoules (3600 kJ are 1 kWh)."""
    period_seconds: int = Field(..., ge=60, le=31622400)
    """The length of a period in seconds. Periods begin at multiples of it since 1970-01-01 UTC."""


class PowerCapSpec(ApiModel):
    """The cap, its nodes, and how it changes with time."""

    watts: int | None = Field(default=None, ge=1, le=1000000000000)
    """The cap in watts, static overhead included. Give this or permilleOfMax."""
    permille_of_max: int | None = Field(default=None, ge=1, le=1000)
    """The cap as thousandths of the most that the nodes' GPUs could draw at their largest limits, plus staticOverheadWatts. Give this or watts."""
    node_selector: LabelSelector | None = None
    """The nodes under this cap, by their labels. Missing or empty means every GPU node."""
    enforcement: Literal["Hard", "Expected"] = "Hard"
    """What is added up against the cap. Hard: the power limits of all GPUs, so that no load whatever can pass it. Expected: the predicted draw and a guard band, with the limits as a backstop; more work fits."""
    static_overhead_watts: int = Field(default=0, ge=0, le=1000000000000)
    """What the nodes draw outside their GPUs (hosts, fans, switches) over the whole cap, in watts."""
    schedule: list[ScheduleEntry] = Field(
        default=[], max_length=64, validate_default=True
    )
    """Times at which the cap is lower (time of day, demand response). Where several are in force, the lowest counts."""
    energy_budget: PeriodicEnergyBudget | None = None
    """The energy that the nodes' GPUs may use in each period. Flyball spreads it over the period."""
    ramp_watts_per_second: int | None = Field(default=None, ge=1, le=1000000000000)
    """How fast the committed power may rise, in watts a second. It never delays a cut. Missing means no bound."""
    failsafe_watts_per_gpu: int | None = Field(default=None, ge=1, le=10000)
    """The power limit of each GPU of a node that has lost contact, in watts. Missing means the GPU's smallest limit."""
    foreign_pods: Literal["Reserve", "Limit"] = "Reserve"
    """What to do about GPUs that pods outside Flyball hold. Reserve: leave them alone, and reserve their default limit. Limit: they count and are limited like any other GPU."""


class Breach(ApiModel):
    """The time that more was measured than the cap allows, now or the last time."""

    since: AwareDatetime
    """When it began."""
    until: AwareDatetime | None = None
    """When it ended; missing while it goes on."""
    watts: int | None = Field(default=None, ge=0)
    """How far the measured watts were above the cap at the worst moment."""
    joules: int | None = Field(default=None, ge=0)
    """The energy above the cap since it began."""


class EnergyPeriod(ApiModel):
    """The present period of the energy budget."""

    start: AwareDatetime
    """When the period began."""
    consumed_kilojoules: int | None = Field(default=None, ge=0)
    """Energy used in it so far, in kilojoules."""


class PowerCapStatus(ApiModel):
    """What the cap comes to and how it is held. Written by the operator only."""

    observed_generation: int | None = Field(default=None, ge=0)
    """The metadata.generation that this status speaks of."""
    conditions: list[Condition] = Field(
        default=[], max_length=16, validate_default=True
    )
    """Feasible, Enforced and Breached, each with a reason out of a closed list (docs/api.md)."""
    effective_watts: int | None = Field(default=None, ge=0)
    """The cap in force now in watts, after schedule and energy budget."""
    active_schedule: str | None = Field(default=None, max_length=63)
    """The name of the schedule entry in force; missing where none is."""
    committed_watts: int | None = Field(default=None, ge=0)
    """The most that the nodes may draw now in watts, the sum of their worst holds and the static overhead (with enforcement Expected, of their worst expected draw)."""
    measured_watts: int | None = Field(default=None, ge=0)
    """What the nodes' GPUs draw now plus the static overhead, in watts."""
    headroom_watts: int | None = None
    """The effective cap less the committed watts; 0 or less while a cut is on its way."""
    nodes: int | None = Field(default=None, ge=0)
    """How many nodes are under this cap."""
    breach: Breach | None = None
    """The time that more was measured than the cap allows, now or the last time."""
    energy_period: EnergyPeriod | None = None
    """The present period of the energy budget."""


class PowerCap(ApiModel):
    """PowerCap is the power that a set of GPU nodes may draw. The sum of what its nodes may draw by their limits never exceeds it, whatever crashes. A node obeys every cap whose selector takes it (rack, row, cluster)."""

    api_version: Literal["flyball.dev/v1alpha1"] = "flyball.dev/v1alpha1"
    """The version of this object's schema, flyball.dev/v1alpha1."""
    kind: Literal["PowerCap"] = "PowerCap"
    """The kind of this object, PowerCap."""
    metadata: ObjectMeta
    spec: PowerCapSpec
    """The cap, its nodes, and how it changes with time."""
    status: PowerCapStatus = Field(default={}, validate_default=True)
    """What the cap comes to and how it is held. Written by the operator only."""
