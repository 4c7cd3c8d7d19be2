"""Real training on the control plane: processes with the client, grown, shrunk and killed, train as one left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from flyball_testbed.training.journals import TrainedStep, compare, history, read_steps
from flyball_testbed.workload.programs import PROCESSES_FILE

from tests.support import real_training
from tests.support.site_bench import Bench, job_manifest, reason
from tests.support.waiting import PATIENCE_SECONDS

CLIENT = Path(__file__).parents[2] / "client"
ITERATIONS, BATCH = 120, 50
JOB = "fit"


def variables(journal: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(CLIENT), "FLYBALL_STEP_JOURNAL": str(journal)}


def train_alone(folder: Path) -> list[TrainedStep]:
    """The same in one process, with nobody to disturb it."""
    journal, gate = folder / "alone", folder / "alone-gate"
    journal.mkdir()
    real_training.open_gate(gate, 1, ITERATIONS)
    numbers = {"FLYBALL_GLOBAL_BATCH_SIZE": str(BATCH), "FLYBALL_ITERATIONS": str(ITERATIONS)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
    subprocess.run(
        [sys.executable, real_training.__file__, str(gate)],
        check=True,
        env=environment | numbers | variables(journal),
        timeout=PATIENCE_SECONDS,
    )
    return history(read_steps(journal))


def submit(bench: Bench, journal: Path, gate: Path) -> None:
    manifest = job_manifest(JOB, bench.namespace, gpus=(32, 32), iterations=ITERATIONS, batch=BATCH)
    pod = manifest["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "checkpoint", "emptyDir": {}}]
    pod["containers"] = [
        {
            "name": "trainer",
            "image": "example.org/python",
            "command": [sys.executable, real_training.__file__, str(gate)],
            "env": [{"name": name, "value": value} for name, value in variables(journal).items()],
            "volumeMounts": [{"name": "checkpoint", "mountPath": "/checkpoint"}],
        }
    ]
    bench.api.create(bench.path("").rstrip("/"), manifest)


def resize(bench: Bench, gpus: int) -> None:
    """Stop the job by SIGTERM to its processes, and go on with so many GPUs, eight a pod."""
    bench.change(JOB, suspend=True, gpus={"min": gpus, "max": gpus})
    bench.wait_job(
        JOB,
        lambda job: reason(job, "Admitted") == "Suspended" and not bench.objects("pods"),
        "its processes have left",
    )
    bench.change(JOB, suspend=False)


def test_it_trains_as_one_that_was_left_alone(bench: Bench, tmp_path: Path) -> None:
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    journal.mkdir()

    def trained_by(world_size: int, until: int) -> None:
        real_training.open_gate(gate, world_size, until)
        bench.wait(
            lambda: any(step.iteration >= until and step.world_size == world_size for step in read_steps(journal)),
            lambda: f"step {until} by {world_size}; {bench.job(JOB)}",
        )

    real_training.open_gate(gate, 4, 0)
    submit(bench, journal, gate)
    trained_by(4, 20)
    resize(bench, 16)
    trained_by(2, 40)
    resize(bench, 8)
    trained_by(1, 50)
    resize(bench, 32)
    trained_by(4, 70)
    # One process is killed; the others notice, and all begin again at the last checkpoint.
    running = json.loads((bench.site.directory / "workload" / "programs" / PROCESSES_FILE).read_text())
    assert len(running) == 4
    os.kill(next(iter(running.values())), signal.SIGKILL)
    trained_by(4, 100)
    bench.wait_job(JOB, lambda job: (job or {})["status"]["progress"]["iterations"] >= 41, "its reports are seen")
    real_training.open_gate(gate, 4, ITERATIONS)
    done = bench.wait_job(JOB, lambda job: (job or {})["status"].get("state") == "Succeeded", "it ends")

    steps = read_steps(journal)
    whole = history(steps)
    assert len(steps) > len(whole), "steps after the last checkpoint were made again"
    result = compare(whole, train_alone(tmp_path))
    assert (result.steps, result.same_samples) == (ITERATIONS, True)
    assert result.worst_loss_difference < 1e-9
    failures = done["status"].get("failures") or []
    assert len(failures) == 1
