"""Clocks that are set beside the rounds, by a driver that is slow: what is known of a lock is what the driver has."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.gpu.gpu import UnknownDriverError
from flyball_agent.gpu.operations import GpuCall, LockClocks, UnlockClocks
from flyball_agent.gpu.worker_calls import WorkerCalls
from flyball_agent.gpu.worker_driver import WorkerDriver
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.enforcer_rig import SECOND, Rig
from tests.support.examples import examples
from tests.support.gpu_node_specs import gpu_node_spec, job_grant
from tests.support.schedules.virtual_time import VirtualLoop

JOB = PodName("research", "gpt2")
CLOCKS = (600, 750, 900, 1200)


class Answer(NamedTuple):
    """How a call that sets a clock goes: it is made after so long, or not."""

    seconds: float
    error: type[Exception] | None = None


AT_ONCE = Answer(0.0)


class Lanes:
    """A worker that makes the calls of each GPU in their order; those that set clocks as `answers` says."""

    def __init__(self, rig: Rig) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in rig.driver.gpus()}
        self._lanes: dict[str, deque[tuple[GpuCall[Any], Future[Any]]]] = {uuid: deque() for uuid in self._gpus}
        self.answers: deque[Answer] = deque()

    def begin(self, operation: str, uuid: str, call: GpuCall[Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._lanes[uuid].append((call, future))
        if len(self._lanes[uuid]) == 1:
            self._go_on(uuid)
        return future

    def _go_on(self, uuid: str) -> None:
        if self._lanes[uuid]:
            call, _ = self._lanes[uuid][0]
            sets_clock = isinstance(call, LockClocks | UnlockClocks)
            answer = self.answers.popleft() if sets_clock and self.answers else AT_ONCE
            asyncio.get_running_loop().call_later(answer.seconds, self._make, uuid, answer)

    def _make(self, uuid: str, answer: Answer) -> None:
        call, future = self._lanes[uuid].popleft()
        if answer.error is None:
            future.set_result(call.on(self._gpus[uuid]))
        else:
            future.set_exception(answer.error("lock clocks", uuid))
        self._go_on(uuid)


class Course:
    """An enforcer whose clocks are asked for, granted and set in virtual time."""

    def __init__(self, folder: Path) -> None:
        self.rig = Rig(folder, gpus=2)
        self.lanes = Lanes(self.rig)
        self.rig.restart(calls=WorkerCalls(cast(WorkerDriver, self.lanes)))
        for device in self.rig.node.devices:
            device.set_activity(1.0)
        self.rig.hold("gpt2", 0, 1)
        self._generation = 0
        self._setting: asyncio.Future[None] | None = None

    def grant(self, megahertz: int) -> None:
        self._generation += 1
        job = job_grant("gpt2", 300_000, clocks=(300, megahertz))
        self.rig.enforcer.accept(gpu_node_spec(self._generation, 700_000, job, lease=10**6))

    def ask(self, megahertz: int | None, device: int | None = None) -> None:
        gpu = "" if device is None else self.rig.node.devices[device].uuid
        self.rig.enforcer.ask_clock(JOB, megahertz, 1e6, gpu)
        if self._setting is None or self._setting.done():  # as the governor does it
            self._setting = asyncio.ensure_future(self.rig.enforcer.set_asked_clocks())

    async def round(self) -> None:
        self.rig.now_ns = 1000 * SECOND + round(asyncio.get_running_loop().time() * SECOND)
        await self.rig.enforcer.step()

    async def rest(self) -> None:
        """Have everything that was begun return, and what is left of it set."""
        await asyncio.sleep(60.0)
        assert self._setting is None or self._setting.done()
        self.lanes.answers.clear()
        await self.round()
        await asyncio.sleep(1.0)
        await self.round()

    def highest(self) -> list[int]:
        return [high for _, high in self.rig.locks()]

    @property
    def drifts(self) -> int:
        return self.rig.enforcer.state.counts.lock_drift_corrections


def play(course: Any) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(course)
    finally:
        loop.close()


async def slowed_down(folder: Path) -> Course:
    """A job that was granted 1200 MHz and has asked for 600, which are set."""
    on = Course(folder)
    on.grant(1200)
    await on.round()
    on.ask(600)
    await asyncio.sleep(0.5)
    return on


def test_a_lock_that_a_driver_took_late_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    async def course() -> None:
        on = await slowed_down(tmp_path)
        on.lanes.answers.extend([Answer(1.5), AT_ONCE])
        on.ask(None)
        await asyncio.sleep(2.0)
        assert on.highest() == [1200, 1200], "the first one after its deadline"
        on.grant(600)
        await on.round()
        assert on.highest() == [600, 600]
        assert on.drifts == 0

    play(course())


answers = st.builds(
    Answer,
    st.sampled_from([0.0, 0.0, 0.3, 0.9, 1.2, 3.5]),
    st.sampled_from([None, None, None, UnknownDriverError]),
)
steps = st.one_of(
    st.tuples(st.just("grant"), st.sampled_from(CLOCKS)),
    st.tuples(st.just("ask"), st.none() | st.sampled_from(CLOCKS), st.sampled_from([None, 0, 1])),
    st.tuples(st.just("round")),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.1, 0.6, 1.0])),
)


@given(answered=st.lists(answers, max_size=12), taken=st.lists(steps, max_size=14))
@settings(max_examples=examples(150), deadline=None)
def test_whatever_is_asked_for_while_clocks_are_set_the_last_of_it_is_what_the_driver_has(
    answered: list[Answer], taken: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def course() -> None:
        on = Course(tmp_path_factory.mktemp("rig"))
        on.grant(1200)
        await on.round()
        on.lanes.answers.extend(answered)
        granted, wished = 1200, dict[int | None, int | None]()
        rounds: list[asyncio.Task[None]] = []
        for kind, *what in taken:
            match kind:
                case "grant":
                    granted = what[0]
                    on.grant(granted)
                case "ask":
                    wished[what[1]] = what[0]
                    on.ask(*what)
                case "round":
                    await asyncio.gather(*rounds)
                    rounds = [asyncio.ensure_future(on.round())]
                case _:
                    await asyncio.sleep(what[0])
        await asyncio.gather(*rounds)
        await on.rest()
        of_all = wished.get(None)
        expected = [
            min(granted, *(wish for wish in (of_all, wished.get(device)) if wish is not None), 10**6)
            for device in range(2)
        ]
        assert on.highest() == expected
        assert on.drifts == 0, "nobody else has touched them"
        on.rig.enforcer.close()

    play(course())


def test_of_a_call_that_ends_in_a_defect_nobody_knows_what_it_has_set(tmp_path: Path) -> None:
    async def course() -> None:
        on = Course(tmp_path)
        on.grant(600)
        on.lanes.answers.extend([Answer(0.0, ZeroDivisionError), AT_ONCE])
        with pytest.raises(ZeroDivisionError):
            await on.round()
        await on.round()
        assert on.highest() == [600, 600]

    play(course())


@pytest.mark.parametrize("fallen", [0, 1])
def test_a_lock_that_is_set_while_another_gpus_counter_begins_anew_is_not_taken_for_the_one_before(
    tmp_path: Path, fallen: int
) -> None:
    """A counter that falls begins another session of the driver, and says nothing of the other GPUs' locks."""

    async def course() -> None:
        on = await slowed_down(tmp_path)
        on.ask(None)
        on.rig.enforcer._access.session.note_counter(on.rig.node.devices[fallen].uuid, -1)
        on.rig.enforcer.state.session = on.rig.enforcer._access.session.session
        await asyncio.sleep(0.5)
        assert on.highest() == [1200, 1200]
        on.ask(600)
        await asyncio.sleep(0.5)
        assert on.highest() == [600, 600]

    play(course())


def test_clocks_that_are_asked_for_all_the_time_are_set_for_as_long_as_that_lasts(tmp_path: Path) -> None:
    """As where each of a pod's computations is shorter than its driver takes to set a clock."""

    async def course() -> None:
        on = await slowed_down(tmp_path)
        begun = set()
        for number in range(3000):
            on.lanes.answers.extend([Answer(0.005)] * (4 - len(on.lanes.answers)))
            on.ask(CLOCKS[number % 4])
            begun.add(on._setting)
            await asyncio.sleep(0.004)
        await on.rest()
        assert {each.exception() for each in begun if each is not None} == {None}
        assert on.highest() == [CLOCKS[3]] * 2

    play(course())
