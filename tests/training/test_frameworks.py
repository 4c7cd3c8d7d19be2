"""Trainings by real frameworks with loops of their own: told of, ended by SIGTERM with their state saved, gone on with."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from flyball_testbed.training.frameworks import NoFrameworksError, get
from flyball_testbed.training.pytorch import get as get_pytorch
from flyball_testbed.workload.programs import kill_tree

from tests.support.own_targets import training
from tests.support.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "training"
ITERATIONS = 80  # of 24 samples: 20 are an epoch of 480

pytestmark = [
    *training,
    pytest.mark.timeout(600),
]


@dataclass
class Framework:
    """A script, and the Python that has what it imports."""

    python: str
    path: str
    script: str

    def start(self, folder: Path, incarnation: int, *torchrun: str, iterations: int = ITERATIONS) -> Start:
        """Start it in one process, or by `torchrun` with these arguments."""
        log = folder / f"log-{incarnation}"
        own = {key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL_", "PYTHON", "JAX_"))}
        own |= {
            "PYTHONPATH": self.path,
            "OMP_NUM_THREADS": "1",
            "JAX_PLATFORMS": "cpu",
            "HF_HUB_OFFLINE": "1",
            "FLYBALL_INCARNATION": str(incarnation),
            "FLYBALL_CHECKPOINT_DIR": str(folder),
            "FLYBALL_GLOBAL_BATCH_SIZE": "24",
            "FLYBALL_ITERATIONS": str(iterations),
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHON_EXEC": self.python,
        }
        with log.open("w") as output:
            command = [self.python, *torchrun, str(EXAMPLES / self.script), str(folder)]
            return Start(subprocess.Popen(command, env=own, stdout=output, stderr=subprocess.STDOUT), log)


@dataclass
class Start:
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def steps(self) -> list[int]:
        # The words of several processes may stand in one line: torchrun lets Python write a line and its end by themselves.
        # Keras' example also says "goes on after step 25" before it trains.
        return [int(number) for number in re.findall(r"(?<![a-z_])(?<!after )step (\d+)", self.log.read_text())]

    def wait_step(self, number: int) -> None:
        wait_until(
            lambda: bool(self.steps and self.steps[-1] >= number) or self.process.poll() is not None,
            self.log.read_text,
            4 * PATIENCE_SECONDS,
        )
        assert self.process.poll() is None, self.log.read_text()

    def pid_of_rank(self, rank: int) -> int:
        """The process that torchrun has started as this rank."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in children:
            if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return int(pid)
        raise AssertionError(f"no rank {rank} among {children}: {self.log.read_text()}")

    def ended(self) -> int:
        return self.process.wait(4 * PATIENCE_SECONDS)

    def kill(self) -> None:
        if self.process.poll() is None:
            kill_tree(self.process.pid)
            self.process.wait()


@pytest.fixture(params=["train_hugging_face.py", "train_lightning.py", "train_keras.py"])
def framework(request: pytest.FixtureRequest) -> Framework:
    client = str(ROOT / "client")
    if request.param == "train_keras.py":
        # Not imported here: without its backend's name it looks for TensorFlow.
        if importlib.util.find_spec("keras") is None or importlib.util.find_spec("jax") is None:
            pytest.skip("there is no Keras or no JAX: pip install .[training]")
        return Framework(sys.executable, client, request.param)
    try:
        return Framework(get_pytorch(), f"{client}:{get()}", request.param)
    except NoFrameworksError as error:
        pytest.skip(str(error))


def test_sigterm_ends_it_with_its_state_saved_and_it_goes_on_from_there(framework: Framework, tmp_path: Path) -> None:
    first = framework.start(tmp_path, 1)
    try:
        first.wait_step(25)
        first.process.send_signal(signal.SIGTERM)
        assert first.ended() == 143, first.log.read_text()
        assert "ended" not in first.log.read_text()
        assert "batch 24 x 1" in first.log.read_text()
        done = first.steps[-1]
        assert first.steps == list(range(1, done + 1))
        assert done < ITERATIONS
    finally:
        first.kill()
    second = framework.start(tmp_path, 2)
    try:
        assert second.ended() == 0, second.log.read_text()
    finally:
        second.kill()
    assert "ended" in second.log.read_text()
    assert second.steps[0] == done + 1, "not one step was lost"
    assert second.steps == list(range(done + 1, ITERATIONS + 1))


# Run before the example in each process: how many step together is printed. Hugging Face's Trainer gives processes without
# GPUs the devices cpu:0, cpu:1 ..., onto which PyTorch loads nothing, and takes MPI where a PyTorch has it, as Debian's.
BESIDE = """
import runpy, sys, torch
from torch.optim.optimizer import register_optimizer_step_post_hook

def stepped(*_):
    together = torch.distributed.is_initialized()
    print(f"among {torch.distributed.get_world_size() if together else 1}", flush=True)

register_optimizer_step_post_hook(stepped)
torch.distributed.is_mpi_available = lambda: False
torch.serialization.register_package(0, lambda _: None, lambda storage, place: storage if place[:4] == "cpu:" else None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def together(folder: Path, processes: int) -> tuple[str, ...]:
    """The arguments by which torchrun starts an example in so many processes."""
    beside = folder / "beside.py"
    beside.write_text(BESIDE)
    return ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", str(beside))


@pytest.mark.parametrize("framework", ["train_hugging_face.py", "train_lightning.py"], indirect=True)
def test_several_processes_train_together_whatever_their_number_and_leave_after_the_same_step(
    framework: Framework, tmp_path: Path
) -> None:
    done, iterations = 0, 240
    for incarnation, processes in enumerate((1, 2, 3), 1):
        run = framework.start(tmp_path, incarnation, *together(tmp_path, processes), iterations=iterations)
        try:
            if processes < 3:
                run.wait_step(done + 20)
                run.process.send_signal(signal.SIGTERM)
            status, log = run.ended(), run.log.read_text()
        finally:
            run.kill()
        assert (status == 0) is (processes == 3), log
        assert (max(run.steps) == iterations) is (processes == 3), log
        assert log.count(f"batch {24 // processes} x 1") == processes
        assert set(re.findall(r"among (\d+)", log)) == {str(processes)}, "each trains with all of them"
        assert sorted(run.steps) == sorted([*range(done + 1, max(run.steps) + 1)] * processes), "not one step was lost"
        done = max(run.steps)
    assert done == iterations


@pytest.mark.parametrize("framework", ["train_hugging_face.py", "train_lightning.py"], indirect=True)
@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_is_asked_before_the_others_leaves_with_all_of_them(
    framework: Framework, tmp_path: Path, rank: int
) -> None:
    """Pods are asked one after the other. Lightning's own handler has all processes compute together then and there."""
    torchrun = together(tmp_path, 2)
    run = framework.start(tmp_path, 1, *torchrun, iterations=10_000)
    try:
        run.wait_step(20)
        os.kill(run.pid_of_rank(rank), signal.SIGTERM)
        assert run.ended() != 0, run.log.read_text()
        log = run.log.read_text()
    finally:
        run.kill()
    done = max(run.steps)
    assert sorted(run.steps) == sorted([*range(1, done + 1)] * 2), log
    again = framework.start(tmp_path, 2, *torchrun, iterations=done + 20)
    try:
        assert again.ended() == 0, again.log.read_text()
    finally:
        again.kill()
    assert min(again.steps) == done + 1, "not one step was lost"


@pytest.mark.parametrize("framework", ["train_lightning.py"], indirect=True)
def test_lightning_goes_on_from_its_last_save_where_it_was_killed(framework: Framework, tmp_path: Path) -> None:
    script = (EXAMPLES / framework.script).read_text().replace('last.ckpt")', 'last.ckpt", every_steps=10)')
    assert "every_steps" in script
    program = tmp_path / "train.py"
    program.write_text(script)
    often = Framework(framework.python, framework.path, str(program))
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        torchrun = together(folder, processes) if processes > 1 else ()
        first = often.start(folder, 1, *torchrun, iterations=100_000)
        try:
            first.wait_step(25)
        finally:
            first.kill()
        done = max(first.steps)
        second = often.start(folder, 2, *torchrun, iterations=done + 20)
        try:
            assert second.ended() == 0, second.log.read_text()
        finally:
            second.kill()
        lost = done + 1 - min(second.steps)
        assert min(second.steps) % 10 == 1, "it was saved after a multiple of ten"
        assert 0 <= lost < 20, "the last save, or the one before where that was broken off"
