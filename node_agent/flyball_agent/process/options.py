"""The options of an agent process, each with its default; the command line is made from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from flyball_api.names import DEFAULT_NAMESPACE
from flyball_kube.process.options import option

DRIVERS = ("nvml", "simulated")
POD_SOURCES = ("kubelet", "file", "auto")
GOVERN, OBSERVE = MODES = ("govern", "observe")
ENFORCER_SOCKET = Path("/run/flyball/enforcer.sock")


@dataclass(frozen=True, slots=True)
class GovernorOptions:
    """What governing one node's GPUs needs.

    Raises ValueError for a mode or a driver that does not exist, and for a simulated one without its folder.
    """

    node_name: str = field(metadata=option("The Kubernetes node that this is.", variables=("NODE_NAME",)))
    driver: str = field(default="nvml", metadata=option("nvml, or simulated."))
    mode: str = field(
        default=GOVERN, metadata=option("govern; or observe: measure and report, take no grant and set nothing.")
    )
    journal_dir: Path = field(
        default=Path("/var/lib/flyball"),
        metadata=option("Where the journal lies; it must outlive the process and the pod."),
    )
    hardware_dir: Path | None = field(
        default=None, metadata=option("Simulated hardware: <node>.gpus and <node>.pods.json.")
    )
    nvml_library: Path | None = field(
        default=None, metadata=option("libnvidia-ml.so.1; default: where the dynamic loader finds it.")
    )
    tick_seconds: float = field(default=1.0, metadata=option("The longest time between two rounds.", minimum=0.05))

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is unknown (govern or observe)")
        if self.driver not in DRIVERS:
            raise ValueError(f"driver {self.driver!r} is unknown (nvml or simulated)")
        if self.driver == "simulated" and self.hardware_dir is None:
            raise ValueError("driver simulated needs the hardware directory, where <node>.gpus lies")

    def hardware_file(self, suffix: str) -> Path:
        """A file of the node's simulated hardware: `gpus`, or `pods.json`."""
        if self.hardware_dir is None:
            raise ValueError(f"{self.node_name}.{suffix} lies in the hardware directory, and none is given")
        return self.hardware_dir / f"{self.node_name}.{suffix}"


@dataclass(frozen=True, slots=True)
class EnforcerOptions(GovernorOptions):
    """How one enforcer runs: the half of an agent that has the privilege, and neither network nor credential."""

    socket: Path = field(
        default=ENFORCER_SOCKET, metadata=option("Where the agent finds it; in a folder that both mount.")
    )
    agent_uid: int = field(
        default=65532,
        metadata=option("The user that the agent runs as; no other may speak to the enforcer.", minimum=0),
    )


@dataclass(frozen=True, slots=True)
class AgentOptions(GovernorOptions):
    """How one agent runs; raises ValueError for a driver or a source of pods that does not exist or lacks its folder.

    With `kubernetes` False the agent stands alone: it adopts, measures and serves metrics, and gets no grant. With
    `enforcer_socket` it governs nothing itself, and needs neither driver nor journal.
    """

    enforcer_socket: Path | None = field(
        default=None,
        metadata=option("The socket of the node's enforcer. Default: none, and the GPUs are governed in this process."),
    )
    socket_dir: Path | None = field(
        default=None,
        metadata=option("Where training processes find their sockets, a folder a pod. Default: none."),
    )
    socket_plugin_dir: Path | None = field(
        default=None,
        metadata=option(
            "The kubelet's folder of device plugins (/var/lib/kubelet/device-plugins): sockets are then given to pods that "
            "ask for one flyball.dev/socket, without a hostPath. Default: not."
        ),
    )
    socket_host_dir: Path | None = field(
        default=None,
        metadata=option("The folder of --socket-dir as the kubelet sees it. Default: the same."),
    )
    pods: str = field(
        default="auto",
        metadata=option("The source of which pod holds which GPU: kubelet, file, or auto (by the driver)."),
    )
    kubelet_socket: Path = field(
        default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        metadata=option("The kubelet's PodResources socket."),
    )
    kubeconfig: Path | None = field(
        default=None, metadata=option("Default: the pod's service account, else $KUBECONFIG.")
    )
    kubernetes: bool = field(default=True, metadata=option("Follow the GPUNode; without, the agent only watches."))
    namespace: str = field(
        default=DEFAULT_NAMESPACE,
        metadata=option("The operator's --namespace: a renewal of its Lease there keeps the node's grant."),
    )
    metrics_host: str = field(default="0.0.0.0", metadata=option("The address that /metrics is served on."))  # noqa: S104
    metrics_port: int = field(
        default=9101, metadata=option("0: any free port; -1: no metrics.", minimum=-1, maximum=65535)
    )
    status_interval_seconds: float = field(
        default=30.0, metadata=option("The longest time between two writes of measurements.", minimum=0.1)
    )

    def __post_init__(self) -> None:
        GovernorOptions.__post_init__(self)
        if self.pods not in POD_SOURCES:
            raise ValueError(f"pods from {self.pods!r} are unknown (kubelet, file or auto)")
        if self.socket_plugin_dir is not None and (self.socket_dir is None or self.pods_from != "kubelet"):
            raise ValueError("--socket-plugin-dir needs --socket-dir, and pods from the kubelet")
        if self.pods_from == "file" and self.hardware_dir is None:
            raise ValueError("pods from a file need the hardware directory, where <node>.pods.json lies")

    @property
    def pods_from(self) -> str:
        """kubelet, or file."""
        if self.pods != "auto":
            return self.pods
        return "file" if self.driver == "simulated" else "kubelet"
