"""What the command line hands on to the process that the agent runs in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from flyball_agent import start
from flyball_agent.options import AgentOptions, EnforcerOptions
from flyball_kube.log_settings import LogSettings

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


def test_the_processes_of_a_node_have_no_command_line_in_their_memory() -> None:
    code = (
        "import sys, flyball_agent.start, flyball_agent.main, flyball_agent.kubelet, flyball_agent.gpu.worker;"
        "assert not {'typer', 'click', 'rich', 'flyball_cli'} & {name.partition('.')[0] for name in sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
