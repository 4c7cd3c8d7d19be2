"""The pipeline schedules: in which order each GPU computes which microbatch of which part of the model.

1F1B is PipeDream's synchronous schedule, GPipe's runs all forwards first, the interleaved one is Megatron-LM's, early
recomputation is Merak's (Perseus, section 4.4 names all four).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from flyball_frontiers.pipeline.graph import ComputationGraph, GraphError, Operation
from flyball_frontiers.pipeline.profile import (
    BACKWARD,
    FORWARD,
    INSTRUCTIONS,
    LOAD,
    RECOMPUTE,
    RECOMPUTE_BACKWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    OperatingPoint,
    PipelineProfile,
    ProfileError,
)


class Schedule(StrEnum):
    """The schedules that have a name; any other is a graph of its own (`graph_from_json`)."""

    ONE_F_ONE_B = "1f1b"
    GPIPE = "gpipe"
    INTERLEAVED = "interleaved-1f1b"
    EARLY_RECOMPUTE = "early-recompute-1f1b"


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of a GPU's program: `chunk` is the part of the model (the profile's stage) it runs."""

    instruction: str
    microbatch: int
    chunk: int


Program = tuple[Step, ...]


def pipeline_graph(
    profile: PipelineProfile, schedule: Schedule, microbatches: int, *, chunks_per_gpu: int = 1
) -> ComputationGraph:
    """The graph of one iteration under a named schedule; the profile's stages are the parts of the model.

    `chunks_per_gpu` > 1 is for the interleaved schedule: profile stages s, s + G, s + 2G ... run on GPU s of
    G = stages / chunks_per_gpu. Raises GraphError where the numbers do not fit, ProfileError where an instruction was
    not measured.
    """
    if microbatches < 1:
        raise GraphError(f"microbatches must be at least 1, not {microbatches}")
    for stage, instruction in profile.points:
        if instruction not in INSTRUCTIONS:
            near = difflib.get_close_matches(instruction, INSTRUCTIONS, 1)
            first = profile.first_rows.get((stage, instruction))
            raise ProfileError(
                (f"{first}: " if first else "")
                + f"stage {stage} has rows of {instruction!r}, which no schedule runs: wanted "
                + (f"{near[0]}?" if near else f"one of {', '.join(INSTRUCTIONS)}")
            )
    if schedule is not Schedule.INTERLEAVED and chunks_per_gpu != 1:
        raise GraphError(f"chunks_per_gpu is {chunks_per_gpu}: only {Schedule.INTERLEAVED} runs several on one GPU")
    if schedule is Schedule.INTERLEAVED:
        programs = interleaved(profile.stages, microbatches, chunks_per_gpu)
    else:
        builder = {
            Schedule.ONE_F_ONE_B: one_f_one_b,
            Schedule.GPIPE: gpipe,
            Schedule.EARLY_RECOMPUTE: early_recompute,
        }[schedule]
        programs = builder(profile.stages, microbatches)
    return graph_of_programs(profile, programs)


def one_f_one_b(stages: int, microbatches: int, ahead: Sequence[int] = ()) -> tuple[Program, ...]:
    """1F1B: stage s runs S - s - 1 forwards first (and `ahead[s]` more, EnvPipe section 4.3), then one and one."""
    programs: list[Program] = []
    for stage in range(stages):
        warm_up = min(microbatches, stages - stage - 1 + (ahead[stage] if ahead else 0))
        steps = [Step(FORWARD, microbatch, stage) for microbatch in range(warm_up)]
        for microbatch in range(microbatches):
            if microbatch + warm_up < microbatches:
                steps.append(Step(FORWARD, microbatch + warm_up, stage))
            steps.append(Step(BACKWARD, microbatch, stage))
        programs.append(tuple(steps))
    return tuple(programs)


def gpipe(stages: int, microbatches: int) -> tuple[Program, ...]:
    """GPipe: all forwards, then all backwards, in the order of the microbatches."""
    return tuple(
        tuple(Step(what, microbatch, stage) for what in (FORWARD, BACKWARD) for microbatch in range(microbatches))
        for stage in range(stages)
    )


def early_recompute(stages: int, microbatches: int) -> tuple[Program, ...]:
    """Merak's 1F1B: activations are recomputed with the backward pass in the steady state, and ahead of it, while its
    gradient is still on the way, where no forward is left to run between.

    The last stage has no gradient to wait for, and recomputes nothing apart.
    """
    programs: list[Program] = []
    for program in one_f_one_b(stages, microbatches):
        steps: list[Step] = []
        for step in program:
            if step.instruction == FORWARD:
                steps.append(step)
            elif step.microbatch <= microbatches - stages + step.chunk:
                steps.append(Step(RECOMPUTE_BACKWARD, step.microbatch, step.chunk))
            else:
                steps.append(Step(RECOMPUTE, step.microbatch, step.chunk))
                steps.append(step)
        programs.append(tuple(steps))
    return tuple(programs)


def interleaved(chunks: int, microbatches: int, chunks_per_gpu: int) -> tuple[Program, ...]:
    """Megatron-LM's interleaved 1F1B: each GPU holds several parts of the model, microbatches go round in groups."""
    if chunks_per_gpu < 1 or chunks % chunks_per_gpu:
        raise GraphError(f"{chunks} stages do not divide into {chunks_per_gpu} on each GPU")
    if chunks_per_gpu == 1:
        return one_f_one_b(chunks, microbatches)
    gpus = chunks // chunks_per_gpu
    if microbatches % gpus:
        raise GraphError(f"the interleaved schedule needs microbatches in multiples of its {gpus} GPUs: {microbatches}")
    total = microbatches * chunks_per_gpu

    def step(instruction: str, gpu: int, turn: int) -> Step:
        group, within = divmod(turn, gpus * chunks_per_gpu)
        part = within // gpus if instruction == FORWARD else chunks_per_gpu - 1 - within // gpus
        return Step(instruction, group * gpus + within % gpus, part * gpus + gpu)

    programs: list[Program] = []
    for gpu in range(gpus):
        warm_up = min(total, 2 * (gpus - gpu - 1) + (chunks_per_gpu - 1) * gpus)
        steps = [step(FORWARD, gpu, turn) for turn in range(warm_up)]
        for turn in range(total):
            if turn + warm_up < total:
                steps.append(step(FORWARD, gpu, turn + warm_up))
            steps.append(step(BACKWARD, gpu, turn))
        programs.append(tuple(steps))
    return tuple(programs)


def graph_of_programs(profile: PipelineProfile, programs: Sequence[Program]) -> ComputationGraph:
    """The graph of the GPUs' programs: activations go from part to part, gradients back.

    Where the profile has `load` rows for a stage, a constant-time load comes before each of its forwards. Where it has
    `send_forward` rows, each of its activations is under way for as long before the next part can start, and so its
    gradients with `send_backward`; a transfer occupies no GPU.
    """
    operations: list[Operation] = []
    places: dict[tuple[str, int, int], int] = {}
    rows: list[tuple[int, ...]] = []
    known: dict[tuple[int, str], tuple[OperatingPoint, ...]] = {}
    for gpu, program in enumerate(programs):
        row: list[int] = []
        for step in program:
            instructions = [step.instruction]
            if step.instruction == FORWARD and profile.has(step.chunk, LOAD):
                instructions.insert(0, LOAD)
            for instruction in instructions:
                row.append(len(operations))
                if (step.chunk, instruction) not in known:
                    known[step.chunk, instruction] = profile.of(step.chunk, instruction)
                points = known[step.chunk, instruction]
                operations.append(Operation(instruction, step.microbatch, gpu, points, chunk=step.chunk))
            direction = BACKWARD if step.instruction == RECOMPUTE_BACKWARD else step.instruction
            places[direction, step.chunk, step.microbatch] = row[-1]
        rows.append(tuple(row))
    last = max(chunk for _, chunk, _ in places)
    dependencies: list[tuple[int, int]] = []

    def depend(before: int, after: int, transfer: str, chunk: int, microbatch: int) -> None:
        if profile.has(chunk, transfer):
            points = profile.points[chunk, transfer]
            dependencies.append((before, len(operations)))
            before = len(operations)
            operations.append(Operation(transfer, microbatch, None, points, chunk=chunk))
        dependencies.append((before, after))

    for (instruction, chunk, microbatch), place in places.items():
        if instruction == FORWARD and chunk > 0:
            depend(places[FORWARD, chunk - 1, microbatch], place, SEND_FORWARD, chunk - 1, microbatch)
        elif instruction == BACKWARD and chunk < last:
            depend(places[BACKWARD, chunk + 1, microbatch], place, SEND_BACKWARD, chunk + 1, microbatch)
        elif instruction == BACKWARD:
            dependencies.append((places[FORWARD, chunk, microbatch], place))
    return ComputationGraph(tuple(operations), tuple(rows), tuple(dependencies))
