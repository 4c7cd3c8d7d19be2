"""A job of which nothing is known is tried at power limits below its own on a whole site, and then runs at the cheapest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_testbed.controlplane.api import Json
from flyball_testbed.workload.devices import hardware_path

from tests.support.site_bench import GPU_NODES, GROUP, Bench, job_manifest

LIMITS, CAP_WATTS = 4, 3200
# Of two limits as good as each other, either may be found.
AS_GOOD = 1.02


@dataclass
class Seen:
    """What the GPU of a job was granted and what was said of it, each in the order in which it was seen."""

    bench: Bench
    name: str
    granted: list[int] = field(default_factory=list)
    explained: list[str] = field(default_factory=list)

    def look(self) -> None:
        for node in self.bench.api.list_objects(GPU_NODES):
            for job in node["spec"].get("jobs", ()):
                if job["name"] == self.name and self.granted[-1:] != [job["powerLimitMilliwatts"]]:
                    self.granted.append(job["powerLimitMilliwatts"])
        said = ((self.bench.job(self.name) or {}).get("status") or {}).get("explanation", "")
        if said and self.explained[-1:] != [said]:
            self.explained.append(said)

    @property
    def over(self) -> bool:
        return any("the cheapest of those that were tried" in said for said in self.explained)


def submit(bench: Bench, name: str, **metadata: Any) -> None:
    """A net that draws less the more slowly it is fed from memory, of no class that the operator knows."""
    training = {"globalBatchSize": 64, "iterations": 1_000_000, "modelClass": "nobodys-net"}
    manifest = job_manifest(
        name, bench.namespace, gpus=(1, 1), iterations=1_000_000, model_class="deepspeech2", batch=64, training=training
    )
    manifest["metadata"] |= metadata
    bench.api.create(f"{GROUP}/namespaces/{bench.namespace}/energyawarejobs", manifest)


def observations(bench: Bench, name: str) -> list[Json]:
    """What the job's EnergyProfile has of clocks that are known."""
    return [
        found
        for profile in bench.objects("energyprofiles", GROUP)
        if profile["spec"]["profileKey"] == name
        for found in (profile.get("status") or {}).get("observations", ())
        if found["samples"] >= 2
    ]


def board_limit(bench: Bench, name: str) -> int:
    """What the one GPU of a job may draw in milliwatts, as its board has it."""
    (uuid,) = (
        device["uuid"]
        for node in bench.gpu_nodes()
        for device in node["status"]["devices"]
        if device.get("pod", {}).get("name", "").startswith(f"{name}-")
    )
    with SimulatedNode.open(hardware_path(bench.site.hardware, "node-000")) as hardware:
        return hardware.device(uuid).read().enforced_limit_milliwatts


def cost(observed: Json) -> float:
    """Zeus' cost of an iteration in joules at eta = 1/2; an A100 may draw 400 W."""
    joules, seconds = observed["millijoulesPerIteration"] / 1e3, observed["microsecondsPerIteration"] / 1e6
    return float(0.5 * joules + 0.5 * 400.0 * seconds)


def at_clock(observed: Iterable[Json], megahertz: int) -> Json:
    return min(observed, key=lambda found: abs(found["clockMegahertz"] - megahertz))


@pytest.mark.long
def test_an_unknown_job_is_tried_at_lower_limits_and_runs_at_the_cheapest(make_site: Callable[..., Bench]) -> None:
    bench = make_site(1, operator_arguments=("--profiled-power-limits", str(LIMITS)))
    bench.set_cap("row", CAP_WATTS)
    submit(bench, "unknown")
    submit(bench, "watched", labels={"flyball.dev/mode": "observe"})
    seen, watched = Seen(bench, "unknown"), Seen(bench, "watched")

    def over() -> bool:
        seen.look()
        watched.look()
        return seen.over and len(observations(bench, "unknown")) > LIMITS

    bench.wait(over, lambda: f"its limits are tried: {seen}; {observations(bench, 'unknown')}", 300.0)
    held = [re.search(r"held to (\d+) W: (for a moment|the cheapest)", said) for said in seen.explained]
    tried = list(dict.fromkeys(int(said[1]) for said in held if said and said[2] == "for a moment"))
    (found,) = {int(said[1]) for said in held if said and said[2] == "the cheapest"}
    assert len(tried) == LIMITS
    assert tried == sorted(tried, reverse=True), "one after the other, downwards"
    assert found in tried, "and then one of them"
    granted = [milliwatts // 1000 for milliwatts in seen.granted]
    planned = granted[granted.index(tried[0]) - 1]
    assert planned > max(tried)
    first = granted.index(tried[0])
    assert granted[first : first + LIMITS + 1] == [*tried, found], "it is granted as it is told"
    assert not any("held to" in said for said in watched.explained), "nothing is tried of who only watches"

    assert board_limit(bench, "unknown") == found * 1000, "the board itself has it"
    running = bench.wait_job(
        "unknown",
        lambda raw: (((raw or {}).get("status") or {}).get("applied") or {}).get("powerLimitWatts") == found,
        "says so",
    )
    known = observations(bench, "unknown")
    before = max(known, key=lambda item: item["clockMegahertz"])
    now = at_clock(known, running["status"]["applied"]["clockMegahertz"])
    assert cost(now) <= AS_GOOD * min(map(cost, known))
    joules, seconds = (now[key] / before[key] for key in ("millijoulesPerIteration", "microsecondsPerIteration"))
    print(f"{planned} W planned, {found} W found: joules {joules - 1:+.1%}, seconds {seconds - 1:+.1%}")
    assert joules < 0.9
    assert seconds < 1.1
    assert bench.overshoot_watts("row") <= 0.0
    assert bench.judged_seconds("row") > 0.0
