"""The series of training jobs, made from what the loop knows of them when somebody scrapes.

The label is `job_name`: `job` is Prometheus' own name for what it scrapes, and would be renamed or overwritten.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from flyball_operator.jobs.runs.queue import NO_QUEUE, JobQueue
from flyball_operator.jobs.status.prediction import as_planned

if TYPE_CHECKING:
    from flyball_planner.snapshot import JobDecision

    from flyball_operator.jobs.steps.step import LiveJob

# At most eight series a job, and four more while it runs or two while it waits: what a Prometheus takes from one target.
# The oldest keep theirs.
MAX_JOBS = 5000
# A state that a job's status does not have yet.
NEW_JOB = "New"
HERTZ_PER_MEGAHERTZ = 1_000_000

LABELS = ("namespace", "job_name")


@dataclass(frozen=True, slots=True)
class ObservedJobs:
    """The jobs that have not ended, in one cycle, with the plan in force: its decisions by their uids, and its queue."""

    jobs: Sequence[LiveJob] = ()
    decisions: Mapping[str, JobDecision] = field(default_factory=dict)
    queue: JobQueue = NO_QUEUE

    def families(self) -> Iterator[Metric]:
        """Every family of jobs, each one also where no job has a series of it."""
        oldest_first = sorted(self.jobs, key=lambda job: (job.view.created, job.view.key))
        shown = [(_labels(job), job) for job in oldest_first[:MAX_JOBS]]
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"flyball_job_{name}", text, labels=LABELS)
            for labels, job in shown:
                found = value(job, self.decisions.get(job.view.uid))
                if found is not None:
                    gauge.add_metric(labels, found)
            yield gauge
        yield from self._of_queue(shown)
        energy = CounterMetricFamily("flyball_job_energy_joules", "Energy that the job has used", labels=LABELS)
        state = GaugeMetricFamily("flyball_job_state", "1 for the job's state", labels=(*LABELS, "state"))
        for labels, job in shown:
            energy.add_metric(labels, job.memory.progress.consumed_millijoules / 1e3)
            state.add_metric((*labels, _state(job)), 1)
        states = GaugeMetricFamily("flyball_jobs", "EnergyAwareJobs that have not ended, by state", labels=["state"])
        for name, count in sorted(Tally(map(_state, self.jobs)).items()):
            states.add_metric([name], count)
        left_out = GaugeMetricFamily(
            "flyball_job_series_left_out",
            "Jobs without series of their own, to bound their number",
            max(0, len(self.jobs) - MAX_JOBS),
        )
        yield from (energy, state, states, left_out)

    def _of_queue(self, shown: Sequence[tuple[tuple[str, str], LiveJob]]) -> Iterator[Metric]:
        position = GaugeMetricFamily(
            "flyball_job_queue_position",
            "The job's place among those that wait for GPUs or watts, from 1",
            labels=LABELS,
        )
        start = GaugeMetricFamily(
            "flyball_job_expected_start_timestamp_seconds",
            "When a job that waits can expect to start, where that is known",
            labels=LABELS,
        )
        for labels, job in shown:
            place = self.queue.place_of(job.view.uid)
            if place is not None:
                position.add_metric(labels, place.position)
                if place.start is not None:
                    start.add_metric(labels, place.start.timestamp())
        yield from (position, start)


def runs(job: LiveJob) -> bool:
    """Whether all its pods run."""
    return job.memory.running and job.step.current is not None


def _labels(job: LiveJob) -> tuple[str, str]:
    return job.view.namespace, job.view.name


def _state(job: LiveJob) -> str:
    return job.view.status.state or NEW_JOB


def _gpus(job: LiveJob, _: JobDecision | None) -> float:
    return job.step.current.gpus if runs(job) and job.step.current is not None else 0


def _iterations_per_second(job: LiveJob, _: JobDecision | None) -> float:
    return job.memory.progress.iterations_per_second if runs(job) else 0.0


def _progress(job: LiveJob, _: JobDecision | None) -> float | None:
    iterations = job.view.spec.training.iterations
    return None if not iterations else min(1.0, job.memory.progress.iterations / iterations)


def _clock(job: LiveJob, _: JobDecision | None) -> float | None:
    clock = job.memory.progress.clock_megahertz
    return clock * HERTZ_PER_MEGAHERTZ if runs(job) and clock else None


def _power(job: LiveJob, _: JobDecision | None) -> float | None:
    return job.memory.progress.watts if runs(job) and job.memory.progress.watts else None


def _budget(job: LiveJob, _: JobDecision | None) -> float | None:
    kilojoules = job.view.spec.energy.budget_kilojoules
    return None if kilojoules is None else kilojoules * 1e3


def _projected(job: LiveJob, _: JobDecision | None) -> float | None:
    energy = job.view.status.energy
    return None if energy is None or energy.projected_kilojoules is None else energy.projected_kilojoules * 1e3


def _late(job: LiveJob, _: JobDecision | None) -> float | None:
    return None if job.view.spec.deadline is None else float(job.view.has("DeadlineAtRisk"))


def _as_planned(job: LiveJob, decision: JobDecision | None) -> JobDecision | None:
    return as_planned(job.memory.progress, job.step.current, decision) if runs(job) else None


def _predicted_rate(job: LiveJob, decision: JobDecision | None) -> float | None:
    found = _as_planned(job, decision)
    return None if found is None or found.predicted_iteration_seconds <= 0 else 1 / found.predicted_iteration_seconds


def _predicted_power(job: LiveJob, decision: JobDecision | None) -> float | None:
    found = _as_planned(job, decision)
    return None if found is None else found.predicted_gpu_watts * _gpus(job, found)


_GAUGES: tuple[tuple[str, str, Callable[[LiveJob, JobDecision | None], float | None]], ...] = (
    ("energy_budget_joules", "The job's energy budget, if any", _budget),
    ("projected_energy_joules", "What the job will have used at its end, as planned, where that is known", _projected),
    ("iterations_per_second", "The job's training iterations per second now", _iterations_per_second),
    ("gpus", "GPUs that the job runs on now", _gpus),
    ("progress_ratio", "The share of its iterations that the job has done, where it has a number of them", _progress),
    ("clock_hertz", "The SM clock that the job's GPUs run at, as its processes report", _clock),
    ("power_watts", "What the job's GPUs draw, as its processes report", _power),
    ("predicted_iterations_per_second", "What the plan expects of a job that runs as planned and reports", _predicted_rate),
    ("predicted_power_watts", "The draw that the plan expects of a job that runs as planned and reports", _predicted_power),
    ("deadline_at_risk", "1 while no allocation meets the job's deadline, if it has one", _late),
)  # fmt: skip
