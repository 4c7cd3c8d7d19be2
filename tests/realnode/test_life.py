"""Clusters with real nodes come, go and crash, and leave nothing on the machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from flyball_testbed.controlplane.nodes import NODES, is_ready
from flyball_testbed.controlplane.processes import ProcessIdentity
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.realnode import cgroups
from flyball_testbed.realnode.cluster import RealCluster, take_down
from flyball_testbed.realnode.configuration import KERNEL_SETTINGS

from tests.support.real_nodes import TOOLS_IMAGE, bench_on
from tests.support.waiting import wait_until

# Where a kubelet, containerd and the pods' network would leave something on a machine that is a node itself.
OUTSIDE = ("/var/lib/kubelet", "/var/lib/cni", "/var/lib/flyball", "/var/log/pods", "/run/containerd", "/run/flannel",
           "/run/netns", "/etc/cni", "/opt/cni")  # fmt: skip


def groups(nodes: set[str]) -> set[str]:
    """The control groups, in every hierarchy, of the nodes that are these processes (`PID-TICKS`)."""
    parents = [hierarchy / cgroups.PARENT for hierarchy in cgroups.hierarchies(Path("/proc/mounts").read_text())]
    return {str(parent / node) for parent in parents for node in nodes if (parent / node).exists()}


@dataclass(frozen=True)
class Trace:
    """By what a running cluster would be found on the machine."""

    directory: Path
    processes: frozenset[ProcessIdentity]
    link: str
    nodes: frozenset[str]

    @classmethod
    def of(cls, cluster: RealCluster) -> Trace:
        state = json.loads(cluster.devcluster.control_plane.layout.state.read_text())
        pids = list(cluster.devcluster.control_plane.running().values())
        for node in cluster.nodes.values():
            pids += node.processes()
        # Not by their namespaces: the kernel gives a number out again at once.
        found = {identity for pid in pids if (identity := ProcessIdentity.of(pid)) is not None}
        launched = [node.state()["process"] for node in cluster.nodes.values()]
        nodes = frozenset(f"{pid}-{ticks}" for pid, ticks in launched)
        return cls(cluster.directory, frozenset(found), state["link"][0], nodes)

    def left(self) -> list[str]:
        """What of the cluster is still there. (Of namespaces the processes are all that could hold them.)"""
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        return [
            *(f"process {identity.pid}" for identity in self.processes if identity.is_running()),
            *(f"mount {line}" for line in mounts if str(self.directory) in line),
            *(f"control group {group}" for group in groups(set(self.nodes))),
            *([f"interface {self.link}"] if Path(f"/sys/class/net/{self.link}").exists() else []),
        ]


def kernel_settings() -> dict[str, str]:
    return {name: path.read_text() for name in KERNEL_SETTINGS if (path := Path("/proc/sys") / name).exists()}


def test_two_nodes_carry_pods_that_meet_and_a_power_cut_and_nothing_is_left(
    real_node_programs: Binaries, tools_image: Path
) -> None:
    settings, outside = kernel_settings(), {path: Path(path).exists() for path in OUTSIDE}
    with RealCluster.start(2, 1, images=[tools_image], binaries=real_node_programs, install=False) as cluster:
        bench = bench_on(cluster)
        bench.run("first", "echo from the first | nc -l -p 8000", nodeName="real-1")
        address = bench.wait_phase("first", "Running")["status"]["podIP"]
        reached = bench.output("second", f"nc -w 20 {address} 8000 </dev/null", nodeName="real-2")
        assert reached == "from the first\n", "pods reach each other from node to node"

        bench.run("stays", "sleep 3600", restartPolicy="Always", nodeName="real-2")
        bench.wait_phase("stays", "Running")
        first = Trace.of(cluster)
        # The control plane's six, and of each node the machine's init, containerd, kubelet, kube-proxy, device plugin.
        assert len(first.processes) >= 6 + 2 * 5
        assert sum("control group" in line for line in first.left()) >= 2
        cluster.nodes["real-2"].stop()
        assert not cluster.nodes["real-2"].processes()
        cluster.start_node("real-2")
        cluster.api.wait_for(
            bench.path("stays"),
            lambda pod: any(
                status["restartCount"] == 1 and "running" in status["state"]
                for status in (pod or {})["status"].get("containerStatuses", [])
            ),
            timeout_seconds=90,
            what="running again after the power cut",
        )
        cluster.wait_ready()
        bench.output(
            "trains", "test -e $FLYBALL_SIMULATED_GPUS", gpus=1, nodeSelector={"kubernetes.io/hostname": "real-2"}
        )
        trace = Trace.of(cluster)
    assert first.left() + trace.left() == []
    assert not trace.directory.exists()
    assert kernel_settings() == settings, "the machine's kernel is set as it was"
    assert {path: Path(path).exists() for path in OUTSIDE} == outside


BENCH = f"""
import sys
from pathlib import Path
from flyball_testbed.realnode.cluster import RealCluster
cluster = RealCluster.start(1, 2, directory=Path(sys.argv[1]), images=[Path(sys.argv[2])], install=False)
cluster.api.wait_for("/api/v1/namespaces/default/serviceaccounts/default", lambda account: account is not None)
pod = {{"containers": [{{"name": "main", "image": {TOOLS_IMAGE!r}, "command": ["sleep", "3600"]}}]}}
cluster.api.create("/api/v1/namespaces/default/pods", {{"metadata": {{"name": "runs"}}, "spec": pod}})
cluster.api.wait_for("/api/v1/namespaces/default/pods/runs", lambda pod: pod["status"].get("phase") == "Running")
print("up", flush=True)
sys.stdin.read()
"""


def test_a_killed_bench_takes_its_nodes_with_it_and_the_next_command_clears_up(
    real_node_programs: Binaries, tools_image: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "crashed"
    bench = subprocess.Popen(
        [sys.executable, "-c", BENCH, str(directory), str(tools_image)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert bench.stdout is not None
        assert bench.stdout.readline() == "up\n"
        trace = Trace.of(RealCluster.attach(directory))
        assert any("control group" in line for line in trace.left())
    finally:
        bench.kill()
        bench.wait()
    # The kernel needs nobody's help to end what runs.
    wait_until(lambda: not any(identity.is_running() for identity in trace.processes), "all are dead")
    assert take_down(directory)
    assert trace.left() == []
    assert not directory.exists()
    assert not take_down(directory), "there is nothing to take down a second time"


def flyball(home: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    answer = subprocess.run(
        [sys.executable, "-c", "from flyball_cli.main import main; main()", "devcluster", *arguments],
        env={**os.environ, "XDG_STATE_HOME": str(home), "COLUMNS": "120"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert answer.returncode == status, answer.stderr
    return answer


def test_the_command_starts_shows_and_ends_a_cluster_with_real_nodes(
    real_node_programs: Binaries, tools_image: Path, tmp_path: Path
) -> None:
    up = flyball(tmp_path, "up", "--real", "--gpus-per-node", "2", "--image", str(tools_image))
    try:
        assert "1 real node with 2 GPUs each" in up.stderr
        directory = tmp_path / "flyball" / "devcluster" / "default"
        cluster = RealCluster.attach(directory)
        trace = Trace.of(cluster)
        assert is_ready(cluster.api.get(f"{NODES}/real-1"))
        assert "real-1" in flyball(tmp_path, "status").stdout
        run = ("run", "hello", f"--image={TOOLS_IMAGE}", "--restart=Never", "--quiet", "--command", "--")
        flyball(tmp_path, "kubectl", "--", *run, "echo", "from a pod")
        ended = ("wait", "pod/hello", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
        flyball(tmp_path, "kubectl", "--", *ended)
        assert flyball(tmp_path, "kubectl", "--", "logs", "hello").stdout == "from a pod\n"
        assert "already up" in flyball(tmp_path, "up", "--real", status=1).stderr
        os.kill(cluster.nodes["real-1"].pid, signal.SIGKILL)
        wait_until(lambda: not cluster.nodes["real-1"].is_running(), "the node is dead")
        assert "not running" in flyball(tmp_path, "status", status=1).stdout
    finally:
        flyball(tmp_path, "down", "--all")
    assert trace.left() == []
    assert not directory.exists()
