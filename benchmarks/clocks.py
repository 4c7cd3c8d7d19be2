"""How soon a computation's clock reaches the GPU: from the client's call to the driver, through two processes of the agent.

    python benchmarks/clocks.py [--changes 1000]

A training process asks for another clock of one GPU by a datagram, as often as pipelines do (50 times a second), to an
agent without privilege, which tells the enforcer's process, which sets it on a simulated GPU; the training process looks
at the hardware until it has changed. Beside it, in turn with it, the same change made by a direct call. Exits with 1
where 99 of 100 changes through the agent take more than 1 ms longer than direct ones do, or the call itself more than
50 us of processor time on average. Of a busy machine it says how long processes wait for their turn.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from flyball.node.clocks import Clock
from flyball_agent.link.client import EnforcerLink
from flyball_agent.node.agent import NodeAgent
from flyball_agent.pods.resources import PodDevices, PodResources
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedDevice, SimulatedNode

NODE, POD = "node-0", "gpt3-1-0"
GPUS = 8
PAUSE_SECONDS = 0.02
TARGET_MORE_MICROSECONDS, TARGET_CALL_MICROSECONDS = 1000.0, 50.0
START_SECONDS, CHANGE_SECONDS = 60.0, 5.0


class OnePod(PodResources):
    """One pod that holds every GPU."""

    def __init__(self, gpus: list[str]) -> None:
        self._pod = PodDevices("research", POD, "uid-1", tuple(gpus))

    async def list(self) -> list[PodDevices]:
        return [self._pod]

    async def close(self) -> None:
        pass


def grant() -> dict[str, object]:
    """Everything the GPUs can do."""
    watts = CATALOGUE["NVIDIA-A100-SXM4-40GB"].max_limit_milliwatts
    job = {
        "namespace": "research", "name": "gpt3", "uid": "job-1", "incarnation": 1, "podName": POD, "podUid": "uid-1",
        "gpus": GPUS, "powerLimitMilliwatts": watts, "clockMegahertz": {"min": 0, "max": 1410},
    }  # fmt: skip
    return {
        "epoch": 1, "generation": 1, "leaseSeconds": 3600, "boundMilliwatts": GPUS * watts,
        "committedMilliwatts": GPUS * watts, "jobs": [job],
    }  # fmt: skip


def run_agent(folder: Path, gpus: list[str]) -> None:
    """The half of the agent that has no privilege, until it is killed."""

    async def serve() -> None:
        link = EnforcerLink(folder / "enforcer.sock", NODE)
        agent = NodeAgent(link, OnePod(gpus), node=NODE, socket_folder=folder / "s")
        link.on_connected = lambda: agent.accept_spec(grant())
        await asyncio.gather(link.run(), agent.run())

    asyncio.run(serve())


def microseconds_until(device: SimulatedDevice, megahertz: int, begun: float) -> float:
    """From `begun` until the GPU is held to that clock. Raises TimeoutError."""
    while device.read().locked_max_megahertz != megahertz:
        if time.perf_counter() - begun > CHANGE_SECONDS:
            raise TimeoutError(f"{device.uuid} is not at {megahertz} MHz after {CHANGE_SECONDS:g} s")
    return (time.perf_counter() - begun) * 1e6


def measure(folder: Path, gpus: list[str], changes: int) -> tuple[list[float], list[float], list[float]]:
    """Microseconds of changes through the agent and of direct ones, and processor time of the client's calls alone."""
    through, direct, calls = [], [], []
    with SimulatedNode.open(folder / f"{NODE}.gpus") as node:
        device = node.device(gpus[0])
        clock = Clock(str(folder / "s" / "uid-1" / "flyball.sock"), gpus[0])
        until = time.monotonic() + START_SECONDS
        while device.read().locked_max_megahertz != 1005:
            if time.monotonic() > until:
                raise TimeoutError("the agent takes no clocks")
            clock.close()  # so that it is asked again
            clock.ask(1005)
            time.sleep(0.1)
        for number in range(changes):
            time.sleep(PAUSE_SECONDS)
            megahertz = (1200, 1305)[number % 2]
            begun, worked = time.perf_counter(), time.thread_time()
            clock.ask(megahertz)
            calls.append((time.thread_time() - worked) * 1e6)
            through.append(microseconds_until(device, megahertz, begun))
            other = node.device(gpus[1])
            begun = time.perf_counter()
            other.set_locked_clocks_megahertz(210, megahertz)
            direct.append(microseconds_until(other, megahertz, begun))
    return through, direct, calls


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python benchmarks/clocks.py", description=__doc__)
    parser.add_argument("--changes", type=int, default=1000, help="clocks asked for, one every 20 ms")
    changes = parser.parse_args().changes
    with tempfile.TemporaryDirectory(prefix="fc", dir="/tmp") as name:
        folder = Path(name)
        gpus = create_node_file(folder / f"{NODE}.gpus", [CATALOGUE["NVIDIA-A100-SXM4-40GB"]] * GPUS)
        (folder / "s").mkdir()
        command = [
            str(Path(sysconfig.get_path("scripts")) / "flyball"), "agent", "enforcer", "--node-name", NODE,
            "--journal-dir", str(folder / "j"), "--socket", str(folder / "enforcer.sock"), "--agent-uid", str(os.getuid()),
            "--driver", "simulated", "--hardware-dir", str(folder),
        ]  # fmt: skip
        with (folder / "enforcer.log").open("w") as log:
            enforcer = subprocess.Popen(command, stderr=log, stdout=log)
        agent = multiprocessing.get_context("spawn").Process(target=run_agent, args=(folder, gpus), daemon=True)
        agent.start()
        try:
            through, direct, calls = measure(folder, gpus, changes)
        except TimeoutError as error:
            print(error, (folder / "enforcer.log").read_text()[-2000:], sep="\n", file=sys.stderr)
            return 1
        finally:
            agent.kill()
            enforcer.kill()
            agent.join()
            enforcer.wait()
    for what, values in (("through the agent", through), ("direct", direct), ("the client's CPU", calls)):
        shares = ", ".join(f"{share:.0%} {quantile(values, share):,.0f} us" for share in (0.5, 0.9, 0.99))
        print(f"{what:18} {shares}, mean {statistics.fmean(values):,.0f} us")
    more = quantile(through, 0.99) - quantile(direct, 0.99)
    kept = more <= TARGET_MORE_MICROSECONDS and statistics.fmean(calls) <= TARGET_CALL_MICROSECONDS
    verdict = "kept" if kept else "NOT KEPT"
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; 99 of 100 at most {more:,.0f} us more: {verdict}"
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
