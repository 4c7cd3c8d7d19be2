"""A training job as one of its processes sees it: where to go on, what to train on, when to save and when to leave.

What fails of Flyball's (no agent, a full disk, a bad answer) costs one warning and never the training. What would train on
the wrong samples is an error.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NoReturn, TypeVar

from flyball.environment import Environment
from flyball.on_node import OnNode
from flyball.sampling import Order, Part, Position, even_parts, parts_of
from flyball.shared_values import SharedValues
from flyball.state.checkpoints import folder_in
from flyball.state.saved import Restored, SavedState, read_pickle, write_pickle
from flyball.state.sharded import ShardedState
from flyball.step import Step
from flyball.step_journal import StepJournal
from flyball.stopping import EXIT_STATUS

logger = logging.getLogger("flyball")

T = TypeVar("T")

_RUN = ".run-"
_NO_BATCH_SIZE = (
    "the global batch size is not known: give it, or give the job training.globalBatchSize ($FLYBALL_GLOBAL_BATCH_SIZE)"
)


class Job(OnNode):
    """What `join` gives. Outside Flyball it is a job of one process that nobody resizes, with the same interface."""

    def __init__(
        self,
        environment: Environment,
        *,
        seed: int = 0,
        checkpoint_directory: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seed = seed
        self._position = Position()
        self._size: int | None = None
        self._restored_size: int | None = None
        self._part: Part | None = None
        self._local_batch = 0
        self._step = Step(self._part_done)
        self._saved: SavedState | ShardedState | None = None
        self._journal = StepJournal.of(environment)
        directory = checkpoint_directory or environment.checkpoint_directory
        self._was_given_folder = directory is not None
        self._directory = folder_in(directory, environment.job_uid, takes=environment.rank == 0)
        super().__init__(environment, self._share(environment), monotonic)

    def _share(self, environment: Environment) -> SharedValues | None:
        if self._directory is None or environment.world_size == 1:
            return None
        own = f"{_RUN}{environment.run}"
        try:
            if environment.rank == 0 and os.path.isdir(self._directory):
                for name in os.listdir(self._directory):
                    if name.startswith(_RUN) and name < own:
                        shutil.rmtree(os.path.join(self._directory, name), ignore_errors=True)
            return SharedValues(os.path.join(self._directory, own))
        except OSError as error:
            logger.warning("no checkpoints are written, training goes on: %s", error)
            self._directory = None
            return None

    # --- who and where -----------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Which process this is, from 0."""
        return self._environment.rank

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return self._environment.world_size

    @property
    def local_world_size(self) -> int | None:
        """How many of them torchrun has started in this pod; None where it has not."""
        return self._environment.local_world_size

    @property
    def iterations(self) -> int | None:
        """How many steps the job has (`training.iterations`); None where it does not say."""
        return self._environment.iterations

    @property
    def position(self) -> Position:
        """How far training is, over all starts of the job."""
        return self._position

    @property
    def batch_size_ratio(self) -> float:
        """By how much the global batch size was changed from the one that the job was written with; 1: it was not.

        Of a recurring job each run may have another; a learning rate is scaled by this, or by its square root.
        """
        chosen, written = self._environment.global_batch_size, self._environment.base_batch_size
        return chosen / written if chosen and written else 1.0

    def target_reached(self, value: float) -> bool:
        """Whether the metric that a recurring job trains to has come as far as this; False where there is no target.

        End a run that has reached it with exit code 0, any other with another one: from that the next one's batch size is
        learned. All processes must leave together, so give all of them the same value.
        """
        target = self._environment.target
        return target is not None and target.reached_by(value)

    # --- the state -----------------------------------------------------------------------------------------------------

    def register(
        self,
        state_dict: Callable[[], Any],
        load_state_dict: Callable[[Any], object],
        *,
        every_seconds: float = 600.0,
        kept: int = 2,
        write: Callable[[str, Any], None] = write_pickle,
        read: Callable[[str], Any] = read_pickle,
    ) -> bool:
        """Save this state as training goes on, and load the newest checkpoint now; whether there was one.

        Rank 0 saves, so every process must have the same state; `register_sharded` is for others. `write(path, state)` and
        `read(path)` make a file of it and back. Raises RuntimeError where there are checkpoints of which none can be
        loaded: to begin anew would overwrite them in the end. Also where this process cannot load what rank 0 has loaded.
        """
        folder = self._folder_to_save_in()
        if folder is None:
            return False
        self._saved = SavedState(
            folder,
            self._environment,
            self._values,
            state_dict,
            every_seconds=every_seconds,
            kept=kept,
            write=write,
            read=read,
            monotonic=self._monotonic,
        )
        return self._go_on_from(self._saved.restore(load_state_dict))

    def register_sharded(
        self,
        write: Callable[[str], object],
        read: Callable[[str], object],
        *,
        every_seconds: float = 600.0,
        kept: int = 2,
    ) -> bool:
        """`register` for a state of which each process has its shard: all write into one checkpoint, and all read it.

        `write(folder)` puts this process' shard into a folder that is there already, in files of names of its own;
        `read(folder)` takes what this process needs from one that any number of processes has written. Both are called by
        all processes at the same step, and may be collectives of theirs. A checkpoint is there once all shards are. Raises
        RuntimeError as `register` does.
        """
        folder = self._folder_to_save_in()
        if folder is None:
            return False
        self._saved = sharded = ShardedState(
            folder,
            self._environment,
            self._values,
            write,
            read,
            every_seconds=every_seconds,
            kept=kept,
            monotonic=self._monotonic,
        )
        if self._values is not None:
            self._look_beside(sharded.look)
        return self._go_on_from(sharded.restore())

    def _folder_to_save_in(self) -> str | None:
        if not self._was_given_folder and self.rank == 0:
            logger.warning("no checkpoints are written: there is no volume `checkpoint` ($FLYBALL_CHECKPOINT_DIR)")
        return self._directory

    def _go_on_from(self, restored: Restored | None) -> bool:
        if restored is None:
            return False
        self._position, self._restored_size = restored.position, restored.dataset_size
        if self._position.samples and restored.seed != self._seed:
            logger.warning("training goes on with seed %s of its checkpoint, not %s", restored.seed, self._seed)
        self._seed = restored.seed
        return True

    def save_if_due(self) -> None:
        """Save where `every_seconds` are over; `step` does so by itself."""
        if self._saved is not None and self._saved.due(self._position.iteration):
            self.save()

    def save(self) -> bool:
        """Write a checkpoint of the last step now; whether that was done.

        Only rank 0 does, but of a state that is sharded: then all processes have to call this after the same step.
        """
        if self._saved is None or not self._saved.writes:
            return False
        if self._reporter is not None:
            self._reporter.interrupted()
        size = self._size if self._size is not None else self._restored_size
        return self._saved.save(self._position, size, self._seed)

    @property
    def _unsaved(self) -> bool:
        return self._saved is not None and self._saved.iteration != self._position.iteration

    # --- the samples -----------------------------------------------------------------------------------------------------

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """The epochs that are left of `count`, or until the job's `iterations` are done; the last one is saved.

        Raises ValueError where neither is known.
        """
        if count is None and self._environment.iterations is None:
            raise ValueError("job.epochs(): say how many, or give the job training.iterations ($FLYBALL_ITERATIONS)")
        while (count is None or self._position.epoch < count) and not self.done:
            epoch = self._position.epoch
            yield epoch
            if self._position.epoch == epoch and not self.done:
                self._position = Position(self._position.iteration, epoch + 1, 0)
        self.finish()

    @property
    def done(self) -> bool:
        """Whether the job's `iterations` are done; never where it does not say how many."""
        iterations = self._environment.iterations
        return iterations is not None and self._position.iteration >= iterations

    def loader(
        self,
        dataset: Sequence[T],
        global_batch_size: int | None = None,
        *,
        shuffle: bool = True,
        collate: Callable[[list[T]], Any] = list,
    ) -> Iterator[Any]:
        """What is left of this epoch for this process, in parts of a global batch; one `step` for each.

        The global batch is the job's `training.globalBatchSize` unless it is given. Raises ValueError where neither is, or
        where the dataset is another than the one that this epoch was begun with.
        """
        parts = self.parts(len(dataset), global_batch_size, shuffle=shuffle)
        return self.paired((part, collate([dataset[index] for index in part.indices])) for part in parts)

    def parts(self, size: int, global_batch_size: int | None = None, *, shuffle: bool = True) -> Iterator[Part]:
        """Which samples of a dataset of `size` the rest of this epoch has for this process; for adapters, with `paired`."""
        batch = global_batch_size or self._environment.global_batch_size
        if batch is None or batch < 1:
            raise ValueError(_NO_BATCH_SIZE if batch is None else f"a global batch has 1 sample or more, not {batch}")
        return self._parts(self.order(size, shuffle=shuffle), self._position, batch)

    def order(self, size: int, *, shuffle: bool = True) -> Order:
        """In which order this epoch has the samples of a dataset of `size`.

        Raises ValueError where the epoch was begun on a dataset of another size.
        """
        position = self._position
        if position.samples and self._restored_size not in (None, size):
            raise ValueError(
                f"epoch {position.epoch} was begun on {self._restored_size} samples, the dataset has {size} now: "
                "go on with the same one, or from the beginning in another checkpoint folder"
            )
        self._size = self._restored_size = size
        return Order(size, self._seed, position.epoch, shuffle)

    def _parts(self, order: Order, position: Position, batch: int) -> Iterator[Part]:
        environment = self._environment
        start, iteration = position.samples, position.iteration
        while start < len(order) and (environment.iterations is None or iteration < environment.iterations):
            yield from parts_of(
                order, start, batch, environment.rank, environment.world_size, environment.max_local_batch_size
            )
            start, iteration = start + batch, iteration + 1

    def paired(self, parts: Iterator[tuple[Part, T]]) -> Iterator[T]:
        """The data of each part, for which a `step` is expected. Raises RuntimeError where there was none."""
        for part, data in parts:
            self._part = part
            step = self._step
            step.weight, step.samples, step.completes_batch = part.weight, part.samples, part.completes_batch
            yield data
            if self._part is part:
                raise RuntimeError(
                    "a batch was trained on without `with job.step():` around it; it would be lost at a resize"
                )

    # --- the steps ----------------------------------------------------------------------------------------------------

    def step(self) -> Step:
        """Around the computation of one batch of the loader: its end counts, reports, saves, and leaves where asked to."""
        return self._step

    def _part_done(self) -> None:
        part, self._part = self._part, None
        if self._journal is not None:
            self._journal.part_done(part, self._step.loss, self._position.iteration + 1)
        if part is None:
            self._position = Position(self._position.iteration + 1, self._position.epoch, self._position.samples)
        else:
            if part.samples > self._local_batch:
                self._local_batch = part.samples
            if not part.completes_batch:
                return
            self._position = self._position.after(part.global_samples, self._size or part.global_samples)
        iteration = self._position.iteration
        if self._reporter is not None:
            self._reporter.step_done(iteration, self._local_batch)
        if self.stopping.due(iteration):
            self._leave()
        else:
            self.save_if_due()

    def _leave(self) -> NoReturn:
        if self._reporter is not None:
            self._reporter.report()
        # Of shards there is a checkpoint only where all are at this step.
        together = self.stopping.agreed or not isinstance(self._saved, ShardedState)
        if self._saved is not None and self._unsaved and (together or self._saved.due(self._position.iteration)):
            self.save()
        self.leave()

    # --- for frameworks that have a loop, data and checkpoints of their own --------------------------------------------

    def split_batch(self, global_batch_size: int | None = None) -> tuple[int, int]:
        """How a process makes its share of a global batch: samples at once, and how often so before the optimizer's turn.

        The global batch is the job's `training.globalBatchSize` unless it is given. Raises ValueError where neither is, or
        where it cannot be shared evenly.
        """
        environment = self._environment
        batch = global_batch_size or environment.global_batch_size
        if batch is None:
            raise ValueError(_NO_BATCH_SIZE)
        return even_parts(batch, environment.world_size, environment.max_local_batch_size)

    def part_done(self, part: Part) -> None:
        """A part of a global batch, whose samples are of this epoch's `order`, was trained on: as a `step` does at its end.

        Raises SystemExit where the process is to end: its state is saved then.
        """
        self._part = part
        self._part_done()

    def step_done(self, iteration: int, local_batch_size: int) -> bool:
        """The optimizer has had its turn so many times; whether to save now, and then to `leave`. All processes say so."""
        self._position = Position(iteration, self._position.epoch, self._position.samples)
        if self._reporter is not None:
            self._reporter.step_done(iteration, local_batch_size)
        return self.stopping.due(iteration)

    def interrupted(self) -> None:
        """What came since the last step was no step (an evaluation, a checkpoint): its time counts for none."""
        if self._reporter is not None:
            self._reporter.interrupted()

    def leave(self) -> NoReturn:
        """End this process as one that was asked to end, its state being saved: raises SystemExit with status 143."""
        if self._reporter is not None:
            self._reporter.report()
        self._ended.set()
        raise SystemExit(EXIT_STATUS)

    def finish(self) -> None:
        """Save the last step and report it; called by `epochs` at its end. A second time does nothing."""
        if self._ended.is_set():
            return
        if self._reporter is not None:
            self._reporter.report()
        if self._unsaved:
            self.save()
        self._ended.set()
        self.stopping.leave_sigterm()


def join(*, seed: int = 0, checkpoint_directory: str | None = None) -> Job:
    """Take part in the job that this process is of, as its environment says; call it once, in the main thread.

    `seed` gives the order of the samples. Checkpoints lie in `checkpoint_directory`, or in the job's volume `checkpoint`.
    Raises `flyball.InvalidEnvironment` (a ValueError) for variables that nobody can train by.
    """
    environment = Environment.read(os.environ, os.getppid())
    job = Job(environment, seed=seed, checkpoint_directory=checkpoint_directory)
    job.start()
    return job
