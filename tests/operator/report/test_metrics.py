"""The operator's metrics as a Prometheus sees them: over HTTP, in whole nodes, with series that end."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.power_cap import read_power_cap
from flyball_api.units import NodeMilliwatts
from flyball_api.workloads import IncarnationView
from flyball_operator.jobs.controller import LiveJob
from flyball_operator.jobs.lifecycle import JobStep, Phase
from flyball_operator.jobs.memory import JobMemory
from flyball_operator.jobs.progress import JobProgress
from flyball_operator.power.cap_schedule import EffectiveCap
from flyball_operator.power.cap_state import CapState
from flyball_operator.power.node_info import NodeInfo, read_nodes
from flyball_operator.report import metrics as metrics_module
from flyball_operator.report.metrics import NODE_STATES, OperatorMetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.support.operator_objects import FLOOR, gpu_node_view, grant, node_view

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


def kept(name: str, *, running: bool = True, budget: int | None = None, created: int = 0, state: str = "") -> LiveJob:
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
                "training": {"globalBatchSize": 64},
                "template": {},
                **({} if budget is None else {"energy": {"budgetKilojoules": budget}}),
            },
            "status": {"state": state} if state else {},
        }
    )
    current = IncarnationView("research", name, "u", name, name, 1, (("n1", 4), ("n2", 4)), False, False, False, "")
    progress = JobProgress(iterations_per_second=2.5, settled_millijoules=1_500_000, open_millijoules={"1/n1": 500})
    step = JobStep(Phase.RUNNING if running else Phase.WAITING, current if running else None)
    return LiveJob(view, JobMemory(progress, None, running), step, ())


def node(name: str, **fields: Any) -> NodeInfo:
    return replace(read_nodes([node_view(name)], {}, [], frozenset())[name], **fields)


def test_names_are_those_of_the_document_in_base_units() -> None:
    families = [family for family in OperatorMetrics().registry.collect() if family.name.startswith("flyball_")]
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    page = (Path(__file__).parents[3] / "docs/operator.md").read_text(encoding="utf-8")
    section = page.split("\n## Metrics\n")[1].split("\n## ")[0]
    documented = {
        f"flyball_{name}" for name in re.findall(r"`((?:cap|job|plan|informer)_\w+|jobs|nodes|leader)[`{]", section)
    }
    assert documented == names
    prefixed = re.compile(r"_(milli|micro|kilo|mega|giga)|_(hours|minutes|percent|kwh)\b")
    assert [name for name in names if prefixed.search(name)] == []


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
    assert seen.types["flyball_cap_overshoot_joules"] == "counter"


async def test_a_cap_below_the_least_that_its_nodes_draw_is_not_feasible(target: Target) -> None:
    target.metrics.observe_caps([cap("rack", 5000, 4200, 3900, least=5001)], ())
    assert (await target.scrape())("cap_feasible", cap="rack") == 0


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
    target.metrics.observe_jobs([kept("gpt2", budget=9, state="Running"), waiting, kept("new", running=False)])
    seen = await target.scrape()
    labels = {"namespace": "research", "job": "gpt2"}
    assert seen("job_energy_joules_total", **labels) == 1500.5
    assert seen("job_energy_budget_joules", **labels) == 9000
    assert seen("job_iterations_per_second", **labels) == 2.5
    assert seen("job_gpus", **labels) == 8
    labels["job"] = "waiting"
    assert seen("job_energy_budget_joules", **labels) is None
    assert (seen("job_gpus", **labels), seen("job_iterations_per_second", **labels)) == (0, 0)
    assert [seen("jobs", state=state) for state in ("Running", "WaitingForPower", "New")] == [1, 1, 1]


async def test_series_end_with_their_objects_and_with_leadership(target: Target) -> None:
    metrics = target.metrics
    metrics.set_leader(True)
    metrics.observe_caps([cap("a", 1, 1, 1), cap("b", 1, 1, 1)], ())
    metrics.observe_jobs([kept("a"), kept("b")])
    metrics.observe_nodes([node("n1")])
    metrics.observe_caps([cap("b", 1, 1, 1)], ())
    metrics.observe_jobs([kept("b")])
    seen = await target.scrape()
    assert seen("cap_watts", cap="a") is None
    assert seen("cap_overshoot_joules_total", cap="a") is None
    assert seen("job_gpus", namespace="research", job="a") is None
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
    monkeypatch.setattr(metrics_module, "MAX_JOBS", 2)
    target.metrics.observe_jobs([kept(f"job{number}", created=9 - number) for number in range(5)])
    seen = await target.scrape()
    assert seen.count("job_gpus") == 2
    assert seen("job_gpus", namespace="research", job="job4") == 8  # the oldest
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
    for waiting in (0, 3, 1, 0, 0):
        metrics.observe_convergence(waiting)
        clock.now += 0.4
    seen = await target.scrape()
    assert seen("plan_actions_total", kind="write-grant") == 2
    assert seen("plan_actions_total", kind="open-gate") == 1
    assert (seen("plan_seconds_count"), seen("plan_seconds_sum")) == (1, 0.02)
    assert seen("plan_seconds_bucket", le="0.025") == 1
    assert seen("plan_converge_seconds_count") == 1
    assert seen("plan_converge_seconds_sum") == pytest.approx(0.8)


async def test_ages_and_the_process_itself(target: Target) -> None:
    target.metrics.observe_ages({"pods": 1.5, "gpunodes": float("inf")})
    seen = await target.scrape()
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
