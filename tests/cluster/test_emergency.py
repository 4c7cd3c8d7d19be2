"""An emergency on the real control plane: declared by the command, followed by real agents with and without an operator."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flyball_kube.resources import GPU_NODES
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_testbed.parts import OPERATOR
from flyball_testbed.workload.devices import hardware_path

from tests.support.site_bench import Bench, condition, reason
from tests.support.waiting import PATIENCE_SECONDS

LONG = 100_000
ROW, OTHERS = ("node-000", "node-001"), ("node-002", "node-003")
FLYBALL = Path(sysconfig.get_path("scripts")) / "flyball"


def flyball_emergency(bench: Bench, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(FLYBALL), "emergency", "--kubeconfig", str(bench.site.cluster.kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


@contextmanager
def emergency(bench: Bench, cap: str, why: str) -> Iterator[Callable[[], None]]:
    """Declares an emergency, and gives what ends it; it is ended in any case."""
    name, ended = bench.cap_name(cap), False

    def end() -> None:
        nonlocal ended
        done = flyball_emergency(bench, "--cap", name, "--end")
        assert done.returncode == 0, done.stderr
        ended = True

    declared = flyball_emergency(bench, "--cap", name, "--reason", why)
    assert declared.returncode == 0, declared.stderr
    try:
        yield end
    finally:
        if not ended:
            end()


@contextmanager
def operator_killed(bench: Bench) -> Iterator[Callable[[], None]]:
    """The operator is killed; gives what starts another one, which is started in any case."""
    bench.site.parts[OPERATOR].kill()

    def start() -> None:
        if not bench.site.running(OPERATOR):
            bench.site.start_part(OPERATOR)

    try:
        yield start
    finally:
        start()


def limits_milliwatts(bench: Bench, *nodes: str) -> set[int]:
    """What every GPU of these nodes may draw, as the hardware has it."""
    found: set[int] = set()
    for name in nodes:
        with SimulatedNode.open(hardware_path(bench.site.hardware, name)) as node:
            states = [device.read() for device in node.devices]
            found |= {max(state.requested_limit_milliwatts, state.enforced_limit_milliwatts) for state in states}
    return found


def read_back_milliwatts(bench: Bench, *nodes: str) -> set[int]:
    """The limits of every GPU of these nodes, as their agents say that they have read them back."""
    devices = [
        device["limits"]
        for node in bench.gpu_nodes()
        if node["metadata"]["name"] in nodes
        for device in node["status"]["devices"]
    ]
    assert len(devices) == len(nodes) * bench.site.plan.gpus_per_node
    return {limits[key] for limits in devices for key in ("requestedMilliwatts", "enforcedMilliwatts")}


@contextmanager
def foreign_pod(bench: Bench, node: str) -> Iterator[str]:
    """A pod that is none of Flyball's holds a GPU of the node; gives the GPU's UUID."""
    container = {"name": "main", "image": "somebodys", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    pods = f"/api/v1/namespaces/{bench.namespace}/pods"
    bench.api.create(pods, {"metadata": {"name": "foreign"}, "spec": spec})
    held: list[str] = []

    def holds() -> bool:
        devices = bench.api.get(GPU_NODES.path(name=node))["status"]["devices"]
        held[:] = [item["uuid"] for item in devices if (item.get("pod") or {}).get("name") == "foreign"]
        return len(held) == 1

    try:
        bench.wait(holds, lambda: f"a GPU of {node} is the foreign pod's")
        yield held[0]
    finally:
        bench.api.delete(f"{pods}/foreign")


def limit_of(bench: Bench, node: str, uuid: str) -> int:
    with SimulatedNode.open(hardware_path(bench.site.hardware, node)) as hardware:
        return int(hardware.device(uuid).read().enforced_limit_milliwatts)


def test_an_emergency_takes_every_gpu_of_its_cap_down_with_and_without_an_operator(bench: Bench) -> None:
    for name in ROW:
        bench.label_node(name, "row", bench.namespace)
    # Held through the operator's absence, so that what falls falls for the emergency and for nothing else.
    held = {"failsafe": "Hold"}
    full = bench.site.plan.max_watts
    site_watts, row_watts = int(full * 0.9), int(full * 0.45)
    bench.set_cap("site", site_watts, **held)
    bench.set_cap("row", row_watts, nodeSelector={"matchLabels": {"row": bench.namespace}}, **held)
    bench.wait_enforced("site", site_watts)
    bench.wait_enforced("row", row_watts)
    with foreign_pod(bench, ROW[0]) as foreign:
        for index in range(3):
            bench.submit(f"load-{index}", gpus=(8, 16), iterations=LONG, batch=1024, objective="Time")
            bench.wait_running(f"load-{index}")
        declare_and_end(bench, foreign, row_watts)
    assert bench.judged_seconds("row") > 0
    assert bench.overshoot_watts("row") == 0.0
    assert bench.overshoot_watts("site") == 0.0


def declare_and_end(bench: Bench, foreign: str, row_watts: int) -> None:
    """Twice: under an operator, and while it is killed."""
    lowest = {bench.site.plan.constants.min_limit_milliwatts}

    def others_at_work() -> bool:  # a job that is just being moved has no watts for a moment
        return max(limits_milliwatts(bench, *OTHERS)) > min(lowest)

    def at_work() -> bool:
        row = min(max(limits_milliwatts(bench, *ROW)), limit_of(bench, ROW[0], foreign))
        return others_at_work() and row > min(lowest)

    def down() -> bool:
        return limits_milliwatts(bench, *ROW) == lowest

    def shown(state: str) -> bool:
        return condition(bench.cap("row"), "Emergency") == state

    bench.wait(at_work, lambda: "both rows at work, and the foreign pod's GPU")
    with emergency(bench, "row", "smoke in the row") as end:
        bench.wait(down, lambda: f"the row at its smallest limits: {limits_milliwatts(bench, *ROW)}")
        bench.wait(lambda: read_back_milliwatts(bench, *ROW) == lowest, lambda: "read back so by the agents")
        bench.wait(lambda: shown("True"), lambda: f"shown by the cap: {bench.cap('row')}")
        assert reason(bench.cap("row"), "Emergency") == "Declared"
        assert "smoke in the row" in str(bench.cap("row"))
        least_watts = len(ROW) * bench.site.plan.gpus_per_node * min(lowest) / 1000
        bench.wait(
            lambda: (bench.cap("row") or {})["status"]["committedWatts"] <= least_watts,
            lambda: f"no more committed than the smallest limits: {bench.cap('row')}",
        )
        bench.wait(others_at_work, lambda: f"the others at work all the while: {limits_milliwatts(bench, *OTHERS)}")
        assert down()
        end()
    bench.wait(lambda: shown("False"), lambda: f"its end shown by the cap: {bench.cap('row')}")
    bench.wait(at_work, lambda: "limits returned by grants")

    epoch = max(node["spec"]["epoch"] for node in bench.gpu_nodes())
    with operator_killed(bench) as start_another, emergency(bench, "row", "fire") as end:
        bench.wait(down, lambda: f"down without an operator: {limits_milliwatts(bench, *ROW)}")
        bench.wait(others_at_work, lambda: f"the others as they were: {limits_milliwatts(bench, *OTHERS)}")
        assert not bench.site.running(OPERATOR)
        start_another()
        bench.wait(
            lambda: all(node["status"]["acknowledged"]["epoch"] > epoch for node in bench.gpu_nodes()),
            lambda: f"every node granted anew by the next leader: {bench.gpu_nodes()}",
        )
        bench.wait_enforced("row", row_watts)
        assert down()
        assert shown("True")
        end()
    bench.wait(at_work, lambda: "limits returned by the next leader's grants")
