"""The example as a job on a site: how it is started, what befalls it, and what its journals say meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flyball_api.energy_aware_job import (
    Elasticity,
    EnergyAwareJobSpec,
    EnergyAwareJobStatus,
    GpuRange,
    read_energy_aware_job,
)
from flyball_api.energy_aware_job import Training as TrainingSpec
from flyball_api.power_cap import PowerCapSpec
from flyball_api.writing import api_object, spec_patch, to_json
from flyball_kube.resources import ENERGY_AWARE_JOBS, PODS, POWER_CAPS

from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.processes import wait_until
from flyball_testbed.training.journals import TrainedStep, read_steps
from flyball_testbed.training.picture import Event

ROOT = Path(__file__).resolve().parents[3]
SCRIPT, TEXT, CLIENT = ROOT / "examples/training/train.py", ROOT / "LICENSE", ROOT / "client"
NAMESPACE, JOB, CAP = "default", "language-model", "cluster"
PODS_PATH = PODS.path(NAMESPACE)
GPUS, GLOBAL_BATCH = 4, 16
WAIT_SECONDS = 300.0
PACE = (
    "--replan-seconds", "1", "--status-interval-seconds", "1", "--restart-seconds", "1", "--first-pause-seconds", "0.5",
)  # fmt: skip


class DemoFailed(Exception):
    """What was waited for did not come; the message has what was seen instead."""


@dataclass(frozen=True)
class Training:
    """How the example is started, here and in the job's pods."""

    python: str
    iterations: int

    @property
    def command(self) -> list[str]:
        return [self.python, "-m", "torch.distributed.run", str(SCRIPT), str(TEXT)]

    def environment(self, journal: Path) -> dict[str, str]:
        return {
            "PYTHONPATH": str(CLIENT),
            "PYTHON_EXEC": self.python,
            "OMP_NUM_THREADS": "1",
            "FLYBALL_STEP_JOURNAL": str(journal),
        }

    def run_alone(self, journal: Path) -> None:
        """Train in one process to the end. Raises DemoFailed."""
        journal.mkdir(parents=True)
        own = {name: value for name, value in os.environ.items() if not name.startswith(("FLYBALL_", "PYTHON"))}
        own |= {"FLYBALL_GLOBAL_BATCH_SIZE": str(GLOBAL_BATCH), "FLYBALL_ITERATIONS": str(self.iterations)}
        answer = subprocess.run(
            [self.python, str(SCRIPT), str(TEXT)],
            env=own | self.environment(journal),
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise DemoFailed(f"the training in one process failed:\n{answer.stderr[-2000:]}")

    def manifest(self, journal: Path) -> Json:
        variables = [{"name": name, "value": value} for name, value in self.environment(journal).items()]
        trainer = {
            "name": "trainer",
            "image": "example.org/pytorch",
            "command": self.command,
            "env": variables,
            "volumeMounts": [{"name": "checkpoint", "mountPath": "/checkpoint"}],
        }
        pod = {
            "terminationGracePeriodSeconds": 60,
            "containers": [trainer],
            "volumes": [{"name": "checkpoint", "emptyDir": {}}],
        }
        spec = EnergyAwareJobSpec(
            gpus=GpuRange(1, 1),
            training=TrainingSpec(GLOBAL_BATCH, self.iterations, model_class="gpt2"),
            template={"spec": pod},
            elasticity=Elasticity(min_seconds_between_resizes=0),
        )
        return api_object(ENERGY_AWARE_JOBS.kind, JOB, spec, namespace=NAMESPACE)


def job_path(name: str) -> str:
    """Where a job of the demos is on the API server."""
    return ENERGY_AWARE_JOBS.path(NAMESPACE, name)


def status_of(api: ApiClient, name: str) -> EnergyAwareJobStatus:
    """What the operator says of a job of the demos; nothing where there is no such job, or no status yet."""
    found = api.get_or_none(job_path(name))
    return EnergyAwareJobStatus() if found is None else read_energy_aware_job(found).status


class TrainingSite(Protocol):
    """Where the job runs."""

    @property
    def api(self) -> ApiClient: ...

    def check(self) -> None: ...

    def ranks(self) -> list[int]:
        """The training processes, as this machine numbers them."""
        ...


class Run:
    """The job on the site, and what befalls it."""

    def __init__(self, site: TrainingSite, journal: Path, say: Callable[[str], None]) -> None:
        self._site = site
        self.api = site.api
        self._journal = journal
        self._say = say
        self.events: list[Event] = []

    def steps(self) -> list[TrainedStep]:
        return read_steps(self._journal)

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        def over() -> bool:
            self._site.check()
            return holds() or self._state() == "Failed"

        if not wait_until(over, WAIT_SECONDS) or not holds():
            status = to_json(status_of(self.api, JOB))
            raise DemoFailed(f"not within {WAIT_SECONDS:g} s: {what}; {JOB}: {json.dumps(status)[:2000]}")

    def _state(self) -> str | None:
        return status_of(self.api, JOB).state

    def happened(self, what: str) -> None:
        """Note that something befell the job after the steps that it has made."""
        done = max((step.iteration for step in self.steps()), default=0)
        self.events.append(Event(done, what))
        self._say(f"step {done}: {what}")

    def wait_steps(self, count: int, size: int) -> None:
        """Until a start that is not there yet has made so many steps in `size` processes."""
        before = {step.start for step in self.steps()}

        def made() -> bool:
            new = [step for step in self.steps() if step.start not in before and step.world_size == size]
            return len(new) >= count

        self._wait(made, f"{count} steps in {size} processes")
        last = self.steps()[-1]
        self._say(f"step {last.iteration}: trains in {last.world_size} processes")

    def apply(self, manifest: Json, what: str = "") -> None:
        self.api.apply(manifest)
        if what:
            self.happened(what)

    def resize(self, gpus: int) -> None:
        """Let the processes leave with a checkpoint, and go on with so many GPUs."""
        self.api.patch(job_path(JOB), spec_patch(EnergyAwareJobSpec, suspend=True, gpus=GpuRange(gpus, gpus)))
        self._wait(lambda: not self.api.list_objects(PODS_PATH), "its processes have left")
        self.happened(_gpus(gpus))
        self.api.patch(job_path(JOB), spec_patch(EnergyAwareJobSpec, suspend=False))

    def pods(self) -> list[Json]:
        """The job's pods that are not on their way out."""
        return [pod for pod in self.api.list_objects(PODS_PATH) if "deletionTimestamp" not in pod["metadata"]]

    def evict(self, what: str) -> None:
        """Evict the job's last pod, as a drain does."""
        name = sorted(pod["metadata"]["name"] for pod in self.pods())[-1]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self.api.create(f"{PODS_PATH}/{name}/eviction", eviction)
        self.happened(what)

    def require(self, holds: bool, what: str) -> None:
        """Raises DemoFailed where this does not hold."""
        if not holds:
            raise DemoFailed(f"not so: {what}; its pods: {[pod['spec'].get('nodeName') for pod in self.pods()]}")

    def cap(self, watts: int, what: str) -> None:
        self.apply(api_object(POWER_CAPS.kind, CAP, PowerCapSpec(watts=watts)), what)

    def kill_one_rank(self) -> None:
        """SIGKILL to one training process below torchrun."""
        ranks = self._site.ranks()
        if not ranks:
            raise DemoFailed("no rank to kill")
        os.kill(ranks[-1], signal.SIGKILL)
        self.happened("one rank killed")

    def wait_end(self) -> None:
        self._wait(lambda: self._state() == "Succeeded", "the end of the training")


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count > 1 else ''}"
