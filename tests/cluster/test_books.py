"""The books of the cluster's energy on a running site: kept when jobs are gone, and shown by the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from flyball_testbed.controlplane.api import Json

from tests.support.command_line import flyball
from tests.support.site_bench import GROUP, Bench, job_manifest

REPORTS = f"{GROUP}/energyreports"


def today(bench: Bench) -> Json | None:
    """The latest book."""
    books = bench.api.list_objects(REPORTS)
    return max(books, key=lambda raw: str(raw["metadata"]["name"]), default=None)


def booked(bench: Bench, name: str) -> int:
    """What the books have of one of the test's jobs, in millijoules."""
    return sum(
        int(job["millijoules"])
        for raw in bench.api.list_objects(REPORTS)
        for job in raw["spec"].get("jobs", ())
        if (job["namespace"], job["name"]) == (bench.namespace, name)
    )


def reported(bench: Bench, *arguments: str) -> Any:
    """What `flyball report` says, as JSON."""
    options = ["--kubeconfig", str(bench.site.cluster.kubeconfig), "-o", "json"]
    result = flyball("report", *arguments, *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_what_a_job_has_used_stays_in_the_books_when_it_is_gone(bench: Bench) -> None:
    bench.submit("brief", gpus=(4, 4), iterations=40)
    done = bench.wait_succeeded("brief")
    kilojoules = int(done["status"]["energy"]["consumedKilojoules"])
    bench.wait(lambda: booked(bench, "brief") > 0, lambda: f"the job is in the books: {today(bench)}")
    bench.api.delete(bench.path("brief"))
    bench.wait(
        lambda: booked(bench, "brief") >= kilojoules * 1_000_000,
        lambda: f"{kilojoules} kJ are booked: {booked(bench, 'brief')} mJ",
    )
    month = f"{datetime.now(UTC):%Y-%m}"
    made = reported(bench, "--by", "job", "-n", bench.namespace, "--month", month, "--price", "0.25")
    (line,) = made["lines"]
    assert line["name"] == f"{bench.namespace}/brief"
    assert line["kilowattHours"] >= kilojoules / 3600
    assert line["money"] > 0
    whole = reported(bench, "--by", "namespace")
    assert {"(idle)", bench.namespace} <= {line["name"] for line in whole["lines"]}
    total = sum(line["kilowattHours"] for line in whole["lines"])
    assert abs(total - whole["total"]["kilowattHours"]) <= 1e-3 * total


def test_an_observed_namespaces_jobs_are_left_at_full_speed_and_what_they_would_save_is_told(bench: Bench) -> None:
    namespace = f"/api/v1/namespaces/{bench.namespace}"
    bench.api.patch(namespace, {"metadata": {"labels": {"flyball.dev/mode": "observe"}}})

    def clock(raw: Json | None) -> int:
        return int((((raw or {}).get("status") or {}).get("allocation") or {}).get("clockMegahertz") or 0)

    def told(raw: Json | None) -> str:
        return str(((raw or {}).get("status") or {}).get("explanation") or "")

    bench.submit("watched", gpus=(2, 2), iterations=10_000_000, objective="Energy")
    observed = bench.wait_job("watched", lambda raw: "governed, it would run at" in told(raw), "observed")
    bench.wait_running("watched", 2)

    def lines() -> list[Json]:
        made = reported(bench, "--would-have-saved", "-n", bench.namespace)
        shares = ("savedShare", "longerShare")  # each as soon as it is known
        return [line for line in made["lines"] if all(line[name] is not None for name in shares)]

    bench.wait(lambda: bool(lines()), lambda: f"what it would save is told: {today(bench)}")
    (line,) = lines()
    assert line["name"] == f"{bench.namespace}/watched"
    share = line["savedShare"]
    assert share["least"] <= share["expected"] <= share["most"]
    assert share["expected"] > 0
    assert line["longerShare"]["expected"] > 0
    bench.api.patch(namespace, {"metadata": {"labels": {"flyball.dev/mode": None}}})
    bench.wait_job(
        "watched",
        lambda raw: "observed" not in told(raw) and clock(raw) < clock(observed),
        f"governed, below {clock(observed)} MHz",
    )


def test_an_installation_that_observes_jobs_leaves_all_at_full_speed_and_tells_what_they_would_save(
    make_site: Callable[..., Bench],
) -> None:
    """By one option of the operator, and no label: the jobs of every namespace run, and one report has them all."""
    bench = make_site(1, operator_arguments=("--observe-jobs",))
    bench.api.create("/api/v1/namespaces", {"metadata": {"name": "elsewhere"}})
    bench.api.wait_for("/api/v1/namespaces/elsewhere/serviceaccounts/default", lambda account: account is not None)
    names = {"elsewhere/second", f"{bench.namespace}/first"}
    for name in names:
        namespace, _, job = name.partition("/")
        manifest = job_manifest(job, namespace, gpus=(2, 2), iterations=10_000_000, objective="Energy")
        bench.api.create(f"{GROUP}/namespaces/{namespace}/energyawarejobs", manifest)

    def estimated() -> set[str]:
        made = reported(bench, "--would-have-saved", "--by", "job")
        return {line["name"] for line in made["lines"] if line["savedShare"] is not None}

    bench.wait(lambda: estimated() == names, lambda: f"what both would save is told: {estimated()}; {today(bench)}")
    total = reported(bench, "--would-have-saved")["total"]
    assert total["jobs"] == len(names)
    share = total["savedShare"]
    assert share["expected"] > 0
    assert share["least"] <= share["expected"] <= share["most"]
    assert total["longerShare"]["expected"] > 0
    highest = bench.site.plan.constants.clock_max_megahertz
    for name in names:
        namespace, _, job = name.partition("/")
        status = bench.api.get_or_none(f"{GROUP}/namespaces/{namespace}/energyawarejobs/{job}")["status"]
        assert status["allocation"]["clockMegahertz"] == highest
        assert "governed, it would run at" in status["explanation"]
