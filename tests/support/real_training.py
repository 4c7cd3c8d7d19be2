"""A training in step, without a framework: processes that fit one number and average their gradients by TCP.

Run as a pod's command. It trains while the file GATE allows it: by how many processes, and up to which step. Rank 0 waits
there, the others for rank 0.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import flyball

SAMPLES = 240
RATE = 0.05


class Ring:
    """Sums over all processes: rank 0 adds up what it is sent, and tells the others. Raises OSError where one is gone."""

    def __init__(self, rank: int, size: int, address: str) -> None:
        host, port = address.split(":")
        self._rank = rank
        if rank == 0:
            listener = socket.create_server(("", int(port)))
            self._peers = [listener.accept()[0].makefile("rwb") for _ in range(size - 1)]
            return
        while True:
            try:
                self._peers = [socket.create_connection((host, int(port))).makefile("rwb")]
                return
            except OSError:  # not there yet, or without a name
                time.sleep(0.02)

    def all_reduce(self, value: float) -> float:
        """The sum over all processes."""
        if self._rank == 0:
            total = value + sum(self._heard())
            self._tell(total)
            return total
        self._tell(value)
        return next(self._heard())

    def _heard(self) -> Iterator[float]:
        for peer in self._peers:
            line = peer.readline()
            if not line:
                raise ConnectionResetError("a process of this training is gone")
            yield float(line)

    def _tell(self, value: float) -> None:
        for peer in self._peers:
            peer.write(f"{value!r}\n".encode())
            peer.flush()


def open_gate(path: Path, world_size: int, until: int) -> None:
    """Let so many processes train, until that step."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps([world_size, until]))
    temporary.rename(path)


def wait_at_gate(path: Path, job: flyball.Job) -> None:
    while not job.stopping.is_asked:
        world_size, until = json.loads(path.read_text())
        if world_size == job.world_size and job.position.iteration < until:
            return
        time.sleep(0.01)


def main(gate: Path) -> None:
    job = flyball.join(seed=5)
    ring = Ring(job.rank, job.world_size, os.environ.get("JAX_COORDINATOR_ADDRESS", "127.0.0.1:0"))
    weight = [0.0]

    def load(state: list[float]) -> None:
        weight[:] = state

    job.register(lambda: list(weight), load)
    for _ in job.epochs():
        for batch in job.loader(range(SAMPLES)):
            if job.rank == 0:
                wait_at_gate(gate, job)
            with job.step() as step:
                errors = [weight[0] - sample / SAMPLES for sample in batch]
                step.weighted(sum(error * error for error in errors) / len(errors))
                gradient = 2 * sum(errors) / len(errors) * step.weight
                weight[0] -= RATE * ring.all_reduce(gradient) / job.world_size


if __name__ == "__main__":
    main(Path(sys.argv[1]))
