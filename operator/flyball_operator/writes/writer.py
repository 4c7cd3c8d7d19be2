"""Writes to the API server, each sent only while this process still leads, and what became of it.

All of them are idempotent. An object that another writer changed first, that exists already or that is gone already is no
failure: the next cycle decides anew from what is then there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import msgspec
from flyball_api.reading import ObjectMeta
from flyball_api.writing import to_json
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.process.logs import get_logger
from flyball_kube.resources import (
    Resource,
)
from flyball_kube.session import ApiSession, JsonObject

from flyball_operator.cluster.outcome import DONE, UNKNOWN, Outcome, WriteResult
from flyball_operator.writes.lease import LeadershipLost

logger = get_logger(__name__)

# What claims and cuts have for themselves, whoever has all other connections: where the API server hangs, each cap's status
# may be tried once a second until its tries have been given up, after ten.
URGENT_CONNECTIONS = 128


class Writer:
    """Sends writes under one epoch; `check` raises LeadershipLost, `absorb` takes in what a write returned.

    `count` is told the kind of each, `observe_write` what became of it, and after how many seconds.
    """

    def __init__(
        self,
        session: ApiSession,
        check: Callable[[], None],
        absorb: Callable[[Resource, JsonObject], None],
        count: Callable[[str], None] = lambda kind: None,
        *,
        observe_write: Callable[[Outcome, float], None] = lambda outcome, seconds: None,
    ) -> None:
        self._session = session
        self._urgent_session = session.with_turns_of_its_own(URGENT_CONNECTIONS)
        self._check = check
        self._absorb = absorb
        self._count = count
        self._observe_write = observe_write

    async def _write(
        self,
        kind: str,
        resource: Resource,
        call: Callable[[], Awaitable[JsonObject]],
    ) -> WriteResult:
        """Make one write. Raises LeadershipLost before anything is sent."""
        # Nothing is counted as written that is not: the session checks once more when the request has its turn.
        self._check()
        self._count(kind)
        began_at = time.monotonic()
        result = await self._answered(kind, resource, call)
        self._observe_write(result.outcome, time.monotonic() - began_at)
        return result

    async def _answered(self, kind: str, resource: Resource, call: Callable[[], Awaitable[JsonObject]]) -> WriteResult:
        try:
            answer = await call()
        except ApiError as error:
            level = logging.DEBUG if error.conflict or error.not_found else logging.WARNING
            logger.log(level, "write refused", write=kind, error=str(error), request_id=error.request_id)
            outcome = Outcome.REFUSED if error.status < 500 else Outcome.UNKNOWN
            return WriteResult(
                outcome,
                invalid=error.message if error.invalid else "",
                not_found=error.not_found,
                conflict=error.conflict,
                message=error.message if outcome is Outcome.REFUSED else "",
            )
        except ApiUnreachable as error:
            logger.warning("write unanswered", write=kind, error=str(error), request_id=error.request_id)
            return UNKNOWN
        if answer.get("kind") == resource.kind:
            self._absorb(resource, answer)
        return DONE

    async def all(self, writes: Iterable[Coroutine[Any, Any, WriteResult]]) -> list[WriteResult]:
        """Make independent writes side by side; raises LeadershipLost once all of them have ended, if any did."""
        results = await asyncio.gather(*writes, return_exceptions=True)
        for result in results:
            if isinstance(result, LeadershipLost):
                raise result
        for result in results:
            if isinstance(result, BaseException):
                logger.error("a write failed unexpectedly", exc_info=result)
        return [UNKNOWN if isinstance(result, BaseException) else result for result in results]

    async def _put_status(
        self, kind: str, resource: Resource, read: ObjectMeta, status: msgspec.Struct, *, urgent: bool = False
    ) -> WriteResult:
        """Put a status in the place of the one of an object as it was `read`; an `urgent` one waits for no other write.

        One that arrives late, or of an earlier leader, must not stand over a newer one, nor over that of an object that was
        made anew under the name. Whole, and not as a patch: that is less work for the API server (docs/decisions.md).
        """
        metadata = {"name": read.name, "uid": read.uid, "resourceVersion": read.resource_version}
        if read.namespace:
            metadata["namespace"] = read.namespace
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": metadata,
            "status": to_json(status),
        }
        path = resource.path(read.namespace or None, read.name, "status")
        session = self._urgent_session if urgent else self._session
        return await self._write(kind, resource, lambda: session.replace(path, body))
