"""Training by Hugging Face's Trainer: reported, and stopped where it was asked to; data and checkpoints stay the Trainer's.

job = flyball.join()
arguments = TrainingArguments(folder, **flyball.huggingface.arguments(job))
trainer = Trainer(model, arguments, train_dataset=..., callbacks=[flyball.huggingface.FlyballCallback(job)])
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from flyball.job import Job


class FlyballCallback(TrainerCallback):  # type: ignore[misc]
    """Tells the node's agent of steps; after SIGTERM it has the Trainer save, and ends the process with status 143."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._leaving = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if self._job.step_done(state.global_step, args.per_device_train_batch_size):
            self._leaving = control.should_save = control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._job.interrupted()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._job.interrupted()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._leaving:
            self._job.leave()
        self._job.finish()


def arguments(job: Job, global_batch_size: int | None = None) -> dict[str, int]:
    """Of `TrainingArguments` those that keep the global batch the same at every size, and end where the job does.

    Raises ValueError where the batch cannot be shared evenly (`Job.split_batch`).
    """
    at_once, times = job.split_batch(global_batch_size)
    found = {"per_device_train_batch_size": at_once, "gradient_accumulation_steps": times}
    return found if job.iterations is None else {**found, "max_steps": job.iterations}
