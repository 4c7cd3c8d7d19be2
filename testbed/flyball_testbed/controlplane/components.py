"""The command lines of the control plane's components, and the reason for each option that is not obvious.

Pure: each function says how its component is started, given where the cluster's files are and its port.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flyball_testbed.controlplane.network import BRIDGE_ADDRESS
from flyball_testbed.controlplane.ports import LOOPBACK

# Where there are real nodes: the process that holds the network namespace in which they reach the API server.
NETWORK = "network"
ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KWOK = "kwok"
# In the order of starting; stopped in the reverse order. (The network comes before them all.)
COMPONENTS = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK)

# What the kube-proxies of real nodes sign in with.
KUBE_PROXY_USER = "kube-proxy"

SERVICE_RANGE = "10.0.0.0/16"
SERVICE_ADDRESS = "10.0.0.1"
POD_RANGE = "10.128.0.0/9"
FAKE_NODE_ANNOTATION = "kwok.x-k8s.io/node"
# The clients' own limits are far above what two cores can serve: the API server's fairness does the limiting.
CLIENT_QPS = 1000
CLIENT_BURST = 2000
# A node whose Lease is older than this is not ready; Kubernetes' default, for Leases of its default length.
NODE_GRACE_SECONDS, NODE_GRACE_OF_LEASE = 50, 1.25

# One certificate for every server: without it each would spend its first second on an RSA key.
SERVING_CERTIFICATE = ("--tls-cert-file=pki/serving.crt", "--tls-private-key-file=pki/serving.key")

# Clouds, certificates, autoscaling and most of storage: controllers that nothing of ours can meet. Each would cost a share
# of the start-up, and watches.
UNUSED_CONTROLLERS = (
    "bootstrap-signer-controller",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "ephemeral-volume-controller",
    "horizontal-pod-autoscaler-controller",
    "node-ipam-controller",
    "node-route-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "token-cleaner-controller",
    "ttl-controller",  # writes to every node whenever the cluster's size passes a mark
    "volumeattributesclass-protection-controller",
)


@dataclass(frozen=True)
class Layout:
    """Where the files of one cluster are; every component runs with `directory` as its working directory."""

    directory: Path

    @property
    def pki(self) -> Path:
        return self.directory / "pki"

    @property
    def authority(self) -> Path:
        return self.pki / "ca.crt"

    @property
    def authority_key(self) -> Path:
        return self.pki / "ca.key"

    def certificate(self, user: str) -> Path:
        return self.pki / f"{user}.crt"

    def key(self, user: str) -> Path:
        return self.pki / f"{user}.key"

    def kubeconfig(self, user: str) -> Path:
        return self.directory / f"{user}.kubeconfig"

    def log(self, component: str) -> Path:
        return self.directory / "logs" / f"{component}.log"

    @property
    def state(self) -> Path:
        return self.directory / "state.json"

    @property
    def stages(self) -> Path:
        return self.directory / "kwok.yaml"

    @property
    def scheduler_configuration(self) -> Path:
        return self.directory / "scheduler.yaml"


# etcd insists on the form host:port, also for a socket's file name; and a relative path, because a socket's path may
# have 107 bytes at most.
ETCD_SOCKET = "etcd-client:0"
ETCD_PEER_SOCKET = "etcd-peer:0"


def etcd_arguments() -> list[str]:
    """etcd on Unix sockets in the cluster's own folder: no port to lose, and nobody else can read the data.

    Nothing is flushed to disk: the data survive a killed etcd, not a power cut.
    """
    return [
        "--name=devcluster",
        "--data-dir=etcd",
        f"--listen-client-urls=unix://{ETCD_SOCKET}",
        f"--advertise-client-urls=unix://{ETCD_SOCKET}",
        f"--listen-peer-urls=unix://{ETCD_PEER_SOCKET}",
        f"--initial-advertise-peer-urls=unix://{ETCD_PEER_SOCKET}",
        f"--initial-cluster=devcluster=unix://{ETCD_PEER_SOCKET}",
        "--unsafe-no-fsync",
        "--snapshot-count=50000",
        "--quota-backend-bytes=4294967296",
        "--log-level=warn",
    ]


# What differs with the nodes: simulated ones on this machine's loopback, or real ones in the cluster's own network.
_FOR_SIMULATED_NODES = (
    f"--bind-address={LOOPBACK}",
    f"--advertise-address={LOOPBACK}",
    # It taints every new node as not ready; ours register as ready, and a thousand would wait for it to be undone.
    "--disable-admission-plugins=TaintNodesByCondition",
    # The Service `kubernetes` would need an address that pods reach; no simulated pod connects to anything.
    "--endpoint-reconciler-type=none",
)
_FOR_REAL_NODES = (
    "--bind-address=0.0.0.0",  # every interface of the namespace: the bridge, and the link from this machine
    f"--advertise-address={BRIDGE_ADDRESS}",
    # For logs and exec the API server is the kubelets' client.
    "--kubelet-certificate-authority=pki/ca.crt",
    "--kubelet-client-certificate=pki/admin.crt",
    "--kubelet-client-key=pki/admin.key",
    "--kubelet-preferred-address-types=InternalIP",
)


def api_server_arguments(port: int, *, real_nodes: bool = False) -> list[str]:
    return [
        f"--etcd-servers=unix://{ETCD_SOCKET}",
        f"--secure-port={port}",
        *(_FOR_REAL_NODES if real_nodes else _FOR_SIMULATED_NODES),
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--client-ca-file=pki/ca.crt",
        *SERVING_CERTIFICATE,
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--service-account-key-file=pki/service-account.key",
        "--service-account-signing-key-file=pki/service-account.key",
        "--allow-privileged=true",
        "--profiling=false",
        "--shutdown-delay-duration=0s",
    ]


def controller_manager_arguments(port: int, node_lease_seconds: int) -> list[str]:
    grace_seconds = max(NODE_GRACE_SECONDS, round(NODE_GRACE_OF_LEASE * node_lease_seconds))
    return [
        "--kubeconfig=kube-controller-manager.kubeconfig",
        f"--secure-port={port}",
        f"--bind-address={LOOPBACK}",
        *SERVING_CERTIFICATE,
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        "--service-account-private-key-file=pki/service-account.key",
        "--root-ca-file=pki/ca.crt",
        f"--kube-api-qps={CLIENT_QPS}",
        f"--kube-api-burst={CLIENT_BURST}",
        f"--node-monitor-grace-period={grace_seconds}s",
        "--concurrent-job-syncs=20",
        "--concurrent-gc-syncs=10",
        "--profiling=false",
        f"--controllers=*,{','.join('-' + name for name in UNUSED_CONTROLLERS)}",
    ]


def scheduler_arguments(port: int) -> list[str]:
    return [
        "--config=scheduler.yaml",
        f"--secure-port={port}",
        f"--bind-address={LOOPBACK}",
        *SERVING_CERTIFICATE,
    ]


def scheduler_configuration() -> dict[str, object]:
    """Short back-offs: a pod whose node has just become free is placed within a second."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": "kube-scheduler.kubeconfig",
            "qps": CLIENT_QPS,
            "burst": CLIENT_BURST,
        },
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
        "enableProfiling": False,
    }


def kwok_arguments(port: int, node_lease_seconds: int) -> list[str]:
    return [
        "--kubeconfig=kwok.kubeconfig",
        "--config=kwok.yaml",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={FAKE_NODE_ANNOTATION}=fake",
        f"--node-lease-duration-seconds={node_lease_seconds}",
        f"--cidr={POD_RANGE}",
        f"--node-ip={SERVICE_ADDRESS}",
        f"--server-address={LOOPBACK}:{port}",
        "--v=WARN",
    ]
