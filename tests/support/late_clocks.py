"""A pipeline in virtual time, by the client's own code, whose boards take a while to have their clocks set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flyball.pipelines.pipeline import Pipeline
from flyball.pipelines.plan import StagePlans
from flyball_frontiers.pipeline import PipelineProfile
from flyball_testbed.pipeline.board import MeasuredComputation


class LateBoard:
    """A board whose clock comes so long after it was asked for; while one is being set, the newest of the others waits."""

    def __init__(self, set_seconds: float, megahertz: int) -> None:
        self.now = 0.0
        self.sets = 0
        self._set_seconds = set_seconds
        self._megahertz = self._wanted = megahertz
        self._coming: tuple[float, int] | None = None  # when it will be set, to what

    def ask(self, megahertz: int) -> None:
        self._wanted = megahertz
        self._begin(self.now)

    def _begin(self, now: float) -> None:
        if self._coming is None and self._wanted != self._megahertz:
            self._coming = now + self._set_seconds, self._wanted
            self.sets += 1

    def _look(self) -> None:
        while self._coming is not None and self._coming[0] <= self.now:
            at, self._megahertz = self._coming
            self._coming = None
            self._begin(at)

    def compute(self, computation: MeasuredComputation) -> tuple[float, float]:
        """Compute it from now on; (seconds, joules), by the clock of each moment."""
        began, joules, left = self.now, 0.0, 1.0
        while left > 1e-12:
            self._look()
            seconds, watts = computation.at(self._megahertz)
            until = self.now + left * seconds
            if self._coming is not None:
                until = min(until, self._coming[0])
            left -= (until - self.now) / seconds
            joules += watts * (until - self.now)
            self.now = until
        return self.now - began, joules


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """The order in which a stage computes."""
    warm = min(stages - stage - 1, microbatches)
    order = [("forward", number) for number in range(warm)]
    for number in range(microbatches - warm):
        order += [("forward", warm + number), ("backward", number)]
    return order + [("backward", number) for number in range(microbatches - warm, microbatches)]


class LatePipeline:
    """One replica of a pipeline on such boards, by the plan for `seconds` (None: the fastest) an iteration."""

    def __init__(
        self,
        profile: PipelineProfile,
        document: Any,
        microbatches: int,
        waiting_watts: float,
        set_seconds: float,
        seconds: float | None = None,
        known: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.stages, self.microbatches = profile.stages, microbatches
        self._waiting_watts = waiting_watts
        highest = max(point.clock_megahertz or 0 for points in profile.points.values() for point in points)
        self._computations: Mapping[tuple[int, str], MeasuredComputation] = {
            (stage, instruction): MeasuredComputation(profile.of(stage, instruction))
            for stage in range(self.stages)
            for instruction in ("forward", "backward")
        }
        self.boards = [LateBoard(set_seconds, highest) for _ in range(self.stages)]
        self.pipelines: Sequence[Pipeline] = [
            Pipeline(
                StagePlans(document, stage),
                board,
                stage=stage,
                wanted_seconds=None if seconds is None else lambda: seconds,
                set_seconds=known,
                monotonic=lambda board=board: board.now,  # type: ignore[misc]
            )
            for stage, board in enumerate(self.boards)
        ]

    def iterate(self) -> tuple[float, float]:
        """One iteration: its seconds, and the joules of all boards."""
        began = self.boards[0].now
        ended: dict[tuple[int, str, int], float] = {}
        busy = joules = 0.0
        orders = [one_f_one_b(stage, self.stages, self.microbatches) for stage in range(self.stages)]
        while any(orders):
            for stage, order in enumerate(orders):
                while order:
                    instruction, number = order[0]
                    before = stage - 1 if instruction == "forward" else stage + 1
                    awaited = (before, instruction, number)
                    if 0 <= before < self.stages and awaited not in ended:
                        break
                    board = self.boards[stage]
                    board.now = max(board.now, ended.get(awaited, 0.0))
                    with self.pipelines[stage].computation(instruction, number):
                        seconds, drawn = board.compute(self._computations[stage, instruction])
                    ended[stage, instruction, number] = board.now
                    busy, joules = busy + seconds, joules + drawn
                    order.pop(0)
        end = max(board.now for board in self.boards)
        for pipeline, board in zip(self.pipelines, self.boards, strict=True):
            with pipeline.synchronize():
                board.now = end
        return end - began, joules + self._waiting_watts * (self.stages * (end - began) - busy)
