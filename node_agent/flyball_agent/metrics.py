"""Prometheus metrics of one agent or many, made from their state at each scrape: absolute counters, no bookkeeping.

About 30 series a board and 30 a node; labels are boards, pods, and closed lists, never a process or a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from flyball_agent.agent import NodeAgent
from flyball_agent.board import BoardState
from flyball_agent.core import Mode
from flyball_agent.gpu import ThrottleReason

HERTZ_PER_MEGAHERTZ = 1_000_000


class _Families:
    """The families of one scrape, made when first used; every series begins with the node's labels."""

    def __init__(self) -> None:
        self.by_name: dict[str, Metric] = {}

    def gauge(self, name: str, text: str, labels: Sequence[str], values: Sequence[str], value: float) -> None:
        family = self.by_name.get(name)
        if family is None:
            family = self.by_name[name] = GaugeMetricFamily(f"flyball_{name}", text, labels=labels)
        family.add_metric(values, value)  # type: ignore[attr-defined]

    def counter(self, name: str, text: str, labels: Sequence[str], values: Sequence[str], value: float) -> None:
        family = self.by_name.get(name)
        if family is None:
            family = self.by_name[name] = CounterMetricFamily(f"flyball_{name}", text, labels=labels)
        family.add_metric(values, value)  # type: ignore[attr-defined]


class AgentCollector(Collector):
    """Collects from the agents that `agents()` names at each scrape. With `node_label` every series has a `node`."""

    def __init__(self, agents: Iterable[NodeAgent], *, node_label: bool = False) -> None:
        self._agents = agents
        self._node_label = node_label

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time: the families are made at each scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        families = _Families()
        for agent in self._agents:
            labels, values = (("node",), (agent.node,)) if self._node_label else ((), ())
            _node(families, agent, labels, values)
            _pods(families, agent, labels, values)
            for board in agent.enforcer.boards.values():
                _board(families, agent, board, (*labels, "gpu"), (*values, board.uuid))
        yield from families.by_name.values()


def _board(f: _Families, agent: NodeAgent, board: BoardState, labels: tuple[str, ...], values: tuple[str, ...]) -> None:
    limits, reading = board.limits, board.reading
    info = (board.model, str(board.index), agent.driver.version)
    f.gauge("gpu_info", "What the board is.", (*labels, "model", "index", "driver"), (*values, *info), 1)
    text = "Whether the board can be read."
    f.gauge("gpu_up", text, labels, values, float(board.limit is not None))
    kinds = {"min": limits.min_milliwatts, "max": limits.max_milliwatts, "default": limits.default_milliwatts}
    if board.limit is not None:
        kinds |= {"requested": board.limit.requested_milliwatts, "enforced": board.limit.enforced_milliwatts}
    for kind, milliwatts in kinds.items():
        text = "Power limits, as the driver tells them."
        f.gauge("gpu_power_limit_watts", text, (*labels, "kind"), (*values, kind), milliwatts / 1000)
    if board.lock is not None:
        for bound, megahertz in zip(("min", "max"), board.lock, strict=True):
            text = "The clock range that Flyball has set (0: not locked)."
            hertz = megahertz * HERTZ_PER_MEGAHERTZ
            f.gauge("gpu_locked_clock_hertz", text, (*labels, "bound"), (*values, bound), hertz)
    energy = agent.attribution.ledger.boards.get(board.uuid, 0)
    text = "Energy that the board has used since its journal began."
    f.counter("gpu_energy_joules_total", text, labels, values, energy / 1000)
    for reason in ThrottleReason:
        text = "Time in which the clock was held down, by reason, sampled once a round."
        seconds = board.throttled_seconds.get(int(reason), 0.0)
        name = reason.name or str(int(reason))
        f.counter("gpu_throttled_seconds_total", text, (*labels, "reason"), (*values, name.lower()), seconds)
    if reading is None:
        return
    for kind, power in (("average", reading.average_power_milliwatts), ("instant", reading.instant_power_milliwatts)):
        if power is not None:
            text = "Power, as the board's sensor tells it."
            f.gauge("gpu_power_watts", text, (*labels, "kind"), (*values, kind), power / 1000)
    if reading.sm_clock_megahertz is not None:
        hertz = reading.sm_clock_megahertz * HERTZ_PER_MEGAHERTZ
        f.gauge("gpu_sm_clock_hertz", "The SM clock now.", labels, values, hertz)
    if reading.utilization_percent is not None:
        text = "The share of time in which a kernel ran."
        f.gauge("gpu_utilization_ratio", text, labels, values, reading.utilization_percent / 100)
    if reading.temperature_celsius is not None:
        text = "The die's temperature."
        f.gauge("gpu_temperature_celsius", text, labels, values, reading.temperature_celsius)


def _pods(f: _Families, agent: NodeAgent, labels: tuple[str, ...], values: tuple[str, ...]) -> None:
    ledger = agent.attribution.ledger
    jobs = {(job.namespace, job.pod_name): job.name for job in agent.observations}
    for pod, hold in agent.pods.items():
        shared = any(pod in board.pods and len(board.pods) > 1 for board in agent.enforcer.boards.values())
        f.counter(
            "pod_gpu_energy_joules_total",
            "Energy attributed to a pod that holds boards now.",
            (*labels, "namespace", "pod", "job", "method"),
            (
                *values,
                pod.namespace,
                pod.name,
                jobs.get((pod.namespace, pod.name), ""),
                "shared" if shared else "exclusive",
            ),
            agent.attribution.pod_millijoules(hold.energy_key) / 1000,
        )
    for name, text, millijoules in (
        ("idle_energy_joules_total", "Energy of boards that no pod held.", ledger.idle),
        ("unattributed_energy_joules_total", "Energy of which nobody knows whose it was.", ledger.unattributed),
        ("discarded_energy_joules_total", "Jumps of energy counters beyond what a board can draw.", ledger.discarded),
    ):
        f.counter(name, text, labels, values, millijoules / 1000)


def _node(f: _Families, agent: NodeAgent, labels: tuple[str, ...], values: tuple[str, ...]) -> None:
    enforcer, tally = agent.enforcer, agent.enforcer.tally
    ack = enforcer.acknowledged
    f.gauge("agent_info", "The agent.", (*labels, "version"), (*values, agent.version), 1)
    text = "The generation of the last spec that is in force as read back (-1: none yet)."
    f.gauge("agent_plan_generation", text, labels, values, -1 if ack is None else ack.generation)
    text = "The epoch of the last spec that is in force as read back (-1: none yet)."
    f.gauge("agent_plan_epoch", text, labels, values, -1 if ack is None else ack.epoch)
    text = "What the limits may add up to under the last spec."
    f.gauge("agent_grant_watts", text, labels, values, (enforcer.spec.grant_milliwatts / 1000) if enforcer.spec else 0)
    text = "What the limits add up to, as read back."
    held = sum(board.held_milliwatts for board in enforcer.boards.values())
    f.gauge("agent_held_watts", text, labels, values, held / 1000)
    text = "How long the grant holds without a sign of the operator."
    f.gauge("agent_lease_remaining_seconds", text, labels, values, enforcer.lease_remaining_seconds())
    for mode in Mode:
        text = "What the agent is doing."
        f.gauge("agent_mode", text, (*labels, "mode"), (*values, str(mode)), float(enforcer.mode is mode))
    text = "Whether the journal takes writes; where not, no limit is raised."
    f.gauge("agent_journal_ok", text, labels, values, float(enforcer.journal.degraded is None))
    for operation in ("lower", "raise"):
        text = "Time spent in sets of power limits and their read-back."
        seconds = tally.applied_seconds.get(operation, 0.0)
        f.counter("agent_apply_seconds_total", text, (*labels, "op"), (*values, operation), seconds)
        text = "Sets of power limits."
        f.counter("agent_apply_total", text, (*labels, "op"), (*values, operation), tally.applied.get(operation, 0))
    for (operation, code), count in sorted(tally.errors.items()):
        text = "Driver calls that failed."
        f.counter("agent_nvml_errors_total", text, (*labels, "op", "code"), (*values, operation, str(code)), count)
    for name, text, count in (
        (
            "agent_drift_corrections_total",
            "Limits that someone else changed and the agent put back.",
            tally.drift_corrections,
        ),
        ("agent_specs_refused_total", "Specs below one that was accepted before.", tally.refused_specs),
        ("agent_lease_renewals_total", "Signs of the operator that kept the grant alive.", tally.lease_renewals),
        ("agent_lease_expiries_total", "Times that the lease ran out.", tally.lease_expiries),
        ("agent_rounds_total", "Rounds of the control loop.", agent.tally.rounds),
        ("agent_late_rounds_total", "Rounds that began more than a tick late.", agent.tally.late_rounds),
        ("agent_failed_rounds_total", "Rounds that ended in an error of the agent itself.", agent.tally.failed_rounds),
        ("agent_step_reports_total", "Reports of training processes.", agent.tally.reports),
    ):
        f.counter(name, text, labels, values, count)
    text = "Energy counters that started again."
    f.counter("agent_counter_resets_total", text, (*labels, "cause"), (*values, "fell-back"), tally.counter_resets)


class MetricsServer:
    """GET /metrics and GET /healthz on a TCP port (0: any)."""

    def __init__(self, collector: AgentCollector, *, host: str = "0.0.0.0", port: int = 0) -> None:  # noqa: S104
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Serve; returns the port. Raises OSError where it is taken."""
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthy)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")
