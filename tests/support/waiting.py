"""Waiting for a condition, the only wait that a test needs: over as soon as it holds, failed only much later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from flyball_testbed.controlplane.processes import pause_seconds

# Long enough for two loaded cores; a test that waits this long has failed.
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.01

What = str | Callable[[], str]


async def until(
    condition: Callable[[], bool | Awaitable[bool]], what: What = "", seconds: float = PATIENCE_SECONDS
) -> None:
    """Return once `condition`, plain or asynchronous, holds; AssertionError that names `what` after `seconds`."""
    clock = asyncio.get_running_loop().time  # a loop in virtual time goes by that
    try:
        async with asyncio.timeout(seconds):
            while True:
                asked = clock()
                answer = condition()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await asyncio.sleep(pause_seconds(clock() - asked, POLL_SECONDS))
    except TimeoutError as error:
        raise AssertionError(_never(condition, what, seconds)) from error


def wait_until(condition: Callable[[], bool], what: What = "", seconds: float = PATIENCE_SECONDS) -> None:
    """`until`, blocking."""
    asked = time.monotonic()
    end = asked + seconds
    while not condition():
        answered = time.monotonic()
        if answered >= end:
            raise AssertionError(_never(condition, what, seconds))
        time.sleep(pause_seconds(answered - asked, POLL_SECONDS))
        asked = time.monotonic()


def _never(condition: Callable[[], object], what: What, seconds: float) -> str:
    named = what() if callable(what) else what
    return f"not within {seconds:g} s: {named or condition}"
