"""Training by Lightning's Trainer: reported, and stopped where it was asked to; data stay Lightning's.

job = flyball.join()
flyball_callback = flyball.lightning.FlyballCallback(job, "/checkpoint/last.ckpt")
trainer = Trainer(callbacks=[flyball_callback], **flyball.lightning.arguments(job))
trainer.fit(model, data, ckpt_path=flyball_callback.last_checkpoint)
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from flyball.job import Job


class FlyballCallback(Callback):  # type: ignore[misc]
    """Tells the node's agent of steps; after SIGTERM it saves into `checkpoint`, and ends the process with status 143.

    It also saves there every `every_steps` steps (0: never), for what a crash would lose, and at the end.
    `local_batch_size` is what a process computes at once, by default the job's share of its global batch.
    """

    def __init__(
        self, job: Job, checkpoint: str, local_batch_size: int | None = None, *, every_steps: int = 500
    ) -> None:
        self._job = job
        self._checkpoint = checkpoint
        self._every_steps = every_steps
        self._local_batch_size = job.split_batch()[0] if local_batch_size is None else local_batch_size
        self._steps = -1
        self._leaving = False
        self._on_sigterm: Any = None

    @property
    def last_checkpoint(self) -> str | None:
        """What to give `Trainer.fit(ckpt_path=...)`: the checkpoint that there is, or None."""
        return self._checkpoint if os.path.exists(self._checkpoint) else None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._on_sigterm = signal.getsignal(signal.SIGTERM)  # ours, before Lightning puts its own in front of it

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._hear_sigterm_alone()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._hear_sigterm_alone()
        self._steps = trainer.global_step

    def _hear_sigterm_alone(self) -> None:
        """Have SIGTERM ask the job and nothing else, until the training ends and Lightning restores what there was.

        Lightning's handler (2.5) has all processes compute something together, in the middle of whatever each is at: where
        they hear it at different steps they wait for each other until they are killed, and nothing is saved.
        """
        if callable(self._on_sigterm) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._steps:
            return  # the optimizer has not had its turn: gradients are being accumulated
        self._steps = trainer.global_step
        if self._job.step_done(self._steps, self._local_batch_size):
            self._save(trainer)
            self._leaving = trainer.should_stop = True
        elif self._every_steps and self._steps % self._every_steps == 0:  # the same step in all processes
            self._save(trainer)
            self._job.interrupted()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._job.interrupted()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if not self._leaving:
            self._save(trainer)
            self._job.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Until it trains, Lightning hears SIGTERM itself, and would end with status 0 and nothing saved."""
        if isinstance(exception, SIGTERMException):
            if not self._leaving:
                self._save(trainer)
            self._job.leave()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._leaving and stage == "fit":
            self._job.leave()

    def _save(self, trainer: Any) -> None:
        """Under another name first: what a crash leaves of it is never taken for a checkpoint."""
        unfinished = f"{self._checkpoint}.unfinished"
        trainer.save_checkpoint(unfinished)
        if trainer.is_global_zero:
            os.replace(unfinished, self._checkpoint)


def arguments(job: Job, global_batch_size: int | None = None) -> dict[str, int]:
    """Of the Trainer's arguments those that keep the global batch the same at every size, and end where the job does.

    The loader's batch is `job.split_batch()[0]`. Raises ValueError where the batch cannot be shared evenly.
    """
    found = {"accumulate_grad_batches": job.split_batch(global_batch_size)[1]}
    here = job.local_world_size
    if here is not None:
        # Left to itself Lightning takes what this pod has for all that there is, and each pod trains alone.
        found |= {"devices": here, "num_nodes": job.world_size // here}
    return found if job.iterations is None else {**found, "max_steps": job.iterations}
