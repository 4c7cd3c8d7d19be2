"""What one node's agent costs: memory and CPU time of each of its processes, with GPUs that NVML's interface shows.

The GPUs are simulated behind the C library, the kubelet is a gRPC server on a Unix socket, the API server a small one
over TLS in this process that renews the operator's Lease every two seconds; the metrics are scraped every fifteen. The
agent's own processes are the real ones. `--one-process` runs both halves in one. `--real` takes this machine's own GPUs
instead, and only observes them: an agent that observes takes no grant, and so sets nothing.

Where the user may make a control group (root), the processes are in one, and its working set is told, too: what the kernel
charges them, less files that nothing has read lately. Files that somebody else has read before are not charged there.

Exits with 1 where all of it as one pod takes more than 60 MiB or 1 % of a core. Real boards' own library makes more.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import trustme
from aiohttp import web
from flyball_agent.gpu.nvml import NvmlDriver
from flyball_agent.pods.kubelet import (
    CONTAINER_DEVICES,
    DEVICES_IDS,
    DEVICES_RESOURCE_NAME,
    LIST_METHOD,
    POD_CONTAINERS,
    POD_NAME,
    POD_NAMESPACE,
    POD_RESOURCES,
)
from flyball_api.grant import Grant, JobGrant, PowerBound, grant_spec
from flyball_api.names import LEADER_LEASE
from flyball_api.values.units import MilliwattsPerGpu, node_milliwatts
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_testbed.realnode.gpus import build_library

FLYBALL = str(Path(sysconfig.get_path("scripts")) / "flyball")
NODE, PODS = "node-0", 4
RENEW_SECONDS, SCRAPE_SECONDS = 2.0, 15.0
KIBI = 1024
LARGEST_POD_MEBIBYTES, LARGEST_CORE_PERCENT = 60.0, 1.0


class Api:
    """As much of an API server as an agent speaks to."""

    def __init__(self, uuids: list[str], gpus_a_pod: int, pods: int = PODS) -> None:
        each = MilliwattsPerGpu(300_000)
        of_pods = [(f"job-{pod}", f"job-uid-{pod}", 1, f"job-{pod}-0", gpus_a_pod, each) for pod in range(pods)]
        jobs = tuple(
            JobGrant("research", *of_pod, clock_max_megahertz=1200, pod_uid=f"pod-uid-{pod}")
            for pod, of_pod in enumerate(of_pods)
        )
        spec = grant_spec(Grant(1, 1, 30, PowerBound(node_milliwatts(each, len(uuids))), jobs=jobs))
        self._gpu_node = {"metadata": {"name": NODE, "uid": "u", "resourceVersion": "1"}, "spec": spec}
        self.acknowledged = asyncio.Event()
        self.reported = asyncio.Event()

    def _list(self, *items: dict[str, Any]) -> web.Response:
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == "/version":
            return web.json_response({"major": "1", "minor": "35", "gitVersion": "v1.35.0"})
        if request.method == "PATCH":
            self.reported.set()
            if (await request.json())["status"].get("acknowledged"):
                self.acknowledged.set()
            return web.json_response(self._gpu_node)
        if "watch" in request.query:
            return await self._watch(request, "leases" in path)
        if "gpunodes" in path:
            return self._list(self._gpu_node)
        return self._list()

    async def _watch(self, request: web.Request, renewals: bool) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        end = time.monotonic() + float(request.query.get("timeoutSeconds", "60"))
        version = 1
        while time.monotonic() < end and request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(RENEW_SECONDS)
            if renewals:
                version += 1
                lease = {
                    "metadata": {"name": LEADER_LEASE, "resourceVersion": str(version)},
                    "spec": {"renewTime": f"2026-01-01T00:00:00.{version:06d}Z", "leaseTransitions": 1},
                }
                with contextlib.suppress(ConnectionError):  # the agent has ended
                    await answer.write(json.dumps({"type": "MODIFIED", "object": lease}).encode() + b"\n")
        return answer


@asynccontextmanager
async def serving(api: Api, authority: trustme.CA) -> AsyncIterator[str]:
    """Over TLS, as in a cluster: its buffers and OpenSSL's count, too."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@asynccontextmanager
async def kubelet(socket: Path, uuids: list[str], gpus_a_pod: int, pods: int = PODS) -> AsyncIterator[None]:
    def field(number: int, content: bytes) -> bytes:
        length = [len(content)] if len(content) < 128 else [len(content) & 0x7F | 0x80, len(content) >> 7]
        return bytes([number << 3 | 2, *length]) + content

    held = b""
    for pod in range(pods):
        devices = field(DEVICES_RESOURCE_NAME, b"nvidia.com/gpu")
        for uuid in uuids[pod * gpus_a_pod : (pod + 1) * gpus_a_pod]:
            devices += field(DEVICES_IDS, uuid.encode())
        names = field(POD_NAME, f"job-{pod}-0".encode()) + field(POD_NAMESPACE, b"research")
        held += field(POD_RESOURCES, names + field(POD_CONTAINERS, field(CONTAINER_DEVICES, devices)))

    async def answer(request: Any, context: Any) -> Any:
        return held

    handler = grpc.unary_unary_rpc_method_handler(answer)
    service, _, method = LIST_METHOD.strip("/").partition("/")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    yield
    await server.stop(None)


@dataclass(frozen=True)
class Cost:
    """What a process uses: MiB resident that no file backs, and of which files, and CPU seconds so far.

    `files` is by file and the offset in it; `page_tables` are the kernel's, for it.
    """

    anonymous: float
    files: Mapping[tuple[str, str], float]
    share: float
    page_tables: float
    cpu_seconds: float

    @property
    def resident(self) -> float:
        return self.anonymous + sum(self.files.values())

    @classmethod
    def of(cls, process: int) -> Cost:
        folder = Path(f"/proc/{process}")
        sums: Counter[str] = Counter()
        files: Counter[tuple[str, str]] = Counter()
        where = ("", "")
        for line in (folder / "smaps").read_text().splitlines():
            words = line.split()
            if not words[0].endswith(":"):
                where = (words[5] if len(words) > 5 else "", words[2])
            elif words[0] in ("Rss:", "Pss:", "Anonymous:"):
                sums[words[0]] += int(words[1])
                files[where] += int(words[1]) * {"Rss:": 1, "Pss:": 0, "Anonymous:": -1}[words[0]]
        (tables,) = (line for line in (folder / "status").read_text().splitlines() if line.startswith("VmPTE:"))
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        return cls(
            sums["Anonymous:"] / KIBI,
            {where: size / KIBI for where, size in files.items() if size},
            sums["Pss:"] / KIBI,
            int(tables.split()[1]) / KIBI,
            (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        )


class ControlGroup:
    """A control group for the agent's processes, version 2 or 1; `folder` is None where this user can make none."""

    MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))
    FILES = (("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file"))

    def __init__(self) -> None:
        self.folder: Path | None = None
        for mount, (usage, inactive) in zip(self.MOUNTS, self.FILES, strict=True):
            folder = mount / f"flyball-benchmark-{os.getpid()}"
            try:
                folder.mkdir()
            except OSError:
                continue
            if (folder / usage).exists():
                self.folder, self._usage, self._inactive = folder, usage, inactive
                return
            folder.rmdir()

    def enter(self) -> None:
        """Have the calling process in it, and what it starts."""
        if self.folder is not None:
            (self.folder / "cgroup.procs").write_text("0")

    def working_set(self) -> float | None:
        """In MiB, as a kubelet reckons it."""
        if self.folder is None:
            return None
        statistics = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        used = int((self.folder / self._usage).read_text()) - int(statistics[self._inactive])
        return used / KIBI / KIBI

    def remove(self) -> None:
        if self.folder is not None:
            self.folder.rmdir()


def processes_of(process: int) -> dict[str, int]:
    """The process and its children, by what they are."""
    found = {}
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        found["driver's worker"] = int(child)
    return found


def simulated_gpus(folder: Path, count: int, stack: AsyncExitStack) -> tuple[list[str], dict[str, str]]:
    """The UUIDs of busy GPUs behind the C library, and the environment in which the agent finds it."""
    uuids = create_node_file(folder / "node.gpus", [CATALOGUE["NVIDIA-H100-80GB-HBM3"]] * count)
    node = stack.enter_context(SimulatedNode.open(folder / "node.gpus"))
    for device in node.devices:
        device.set_activity(0.8)
    environment = {
        "FLYBALL_SIMULATED_GPUS": str(folder / "node.gpus"),
        "FLYBALL_SIMULATED_PRIVILEGED": "1",
        "LD_LIBRARY_PATH": str(folder),
    }
    return uuids, environment


def real_gpus() -> list[str]:
    """The UUIDs of this machine's GPUs, as the real driver has them."""
    driver = NvmlDriver()
    print(f"driver {driver.version}: {', '.join(gpu.model for gpu in driver.gpus())}")
    uuids = [gpu.uuid for gpu in driver.gpus()]
    driver.close()
    return uuids


async def measure(arguments: argparse.Namespace, folder: Path) -> bool:
    """Whether it costs no more than it may."""
    async with AsyncExitStack() as stack:
        group = ControlGroup()
        stack.callback(group.remove)
        if arguments.real:
            uuids, own_environment = real_gpus(), dict[str, str]()
        else:
            uuids, own_environment = simulated_gpus(folder, arguments.gpus, stack)
        pods = min(PODS, len(uuids))
        gpus_a_pod = len(uuids) // pods
        await stack.enter_async_context(kubelet(folder / "kubelet.sock", uuids, gpus_a_pod, pods))
        api = Api(uuids, gpus_a_pod, pods)
        authority = trustme.CA()
        server = await stack.enter_async_context(serving(api, authority))
        trusted = base64.b64encode(authority.cert_pem.bytes()).decode()
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c"}}],
                    "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": trusted}}],
                }
            )
        )
        environment = {
            **os.environ,
            **own_environment,
            "SSL_CERT_FILE": os.devnull,  # the image has no bundle of authorities, which would be 2 MiB
        }
        with (folder / "log").open("w") as log:

            def start(*words: str) -> int:
                command = [FLYBALL, "agent", *words, "--node-name", NODE]
                command += ["--mode", "observe"] if arguments.real else []
                process = subprocess.Popen(command, env=environment, stderr=log, preexec_fn=group.enter)
                stack.callback(process.wait)
                stack.callback(process.terminate)
                return process.pid

            run = ["run", "--kubeconfig", str(kubeconfig), "--pods", "kubelet", "--metrics-port", str(arguments.port)]
            run += ["--metrics-host", "127.0.0.1", "--kubelet-socket", str(folder / "kubelet.sock")]
            run += ["--socket-dir", str(folder / "s")]
            if arguments.one_process:
                found = {"agent": start(*run, "--journal-dir", str(folder / "j"))}
            else:
                socket = str(folder / "e.sock")
                words = ["enforcer", "--journal-dir", str(folder / "j"), "--socket", socket]
                found = {"enforcer": start(*words, "--agent-uid", str(os.getuid()))}
                found["agent"] = start(*run, "--enforcer-socket", socket)
            async with asyncio.timeout(60):
                await (api.reported if arguments.real else api.acknowledged).wait()
            found |= processes_of(next(iter(found.values())))
            await asyncio.sleep(arguments.seconds / 6)  # what is imported late is there
            before = {name: Cost.of(process) for name, process in found.items()}
            scraping = asyncio.create_task(scrape(arguments.port))
            await asyncio.sleep(arguments.seconds)
            scraping.cancel()
            after = {name: Cost.of(process) for name, process in found.items()}
            working_set = group.working_set()
    return tell(len(uuids), pods, arguments.seconds, before, after, working_set)


def tell(
    gpus: int,
    pods: int,
    seconds: float,
    before: Mapping[str, Cost],
    after: Mapping[str, Cost],
    working_set: float | None,
) -> bool:
    """Print what each process used, and all of them together as the kubelet counts a pod: what files back, once.

    Whether that is no more than it may be.
    """
    print(f"{gpus} GPUs, {pods} pods, {seconds:g} s")
    shares = {name: 100 * (cost.cpu_seconds - before[name].cpu_seconds) / seconds for name, cost in after.items()}
    for name, cost in after.items():
        print(
            f"  {name:16} {cost.resident:6.1f} MiB resident ({cost.anonymous:.1f} its own, {cost.share:.1f} its share), "
            f"{shares[name]:.2f} % of a core"
        )
    costs = after.values()
    own, tables = sum(cost.anonymous for cost in costs), sum(cost.page_tables for cost in costs)
    files: dict[tuple[str, str], float] = {}
    for cost in costs:
        for where, size in cost.files.items():
            files[where] = max(size, files.get(where, 0.0))
    once = sum(files.values())
    pod, core = own + once + tables, sum(shares.values())
    print(
        f"  together         {sum(cost.resident for cost in costs):6.1f} MiB resident "
        f"({sum(cost.share for cost in costs):.1f} their shares), {core:.2f} % of a core"
    )
    print(
        f"  as one pod       {pod:6.1f} MiB: {own:.1f} their own, {once:.1f} of files, counted once, "
        f"{tables:.1f} of page tables"
    )
    if working_set is not None:
        print(
            f"  working set      {working_set:6.1f} MiB as its control group has it, on a machine that knows the files"
        )
    kept = pod <= LARGEST_POD_MEBIBYTES and core <= LARGEST_CORE_PERCENT
    print(f"  {LARGEST_POD_MEBIBYTES:g} MiB and {LARGEST_CORE_PERCENT:g} % of a core: {'kept' if kept else 'NOT KEPT'}")
    return kept


async def scrape(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                await answer.read()
            await asyncio.sleep(SCRAPE_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8, help="how many, a multiple of four")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--port", type=int, default=19101, help="for the agent's metrics")
    parser.add_argument("--real", action="store_true", help="this machine's own GPUs, read and never set")
    parser.add_argument("--one-process", action="store_true", help="both halves in one process")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fb") as folder:
        if not arguments.real:
            build_library(Path(folder))
        return 0 if asyncio.run(measure(arguments, Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main())
