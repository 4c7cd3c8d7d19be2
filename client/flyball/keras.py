"""Training by Keras' `fit`: each sample of an epoch exactly once, however often it is resized, stopped and started.

    job = flyball.keras.join()
    batches = flyball.keras.Batches(job, len(x), lambda places: (x[places], y[places]))
    model.compile(..., optimizer=SGD(0.1, gradient_accumulation_steps=batches.accumulated))
    flyball_callback = flyball.keras.FlyballCallback(job, batches)
    flyball_callback.restore(model)
    for epochs in batches.fits(10):
        model.fit(batches, **epochs, shuffle=False, callbacks=[flyball_callback])

Several processes train together on JAX, by Keras' own data parallelism; one trains on any of Keras' backends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Callable

import keras
import numpy
from keras.callbacks import Callback

import flyball.job
from flyball.environment import Environment
from flyball.job import Job
from flyball.sampling import Part


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """What is left of an epoch for this process, for `fit`: arrays of one length always, and the samples' weights.

    `load(places)` gives the samples at these places of a dataset of `size`: inputs and targets as `fit` has them of a
    PyDataset, each array with a first axis of their number. The job shuffles. Where the global batch (the job's
    `training.globalBatchSize` unless it is given) is more than a process computes at once, `accumulated` is how often it
    computes before the optimizer's turn (Keras' LearningRateSchedule counts these computations). The last batch of an epoch
    is filled up with samples that weigh nothing. Raises ValueError where the global batch is not known, or cannot be shared
    evenly.
    """

    def __init__(
        self,
        job: Job,
        size: int,
        load: Callable[[list[int]], tuple[Any, ...]],
        global_batch_size: int | None = None,
        *,
        shuffle: bool = True,
    ) -> None:
        super().__init__()
        self._job = job
        self._size = size
        self._load = load
        self._shuffle = shuffle
        self._at_once, times = job.split_batch(global_batch_size)
        self._parts = times
        self._batch = self._at_once * times * job.world_size
        self._last: int | None = None
        self.begin_epoch()

    @property
    def accumulated(self) -> int | None:
        """For the optimizer's `gradient_accumulation_steps`; None where each computation is a whole step."""
        return self._parts if self._parts > 1 else None

    def fits(self, epochs: int | None = None) -> Iterator[dict[str, int]]:
        """`initial_epoch` and `epochs` of each `fit` to come: the rest of an epoch that was cut off is one of its own.

        Until so many epochs are done, or the job's `iterations`; the last step is saved. Raises ValueError where neither is
        known, or the dataset is not the one that the epoch was begun on.
        """
        job = self._job
        if epochs is None and job.iterations is None:
            raise ValueError("batches.fits(): say how many epochs, or give the job training.iterations")
        whole = -(-self._size // self._batch)
        while not job.done and (epochs is None or job.position.epoch < epochs):
            self.begin_epoch()
            first, last = job.position.epoch, epochs
            if job.iterations is not None:
                can_end = first + (job.iterations - job.position.iteration) // whole
                last = can_end if last is None else min(last, can_end)
            if job.position.samples or last is None or last <= first:
                last = first + 1
            yield {"initial_epoch": first, "epochs": last}
            if not job.done and job.position.epoch < last:
                break  # something else has ended it, as EarlyStopping does
        job.finish()

    def begin_epoch(self) -> None:
        """What comes is the rest of the job's present epoch."""
        self._order = self._job.order(self._size, shuffle=self._shuffle)
        self._start = self._job.position.samples
        self._last = None

    def __len__(self) -> int:
        position, limit = self._job.position, self._job.iterations
        steps = -(-(self._size - position.samples) // self._batch)
        return self._parts * (steps if limit is None else min(steps, limit - position.iteration))

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        if number not in (0, None if self._last is None else self._last + 1):
            raise ValueError("batches have an order of their own, shuffled by the job: give fit(shuffle=False)")
        self._last = number
        part = self.part(number)
        missing = self._at_once - part.samples
        inputs, targets = self._load([*part.indices[: part.samples], *[part.indices[0]] * missing])
        weights = numpy.zeros(self._at_once, "float32")
        weights[: part.samples] = self._batch / part.global_samples
        return inputs, targets, weights

    def part(self, number: int) -> Part:
        """The samples of this process' computation of this number in what is left of the epoch."""
        step, turn = divmod(number, self._parts)
        start = self._start + step * self._batch
        taken = min(self._batch, self._size - start)
        first = (self._job.rank * self._parts + turn) * self._at_once
        places = range(start + min(first, taken), start + min(first + self._at_once, taken))
        indices = tuple(self._order[place] for place in places) or (self._order[start],)
        weight = len(places) * self._job.world_size / taken
        return Part(indices, len(places), weight, turn == self._parts - 1, taken)


class FlyballCallback(Callback):  # type: ignore[misc]
    """Counts and reports the steps of `fit(batches, ...)`; saves as time goes by and after SIGTERM, then ends the process
    with status 143, as all of the job's after the same step."""

    def __init__(self, job: Job, batches: Batches, *, every_seconds: float = 600.0) -> None:
        super().__init__()
        self._job = job
        self._batches = batches
        self._every_seconds = every_seconds

    def restore(self, model: Any) -> bool:
        """Load the newest checkpoint into a compiled model, and save it from now on; whether there was one.

        Raises ValueError where the model was not compiled for the job's batches.
        """
        if model.steps_per_execution != 1:
            raise ValueError(
                f"compile with steps_per_execution=1, not {model.steps_per_execution!r}: each step is counted"
            )
        accumulated = model.optimizer.gradient_accumulation_steps or 1
        if accumulated != (self._batches.accumulated or 1):
            raise ValueError(
                f"give the optimizer gradient_accumulation_steps={self._batches.accumulated}, not {accumulated}: so many "
                "computations make a global batch"
            )

        state = _ModelState(model, accumulated)
        found = self._job.register(state.read, state.check, every_seconds=self._every_seconds)
        state.write()
        return found

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._batches.begin_epoch()
        self._job.interrupted()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._job.part_done(self._batches.part(batch))

    def on_test_begin(self, logs: Any = None) -> None:
        self._job.interrupted()


class _ModelState:
    """All that training changes of a model, whatever number of computations its steps have: between steps Keras' sums of
    gradients say nothing."""

    def __init__(self, model: Any, accumulated: int) -> None:
        optimizer = model.optimizer
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self._computations, *others = optimizer.variables  # which the optimizer counts, and not its steps
        self._accumulated = accumulated
        self._variables = [*model.variables, *(each for each in others if "gradient_accumulator" not in each.path)]
        self._checked: dict[str, Any] | None = None

    def read(self) -> dict[str, Any]:
        steps = int(keras.ops.convert_to_numpy(self._computations)) // self._accumulated
        return {"steps": steps, "arrays": [keras.ops.convert_to_numpy(variable) for variable in self._variables]}

    def check(self, state: dict[str, Any]) -> None:
        """Keep a state for `write`. Raises ValueError where it is of something else."""
        found, wanted = ([tuple(each.shape) for each in arrays] for arrays in (state["arrays"], self._variables))
        if found != wanted:
            raise ValueError(f"the checkpoint is of another model or optimizer, of shapes {found}, not {wanted}")
        self._checked = state

    def write(self) -> None:
        """Give the model the state that was checked, if there was one. On JAX no process can do so before the others."""
        if self._checked is not None:
            self._computations.assign(self._checked["steps"] * self._accumulated)
            for variable, array in zip(self._variables, self._checked["arrays"]):
                variable.assign(array)


def join(*, seed: int = 0, checkpoint_directory: str | None = None) -> Job:
    """`flyball.join`, and Keras' data parallelism where there are several processes. Call it before a model is made.

    Keras' random numbers go by `seed` then, too: all processes begin with the same weights. Raises RuntimeError where
    there are several and Keras runs on another backend than JAX, the only one on which it is parallel over processes.
    """
    environment = Environment.read(os.environ, os.getppid())
    several = environment.world_size > 1
    if several and keras.backend.backend() != "jax":
        raise RuntimeError(
            f"{environment.world_size} processes cannot train together on Keras' backend {keras.backend.backend()}: set "
            "KERAS_BACKEND=jax"
        )
    if several:
        from flyball.jax import join as join_on_jax

        job: Job = join_on_jax(seed=seed, checkpoint_directory=checkpoint_directory)
        devices = keras.distribution.list_devices()
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False))
    else:
        job = flyball.job.join(seed=seed, checkpoint_directory=checkpoint_directory)
    keras.utils.set_random_seed(seed)
    return job
