"""A guarded session makes its check when a request's turn has come, not before the wait for it."""

from __future__ import annotations

import asyncio

import pytest
from flyball_kube.credentials import Configuration
from flyball_kube.session import ApiSession


class TooLate(Exception):
    """What the check of the test raises."""


async def test_what_ended_while_a_request_waited_for_its_turn_is_not_sent() -> None:
    configuration = Configuration("http://127.0.0.1:1")
    held = True

    def check() -> None:
        if not held:
            raise TooLate

    async with ApiSession(configuration, connections=1) as session:
        turn = session._slots
        await turn.acquire()
        waiting = asyncio.create_task(session.guarded(check).patch("/api/v1/nodes/a", {}))
        await asyncio.sleep(0)
        assert not waiting.done()
        held = False
        turn.release()
        with pytest.raises(TooLate):
            await waiting
