"""The job for JAX: its processes, trees of arrays as the state, and means over all processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import jax
import numpy

from flyball.environment import Environment, start_token
from flyball.job import Job


class JaxJob(Job):
    """A `flyball.Job` whose loader gives arrays, and whose state is a tree of arrays."""

    def _wait_for_device(self) -> None:
        jax.block_until_ready(jax.live_arrays())  # JAX only queues what it is told to compute, on CPUs too

    def register_tree(
        self, state: Callable[[], Any], load: Callable[[Any], object], *, every_seconds: float = 600.0, kept: int = 2
    ) -> bool:
        """`register` with a tree of arrays (parameters, an optimizer's state), which every process has whole.

        `state` gives it, `load` takes it as NumPy arrays. `register_sharded_tree` is for arrays sharded over processes.
        """
        return self.register(lambda: jax.device_get(state()), load, every_seconds=every_seconds, kept=kept)

    def register_sharded_tree(
        self, state: Callable[[], Any], load: Callable[[Any], object], *, every_seconds: float = 600.0, kept: int = 2
    ) -> bool:
        """`register_sharded` with a tree of arrays that are sharded over the processes, by Orbax (`orbax-checkpoint`).

        `state` gives it, with the shardings that it has here; `load` takes it with those, whatever it was written with.
        """
        from orbax.checkpoint import StandardCheckpointer

        def write(folder: str) -> None:
            with StandardCheckpointer() as checkpointer:  # which waits at its end for what it writes beside
                checkpointer.save(_tree(folder), state())

        def read(folder: str) -> None:
            with StandardCheckpointer() as checkpointer:
                load(checkpointer.restore(_tree(folder), state()))

        return self.register_sharded(write, read, every_seconds=every_seconds, kept=kept)

    def loader(
        self,
        dataset: Sequence[Any],
        global_batch_size: int | None = None,
        *,
        shuffle: bool = True,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Iterator[Any]:
        """As `flyball.Job.loader`; samples, which may be trees, are stacked into arrays.

        Each length of a batch is compiled for once: those of a whole epoch are two or three.
        """
        return super().loader(dataset, global_batch_size, shuffle=shuffle, collate=collate or stacked)

    def mean(self, tree: Any) -> Any:
        """The mean of a tree of arrays over all processes: of gradients times `step.weight`, that of the global batch."""
        if self.world_size == 1:
            return tree
        from jax.experimental import multihost_utils

        gathered = multihost_utils.process_allgather(tree)
        return jax.tree_util.tree_map(lambda array: array.mean(axis=0), gathered)


def _tree(folder: str) -> str:
    """Where Orbax has the tree: it makes that folder itself, and takes absolute paths only."""
    return os.path.join(os.path.abspath(folder), "tree")


def stacked(samples: list[Any]) -> Any:
    """Samples as one tree of arrays with a first axis more."""
    return jax.tree_util.tree_map(lambda *leaves: numpy.stack(leaves), *samples)


def _of_rank_0(token: str) -> str:
    """The token that rank 0 has given, in every process."""
    from jax.experimental import multihost_utils

    letters = numpy.frombuffer(token.encode(), dtype=numpy.uint8)
    return bytes(numpy.asarray(multihost_utils.broadcast_one_to_all(letters))).decode()


def join(*, seed: int = 0, checkpoint_directory: str | None = None) -> JaxJob:
    """`flyball.join`, and JAX's processes where there are several (by gloo where the devices are CPUs).

    Call it before anything else of JAX: what has looked for devices cannot be distributed any more.
    """
    environment = Environment.read(os.environ, os.getppid())
    if environment.world_size > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            os.environ.get("JAX_COORDINATOR_ADDRESS"),  # without it JAX looks for one, or says so
            num_processes=environment.world_size,
            process_id=environment.rank,
        )
        environment = environment.begun_as(_of_rank_0(start_token()))
    job = JaxJob(environment, seed=seed, checkpoint_directory=checkpoint_directory)
    job.start()
    return job
