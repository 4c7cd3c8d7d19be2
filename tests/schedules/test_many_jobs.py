"""A thousand jobs at once, and a cap that goes up and down: the whole operator and real agents in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

import pytest
from flyball_kube.resources import ENERGY_AWARE_JOBS

from tests.support.examples import examples
from tests.support.power_cluster import GPUS, MIN, NODES, OVERHEAD_WATTS, cap_watts
from tests.support.schedules.faults import Schedule
from tests.support.schedules.memory_api import Change, Json
from tests.support.schedules.run import run
from tests.support.schedules.workloads import WholeOperatorProcess, Workloads, job, until
from tests.support.schedules.world import Beginning, World

SUBMIT_SECONDS = 0.5  # all of them
BEGINNING = Beginning((10, 10, 10), (False,) * 3, ((MIN, 1.0),) * (len(NODES) * GPUS))


async def a_thousand_at_once(world: World, schedule: Schedule) -> None:
    world.operator_kind = WholeOperatorProcess
    workloads = Workloads(world)
    try:
        await world.begin(schedule.beginning)
        for machine in world.machines.values():
            machine.held = {}
        world.show_pods()

        def statuses() -> list[Json]:
            return [item.get("status") or {} for item in world.api.items["energyawarejobs"].values()]

        await until(lambda: world.limits_watts() == len(NODES) * GPUS * MIN, "idle GPUs at their smallest limits", 10.0)
        leader = world.leader()
        assert leader is not None
        planner = cast(WholeOperatorProcess, world.operators[leader]).planner
        planner.plans.clear()
        workloads.requests.clear()
        jobs = examples(1000)
        for index in range(jobs):
            world.api.put(ENERGY_AWARE_JOBS.plural, job(index))
            await asyncio.sleep(SUBMIT_SECONDS / jobs)
        # While their statuses are on the way, the cap falls to where the jobs that have begun do not fit at full power.
        await until(lambda: world.limits_watts() > len(NODES) * GPUS * MIN, "the first jobs have been granted", 3.0)
        low = cap_watts("hall", 3)
        world.set_cap("hall", 3)
        await until(lambda: world.limits_watts() + OVERHEAD_WATTS["hall"] <= low, "the cut is in force", 1.0)
        await until(lambda: all(item.get("observedGeneration") for item in statuses()), "every job is told", 10.0)

        def running() -> int:
            return sum(pod["status"]["phase"] == "Running" for pod in world.api.items["pods"].values())

        await until(lambda: running() == len(NODES) * GPUS, "every GPU is in use", 10.0)
        assert world.leader() == leader
        # One plan of those that came while nothing was planned, one of all, and one for the cap that fell.
        assert len(planner.plans) <= 4
        assert planner.plans[-1] == jobs
        requests = workloads.requests
        assert requests["POST jobs"] == len(NODES) * GPUS
        assert requests["PATCH gpunodes"] <= 4 * len(NODES)
        assert 0 < requests["PUT energyawarejobs/status"] <= 3 * jobs
        assert sum(requests.values()) <= 3 * jobs + 100
    finally:
        await world.close()


def test_a_thousand_jobs_at_once_are_one_plan_and_no_storm() -> None:
    assert not run(Schedule(1, BEGINNING, ()), play=a_thousand_at_once).violation


async def twenty_toggles(world: World, schedule: Schedule) -> None:
    """Six jobs, and a cap over four of them that cannot be held when it falls, and rises again: twenty times in four
    minutes."""
    world.operator_kind = WholeOperatorProcess
    Workloads(world)
    starts: Counter[str] = Counter()

    def started(change: Change) -> None:
        if change.kind == "ADDED":
            starts[change.item["metadata"]["ownerReferences"][0]["name"]] += 1

    def state(of: str) -> str:
        return str((world.api.items["energyawarejobs"][of].get("status") or {}).get("state"))

    names = [f"job-{index}" for index in range(len(NODES) * GPUS)]
    try:
        await world.begin(schedule.beginning)
        world.api.open("jobs", world.api.version, started)
        for machine in world.machines.values():
            machine.held = {}
        world.show_pods()
        for index in range(len(names)):
            world.api.put(ENERGY_AWARE_JOBS.plural, job(index))
        await until(lambda: all(state(name) == "Running" for name in names), "all jobs run", 20.0)
        paused: set[str] = set()
        for toggle in range(20):
            world.set_cap("rack", 10 if toggle % 2 else 1)
            await asyncio.sleep(12.0)
            paused |= {name for name in names if state(name) == "PowerBackOff"}
        assert paused, "the low cap takes nobody's watts: nothing is shown"
        assert paused != set(names), "who is not under the cap runs on"
        assert all(state(name) == "Running" for name in names if name not in paused)
        assert max(starts.values()) <= 2, starts
    finally:
        await world.close()


@pytest.mark.slow
def test_a_cap_that_goes_up_and_down_twenty_times_restarts_a_job_at_most_once() -> None:
    assert not run(Schedule(1, BEGINNING, ()), play=twenty_toggles).violation
