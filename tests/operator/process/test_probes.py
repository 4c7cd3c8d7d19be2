"""The operator's probes: alive, ready, and the reasons why not."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from flyball_operator.main import STALE_COPY_SECONDS, STUCK_INTERVALS, OperatorProcess
from flyball_operator.process.probes import NotServingError, ProbeServer
from flyball_operator.settings import Settings


class LoopAt:
    """What the process asks of its loop, at ages of the test's choosing."""

    cycles = 7

    def __init__(self, cycle: float | None, copies: dict[str, float]) -> None:
        self._cycle = cycle
        self._copies = copies

    def seconds_since_cycle(self) -> float | None:
        return self._cycle

    def copy_ages_seconds(self) -> dict[str, float]:
        return self._copies


def process_at(cycle: float | None, **copies: float) -> OperatorProcess:
    process = OperatorProcess(Settings())
    process._operator = LoopAt(cycle, copies)  # type: ignore[assignment]
    return process


def test_leader_and_standby_are_alive_and_ready() -> None:
    leader, standby = process_at(1.0, nodes=2.0, pods=0.5), process_at(None, nodes=2.0)
    assert leader.live() == {"state": "leading", "cycles": 7}
    assert standby.live()["state"] == "standing by"
    assert leader.ready()["copyAgesSeconds"] == {"nodes": 2.0, "pods": 0.5}
    assert standby.ready()["state"] == "standing by"


def test_a_loop_that_is_stuck_is_neither_alive_nor_ready() -> None:
    stuck = process_at(Settings().replan_seconds * STUCK_INTERVALS + 1, nodes=1.0)
    for check in (stuck.live, stuck.ready):
        with pytest.raises(NotServingError, match="no cycle has begun for"):
            check()


@pytest.mark.parametrize(
    ("age", "reason"),
    [(float("inf"), "pods have not been listed yet"), (STALE_COPY_SECONDS + 1, "the copy of pods is")],
)
def test_without_a_fresh_copy_it_is_alive_but_not_ready(age: float, reason: str) -> None:
    process = process_at(None, nodes=1.0, pods=age)
    assert process.live()["state"] == "standing by"
    with pytest.raises(NotServingError, match=reason):
        process.ready()


def test_before_its_start_it_is_alive_and_not_ready() -> None:
    process = OperatorProcess(Settings())
    assert process.live() == {"state": "starting"}
    with pytest.raises(NotServingError, match="starting"):
        process.ready()


@pytest.fixture
async def served() -> AsyncIterator[str]:
    def not_ready() -> dict[str, Any]:
        raise NotServingError("nodes have not been listed yet")

    server = ProbeServer(lambda: {"state": "leading"}, not_ready)
    port = await server.serve(0, "127.0.0.1")
    yield f"http://127.0.0.1:{port}"
    await server.close()


async def test_answers_over_http_say_why(served: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with aiohttp.ClientSession(served) as session:
        async with session.get("/healthz") as alive:
            assert (alive.status, await alive.json()) == (200, {"state": "leading"})
        async with session.get("/readyz") as ready:
            assert (ready.status, await ready.json()) == (503, {"reason": "nodes have not been listed yet"})
        async with session.get("/elsewhere") as elsewhere:
            assert elsewhere.status == 404
    assert [record for record in caplog.records if record.name == "aiohttp.access"] == []
