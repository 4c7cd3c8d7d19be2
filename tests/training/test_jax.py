"""The example with real JAX: resized, terminated and killed, it trains what a run in peace trains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flyball_testbed.training.journals import compare, history, read_steps

from tests.support.jax_starts import ITERATIONS, Start
from tests.support.own_targets import training
from tests.support.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).parents[2]

pytestmark = [
    *training,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The journal of one process that nobody disturbed."""
    pytest.importorskip("jax", reason="there is no JAX: pip install .[training]")
    run = Start(tmp_path_factory.mktemp("undisturbed"), 1, 1)
    try:
        assert run.ended() == [0], run.log()
        yield run.journal
    finally:
        run.end(signal.SIGKILL)


def test_resized_terminated_and_killed_it_trains_the_same(undisturbed: Path, tmp_path: Path) -> None:
    ends = [(1, signal.SIGTERM), (3, signal.SIGTERM), (2, signal.SIGKILL), (2, None)]
    for incarnation, (processes, end) in enumerate(ends, 1):
        run = Start(tmp_path, incarnation, processes)
        try:
            if end is not None:
                run.wait_done(run.done + 8)
                run.end(end)
            statuses = set(run.ended())
            assert statuses == {{None: 0, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}[end]}, run.log()
        finally:
            run.end(signal.SIGKILL)
    steps = read_steps(tmp_path / "journal")
    assert {step.world_size for step in steps} == {1, 2, 3}
    trained = history(steps)
    redone = len(steps) - len(trained)
    assert 8 <= redone < 24, "the killed start's steps were made again, no other's"
    result = compare(trained, history(read_steps(undisturbed)))
    assert result.steps == ITERATIONS
    assert result.same_samples
    assert result.worst_loss_difference < 1e-4
    print(f"{result}, {redone} steps made again")


def test_sharded_over_the_processes_it_trains_the_same_whatever_the_sizes(tmp_path: Path) -> None:
    """Each size reads what another one has written, by Orbax."""
    pytest.importorskip("jax", reason="there is no JAX: pip install .[training]")
    pytest.importorskip("orbax.checkpoint", reason="there is no Orbax: pip install .[training]")
    script = (ROOT / "examples/training/train_jax_sharded.py").read_text()
    often = script.replace("every_seconds=600", "every_seconds=1")
    assert often != script
    program = tmp_path / "train.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(ROOT / 'examples/training')!r})\n{often}")
    alone = Start(tmp_path / "undisturbed", 1, 1, program)
    try:
        assert alone.ended() == [0], alone.log()
    finally:
        alone.end(signal.SIGKILL)
    disturbed = tmp_path / "disturbed"
    ends = [(2, signal.SIGTERM), (4, signal.SIGKILL), (1, signal.SIGTERM), (2, None)]
    for incarnation, (processes, end) in enumerate(ends, 1):
        run = Start(disturbed, incarnation, processes, program)
        try:
            if end is not None:
                run.wait_done(run.done + 5)
            if end is signal.SIGKILL:  # a little after it has saved in its own size
                wait_until(
                    lambda: list((disturbed / "flyball").glob("checkpoint-000002-*")) != [],
                    run.log,
                    4 * PATIENCE_SECONDS,
                )
                run.wait_done(run.done + 2)
            if end is not None:
                run.end(end)
            statuses = set(run.ended())
            assert statuses == {{None: 0, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}[end]}, run.log()
        finally:
            run.end(signal.SIGKILL)
        newest = max((disturbed / "flyball").glob("checkpoint-*"))
        assert len(list((newest / "shards" / "tree").glob("ocdbt.process_*"))) == processes
    steps = read_steps(disturbed / "journal")
    assert {step.world_size for step in steps} == {1, 2, 4}
    trained = history(steps)
    result = compare(trained, history(read_steps(tmp_path / "undisturbed" / "journal")))
    assert result.steps == ITERATIONS
    assert result.same_samples
    assert result.worst_loss_difference < 1e-4
    print(f"{result}, {len(steps) - len(trained)} steps made again")


def test_starts_from_one_shell_tell_each_other_apart(tmp_path: Path) -> None:
    """Outside Flyball nobody counts starts, and all processes of a shell have one parent: what rank 0 said of the
    checkpoints in the first start must not be taken for what it says in the second."""
    pytest.importorskip("jax", reason="there is no JAX: pip install .[training]")
    for iterations in (6, 12):
        run = Start(tmp_path, 0, 2, iterations=iterations)
        try:
            assert run.ended() == [0, 0], run.log()
        finally:
            run.end(signal.SIGKILL)
    steps = read_steps(tmp_path / "journal")
    assert [step.iteration for step in steps] == list(range(1, 13)), "each once: the second start goes on"
    assert len({step.start for step in steps}) == 2


def test_what_is_measured_ends_when_the_device_has_computed_it(tmp_path: Path) -> None:
    """JAX returns from what it has only queued; a measurement that did, too, would have next to no seconds and joules."""
    pytest.importorskip("jax", reason="there is no JAX: pip install .[training]")
    program = tmp_path / "measure.py"
    program.write_text(
        """
import jax
import jax.numpy as jnp
import flyball.jax

@jax.jit
def compute(x):
    for _ in range(20):
        x = jnp.tanh(x @ x)
    return x

job = flyball.jax.join()
x = jnp.ones((800, 800))
compute(x).block_until_ready()  # compiled
with job.measure("queued") as taken:
    computed = compute(x)
    queued = not computed.is_ready()
assert queued, "JAX has waited by itself: this shows nothing"
assert computed.is_ready()
"""
    )
    own = {key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL_", "JAX_"))}
    own |= {"PYTHONPATH": str(ROOT / "client"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, str(program)], env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
