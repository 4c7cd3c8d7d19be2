"""What the command line hands on to the process that the agent runs in."""

from __future__ import annotations

import subprocess
import sys
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
