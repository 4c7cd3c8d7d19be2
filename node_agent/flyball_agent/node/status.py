"""GPUNode.status from what an agent knows, and which part of it is worth a write at once: all but the measurements."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from flyball_api.gpu_node import (
    Acknowledgement,
    GpuClocks,
    GpuNodeStatus,
    GpuNodeSummary,
    GpuReport,
    PodReference,
    PodReport,
    PowerLimits,
    RoundTime,
    StageReport,
)
from flyball_api.reading import JsonObject
from flyball_api.values.conditions import Condition, StoredCondition, merge_conditions
from flyball_api.values.times import whole_second
from flyball_api.values.units import MILLIWATTS_PER_WATT
from flyball_api.writing import to_patch
from msgspec.structs import replace

from flyball_agent.energy.record import JobObservation
from flyball_agent.energy.stage_profiles import StageProfile, StageProfiles
from flyball_agent.enforce.adoption import LARGEST_LIMIT_MILLIWATTS, MAX_REPORTED, UNKNOWN_MIN_MILLIWATTS
from flyball_agent.enforce.decisions import REFUSALS_IN_EACH_ROUND, Mode
from flyball_agent.enforce.gpu_state import GpuState, PodName
from flyball_agent.enforce.records import FoundGpu
from flyball_agent.gpu.gpu import XID_MEANINGS
from flyball_agent.state import AgentState

# A drift is put back in the round that finds it; people should see it for longer than that.
DRIFT_SHOWN_NS = 60 * 1_000_000_000


_NOT_PERSISTENT = (
    "persistence mode is off: the driver forgets the limit once nothing has the GPU open, so that a limit may not "
    "outlive the agent (nvidia-smi -pm 1, or nvidia-persistenced)"
)
# Those of a node with which all is well, as they are asked for in every round.
_GOVERNED = Condition("Healthy", True, "Governed")
_SERVING = Condition("Ready", True, "Serving")
_AS_SET = Condition("Drifted", False, "AsSet")


def significant_fields(state: AgentState, stages: StageProfiles, now_ns: int) -> tuple[object, ...]:
    """Everything of the status that is published at once when it changes: all but measurements and times."""
    enforced = state.enforced
    return (
        enforced.session,
        enforced.mode,
        enforced.knows_reported,
        enforced.acknowledged,
        tuple((gpu.uuid, gpu.index, gpu.limit, gpu.pods[:1], _gpu_conditions(gpu)) for gpu in enforced.gpus.values()),
        # Not what was measured of them: a process may change that in every second.
        tuple(
            (job.pod_name, job.uid, job.gpus, job.ended, [each.stage for each in _stages_of(job, stages)])
            for job in state.jobs
        ),
        _conditions(state, now_ns),
    )


def acknowledgement(state: AgentState) -> Acknowledgement | None:
    """The last acknowledgement, with the version of the agent that stands by it."""
    last = state.enforced.acknowledged
    return None if last is None else replace(last, bound_by=state.version)


def node_status(
    state: AgentState, stages: StageProfiles, previous: GpuNodeStatus, now_ns: int, now: datetime
) -> GpuNodeStatus:
    """The whole status. From the `previous` one it has the times of conditions that are still as they were."""
    enforced = state.enforced
    conditions_of = {gpu.uuid: gpu.conditions for gpu in previous.devices}
    devices = tuple(_gpu_report(gpu, conditions_of.get(gpu.uuid, ()), now) for gpu in enforced.gpus.values())
    return GpuNodeStatus(
        boot_id=enforced.session.boot_id,
        driver_load=enforced.session.driver_load,
        agent_version=state.version,
        last_round=(
            None
            if enforced.looked_ns is None
            else RoundTime(enforced.looked_ns, state.version, enforced.held_milliwatts)
        ),
        mode=str(enforced.mode),
        devices=devices,
        acknowledged=acknowledgement(state),
        jobs=tuple(
            _pod_report(job, state.accounts.pod_millijoules(job.energy_key), _stages_of(job, stages))
            for job in state.jobs
        ),
        summary=_summary(devices),
        conditions=merge_conditions(previous.conditions, _conditions(state, now_ns), None, now),
    )


def _summary(devices: Iterable[GpuReport]) -> GpuNodeSummary:
    """What the GPUs may draw and do, in watts; what nobody could read is left out."""

    def watts(milliwatts: list[int]) -> str:
        return f"{sum(milliwatts) / MILLIWATTS_PER_WATT:.0f} W" if milliwatts else ""

    return GpuNodeSummary(
        limits=watts([gpu.limits.enforced_milliwatts for gpu in devices if gpu.limits.enforced_milliwatts is not None]),
        power=watts([gpu.power_milliwatts for gpu in devices if gpu.power_milliwatts is not None]),
    )


def status_patch(status: GpuNodeStatus, resource_version: str) -> JsonObject:
    """The status as a merge patch of the GPUNode in this version. An acknowledgement of an earlier process stands until the
    next one; one that observes takes it away, for nobody puts back what another hand changes there any more.
    """
    stands = status.acknowledged is None and status.mode != Mode.OBSERVING
    patch = to_patch(status, unchanged=("acknowledged",) if stands else ())
    return {"metadata": {"resourceVersion": resource_version}, "status": patch}


def with_gpus_of_before(status: GpuNodeStatus, before: GpuNodeStatus) -> GpuNodeStatus:
    """The status of an agent whose governor has had no driver yet, or has yet to hear what was reported before it, with
    the GPUs that another one has reported and it does not know: nothing says that they are gone, and they may draw whatever
    they can be set to. What was read of them is past.
    """
    known = {gpu.uuid for gpu in status.devices}
    others = (
        replace(
            gpu,
            limits=replace(gpu.limits, requested_milliwatts=None, enforced_milliwatts=None),
            pod=None,
            energy_millijoules=None,
            power_milliwatts=None,
        )
        for gpu in before.devices
        if gpu.uuid not in known
    )
    return replace(status, devices=(*status.devices, *others))


def reported_gpus(status: GpuNodeStatus) -> tuple[FoundGpu, ...]:
    """The GPUs of a status, as a journal would have them."""
    return tuple(_found(gpu) for gpu in status.devices[:MAX_REPORTED] if gpu.uuid)


def _found(gpu: GpuReport) -> FoundGpu:
    least, most, default = gpu.limits.min_milliwatts, gpu.limits.max_milliwatts, gpu.limits.default_milliwatts
    if not 0 < least <= default <= most:
        most = max(least, most, default) if most else LARGEST_LIMIT_MILLIWATTS
        least, default = UNKNOWN_MIN_MILLIWATTS, most
    return FoundGpu(gpu.uuid, gpu.model, least, most, default, gpu.limits.held_milliwatts)


def _gpu_report(gpu: GpuState, before: tuple[StoredCondition, ...], now: datetime) -> GpuReport:
    limits, clocks, reading = gpu.limits, gpu.limits.clocks_megahertz, gpu.reading
    return GpuReport(
        uuid=gpu.uuid,
        index=gpu.index if gpu.index >= 0 else None,
        model=gpu.model,
        limits=PowerLimits(
            min_milliwatts=limits.min_milliwatts,
            max_milliwatts=limits.max_milliwatts,
            default_milliwatts=limits.default_milliwatts,
            requested_milliwatts=None if gpu.limit is None else gpu.limit.requested_milliwatts,
            enforced_milliwatts=None if gpu.limit is None else gpu.limit.enforced_milliwatts,
        ),
        clocks_megahertz=GpuClocks(clocks[0], clocks[-1], limits.clock_step_megahertz) if clocks else GpuClocks(),
        pod=PodReference(gpu.pods[0].namespace, gpu.pods[0].name) if gpu.pods else None,
        energy_millijoules=None if reading is None else reading.energy_millijoules,
        power_milliwatts=None if reading is None else reading.average_power_milliwatts,
        conditions=merge_conditions(before, _gpu_conditions(gpu), None, now),
    )


def _stages_of(job: JobObservation, stages: StageProfiles) -> tuple[StageProfile, ...]:
    """What the processes of a job's pod have measured; nothing once it has ended."""
    return () if job.ended else stages.of(PodName(job.namespace, job.pod_name))


def _pod_report(job: JobObservation, energy_millijoules: int, stages: Iterable[StageProfile]) -> PodReport:
    last_report = whole_second(datetime.fromtimestamp(job.last_report, UTC)) if job.last_report else None
    return PodReport(
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        incarnation=job.incarnation,
        pod_name=job.pod_name,
        gpus=job.gpus,
        iterations=job.iterations,
        microseconds_per_iteration=job.microseconds_per_iteration,
        millijoules_per_iteration=job.millijoules_per_iteration,
        clock_megahertz=job.clock_megahertz,
        local_batch_size=job.local_batch_size,
        energy_millijoules=energy_millijoules,
        last_report_time=last_report,
        ended=job.ended,
        stages=tuple(StageReport(each.stage, each.waiting_milliwatts, each.rows) for each in stages),
    )


def _gpu_conditions(gpu: GpuState) -> tuple[Condition, ...]:
    """What is wrong with a GPU; of Xid errors the last one, as it would be written anew for each of a flood."""
    if gpu.last_xid is not None:
        meaning = XID_MEANINGS.get(gpu.last_xid, "see NVIDIA's list of Xid errors")
        message = f"{gpu.uuid}: the driver has reported Xid {gpu.last_xid}: {meaning}"
        return health(gpu), Condition("XidError", True, f"Xid{gpu.last_xid}", message)
    if gpu.xid_errors:
        return health(gpu), Condition("XidError", False, "DriverLoadedAnew")
    return (health(gpu),)


def health(gpu: GpuState) -> Condition:
    """A GPU's condition `Healthy`: whether it takes the limits and clocks that are set."""
    if gpu.failure is not None:
        return Condition("Healthy", False, gpu.failure.reason, gpu.failure.message)
    if gpu.set_error is not None:
        return Condition("Healthy", False, "LimitNotTaken", gpu.set_error)
    if gpu.stays_above:
        message = f"{gpu.uuid}: the enforced limit stays above the one that was set"
        return Condition("Healthy", False, "LimitNotTaken", message)
    if gpu.reading is not None and gpu.reading.persistence_mode is False:
        return Condition("Healthy", True, "NotPersistent", _NOT_PERSISTENT)
    if gpu.lock_drifts >= REFUSALS_IN_EACH_ROUND:
        message = f"{gpu.uuid}: the clock stays above the range that it is locked to"
        return Condition("Healthy", True, "ClockNotTaken", message)
    if gpu.lock_refused is not None:
        return Condition("Healthy", True, "ClockNotTaken", gpu.lock_refused)
    return _GOVERNED


def _conditions(state: AgentState, now_ns: int) -> tuple[Condition, ...]:
    return _ready(state), _drifted(state, now_ns), _degraded(state)


def _ready(state: AgentState) -> Condition:
    grant, acknowledged = state.enforced.grant, state.enforced.acknowledged
    if state.enforced.mode is Mode.OBSERVING:
        return Condition("Ready", False, "Observing", "the agent was told to set nothing; the GPUs stay as they are")
    if grant is None:
        return Condition("Ready", False, "NoSpec", "no spec has come yet; the GPUs stay as they are")
    if acknowledged is None or acknowledged.version != grant.version:
        return Condition("Ready", False, "NotAcknowledged", "the last spec is not in force on every GPU yet")
    return _SERVING


def _drifted(state: AgentState, now_ns: int) -> Condition:
    drift = state.enforced.last_drift
    if drift is not None and now_ns - drift.found_ns < DRIFT_SHOWN_NS:
        return Condition("Drifted", True, drift.reason, f"{drift.message}, and was put back")
    return _AS_SET


def _degraded(state: AgentState) -> Condition:
    reason, message = _trouble(state)
    return Condition("Degraded", reason != "AsExpected", reason, message)


def _trouble(state: AgentState) -> tuple[str, str]:
    """The gravest of what is wrong, as a condition's reason and message."""
    enforced = state.enforced
    if state.round_error is not None:
        return "RoundFailed", state.round_error
    if enforced.driver_error is not None:
        return enforced.driver_absent_reason, f"no GPU is governed: {enforced.driver_error}"
    if enforced.journal_error is not None:
        return "JournalUnwritable", f"no limit is raised: {enforced.journal_error}"
    if enforced.confirmed and not enforced.may_raise:
        return "BrakesUnknown", "no limit is raised: the PowerBrakes of the node's caps have not been read yet"
    if enforced.invalid_grant is not None:
        return "InvalidSpec", enforced.invalid_grant
    if enforced.stale_grant is not None:
        return "StaleSpec", enforced.stale_grant
    healths = {gpu.uuid: health(gpu) for gpu in enforced.gpus.values()}
    failed = [found for found in healths.values() if not found.status]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return "GpuFailed", f"{failed[0].reason}: {failed[0].message}{more}"
    loose = [uuid for uuid, found in healths.items() if found.reason == "NotPersistent"]
    if loose:
        more = f" (and {len(loose) - 1} more)" if len(loose) > 1 else ""
        return "NotPersistent", f"{loose[0]}{more}: {_NOT_PERSISTENT}"
    if state.pods_error is not None:
        return "PodsUnknown", state.pods_error
    if state.pods_unresolved is not None:
        return "PodsUnknown", state.pods_unresolved
    return "AsExpected", ""
