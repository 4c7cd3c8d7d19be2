"""The configuration files and command lines of what runs on a real node, and the reason for each setting.

Pure: given what the node is, what its programs are told. Paths are as the node sees them: `/run` and `/var` are its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from flyball_api.names import LABEL_GPU_PRODUCT, STARTUP_TAINT

from flyball_testbed.controlplane import network
from flyball_testbed.controlplane.programs.binaries import CONTAINERD, KUBE_PROXY, KUBELET

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
KUBELET_ROOT = "/var/lib/kubelet"
PAUSE_IMAGE = "flyball.dev/pause:1"
DEVICE_PLUGIN, DNS = "device-plugin", "dns"
CLUSTER_DOMAIN = "cluster.local"
MACHINE_FILE = "machine.json"
# What the kubelet would set for the whole machine; the node sees files with these values in their place.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


@dataclass(frozen=True)
class Machine:
    """One node, as its process reads it from `machine.json` in the node's folder.

    `index` is 1, 2, ...; `pki` has the authority and the node's own certificate; `runtime` is the path of runc; `programs`
    says where the node's programs are; `hardware` is the file of its simulated GPUs (empty: it has none) and `gpu_library`
    the NVML library over it.
    """

    name: str
    index: int
    pki: str
    directory: str
    runtime: str
    programs: Mapping[str, str]
    server_url: str
    gpu_product: str = ""
    hardware: str = ""
    gpu_library: str = ""
    startup_taint: bool = False

    @property
    def folder(self) -> Path:
        return Path(self.directory)

    @property
    def address(self) -> str:
        return network.node_address(self.index)

    @property
    def pod_range(self) -> str:
        return network.pod_range(self.index)

    @property
    def container_runtime(self) -> str:
        """What containerd calls to make containers: runc, on a node with GPUs by way of `nvidia_runtime`."""
        return str(self.folder / "nvidia-container-runtime") if self.hardware else self.runtime

    def log(self, service: str) -> Path:
        return self.folder / "logs" / f"{service}.log"

    @classmethod
    def read(cls, path: Path) -> Machine:
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))


def containerd_configuration(machine: Machine) -> str:
    """containerd's configuration (TOML, version 3)."""
    runtime = "plugins.'io.containerd.cri.v1.runtime'"
    plugins = Path(machine.programs["ptp"]).parent
    return f"""version = 3
root = "{machine.folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[{runtime}]
  # Where a container may not lower its badness (no CAP_SYS_RESOURCE), it would not start otherwise.
  restrict_oom_score_adj = true
  # The pods' network namespaces are mounted on the node, not on the machine.
  netns_mounts_under_state_dir = true
[{runtime}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[{runtime}.containerd.runtimes.runc.options]
  BinaryName = "{machine.container_runtime}"
[{runtime}.cni]
  bin_dirs = ["{plugins}"]
  conf_dir = "{machine.folder}/cni"
"""


def pod_network(machine: Machine) -> str:
    """The pods' network (a CNI list): a link a pod to the node, which routes."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": machine.pod_range}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": addresses}]})


def kubelet_configuration(machine: Machine, cgroup: str) -> str:
    """The kubelet's configuration; `cgroup` is the group that the pods' will be in."""
    pki = Path(machine.pki)
    nothing_left = "0%"
    content: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": machine.address,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"{machine.name}.crt"),
        "tlsPrivateKeyFile": str(pki / f"{machine.name}.key"),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        # Fails where it would set the machine's kernel: our files stand in for what it looks at.
        "protectKernelDefaults": True,
        # A full disk of this machine must not put the pods out.
        "evictionHard": dict.fromkeys(
            ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"),
            nothing_left,
        ),
        "imageGCHighThresholdPercent": 100,  # nothing could pull an image again
        "makeIPTablesUtilChains": False,
        "resolvConf": str(machine.folder / "resolv.conf"),
        "clusterDNS": [machine.address],
        "clusterDomain": CLUSTER_DOMAIN,
        "volumePluginDir": f"{KUBELET_ROOT}/volumeplugins",
        "registerWithTaints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}] if machine.startup_taint else [],
        "maxPods": 50,
    }
    return yaml.safe_dump(content)


def kube_proxy_configuration(machine: Machine) -> str:
    """kube-proxy's configuration: Services by nftables."""
    content: dict[str, Any] = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": f"{machine.folder}/kube-proxy.kubeconfig"},
        "hostnameOverride": machine.name,
        "clusterCIDR": network.POD_RANGE,
        # These tables are the whole machine's, not the namespace's.
        "conntrack": {"maxPerCore": 0, "min": 0},
    }
    return yaml.safe_dump(content)


def service_commands(machine: Machine) -> dict[str, list[str]]:
    """What runs on the node, in the order of starting; each by its name."""
    folder = machine.folder
    kubelet = [
        machine.programs[KUBELET],
        f"--config={folder}/kubelet.yaml",
        f"--kubeconfig={folder}/kubelet.kubeconfig",
        f"--hostname-override={machine.name}",
        f"--node-ip={machine.address}",
        f"--root-dir={KUBELET_ROOT}",
        f"--cert-dir={KUBELET_ROOT}/pki",
    ]
    if machine.gpu_product:
        kubelet.append(f"--node-labels={LABEL_GPU_PRODUCT}={machine.gpu_product}")
    return {
        CONTAINERD: [machine.programs[CONTAINERD], f"--config={folder}/containerd.toml"],
        KUBELET: kubelet,
        KUBE_PROXY: [machine.programs[KUBE_PROXY], f"--config={folder}/kube-proxy.yaml"],
        DNS: _own_program("dns", machine),
        **({DEVICE_PLUGIN: _own_program("device_plugin", machine)} if machine.hardware else {}),
    }


def _own_program(name: str, machine: Machine) -> list[str]:
    """A program of this package."""
    return [sys.executable, "-m", f"flyball_testbed.realnode.{name}", str(machine.folder / MACHINE_FILE)]
