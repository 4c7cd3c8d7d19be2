"""What each GPU of a pod can be asked for, as its training is shown it: clocks, the grant, how soon a clock is set."""

from __future__ import annotations

from collections.abc import Mapping

from flyball_agent.enforce.gpu_state import GpuState, PodName
from flyball_agent.state import AgentState

# A pod has no more GPUs than a node, which has 16 at the most; of a list without end no trainer would take the answer.
MAX_GPUS = 64
MAX_REASON = 200


def pod_capabilities(state: AgentState, pod: PodName, now_ns: int) -> Mapping[str, object] | None:
    """What each of a pod's GPUs can do, by UUID; None where it holds none that a job of the grant governs."""
    enforced = state.enforced
    jobs = () if enforced.in_force is None else enforced.in_force.jobs
    job = next((job for job in jobs if (job.namespace, job.pod_name) == (pod.namespace, pod.name)), None)
    gpus = enforced.gpus_of(pod)
    if job is None or not gpus:
        return None
    return {"gpus": {gpu.uuid: _of(gpu, job.clock_max_megahertz, now_ns) for gpu in gpus[:MAX_GPUS]}}


def _of(gpu: GpuState, granted_megahertz: int, now_ns: int) -> Mapping[str, object]:
    clocks, latency = gpu.limits.clocks_megahertz, gpu.set_latency
    lockable, why_not = _lockable(gpu)
    highest = clocks[-1] if clocks else None
    return {
        "clocksLockable": lockable,
        "whyNot": why_not[:MAX_REASON],
        "lowestMegahertz": clocks[0] if clocks else None,
        "highestMegahertz": highest,
        "stepMegahertz": gpu.limits.clock_step_megahertz if clocks else None,
        "grantedMegahertz": gpu.limits.clock_at_most(granted_megahertz) if clocks and granted_megahertz else highest,
        "powerLimitMilliwatts": gpu.requested_milliwatts,
        "setLatency": None
        if latency is None
        else {
            "medianMicroseconds": latency.median_microseconds,
            "p99Microseconds": latency.p99_microseconds,
            "sets": latency.sets,
            "ageMilliseconds": max(0, now_ns - latency.last_ns) // 1_000_000,
        },
    }


def _lockable(gpu: GpuState) -> tuple[bool | None, str]:
    """Whether the pod may have the GPU's clock set, and why not; None where none has been set in this driver session."""
    if not gpu.limits.clocks_megahertz:
        return False, "the driver names no clocks that this GPU could be locked to"
    if len(gpu.pods) > 1:
        return False, "another pod holds this GPU, too"
    if gpu.lock_refused is not None:
        return False, gpu.lock_refused
    # To have taken a lock away, as from any GPU at first, says nothing.
    set_before = gpu.set_latency is not None or (gpu.lock is not None and gpu.lock.is_range)
    return (True if set_before else None), ""
