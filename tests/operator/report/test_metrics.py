"""The operator's metrics as a Prometheus sees them: over HTTP, in whole nodes, with series that end."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from flyball_api.energy.quota import EnergyQuota, read_energy_quota
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.power_cap import read_power_cap
from flyball_api.values.units import NodeMilliwatts
from flyball_api.workloads import IncarnationView
from flyball_operator.cluster.outcome import Outcome
from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep
from flyball_operator.jobs.runs.memory import JobMemory
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.runs.queue import JobQueue
from flyball_operator.jobs.steps.step import LiveJob
from flyball_operator.power.caps.meter import MeterPhase, MeterState
from flyball_operator.power.caps.schedule import EffectiveCap
from flyball_operator.power.caps.state import CapState
from flyball_operator.power.nodes.info import NodeInfo, read_nodes
from flyball_operator.report import job_series, quota_series
from flyball_operator.report.metrics import NODE_STATES, OperatorMetrics
from flyball_planner.models.gpu import catalogue
from flyball_planner.models.priors import model_class_prior
from flyball_planner.shifting import Signal
from flyball_planner.snapshot import Admission, Allocation, ExpectedStart, JobDecision, Queue
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from tests.support.metrics_document import described, documented
from tests.support.operator_objects import FLOOR, NOW, gpu_node_view, grant, node_view

MODEL = model_class_prior("resnet50", catalogue()["NVIDIA-A100-SXM4-40GB"])
# Whatever proxy the environment names is not on the way to loopback.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Scraped:
    """One scrape: values by sample name and labels, types by family."""

    def __init__(self, text: str) -> None:
        self.samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.types: dict[str, str] = {}
        for family in text_string_to_metric_families(text):
            self.types[family.name] = family.type
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert key not in self.samples, f"{key} twice"
                self.samples[key] = sample.value

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.samples.get((f"flyball_{name}", tuple(sorted(labels.items()))))

    def count(self, name: str) -> int:
        return sum(sample == f"flyball_{name}" for sample, _ in self.samples)


class Target:
    """Metrics that are served, and a scraper."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.metrics = OperatorMetrics(monotonic=self.clock)
        self.port = 0

    async def scrape(self) -> Scraped:
        return await asyncio.to_thread(self._scrape)

    def _scrape(self) -> Scraped:
        with OPENER.open(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            return Scraped(answer.read().decode())


@pytest_asyncio.fixture
async def target() -> AsyncIterator[Target]:
    target = Target()
    target.port = await target.metrics.serve(0, "127.0.0.1")
    yield target
    await target.metrics.close()


def milliwatts(watts: float) -> NodeMilliwatts:
    return NodeMilliwatts(round(watts * 1000))


def cap(name: str, watts: float, committed: float, measured: float, least: float = 100.0) -> CapState:
    view = read_power_cap({"metadata": {"name": name, "uid": name}, "spec": {"watts": 5000}})
    assert view.spec is not None
    effective = EffectiveCap(watts, "", 0.0, watts)
    sums = milliwatts(committed), milliwatts(least), milliwatts(measured)
    return CapState(view, view.spec, frozenset(), frozenset(), frozenset(), effective, *sums, sums[0], {})


def observe(metrics: OperatorMetrics, *jobs: LiveJob, **decisions: JobDecision) -> None:
    metrics.observe_jobs(jobs, decisions, lambda job: MODEL)


def decided(gpus: int, megahertz: int, watts: float = 250.0, seconds: float = 0.5) -> JobDecision:
    allocation = Allocation((("n1", gpus),), megahertz, 300.0)
    return JobDecision("any", allocation, Admission.ADMITTED, "", seconds, watts)


def kept(
    name: str,
    *,
    running: bool = True,
    budget: int | None = None,
    created: int = 0,
    state: str = "",
    dated: bool = False,
    late: bool = False,
    **progress: Any,
) -> LiveJob:
    energy = {} if budget is None else {"energy": {"budgetKilojoules": budget}}
    deadline = {"deadline": "2026-03-09T11:00:00Z"} if dated or late else {}
    conditions = [{"type": "DeadlineAtRisk", "status": str(late), "reason": "OnTime"}]
    view = read_energy_aware_job(
        {
            "metadata": {
                "name": name,
                "namespace": "research",
                "uid": name,
                "resourceVersion": "1",
                "creationTimestamp": f"2026-03-02T11:00:{created:02}Z",
            },
            "spec": {
                "gpus": {"min": 1, "max": 8},
                "training": {"globalBatchSize": 64, "iterations": 1000},
                "template": {},
                **energy,
                **deadline,
            },
            "status": {
                "conditions": conditions,
                **({"state": state, "energy": {"projectedKilojoules": 12}} if state else {}),
            },
        }
    )
    current = IncarnationView("research", name, "u", name, name, 1, (("n1", 4), ("n2", 4)), False, False, False, "")
    told: dict[str, Any] = {
        "iterations": 250.0, "iterations_per_second": 2.5, "settled_millijoules": 1_500_000,
        "open_millijoules": {"1/n1": 500}, "watts": 1900.0, "clock_megahertz": 1200,
    }  # fmt: skip
    step = JobStep(JobPhase.RUNNING if running else JobPhase.WAITING, current if running else None)
    return LiveJob(view, JobMemory(JobProgress(**told | progress), None, running), step, ())


def node(name: str, **fields: Any) -> NodeInfo:
    return replace(read_nodes([node_view(name)], {}, [], frozenset())[name], **fields)


def queue(*starts: tuple[str, float | None]) -> JobQueue:
    """A queue of these jobs, each with the seconds after which it can expect to start where that is known."""
    known = tuple(ExpectedStart(uid, seconds, "") for uid, seconds in starts if seconds is not None)
    return JobQueue.of(Queue(tuple(uid for uid, _ in starts), known), NOW)


def quota(namespace: str, *, gpus: int | None = 8, used: int = 250, energy: bool = True) -> EnergyQuota:
    budget = {"energyBudget": {"kilojoules": 1000, "periodSeconds": 86400}} if energy else {}
    period = (
        {"energyPeriod": {"start": "2026-01-01T00:00:00Z", "consumedMillijoules": used * 1_000_000}} if energy else {}
    )
    return read_energy_quota(
        {
            "metadata": {"name": "bound", "namespace": namespace, "uid": namespace, "resourceVersion": "1"},
            "spec": {**({} if gpus is None else {"gpus": gpus}), **budget},
            "status": {"allocated": {"gpus": 5}, **period},
        }
    )


def full_metrics() -> OperatorMetrics:
    """Metrics that have seen one of everything, so that every family has a series."""
    metrics = OperatorMetrics(version="1.2", policy="price")
    metered = replace(cap("row", 3000, 3100, 3300), meter=MeterState(MeterPhase.CUT, 0.0, allowed_watts=2500.0))
    metrics.observe_caps([metered, replace(cap("seen", 1, 1, 1), if_governed=cap("seen", 1, 1, 1))], ())
    jobs = [kept("dated", budget=9, state="Running", dated=True), kept("waits", running=False)]
    metrics.observe_jobs(jobs, {"dated": decided(8, 1200)}, lambda job: MODEL, queue(("waits", 60.0)))
    metrics.observe_nodes([node("n1")])
    metrics.observe_ages({"pods": 1.5})
    metrics.observe_clock(-3.5)
    metrics.observe_quotas([quota("team")])
    metrics.observe_waiting_batch_jobs({"WaitingForWatts": 2})
    metrics.observe_signal(Signal.of([(NOW.timestamp() - 60, 412.0)], " gCO2/kWh"), NOW)
    metrics.observe_owners([(("web", "Deployment/serve"), 2_500)])
    metrics.count_action("write-grant")
    return metrics


def test_the_energy_of_pods_outside_flyball_is_told_by_whose_they_are() -> None:
    metrics = full_metrics()
    labels = {"namespace": "web", "owner": "Deployment/serve"}
    assert metrics.registry.get_sample_value("flyball_owner_energy_joules_total", labels) == 2.5
    metrics.observe_owners([])
    assert metrics.registry.get_sample_value("flyball_owner_energy_joules_total", labels) is None


def test_the_document_has_every_metric_as_it_is_served() -> None:
    served = described(full_metrics().registry.collect())
    assert served == documented("The operator")
    prefixed = re.compile(r"_(milli|micro|kilo|mega|giga)|_(hours|minutes|percent|kwh)\b")
    assert [name for name in served if prefixed.search(name)] == []


async def test_caps(target: Target) -> None:
    metrics = target.metrics
    metrics.observe_caps([cap("rack", 5000, 4200, 3900), cap("row", 3000, 3100, 3300)], {"row"})
    seen = await target.scrape()
    assert seen("cap_watts", cap="rack") == 5000
    assert seen("cap_committed_watts", cap="rack") == 4200
    assert seen("cap_measured_watts", cap="rack") == 3900
    assert seen("cap_headroom_watts", cap="rack") == 800
    assert seen("cap_headroom_watts", cap="row") == -100
    assert (seen("cap_feasible", cap="rack"), seen("cap_feasible", cap="row")) == (1, 0)
    assert (seen("cap_enforced", cap="rack"), seen("cap_enforced", cap="row")) == (1, 0)
    assert (seen("cap_proof_stale", cap="rack"), seen("cap_proof_stale", cap="row")) == (0, 0)
    assert seen.types["flyball_cap_overshoot_joules"] == "counter"


async def test_a_cap_below_the_least_that_its_nodes_draw_is_not_feasible(target: Target) -> None:
    target.metrics.observe_caps([cap("rack", 5000, 4200, 3900, least=5001)], ())
    assert (await target.scrape())("cap_feasible", cap="rack") == 0


async def test_a_cap_that_only_doubt_keeps_from_being_enforced(target: Target) -> None:
    doubted = replace(cap("row", 3000, 3100, 2000), committed_if_believed=milliwatts(2900))
    target.metrics.observe_caps([doubted], ())
    seen = await target.scrape()
    assert (seen("cap_enforced", cap="row"), seen("cap_proof_stale", cap="row")) == (0, 1)


async def test_nobody_calls_a_cap_enforced_that_is_only_observed(target: Target) -> None:
    governed = cap("row", 3000, 2500, 2000)
    target.metrics.observe_caps([replace(cap("row", 3000, 2900, 2000), if_governed=governed)], ())
    seen = await target.scrape()
    assert (seen("cap_enforced", cap="row"), seen("cap_committed_watts", cap="row")) == (None, 2900)
    assert (seen("cap_if_governed_watts", cap="row"), seen("cap_proof_stale", cap="row")) == (2500, 0)


async def test_overshoot_is_what_was_measured_above_the_cap_over_time(target: Target) -> None:
    metrics, clock = target.metrics, target.clock
    metrics.observe_caps([cap("rack", 1000, 900, 1500)], ())  # no time has gone by that anyone saw
    for measured in (1200, 900, 1100):
        clock.now += 2
        metrics.observe_caps([cap("rack", 1000, 900, measured)], ())
    seen = await target.scrape()
    assert seen("cap_overshoot_joules_total", cap="rack") == 2 * 200 + 2 * 100
    assert seen("cap_overshoot_seconds_total", cap="rack") == 4
    # The time in which another operator led is not ours to count, what was counted stays.
    metrics.set_leader(False)
    clock.now += 1000
    metrics.set_leader(True)
    metrics.observe_caps([cap("rack", 1000, 900, 1100)], ())
    assert (await target.scrape())("cap_overshoot_seconds_total", cap="rack") == 4


async def test_jobs(target: Target) -> None:
    waiting = kept("waiting", running=False, state="WaitingForPower")
    observe(target.metrics, kept("gpt2", budget=9, state="Running"), waiting, kept("new", running=False))
    seen = await target.scrape()
    labels = {"namespace": "research", "job_name": "gpt2"}
    assert seen("job_energy_joules_total", **labels) == 1500.5
    assert seen("job_energy_budget_joules", **labels) == 9000
    assert seen("job_iterations_per_second", **labels) == 2.5
    assert seen("job_gpus", **labels) == 8
    labels["job_name"] = "waiting"
    assert seen("job_energy_budget_joules", **labels) is None
    assert (seen("job_gpus", **labels), seen("job_iterations_per_second", **labels)) == (0, 0)
    assert [seen("jobs", state=state) for state in ("Running", "WaitingForPower", "New")] == [1, 1, 1]


async def test_the_place_and_the_start_of_jobs_that_wait(target: Target) -> None:
    waiting = [kept(name, running=False) for name in ("first", "second")]
    places = queue(("first", 90.0), ("second", None))
    target.metrics.observe_jobs([*waiting, kept("runs")], {}, lambda job: MODEL, places)
    seen = await target.scrape()

    def of(job: str, metric: str) -> float | None:
        return seen(f"job_{metric}", namespace="research", job_name=job)

    assert [of(job, "queue_position") for job in ("first", "second", "runs")] == [1, 2, None]
    starts = [of(job, "expected_start_timestamp_seconds") for job in ("first", "second", "runs")]
    assert starts == [NOW.timestamp() + 90, None, None]


async def test_what_tenants_have_used_and_may_use(target: Target) -> None:
    target.metrics.observe_quotas([quota("team"), quota("free", gpus=None, energy=False)])
    seen = await target.scrape()

    def of(namespace: str) -> list[float | None]:
        names = ("energy_joules", "energy_budget_joules", "gpus", "most_gpus")
        return [seen(f"quota_{name}", namespace=namespace, quota="bound") for name in names]

    assert of("team") == [250_000, 1_000_000, 5, 8]
    assert of("free") == [None, None, 5, None]


async def test_series_of_quotas_are_bounded(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_series, "MAX_QUOTAS", 2)
    target.metrics.observe_quotas([quota(f"t{number}") for number in range(4)])
    assert (await target.scrape()).count("quota_gpus") == 2


async def test_a_signal_that_has_ended_has_an_end_and_no_value(target: Target) -> None:
    signal = Signal.of([(NOW.timestamp() - 7200, 412.0), (NOW.timestamp() - 3600, 300.0)], " EUR/MWh")
    target.metrics.observe_signal(signal, NOW)
    seen = await target.scrape()
    assert seen("grid_signal", unit="EUR/MWh") is None
    assert seen("grid_signal_end_timestamp_seconds", unit="EUR/MWh") == NOW.timestamp()
    target.metrics.observe_signal(signal, NOW - timedelta(hours=1, seconds=1))
    assert (await target.scrape())("grid_signal", unit="EUR/MWh") == 412


async def test_who_does_not_lead_says_nothing_of_quotas_batch_jobs_and_signal(target: Target) -> None:
    metrics = full_metrics()
    metrics.set_leader(False)
    names = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    assert not [name for name in names if re.match("flyball_(quota|batch|grid|job_queue)", name)]


async def test_what_a_running_job_does(target: Target) -> None:
    told = kept("told", state="Running")
    silent = kept("silent", iterations=4000.0, watts=0.0, clock_megahertz=0, estimated=True)
    observe(target.metrics, told, silent, kept("waiting", running=False, state="WaitingForGpus", late=True))
    seen = await target.scrape()

    def of(job: str, metric: str, **labels: str) -> float | None:
        return seen(f"job_{metric}", namespace="research", job_name=job, **labels)

    assert (of("told", "progress_ratio"), of("told", "clock_hertz"), of("told", "power_watts")) == (0.25, 1.2e9, 1900)
    # The model may be ahead of a job that says nothing; and what it draws is not known.
    assert (of("silent", "progress_ratio"), of("silent", "clock_hertz"), of("silent", "power_watts")) == (1, None, None)
    assert (of("waiting", "progress_ratio"), of("waiting", "power_watts")) == (0.25, None)
    assert (of("told", "state", state="Running"), of("waiting", "state", state="WaitingForGpus")) == (1, 1)
    assert (of("told", "deadline_at_risk"), of("waiting", "deadline_at_risk")) == (None, 1)
    assert (of("told", "projected_energy_joules"), of("silent", "projected_energy_joules")) == (12_000, None)


@pytest.mark.parametrize(
    ("decision", "progress", "compared"),
    [
        (decided(8, 1200), {}, True),
        (decided(8, 1210), {}, True),
        (decided(8, 1410), {}, False),  # held back by a cap: the model spoke of another clock
        (decided(4, 1200), {}, False),  # about to be resized
        (decided(8, 1200), {"estimated": True}, False),  # its rate is the model's own
        (decided(8, 1200), {"watts": 0.0}, False),
        (None, {}, False),
    ],
)
async def test_a_job_is_compared_with_its_model_while_it_runs_as_planned(
    target: Target, decision: JobDecision | None, progress: dict[str, Any], compared: bool
) -> None:
    observe(target.metrics, kept("j", **progress), **({} if decision is None else {"j": decision}))
    seen = await target.scrape()
    labels = {"namespace": "research", "job_name": "j"}
    expected = (2000.0, 2.0) if compared else (None, None)
    assert (
        seen("job_predicted_power_watts", **labels),
        seen("job_predicted_iterations_per_second", **labels),
    ) == expected


async def test_savings_are_the_measured_energy_against_the_highest_clock(target: Target) -> None:
    metrics = target.metrics
    metrics.set_leader(True)
    observe(
        metrics, kept("j", settled_millijoules=7_000_000)
    )  # whatever it used before this process led is not counted
    observe(metrics, kept("j", settled_millijoules=9_000_000))
    seen = await target.scrape()
    assert seen("training_energy_joules_total") == 2000
    ratio = MODEL.iteration_joules(8, 2, 1410, 64) / MODEL.iteration_joules(8, 2, 1200, 64)
    assert ratio > 1.02
    assert seen("training_highest_clock_energy_joules_total") == pytest.approx(2000 * ratio)
    # At the highest clock there is nothing to be saved; a report that comes late takes nothing back.
    observe(metrics, kept("j", settled_millijoules=8_000_000, clock_megahertz=1410))
    observe(metrics, kept("j", settled_millijoules=10_000_000, clock_megahertz=1410))
    seen = await target.scrape()
    assert seen("training_energy_joules_total") == 3000
    assert seen("training_highest_clock_energy_joules_total") == pytest.approx(2000 * ratio + 1000)
    # What is used while another one leads is that one's to count; totals stay.
    metrics.set_leader(False)
    metrics.set_leader(True)
    observe(metrics, kept("j", settled_millijoules=50_000_000))
    assert (await target.scrape())("training_energy_joules_total") == 3000


async def test_series_end_with_their_objects_and_with_leadership(target: Target) -> None:
    metrics = target.metrics
    metrics.set_leader(True)
    metrics.observe_caps([cap("a", 1, 1, 1), cap("b", 1, 1, 1)], ())
    observe(metrics, kept("a"), kept("b"))
    metrics.observe_nodes([node("n1")])
    metrics.observe_caps([cap("b", 1, 1, 1)], ())
    observe(metrics, kept("b"))
    seen = await target.scrape()
    assert seen("cap_watts", cap="a") is None
    assert seen("cap_overshoot_joules_total", cap="a") is None
    assert seen("job_gpus", namespace="research", job_name="a") is None
    assert (seen("leader"), seen.count("cap_watts"), seen.count("job_gpus"), seen.count("nodes")) == (
        1,
        1,
        1,
        len(NODE_STATES),
    )
    metrics.set_leader(False)
    seen = await target.scrape()
    counts = [seen.count(name) for name in ("cap_watts", "job_gpus", "jobs", "nodes")]
    assert (seen("leader"), counts) == (0, [0, 0, 0, 0])


async def test_the_number_of_job_series_is_bounded(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_series, "MAX_JOBS", 2)
    observe(target.metrics, *(kept(f"job{number}", created=9 - number) for number in range(5)))
    seen = await target.scrape()
    assert seen.count("job_gpus") == 2
    assert seen("job_gpus", namespace="research", job_name="job4") == 8  # the oldest
    assert seen("job_series_left_out") == 3
    assert seen("jobs", state="New") == 5


async def test_nodes_are_counted_by_the_first_reason_not_to_be_ready(target: Target) -> None:
    acknowledged = gpu_node_view("n", grant(8 * FLOOR), limits=8 * FLOOR)
    rebooted = gpu_node_view("n", grant(8 * FLOOR), limits=8 * FLOOR, acknowledged_on=("boot-0", "driver-1"))
    cordoned = node_view("n", unschedulable=True)
    target.metrics.observe_nodes(
        [
            node("a", gpu_node=acknowledged),
            node("b", gpu_node=acknowledged),
            node("c", gpu_node=acknowledged, node=cordoned),
            node("d", gpu_node=acknowledged, responsive=False),
            node("e", responsive=False),
            node("f", gpu_node=rebooted),
            node("g", gpu_model=None),
            node("h", gpu_node=acknowledged, doubt="its Node is not ready"),
        ]
    )
    seen = await target.scrape()
    states = {state: seen("nodes", state=state) for state in NODE_STATES}
    assert states == {
        "ready": 2,
        "unschedulable": 1,
        "unresponsive": 1,
        "unproven": 1,
        "unacknowledged": 2,
        "unknown_gpu": 1,
    }
    target.metrics.observe_nodes([])
    assert (await target.scrape())("nodes", state="ready") == 0


async def test_plans_and_actions(target: Target) -> None:
    metrics, clock = target.metrics, target.clock
    for kind in ("write-grant", "write-grant", "open-gate"):
        metrics.count_action(kind)
    metrics.observe_plan(0.02)
    metrics.count_plan_failure()
    metrics.observe_cycle(0.002)
    metrics.observe_write(Outcome.DONE, 0.02)
    metrics.observe_write(Outcome.UNKNOWN, 12.0)
    for waiting in (0, 3, 1, 0, 0):
        metrics.observe_convergence(waiting)
        clock.now += 0.4
    seen = await target.scrape()
    assert seen("plan_actions_total", kind="write-grant") == 2
    assert seen("plan_actions_total", kind="open-gate") == 1
    assert (seen("plan_seconds_count"), seen("plan_seconds_sum")) == (1, 0.02)
    assert seen("plan_seconds_bucket", le="0.025") == 1
    assert (seen("plan_failures_total"), seen("cycle_failures_total")) == (1, 0)
    assert (seen("cycle_seconds_count"), seen("cycle_seconds_sum")) == (1, 0.002)
    assert not [name for name, _ in seen.samples if name.endswith("_created")]
    writes = [seen("api_write_seconds_count", outcome=outcome) for outcome in ("done", "refused", "unknown")]
    assert writes == [1, 0, 1]
    assert seen("plan_converge_seconds_count") == 1
    assert seen("plan_converge_seconds_sum") == pytest.approx(0.8)


async def test_ages_and_the_process_itself(target: Target) -> None:
    target.metrics.observe_ages({"pods": 1.5, "gpunodes": float("inf")})
    target.metrics.observe_clock(-3.5)
    seen = await target.scrape()
    assert seen("clock_ahead_seconds") == -3.5
    assert seen("informer_age_seconds", resource="pods") == 1.5
    assert seen("informer_age_seconds", resource="gpunodes") == float("inf")
    assert seen.samples[("process_resident_memory_bytes", ())] > 1e6


async def test_a_stuck_loop_is_scraped_all_the_same(target: Target) -> None:
    target.metrics.set_leader(True)
    assert target._scrape()("leader") == 1  # right here: while it runs, the event loop can do nothing


async def test_closing_ends_the_server_and_two_operators_do_not_share_series(target: Target) -> None:
    other = OperatorMetrics()
    port = await other.serve(0, "127.0.0.1")
    assert port != target.port
    other.count_action("write-grant")
    assert (await target.scrape())("plan_actions_total", kind="write-grant") is None
    with pytest.raises(OSError, match="in use"):
        await OperatorMetrics().serve(port, "127.0.0.1")
    await other.close()
    await other.close()
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(OPENER.open, f"http://127.0.0.1:{port}/metrics", None, 30)


def test_every_metric_is_described_and_carries_the_prefix() -> None:
    for family in OperatorMetrics().registry.collect():
        assert family.name.startswith(("flyball_", "process_"))
        assert family.documentation
