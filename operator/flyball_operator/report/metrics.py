"""The operator's metrics for Prometheus: its caps, plans, jobs and nodes, under the prefix `flyball_`.

The loop sets them once a cycle; series of caps and jobs that are gone vanish with the next one, and their number is
bounded. They are collected in the server's own thread, which a loop that is stuck cannot block: what is scraped is always
one consistent set, because a set is replaced as a whole and never changed.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from flyball_kube.process.logs import get_logger
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flyball_operator.cluster.outcome import Outcome
from flyball_operator.jobs.runs.queue import NO_QUEUE, JobQueue
from flyball_operator.report.cap_series import ObservedCap, cap_families
from flyball_operator.report.job_series import ObservedJobs
from flyball_operator.report.metrics_server import MetricsServer
from flyball_operator.report.quota_series import quota_families
from flyball_operator.report.savings import Savings

if TYPE_CHECKING:
    from flyball_api.energy.quota import EnergyQuota
    from flyball_api.energy_aware_job import EnergyAwareJob
    from flyball_planner.models.job import JobModel
    from flyball_planner.shifting import Signal
    from flyball_planner.snapshot import JobDecision

    from flyball_operator.jobs.steps.step import LiveJob
    from flyball_operator.power.caps.state import CapState
    from flyball_operator.power.nodes.info import NodeInfo

logger = get_logger(__name__)

# A second series beside each counter, with the time of its first count, which nothing asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]

NODE_STATES = ("ready", "unschedulable", "unresponsive", "unproven", "unacknowledged", "unknown_gpu")
PLAN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CYCLE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
WRITE_BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CONVERGE_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)


class _Latest(Collector):
    """The series that come and go with their objects."""

    def __init__(self) -> None:
        self.caps: Sequence[ObservedCap] = ()
        self.jobs = ObservedJobs()
        self.savings = Savings()
        self.owners: Sequence[tuple[tuple[str, str], int]] = ()
        self.quotas: Sequence[EnergyQuota] = ()
        self.waiting_batch_jobs: Mapping[str, int] = {}
        self.signal: tuple[str, float | None, float] | None = None  # its unit, its value now, its end

    def collect(self) -> Iterator[Metric]:
        """One family per metric; Prometheus' own names, units and help texts."""
        yield from cap_families(self.caps)
        yield from self.jobs.families()
        owners = CounterMetricFamily(
            "flyball_owner_energy_joules",
            "Energy that pods outside Flyball have used since midnight (UTC), by whose they are",
            labels=["namespace", "owner"],
        )
        for (namespace, owner), millijoules in self.owners:
            owners.add_metric([namespace, owner], millijoules / 1e3)
        yield owners
        yield from quota_families(self.quotas)
        waiting = GaugeMetricFamily(
            "flyball_batch_jobs_waiting",
            "Batch Jobs that wait to be let run by power, by what they wait for",
            labels=["reason"],
        )
        for reason, count in sorted(self.waiting_batch_jobs.items()):
            waiting.add_metric([reason], count)
        yield waiting
        yield from self._of_signal()
        yield CounterMetricFamily(
            "flyball_training_energy_joules", "Energy that running jobs have used", self.savings.joules
        )
        yield CounterMetricFamily(
            "flyball_training_highest_clock_energy_joules",
            "What the same work would have taken at the highest clock, by the jobs' models",
            self.savings.highest_clock_joules,
        )

    def _of_signal(self) -> Iterator[Metric]:
        value = GaugeMetricFamily(
            "flyball_grid_signal", "The grid's signal now, where there is one that reaches so far", labels=["unit"]
        )
        end = GaugeMetricFamily(
            "flyball_grid_signal_end_timestamp_seconds", "Until when the grid's signal is known", labels=["unit"]
        )
        if self.signal is not None:
            unit, now, until = self.signal
            end.add_metric([unit], until)
            if now is not None:
                value.add_metric([unit], now)
        yield from (value, end)


class OperatorMetrics:
    """The operator's metrics on a registry of their own; every method is cheap and never raises into the loop."""

    def __init__(
        self,
        *,
        version: str = "",
        policy: str = "",
        mode: str = "govern",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = CollectorRegistry()
        self._monotonic = monotonic
        self._latest = _Latest()
        self.registry.register(self._latest)
        ProcessCollector(registry=self.registry)
        info = Gauge("flyball_operator_info", "The operator", ["version", "policy", "mode"], registry=self.registry)
        info.labels(version, policy, mode).set(1)
        self._actions = Counter(
            "flyball_plan_actions", "Writes made to follow the plan", ["kind"], registry=self.registry
        )
        self._plan = Histogram(
            "flyball_plan_seconds", "Time to work out a plan", buckets=PLAN_BUCKETS, registry=self.registry
        )
        self._plan_failures = Counter(
            "flyball_plan_failures", "Plans that could not be made; the last one stays in force", registry=self.registry
        )
        self._explored = Counter(
            "flyball_explored_gpu_seconds",
            "GPU time of jobs at lower clocks or power limits than planned, for what these take to be learned",
            registry=self.registry,
        )
        self._cycle = Histogram(
            "flyball_cycle_seconds",
            "The loop's own work in one cycle: reading, deciding, starting writes",
            buckets=CYCLE_BUCKETS,
            registry=self.registry,
        )
        self._cycle_failures = Counter(
            "flyball_cycle_failures", "Cycles that ended in an error of the operator itself", registry=self.registry
        )
        self._writes = Histogram(
            "flyball_api_write_seconds",
            "Time from a write's turn to the API server's answer, by what became of it",
            ["outcome"],
            buckets=WRITE_BUCKETS,
            registry=self.registry,
        )
        for outcome in Outcome:
            self._writes.labels(outcome.value)
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
        self._clock_ahead = Gauge(
            "flyball_clock_ahead_seconds",
            "By how much the operator's clock is certainly ahead of the API server's; below 0: behind",
            registry=self.registry,
        )
        self._over: dict[str, tuple[float, float]] = {}  # joules and seconds above each cap
        self._caps_seen_at: float | None = None
        self._converging_since: float | None = None
        self._server: MetricsServer | None = None

    def set_leader(self, leads: bool) -> None:
        """Whether this process leads. One that does not has no series of caps and jobs: the leader's are right."""
        self._leader.set(leads)
        if not leads:
            self._caps_seen_at = self._converging_since = None
            self._latest.caps, self._latest.jobs, self._latest.owners = (), ObservedJobs(), ()
            self._latest.quotas, self._latest.waiting_batch_jobs, self._latest.signal = (), {}, None
            self._latest.savings.forget()
            self._nodes.clear()

    def count_action(self, kind: str) -> None:
        """One write of this kind; kinds are the closed list of the executor."""
        self._actions.labels(kind).inc()

    def observe_plan(self, seconds: float) -> None:
        """A plan has been worked out in this time."""
        self._plan.observe(seconds)

    def count_plan_failure(self) -> None:
        """A plan could not be made."""
        self._plan_failures.inc()

    def count_explored(self, gpu_seconds: float) -> None:
        """So much more of jobs' GPU time went to learning what other clocks and limits take."""
        self._explored.inc(gpu_seconds)

    def observe_cycle(self, seconds: float) -> None:
        """A cycle's own work took this time."""
        self._cycle.observe(seconds)

    def count_cycle_failure(self) -> None:
        """A cycle ended in an error."""
        self._cycle_failures.inc()

    def observe_write(self, outcome: Outcome, seconds: float) -> None:
        """The API server answered a write after this time, or did not."""
        self._writes.labels(outcome.value).observe(seconds)

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
                ObservedCap(
                    name,
                    watts,
                    state.committed_watts,
                    state.measured_watts,
                    feasible,
                    state.enforced if state.if_governed is None else None,
                    state.proof_stale and state.if_governed is None,
                    None if state.if_governed is None else state.if_governed.committed_watts,
                    joules,
                    seconds,
                    None if state.meter is None else state.meter.allowed_watts,
                    None if state.meter is None else state.meter.silence is not None,
                )
            )
        self._over = over
        self._latest.caps = tuple(caps)

    def observe_jobs(
        self,
        jobs: Collection[LiveJob],
        decisions: Mapping[str, JobDecision],
        model_of: Callable[[EnergyAwareJob], JobModel],
        queue: JobQueue = NO_QUEUE,
    ) -> None:
        """The jobs that have not ended, the plan in force by their uids, its queue, and where their models are."""
        self._latest.savings.observe(jobs, model_of)
        self._latest.jobs = ObservedJobs(tuple(jobs), decisions, queue)

    def observe_quotas(self, quotas: Sequence[EnergyQuota]) -> None:
        """The quotas, whose statuses have their figures."""
        self._latest.quotas = quotas

    def observe_waiting_batch_jobs(self, waiting: Mapping[str, int]) -> None:
        """How many batch Jobs wait to be let run, by the reason of their last verdict."""
        self._latest.waiting_batch_jobs = waiting

    def observe_signal(self, signal: Signal | None, now: datetime) -> None:
        """The grid's signal as it is known now."""
        at = now.timestamp()
        self._latest.signal = None if signal is None else (signal.unit.strip(), signal.at(at), signal.end)

    def observe_owners(self, owners: Sequence[tuple[tuple[str, str], int]]) -> None:
        """Whose pods outside Flyball have used most today: namespace and owner, and how many millijoules."""
        self._latest.owners = owners

    def observe_nodes(self, nodes: Iterable[NodeInfo]) -> None:
        """The GPU nodes; each is counted under the first of NODE_STATES' reasons not to be ready."""
        states = Tally(_node_state(info) for info in nodes)
        for state in NODE_STATES:
            self._nodes.labels(state).set(states[state])

    def observe_ages(self, ages: Mapping[str, float]) -> None:
        """Seconds since each resource's local copy was proven fresh (infinite before the first list)."""
        for resource, age in ages.items():
            self._ages.labels(resource).set(age)

    def observe_clock(self, ahead_seconds: float) -> None:
        """By how many seconds this process' clock is ahead of the API server's at the least; below 0: behind."""
        self._clock_ahead.set(ahead_seconds)

    async def serve(self, port: int, address: str = "0.0.0.0") -> int:  # noqa: S104 - scraped from other nodes
        """Serve /metrics on `port` (0: any free one) and return the port; raises OSError where it is taken."""
        self._server = MetricsServer(self.registry)
        bound = await self._server.serve(port, address)
        logger.info("metrics served", port=bound)
        return bound

    async def close(self) -> None:
        """Stop serving; nothing happens where nothing is served."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()


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
