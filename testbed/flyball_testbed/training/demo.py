"""`make train-demo`: real training as an EnergyAwareJob, grown, shrunk, killed and cut, beside the same left alone.

Processes in place of pods: PyTorch under torchrun on this machine's processor, on a real control plane with simulated GPUs.
Exits with 1 where the samples or the losses of the two differ, or a cap that was reported as enforced was exceeded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball_testbed.controlplane.api import Json
from flyball_testbed.controlplane.processes import wait_until
from flyball_testbed.site import Site, SitePlan
from flyball_testbed.training.journals import TrainedStep, compare, history, read_steps
from flyball_testbed.training.picture import Event, draw
from flyball_testbed.training.pytorch import NoPyTorchError, get
from flyball_testbed.workload.programs import PROCESSES_FILE, descendants

ROOT = Path(__file__).resolve().parents[3]
SCRIPT, TEXT, CLIENT = ROOT / "examples/training/train.py", ROOT / "LICENSE", ROOT / "client"
GROUP = "/apis/flyball.dev/v1alpha1"
NAMESPACE, JOB, CAP = "default", "language-model", "cluster"
GPUS, GLOBAL_BATCH = 4, 16
WAIT_SECONDS = 300.0
# Floating-point sums in another order; what differs more is another training.
TOLERANCE = 1e-3
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
        training = {"globalBatchSize": GLOBAL_BATCH, "iterations": self.iterations, "modelClass": "gpt2"}
        elasticity = {"mode": "CheckpointRestart", "minSecondsBetweenResizes": 0}
        return job_of(JOB, (1, 1), training, pod, elasticity=elasticity)


def job_of(name: str, gpus: tuple[int, int], training: Json, pod: Json, **spec: Any) -> Json:
    """An EnergyAwareJob."""
    return {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyAwareJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "gpus": {"min": gpus[0], "max": gpus[1]},
            "training": training,
            "template": {"spec": pod},
            **spec,
        },
    }


class Run:
    """The job on the site, and what befalls it."""

    def __init__(self, site: Site, journal: Path, say: Callable[[str], None]) -> None:
        self._site = site
        self._api = site.cluster.api
        self._journal = journal
        self._say = say
        self.events: list[Event] = []

    def steps(self) -> list[TrainedStep]:
        return read_steps(self._journal)

    def job(self) -> Json:
        return self._api.get_or_none(f"{GROUP}/namespaces/{NAMESPACE}/energyawarejobs/{JOB}") or {}

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        def over() -> bool:
            self._site.check()
            return holds() or self.state() == "Failed"

        if not wait_until(over, WAIT_SECONDS) or not holds():
            status = self.job().get("status") or {}
            raise DemoFailed(f"not within {WAIT_SECONDS:g} s: {what}; {JOB}: {json.dumps(status)[:2000]}")

    def state(self) -> str:
        return str((self.job().get("status") or {}).get("state"))

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
        self._api.apply(manifest)
        if what:
            self.happened(what)

    def resize(self, gpus: int) -> None:
        """Let the processes leave with a checkpoint, and go on with so many GPUs."""
        path = f"{GROUP}/namespaces/{NAMESPACE}/energyawarejobs/{JOB}"
        self._api.patch(path, {"spec": {"suspend": True, "gpus": {"min": gpus, "max": gpus}}})
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        self._wait(lambda: not (self._api.get_or_none(pods) or {}).get("items"), "its processes have left")
        self.happened(f"{gpus} GPU{'s' if gpus > 1 else ''}")
        self._api.patch(path, {"spec": {"suspend": False}})

    def cap(self, watts: int, what: str) -> None:
        self.apply(
            {
                "apiVersion": "flyball.dev/v1alpha1",
                "kind": "PowerCap",
                "metadata": {"name": CAP},
                "spec": {"watts": watts},
            },
            what,
        )

    def kill_one_rank(self) -> None:
        """SIGKILL to one training process below torchrun."""
        state = self._site.directory / "workload" / "programs" / PROCESSES_FILE
        leaders = set(json.loads(state.read_text()).values())
        ranks = [pid for leader in leaders for pid in descendants(leader)]
        if not ranks:
            raise DemoFailed(f"no rank to kill below {sorted(leaders)}")
        os.kill(ranks[-1], signal.SIGKILL)
        self.happened("one rank killed")

    def wait_end(self) -> None:
        self._wait(lambda: self.state() == "Succeeded", "the end of the training")


@contextlib.contextmanager
def started_site(out: Path, say: Callable[[str], None]) -> Iterator[Site]:
    """One node of four GPUs, whose pods' commands run."""
    plan = SitePlan(nodes=1, gpus_per_node=GPUS, operator_arguments=PACE, workload_arguments=("--run-programs",))
    site = Site.start(plan, out, say)
    try:
        yield site
    finally:
        # What the trainings said of themselves, for whoever has to find out why one failed.
        programs = site.directory / "workload" / "programs"
        if programs.exists():
            shutil.copytree(programs, out / "programs", dirs_exist_ok=True)
        site.stop()


def scenario(run: Run, training: Training, journal: Path, phase_steps: int) -> None:
    """All that befalls the job. Raises DemoFailed."""
    largest = GPUS * 400
    run.cap(largest, "")
    run.apply(training.manifest(journal), "submitted for 1 GPU")
    run.wait_steps(phase_steps, 1)
    for gpus in (4, 2):
        run.resize(gpus)
        run.wait_steps(phase_steps, gpus)
    run.kill_one_rank()
    run.wait_steps(phase_steps, 2)
    run.cap(largest * 3 // 5, "cap falls to 60 %")
    run.resize(4)
    run.wait_end()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make train-demo", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/train-demo"), help="the picture, journals and logs")
    parser.add_argument("--iterations", type=int, default=400, help="steps of the whole training")
    parser.add_argument("--phase-steps", type=int, default=40, help="steps between what befalls it, at the least")
    arguments = parser.parse_args()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    out: Path = arguments.output.resolve()
    shutil.rmtree(out, ignore_errors=True)
    try:
        training = Training(get(say), arguments.iterations)
        say(f"trains {arguments.iterations} steps in one process, left alone")
        training.run_alone(out / "alone")
        (out / "elastic").mkdir()
        with started_site(out, say) as site:
            run = Run(site, out / "elastic", say)
            scenario(run, training, out / "elastic", arguments.phase_steps)
            referee = site.referee_summary()
    except (NoPyTorchError, DemoFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return conclude(out, run.events, referee)


def conclude(out: Path, events: Sequence[Event], referee: Json) -> int:
    """Compare the journals in `out`, draw and say what came of it; 0 where both trainings are one."""
    alone, steps = history(read_steps(out / "alone")), read_steps(out / "elastic")
    elastic = history(steps)
    result = compare(elastic, alone)
    draw(alone, elastic, events, out / "train-demo.png")
    over = max((cap["max_limits_over_watts"] for cap in referee["caps"].values()), default=0.0)
    print(f"{result.steps} steps in {len({step.start for step in steps})} starts")
    print(f"sizes: {', '.join(str(size) for size in sorted({step.world_size for step in steps}))} GPUs")
    print(f"made again after the kill: {len(steps) - len(elastic)} steps")
    print("samples: the same, in the same order" if result.same_samples else "samples: OTHERS, OR IN ANOTHER ORDER")
    print(f"losses differ by at most {result.worst_loss_difference:.1e} of the loss")
    print(f"watts over a cap reported as enforced: {over:g}")
    print(out / "train-demo.png")
    return 0 if result.same_samples and result.worst_loss_difference < TOLERANCE and over == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
