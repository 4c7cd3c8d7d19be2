"""What was seen of the jobs on this node: progress as training processes report it, energy and clocks as GPUs measure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from flyball_api.grant import Grant, JobGrant
from msgspec import Meta

from flyball_agent.energy.pods import PodOnGpus
from flyball_agent.energy.record import JobObservation
from flyball_agent.enforce.gpu_state import PodName

MAX_OBSERVATIONS = 64  # as many as GPUNode.status.jobs takes
ENDED_KEPT_NS = 900 * 1_000_000_000
MAX_COUNT = 2**53
MAX_WINDOW_SECONDS = 3600.0
# A clock that was asked for ends by itself this soon, so that nothing is left of a trainer that died.
MAX_ASKED_SECONDS = 30.0
# One that a computation asked for: as long as one may take whose process does not ask again.
COMPUTATION_SECONDS = 10.0
MAX_GPU_NAME = 64
MAX_MEGAHERTZ = 100_000
MAX_BATCH_SIZE = 2**31 - 1
_CLOCK_DATAGRAM = re.compile(rb"\s*([!-~]{1,%d}) (\d{1,6})\s*" % MAX_GPU_NAME)

# What the types say is held, too, where one process tells another what it was told.
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
WindowSeconds = Annotated[float, Meta(ge=0, le=MAX_WINDOW_SECONDS)]
BatchSize = Annotated[int, Meta(ge=0, le=MAX_BATCH_SIZE)]
Megahertz = Annotated[int, Meta(ge=1, le=MAX_MEGAHERTZ)]
AskedSeconds = Annotated[float, Meta(gt=0, le=MAX_ASKED_SECONDS)]
GpuName = Annotated[str, Meta(max_length=MAX_GPU_NAME)]


class InvalidReport(ValueError):
    """A report that cannot be taken; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a training process reports: iterations of the job so far, and how many took how long since its last report."""

    iterations: Count
    window_iterations: Count
    window_seconds: WindowSeconds
    local_batch_size: BatchSize = 0


@dataclass(frozen=True, slots=True)
class ClockAsked:
    """What a training process wants of its pod's GPUs: no clock above this, for so long; None takes it back.

    `gpu` is the UUID of the one that it wants it of; empty: of all of them.
    """

    max_megahertz: Megahertz | None
    seconds: AskedSeconds
    gpu: GpuName = ""


def parse_clock(raw: object) -> ClockAsked:
    """Read the body of `PUT /v1/clocks`. Raises InvalidReport."""
    if not isinstance(raw, Mapping):
        raise InvalidReport("the body is not a JSON object")
    megahertz, seconds, gpu = raw.get("maxMegahertz"), raw.get("seconds", MAX_ASKED_SECONDS), raw.get("gpu", "")
    if "maxMegahertz" not in raw or isinstance(megahertz, bool):
        raise InvalidReport("maxMegahertz: an integer within 1..100000, or null")
    if megahertz is not None and not (isinstance(megahertz, int) and 1 <= megahertz <= MAX_MEGAHERTZ):
        raise InvalidReport(f"maxMegahertz: {megahertz!r:.40} is not an integer within 1..100000, or null")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= MAX_ASKED_SECONDS:
        raise InvalidReport(f"seconds: {seconds!r:.40} is not within 0..{MAX_ASKED_SECONDS:g}")
    if not isinstance(gpu, str) or len(gpu) > MAX_GPU_NAME:
        raise InvalidReport(f"gpu: {gpu!r:.40} is no GPU's UUID")
    return ClockAsked(megahertz, float(seconds), gpu)


def parse_clock_datagram(datagram: bytes) -> ClockAsked:
    """Read `<UUID of a GPU, or *> <megahertz>`: what a computation that begins sends. Raises InvalidReport."""
    words = _CLOCK_DATAGRAM.fullmatch(datagram)
    megahertz = 0 if words is None else int(words[2])
    if words is None or not 1 <= megahertz <= MAX_MEGAHERTZ:
        raise InvalidReport(f"{datagram[:40]!r}: wanted a GPU's UUID or *, and megahertz within 1..{MAX_MEGAHERTZ}")
    return ClockAsked(megahertz, COMPUTATION_SECONDS, "" if words[1] == b"*" else words[1].decode("ascii"))


def parse_steps(raw: object) -> StepReport:
    """Read the body of `POST /v1/steps`. Raises InvalidReport."""
    if not isinstance(raw, Mapping):
        raise InvalidReport("the body is not a JSON object")

    def count(field_name: str, default: int | None = None) -> int:
        value = raw.get(field_name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
            raise InvalidReport(f"{field_name}: {value!r:.40} is not an integer within 0..2^53")
        return value

    seconds = raw.get("windowSeconds")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not math.isfinite(seconds):
        raise InvalidReport(f"windowSeconds: {seconds!r:.40} is not a number")
    if not 0 <= seconds <= MAX_WINDOW_SECONDS:
        raise InvalidReport(f"windowSeconds: {seconds:g} is not within 0..{MAX_WINDOW_SECONDS:g}")
    report = StepReport(
        count("iterations"), count("windowIterations"), float(seconds), min(count("localBatchSize", 0), MAX_BATCH_SIZE)
    )
    if report.window_iterations > report.iterations:
        raise InvalidReport(f"windowIterations {report.window_iterations} is above iterations {report.iterations}")
    return report


class Observations:
    """Every job's pod that runs here, and those that ended lately, so that the operator can settle their energy."""

    def __init__(self, jobs: Iterable[JobObservation] = ()) -> None:
        self._jobs = {(job.namespace, job.pod_name, job.uid): job for job in jobs}

    def __iter__(self) -> Iterator[JobObservation]:
        return iter(self._jobs.values())

    def sync(self, grant: Grant | None, pods: Mapping[PodName, PodOnGpus], now_ns: int) -> bool:
        """Take in which pods hold GPUs now; True where a job's pod came, changed its size, or ended."""
        changed = False
        for granted in grant.jobs if grant is not None else ():
            pod = pods.get(PodName(granted.namespace, granted.pod_name))
            key = (granted.namespace, granted.pod_name, granted.uid)
            if pod is not None and key not in self._jobs:
                self._jobs[key] = _observe(granted, pod.energy_key)
                changed = True
        for job in self._jobs.values():
            pod = pods.get(PodName(job.namespace, job.pod_name))
            if pod is not None and pod.energy_key != job.energy_key:
                pod = None  # another pod of the same name
            if pod is not None and (job.ended or job.gpus != pod.gpus):
                job.ended, job.gpus = False, pod.gpus
                changed = True
            elif pod is None and not job.ended:
                job.ended, job.ended_ns = True, now_ns
                changed = True
        return self._forget(now_ns) or changed

    def _forget(self, now_ns: int) -> bool:
        ended = sorted((job.ended_ns, key) for key, job in self._jobs.items() if job.ended)
        surplus = len(self._jobs) - MAX_OBSERVATIONS
        old = [key for ended_ns, key in ended if now_ns - ended_ns > ENDED_KEPT_NS]
        old += [key for _, key in ended[:surplus] if key not in old] if surplus > 0 else []
        for key in old:
            del self._jobs[key]
        return bool(old)

    def of_pod(self, name: PodName) -> JobObservation | None:
        """The job of a pod that has not ended."""
        for job in self._jobs.values():
            if (job.namespace, job.pod_name) == (name.namespace, name.name) and not job.ended:
                return job
        return None

    def report(self, name: PodName, pod: PodOnGpus, report: StepReport, now_ns: int, wall_seconds: float) -> bool:
        """Take in a training process's report; True where the pod is a job's."""
        job = self.of_pod(name)
        if job is None:
            return False
        job.iterations = report.iterations
        job.local_batch_size = report.local_batch_size
        job.last_report = wall_seconds
        if report.window_iterations > 0 and report.window_seconds > 0:
            start_ns = now_ns - round(report.window_seconds * 1e9)
            energy = pod.window.energy_millijoules(start_ns, now_ns)
            job.microseconds_per_iteration = round(report.window_seconds * 1e6 / report.window_iterations)
            if energy is not None:
                job.millijoules_per_iteration = round(energy / report.window_iterations)
            job.clock_megahertz = pod.window.clock_megahertz(start_ns, now_ns) or job.clock_megahertz
        return True


def _observe(grant: JobGrant, energy_key: str) -> JobObservation:
    return JobObservation(grant.namespace, grant.name, grant.uid, grant.incarnation, grant.pod_name, energy_key)
