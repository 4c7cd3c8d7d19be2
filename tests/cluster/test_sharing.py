"""Several jobs share the cluster: they shrink for each other, grow again, and are moved together where it is fragmented."""

from __future__ import annotations

from tests.support.site_bench import Bench, applied_gpus, condition

LONG = 100_000


def test_an_elastic_job_shrinks_for_another_and_grows_back(bench: Bench) -> None:
    bench.submit("elastic", gpus=(1, 32), iterations=LONG, batch=1024, objective="Time")
    alone = applied_gpus(bench.wait_running("elastic"))
    assert alone >= 16
    bench.submit("second", gpus=(16, 16), iterations=LONG, batch=1024, objective="Time", priority=1)
    bench.wait_running("second", 16)
    shrunk = bench.wait_job(
        "elastic",
        lambda raw: condition(raw, "PodsReady") == "True" and applied_gpus(raw) <= 16,
        "running on what is left",
    )
    assert applied_gpus(shrunk) < 32
    bench.api.delete(bench.path("second"))
    bench.wait_running("elastic", alone)
    grown = bench.job("elastic")
    assert grown is not None
    assert grown["status"]["restarts"] == 0  # a resize is no failure
    assert grown["status"]["progress"]["iterations"] > 0


def test_a_fragmented_cluster_is_repacked_for_a_job_that_needs_a_whole_node(bench: Bench) -> None:
    # Eight rigid jobs of four GPUs fill four nodes; of two on different nodes the ends leave two halves free.
    names = [f"half-{index}" for index in range(8)]
    for name in names:
        bench.submit(name, gpus=(4, 4), iterations=LONG)
    homes: dict[str, list[str]] = {}
    for name in names:
        status = bench.wait_running(name, 4)["status"]
        homes.setdefault(status["applied"]["nodes"][0]["name"], []).append(name)
    assert sorted(len(jobs) for jobs in homes.values()) == [2, 2, 2, 2]
    first, second = [jobs[0] for jobs in list(homes.values())[:2]]
    bench.api.delete(bench.path(first))
    bench.api.delete(bench.path(second))
    bench.submit("whole", gpus=(8, 8), iterations=LONG)
    placed = bench.wait_running("whole", 8)["status"]["applied"]["nodes"]
    assert [share["gpus"] for share in placed] == [8]
    for name in names:
        if name not in (first, second):
            bench.wait_running(name, 4)
