"""Blocking calls off the event loop, each in a daemon thread of its own, so that one that never returns holds nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TypeVar

T = TypeVar("T")


def begin(call: Callable[[], T], name: str) -> Future[T]:
    """Start the call; its result, or what it raised, comes to the future, if anybody still waits."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            result = call()
        except BaseException as error:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)
        else:
            with contextlib.suppress(InvalidStateError):
                future.set_result(result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


async def done_within(future: Future[T], seconds: float) -> bool:
    """Wait for the future, but no longer; a call that has not returned then goes on by itself."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(_read_error)
    done, _ = await asyncio.wait([waiting], timeout=seconds)
    return bool(done)


def _read_error(answer: asyncio.Future[T]) -> None:
    if not answer.cancelled():  # asyncio logs an error that nobody reads
        answer.exception()
