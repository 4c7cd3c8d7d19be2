"""The agent's pod as the chart makes it, its two containers as two processes: they find each other, and GPUs are seen."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sysconfig
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode

from tests.support.chart import Chart
from tests.support.waiting import wait_until

Json = dict[str, Any]

FLYBALL = str(Path(sysconfig.get_path("scripts")) / "flyball")
NODE = "chart-node"
GPUS = 2


def arguments(container: Json, folder: Path) -> list[str]:
    """A container's command line, with the folders that are mounted into it below `folder`, one for each volume."""
    places = {mount["mountPath"]: folder / mount["name"] for mount in container["volumeMounts"]}
    line = []
    for place in places.values():
        place.mkdir(exist_ok=True)
    for argument in container["args"]:
        option, equals, value = argument.partition("=")
        mounted = next((path for path in places if Path(value).is_relative_to(path)), None) if equals else None
        line.append(f"{option}={places[mounted] / Path(value).relative_to(mounted)}" if mounted else argument)
    return line


def port_of(log: Path) -> int:
    """The port of the metrics, once the log names it; 0 before."""
    said = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
    return next((int(line["port"]) for line in said if line.get("event") == "metrics served"), 0)


def limits_milliwatts(folder: Path) -> list[int]:
    with SimulatedNode.open(folder / "hardware" / f"{NODE}.gpus") as node:
        return [device.read().requested_limit_milliwatts for device in node.devices]


@contextlib.contextmanager
def running(name: str, command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [FLYBALL, *command], stdout=log, stderr=log, env={**os.environ, "NODE_NAME": NODE}, cwd=folder
        )
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(timeout=30) == 0, (folder / f"{name}.log").read_text()


def test_the_two_containers_find_each_other_and_the_gpus(chart: Chart) -> None:
    settings = ("mode=observe", "agent.driver=simulated", "agent.hardwareDir=/hardware")
    pod = chart.one("DaemonSet", "flyball-agent", *settings)["spec"]["template"]["spec"]
    containers = {container["name"]: container for container in pod["containers"]}
    # A socket's path must fit into 107 bytes.
    with tempfile.TemporaryDirectory(prefix="fly") as short:
        folder = Path(short)
        enforcer, agent = (arguments(containers[name], folder) for name in ("enforcer", "agent"))
        uuids = create_node_file(folder / "hardware" / f"{NODE}.gpus", [CATALOGUE["NVIDIA-A100-SXM4-40GB"]] * GPUS)
        before = limits_milliwatts(folder)
        with (
            running("enforcer", enforcer, folder),
            running("agent", [*agent, "--metrics-port=0", "--no-kubernetes"], folder),
        ):
            log = folder / "agent.log"
            wait_until(lambda: port_of(log) != 0, lambda: log.read_text())

            def metrics() -> str:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port_of(log)}/metrics", timeout=5) as answer:
                        return str(answer.read().decode())
                except urllib.error.URLError:
                    return ""

            wait_until(lambda: all(uuid in metrics() for uuid in uuids), lambda: log.read_text())
        assert (folder / "journal" / f"{NODE}.journal").exists()
        assert limits_milliwatts(folder) == before, "who observes sets nothing"
