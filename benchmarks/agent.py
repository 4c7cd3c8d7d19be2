"""What one node's agent costs: memory and CPU time of each of its processes, with GPUs that NVML's interface shows.

The GPUs are simulated behind the C library, the kubelet is a gRPC server on a Unix socket, the API server a small one in
this process that renews the operator's Lease every two seconds; the metrics are scraped every fifteen. The agent's own
processes are the real ones. `--one-process` runs both halves in one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
from aiohttp import web
from flyball_agent.kubelet import LIST_METHOD, MESSAGES
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode

FLYBALL = str(Path(sysconfig.get_path("scripts")) / "flyball")
NVML_SOURCE = Path(__file__).parents[1] / "simulated_gpu" / "nvml"
NODE, PODS = "node-0", 4
RENEW_SECONDS, SCRAPE_SECONDS = 2.0, 15.0


class Api:
    """As much of an API server as an agent speaks to."""

    def __init__(self, uuids: list[str], gpus_a_pod: int) -> None:
        jobs = [
            {
                "namespace": "research", "name": f"job-{pod}", "uid": f"job-uid-{pod}", "incarnation": 1,
                "podName": f"job-{pod}-0", "podUid": f"pod-uid-{pod}", "gpus": gpus_a_pod,
                "powerLimitMilliwatts": 300_000, "clockMegahertz": {"min": 0, "max": 1200},
            }
            for pod in range(PODS)
        ]  # fmt: skip
        spec = {
            "epoch": 1, "generation": 1, "leaseSeconds": 30, "boundMilliwatts": 300_000 * len(uuids), "jobs": jobs,
        }  # fmt: skip
        self._gpu_node = {"metadata": {"name": NODE, "uid": "u", "resourceVersion": "1"}, "spec": spec}
        self.acknowledged = asyncio.Event()

    def _list(self, *items: dict[str, Any]) -> web.Response:
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == "/version":
            return web.json_response({"major": "1", "minor": "35", "gitVersion": "v1.35.0"})
        if request.method == "PATCH":
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
                    "metadata": {"name": "flyball-operator", "resourceVersion": str(version)},
                    "spec": {"renewTime": f"2026-01-01T00:00:00.{version:06d}Z", "leaseTransitions": 1},
                }
                with contextlib.suppress(ConnectionError):  # the agent has ended
                    await answer.write(json.dumps({"type": "MODIFIED", "object": lease}).encode() + b"\n")
        return answer


@asynccontextmanager
async def serving(api: Api) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@asynccontextmanager
async def kubelet(socket: Path, uuids: list[str], gpus_a_pod: int) -> AsyncIterator[None]:
    held = MESSAGES["ListPodResourcesResponse"]()
    for pod in range(PODS):
        found = held.pod_resources.add(namespace="research", name=f"job-{pod}-0")
        devices = found.containers.add(name="train").devices.add(resource_name="nvidia.com/gpu")
        devices.device_ids.extend(uuids[pod * gpus_a_pod : (pod + 1) * gpus_a_pod])

    async def answer(request: Any, context: Any) -> Any:
        return held

    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=MESSAGES["ListPodResourcesRequest"].FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    service, _, method = LIST_METHOD.strip("/").partition("/")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    yield
    await server.stop(None)


@dataclass(frozen=True)
class Cost:
    """What a process uses: MiB resident, its proportional share, and CPU seconds so far."""

    resident: float
    share: float
    cpu_seconds: float

    @classmethod
    def of(cls, process: int) -> Cost:
        sums = dict(line.split(":", 1) for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:])
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        mebibytes = [int(sums[name].split()[0]) / 1024 for name in ("Rss", "Pss")]
        return cls(mebibytes[0], mebibytes[1], ticks / os.sysconf("SC_CLK_TCK"))


def processes_of(process: int) -> dict[str, int]:
    """The process and its children, by what they are."""
    found = {}
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        found["driver's worker"] = int(child)
    return found


async def measure(arguments: argparse.Namespace, folder: Path) -> None:
    gpus_a_pod = arguments.gpus // PODS
    async with AsyncExitStack() as stack:
        uuids = create_node_file(folder / "node.gpus", [CATALOGUE["NVIDIA-H100-80GB-HBM3"]] * arguments.gpus)
        node = stack.enter_context(SimulatedNode.open(folder / "node.gpus"))
        for device in node.devices:
            device.set_activity(0.8)
        await stack.enter_async_context(kubelet(folder / "kubelet.sock", uuids, gpus_a_pod))
        api = Api(uuids, gpus_a_pod)
        server = await stack.enter_async_context(serving(api))
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c"}}],
                    "clusters": [{"name": "c", "cluster": {"server": server}}],
                }
            )
        )
        environment = {
            **os.environ,
            "FLYBALL_SIMULATED_GPUS": str(folder / "node.gpus"),
            "FLYBALL_SIMULATED_PRIVILEGED": "1",
            "LD_LIBRARY_PATH": str(folder),
        }
        with (folder / "log").open("w") as log:

            def start(*words: str) -> int:
                command = [FLYBALL, "agent", *words, "--node-name", NODE]
                process = subprocess.Popen(command, env=environment, stderr=log)
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
                await api.acknowledged.wait()
            found |= processes_of(next(iter(found.values())))
            await asyncio.sleep(arguments.seconds / 6)  # what is imported late is there
            before = {name: Cost.of(process) for name, process in found.items()}
            scraping = asyncio.create_task(scrape(arguments.port))
            await asyncio.sleep(arguments.seconds)
            scraping.cancel()
            after = {name: Cost.of(process) for name, process in found.items()}
    total = Cost(0, 0, 0)
    print(f"{arguments.gpus} GPUs, {PODS} pods, {arguments.seconds:g} s")
    for name, cost in after.items():
        used = Cost(cost.resident, cost.share, cost.cpu_seconds - before[name].cpu_seconds)
        total = Cost(total.resident + used.resident, total.share + used.share, total.cpu_seconds + used.cpu_seconds)
        tell(name, used, arguments.seconds)
    tell("together", total, arguments.seconds)


def tell(name: str, cost: Cost, seconds: float) -> None:
    share = 100 * cost.cpu_seconds / seconds
    print(f"  {name:16} {cost.resident:6.1f} MiB resident, {cost.share:6.1f} MiB its share, {share:.2f} % of a core")


async def scrape(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                await answer.read()
            await asyncio.sleep(SCRAPE_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8, help="how many, a multiple of four")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--port", type=int, default=19101, help="for the agent's metrics")
    parser.add_argument("--one-process", action="store_true", help="both halves in one process")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fb") as folder:
        subprocess.run(["make", "-s", "-C", NVML_SOURCE, f"DESTINATION={folder}"], check=True)
        asyncio.run(measure(arguments, Path(folder)))


if __name__ == "__main__":
    main()
