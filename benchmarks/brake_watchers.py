"""How long a brake takes from the API server to each of a thousand agents' watches, without what an agent then does.

    python -m benchmarks.brake_watchers [--watchers 1000] [--brakes 5]

Starts a control plane and so many watches of PowerBrakes, each over a connection of its own, as agents have them, and puts
one brake after another. Prints when the first, the middle and the last one had it, counted from before the write, and the
processor time of the API server and of all watchers (this process). The rest of a cut's way to the hardware is each
agent's own (benchmarks/cap_change.py), which has a processor for itself on its node. Exits with 1 where the last one had a
brake after half a second.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from flyball_api.power_brake import PowerBrakeSpec, power_brake_object
from flyball_kube.credentials import Configuration, load_configuration
from flyball_kube.resources import POWER_BRAKES
from flyball_kube.session import ApiSession, JsonObject
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.processes import processor_seconds

TARGET_SECONDS = 0.5
CONNECTING_AT_ONCE = 20
WATCH_SECONDS = 600.0
PATIENCE_SECONDS = 60.0


class Watchers:
    """So many watches of PowerBrakes, and when each version came to them."""

    def __init__(self, configuration: Configuration, count: int) -> None:
        self._configuration, self._count = configuration, count
        self._connecting = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self._seen: dict[str, list[float]] = defaultdict(list)
        self._complete: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def follow(self, version: str) -> None:
        params = {"resourceVersion": version}
        async with ApiSession(self._configuration, lean=True) as session:
            async with self._connecting:
                await session.get(POWER_BRAKES.path())
            async for event in session.watch(POWER_BRAKES.path(), params=params, read_timeout_seconds=WATCH_SECONDS):
                version = event["object"]["metadata"]["resourceVersion"]
                self._seen[version].append(time.monotonic())
                if len(self._seen[version]) == self._count:
                    self._complete[version].set()

    async def all_have(self, version: str) -> list[float]:
        """When each of them had it, in order; raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._complete[version].wait()
        return self._seen[version]


def brake(sequence: int, version: str) -> JsonObject:
    made = power_brake_object("site", PowerBrakeSpec(1, sequence, 400_000), version)
    made["metadata"]["managedFields"] = [{}]  # the server tracks no fields of brakes
    return made


async def measure(cluster: DevCluster, count: int, brakes: int) -> float:
    """The longest that any brake took to the last watcher, in seconds."""
    server = cluster.control_plane.running()["kube-apiserver"]
    configuration = load_configuration(cluster.kubeconfig)
    watchers = Watchers(configuration, count)
    worst = 0.0
    async with ApiSession(configuration) as session:
        version = (await session.create(POWER_BRAKES.path(), brake(0, "")))["metadata"]["resourceVersion"]
        tasks = [asyncio.create_task(watchers.follow(version)) for _ in range(count)]
        for sequence in range(1, brakes + 2):
            before = processor_seconds(server), time.process_time()
            began = time.monotonic()
            answer = await session.replace(POWER_BRAKES.path(name="site"), brake(sequence, version))
            version = answer["metadata"]["resourceVersion"]
            took = [at - began for at in await watchers.all_have(version)]
            spent = processor_seconds(server) - before[0], time.process_time() - before[1]
            if sequence == 1:
                continue  # by the first one it is known that all of them watch
            worst = max(worst, took[-1])
            print(
                f"brake {sequence - 1}: first after {1e3 * took[0]:.0f} ms, half of {count} after"
                f" {1e3 * took[count // 2]:.0f}, the last after {1e3 * took[-1]:.0f}; processors: API server"
                f" {1e3 * spent[0]:.0f} ms, all watchers {1e3 * spent[1]:.0f} ms",
                flush=True,
            )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watchers", type=int, default=1000)
    parser.add_argument("--brakes", type=int, default=5)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="flyball-") as folder,
        DevCluster.start(0, directory=Path(folder) / "c") as cluster,
    ):
        worst = asyncio.run(measure(cluster, arguments.watchers, arguments.brakes))
    print(f"the last one had a brake after at most {worst:.2f} s (goal {TARGET_SECONDS:g})")
    return 0 if worst <= TARGET_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
