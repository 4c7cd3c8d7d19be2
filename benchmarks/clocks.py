"""How soon a computation's clock reaches the GPU: from the client's call to the driver, by three of the agent's processes.

    python benchmarks/clocks.py [--changes 1000] [--between sleep|compute] [--zeusd ~/.cargo/bin/zeusd]

A training process asks for another clock of one GPU by a datagram, as often as pipelines do (50 times a second), to an
agent without privilege, which tells the enforcer's process, which sets it by NVML, of which the library over simulated GPUs
is loaded; the training process looks at the hardware until it has changed. Between two changes it sleeps, so that
processors do so as well and have to be woken, or computes, as one that begins a GPU's work and waits for it. Beside it, in
turn with it: the same change by an NVML call of the training process' own, which takes rights that no training process
should have, and, where `--zeusd` names Zeus' daemon (`cargo install zeusd`), by a request to that, over a Unix socket that
stays open. Exits with 1 where 99 of 100 changes through the agent take more than 1 ms longer than NVML calls do, or the
call itself more than 50 us of processor time on average. Of a busy machine it says how long processes wait for their turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flyball.node.clocks import Clock
from flyball_agent.gpu.nvml import NvmlDriver
from flyball_agent.link.client import EnforcerLink
from flyball_agent.node.agent import NodeAgent
from flyball_agent.pods.resources import PodDevices, PodResources
from flyball_api.grant import Grant, JobGrant, PowerBound, grant_spec
from flyball_api.reading import JsonObject
from flyball_api.values.units import MilliwattsPerGpu
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedDevice, SimulatedNode
from flyball_testbed.realnode.gpus import build_library

NODE, POD = "node-0", "gpt3-1-0"
GPUS = 8
LOWEST_MEGAHERTZ, FIRST_MEGAHERTZ = 210, 1005
IN_TURN_MEGAHERTZ = (1200, 1305)
PAUSE_SECONDS = 0.02
# Who looks without a pause keeps a processor, and on two of them whoever is woken on that one waits for its next tick.
LOOK_SECONDS = 2e-5
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


def grant() -> JsonObject:
    """Everything the GPUs can do."""
    largest = MilliwattsPerGpu(CATALOGUE["NVIDIA-A100-SXM4-40GB"].max_limit_milliwatts)
    job = JobGrant("research", "gpt3", "job-1", 1, POD, GPUS, largest, 0, 1410, "uid-1")
    bound = PowerBound(job.limit_milliwatts)
    return grant_spec(Grant(1, 1, 3600, bound, bound, jobs=(job,)))


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
        time.sleep(LOOK_SECONDS)
    return (time.perf_counter() - begun) * 1e6


@dataclass(frozen=True)
class Way:
    """One way to another clock of a GPU that no other way sets, and what changes by it took, in microseconds."""

    name: str
    device: SimulatedDevice
    ask: Callable[[int], object]
    took: list[float] = field(default_factory=list)
    call_processor_time: list[float] = field(default_factory=list)

    def change(self, megahertz: int) -> None:
        begun, worked = time.perf_counter(), time.thread_time()
        self.ask(megahertz)
        self.call_processor_time.append((time.thread_time() - worked) * 1e6)
        self.took.append(microseconds_until(self.device, megahertz, begun))


def through_the_agent(folder: Path, device: SimulatedDevice) -> Way:
    """By the client's datagram, once the agent takes them. Raises TimeoutError."""
    clock = Clock(str(folder / "s" / "uid-1" / "flyball.sock"), device.uuid)
    until = time.monotonic() + START_SECONDS
    while device.read().locked_max_megahertz != FIRST_MEGAHERTZ:
        if time.monotonic() > until:
            raise TimeoutError("the agent takes no clocks")
        clock.close()  # so that it is asked again
        clock.ask(FIRST_MEGAHERTZ)
        time.sleep(0.1)
    return Way("through the agent", device, clock.ask)


def by_nvml(library: Path, device: SimulatedDevice) -> Way:
    """By an NVML call of this process."""
    gpu = next(gpu for gpu in NvmlDriver(library).gpus() if gpu.uuid == device.uuid)
    return Way("an NVML call", device, lambda megahertz: gpu.set_locked_clocks_megahertz(LOWEST_MEGAHERTZ, megahertz))


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket that stays open."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=CHANGE_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextlib.contextmanager
def by_zeusd(program: Path, folder: Path, environment: dict[str, str], device: SimulatedDevice) -> Iterator[Way]:
    """By a request to Zeus' daemon that returns once the clock is set. Raises TimeoutError; OSError where it can't run."""
    path = folder / "zeusd.sock"
    command = [str(program), "serve", "--socket-path", str(path), "--enable", "gpu-control"]
    with (folder / "zeusd.log").open("w") as log:
        daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    connection = UnixConnection(path)

    def ask(megahertz: int) -> None:
        query = f"gpu_ids={device.index}&block=true&min_clock_mhz={LOWEST_MEGAHERTZ}&max_clock_mhz={megahertz}"
        connection.request("POST", f"/gpu/set_gpu_locked_clocks?{query}")
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise OSError(f"zeusd: {answer.status} {text.decode(errors='replace')}")

    try:
        until = time.monotonic() + START_SECONDS
        while not path.exists():
            if daemon.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"zeusd does not serve: {(folder / 'zeusd.log').read_text()[-500:]}")
            time.sleep(0.1)
        ask(FIRST_MEGAHERTZ)
        yield Way("Zeus' daemon", device, ask)
    finally:
        connection.close()
        daemon.kill()
        daemon.wait()


def compute(seconds: float) -> None:
    """Keep a processor for so long, as a training process does that begins its GPU's work and waits for it."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def measure(ways: list[Way], changes: int, pause: Callable[[float], None]) -> None:
    """Change the clock by each way in turn, so often each."""
    for number in range(changes):
        for way in ways:
            pause(PAUSE_SECONDS)
            way.change(IN_TURN_MEGAHERTZ[number % 2])


BETWEEN = {"sleep": time.sleep, "compute": compute}


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def shown(what: str, values: list[float]) -> str:
    shares = ", ".join(f"{share:.0%} {quantile(values, share):,.0f} us" for share in (0.5, 0.9, 0.99))
    return f"{what:18} {shares}, mean {statistics.fmean(values):,.0f} us"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python benchmarks/clocks.py", description=__doc__)
    parser.add_argument("--changes", type=int, default=1000, help="clocks asked for by each way, one every 20 ms")
    parser.add_argument(
        "--between", choices=tuple(BETWEEN), default="sleep", help="what the training process does between two changes"
    )
    parser.add_argument("--zeusd", type=Path, help="Zeus' daemon, to be measured beside them (it wants root)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fc", dir="/tmp") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        hardware = folder / f"{NODE}.gpus"
        gpus = create_node_file(hardware, [CATALOGUE["NVIDIA-A100-SXM4-40GB"]] * GPUS)
        build_library(folder)
        library = folder / "libnvidia-ml.so.1"
        os.environ.update(FLYBALL_SIMULATED_GPUS=str(hardware), FLYBALL_SIMULATED_PRIVILEGED="1")
        (folder / "s").mkdir()
        command = [
            str(Path(sysconfig.get_path("scripts")) / "flyball"), "agent", "enforcer", "--node-name", NODE,
            "--journal-dir", str(folder / "j"), "--socket", str(folder / "enforcer.sock"), "--agent-uid", str(os.getuid()),
            "--driver", "nvml", "--nvml-library", str(library),
        ]  # fmt: skip
        with (folder / "enforcer.log").open("w") as log:
            enforcer = subprocess.Popen(command, stderr=log, stdout=log)
        agent = multiprocessing.get_context("spawn").Process(target=run_agent, args=(folder, gpus), daemon=True)
        agent.start()
        try:
            node = stack.enter_context(SimulatedNode.open(hardware))
            devices = [node.device(gpu) for gpu in gpus]
            through, nvml = through_the_agent(folder, devices[0]), by_nvml(library, devices[1])
            ways = [through, nvml]
            if options.zeusd is not None:
                environment = os.environ | {"LD_LIBRARY_PATH": str(folder)}
                ways.append(stack.enter_context(by_zeusd(options.zeusd, folder, environment, devices[2])))
            measure(ways, options.changes, BETWEEN[options.between])
        except (TimeoutError, OSError) as error:
            print(error, (folder / "enforcer.log").read_text()[-2000:], sep="\n", file=sys.stderr)
            return 1
        finally:
            agent.kill()
            enforcer.kill()
            agent.join()
            enforcer.wait()
    for way in ways:
        print(shown(way.name, way.took))
    print(shown("the client's CPU", through.call_processor_time))
    more, cost = quantile(through.took, 0.99) - quantile(nvml.took, 0.99), statistics.fmean(through.call_processor_time)
    kept = more <= TARGET_MORE_MICROSECONDS and cost <= TARGET_CALL_MICROSECONDS
    verdict = "kept" if kept else "NOT KEPT"
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; 99 of 100 at most {more:,.0f} us more: {verdict}"
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
