"""Tenants of one cluster: fair shares between namespaces, and what an EnergyQuota leaves the jobs of one."""

from __future__ import annotations

from flyball_testbed.controlplane.api import Json
from flyball_testbed.parts import OPERATOR

from tests.support.site_bench import Bench, condition, reason

LONG = 1_000_000
DAY = 86_400


def consumed_kilojoules(quota: Json | None) -> int:
    return int(((quota or {}).get("status", {}).get("energyPeriod") or {}).get("consumedKilojoules") or 0)


def test_a_namespace_with_one_job_gets_in_beside_one_with_a_hundred(bench: Bench, neighbour: Bench) -> None:
    names = [f"many-{index:02d}" for index in range(100)]
    bench.api.for_each(lambda name: bench.submit(name, gpus=(8, 8), iterations=LONG), names)

    def running() -> list[str]:
        jobs = bench.objects("energyawarejobs", "/apis/flyball.dev/v1alpha1")
        return [raw["metadata"]["name"] for raw in jobs if condition(raw, "PodsReady") == "True"]

    bench.wait(lambda: len(running()) == 4, lambda: f"all four nodes are taken, by {running()}", seconds=180)
    before = set(running())
    neighbour.submit("single", gpus=(8, 8), iterations=LONG)
    neighbour.wait_running("single", 8)
    stayed = set(running())
    assert stayed < before  # one gave way, and the others never stopped
    assert len(stayed) == 3
    (gave_way,) = before - stayed
    paused = bench.wait_job(gave_way, lambda raw: reason(raw, "Admitted") == "Preempted", "paused for the other")
    explanation = paused["status"]["explanation"]
    assert f"Paused for {neighbour.namespace}/single, for a fair share" in explanation
    for name in stayed:
        job = bench.job(name)
        assert job is not None
        assert job["status"]["applied"]["incarnation"] == 1


def test_jobs_wait_where_the_quota_of_their_namespace_is_used_up(bench: Bench, neighbour: Bench) -> None:
    bench.set_energy_quota(gpus=4, watts=800)
    bench.submit("first", gpus=(4, 4), iterations=LONG)
    first = bench.wait_running("first", 4)
    assert first["status"]["allocation"]["powerLimitWatts"] <= 200
    bench.submit("second", gpus=(4, 4), iterations=LONG)
    bench.wait_said("second", "Admitted", "QuotaExceeded", "of the 4 GPUs of EnergyQuota bound")
    bench.wait(
        lambda: ((bench.energy_quota() or {}).get("status") or {}).get("allocated", {}).get("gpus") == 4,
        lambda: f"4 GPUs in the quota's status: {bench.energy_quota()}",
    )
    quota = bench.energy_quota()
    assert quota is not None
    assert quota["status"]["allocated"]["watts"] <= 800
    neighbour.submit("free", gpus=(8, 8), iterations=LONG)  # is nobody's concern
    neighbour.wait_running("free", 8)
    bench.set_energy_quota(gpus=8)
    bench.wait_running("second", 4)


def test_a_budget_that_is_spent_stops_a_namespace_and_no_new_job_gets_it_back(bench: Bench) -> None:
    bench.set_energy_quota(energyBudget={"kilojoules": 2, "periodSeconds": DAY})
    bench.submit("thirsty", gpus=(8, 8), iterations=LONG)
    bench.wait_running("thirsty", 8)
    words = "the 2 kJ of EnergyQuota bound are used up; its next period begins at "
    bench.wait_said("thirsty", "Admitted", "QuotaExceeded", words)
    bench.wait(lambda: not bench.objects("pods"), lambda: "its pods are gone")
    bench.wait(
        lambda: ("Warning", "QuotaExceeded") in [event[:2] for event in bench.events("thirsty")],
        lambda: f"told so; {bench.events('thirsty')}",
    )
    bench.wait(
        lambda: reason(bench.energy_quota(), "WithinQuota") == "EnergySpent",
        lambda: f"the quota says so: {bench.energy_quota()}",
    )
    spent = consumed_kilojoules(bench.energy_quota())
    assert spent >= 2
    # Neither a status that is lost, nor a new operator, nor a new job gives any of it back.
    bench.api.patch(f"{bench.path('thirsty')}/status", {"status": {"energy": None, "progress": None}})
    bench.site.parts[OPERATOR].kill()
    bench.site.start_part(OPERATOR)
    bench.api.delete(bench.path("thirsty"))
    bench.submit("again", gpus=(8, 8), iterations=LONG)
    bench.wait_said("again", "Admitted", "QuotaExceeded", words)
    assert consumed_kilojoules(bench.energy_quota()) >= spent
    bench.set_energy_quota(energyBudget={"kilojoules": 1_000_000, "periodSeconds": DAY})
    bench.wait_running("again", 8)
