"""The job for PyTorch: its process group, its data loader, and modules and optimizers as the state."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from torch.utils.data import DataLoader

from flyball.environment import Environment, InvalidEnvironment, start_token
from flyball.job import Job
from flyball.sampling import Part

logger = logging.getLogger("flyball")

# Options of a DataLoader that say what is in a batch.
_OF_THE_JOB = {"batch_size", "sampler", "batch_sampler", "drop_last"}


class TorchJob(Job):
    """A `flyball.Job` whose loader is a `torch.utils.data.DataLoader`, and whose state are objects with a `state_dict`."""

    @property
    def device(self) -> torch.device:
        """This process' GPU, or the CPU."""
        return torch.device("cuda", self._environment.local_rank) if torch.cuda.is_available() else torch.device("cpu")

    def _wait_for_device(self) -> None:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize(self.device)

    def register_state(self, *, every_seconds: float = 600.0, kept: int = 2, **objects: Any) -> bool:
        """`register` with modules, optimizers, schedulers: whatever has `state_dict` and `load_state_dict`, by any name.

        Every process has to have the same state, as under DistributedDataParallel; `register_sharded_state` is for FSDP.
        """
        bare = {name: getattr(what, "module", what) for name, what in objects.items()}

        def load(state: dict[str, Any]) -> None:
            for name, what in bare.items():
                what.load_state_dict(state[name])

        return self.register(
            lambda: {name: what.state_dict() for name, what in bare.items()},
            load,
            every_seconds=every_seconds,
            kept=kept,
            write=lambda path, state: torch.save(state, path),
            # From the job's own volume, as the script's code is. With `weights_only` much that can be saved, as a NumPy
            # number for the best metric so far, could not be loaded, which nobody would see before the first resize.
            read=lambda path: torch.load(path, map_location=self.device, weights_only=False),
        )

    def register_sharded_state(
        self, model: torch.nn.Module, optimizer: Any, *, every_seconds: float = 600.0, kept: int = 2
    ) -> bool:
        """`register_sharded` with a model and its optimizer (or several) that are sharded over the processes, as by FSDP.

        By `torch.distributed.checkpoint`, which shards anew what another number of processes has written. Wrap the model
        first.
        """
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        def state() -> dict[str, Any]:
            return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))

        def read(folder: str) -> None:
            loaded = state()
            checkpoint.load(loaded, checkpoint_id=folder)
            set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])

        return self.register_sharded(
            lambda folder: checkpoint.save(state(), checkpoint_id=folder), read, every_seconds=every_seconds, kept=kept
        )

    def loader(
        self, dataset: Any, global_batch_size: int | None = None, *, shuffle: bool = True, **options: Any
    ) -> Iterator[Any]:
        """As `flyball.Job.loader`; further options are the DataLoader's (`num_workers`, `collate_fn`, `pin_memory`).

        Raises ValueError for those by which another than the job would say what is in a batch.
        """
        taken = sorted(_OF_THE_JOB.intersection(options))
        if taken:
            raise ValueError(
                f"job.loader(): {', '.join(taken)} is the job's to say: give the batch of all processes, and shuffle"
            )
        issued: deque[Part] = deque()

        def batches() -> Iterator[list[int]]:
            for part in self.parts(len(dataset), global_batch_size, shuffle=shuffle):
                issued.append(part)
                yield list(part.indices)

        # Workers are given batches ahead of their turn, but they come back in order.
        data = DataLoader(dataset, batch_sampler=_Once(batches()), **options)
        return self.paired((issued.popleft(), batch) for batch in data)


class _Once:
    """A batch sampler from an iterator."""

    def __init__(self, batches: Iterator[list[int]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches


def join(*, seed: int = 0, checkpoint_directory: str | None = None, backend: str | None = None) -> TorchJob:
    """`flyball.join`, and PyTorch's process group where there are several processes (NCCL on GPUs, gloo elsewhere).

    Raises InvalidEnvironment where the job has several pods and nobody, as torchrun, says which process this is.
    """
    environment = Environment.read(os.environ, os.getppid())
    if not os.environ.get("RANK"):
        _miss_torchrun(environment.world_size, os.environ.get("FLYBALL_LOCAL_GPUS", "1"))
    if environment.world_size > 1:
        if not torch.distributed.is_initialized():
            if torch.cuda.is_available():
                torch.cuda.set_device(environment.local_rank)
            torch.distributed.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"))
        if not environment.incarnation:
            token = [start_token()]
            torch.distributed.broadcast_object_list(token)  # parents of processes on several nodes differ
            environment = environment.begun_as(token[0])
    job = TorchJob(environment, seed=seed, checkpoint_directory=checkpoint_directory)
    job.start()
    return job


def _miss_torchrun(pods: int, gpus: str) -> None:
    """Say of a pod of so many GPUs that was not started by torchrun what comes of that."""
    if pods > 1 and not torch.distributed.is_initialized():
        raise InvalidEnvironment(
            f"the job has {pods} pods and $RANK is not set: start the script by torchrun, a process for each GPU"
        )
    if pods == 1 and gpus != "1":
        logger.warning(
            "this is one process in a pod of %s GPUs, and job.device one of them: torchrun makes a process for each",
            gpus,
        )
