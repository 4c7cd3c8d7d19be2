"""The runs of a recurring job on the real control plane: what its user sees of them."""

from __future__ import annotations

from typing import Any

from flyball_testbed.controlplane.api import Json

from tests.support.site_bench import GROUP, Bench, condition, job_manifest, message


def submit(bench: Bench, name: str, *, trains: tuple[int, int]) -> None:
    """One run of 60 steps of 256 samples unless another batch size is chosen.

    `trains`: the batch size and steps that its simulated program goes by, which reads none of the pods' environment.
    """
    manifest = job_manifest(name, bench.namespace, gpus=(8, 8), iterations=60)
    manifest["spec"] |= {
        "profileKey": "nightly",
        "recurrence": {"batchSizes": [16, 256], "targetMetric": "loss <= 2.1"},
        "failurePolicy": {"maxRestarts": 0},
    }
    for variable in manifest["spec"]["template"]["spec"]["containers"][0]["env"]:
        trained = {"DEVCLUSTER_GLOBAL_BATCH": trains[0], "DEVCLUSTER_ITERATIONS": trains[1]}.get(variable["name"])
        variable["value"] = variable["value"] if trained is None else str(trained)
    bench.api.create(f"{GROUP}/namespaces/{bench.namespace}/energyawarejobs", manifest)


def chosen(raw: Json | None) -> Any:
    return ((raw or {}).get("status") or {}).get("recurrence") or {}


def runs(bench: Bench) -> list[Json]:
    """What the EnergyProfile has of the runs that have ended."""
    return [
        run
        for profile in bench.objects("energyprofiles", GROUP)
        if profile["spec"]["profileKey"] == "nightly"
        for run in profile.get("status", {}).get("batchSizeSearch", {}).get("runs", ())
    ]


def test_runs_of_a_recurring_job_learn_from_each_other(bench: Bench) -> None:
    submit(bench, "nightly-1", trains=(256, 60))
    first = bench.wait_succeeded("nightly-1", 120.0)
    assert (chosen(first)["globalBatchSize"], chosen(first)["purpose"]) == (256, "Explore")
    assert chosen(first)["costJoules"] > 0
    bench.wait(
        lambda: ("Normal", "BatchSizeChosen") in {event[:2] for event in bench.events("nightly-1")},
        lambda: f"told so; {bench.events('nightly-1')}",
    )

    submit(bench, "nightly-2", trains=(16, 960))
    bench.wait_running("nightly-2")
    (pod,) = (
        pod for pod in bench.objects("pods") if pod["metadata"]["labels"].get("flyball.dev/job-name") == "nightly-2"
    )
    environment = {item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]}
    wanted = {
        "FLYBALL_GLOBAL_BATCH_SIZE": "16",
        "FLYBALL_BASE_BATCH_SIZE": "256",
        "FLYBALL_ITERATIONS": "960",
        "FLYBALL_TARGET_METRIC": "loss <= 2.1",
    }
    assert wanted.items() <= environment.items()
    second = bench.wait_job("nightly-2", lambda raw: condition(raw, "Failed") == "True", "stopped", 120.0)
    limit = chosen(second)["costLimitJoules"]
    assert limit <= chosen(second)["costJoules"]
    # What its last pods have used is counted for a moment after a run has ended.
    least, most = chosen(first)["costJoules"], chosen(bench.wait_succeeded("nightly-1", 120.0))["costJoules"]
    assert 2 * least <= limit <= 2 * most
    assert f"a run with batch size 16 may cost {limit} J" in message(second, "Failed")

    submit(bench, "nightly-3", trains=(256, 60))
    third = bench.wait_job("nightly-3", chosen, "given a batch size")
    assert (chosen(third)["decision"], chosen(third)["globalBatchSize"]) == (2, 256), "16 was too dear"
    assert "256 is believed the cheapest" in chosen(third)["message"]

    def costs() -> list[int]:
        return [chosen(bench.wait_job(name, chosen, "read"))["costJoules"] for name in ("nightly-1", "nightly-2")]

    bench.wait(
        lambda: [run["costJoules"] for run in runs(bench)][:2] == costs(),
        lambda: f"what two runs cost, as their jobs say it ({costs()}): {runs(bench)}",
    )
    assert [(run["batchSize"], run.get("reached", False)) for run in runs(bench)][:2] == [(256, True), (16, False)]
