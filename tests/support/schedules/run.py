"""Runs a schedule to its end or to the first claim that is not true, and finds the fewest faults that do it."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flyball_agent import off_loop
from flyball_agent.clock import NANOSECONDS
from flyball_agent.govern import driver_keeper
from flyball_operator.power.grants import brakes

from tests.support.schedules.faults import END_SECOND, KINDS, Fault, Schedule
from tests.support.schedules.referee import Window
from tests.support.schedules.virtual_time import VirtualLoop
from tests.support.schedules.world import World, new_folder


@dataclass(frozen=True)
class Outcome:
    """What became of one schedule; `violation` is empty where every claim was true. `judged`: looks at a claim.

    `trace`, and `fingerprint` (hexadecimal) of that and of all that was stored, are empty unless the trace is kept.
    """

    schedule: Schedule
    violation: str
    judged: int
    windows: tuple[Window, ...]
    trace: tuple[str, ...] = ()
    fingerprint: str = ""


Play = Callable[[World, Schedule], Coroutine[Any, Any, None]]


def run(schedule: Schedule, *, keep_trace: bool = False, play: Play | None = None) -> Outcome:
    """Run one schedule, or what `play` does in place of it, from an empty cluster, in virtual time."""
    loop = VirtualLoop()
    state = random.getstate()
    random.seed(schedule.seed)  # the jitter of back-offs
    gc.disable()  # a schedule is short, and its garbage is collected at its end
    try:
        with new_folder() as folder:
            world = World(loop, Path(folder), schedule.seed, keep_trace=keep_trace)
            logs = _logs_into(world) if keep_trace else _without_logs()
            few_nodes = patch.object(brakes, "FEWEST_NODES", 1)
            reopening = patch.object(driver_keeper, "REOPEN_NS", NANOSECONDS // 2)
            with logs, few_nodes, reopening, patch.object(off_loop, "begin", world.disks.begin):
                loop.run_until_complete((play or _play)(world, schedule))
            verdict = world.referee.verdict
            return Outcome(
                schedule,
                world.referee.violation or "",
                verdict.judged,
                tuple(verdict.windows),
                tuple(world.trace),
                world.fingerprint.hexdigest() if keep_trace else "",
            )
    finally:
        random.setstate(state)
        loop.close()
        gc.enable()


async def _play(world: World, schedule: Schedule) -> None:
    try:
        await course(world, schedule)
    finally:
        await world.close()


async def course(world: World, schedule: Schedule) -> bool:
    """Everything that happens, to the end or to the first claim that is not true; True where one is not."""
    loop = asyncio.get_running_loop()
    await world.begin(schedule.beginning)
    for fault in schedule.faults:
        if await world.referee.violated_before(fault.at - loop.time()):
            return True
        world.note(f"--- {fault}")
        await KINDS[fault.kind].apply(world, fault)
    return await world.referee.violated_before(END_SECOND - loop.time())


def shrunk(schedule: Schedule, most_runs: int = 400) -> Schedule:
    """The schedule with as few faults as still violate a claim, each as short as that allows."""
    runs = 0

    def fails(candidate: Schedule) -> bool:
        nonlocal runs
        runs += 1
        return runs <= most_runs and bool(run(candidate).violation)

    part = max(1, len(schedule.faults) // 2)
    while part:
        at = 0
        while at < len(schedule.faults):
            rest = schedule.faults[:at] + schedule.faults[at + part :]
            candidate = replace(schedule, faults=rest)
            if fails(candidate):
                schedule = candidate
            else:
                at += part
        part //= 2
    for index, fault in enumerate(schedule.faults):
        for shorter in (replace(fault, seconds=0.1), replace(fault, seconds=round(fault.seconds / 2, 2))):
            faults: tuple[Fault, ...] = (*schedule.faults[:index], shorter, *schedule.faults[index + 1 :])
            if shorter != fault and fails(replace(schedule, faults=faults)):
                schedule = replace(schedule, faults=faults)
                break
    return schedule


@contextmanager
def _without_logs() -> Iterator[None]:
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)


class _IntoTrace(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        line = record.msg if isinstance(record.msg, dict) else {"event": record.getMessage()}
        fields = ", ".join(
            f"{key}={value}"
            for key, value in line.items()
            if key not in ("event", "logger", "_record", "_from_structlog")
        )
        part = record.name.partition(".")[0].removeprefix("flyball_")  # not the module: code that moved does the same
        self._world.note(f"    {part}: {line.get('event')} {fields}")


@contextmanager
def _logs_into(world: World) -> Iterator[None]:
    handler, loggers = (
        _IntoTrace(world),
        [logging.getLogger(f"flyball_{part}") for part in ("operator", "agent", "kube")],
    )
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
