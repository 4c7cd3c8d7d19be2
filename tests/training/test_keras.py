"""Keras on JAX in several processes: resized, terminated and killed, it comes to the weights of a run in peace."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from flyball_testbed.training.journals import history, read_steps

from tests.support.jax_starts import Start
from tests.support.own_targets import training

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples/training/train_keras.py"
# Of 480 samples: the last batch of an epoch has 12 of them. With six at once a process computes three times before the
# optimizer's turn where it is alone, and once where it is one of three.
GLOBAL_BATCH, EPOCH, ITERATIONS = 18, 27, 70

pytestmark = [
    *training,
    pytest.mark.timeout(600),
    # Not imported here: without its backend's name it looks for TensorFlow.
    pytest.mark.skipif(
        importlib.util.find_spec("keras") is None or importlib.util.find_spec("jax") is None,
        reason="there is no Keras or no JAX: pip install .[training]",
    ),
]


def start(
    folder: Path, incarnation: int, processes: int, iterations: int = ITERATIONS, program: Path = PROGRAM
) -> Start:
    return Start(folder, incarnation, processes, program, iterations=iterations, global_batch=GLOBAL_BATCH)


def weights(run: Start) -> list[float]:
    """What all processes have come to, which is the same in each."""
    told = {line for line in run.log().splitlines() if line.startswith("ended with ")}
    assert len(told) == 1, run.log()
    return [float(word) for word in told.pop().split()[2:]]


def test_resized_terminated_and_killed_it_has_each_sample_once_and_the_same_weights(tmp_path: Path) -> None:
    alone = start(tmp_path / "undisturbed", 1, 1)
    try:
        assert alone.ended() == [0], alone.log()
    finally:
        alone.end(signal.SIGKILL)
    disturbed = tmp_path / "disturbed"
    # The second and the third start go on in the middle of an epoch.
    ends = [(1, signal.SIGTERM), (3, signal.SIGTERM), (2, signal.SIGKILL), (2, None)]
    for incarnation, (processes, end) in enumerate(ends, 1):
        run = start(disturbed, incarnation, processes)
        try:
            if end is not None:
                run.wait_done(run.done + 8)
                run.end(end)
            statuses = set(run.ended())
            assert statuses == {{None: 0, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}[end]}, run.log()
        finally:
            run.end(signal.SIGKILL)
    steps = read_steps(disturbed / "journal")
    assert {step.world_size for step in steps} == {1, 2, 3}
    trained, wanted = history(steps), history(read_steps(tmp_path / "undisturbed" / "journal"))
    assert [step.samples for step in trained] == [step.samples for step in wanted]
    for first in (0, EPOCH):
        epoch = [sample for step in trained[first : first + EPOCH] for sample in step.samples]
        assert sorted(epoch) == list(range(480))
    assert weights(run) == pytest.approx(weights(alone), rel=1e-4)
    print(f"weights {weights(run)} and {weights(alone)}, {len(steps) - len(trained)} steps made again")


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_is_asked_before_the_other_leaves_with_it(tmp_path: Path, rank: int) -> None:
    """JAX only queues what is computed: a process may be steps ahead of the other."""
    run = start(tmp_path, 1, 2, 1_000_000)
    try:
        run.wait_done(20)
        run.processes[rank].send_signal(signal.SIGTERM)
        assert run.ended() == [143, 143], run.log()
    finally:
        run.end(signal.SIGKILL)
    (last,) = {max_step(log) for log in run.logs}
    assert {path.name for path in (tmp_path / "flyball").glob("checkpoint-*")} == {f"checkpoint-000001-{last:012d}"}


def max_step(log: Path) -> int:
    return max(int(number) for number in re.findall(r"^step (\d+)$", log.read_text(), re.MULTILINE))


WRONG = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import flyball.keras, keras, numpy
job = flyball.keras.join()
batches = flyball.keras.Batches(job, 480, lambda places: (numpy.ones((len(places), 1)), numpy.ones((len(places), 1))), 24)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1{optimizer}), "mse"{compiled})
callback = flyball.keras.FlyballCallback(job, batches)
callback.restore(model)
for epochs in batches.fits({epochs}):
    model.fit(batches, **epochs, verbose=0, callbacks=[callback]{fit})
print("done", job.position.epoch, job.position.iteration)
"""


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"fit": ", shuffle=False", "epochs": "3"}, "done 3 60"),
        ({"epochs": "1"}, "give fit(shuffle=False)"),
        ({"fit": ", shuffle=False"}, "batches.fits(): say how many epochs, or give the job training.iterations"),
        ({"compiled": ", steps_per_execution=4", "epochs": "1"}, "compile with steps_per_execution=1, not 4"),
        (
            {"optimizer": ", gradient_accumulation_steps=2", "epochs": "1"},
            "give the optimizer gradient_accumulation_steps=None, not 2",
        ),
    ],
)
def test_what_would_train_wrongly_is_refused_with_what_would_be_right(wrong: dict[str, str], why: str) -> None:
    program = WRONG.format(**{"optimizer": "", "compiled": "", "fit": "", "epochs": ""} | wrong)
    own = {key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL_", "JAX_"))}
    own |= {"PYTHONPATH": str(ROOT / "client"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], env=own, capture_output=True, text=True)
    assert (done.returncode == 0) is why.startswith("done"), done.stderr
    assert why in done.stdout + done.stderr


def test_several_processes_on_another_backend_are_refused() -> None:
    own = {key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL_", "JAX_"))}
    own |= {"PYTHONPATH": str(ROOT / "client"), "KERAS_BACKEND": "numpy", "RANK": "0", "WORLD_SIZE": "2"}
    script = "import flyball.keras; flyball.keras.join()"
    done = subprocess.run([sys.executable, "-c", script], env=own, capture_output=True, text=True)
    assert "2 processes cannot train together on Keras' backend numpy: set KERAS_BACKEND=jax" in done.stderr
