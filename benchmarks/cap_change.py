"""How long a cap cut takes, from the SRE's write to the last limit read back, on a real control plane.

    python benchmarks/cap_change.py [--nodes 64] [--cuts 40] [--by grants --by brakes]

Starts a site of simulated nodes (64 agents in one process), fills it with elastic jobs under a cap, and then lowers and
raises the cap in turn: by a grant for each node, by a brake for all of them, or by both ways one after the other under an
operator that is started anew. For each cut it takes the time from sending the PowerCap to (a) the sum of all limits in the
simulated hardware being at or below the cap and (b) PowerCap.status saying that it is enforced. Everything but the
drivers' own 10-20 ms per setting is real: API server, etcd, watches, operator, agents, journals. Beside the times it
prints what a cut costs: the processor time of each part of the site from the write to (b), which other load on the machine
disturbs less, and the writes of GPUNodes and of acknowledgements. Exits with 1 where the 99th percentile of (b) by brakes
is above 1 s or that of (a) above 0.5 s (1.5 s with more than 100 nodes), or the referee saw an enforced cap exceeded.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from flyball_api.energy_aware_job import EnergyAwareJobSpec, GpuRange, Training, read_energy_aware_job
from flyball_api.gpu_node import read_gpu_node
from flyball_api.power_cap import PowerCapSpec, PowerCapStatus, read_power_cap
from flyball_api.values.conditions import has_condition
from flyball_api.writing import api_object
from flyball_kube.resources import ENERGY_AWARE_JOBS, GPU_NODES, POWER_CAPS
from flyball_testbed.controlplane.processes import processor_seconds
from flyball_testbed.parts import OPERATOR, Pace
from flyball_testbed.referee.hardware import HardwareReader
from flyball_testbed.site import STOP_SECONDS, Site, SitePlan
from flyball_testbed.workload.pods import simulated_trainer

WAY_OF = {"brakes": "--brakes", "grants": "--no-brakes"}
TARGET_SECONDS = 1.0  # to the status
TARGET_HARDWARE_SECONDS, TARGET_OF_MANY_SECONDS, MANY = 0.5, 1.5, 100
# What a thousand nodes do by themselves, each on processors of its own, must leave two shared ones to the cut: an agent's
# round, a simulated second of training, a renewal of a node's Lease cost milliseconds each. None of them is part of a cut.
MANY_NODES_PACE = Pace(
    status_interval_seconds=45.0,
    agent_tick_seconds=20.0,
    training_tick_seconds=5.0,
    report_seconds=60.0,
    node_lease_seconds=400,
    referee_hertz=4.0,
    agent_log_level="WARNING",
)
# Every renewal of the operator's Lease is an event for each agent.
MANY_NODES_OPERATOR = ("--leader-lease-seconds", "30", "--leader-renew-seconds", "8")
MANY_NODES_EACH_JOB = 64  # the rest of the nodes stay idle: GPUs of a job are a power of two, or three times one
# Of many jobs only so many start at a time: two cores are the API server's of a thousand pods, and of their kubelets.
STARTING_AT_ONCE = 2
BATCH_OF_EACH_GPU = 128
REST_SECONDS = 2.0  # what the raise left to be told of jobs has been told by then
CAP = "site"
WRITTEN = frozenset({"gpunodes", "powerbrakes", "brakeacknowledgements", "powercaps"})
JOBS = ENERGY_AWARE_JOBS.path("default")


def set_cap(site: Site, watts: int) -> None:
    site.cluster.api.apply(api_object(POWER_CAPS.kind, CAP, PowerCapSpec(watts=watts)))


def cap_status(site: Site) -> PowerCapStatus:
    return read_power_cap(site.cluster.api.get(POWER_CAPS.path(name=CAP))).status


def enforced(site: Site, watts: int) -> bool:
    status = cap_status(site)
    return has_condition(status.conditions, "Enforced") and status.effective_watts == watts


def epoch(site: Site) -> int:
    """Of the leader that wrote the cap's status."""
    return cap_status(site).epoch or 0


def limits_watts(reader: HardwareReader) -> float:
    sample = reader.read()
    return float("inf") if sample is None else sample.limits_watts


def all_acknowledged(site: Site) -> bool:
    nodes = map(read_gpu_node, site.cluster.api.list_objects(GPU_NODES.path()))
    return all(
        node.grant is not None and node.acknowledged is not None and node.acknowledged.version == node.grant.version
        for node in nodes
    )


def wait(seconds: float, holds: Callable[[], bool]) -> None:
    """Look until it holds, for at most a fifth of the time: a list of a thousand objects is work for the API server."""
    ends = time.monotonic() + seconds
    while True:
        looked_at = time.monotonic()
        if holds():
            return
        if time.monotonic() > ends:
            raise TimeoutError("the site did not get there; its logs are in the output folder")
        time.sleep(max(0.02, 4 * (time.monotonic() - looked_at)))


def submit(site: Site, index: int, gpus: int) -> None:
    batch, iterations, model_class = BATCH_OF_EACH_GPU * gpus, 1_000_000, "resnet50"
    spec = EnergyAwareJobSpec(
        gpus=GpuRange(gpus, gpus),
        training=Training(batch, iterations, model_class=model_class),
        template={"spec": {"containers": [simulated_trainer(model_class, batch, iterations)]}},
        objective="Time",
    )
    site.cluster.api.create(JOBS, api_object(ENERGY_AWARE_JOBS.kind, f"load-{index}", spec, namespace="default"))


def processor_times(site: Site) -> dict[str, float]:
    """Processor seconds so far of each component and part of the site, and of this benchmark."""
    pids = site.cluster.control_plane.running() | {name: part.pid for name, part in site.parts.items()}
    return {name: processor_seconds(pid) for name, pid in pids.items()} | {"benchmark": time.process_time()}


def spent(site: Site) -> str:
    """The processor seconds so far, in words, the most first."""
    return "processor seconds " + in_order(processor_times(site))


def in_order(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds[name]:.2f}" for name in sorted(seconds, key=lambda name: -seconds[name]))


def acknowledging_writes(site: Site) -> Counter[str]:
    """Writes of GPUNodes, brakes and their acknowledgements that the API server has answered since its start, by object."""
    metrics: str = site.cluster.api.request("GET", "/metrics")
    samples: list[tuple[str, str]] = re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", metrics, re.MULTILINE)
    writes: Counter[str] = Counter()
    for text, count in samples:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', text))
        if labels["resource"] in WRITTEN and labels["verb"] in ("PATCH", "PUT", "POST", "APPLY"):
            writes["/".join(filter(None, (labels["resource"], labels["subresource"])))] += int(float(count))
    return writes


def grants_and_acknowledgements(site: Site) -> int:
    """Of all those writes the ones that nobody makes regularly."""
    writes = acknowledging_writes(site)
    return writes["gpunodes"] + writes["powerbrakes"] + writes["brakeacknowledgements"]


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of all are at or below."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000 * len(ordered)) // 1000) - 1)]


@dataclass(frozen=True)
class Cut:
    """What one cut took, in seconds, and what it cost: processor seconds by part, writes by resource."""

    hardware: float
    status: float
    processor: dict[str, float]
    writes: Counter[str]


def pods_ready(site: Site) -> int:
    """How many jobs have all their pods running."""
    return sum(read_energy_aware_job(raw).has("PodsReady") for raw in site.cluster.api.list_objects(JOBS))


def more_are_ready(site: Site, jobs: int) -> bool:
    return pods_ready(site) > jobs


def measure(site: Site, plan: SitePlan, way: str, count: int, high: int, low: int, patience: float) -> list[Cut]:
    """Cut so many times by one way, under an operator started for it unless the one that runs goes that way."""
    earlier = -1
    if WAY_OF[way] not in site.plan.operator_arguments:
        earlier = epoch(site)
        site.parts[OPERATOR].stop(STOP_SECONDS)
        site.plan = replace(plan, operator_arguments=(*plan.operator_arguments, WAY_OF[way]))
        site.start_part(OPERATOR)
    reader = HardwareReader(site.hardware)

    raised_all = False
    unchanged = (0, 0.0)  # how many grants and acknowledgements were written, and since when no more have been

    def at_rest() -> bool:
        nonlocal raised_all, unchanged
        adopted = epoch(site) > earlier  # what the status said under the operator before this one is no rest
        raised_all = raised_all or (
            adopted and enforced(site, high) and limits_watts(reader) > low * 1.2 and all_acknowledged(site)
        )
        # Statuses that came to hundreds of watchers late, and grants for what starts draw, are still being written then.
        written = grants_and_acknowledgements(site)
        if written != unchanged[0] or not raised_all:
            unchanged = (written, time.monotonic())
        return time.monotonic() - unchanged[1] >= REST_SECONDS

    wait(patience, at_rest)
    cuts = []
    for number in range(1, count + 1):
        from_watts = limits_watts(reader)
        written, before = acknowledging_writes(site), processor_times(site)
        started = time.monotonic()
        set_cap(site, low)
        hardware = 0.0
        while not (hardware and enforced(site, low)):
            looked_at = time.monotonic()
            if not hardware and limits_watts(reader) <= low:
                hardware = time.monotonic() - started
            # Two cores: a busy loop here would be most of what it measures.
            time.sleep(max(0.02, 3 * (time.monotonic() - looked_at)))
            if time.monotonic() - started > 60:
                raise TimeoutError(f"cut {number} by {way} is not in force after 60 s")
        status = time.monotonic() - started
        costs = {name: seconds - before[name] for name, seconds in processor_times(site).items()}
        cuts.append(Cut(hardware, status, costs, acknowledging_writes(site) - written))
        print(
            f"{way} {number:3d}: {from_watts / 1000:.1f} kW of limits to {low / 1000:.1f} kW: hardware {hardware:.2f} s,"
            f" reported {status:.2f} s, API server {costs['kube-apiserver']:.2f} s of processor,"
            f" {cuts[-1].writes.total()} writes ({', '.join(f'{n} {name}' for name, n in cuts[-1].writes.most_common())})",
            flush=True,
        )
        raised_all = False
        set_cap(site, high)
        wait(patience, at_rest)  # the next cut begins from rest: the raise is in force everywhere
    return cuts


def report(way: str, cuts: list[Cut]) -> None:
    for name, values in (
        ("limits in the hardware", [cut.hardware for cut in cuts]),
        ("status Enforced", [cut.status for cut in cuts]),
    ):
        print(
            f"by {way}: {name}: median {statistics.median(values):.2f} s, p99 {percentile(values, 0.99):.2f} s,"
            f" worst {max(values):.2f} s"
        )
    medians = {name: statistics.median(cut.processor[name] for cut in cuts) for name in cuts[0].processor}
    print(f"by {way}: processor seconds a cut: {in_order(medians)}")
    written = {
        name: statistics.median(cut.writes[name] for cut in cuts)
        for name in sorted(sum((cut.writes for cut in cuts), Counter()))
    }
    print(
        f"by {way}: writes a cut: "
        + ", ".join(f"{name} {count:g}" for name, count in written.items())
        + f"; load average {os.getloadavg()[0]:.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--cuts", type=int, default=40, help="by each way")
    parser.add_argument(
        "--by", action="append", choices=["grants", "brakes"], help="may be repeated; brakes alone where not given"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=0,
        help="over how many jobs the GPUs are spread; where not given one a node, with more than 100 nodes one for 64",
    )
    parser.add_argument("--output", type=Path, default=Path(tempfile.gettempdir()) / "flyball-cap-change")
    arguments = parser.parse_args()
    ways = arguments.by or ["brakes"]
    many = arguments.nodes > MANY
    plan = SitePlan(
        nodes=arguments.nodes,
        pace=MANY_NODES_PACE if many else Pace(status_interval_seconds=10.0),
        operator_arguments=MANY_NODES_OPERATOR if many else (),
        agent_processes=2 if many else 1,  # as many as there are processors: a cut is work for each agent
    )
    high, low = int(plan.max_watts * 0.9), int(plan.max_watts * 0.45)
    patience = 600.0 if many else 180.0
    first = replace(plan, operator_arguments=(*plan.operator_arguments, WAY_OF[ways[0]]))
    with Site.start(first, arguments.output, print) as site:
        started = time.monotonic()
        set_cap(site, high)
        wait(patience, lambda: enforced(site, high) and all_acknowledged(site))
        print(
            f"{arguments.nodes} nodes under an enforced cap after {time.monotonic() - started:.0f} s: {spent(site)}",
            flush=True,
        )
        nodes_each = arguments.nodes // arguments.jobs if arguments.jobs else MANY_NODES_EACH_JOB if many else 1
        jobs = arguments.nodes // nodes_each
        for index in range(jobs):
            submit(site, index, plan.gpus_per_node * nodes_each)
            if many:
                wait(patience, partial(more_are_ready, site, index - STARTING_AT_ONCE))
        wait(patience, lambda: pods_ready(site) == jobs)
        print(f"{jobs} jobs run after {time.monotonic() - started:.0f} s: {spent(site)}", flush=True)
        measured = {way: measure(site, plan, way, arguments.cuts, high, low, patience) for way in ways}
        tally = site.referee_summary()["caps"][CAP]
    over = max(tally["max_limits_over_watts"], tally["max_true_over_watts"])
    for way, cuts in measured.items():
        report(way, cuts)
    print(f"over an enforced cap: {over:.3f} W in {tally['judged_seconds']:.0f} s judged (target 0)")
    hardware_target = TARGET_OF_MANY_SECONDS if many else TARGET_HARDWARE_SECONDS
    print(f"target by brakes: p99 at most {hardware_target:g} s to the hardware, {TARGET_SECONDS:g} s to the status")
    braked = measured.get("brakes", [])
    slow = braked and (
        percentile([cut.hardware for cut in braked], 0.99) > hardware_target
        or (not many and percentile([cut.status for cut in braked], 0.99) > TARGET_SECONDS)
    )
    return 1 if over > 0 or slow else 0


if __name__ == "__main__":
    sys.exit(main())
