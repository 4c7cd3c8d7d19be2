"""Prometheus metrics of one agent or many, made from their state at each scrape.

About 26 series a GPU and 32 a node; labels are GPUs, pods, and closed lists, never a process or a grant.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from flyball_api.values.units import MILLIJOULES_PER_JOULE, MILLIWATTS_PER_WATT
from flyball_kube.backoff import Backoff
from flyball_kube.process.logs import get_logger
from flyball_kube.serving.http_server import HttpRequest, HttpServer, Response
from flyball_kube.serving.scrapes import Scrapes
from flyball_kube.serving.token_bucket import TokenBucket
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from flyball_agent.enforce.decisions import Mode
from flyball_agent.enforce.gpu_state import GpuState
from flyball_agent.gpu.gpu import ThrottleReason
from flyball_agent.node.agent import NodeAgent
from flyball_agent.node.status import health
from flyball_agent.state import AgentState

logger = get_logger(__name__)

HERTZ_PER_MEGAHERTZ = 1_000_000
MAX_CONNECTIONS = 64
IDLE_SECONDS = 90.0  # more than a minute between two scrapes
# Beyond these, which no Prometheus comes near, a scrape gets what the one before it got: each made anew takes milliseconds
# of what the agent has for its grants.
SCRAPES_PER_SECOND, SCRAPE_BURST = 5.0, 20.0
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class _Series:
    """The series of one node or GPU, which all begin with the same labels; families are made when first used."""

    families: dict[str, Metric]
    labels: dict[str, str]

    def of(self, **labels: str) -> _Series:
        return _Series(self.families, {**self.labels, **labels})

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        self._add(GaugeMetricFamily, name, text, value, {**self.labels, **labels})

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        self._add(CounterMetricFamily, name, text, value, {**self.labels, **labels})

    def _add(
        self,
        family_type: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        text: str,
        value: float,
        labels: dict[str, str],
    ) -> None:
        family = self.families.get(name)
        if family is None:
            family = self.families[name] = family_type(f"flyball_{name}", text, labels=list(labels))
        family.add_metric(list(labels.values()), value)  # type: ignore[attr-defined]


class AgentCollector(Collector):
    """Collects from the agents that `agents` has at each scrape; every series has its `node`.

    An agent is shown once it has made a round, and its energy once it has accounted for it: what the journal remembers is
    some seconds old, and Prometheus takes a counter that falls for one that began again.
    """

    def __init__(self, agents: Iterable[NodeAgent]) -> None:
        self.agents = agents

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time: the families are made at each scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for agent in self.agents:
            state = agent.state
            if state.counts.rounds == 0:
                continue
            series = _Series(families, {"node": state.node})
            _node(series, state, agent.lease_remaining_seconds())
            age = agent.round_age_seconds
            text = "How long ago the last round of the control loop was made."
            series.gauge("agent_last_round_age_seconds", text, 0.0 if age is None else age)
            if state.accounted:
                _energy(series, state)
            for gpu in state.enforced.gpus.values():
                _gpu(series.of(gpu=gpu.uuid), state, gpu)
        yield from families.values()


def _gpu(series: _Series, state: AgentState, gpu: GpuState) -> None:
    limits, reading = gpu.limits, gpu.reading
    text = "What the GPU is."
    series.gauge("gpu_info", text, 1, model=gpu.model, index=str(gpu.index), driver=state.enforced.driver_version)
    series.gauge("gpu_up", "Whether the GPU can be read.", float(gpu.usable))
    text = "1 for the reason of the GPU's condition Healthy: Governed where all is well."
    series.gauge("gpu_health", text, 1, reason=health(gpu).reason)
    kinds = {"min": limits.min_milliwatts, "max": limits.max_milliwatts, "default": limits.default_milliwatts}
    if gpu.limit is not None:
        kinds |= {"requested": gpu.limit.requested_milliwatts, "enforced": gpu.limit.enforced_milliwatts}
    for kind, milliwatts in kinds.items():
        text = "Power limits, as the driver reports them."
        series.gauge("gpu_power_limit_watts", text, milliwatts / MILLIWATTS_PER_WATT, kind=kind)
    if gpu.lock is not None:
        for bound, megahertz in (("min", gpu.lock.min_megahertz), ("max", gpu.lock.max_megahertz)):
            text = "The clock range that Flyball has set (0: not locked)."
            series.gauge("gpu_locked_clock_hertz", text, megahertz * HERTZ_PER_MEGAHERTZ, bound=bound)
    for reason in ThrottleReason:
        text = "Time in which the clock was held down, by reason, sampled once a round."
        name = (reason.name or str(int(reason))).lower()
        series.counter("gpu_throttled_seconds_total", text, gpu.throttled_seconds.get(int(reason), 0.0), reason=name)
    for xid, count in sorted(gpu.xid_errors.items()):
        text = "Xid errors that the driver has reported, by NVIDIA's number, since the agent's start."
        series.counter("gpu_xid_errors_total", text, count, xid=str(xid))
    if reading is None:
        return
    for kind, power in (("average", reading.average_power_milliwatts), ("instant", reading.instant_power_milliwatts)):
        if power is not None:
            text = "Power, as the GPU's sensor measures it."
            series.gauge("gpu_power_watts", text, power / MILLIWATTS_PER_WATT, kind=kind)
    if reading.sm_clock_megahertz is not None:
        series.gauge("gpu_sm_clock_hertz", "The SM clock now.", reading.sm_clock_megahertz * HERTZ_PER_MEGAHERTZ)
    if reading.utilization_percent is not None:
        text = "The share of time in which a kernel ran."
        series.gauge("gpu_utilization_ratio", text, reading.utilization_percent / 100)
    if reading.persistence_mode is not None:
        text = "Whether the driver keeps the GPU's limits while nothing has it open."
        series.gauge("gpu_persistence_mode", text, float(reading.persistence_mode))
    if reading.temperature_celsius is not None:
        series.gauge("gpu_temperature_celsius", "The die's temperature.", reading.temperature_celsius)


def _energy(series: _Series, state: AgentState) -> None:
    accounts = state.accounts
    for uuid, millijoules in accounts.gpus.items():
        text = "Energy that the GPU has used since its journal began."
        series.counter("gpu_energy_joules_total", text, millijoules / MILLIJOULES_PER_JOULE, gpu=uuid)
    jobs = {(job.namespace, job.pod_name): job.name for job in state.jobs}
    ended = {name: ended.pod for name, ended in state.ended_pods.items()}
    for name, pod in {**ended, **state.pods}.items():
        series.counter(
            "pod_gpu_energy_joules_total",
            "Energy attributed to a pod that holds GPUs, or held some until a few minutes ago.",
            state.pod_millijoules(pod) / MILLIJOULES_PER_JOULE,
            namespace=name.namespace,
            pod=name.name,
            job_name=jobs.get((name.namespace, name.name), ""),
            method="shared" if pod.shared else "exclusive",
        )
    for total, text, millijoules in (
        ("idle_energy_joules_total", "Energy of GPUs that no pod held.", accounts.idle),
        ("unattributed_energy_joules_total", "Energy of GPUs whose pods were not known.", accounts.unattributed),
        ("discarded_energy_joules_total", "Jumps of energy counters beyond what a GPU can draw.", accounts.discarded),
    ):
        series.counter(total, text, millijoules / MILLIJOULES_PER_JOULE)


def _node(series: _Series, state: AgentState, lease_seconds: float) -> None:
    enforced, counts = state.enforced, state.enforced.counts
    acknowledged, grant = enforced.acknowledged, enforced.grant
    series.gauge("agent_info", "The agent.", 1, version=state.version)
    text = "The generation of the last grant that is in force as read back (-1: none yet)."
    series.gauge("agent_plan_generation", text, -1 if acknowledged is None else acknowledged.generation)
    text = "The epoch of the last grant that is in force as read back (-1: none yet)."
    series.gauge("agent_plan_epoch", text, -1 if acknowledged is None else acknowledged.epoch)
    text = "What the limits may add up to under the last grant."
    bound = 0 if grant is None else grant.bound.limit_milliwatts
    series.gauge("agent_grant_watts", text, bound / MILLIWATTS_PER_WATT)
    text = "What the limits add up to, as read back."
    series.gauge("agent_held_watts", text, enforced.held_milliwatts / MILLIWATTS_PER_WATT)
    text = "How long the grant holds without a renewal of the operator's Lease."
    series.gauge("agent_lease_remaining_seconds", text, lease_seconds)
    for mode in Mode:
        series.gauge("agent_mode", "What the agent is doing.", float(enforced.mode is mode), mode=str(mode))
    text = "Whether the journal takes writes; where not, no limit is raised."
    series.gauge("agent_journal_ok", text, float(enforced.journal_error is None))
    for operation in ("lower", "raise"):
        text = "Time spent in sets of power limits and their read-back."
        series.counter("agent_apply_seconds_total", text, counts.applied_seconds.get(operation, 0.0), op=operation)
        series.counter("agent_apply_total", "Sets of power limits.", counts.applied.get(operation, 0), op=operation)
    for (operation, code), count in sorted(counts.errors.items()):
        series.counter("agent_nvml_errors_total", "Driver calls that failed.", count, op=operation, code=str(code))
    for name, text, count in (
        (
            "agent_drift_corrections_total",
            "Limits that someone else changed and the agent put back.",
            counts.drift_corrections,
        ),
        (
            "agent_lock_drift_corrections_total",
            "Clock locks that did not hold any more and the agent put back.",
            counts.lock_drift_corrections,
        ),
        ("agent_specs_refused_total", "Grants older than one that was accepted before.", counts.refused_grants),
        ("agent_lease_renewals_total", "Renewals of the operator's Lease that kept the grant.", counts.lease_renewals),
        ("agent_lease_expiries_total", "Times that the lease ran out.", counts.lease_expiries),
        (
            "agent_journal_unreadable_records_total",
            "Lines of the journal that could not be read at the agent's start.",
            counts.unreadable_records,
        ),
        ("agent_rounds_total", "Rounds of the control loop.", state.counts.rounds),
        ("agent_late_rounds_total", "Rounds that began more than a tick late.", state.counts.late_rounds),
        ("agent_failed_rounds_total", "Rounds that ended in an error of the agent itself.", state.counts.failed_rounds),
        ("agent_step_reports_total", "Reports of training processes.", state.counts.reports),
    ):
        series.counter(name, text, count)
    text = "Energy counters that started again."
    series.counter("agent_energy_restarts_total", text, counts.counter_resets, cause="fell-back")


class MetricsServer:
    """GET /metrics and GET /healthz on a TCP port (0: any)."""

    def __init__(
        self,
        collector: AgentCollector,
        *,
        host: str = "0.0.0.0",  # noqa: S104
        port: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agents = collector.agents
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        self._host, self._port = host, port
        self._http = HttpServer(self._answer, max_connections=MAX_CONNECTIONS, serves_newest=True, monotonic=monotonic)
        self._server: asyncio.Server | None = None
        self._scrapes = Scrapes(TokenBucket(SCRAPES_PER_SECOND, SCRAPE_BURST, monotonic))

    async def start(self) -> int:
        """Serve; returns the port. Raises OSError where it is taken."""
        self._server = await asyncio.start_server(self._http.connected, self._host, self._port)
        return int(self._server.sockets[0].getsockname()[1])

    async def serve(self) -> None:
        """Serve until cancelled; a port that is taken is tried again, since an agent without metrics still governs."""
        backoff, last_error = Backoff(), ""
        try:
            while self._server is None:
                try:
                    logger.info("metrics served", port=await self.start())
                except OSError as error:
                    if str(error) != last_error:
                        last_error = str(error)
                        logger.error("metrics not served", error=last_error)
                    await backoff.pause()
            while True:
                await asyncio.sleep(IDLE_SECONDS / 2)
                self._http.reap(IDLE_SECONDS)
        finally:
            await self.stop()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._http.close()

    async def _answer(self, request: HttpRequest) -> Response:
        if request.path not in ("/metrics", "/healthz"):
            return Response(404, b"there is /metrics and /healthz\n", TEXT)
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"GET only\n", TEXT, headers=(("Allow", "GET, HEAD"),))
        return self._metrics(request) if request.path == "/metrics" else self._healthy()

    def _metrics(self, request: HttpRequest) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return self._scrapes.answer(request, content_type, lambda: encode(self._registry))

    def _healthy(self) -> Response:
        """200 while every agent makes rounds, else 503; the age of each one's last round."""
        lines, well = [], True
        for agent in self._agents:
            age = agent.round_age_seconds
            well = well and agent.fresh
            lines.append(f"{agent.node}: " + ("no round yet" if age is None else f"last round {age:.1f} s ago"))
        words = "".join(f"{line}\n" for line in lines) or "no agent\n"
        return Response(200 if well else 503, words.encode(), TEXT)
