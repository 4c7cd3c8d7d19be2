"""What is written for power: never two writes of one object at once, and no answer that a cut would wait for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from flyball_api.power_brake import PowerBrakeSpec
from flyball_operator.cluster.outcome import DONE, UNKNOWN, Outcome, WriteResult
from flyball_operator.power.caps.memberships import LabelSync
from flyball_operator.power.cycle import Answered, BrakeAnswered, PowerInstructions, SendGrant
from flyball_operator.power.grants.brakes import SendBrake
from flyball_operator.power.holds import HoldAction, HoldChange
from flyball_operator.power.nodes.info import read_nodes
from flyball_operator.report.reporter import Reporter
from flyball_operator.term.power_execution import PowerExecution
from flyball_operator.writes.background import Background

from tests.support.operator_objects import gpu_node_view, grant, node_view

GPU_NODE = gpu_node_view("a", grant(2_400_000), limits=2_400_000)
NODE = read_nodes([node_view("a")], {"a": GPU_NODE}, [], frozenset())["a"]


class Writes:
    """In the executor's place: takes everything, in order, and answers with `result` once `answer` is set."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.answer = asyncio.Event()
        self.result = DONE

    async def _made(self, kind: str) -> WriteResult:
        self.made.append(kind)
        await self.answer.wait()
        return self.result

    async def write_grant(self, *arguments: object) -> WriteResult:
        return await self._made("grant")

    async def write_brake(self, send: SendBrake) -> WriteResult:
        return await self._made("brake")

    async def sync_labels(self, sync: LabelSync) -> WriteResult:
        return await self._made("labels")

    async def write_hold(self, change: HoldChange) -> WriteResult:
        return await self._made("hold")


class Controller:
    """In the power controller's place: remembers what it is answered; `refused`: a grant without entries is to follow."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.refused = False

    def handle(self, event: Answered) -> bool:
        self.answers.append(event)
        return self.refused

    def handle_brake(self, event: BrakeAnswered) -> None:
        self.answers.append(event)


class Bench:
    """What executes the power controller's instructions, over an API server that answers when it is asked to."""

    def __init__(self) -> None:
        self.writes, self.controller = Writes(), Controller()
        self.woken = 0
        self.background = Background(self.wake)
        doubles: Any = self
        self.execution = PowerExecution(
            doubles.controller, doubles.writes, Reporter(doubles.writes, None), self.background
        )

    def wake(self) -> None:
        self.woken += 1

    async def start(self, instructions: PowerInstructions) -> None:
        """Execute these; what they have started has begun when this returns."""
        self.execution.start(instructions, 0.0)
        await asyncio.sleep(0)

    async def settle(self, result: WriteResult = DONE) -> None:
        """Have everything answered so that is under way, and wait for its end."""
        self.writes.result = result
        self.writes.answer.set()
        await asyncio.gather(*self.background._tasks.values())
        await asyncio.sleep(0)
        self.writes.answer.clear()


GRANT = PowerInstructions(sends=(SendGrant(NODE, grant(2_000_000, generation=2), False),))
LABELS = PowerInstructions(label_syncs=(LabelSync(NODE),))
HOLD = PowerInstructions(holds=(HoldChange(GPU_NODE, HoldAction.HOLD),))
BRAKE = PowerInstructions(brakes=(SendBrake("row", PowerBrakeSpec(1, 1, 500_000), ""),))


@pytest.mark.parametrize(("first", "kind"), [(GRANT, "grant"), (LABELS, "labels"), (HOLD, "hold")])
async def test_no_finalizer_is_written_beside_another_write_of_its_object(first: PowerInstructions, kind: str) -> None:
    """Only one of the two would be taken, and the other could be a cut."""
    bench = Bench()
    await bench.start(first)
    await bench.start(HOLD)
    assert bench.writes.made == [kind]
    await bench.settle()
    await bench.start(HOLD)
    assert bench.writes.made == [kind, "hold"]
    await bench.settle()


async def test_the_grants_of_a_cut_wait_for_no_second_try_of_its_brake() -> None:
    bench = Bench()
    await bench.start(BRAKE)
    await bench.settle(UNKNOWN)
    assert bench.controller.answers == [BrakeAnswered("row", Outcome.UNKNOWN)]
    assert bench.woken == 1
    await bench.background.stop()


async def test_a_grant_without_entries_follows_at_once_where_the_api_server_takes_none_with_them() -> None:
    bench = Bench()
    bench.controller.refused = True
    await bench.start(GRANT)
    await bench.settle(WriteResult(Outcome.REFUSED, invalid="spec.jobs[0]: no"))
    assert bench.controller.answers == [Answered("a", Outcome.REFUSED, GRANT.sends[0].grant)]
    assert bench.woken == 1
    await bench.background.stop()


async def test_after_any_other_failure_the_next_try_comes_after_a_pause() -> None:
    bench = Bench()
    await bench.start(GRANT)
    await bench.settle(UNKNOWN)
    assert bench.controller.answers == [Answered("a", Outcome.UNKNOWN)]
    assert bench.woken == 0
    await bench.background.stop()
