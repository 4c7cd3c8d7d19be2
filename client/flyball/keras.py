"""Training by Keras' `fit`: reported, saved with the client's checkpoints, and stopped where it was asked to.

    job = flyball.join()
    flyball_callback = flyball.keras.FlyballCallback(job, batch_size=32)
    model.fit(x, y, batch_size=32, epochs=10, callbacks=[flyball_callback], initial_epoch=flyball_callback.restore(model))

Of an epoch that was cut off `fit` can only train the whole again; a loop of your own with `job.loader` does not have to.
"""

from __future__ import annotations

from typing import Any

from keras.callbacks import Callback

from flyball.job import Job


class FlyballCallback(Callback):  # type: ignore[misc]
    """Tells the node's agent of steps of `batch_size` samples a process; saves as time goes by and after SIGTERM, when it
    ends the process with status 143."""

    def __init__(self, job: Job, batch_size: int, *, every_seconds: float = 600.0) -> None:
        super().__init__()
        self._job = job
        self._batch_size = batch_size
        self._every_seconds = every_seconds
        self._steps = 0
        self._epoch = 0
        self._leaving = False

    def restore(self, model: Any) -> int:
        """Load the newest checkpoint into a compiled model; the epoch to go on with, for `fit(initial_epoch=...)`."""

        def state_dict() -> dict[str, Any]:
            return {"epoch": self._epoch, "steps": self._steps, "weights": _arrays(model)}

        def load_state_dict(state: dict[str, Any]) -> None:
            self._epoch, self._steps = state["epoch"], state["steps"]
            for variable, array in zip(_variables(model), state["weights"]):
                variable.assign(array)

        self._job.register(state_dict, load_state_dict, every_seconds=self._every_seconds)
        return self._epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._job.interrupted()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1
        if self._job.step_done(self._steps, self._batch_size):
            self._job.save()
            self._leaving = self.model.stop_training = True
        else:
            self._job.save_if_due()

    def on_test_begin(self, logs: Any = None) -> None:
        self._job.interrupted()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._leaving:
            self._epoch = epoch + 1

    def on_train_end(self, logs: Any = None) -> None:
        if self._leaving:
            self._job.leave()
        self._job.finish()


def _variables(model: Any) -> list[Any]:
    """All that training changes, in an order that is always the same."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return [*model.variables, *model.optimizer.variables]


def _arrays(model: Any) -> list[Any]:
    from keras import ops

    return [ops.convert_to_numpy(variable) for variable in _variables(model)]
