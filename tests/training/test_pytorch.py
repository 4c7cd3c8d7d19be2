"""The example with real PyTorch under torchrun: resized, terminated and killed, it trains what a run in peace trains."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flyball_testbed.controlplane.ports import free_port
from flyball_testbed.realnode import requirements
from flyball_testbed.training.journals import compare, history, read_steps
from flyball_testbed.training.pytorch import get
from flyball_testbed.workload.programs import kill_tree

from tests.support.own_targets import training
from tests.support.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
ITERATIONS = 60

pytestmark = [
    *training,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="session")
def torch_python() -> str:
    return get()


class Torchrun:
    """One start of the example with so many processes."""

    def __init__(
        self,
        python: str,
        folder: Path,
        incarnation: int,
        processes: int,
        program: Path = ROOT / "examples/training/train.py",
        meet: tuple[str, ...] = ("--standalone",),
        **environment: str,
    ) -> None:
        self.journal = folder / "journal"
        self.journal.mkdir(parents=True, exist_ok=True)
        self._log = folder / f"log-{len(list(folder.glob('log-*')))}"
        own = {key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL_", "PYTHON"))}
        own |= {
            "PYTHONPATH": str(ROOT / "client"),
            "PYTHON_EXEC": python,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "FLYBALL_INCARNATION": str(incarnation),
            "FLYBALL_CHECKPOINT_DIR": str(folder),
            "FLYBALL_GLOBAL_BATCH_SIZE": "12",
            "FLYBALL_ITERATIONS": str(ITERATIONS),
            "FLYBALL_STEP_JOURNAL": str(self.journal),
            **environment,
        }
        command = [python, "-m", "torch.distributed.run", *meet, f"--nproc-per-node={processes}"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, str(program), str(ROOT / "LICENSE")],
                env=own,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def done(self) -> int:
        return max((step.iteration for step in read_steps(self.journal)), default=0)

    def wait_done(self, iteration: int) -> None:
        wait_until(
            lambda: self.done >= iteration or self.process.poll() is not None, self._log.read_text, 4 * PATIENCE_SECONDS
        )
        assert self.process.poll() is None, self._log.read_text()

    def ended(self) -> int:
        return self.process.wait(4 * PATIENCE_SECONDS)

    def kill(self) -> None:
        """All of its processes, in the middle of whatever they do."""
        kill_tree(self.process.pid)  # torchrun's processes are in sessions of their own
        self.process.wait()

    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture(scope="module")
def undisturbed(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The journal of one process that nobody disturbed."""
    run = Torchrun(torch_python, tmp_path_factory.mktemp("undisturbed"), 1, 1)
    try:
        assert run.ended() == 0, run.log()
        yield run.journal
    finally:
        run.kill()


def test_resized_terminated_and_killed_it_trains_the_same(torch_python: str, undisturbed: Path, tmp_path: Path) -> None:
    ends = [(1, "terminated"), (3, "terminated"), (2, "killed"), (4, "terminated"), (2, "")]
    for incarnation, (processes, end) in enumerate(ends, 1):
        run = Torchrun(torch_python, tmp_path, incarnation, processes, FLYBALL_MAX_LOCAL_BATCH_SIZE="4")
        try:
            if end:
                run.wait_done(run.done + 9)
            if end == "terminated":
                run.process.terminate()
            elif end == "killed":
                run.kill()
            status = run.ended()
            assert (status == 0) is (not end), run.log()
        finally:
            run.kill()
    steps = read_steps(tmp_path / "journal")
    assert {step.world_size for step in steps} == {1, 2, 3, 4}
    trained = history(steps)
    redone = len(steps) - len(trained)
    assert 9 <= redone < 30, "the killed start's steps were made again, no other's"
    result = compare(trained, history(read_steps(undisturbed)))
    assert result.steps == ITERATIONS
    assert result.same_samples
    assert result.worst_loss_difference < 1e-4
    print(f"{result}, {redone} steps made again")


def test_several_torchruns_without_flyball_are_one_start(torch_python: str, tmp_path: Path) -> None:
    """As on two nodes that somebody starts by hand: the processes have two parents, and nobody counts their starts."""
    for iterations in (6, 12):
        port = free_port()
        where = ("--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}")
        runs = [
            Torchrun(
                torch_python,
                tmp_path,
                0,
                1,
                meet=(*where, f"--node-rank={rank}"),
                FLYBALL_ITERATIONS=str(iterations),
            )
            for rank in range(2)
        ]
        try:
            assert [run.ended() for run in runs] == [0, 0], "\n".join(run.log() for run in runs)
        finally:
            for run in runs:
                run.kill()
    steps = read_steps(tmp_path / "journal")
    assert [step.iteration for step in steps] == list(range(1, 13)), "each once, by both: the second start goes on"
    assert {step.world_size for step in steps} == {2}
    assert len({step.start for step in steps}) == 2


def test_sharded_by_fsdp_it_trains_the_same_whatever_the_sizes(
    torch_python: str, undisturbed: Path, tmp_path: Path
) -> None:
    """Each size reads what another one has written, by torch.distributed.checkpoint."""
    script = (ROOT / "examples/training/train_sharded.py").read_text()
    often = script.replace("every_seconds=600", "every_seconds=1")
    assert often != script
    program = tmp_path / "train.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(ROOT / 'examples/training')!r})\n{often}")
    checkpoints = tmp_path / "flyball"
    ends = [(2, "terminated"), (3, "killed"), (1, "terminated"), (4, "terminated"), (2, "")]
    begun_at = []
    for incarnation, (processes, end) in enumerate(ends, 1):
        run = Torchrun(torch_python, tmp_path, incarnation, processes, program, FLYBALL_MAX_LOCAL_BATCH_SIZE="4")
        try:
            if end:
                run.wait_done(run.done + 9)
            if end == "killed":  # a little after it has saved in its own size
                wait_until(lambda: list(checkpoints.glob("checkpoint-000002-*")) != [], run.log, 4 * PATIENCE_SECONDS)
                run.wait_done(run.done + 2)
                run.kill()
            elif end == "terminated":
                run.process.terminate()
            status = run.ended()
            assert (status == 0) is (not end), run.log()
        finally:
            run.kill()
        begun_at.append(min(step.iteration for step in read_steps(run.journal) if step.world_size == processes))
        newest = max(checkpoints.glob("checkpoint-*"))
        assert len(list((newest / "shards").glob("*.distcp"))) <= processes
    steps = read_steps(tmp_path / "journal")
    assert {step.world_size for step in steps} == {1, 2, 3, 4}
    trained = history(steps)
    assert len(steps) - len(trained) < 30, "the killed start's steps were made again, no other's"
    result = compare(trained, history(read_steps(undisturbed)))
    assert result.steps == ITERATIONS
    assert result.same_samples
    assert result.worst_loss_difference < 1e-4
    print(f"{result}, {len(steps) - len(trained)} steps made again")


def test_workers_that_load_ahead_keep_the_order(torch_python: str, undisturbed: Path, tmp_path: Path) -> None:
    script = (
        (ROOT / "examples/training/train.py").read_text().replace("job.loader(text)", "job.loader(text, num_workers=2)")
    )
    assert "num_workers" in script
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'examples/training')!r})\n{script}"
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "journal").mkdir()
    answer = subprocess.run(
        [torch_python, str(tmp_path / "train.py"), str(ROOT / "LICENSE")],
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL_", "PYTHON"))},
            "PYTHONPATH": str(ROOT / "client"),
            "OMP_NUM_THREADS": "1",
            "FLYBALL_GLOBAL_BATCH_SIZE": "12",
            "FLYBALL_ITERATIONS": "20",
            "FLYBALL_STEP_JOURNAL": str(tmp_path / "journal"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    whole = history(read_steps(undisturbed))[:20]
    result = compare(history(read_steps(tmp_path / "journal")), whole)
    assert result.same_samples
    assert result.worst_loss_difference < 1e-4


_WITH_OBJECTS_OF_ITS_OWN = """
import flyball.torch, numpy, torch

class Best:
    def __init__(self):
        self.state = {}
    def state_dict(self):
        return self.state
    def load_state_dict(self, state):
        self.state = state

job = flyball.torch.join()
model, best = torch.nn.Linear(1, 1), Best()
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
print(job.register_state(model=model, optimizer=optimizer, schedule=schedule, best=best), best.state)
best.state = {"accuracy": numpy.float64(0.5), "history": numpy.zeros(2)}
job.save()
"""


def test_whatever_a_state_is_made_of_is_loaded_as_it_was_saved(torch_python: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL_", "PYTHON"))}
    environment |= {"PYTHONPATH": str(ROOT / "client"), "FLYBALL_CHECKPOINT_DIR": str(tmp_path)}
    command = [torch_python, "-c", _WITH_OBJECTS_OF_ITS_OWN]
    starts = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout for _ in range(2)
    ]
    assert starts == ["False {}\n", "True {'accuracy': np.float64(0.5), 'history': array([0., 0.])}\n"]


def test_what_is_in_a_batch_is_the_jobs_to_say(torch_python: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL_", "PYTHON"))}
    program = "import flyball.torch; flyball.torch.join().loader(range(10), batch_size=4, drop_last=True)"
    answer = subprocess.run(
        [torch_python, "-c", program],
        env={**environment, "PYTHONPATH": str(ROOT / "client")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ValueError: job.loader(): batch_size, drop_last is the job's to say" in answer.stderr


@pytest.mark.parametrize(
    ("pods", "gpus", "status", "words"),
    [
        (1, 1, 0, ""),
        (1, 4, 0, "this is one process in a pod of 4 GPUs, and job.device one of them"),
        (2, 4, 1, "InvalidEnvironment: the job has 2 pods and $RANK is not set: start the script by torchrun"),
    ],
)
def test_who_forgets_torchrun_is_told(torch_python: str, pods: int, gpus: int, status: int, words: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL_", "PYTHON"))}
    environment |= {"PYTHONPATH": str(ROOT / "client"), "FLYBALL_LOCAL_GPUS": str(gpus)}
    environment |= {"JAX_NUM_PROCESSES": str(pods), "JAX_PROCESS_ID": "0"}
    command = [torch_python, "-c", "import flyball.torch; flyball.torch.join()"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == status, answer.stderr
    assert words in answer.stderr
    assert words or not answer.stderr


@pytest.mark.cluster
@pytest.mark.skipif(bool(requirements.obstacles()), reason="this machine cannot run real nodes")
@pytest.mark.timeout(2400)  # seven starts of containers, and twice the training, beside whatever else runs
def test_in_containers_on_two_nodes_it_trains_the_same(torch_python: str, tmp_path: Path) -> None:
    """Grown, evicted, shrunk, drained to the other node, killed and cut: the command judges by its status."""
    command = [sys.executable, "-m", "flyball_testbed.training.demo", "--pods", "--output", str(tmp_path / "demo")]
    answer = subprocess.run(
        [*command, "--iterations", "240", "--phase-steps", "15"], capture_output=True, text=True, check=False
    )
    print(answer.stdout)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "samples: the same, in the same order" in answer.stdout
