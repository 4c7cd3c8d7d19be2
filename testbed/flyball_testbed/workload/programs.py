"""Training that is real: the commands of an incarnation's pods as processes of this machine, in their pods' environment.

Takes the place of a `Trainer` for pods that name a command, where the host was told to run them. GPUs are simulated ones,
kept busy while the processes train; reports come from the processes themselves, over their pods' sockets.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball_simulated_gpu.shared import SimulatedDevice

from flyball_testbed.controlplane.ports import LOOPBACK, free_port
from flyball_testbed.workload.config_maps import mounted_folder
from flyball_testbed.workload.devices import hardware_path
from flyball_testbed.workload.pods import GpuPod
from flyball_testbed.workload.reports import socket_path
from flyball_testbed.workload.trainer import Phase, StepReport

ACTIVITY = 0.9
PROCESSES_FILE = "programs.json"
# What a program gets of this process' own environment.
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class ProgramPlaces:
    """Where programs find what pods have mounted: `volumes` for checkpoints, `config_maps` (a folder of each pod's), the
    agents' `sockets`, the boards in `hardware`, and where their `logs` go."""

    volumes: Path
    config_maps: Path
    sockets: Path
    logs: Path
    hardware: Path


def environment_of(
    pod: GpuPod, places: ProgramPlaces, own: Mapping[str, str], port: int, gpus: Sequence[str] = ()
) -> dict[str, str]:
    """What the pod's process sees: the pod's variables, with paths and addresses of this machine in place of the pod's."""
    values = {name: own[name] for name in INHERITED if name in own}
    fields = {"metadata.uid": pod.uid, "metadata.name": pod.name, "metadata.namespace": pod.namespace}
    fields |= {f"metadata.labels['{label}']": value for label, value in pod.labels.items()}
    values |= pod.environment
    values |= {name: fields.get(path, "") for name, path in pod.field_references.items()}
    for mounted in pod.config_maps:
        here = str(mounted_folder(places.config_maps, pod, mounted))
        values = {
            name: here + value[len(mounted.mount) :] if value.startswith(f"{mounted.mount}/") else value
            for name, value in values.items()
        }
    if "FLYBALL_CHECKPOINT_DIR" in values:
        values["FLYBALL_CHECKPOINT_DIR"] = str(places.volumes / pod.namespace / pod.job_name)
    if "FLYBALL_SOCKET" in values or "FLYBALL_JOB" in values:
        values["FLYBALL_SOCKET"] = str(socket_path(places.sockets, pod.uid))
    return values | {
        "PET_MASTER_ADDR": LOOPBACK,
        "PET_MASTER_PORT": str(port),
        "JAX_COORDINATOR_ADDRESS": f"{LOOPBACK}:{port}",
        "GLOO_SOCKET_IFNAME": "lo",
        # As NVIDIA's device plugin names a pod's GPUs, and where those that are simulated are.
        "NVIDIA_VISIBLE_DEVICES": ",".join(gpus),
        "FLYBALL_SIMULATED_GPUS": str(hardware_path(places.hardware, pod.node or "")),
    }


def descendants(root: int) -> list[int]:
    """The processes that a process has started, and those that they have, whatever their sessions."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for known in found:  # grows while it is gone through
        found += sorted(pid for pid, parent in parents.items() if parent == known)
    return found[1:]


def kill_tree(root: int) -> None:
    """End a process and all its descendants at once, as the end of a container does."""
    for pid in (root, *descendants(root)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Programs:
    """The processes of one incarnation; a `Trainer` to the host. All begin once every pod of the gang has its GPUs."""

    def __init__(self, pod_of: Callable[[str], GpuPod], world_size: int, places: ProgramPlaces) -> None:
        self.phase = Phase.WAITING
        self.failure = ""
        self.progress = 0.0
        self._pod_of = pod_of
        self._world_size = world_size
        self._places = places
        self._members: dict[str, list[SimulatedDevice]] = {}
        self._pods: dict[str, GpuPod] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kill_at = float("inf")

    def join(self, pod_uid: str, node: str, devices: list[SimulatedDevice]) -> None:
        """A pod of the gang runs and has these GPUs."""
        if self.phase is Phase.WAITING:
            self._members[pod_uid] = devices
            self._pods[pod_uid] = self._pod_of(pod_uid)

    def stop(self, now: float) -> None:
        """As the kubelet does: SIGTERM now, SIGKILL after the pods' grace period."""
        if self.phase is Phase.TRAINING:
            self.phase = Phase.SAVING
            self._kill_at = now + max(self._pods[uid].grace_seconds for uid in self._processes)
            for process in self._processes.values():
                process.terminate()
        elif self.phase is Phase.WAITING:
            self.phase = Phase.STOPPED

    def tick(self, now: float) -> None:
        """Start, and see what has ended."""
        if self.phase is Phase.WAITING and sum(map(len, self._members.values())) >= self._world_size:
            self._start()
        elif self.phase in (Phase.TRAINING, Phase.SAVING):
            if now >= self._kill_at:
                self.kill()
            self._see_ends()

    def _start(self) -> None:
        port = free_port()
        self._places.logs.mkdir(parents=True, exist_ok=True)
        for uid, devices in self._members.items():
            pod = self._pods[uid]
            gpus = [device.uuid for device in devices]
            environment = environment_of(pod, self._places, os.environ, port, gpus)
            if "FLYBALL_CHECKPOINT_DIR" in environment:
                Path(environment["FLYBALL_CHECKPOINT_DIR"]).mkdir(parents=True, exist_ok=True)
            with (self._places.logs / f"{pod.namespace}-{pod.name}.log").open("wb") as log:
                try:
                    self._processes[uid] = subprocess.Popen(
                        pod.command,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                except OSError as error:
                    self._fail(f"{pod.command[0]}: {error}")
                    return
            for device in devices:
                device.set_activity(ACTIVITY)
        self.phase = Phase.TRAINING
        self._write()

    def _see_ends(self) -> None:
        ended = {uid: process.poll() for uid, process in self._processes.items()}
        failed = {uid: status for uid, status in ended.items() if status not in (None, 0)}
        if failed and self.phase is Phase.TRAINING:
            uid, status = next(iter(failed.items()))
            self._fail(f"{self._pods[uid].name} ended with status {status}")
        elif None not in ended.values():
            self._rest()
            self.phase = Phase.STOPPED if failed else Phase.SUCCEEDED

    def _fail(self, why: str) -> None:
        self.kill()
        self._rest()
        self.failure, self.phase = why, Phase.FAILED

    def kill(self) -> None:
        """End every process, and what it started, now."""
        for process in self._processes.values():
            kill_tree(process.pid)
            process.wait()

    def _rest(self) -> None:
        for devices in self._members.values():
            for device in devices:
                device.set_activity(0.0)
        self._write()

    def _write(self) -> None:
        """Say which process groups run, for those who want to kill one."""
        running = {uid: process.pid for uid, process in self._processes.items() if process.poll() is None}
        path = self._places.logs / PROCESSES_FILE
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(running))
        temporary.rename(path)

    def report(self) -> StepReport | None:
        """Nothing: the processes report for themselves."""
        return None
