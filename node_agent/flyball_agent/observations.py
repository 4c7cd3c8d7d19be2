"""What was seen of the jobs on this node: progress as the trainers tell it, energy and clocks as the boards do."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flyball_agent.core import PodName
from flyball_agent.desired import DesiredSpec, JobGrant

MAX_OBSERVATIONS = 64  # as many as GPUNode.status.jobs takes
ENDED_KEPT_NS = 900 * 1_000_000_000
WINDOW_SAMPLES = 600
MAX_COUNT = 2**53
MAX_WINDOW_SECONDS = 3600.0


class InvalidReport(ValueError):
    """A report that cannot be taken; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a training process tells: iterations of the job so far, and how many took how long since it told last."""

    iterations: int
    window_iterations: int
    window_seconds: float
    local_batch_size: int = 0


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
        count("iterations"), count("windowIterations"), float(seconds), min(count("localBatchSize", 0), 2**31 - 1)
    )
    if report.window_iterations > report.iterations:
        raise InvalidReport(f"windowIterations {report.window_iterations} is above iterations {report.iterations}")
    return report


class Window:
    """The recent energy and clock of one pod, a sample a tick: bounded, and exact between samples by interpolation."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int | None]] = deque(maxlen=WINDOW_SAMPLES)

    def add(self, time_ns: int, energy_millijoules: int, clock_megahertz: int | None) -> None:
        if not self._samples or time_ns > self._samples[-1][0]:
            self._samples.append((time_ns, energy_millijoules, clock_megahertz))

    def energy_millijoules(self, start_ns: int, end_ns: int) -> int | None:
        """What was used in between; past the last sample by the last rate. None where there are not two samples."""
        if len(self._samples) < 2:
            return None
        return max(0, round(self._at(end_ns) - self._at(max(start_ns, self._samples[0][0]))))

    def _at(self, time_ns: int) -> float:
        samples = self._samples
        index = len(samples) - 1
        while index > 1 and samples[index - 1][0] >= time_ns:
            index -= 1
        (t0, e0, _), (t1, e1, _) = samples[index - 1], samples[index]
        return e0 + (e1 - e0) * (time_ns - t0) / (t1 - t0)

    def clock_megahertz(self, start_ns: int, end_ns: int) -> int | None:
        """The mean of the clocks sampled in between (the last one, where none was); None where none is known."""
        clocks = [clock for time_ns, _, clock in self._samples if start_ns < time_ns <= end_ns and clock is not None]
        if clocks:
            return round(sum(clocks) / len(clocks))
        return self._samples[-1][2] if self._samples else None


@dataclass(slots=True)
class JobObservation:
    """One job's pod on this node. `energy_key` names it in the ledger; times are CLOCK_BOOTTIME but `last_report`."""

    namespace: str
    name: str
    uid: str
    incarnation: int
    pod_name: str
    energy_key: str
    gpus: int = 0
    iterations: int = 0
    microseconds_per_iteration: int = 0
    millijoules_per_iteration: int = 0
    clock_megahertz: int = 0
    local_batch_size: int = 0
    last_report: float = 0.0  # Unix seconds, for people; 0: never
    ended: bool = False
    ended_ns: int = 0

    def to_status(self, energy_millijoules: int, format_time: Callable[[float], str]) -> dict[str, Any]:
        """As GPUNode.status.jobs has it."""
        status: dict[str, Any] = {
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "incarnation": self.incarnation,
            "podName": self.pod_name,
            "gpus": self.gpus,
            "energyMillijoules": energy_millijoules,
            "ended": self.ended,
        }
        if self.last_report:
            status |= {
                "iterations": self.iterations,
                "microsecondsPerIteration": self.microseconds_per_iteration,
                "millijoulesPerIteration": self.millijoules_per_iteration,
                "clockMegahertz": self.clock_megahertz,
                "localBatchSize": self.local_batch_size,
                "lastReportTime": format_time(self.last_report),
            }
        return status


@dataclass(slots=True)
class PodHold:
    """A pod that holds boards now."""

    energy_key: str
    gpus: int
    window: Window = field(default_factory=Window)


class Observations:
    """Every job's pod that runs here, and those that ended lately, so that the operator can settle their energy."""

    def __init__(self, state: Iterable[Mapping[str, Any]] = ()) -> None:
        self._jobs: dict[tuple[str, str, str], JobObservation] = {}
        for raw in state:
            job = JobObservation(**raw)
            self._jobs[(job.namespace, job.pod_name, job.uid)] = job

    def __iter__(self) -> Iterator[JobObservation]:
        return iter(self._jobs.values())

    def to_json(self) -> list[dict[str, Any]]:
        """For the journal."""
        return [asdict(job) for job in self._jobs.values()]

    def sync(self, spec: DesiredSpec | None, pods: Mapping[PodName, PodHold], now_ns: int) -> bool:
        """Take in who holds boards now; True where a job's pod came, changed its size, or ended."""
        changed = False
        for grant in spec.jobs if spec is not None else ():
            hold = pods.get(PodName(grant.namespace, grant.pod_name))
            key = (grant.namespace, grant.pod_name, grant.uid)
            if hold is not None and key not in self._jobs:
                self._jobs[key] = _observe(grant, hold.energy_key)
                changed = True
        for job in self._jobs.values():
            hold = pods.get(PodName(job.namespace, job.pod_name))
            if hold is not None and hold.energy_key != job.energy_key:
                hold = None  # another pod of the same name
            if hold is not None and (job.ended or job.gpus != hold.gpus):
                job.ended, job.gpus = False, hold.gpus
                changed = True
            elif hold is None and not job.ended:
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

    def report(self, pod: PodName, hold: PodHold, report: StepReport, now_ns: int, wall_seconds: float) -> bool:
        """Take a trainer's word; True where the pod is a job's."""
        job = next(
            (
                job
                for job in self._jobs.values()
                if (job.namespace, job.pod_name) == (pod.namespace, pod.name) and not job.ended
            ),
            None,
        )
        if job is None:
            return False
        job.iterations = report.iterations
        job.local_batch_size = report.local_batch_size
        job.last_report = wall_seconds
        if report.window_iterations > 0 and report.window_seconds > 0:
            start_ns = now_ns - round(report.window_seconds * 1e9)
            energy = hold.window.energy_millijoules(start_ns, now_ns)
            job.microseconds_per_iteration = round(report.window_seconds * 1e6 / report.window_iterations)
            if energy is not None:
                job.millijoules_per_iteration = round(energy / report.window_iterations)
            job.clock_megahertz = hold.window.clock_megahertz(start_ns, now_ns) or job.clock_megahertz
        return True


def _observe(grant: JobGrant, energy_key: str) -> JobObservation:
    return JobObservation(grant.namespace, grant.name, grant.uid, grant.incarnation, grant.pod_name, energy_key)
