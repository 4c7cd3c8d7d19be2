"""The operator's metrics for Prometheus: its caps, plans, jobs and nodes, under the prefix `flyball_`.

The loop sets them once a cycle; series of caps and jobs that are gone vanish with the next one, and their number is
bounded. They are collected in the server's own thread, which a loop that is stuck cannot block: what is scraped is always
one consistent set, because a set is replaced as a whole and never changed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from flyball_kube.logs import get_logger
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from flyball_operator.jobs.controller import LiveJob
    from flyball_operator.power.cap_state import CapState
    from flyball_operator.power.node_info import NodeInfo

logger = get_logger(__name__)

# Four series a job: what a Prometheus takes from one target. The oldest jobs keep theirs.
MAX_JOBS = 5000
NODE_STATES = ("ready", "unschedulable", "unresponsive", "unproven", "unacknowledged", "unknown_gpu")
# A state that a job's status does not have yet.
NEW_JOB = "New"
PLAN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CONVERGE_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class _Cap:
    name: str
    watts: float
    committed_watts: float
    measured_watts: float
    feasible: bool
    enforced: bool
    overshoot_joules: float
    overshoot_seconds: float
    meter_allowed_watts: float | None = None
    meter_silent: bool | None = None

    @property
    def headroom_watts(self) -> float:
        return self.watts - self.committed_watts


@dataclass(frozen=True, slots=True)
class _Job:
    labels: tuple[str, str]
    energy_joules: float
    budget_joules: float | None
    iterations_per_second: float
    gpus: int


class _Latest(Collector):
    """The series that come and go with their objects."""

    def __init__(self) -> None:
        self.caps: tuple[_Cap, ...] = ()
        self.jobs: tuple[_Job, ...] = ()
        self.job_states: Mapping[str, int] = {}
        self.jobs_left_out = 0

    def collect(self) -> Iterator[Metric]:
        """One family per metric; Prometheus' own names, units and help texts."""
        yield from self._of_caps(self.caps)
        yield from self._of_jobs(self.jobs)
        states = GaugeMetricFamily("flyball_jobs", "EnergyAwareJobs that have not ended, by state", labels=["state"])
        for state, count in sorted(self.job_states.items()):
            states.add_metric([state], count)
        yield states
        yield GaugeMetricFamily(
            "flyball_job_series_left_out", "Jobs without series of their own, to bound their number", self.jobs_left_out
        )

    @staticmethod
    def _of_caps(caps: tuple[_Cap, ...]) -> Iterator[Metric]:
        gauges: tuple[tuple[str, str, Callable[[_Cap], float]], ...] = (
            ("watts", "The cap in force now, static overhead included", lambda cap: cap.watts),
            ("committed_watts", "The most that the cap's nodes may draw now", lambda cap: cap.committed_watts),
            ("measured_watts", "What the cap's nodes draw now", lambda cap: cap.measured_watts),
            ("headroom_watts", "The cap less what is committed", lambda cap: cap.headroom_watts),
            ("feasible", "1 while the cap can be held at all", lambda cap: float(cap.feasible)),
            ("enforced", "1 while what is committed is known to be within the cap", lambda cap: float(cap.enforced)),
        )
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(f"flyball_cap_{name}", text, labels=["cap"])
            for cap in caps:
                gauge.add_metric([cap.name], value(cap))
            yield gauge
        allowed = GaugeMetricFamily(
            "flyball_cap_meter_allowed_watts",
            "What all limits and the static overhead may add up to because of the cap's meter, where it bounds them",
            labels=["cap"],
        )
        silent = GaugeMetricFamily(
            "flyball_cap_meter_silent", "1 while the cap's meter is not believed", labels=["cap"]
        )
        for cap in caps:
            if cap.meter_allowed_watts is not None:
                allowed.add_metric([cap.name], cap.meter_allowed_watts)
            if cap.meter_silent is not None:
                silent.add_metric([cap.name], float(cap.meter_silent))
        yield from (allowed, silent)
        joules = CounterMetricFamily(
            "flyball_cap_overshoot_joules", "Energy measured above the cap in force", labels=["cap"]
        )
        seconds = CounterMetricFamily(
            "flyball_cap_overshoot_seconds", "Time during which more was measured than the cap in force", labels=["cap"]
        )
        for cap in caps:
            joules.add_metric([cap.name], cap.overshoot_joules)
            seconds.add_metric([cap.name], cap.overshoot_seconds)
        yield joules
        yield seconds

    @staticmethod
    def _of_jobs(jobs: tuple[_Job, ...]) -> Iterator[Metric]:
        labels = ["namespace", "job"]
        energy = CounterMetricFamily("flyball_job_energy_joules", "Energy that the job has used", labels=labels)
        budget = GaugeMetricFamily("flyball_job_energy_budget_joules", "The job's energy budget, if any", labels=labels)
        rate = GaugeMetricFamily(
            "flyball_job_iterations_per_second", "The job's training iterations per second now", labels=labels
        )
        gpus = GaugeMetricFamily("flyball_job_gpus", "GPUs that the job runs on now", labels=labels)
        for job in jobs:
            energy.add_metric(job.labels, job.energy_joules)
            rate.add_metric(job.labels, job.iterations_per_second)
            gpus.add_metric(job.labels, job.gpus)
            if job.budget_joules is not None:
                budget.add_metric(job.labels, job.budget_joules)
        yield from (energy, budget, rate, gpus)


class OperatorMetrics:
    """The operator's metrics on a registry of their own; every method is cheap and never raises into the loop."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        self._monotonic = monotonic
        self._latest = _Latest()
        self.registry.register(self._latest)
        ProcessCollector(registry=self.registry)
        self._actions = Counter(
            "flyball_plan_actions", "Writes made to follow the plan", ["kind"], registry=self.registry
        )
        self._plan = Histogram(
            "flyball_plan_seconds", "Time to work out a plan", buckets=PLAN_BUCKETS, registry=self.registry
        )
        self._converge = Histogram(
            "flyball_plan_converge_seconds",
            "Time from a wanted change until every node has acknowledged its grant",
            buckets=CONVERGE_BUCKETS,
            registry=self.registry,
        )
        self._nodes = Gauge("flyball_nodes", "GPU nodes, by state", ["state"], registry=self.registry)
        self._leader = Gauge("flyball_leader", "1 while this process leads", registry=self.registry)
        self._ages = Gauge(
            "flyball_informer_age_seconds",
            "Time since the local copy was last proven fresh",
            ["resource"],
            registry=self.registry,
        )
        self._over: dict[str, tuple[float, float]] = {}  # joules and seconds above each cap
        self._caps_seen_at: float | None = None
        self._converging_since: float | None = None
        self._server: tuple[WSGIServer, threading.Thread] | None = None

    def set_leader(self, leads: bool) -> None:
        """Whether this process leads. One that does not has no series of caps and jobs: the leader's are right."""
        self._leader.set(leads)
        if not leads:
            self._caps_seen_at = self._converging_since = None
            self._latest.caps, self._latest.jobs, self._latest.job_states = (), (), {}
            self._latest.jobs_left_out = 0
            self._nodes.clear()

    def count_action(self, kind: str) -> None:
        """One write of this kind; kinds are the closed list of the executor."""
        self._actions.labels(kind).inc()

    def observe_plan(self, seconds: float) -> None:
        """A plan has been worked out in this time."""
        self._plan.observe(seconds)

    def observe_convergence(self, waiting: int) -> None:
        """How many nodes are still on their way to what is wanted; a time is recorded when they all have arrived."""
        now = self._monotonic()
        if waiting:
            self._converging_since = now if self._converging_since is None else self._converging_since
        elif self._converging_since is not None:
            self._converge.observe(now - self._converging_since)
            self._converging_since = None

    def observe_caps(self, states: Iterable[CapState], infeasible: Collection[str]) -> None:
        """The caps as they are; the plan cannot hold the `infeasible` ones.

        Overshoot is what was measured above each cap since the last call.
        """
        now = self._monotonic()
        elapsed = 0.0 if self._caps_seen_at is None else now - self._caps_seen_at
        self._caps_seen_at = now
        caps, over = [], {}
        for state in states:
            name, watts = state.name, state.effective.watts
            joules, seconds = self._over.get(name, (0.0, 0.0))
            excess = state.measured_watts - watts
            if excess > 0:
                joules, seconds = joules + excess * elapsed, seconds + elapsed
            over[name] = joules, seconds
            feasible = state.attainable and name not in infeasible
            caps.append(
                _Cap(
                    name,
                    watts,
                    state.committed_watts,
                    state.measured_watts,
                    feasible,
                    state.enforced,
                    joules,
                    seconds,
                    None if state.meter is None else state.meter.allowed_watts,
                    None if state.meter is None else state.meter.silence is not None,
                )
            )
        self._over = over
        self._latest.caps = tuple(caps)

    def observe_jobs(self, jobs: Iterable[LiveJob]) -> None:
        """The jobs that have not ended."""
        oldest_first = sorted(jobs, key=lambda job: (job.view.created, job.view.key))
        samples = []
        for job in oldest_first[:MAX_JOBS]:
            budget = job.view.spec.energy.budget_kilojoules
            running = job.memory.running and job.step.current is not None
            samples.append(
                _Job(
                    (job.view.namespace, job.view.name),
                    job.memory.progress.consumed_millijoules / 1e3,
                    None if budget is None else budget * 1e3,
                    job.memory.progress.iterations_per_second if running else 0.0,
                    job.step.current.gpus if running and job.step.current is not None else 0,
                )
            )
        self._latest.job_states = Tally(job.view.status.state or NEW_JOB for job in oldest_first)
        self._latest.jobs_left_out = max(0, len(oldest_first) - MAX_JOBS)
        self._latest.jobs = tuple(samples)

    def observe_nodes(self, nodes: Iterable[NodeInfo]) -> None:
        """The GPU nodes; each is counted under the first of NODE_STATES' reasons not to be ready."""
        states = Tally(_node_state(info) for info in nodes)
        for state in NODE_STATES:
            self._nodes.labels(state).set(states[state])

    def observe_ages(self, ages: Mapping[str, float]) -> None:
        """Seconds since each resource's local copy was proven fresh (infinite before the first list)."""
        for resource, age in ages.items():
            self._ages.labels(resource).set(age)

    async def serve(self, port: int, address: str = "0.0.0.0") -> int:  # noqa: S104 - scraped from other nodes
        """Serve /metrics on `port` (0: any free one) and return the port; raises OSError where it is taken."""
        self._server = start_http_server(port, address, self.registry)
        bound = int(self._server[0].server_port)
        logger.info("metrics served", port=bound)
        return bound

    async def close(self) -> None:
        """Stop serving; nothing happens where nothing is served."""
        if self._server is None:
            return
        server, thread = self._server
        self._server = None
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)


def _node_state(info: NodeInfo) -> str:
    if info.gpu_model is None:
        return "unknown_gpu"
    if not info.acknowledged:
        return "unacknowledged"
    if info.doubt:
        return "unproven"
    if not info.responsive:
        return "unresponsive"
    return "ready" if info.schedulable else "unschedulable"
