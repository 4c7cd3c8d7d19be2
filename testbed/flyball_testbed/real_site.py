"""A site whose pods run: real nodes with simulated GPUs, an agent for each, the operator and a referee.

Agents, operator and referee are processes of this machine; what a job trains in are containers that the nodes' kubelets
start. Their file system is a folder of this machine, mounted read-only, so that no image of a gigabyte is made or loaded.
"""

from __future__ import annotations

import contextlib
import shutil
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flyball_api.names import DEFAULT_NAMESPACE, SOCKET_RESOURCE

from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.install import agent_daemon_set
from flyball_testbed.controlplane.processes import Process, wait_until
from flyball_testbed.controlplane.programs.binaries import Binaries, Report
from flyball_testbed.parts import OPERATOR, REFEREE, Parts, module, quiet_threads
from flyball_testbed.realnode.cluster import RealCluster
from flyball_testbed.realnode.configuration import PAUSE_IMAGE
from flyball_testbed.realnode.images import ImageDefaults, write_image
from flyball_testbed.site import PartError, referee_summary

# Nothing but the way into /usr, which a pod mounts, and the places that a program expects to be there.
BARE_IMAGE = "flyball.dev/bare:1"
LINKS = {name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin")}
FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp", "usr", "var")
STOP_SECONDS = 10.0
REFEREE_SECONDS = 60.0


def write_bare_image(target: Path) -> None:
    """The tar of `BARE_IMAGE`."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in FOLDERS:
            (root / name).mkdir()
        for name, leads_to in LINKS.items():
            (root / name).symlink_to(leads_to)
        (root / "etc" / "passwd").write_text("root:x:0:0:root:/tmp:/bin/sh\n")
        write_image(ImageDefaults(BARE_IMAGE, ["/bin/sh"]), root, target)


def programs_of(root: Path) -> dict[str, Path]:
    """What a container sees of a root file system's programs: all of /usr but what is local, where drivers are mounted."""
    return {
        f"/usr/{name}": root / "usr" / name
        for name in ("bin", "lib", "lib64", "share")
        if (root / "usr" / name).is_dir()
    }


def mounted(pod: Json, places: Mapping[str, Path], *, writable: Sequence[Path] = ()) -> Json:
    """A pod's spec whose first container sees folders of this machine: read-only by the place where it sees them, and
    `writable` ones where they are."""
    volumes, mounts = list(pod.get("volumes") or ()), []
    for number, (place, folder) in enumerate([*places.items(), *((str(folder), folder) for folder in writable)]):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": str(folder), "type": "Directory"}})
        mounts.append({"name": f"host-{number}", "mountPath": place, "readOnly": folder not in writable})
    first, *others = pod["containers"]
    first = {**first, "image": BARE_IMAGE, "volumeMounts": [*(first.get("volumeMounts") or ()), *mounts]}
    return {**pod, "containers": [first, *others], "volumes": volumes}


class RealSite:
    """A running site of real nodes; a context manager. The logs of its parts and nodes are in `out` at the end."""

    def __init__(self, out: Path, operator_arguments: Sequence[str]) -> None:
        self.out = out
        # Short: a socket's path must fit into 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="flyball-real-"))
        self._operator_arguments = operator_arguments
        self._parts: dict[str, Process] = {}
        self._cluster: RealCluster | None = None

    @classmethod
    def start(
        cls,
        out: Path,
        *,
        nodes: int = 2,
        gpus_per_node: int = 2,
        operator_arguments: Sequence[str] = (),
        images: Sequence[Path] = (),
        binaries: Binaries | None = None,
        report: Report = lambda _line: None,
    ) -> Self:
        """Start every part. Raises what `RealCluster.start` raises, and PartError; nothing is left running then."""
        out.mkdir(parents=True, exist_ok=True)
        site = cls(out, operator_arguments)
        try:
            site._start(nodes, gpus_per_node, images, binaries, report)
        except BaseException:
            site.stop()
            raise
        return site

    def _start(
        self, nodes: int, gpus_per_node: int, images: Sequence[Path], binaries: Binaries | None, report: Report
    ) -> None:
        image = self.directory / "bare.tar"
        write_bare_image(image)
        for folder in ("logs", "hardware", "agents", "s"):
            (self.directory / folder).mkdir()
        report(f"starting a control plane and {nodes} real nodes with {gpus_per_node} GPUs each")
        self._cluster = RealCluster.start(nodes, gpus_per_node, images=[image, *images], binaries=binaries)
        for name in self.cluster.nodes:
            (self.directory / "hardware" / f"{name}.gpus").symlink_to(self.cluster.hardware(name))
        markers = agent_daemon_set()
        markers["spec"]["template"]["spec"]["containers"][0]["image"] = PAUSE_IMAGE
        self.api.apply(markers)
        report("starting an agent for each node, the operator and the referee")
        self._spawn(
            REFEREE,
            module(
                "referee",
                {
                    "--hardware": self.directory / "hardware",
                    "--csv": self.out / "referee.csv",
                    "--summary": self.directory / "referee.json",
                    "--kubeconfig": self.cluster.kubeconfig,
                },
            ),
        )
        for node, kubeconfig in self.cluster.devcluster.agent_kubeconfigs(self.cluster.nodes).items():
            gpus = {
                "FLYBALL_SIMULATED_GPUS": str(self.cluster.hardware(node)),
                "FLYBALL_SIMULATED_PRIVILEGED": "1",
            }
            self._spawn(f"agent-{node}", self._agent_command(node, kubeconfig), gpus)
        parts = Parts(self.cluster.devcluster, self.directory, self.directory / "s")
        sockets = ("--training-socket-resource", SOCKET_RESOURCE)
        self._spawn(OPERATOR, parts.operator_command(*sockets, *self._operator_arguments))
        if not wait_until(lambda: bool(self.referee_summary()), REFEREE_SECONDS):
            raise PartError(f"the referee has written nothing after {REFEREE_SECONDS:g} s")
        self.check()

    def _agent_command(self, node: str, kubeconfig: Path) -> list[str]:
        options: dict[str, Any] = {
            "--node-name": node,
            # As the kubelet, NVML says in which boot the machine is.
            "--driver": "nvml",
            "--nvml-library": self.cluster.gpu_library,
            "--pods": "kubelet",
            "--kubelet-socket": self.cluster.nodes[node].pod_resources_socket,
            "--journal-dir": self.directory / "agents",
            "--socket-dir": self.directory / "s" / node,
            "--socket-plugin-dir": self.cluster.nodes[node].device_plugins,
            "--kubeconfig": kubeconfig,
            "--namespace": DEFAULT_NAMESPACE,
            "--metrics-port": -1,
            "--tick-seconds": 0.25,
            "--status-interval-seconds": 2,
        }
        program = str(Path(sysconfig.get_path("scripts")) / "flyball")
        return [program, "agent", "run", *(str(word) for pair in options.items() for word in pair)]

    def _spawn(self, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        log = self.directory / "logs" / f"{name}.log"
        self._parts[name] = Process.spawn(
            name, command, log_path=log, environment={**quiet_threads(), **(environment or {})}
        )

    # --- access ----------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> RealCluster:
        assert self._cluster is not None, "the site has been started"  # noqa: S101 - for the type checker
        return self._cluster

    @property
    def api(self) -> ApiClient:
        """The API as the administrator."""
        return self.cluster.api

    def check(self) -> None:
        """Raises PartError where a part has ended by itself."""
        for name, process in self._parts.items():
            if not process.is_running():
                raise PartError(f"{name} ended; the end of its log:\n{process.log_tail(15)}")

    def referee_summary(self) -> dict[str, Any]:
        """The referee's summary; empty while there is none."""
        return referee_summary(self.directory)

    def pod_processes(self, word: str) -> list[int]:
        """The processes in the nodes' pods that have `word` in their command lines, as this machine numbers them."""
        found = []
        for node in self.cluster.nodes.values():
            for pid in node.processes():
                with contextlib.suppress(OSError):
                    if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "):
                        found.append(pid)
        return found

    # --- the end ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop every part and the cluster, keep the logs in `out`, and remove the rest."""
        for name in sorted(self._parts, reverse=True):  # the referee and the operator before the agents
            self._parts[name].stop(STOP_SECONDS)
        logs = self.directory / "logs"
        if self._cluster is not None:
            if logs.exists():
                (logs / "nodes.log").write_text(self._cluster.node_log_tails(200))
            self._cluster.stop()
            self._cluster = None
        if logs.exists():
            shutil.copytree(logs, self.out / "logs", dirs_exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(self.directory / "referee.json", self.out)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
