"""How long a cap cut takes, from the SRE's write to the last limit read back, on a real control plane.

    python benchmarks/cap_change.py [--nodes 64] [--cuts 40]

Starts a site of simulated nodes (64 agents in one process), fills it with elastic jobs under a cap, and then lowers and
raises the cap in turn. For each cut it takes the time from sending the PowerCap to (a) the sum of all limits in the
simulated hardware being at or below the cap and (b) PowerCap.status saying that it is enforced. Everything but the
drivers' own 10-20 ms per setting is real: API server, etcd, watches, operator, agents, journals. Beside the times it
prints what a cut costs: the processor time of each part of the site from the write to (b), which other load on the machine
disturbs less, and the writes of GPUNodes. Exits with 1 where the 99th percentile of (b) is above the limit of power-safety
(2 s), or the referee saw an enforced cap exceeded.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from flyball_api.names import FLYBALL_API_VERSION
from flyball_testbed.controlplane.processes import processor_seconds
from flyball_testbed.referee.hardware import HardwareReader
from flyball_testbed.site import Site, SitePlan

TARGET_SECONDS = 2.0
REST_SECONDS = 2.0  # what the raise left to be told of jobs has been told by then
CAPS = f"/apis/{FLYBALL_API_VERSION}/powercaps"
NODES = f"/apis/{FLYBALL_API_VERSION}/gpunodes"
JOBS = f"/apis/{FLYBALL_API_VERSION}/namespaces/default/energyawarejobs"


def set_cap(site: Site, watts: int) -> None:
    site.cluster.api.apply(
        {
            "apiVersion": FLYBALL_API_VERSION,
            "kind": "PowerCap",
            "metadata": {"name": "site"},
            "spec": {"watts": watts},
        }
    )


def enforced(site: Site, watts: int) -> bool:
    status = site.cluster.api.get(f"{CAPS}/site").get("status") or {}
    held = any(item["type"] == "Enforced" and item["status"] == "True" for item in status.get("conditions") or ())
    return held and status.get("effectiveWatts") == watts


def limits_watts(reader: HardwareReader) -> float:
    sample = reader.read()
    return float("inf") if sample is None else int(sample.limits.sum()) / 1000


def all_acknowledged(site: Site) -> bool:
    return all(
        ((node.get("status") or {}).get("acknowledged") or {}).get("generation") == node["spec"]["generation"]
        for node in site.cluster.api.list_objects(NODES)
    )


def wait(seconds: float, holds: object) -> None:
    ends = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        if time.monotonic() > ends:
            raise TimeoutError("the site did not get there; its logs are in the output folder")
        time.sleep(0.02)


def submit(site: Site, index: int) -> None:
    values = {
        "DEVCLUSTER_MODEL_CLASS": "resnet50",
        "DEVCLUSTER_GLOBAL_BATCH": "1024",
        "DEVCLUSTER_ITERATIONS": "1000000",
    }
    trainer = {
        "name": "trainer",
        "image": "flyball.dev/simulated-trainer",
        "env": [{"name": name, "value": value} for name, value in values.items()],
    }
    site.cluster.api.create(
        JOBS,
        {
            "apiVersion": FLYBALL_API_VERSION,
            "kind": "EnergyAwareJob",
            "metadata": {"name": f"load-{index}", "namespace": "default"},
            "spec": {
                "gpus": {"min": 8, "max": 8},
                "objective": "Time",
                "training": {"globalBatchSize": 1024, "iterations": 1_000_000, "modelClass": "resnet50"},
                "template": {"spec": {"containers": [trainer]}},
            },
        },
    )


def processor_times(site: Site) -> dict[str, float]:
    """Processor seconds so far of each component and part of the site, and of this benchmark."""
    pids = site.cluster.control_plane.running() | {name: part.pid for name, part in site.parts.items()}
    return {name: processor_seconds(pid) for name, pid in pids.items()} | {"benchmark": time.process_time()}


def gpu_node_writes(site: Site) -> int:
    """Writes of GPUNodes and their statuses that the API server has answered since its start."""
    metrics: str = site.cluster.api.request("GET", "/metrics")
    samples: list[tuple[str, str]] = re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", metrics, re.MULTILINE)
    return sum(
        int(float(count)) for labels, count in samples if 'resource="gpunodes"' in labels and 'verb="PATCH"' in labels
    )


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of all are at or below."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000 * len(ordered)) // 1000) - 1)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--cuts", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path(tempfile.gettempdir()) / "flyball-cap-change")
    arguments = parser.parse_args()
    plan = SitePlan(nodes=arguments.nodes, status_interval_seconds=10.0)
    high, low = int(plan.max_watts * 0.9), int(plan.max_watts * 0.45)
    with Site.start(plan, arguments.output, print) as site:
        set_cap(site, high)
        wait(120, lambda: enforced(site, high))
        for index in range(arguments.nodes):
            submit(site, index)
        wait(
            180,
            lambda: (
                sum(
                    item["status"] == "True"
                    for raw in site.cluster.api.list_objects(JOBS)
                    for item in (raw.get("status") or {}).get("conditions") or ()
                    if item["type"] == "PodsReady"
                )
                == arguments.nodes
            ),
        )
        reader = HardwareReader(site.hardware)
        to_hardware: list[float] = []
        to_status: list[float] = []
        costs: list[dict[str, float]] = []
        writes: list[int] = []
        for cut in range(arguments.cuts):
            before = limits_watts(reader)
            written, spent = gpu_node_writes(site), processor_times(site)
            started = time.monotonic()
            set_cap(site, low)
            hardware = 0.0
            while not (hardware and enforced(site, low)):
                if not hardware and limits_watts(reader) <= low:
                    hardware = time.monotonic() - started
                time.sleep(0.02)  # two cores: a busy loop here would be most of what it measures
                if time.monotonic() - started > 60:
                    raise TimeoutError(f"cut {cut} is not in force after 60 s")
            to_status.append(time.monotonic() - started)
            to_hardware.append(hardware)
            costs.append({name: seconds - spent[name] for name, seconds in processor_times(site).items()})
            writes.append(gpu_node_writes(site) - written)
            print(
                f"cut {cut + 1:3d}: {before / 1000:.1f} kW of limits to {low / 1000:.1f} kW:"
                f" hardware {to_hardware[-1]:.2f} s, reported {to_status[-1]:.2f} s,"
                f" API server {costs[-1]['kube-apiserver']:.2f} s of processor, {writes[-1]} writes",
                flush=True,
            )
            set_cap(site, high)
            # The next cut begins from rest: the raise is in force everywhere.
            wait(60, lambda: enforced(site, high) and limits_watts(reader) > low * 1.2 and all_acknowledged(site))
            time.sleep(REST_SECONDS)
        tally = site.referee_summary()["caps"]["site"]
    over = max(tally["max_limits_over_watts"], tally["max_true_over_watts"])
    for name, values in (("limits in the hardware", to_hardware), ("status Enforced", to_status)):
        print(
            f"{name}: median {statistics.median(values):.2f} s, p99 {percentile(values, 0.99):.2f} s,"
            f" worst {max(values):.2f} s"
        )
    medians = {name: statistics.median(cost[name] for cost in costs) for name in costs[0]}
    dear = sorted(medians, key=lambda name: -medians[name])
    print("processor seconds a cut: " + ", ".join(f"{name} {medians[name]:.2f}" for name in dear))
    print(f"writes of GPUNodes a cut: {statistics.median(writes):g}; load average {os.getloadavg()[0]:.1f}")
    print(f"over an enforced cap: {over:.3f} W in {tally['judged_seconds']:.0f} s judged (target 0)")
    print(f"target: p99 at most {TARGET_SECONDS:g} s")
    return 0 if over == 0 and percentile(to_status, 0.99) <= TARGET_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
