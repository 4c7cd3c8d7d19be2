"""One real node as the bench sees it: a process to start and stop, a folder, and a Node in the API."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from flyball_testbed.controlplane import network
from flyball_testbed.controlplane.processes import Process, ProcessIdentity, log_tail, resident_bytes, uninterrupted
from flyball_testbed.realnode import cgroups
from flyball_testbed.realnode.configuration import KUBELET_ROOT, MACHINE_FILE, Machine, service_commands
from flyball_testbed.realnode.machine import import_command, launch_command

STOP_TIMEOUT_SECONDS = 10.0


class NodeError(Exception):
    """A node did not do what was asked of it; the message has the end of its logs."""


class RealNode:
    """A node of a cluster. `start` it; `stop` is a power cut: its disk, its folder, is as it was."""

    def __init__(self, machine: Machine, namespace: Path, *, die_with_parent: bool = True) -> None:
        self.machine = machine
        self._namespace = namespace
        self._die_with_parent = die_with_parent
        self._process: Process | None = None

    @property
    def name(self) -> str:
        return self.machine.name

    def start(self) -> None:
        """Power the node. Raises ValueError where it runs."""
        if self.is_running():
            raise ValueError(f"{self.name} is running")
        self.machine.write(self.machine.folder / MACHINE_FILE)
        with uninterrupted():
            self._process = Process.spawn(
                self.name,
                network.within(self._namespace, launch_command(self.machine)),
                log_path=self.machine.log("machine"),
                die_with_parent=self._die_with_parent,
            )

    def stop(self) -> None:
        """End every process of the node at once, and what the kernel does not take with them."""
        if self._process is not None:
            self._process.stop(STOP_TIMEOUT_SECONDS)
        cgroups.sweep()

    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running()

    # --- inside ----------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The node's process 1, as this machine numbers it. Raises NodeError where the node does not run."""
        if self._process is not None and self._process.is_running():
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            if children:
                return int(children[0])
        raise NodeError(f"{self.name} does not run")

    def run(self, command: Sequence[str], *, timeout_seconds: float = 60.0) -> str:
        """Run a command on the node, as root; its output. Raises NodeError with what it said where it fails."""
        inside = [network.tool("nsenter"), f"--target={self.pid}", "--mount", "--net", "--pid", "--uts", "--ipc"]
        answer = subprocess.run(
            [*inside, *command], capture_output=True, text=True, check=False, timeout=timeout_seconds
        )
        if answer.returncode != 0:
            raise NodeError(f"{self.name}: {command[0]} ended with {answer.returncode}: {answer.stderr.strip()[-800:]}")
        return answer.stdout

    def load_image(self, image: Path) -> None:
        """Import an image's tar (OCI or Docker), for pods. Raises NodeError."""
        self.run(import_command(self.machine, image.resolve()))

    @property
    def pod_resources_socket(self) -> Path:
        """The kubelet's PodResources socket, from outside the node."""
        return self.machine.folder / Path(KUBELET_ROOT).name / "pod-resources" / "kubelet.sock"

    @property
    def device_plugins(self) -> Path:
        """The kubelet's folder of device plugins, from outside the node."""
        return self.machine.folder / Path(KUBELET_ROOT).name / "device-plugins"

    # --- what a report shows ---------------------------------------------------------------------------------------

    def processes(self) -> dict[int, str]:
        """What runs on the node, its pods' processes included: process id, as this machine numbers it, and program."""
        if not self.is_running():
            return {}
        return {pid: _program_name(pid) for pid in [self.pid, *_descendants(self.pid)]}

    def resident_bytes(self) -> int:
        """Resident memory of the node's own processes, without its pods'."""
        services = {Path(command[0]).name for command in service_commands(self.machine).values()}
        return sum(resident_bytes(pid) for pid, name in self.processes().items() if name in services)

    def log_tails(self, lines: int = 25) -> str:
        """The end of each of the node's logs, titled."""
        logs = sorted((self.machine.folder / "logs").glob("*.log"))
        return "\n".join(f"--- {self.name}: {path.stem}\n{log_tail(path, lines)}" for path in logs)

    # --- over processes --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What another process needs to take the node over."""
        identity = self._process.identity if self._process is not None else None
        return {"directory": self.machine.directory, "process": astuple(identity) if identity is not None else None}

    @classmethod
    def attach(cls, state: dict[str, Any], namespace: Path, *, die_with_parent: bool) -> RealNode:
        """The node that `state` describes."""
        machine = Machine.read(Path(state["directory"]) / MACHINE_FILE)
        node = cls(machine, namespace, die_with_parent=die_with_parent)
        if state["process"] is not None:
            node._process = Process(machine.name, ProcessIdentity(*state["process"]), machine.log("machine"))
        return node


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):  # the children that each thread started
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children += map(int, thread.read_text().split())
    return children + [below for child in children for below in _descendants(child)]


def _program_name(pid: int) -> str:
    try:
        return Path(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")).name
    except (FileNotFoundError, ProcessLookupError):
        return ""
