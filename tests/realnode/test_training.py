"""A job in containers on two real nodes: grown, evicted, shrunk, moved, killed and cut, it trains as one left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from flyball_api.names import LABEL_INCARNATION
from flyball_testbed.real_site import RealSite, mounted, programs_of
from flyball_testbed.referee.hardware import HardwareReader
from flyball_testbed.training.journals import TrainedStep, compare, history, read_steps

from tests.support import real_training
from tests.support.site_bench import CAPS, GROUP, condition, is_enforced_at, job_manifest
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
JOB, NAMESPACE, CAP = "fit", "default", "cluster"
PATH = f"{GROUP}/namespaces/{NAMESPACE}/energyawarejobs/{JOB}"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
ITERATIONS, BATCH, GPUS = 120, 50, 4
# Containers that start beside a whole test run on two cores.
PATIENCE_SECONDS = 180.0


@dataclass(frozen=True)
class Trial:
    """The job on the site, its journal, and the gate that it trains behind."""

    site: RealSite
    folder: Path

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def submit(self, gpus: int) -> None:
        manifest = job_manifest(JOB, NAMESPACE, gpus=(gpus, gpus), iterations=ITERATIONS, batch=BATCH)
        trainer = {
            "name": "trainer",
            "command": [os.path.realpath(sys.executable), real_training.__file__, str(self.gate)],
            "env": [{"name": name, "value": value} for name, value in variables(self.journal).items()],
            "volumeMounts": [{"name": "checkpoint", "mountPath": "/checkpoint"}],
        }
        volume = {"name": "checkpoint", "hostPath": {"path": str(self.folder / "checkpoint"), "type": "Directory"}}
        pod = {"terminationGracePeriodSeconds": 30, "containers": [trainer], "volumes": [volume]}
        places = {**programs_of(Path("/")), str(ROOT): ROOT}
        if not Path(sys.base_prefix).is_relative_to("/usr"):
            places[sys.base_prefix] = Path(sys.base_prefix)
        manifest["spec"]["template"]["spec"] = mounted(pod, places, writable=[self.folder])
        self.site.api.create(PATH.rpartition("/")[0], manifest)

    def job(self) -> dict[str, Any]:
        return self.site.api.get(PATH)

    def pods(self) -> list[dict[str, Any]]:
        """The pods of the newest start."""
        found = self.site.api.list_objects(PODS)
        newest = max((start_of(pod) for pod in found), default=0)
        return [pod for pod in found if start_of(pod) == newest]

    def wait(self, holds: Any, what: str) -> None:
        def look() -> bool:
            self.site.check()
            return bool(holds())

        wait_until(look, lambda: f"{what}; {self.job().get('status')}; {self.said()}", PATIENCE_SECONDS)

    def said(self) -> list[str]:
        """What the containers have written, for whoever has to find out why they do not train."""
        found = []
        for pod in self.site.api.list_objects(PODS):
            path = f"{PODS}/{pod['metadata']['name']}"
            try:
                text = str(self.site.api.request("GET", f"{path}/log", query={"tailLines": 20}))
            except Exception as error:
                text = str(error)
            found.append(f"{path} {pod['status'].get('phase')}: {text}")
        return found

    def trained_by(self, world_size: int, until: int, after: int = 0) -> list[dict[str, Any]]:
        """Let a start after `after` train until that step, by so many processes; its pods."""

        def runs() -> bool:
            pods = self.pods()
            return (
                len(pods) == world_size
                and start_of(pods[0]) > after
                and all(pod["status"].get("phase") == "Running" for pod in pods)
            )

        self.wait(runs, f"{world_size} pods of a start after {after}")
        pods = self.pods()
        start = start_of(pods[0])
        real_training.open_gate(self.gate, world_size, until)
        self.wait(
            lambda: any(
                step.iteration >= until and step.world_size == world_size and int(step.start.split(".")[0]) == start
                for step in read_steps(self.journal)
            ),
            f"step {until} by {world_size} processes",
        )
        return pods

    def resize(self, gpus: int) -> None:
        """Let the containers leave with a checkpoint, and go on with so many GPUs."""
        self.site.api.patch(PATH, {"spec": {"suspend": True, "gpus": {"min": gpus, "max": gpus}}})
        self.wait(lambda: not self.site.api.list_objects(PODS), "its containers have left")
        self.site.api.patch(PATH, {"spec": {"suspend": False}})

    def evict(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self.site.api.create(f"{PODS}/{name}/eviction", eviction)

    def cordon(self, node: str, is_cordoned: bool) -> None:
        self.site.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": is_cordoned or None}})

    def kill(self) -> None:
        """SIGKILL to one training process, in its container."""
        (process, *_) = self.site.pod_processes(real_training.__file__)
        os.kill(process, signal.SIGKILL)

    def cap(self, watts: int) -> None:
        cap = {"apiVersion": "flyball.dev/v1alpha1", "kind": "PowerCap", "metadata": {"name": CAP}}
        self.site.api.apply({**cap, "spec": {"watts": watts}})
        self.wait(lambda: is_enforced_at(self.site.api.get_or_none(f"{CAPS}/{CAP}"), watts), f"{watts} W are enforced")

    def limits_watts(self) -> float:
        """As the hardware has them."""
        sample = HardwareReader(self.site.directory / "hardware").read()
        assert sample is not None
        return sample.limits_watts


def start_of(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"].get(LABEL_INCARNATION, "0"))


def node_of(pod: dict[str, Any]) -> str:
    return str(pod["spec"]["nodeName"])


def variables(journal: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT / "client"), "FLYBALL_STEP_JOURNAL": str(journal)}


def train_alone(folder: Path) -> list[TrainedStep]:
    """The same in one process of this machine, with nobody to disturb it."""
    journal, gate = folder / "alone", folder / "alone-gate"
    journal.mkdir()
    real_training.open_gate(gate, 1, ITERATIONS)
    numbers = {"FLYBALL_GLOBAL_BATCH_SIZE": str(BATCH), "FLYBALL_ITERATIONS": str(ITERATIONS)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
    command = [sys.executable, real_training.__file__, str(gate)]
    subprocess.run(command, check=True, env=environment | numbers | variables(journal), timeout=PATIENCE_SECONDS)
    return history(read_steps(journal))


@pytest.fixture
def trial(real_site: RealSite, tmp_path: Path) -> Iterator[Trial]:
    folder = tmp_path / "job"
    for name in ("journal", "checkpoint"):
        (folder / name).mkdir(parents=True)
    yield Trial(real_site, folder)
    real_site.api.delete(PATH)
    real_site.api.wait_for(PODS, lambda found: not (found or {}).get("items"), timeout_seconds=PATIENCE_SECONDS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_containers_train_as_one_process_that_was_left_alone(trial: Trial, tmp_path: Path) -> None:
    trial.cap(GPUS * 300)
    real_training.open_gate(trial.gate, 1, 0)
    trial.submit(1)
    (pod,) = trial.trained_by(1, 20)
    trial.resize(GPUS)
    pods = trial.trained_by(2, 40, after=start_of(pod))
    assert {node_of(pod) for pod in pods} == {"real-1", "real-2"}
    trial.evict(pods[1])
    pods = trial.trained_by(2, 50, after=start_of(pods[0]))
    trial.resize(2)
    (pod,) = trial.trained_by(1, 60, after=start_of(pods[0]))
    # As `kubectl drain` does it.
    trial.cordon(node_of(pod), True)
    trial.evict(pod)
    (moved,) = trial.trained_by(1, 70, after=start_of(pod))
    assert node_of(moved) != node_of(pod)
    trial.cordon(node_of(pod), False)
    killed = start_of(moved)
    trial.kill()
    (pod,) = trial.trained_by(1, 80, after=killed)
    trial.resize(GPUS)
    pods = trial.trained_by(2, 90, after=start_of(pod))
    # What the containers have reported at their sockets.
    trial.wait(lambda: trial.job()["status"]["progress"]["iterations"] > 80, "its reports are seen")
    trial.wait(lambda: trial.limits_watts() > GPUS * 120, "the job has more than the least")
    trial.cap(GPUS * 110)
    assert trial.limits_watts() <= GPUS * 110
    real_training.open_gate(trial.gate, 2, ITERATIONS)
    trial.wait(lambda: condition(trial.job(), "Succeeded") == "True", "it ends")

    steps = read_steps(trial.journal)
    whole = history(steps)
    result = compare(whole, train_alone(tmp_path))
    assert (result.steps, result.same_samples) == (ITERATIONS, True)
    assert result.worst_loss_difference < 1e-9
    # Only what was killed was trained on twice: whatever left otherwise saved its last step.
    starts = [list(found) for _, found in groupby(steps, key=lambda step: step.start)]
    for before, following in pairwise(starts):
        again = before[-1].iteration + 1 - following[0].iteration
        assert (again > 0) == (int(before[0].start.split(".")[0]) == killed), (before[-1], following[0])
    status = trial.job()["status"]
    assert len([failure for failure in status.get("failures") or () if failure.get("counted", True)]) == 1
    over = trial.site.referee_summary()["caps"][CAP]["max_limits_over_watts"]
    assert over == 0
