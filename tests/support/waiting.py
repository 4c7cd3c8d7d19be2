"""Waiting for a condition, the only wait that a test needs: over as soon as it holds, failed only much later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

# Long enough for two loaded cores; a test that waits this long has failed.
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.01

What = str | Callable[[], str]


async def until(
    condition: Callable[[], bool | Awaitable[bool]], what: What = "", seconds: float = PATIENCE_SECONDS
) -> None:
    """Return once `condition`, plain or asynchronous, holds; AssertionError that names `what` after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                answer = condition()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        raise AssertionError(_never(condition, what, seconds)) from error


def wait_until(condition: Callable[[], bool], what: What = "", seconds: float = PATIENCE_SECONDS) -> None:
    """`until`, blocking."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            raise AssertionError(_never(condition, what, seconds))
        time.sleep(POLL_SECONDS)


def _never(condition: Callable[[], object], what: What, seconds: float) -> str:
    named = what() if callable(what) else what
    return f"not within {seconds:g} s: {named or condition}"
