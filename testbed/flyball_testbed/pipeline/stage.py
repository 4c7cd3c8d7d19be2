"""Trains a pipeline for the test bench, as a pod's command: one process for each GPU, which stands for one stage.

A process sleeps for as long as the profile says of its computation, run as the plan tells its kernels to, at the clock that
its simulated board has meanwhile, and draws what was measured; between the stages go messages, at the end of an iteration
all wait for each other. Clocks are asked for by Flyball's client, by the plan of the job's spec.pipeline, and by nothing
else. It is the last stages' replicas that come first to their ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import flyball
from flyball import Kernels
from flyball.environment import Environment
from flyball_frontiers.pipeline.profile import BACKWARD, FORWARD, PipelineProfile
from flyball_frontiers.pipeline.schedules import one_f_one_b
from flyball_simulated_gpu.shared import SimulatedNode

from flyball_testbed.pipeline.board import Board, MeasuredComputation

HARDWARE_VARIABLE = "FLYBALL_SIMULATED_GPUS"
GPUS_VARIABLE = "NVIDIA_VISIBLE_DEVICES"


class TrainingTime:
    """The training's own clock, as a board has it: a process that is woken late neither lengthens nor shortens anything."""

    def __init__(self) -> None:
        self.seconds = time.monotonic()

    def __call__(self) -> float:
        return self.seconds


class Stage:
    """One process: a stage of a replica, on a board of its own."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        rank: int,
        board: Board,
        pipeline: flyball.Pipeline,
        now: TrainingTime,
    ) -> None:
        profile = PipelineProfile.from_csv(arguments.profile.read_text(encoding="utf-8"))
        self.stages = profile.stages
        self.replica, self.stage = divmod(rank, profile.stages)
        self._program = one_f_one_b(profile.stages, arguments.microbatches)[self.stage]
        self._profile = profile
        self._computations: dict[str, MeasuredComputation] = {}
        self._board = board
        self._pipeline = pipeline
        self._now = now

    def iteration(self, start: float, links: Links) -> Iterator[dict[str, Any]]:
        """Compute one iteration that begins at `start`; a line for each computation."""
        at = start
        for step in self._program:
            at = self._now.seconds = max(at, links.receive(step.instruction))
            with self._pipeline.computation(step.instruction, step.microbatch) as planned:
                name = named(step.instruction, planned.kernels)
                ran = self._board.compute(self._measured(name), at)
                at = self._now.seconds = ran.end
            links.send(step.instruction, at)
            yield {
                "instruction": step.instruction,
                "microbatch": step.microbatch,
                "start": ran.start,
                "end": ran.end,
                "megahertz": ran.clock_megahertz,
                "degree": self._pipeline.straggler_degree,
                "ran": name,
            }

    def _measured(self, name: str) -> MeasuredComputation:
        if name not in self._computations:
            self._computations[name] = MeasuredComputation(self._profile.of(self.stage, name))
        return self._computations[name]


def named(instruction: str, kernels: Mapping[str, Kernels] | None) -> str:
    """What a computation is in the profile: `forward`, or with its kernels as it was told `forward attention=12@3`.

    That is the communication of the partition `attention` on 12 SMs, launched together with the fourth kernel.
    """
    schedules = (f"{name}={each.communication_sms}@{each.launch_kernel}" for name, each in (kernels or {}).items())
    return " ".join((instruction, *schedules))


class Links:
    """What a stage gets of its neighbours and gives them: when activations and gradients are there."""

    def __init__(self, pipes: dict[tuple[str, int], tuple[Connection, Connection]], stage: int, last: int) -> None:
        # A forward pass goes from stage s to s + 1, a backward pass from s + 1 to s: `pipes` are named by s.
        before, after = stage - 1, stage
        self._in = {
            FORWARD: pipes[FORWARD, before][0] if stage > 0 else None,
            BACKWARD: pipes[BACKWARD, after][0] if stage < last else None,
        }
        self._out = {
            FORWARD: pipes[FORWARD, after][1] if stage < last else None,
            BACKWARD: pipes[BACKWARD, before][1] if stage > 0 else None,
        }

    def receive(self, instruction: str) -> float:
        """When what the computation needs was there; long ago where it needs nothing."""
        pipe = self._in[instruction]
        return float("-inf") if pipe is None else float(pipe.recv())

    def send(self, instruction: str, at: float) -> None:
        pipe = self._out[instruction]
        if pipe is not None:
            pipe.send(at)


def run_stage(arguments: argparse.Namespace, rank: int, world_size: int, links: Links, hub: Connection) -> None:
    """One stage's process, from its first iteration to its last."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    stages = PipelineProfile.from_csv(arguments.profile.read_text(encoding="utf-8")).stages
    uuid = os.environ[GPUS_VARIABLE].split(",")[rank]
    with SimulatedNode.open(os.environ[HARDWARE_VARIABLE]) as node, journal_of(arguments.journal, rank) as journal:
        now = TrainingTime()
        job = flyball.Job(Environment.read(os.environ, os.getppid()), monotonic=now)
        job.start()
        board = Board(node.device(uuid))
        measure = [int(clock) for clock in arguments.measure.split(",") if clock]
        pipeline = job.pipeline(
            stage=rank % stages, replica=rank // stages,
            measure=measure or None, profile=str(arguments.measured) if measure else "",
        )  # fmt: skip
        stage = Stage(arguments, rank, board, pipeline, now)
        journal({"replica": stage.replica, "stage": stage.stage, "gpu": uuid})
        hub.send(time.monotonic())
        at = now.seconds = float(hub.recv())
        for iteration in range(arguments.iterations):
            before, joules, plan = at, board.joules, pipeline.plan
            degree = pipeline.straggler_degree
            for line in stage.iteration(at, links):
                at = line["end"]
                journal({"iteration": iteration, **line})
            own_end = at
            with pipeline.synchronize():
                hub.send(at)
                at = now.seconds = float(hub.recv())
            journal(
                {
                    "iteration": iteration,
                    "began": before,
                    "computed": own_end,
                    "ended": at,
                    "joules": board.joules - joules,
                    "planned_seconds": None if plan is None else plan.seconds,
                    "planned_joules": None if plan is None else plan.joules,
                    "degree": degree,
                    "late": time.monotonic() - at,
                }
            )
        job.finish()


@contextlib.contextmanager
def journal_of(folder: Path, rank: int) -> Iterator[Any]:
    """What writes one line of a rank's journal."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{rank:05d}.jsonl").open("w", encoding="utf-8", buffering=1) as file:

        def write(line: dict[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")

        yield write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flyball_testbed.pipeline.stage", description=__doc__)
    parser.add_argument("--profile", type=Path, required=True, help="CSV: stage,instruction,frequency,time,energy")
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--journal", type=Path, required=True, help="folder; a file for each process")
    parser.add_argument(
        "--measure", default="", help="clocks in MHz, by commas: run by no plan, and measure the stages"
    )
    parser.add_argument("--measured", type=Path, default=Path(), help="the folder for what is measured")
    arguments = parser.parse_args()
    gpus = os.environ.get(GPUS_VARIABLE, "").split(",")
    stages = PipelineProfile.from_csv(arguments.profile.read_text(encoding="utf-8")).stages
    if len(gpus) % stages:
        print(f"{len(gpus)} GPUs are no whole number of pipelines of {stages} stages", file=sys.stderr)
        return 2
    context = get_context("fork")
    hubs, processes = [], []
    for replica in range(len(gpus) // stages):
        pipes = {
            (what, place): context.Pipe(duplex=False) for what in (FORWARD, BACKWARD) for place in range(stages - 1)
        }
        for stage in range(stages):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=run_stage,
                args=(arguments, replica * stages + stage, len(gpus), Links(pipes, stage, stages - 1), theirs),
                daemon=True,
            )
            process.start()
            theirs.close()
            hubs.append(ours)
            processes.append(process)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for _ in range(arguments.iterations + 1):
            ended = [hub.recv() for hub in hubs]
            for hub in hubs:
                hub.send(max(ended))
        for process in processes:
            process.join()
    except (EOFError, BrokenPipeError):
        pass  # a stage has died: none can go on without it
    finally:
        for process in processes:
            process.kill()  # the client hears SIGTERM, and lets a step end that never comes
            process.join()
    return 0 if all(process.exitcode == 0 for process in processes) else 1


if __name__ == "__main__":
    sys.exit(main())
