"""What a site has spent by an instant: processor time by part, the API server's writes, the operator's plans and memory."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flyball_testbed.controlplane.processes import processor_seconds
from flyball_testbed.parts import OPERATOR
from flyball_testbed.site import Site


@dataclass(frozen=True)
class Costs:
    """What had been spent by an instant: processor seconds by part, writes by resource, plans by the operator's buckets."""

    at: float
    processor: dict[str, float]
    writes: Counter[str]
    plans: Counter[float]

    @staticmethod
    def now(site: Site) -> Costs:
        pids = site.cluster.control_plane.running() | {name: part.pid for name, part in site.parts.items()}
        processor = {name: processor_seconds(pid) for name, pid in pids.items()} | {"benchmark": time.process_time()}
        return Costs(time.monotonic(), processor, _writes(site), _plans(site))


def _samples(text: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.MULTILINE):
        yield dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)


def _writes(site: Site) -> Counter[str]:
    found: Counter[str] = Counter()
    for labels, count in _samples(site.cluster.api.request("GET", "/metrics"), "apiserver_request_total"):
        if labels["verb"] in ("POST", "PUT", "PATCH", "APPLY", "DELETE"):
            found["/".join(filter(None, (labels["resource"], labels["subresource"])))] += int(count)
    return found


def _plans(site: Site) -> Counter[float]:
    buckets = _samples(site.metrics(OPERATOR), "flyball_plan_seconds_bucket")
    return Counter({float(labels["le"]): int(count) for labels, count in buckets})


def memory_megabytes(pid: int) -> float:
    """The most that a process and those it started have had resident, added up."""
    total = 0.0
    for status in [Path(f"/proc/{pid}/status"), *_children(pid)]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            peak = re.search(r"VmHWM:\s+(\d+)", status.read_text())
            total += int(peak[1]) / 1000 if peak else 0.0
    return total


def _children(pid: int) -> Iterator[Path]:
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in thread.read_text().split():
            yield Path(f"/proc/{child}/status")


def costs(before: Costs, after: Costs) -> str:
    """Who used the processors, and how many writes of what the API server took, a second."""
    seconds = after.at - before.at
    used = {name: (value - before.processor[name]) / seconds for name, value in after.processor.items()}
    dear = ", ".join(f"{name} {used[name]:.2f}" for name in sorted(used, key=lambda name: -used[name]))
    writes = after.writes - before.writes
    most = ", ".join(f"{name} {count / seconds:.1f}" for name, count in writes.most_common(8))
    rate = writes.total() / seconds
    return f"processors: {dear}; load {os.getloadavg()[0]:.1f}\nAPI writes a second: {rate:.1f} ({most})"
