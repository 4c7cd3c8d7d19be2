"""The enforcer as a process of its own: its agent killed, hung, flooding, lying; itself killed, hung, without a driver."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flyball_agent.energy.observations import StepReport
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.link.client import MAX_WAITING_REPORTS, EnforcerLink
from flyball_agent.link.messages import (
    MAX_TO_ENFORCER_BYTES,
    OperatorSeen,
    PodsListed,
    SpecSeen,
    StepsReported,
    packed,
)
from flyball_agent.pods.resources import PodDevices
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode

from tests.support.gpu_node_specs import gpu_node_spec, job_grant
from tests.support.waiting import until, wait_until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
FLYBALL = str(Path(sysconfig.get_path("scripts")) / "flyball")
POD = PodName("research", "gpt2-1-0")
LEASE_SECONDS = 3
NOBODY = 65534


class Bench:
    """A node of two GPUs and its enforcer as a process; the test is its agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "enforcer.sock"
        self.log = folder / "enforcer.log"
        self.uuids = create_node_file(folder / "node-0.gpus", [A100] * 2)
        self.node = SimulatedNode.open(folder / "node-0.gpus")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        command = [FLYBALL, "agent", "enforcer", "--node-name", "node-0", "--tick-seconds", "0.1"]
        command += ["--journal-dir", str(self.folder / "j"), "--socket", str(self.socket)]
        command += ["--agent-uid", str(os.getuid())] if "--agent-uid" not in arguments else []
        command += arguments
        if "--driver" not in arguments:
            command += ["--driver", "simulated", "--hardware-dir", str(self.folder)]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        self.send(number)
        assert self.process is not None
        return self.process.wait(30)

    def limits(self) -> list[int]:
        return [device.read().requested_limit_milliwatts for device in self.node.devices]

    def resident_bytes(self) -> int:
        assert self.process is not None
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def libraries(self) -> set[str]:
        """What the process has loaded, by the names before `.so`."""
        assert self.process is not None
        maps = Path(f"/proc/{self.process.pid}/maps").read_text().split()
        return {Path(word).name.partition(".so")[0] for word in maps if ".so" in word}

    def spec(self, generation: int, bound: int, limit: int, lease: int = LEASE_SECONDS) -> dict[str, Any]:
        return gpu_node_spec(generation, bound, job_grant(POD.name, limit), lease=lease)

    def logged(self, event: str) -> bool:
        return any(json.loads(line)["event"] == event for line in self.log.read_text().splitlines())


@pytest.fixture
def bench(short_folder: Path) -> Iterator[Bench]:
    short_folder.chmod(0o755)
    bench = Bench(short_folder)
    yield bench
    if bench.process is not None and bench.process.poll() is None:
        bench.send(signal.SIGCONT)
        bench.end()
    bench.node.close()


@contextlib.asynccontextmanager
async def linked(bench: Bench, spec: dict[str, Any] | None = None) -> Any:
    """A line to the enforcer that tells the GPUs' pod, and the spec (as it is at the API server) at each connection."""
    link = EnforcerLink(bench.socket, "node-0")
    if spec is not None:
        link.on_connected = lambda: link.accept_spec(spec)
    link.take_pods([PodDevices(POD.namespace, POD.name, "pod-uid", tuple(bench.uuids))])
    task = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def acknowledged(link: EnforcerLink, generation: int) -> Callable[[], bool]:
    def told() -> bool:
        found = link.state.enforced.acknowledged
        return found is not None and found.generation == generation

    return told


def in_force(bench: Bench, link: EnforcerLink, generation: int, limit: int) -> Callable[[], bool]:
    """Whether the grant is in force; each question is a sight of the operator, so that the lease holds on slow machines."""

    def holds() -> bool:
        link.operator_seen(1)
        return acknowledged(link, generation)() and bench.limits() == [limit, limit]

    return holds


async def test_what_is_told_is_done_and_what_is_known_comes_back(bench: Bench) -> None:
    bench.start()
    async with linked(bench, bench.spec(1, 700_000, 350_000, lease=600)) as link:
        await until(acknowledged(link, 1))
        assert bench.limits() == [350_000, 350_000]
        assert link.state.pods[POD].uid == "pod-uid"
        bench.node.devices[0].set_activity(1.0)
        link.report_steps(POD, StepReport(40, 20, 0.1, 16))
        await until(lambda: [job.iterations for job in link.state.jobs] == [40])
        await until(lambda: link.state.pod_millijoules(link.state.pods[POD]) > 0)
        link.accept_spec(bench.spec(2, 400_000, 200_000, lease=600))
        await until(acknowledged(link, 2))
        assert bench.limits() == [200_000, 200_000]
        assert not {"libssl", "libcrypto"} & bench.libraries()
    assert bench.end(signal.SIGTERM) == 0
    assert bench.limits() == [200_000, 200_000]


@pytest.mark.slow
async def test_an_agent_that_dies_changes_nothing_until_the_lease_ends(bench: Bench) -> None:
    bench.start()
    seen = time.monotonic()

    def is_seen_in_force() -> bool:
        nonlocal seen
        seen = time.monotonic()
        return in_force(bench, link, 1, 350_000)()

    async with linked(bench, bench.spec(1, 700_000, 350_000)) as link:
        await until(is_seen_in_force)
    limits = bench.limits()
    assert limits == [350_000, 350_000] or time.monotonic() > seen + LEASE_SECONDS
    await until(lambda: bench.limits() == [100_000, 100_000])


@pytest.mark.slow
async def test_an_agent_that_hangs_changes_nothing_and_costs_no_memory(bench: Bench) -> None:
    """It neither reads nor writes any more, and the line stays open."""
    bench.start()
    async with linked(bench, bench.spec(1, 700_000, 350_000, lease=1)) as link:
        await until(acknowledged(link, 1))
    peer = socket.socket(socket.AF_UNIX)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(str(bench.socket))
    await until(lambda: bench.limits() == [100_000, 100_000])
    before = bench.resident_bytes()
    rounds = time.monotonic() + 3.0
    await until(lambda: time.monotonic() > rounds)  # thirty snapshots that nobody reads
    assert bench.resident_bytes() - before < 4 * 2**20
    peer.close()
    async with linked(bench, bench.spec(2, 700_000, 350_000)) as link:
        await until(acknowledged(link, 2))


@pytest.mark.slow
async def test_an_agent_that_floods_delays_no_cut_and_costs_no_memory(bench: Bench) -> None:
    bench.start()
    async with linked(bench, bench.spec(1, 700_000, 350_000)) as link:
        await until(in_force(bench, link, 1, 350_000))
    before = bench.resident_bytes()
    others = [PodDevices("n", f"pod-{number}", None, (f"GPU-{number}", "GPU-x")) for number in range(1000)]
    big = (PodDevices(POD.namespace, POD.name, "pod-uid", tuple(bench.uuids)), *others)
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    flood = b"".join(
        [
            packed(PodsListed(big)),
            packed(StepsReported(POD, StepReport(1, 1, 1.0))) * 200,
            packed(OperatorSeen(7, now_ns)) * 200,  # of an epoch that granted nothing
            packed(SpecSeen({**gpu_node_spec(1, 1), "boundMilliwatts": "all"}, now_ns)) * 100,
        ]
    )
    reader, writer = await asyncio.open_unix_connection(bench.socket)
    sent = 0

    async def pour() -> None:
        nonlocal sent
        while True:
            writer.write(flood)
            sent += len(flood)
            await writer.drain()

    async def drink() -> None:
        while await reader.read(2**16):
            pass

    tasks = [asyncio.create_task(pour()), asyncio.create_task(drink())]
    await until(lambda: bench.limits() == [100_000, 100_000])  # the lease's end comes through it all
    assert bench.resident_bytes() - before < 32 * 2**20
    assert sent >= len(flood)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    writer.close()
    async with linked(bench, bench.spec(2, 700_000, 350_000)) as link:
        await until(acknowledged(link, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        (MAX_TO_ENFORCER_BYTES + 1).to_bytes(4, "big"),
        (2**32 - 1).to_bytes(4, "big") + b"x" * 1000,
        (5).to_bytes(4, "big") + b"\xc1garb",
        packed(OperatorSeen(1, 5)).replace(b"OperatorSeen", b"OperatorSaid"),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["too long", "longest", "no message pack", "no such message", "http"],
)
async def test_what_is_no_message_cuts_the_line_and_nothing_else(bench: Bench, sent: bytes) -> None:
    bench.start()
    async with linked(bench, bench.spec(1, 700_000, 350_000, lease=600)) as link:
        await until(acknowledged(link, 1))
    reader, writer = await asyncio.open_unix_connection(bench.socket)
    writer.write(sent)
    async with asyncio.timeout(20):
        while await reader.read(2**16):
            pass
    writer.close()
    assert bench.limits() == [350_000, 350_000]
    async with linked(bench, bench.spec(2, 400_000, 200_000)) as link:
        await until(acknowledged(link, 2))
    assert bench.logged("agent cut off")


async def test_an_agent_that_lies_gets_no_more_than_a_grant_that_checks(bench: Bench) -> None:
    bench.start()
    async with linked(bench, bench.spec(5, 400_000, 200_000)) as link:
        await until(acknowledged(link, 5))
        link.accept_spec(bench.spec(4, 800_000, 400_000))  # older
        await until(lambda: link.state.enforced.stale_grant is not None)
        link.accept_spec({**bench.spec(6, 800_000, 400_000), "boundMilliwatts": -1})
        await until(lambda: link.state.enforced.invalid_grant is not None)
        link.take_pods([PodDevices("n", "p", None, ("GPU-unheard-of",)), PodDevices("n", "p", None, ())])
        await until(lambda: POD not in link.state.pods)
        assert sum(bench.limits()) <= 400_000


async def test_an_enforcer_that_is_killed_keeps_limits_and_raises_nothing_before_the_spec_is_seen_again(
    bench: Bench,
) -> None:
    bench.start()
    async with linked(bench, bench.spec(1, 700_000, 350_000, lease=600)) as link:
        await until(acknowledged(link, 1))
        link.on_connected = lambda: None  # the API server is away now
        bench.end()
        assert bench.limits() == [350_000, 350_000]
        bench.node.devices[0].set_power_limit_milliwatts(150_000)
        last_ns = link.state.last_round_ns
        assert last_ns is not None
        bench.start()
        await until(lambda: link.lines == 2 and (link.state.last_round_ns or 0) > last_ns)
        rounds = link.state.counts.rounds
        await until(lambda: link.state.counts.rounds > rounds + 5)
        assert bench.limits() == [150_000, 350_000]
        link.accept_spec(bench.spec(1, 700_000, 350_000, lease=600))
        await until(lambda: bench.limits() == [350_000, 350_000])


@pytest.mark.slow
async def test_an_enforcer_that_was_frozen_takes_no_old_renewal_for_a_new_one(bench: Bench) -> None:
    bench.start()
    async with linked(bench, bench.spec(1, 700_000, 350_000, lease=1)) as link:
        await until(in_force(bench, link, 1, 350_000))
        bench.send(signal.SIGSTOP)
        frozen = time.monotonic()
        while time.monotonic() < frozen + 0.3:
            link.operator_seen(1)
            for _ in range(1000):
                link.report_steps(POD, StepReport(1, 1, 1.0))
            await asyncio.sleep(0.01)
        assert len(link._reports) <= MAX_WAITING_REPORTS
        await until(lambda: time.monotonic() > frozen + 2)  # past everything that was seen
        bench.send(signal.SIGCONT)
        await until(lambda: bench.limits() == [100_000, 100_000])
        rounds = link.state.counts.rounds
        await until(lambda: link.state.counts.rounds > rounds + 3)
        assert bench.limits() == [100_000, 100_000]
        await until(in_force(bench, link, 1, 350_000))


async def starve(bench: Bench, share: float) -> None:
    """Let the enforcer run for that share of the time only."""
    period = 0.25
    while True:
        bench.send(signal.SIGSTOP)
        await asyncio.sleep((1 - share) * period)
        bench.send(signal.SIGCONT)
        await asyncio.sleep(share * period)


@pytest.mark.slow
async def test_an_enforcer_that_is_starved_of_cpu_cuts_and_raises_and_keeps_its_lease(bench: Bench) -> None:
    bench.start()
    async with linked(bench, bench.spec(1, 700_000, 350_000)) as link:
        await until(in_force(bench, link, 1, 350_000))
        counts, late = link.state.enforced.counts, link.state.counts.late_rounds
        expiries = counts.lease_expiries
        starving = asyncio.create_task(starve(bench, 0.2))
        try:
            link.accept_spec(bench.spec(2, 400_000, 200_000))
            await until(in_force(bench, link, 2, 200_000))

            def late_and_low() -> bool:
                link.operator_seen(1)
                assert bench.limits() == [200_000, 200_000]
                return link.state.counts.late_rounds > late + 3

            await until(late_and_low)
            link.accept_spec(bench.spec(3, 600_000, 300_000))
            await until(in_force(bench, link, 3, 300_000))
        finally:
            starving.cancel()
            await asyncio.gather(starving, return_exceptions=True)
            bench.send(signal.SIGCONT)
        assert link.state.enforced.counts.lease_expiries == expiries
        assert link.state.counts.failed_rounds == 0


AS_NOBODY = """
import os, socket, sys
os.setgid({nobody}); os.setuid({nobody})
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(20)
peer.connect(sys.argv[1])
sys.exit(0 if peer.recv(1) else 3)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize(("allowed", "code"), [(NOBODY, 0), (NOBODY - 1, 3)])
async def test_only_the_agents_user_is_heard(bench: Bench, allowed: int, code: int) -> None:
    bench.start("--agent-uid", str(allowed))
    await until(bench.socket.exists)
    await until(lambda: bench.logged("enforcer serves"))
    script = AS_NOBODY.format(nobody=NOBODY)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-S", "-c", script, str(bench.socket)], capture_output=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert bench.logged("agent refused") is (code == 3)


def nvml(bench: Bench, library: Path) -> dict[str, str]:
    return {
        **os.environ,
        "FLYBALL_SIMULATED_GPUS": str(bench.folder / "node-0.gpus"),
        "FLYBALL_SIMULATED_PRIVILEGED": "1",
        "LD_LIBRARY_PATH": str(library.parent),
    }


@pytest.mark.slow
async def test_a_gpu_that_hangs_holds_neither_the_enforcer_nor_the_next_one(bench: Bench, nvml_library: Path) -> None:
    environment = nvml(bench, nvml_library)
    bench.start("--driver", "nvml", environment=environment)
    async with linked(bench, bench.spec(1, 700_000, 350_000, lease=600)) as link:
        await until(acknowledged(link, 1))
        bench.node.devices[0].flags |= DeviceFault.HANG
        link.read_soon()  # a training process wants a reading: it may be the first to find the driver hanging
        link.accept_spec(bench.spec(2, 400_000, 200_000, lease=600))
        await until(lambda: bench.limits() == [350_000, 100_000])  # which gives way for what the first one keeps
        await until(lambda: any(gpu.failure is not None for gpu in link.state.enforced.gpus.values()))
        bench.end()  # its worker is left behind in the driver
        bench.node.devices[0].flags &= ~DeviceFault.HANG
        bench.start("--driver", "nvml", environment=environment)
        link.on_connected = lambda: link.accept_spec(bench.spec(2, 400_000, 200_000, lease=600))
        await until(lambda: bench.limits() == [200_000, 200_000])
        bench.node.devices[0].flags |= DeviceFault.HANG
        await until(lambda: any(gpu.failure is not None for gpu in link.state.enforced.gpus.values()))
        assert await asyncio.to_thread(bench.end, signal.SIGTERM) == 0


async def test_without_a_driver_it_says_so_and_adopts_it_when_it_is_there(bench: Bench, nvml_library: Path) -> None:
    environment = nvml(bench, nvml_library)
    hardware = bench.folder / "node-0.gpus"
    hardware.rename(bench.folder / "away.gpus")
    bench.start("--driver", "nvml", environment=environment)
    async with linked(bench, bench.spec(1, 400_000, 200_000, lease=600)) as link:
        await until(lambda: link.state.enforced.driver_error is not None)
        assert "the driver is not loaded" in (link.state.enforced.driver_error or "")
        assert link.state.enforced.acknowledged is None
        (bench.folder / "away.gpus").rename(hardware)
        await until(acknowledged(link, 1))
        assert bench.limits() == [200_000, 200_000]


def test_the_enforcer_imports_nothing_of_a_network() -> None:
    modules = "('aiohttp', 'grpc', 'http', 'kubernetes', 'prometheus_client', 'requests', 'urllib3')"
    unwanted = f"[m for m in sys.modules if m.split('.')[0] in {modules}]"
    code = f"import sys, flyball_agent.process.enforcer; assert not {unwanted}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_ends_while_it_waits_for_the_journal(bench: Bench) -> None:
    bench.start()
    wait_until(lambda: bench.logged("enforcer serves"))
    first, bench.process = bench.process, None
    bench.start()
    wait_until(lambda: bench.logged("waiting for the journal"))
    assert bench.end(signal.SIGTERM) == 0
    bench.process = first
