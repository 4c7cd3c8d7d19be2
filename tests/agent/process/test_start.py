"""What the command line hands on to the process that the agent runs in."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from flyball_agent.gpu.worker_driver import WORKER
from flyball_agent.process import start
from flyball_agent.process.options import AgentOptions, EnforcerOptions
from flyball_kube.process.log_settings import LogSettings

LOGS = LogSettings("text", "DEBUG")


@pytest.mark.parametrize(
    "options",
    [
        AgentOptions(
            "node-0",
            driver="simulated",
            journal_dir=Path("j"),
            hardware_dir=Path("hw"),
            nvml_library=Path("nvml.so"),
            tick_seconds=0.5,
            enforcer_socket=Path("e.sock"),
            socket_dir=Path("s"),
            pods="file",
            kubelet_socket=Path("kubelet.sock"),
            kubeconfig=Path("kubeconfig"),
            kubernetes=False,
            namespace="power",
            metrics_host="127.0.0.1",
            metrics_port=-1,
            status_interval_seconds=2.5,
        ),
        AgentOptions("node-0"),
        EnforcerOptions("node-0", journal_dir=Path("/with space/ünd mehr"), socket=Path("e.sock"), agent_uid=0),
    ],
)
def test_every_option_comes_through(options: AgentOptions | EnforcerOptions) -> None:
    read = start._read(start._described(options, LOGS))
    assert (read.options, read.logs) == (options, LOGS)
    assert type(read.options) is type(options)


# What must be in no process of a node: each of them would be a MiB or more of every node's memory, for months.
COMMAND_LINE = "typer click rich flyball_cli typing_extensions"
TOO_LARGE = f"{COMMAND_LINE} aiohttp yarl multidict attr grpc google yaml numpy importlib.metadata"
NOT_IN_AN_ENFORCER = f"{TOO_LARGE} ssl h11 http email prometheus_client urllib.request"
PROCESSES = {
    "agent": ("asyncio, flyball_agent.process.main, flyball_agent.pods.kubelet, flyball_kube.http.lean", TOO_LARGE),
    "enforcer": ("asyncio, flyball_agent.process.enforcer, flyball_agent.gpu.worker_driver", NOT_IN_AN_ENFORCER),
    "worker": ("flyball_agent.gpu.worker", f"{NOT_IN_AN_ENFORCER} asyncio logging inspect"),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_the_processes_of_a_node_are_without_what_they_can_do_without(process: str) -> None:
    modules, unwanted = PROCESSES[process]
    started = "import flyball_agent.process.start;"
    without_ssl = "sys.modules['ssl'] = None;"  # as `start.enforce` does before it imports asyncio
    code = {"agent": started, "enforcer": f"{without_ssl} {started}", "worker": ""}[process]
    code = f"import sys; {code} import {modules}; print(*[m for m in {unwanted.split()} if sys.modules.get(m)])"
    if process == "worker":
        code = WORKER.replace("main(sys.argv[1:])", code)
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.split() == []


FLOOD = """
import asyncio, os, resource, sys
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.process import start
from flyball_agent.training.sockets import MAX_CONNECTIONS, TrainingSockets

PODS = 64

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    start.allow_open_files()
    sockets = TrainingSockets(None, sys.argv[1])
    await sockets.sync({str(number): PodName("research", str(number)) for number in range(PODS)})
    lines = [
        await asyncio.open_unix_connection(f"{sys.argv[1]}/{number}/flyball.sock")
        for number in range(PODS) for _ in range(MAX_CONNECTIONS)
    ]
    async with asyncio.timeout(30):
        while sum(len(each._http._open) for each in sockets._sockets.values()) < len(lines):
            await asyncio.sleep(0.01)
    os.close(os.open("/dev/null", os.O_RDONLY))

asyncio.run(main())
"""


def test_whatever_pods_have_open_there_are_files_left_for_the_agent() -> None:
    """Many container runtimes let a process have 1024, which are soon taken; one less would be that of the API server."""
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < start.OPEN_FILES:
        pytest.skip("who runs this may not have as many files")
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp") as folder:  # short, for the sockets' paths
        ran = subprocess.run(
            [sys.executable, "-c", FLOOD, folder], capture_output=True, text=True, timeout=100, check=False
        )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_nobody_is_given_fewer_files_than_before() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    start.allow_open_files()
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard == before[1]
        assert soft >= before[0] or soft == resource.RLIM_INFINITY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
