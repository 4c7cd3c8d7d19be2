"""One simulated job in motion: how fast it goes, what it draws, what it has left."""

from __future__ import annotations

import math
from enum import Enum, auto

from flyball_planner.policies.view import JobView, Performance

from flyball_simulator.cluster.nodes import Cells
from flyball_simulator.workloads.workload import SimulatedJob

SHARD_SECONDS = 2.0  # ElasticFlow's measured cost of a re-shard: 2 s, and 2 s for each doubling of the workers
PROCESS_SECONDS = 27.0  # and what starting the processes again adds


class Phase(Enum):
    """What a job is doing."""

    WAITING = auto()
    STARTING = auto()  # has GPUs, makes no progress: nodes boot, processes start
    MEASURING = auto()  # runs through the clocks, which counts as work
    RUNNING = auto()
    DONE = auto()


def restart_seconds(gpus: int) -> float:
    """What a resize to so many GPUs costs a job: re-shard and new processes (simulator design, ElasticFlow's figures)."""
    return SHARD_SECONDS + SHARD_SECONDS * (math.log2(gpus) + 1.0) + PROCESS_SECONDS


class Run:
    """A job's state. Between two calls of `advance` everything is constant: iterations a second, watts of its GPUs.

    `limit_watts` bounds the watts of all its GPUs (infinite: no limit is set). `version` counts changes of motion, so that
    an event scheduled for an older motion is recognised as outdated. At `saved_at` it last saved itself, with
    `saved_remaining` iterations to go; `lost_iterations` had to be done twice.
    """

    __slots__ = (
        "cells",
        "checkpoint_seconds",
        "completed_seconds",
        "done_iterations",
        "gpu_seconds",
        "gpus",
        "index",
        "iterations_per_second",
        "job",
        "joules",
        "last_gpus",
        "limit_watts",
        "lost_iterations",
        "measured",
        "measuring_since",
        "phase",
        "ran",
        "remaining",
        "saved_at",
        "saved_remaining",
        "time",
        "truth",
        "version",
        "view",
        "watts",
    )

    def __init__(
        self, index: int, job: SimulatedJob, truth: Performance, view: JobView, checkpoint_seconds: float = math.inf
    ) -> None:
        self.index = index
        self.job = job
        self.truth = truth
        self.view = view
        self.cells: Cells = ()
        self.gpus = self.last_gpus = 0
        self.phase = Phase.WAITING
        self.time = job.submit_seconds
        self.remaining = self.saved_remaining = job.iterations
        self.checkpoint_seconds = checkpoint_seconds
        self.saved_at = 0.0
        self.done_iterations = self.lost_iterations = 0.0
        self.iterations_per_second = 0.0
        self.watts = 0.0
        self.limit_watts = math.inf
        self.ran = False
        self.measured: frozenset[int] = frozenset()
        self.measuring_since = 0.0
        self.gpu_seconds = 0.0
        self.joules = 0.0
        self.completed_seconds: float | None = None
        self.version = 0

    @property
    def movable(self) -> bool:
        return self.phase is Phase.RUNNING

    def advance(self, now: float) -> None:
        """Live up to `now`."""
        elapsed = now - self.time
        if elapsed > 0.0:
            if self.gpus:
                self._save(now)
            self.time = now
            if self.gpus:
                done = self.iterations_per_second * elapsed
                self.remaining -= done
                self.done_iterations += done
                self.gpu_seconds += self.gpus * elapsed
                self.joules += self.watts * elapsed
                self.view.remaining_iterations = max(0.0, self.remaining)
                self.view.attained_gpu_seconds = self.gpu_seconds
        elif elapsed < 0.0:
            raise AssertionError(f"job {self.job.job_id} is at {self.time} s, and cannot go back to {now} s")

    def _save(self, now: float) -> None:
        """The last checkpoint up to `now`, at the present speed."""
        if now - self.saved_at >= self.checkpoint_seconds:
            self.saved_at += math.floor((now - self.saved_at) / self.checkpoint_seconds) * self.checkpoint_seconds
            self.saved_remaining = self.remaining - self.iterations_per_second * (self.saved_at - self.time)

    def save(self) -> None:
        """A checkpoint now; `advance` must have come before."""
        self.saved_at, self.saved_remaining = self.time, self.remaining

    def fall_back(self) -> float:
        """Lose what was done since the last checkpoint, and say how many GPU-seconds that was; still on its GPUs."""
        self.lost_iterations += self.saved_remaining - self.remaining
        self.remaining = self.view.remaining_iterations = self.saved_remaining
        return self.gpus * (self.time - self.saved_at)

    def move(self, phase: Phase, iterations_per_second: float, watts: float) -> None:
        """A new motion from now on; `advance` must have come before."""
        self.phase = phase
        self.iterations_per_second = iterations_per_second
        self.watts = watts
        self.version += 1
        self.view.resizable = phase not in (Phase.STARTING, Phase.MEASURING)

    def seconds_left(self) -> float:
        """Until the last iteration, if nothing changes."""
        return max(0.0, self.remaining) / self.iterations_per_second if self.iterations_per_second > 0 else math.inf

    def speed_at(self, clock: int) -> tuple[float, float]:
        """(iterations per second, watts of all GPUs) in truth at a clock position, under the limit.

        A GPU whose limit is lower than what the clock would draw goes down the clocks until it fits; at the lowest clock
        the rest is taken from its time.
        """
        row = self.truth.position[self.gpus]
        watts = self.truth.watts_rows[row]
        seconds = self.truth.seconds_rows[row]
        while watts[clock] > self.limit_watts and clock > 0:
            clock -= 1
        share = min(1.0, self.limit_watts / watts[clock])
        return share / seconds[clock], share * watts[clock]

    def speed_through_clocks(self) -> tuple[float, float]:
        """(iterations per second, watts) on average while every clock that the limit allows gets the same time."""
        row = self.truth.position[self.gpus]
        allowed = [clock for clock, watts in enumerate(self.truth.watts_rows[row]) if watts <= self.limit_watts]
        if not allowed:
            return self.speed_at(0)
        pace = sum(1.0 / self.truth.seconds_rows[row][clock] for clock in allowed) / len(allowed)
        return pace, sum(self.truth.watts_rows[row][clock] for clock in allowed) / len(allowed)
