"""The operator's Lease, watched: each renewal that is seen keeps the grants of this process' agents alive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import datetime

from flyball_api.lease import read_leader
from flyball_api.names import DEFAULT_NAMESPACE, LEADER_LEASE
from flyball_kube.backoff import Backoff
from flyball_kube.errors import ApiError
from flyball_kube.process.logs import get_logger
from flyball_kube.resources import LEASES
from flyball_kube.session import ApiSession, JsonObject

from flyball_agent.clock import boottime_ns

logger = get_logger(__name__)

WATCH_SECONDS = 60
# A lease is renewed every few seconds; a watch on it that stays silent this long past its own end is broken.
READ_GRACE_SECONDS = 10.0
# A watch that goes on from where another ended brings the next renewal within seconds. Where nothing comes, nobody leads,
# or the store was restored from a backup behind it: it would wait for ever for a version that is no more.
RESUMED_SILENCE_SECONDS = 20.0
PULSE_SECONDS = 0.5
# After a freeze of this process, what the socket's buffer holds may be old: it proves nothing.
FROZEN_SECONDS = 3.0
DISTRUST_SECONDS = 1.0


class LeaseWatch:
    """Calls its listeners each time the operator is *seen* to renew its Lease; one serves all agents of a process.

    A listener is given the epoch under which the Lease is held (its `leaseTransitions`). `namespace` is the operator's.
    Only a change of renewTime counts, and only against one seen over the same unbroken connection: the first sight after
    (re)connecting may be of any age. The clock that wrote renewTime does not matter: it is only compared with itself.
    """

    def __init__(
        self,
        session: ApiSession,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        name: str = LEADER_LEASE,
        clock_ns: Callable[[], int] = boottime_ns,
    ) -> None:
        self._session = session
        self._path = LEASES.path(namespace)
        self._params = {"fieldSelector": f"metadata.name={name}"}
        self._clock_ns = clock_ns
        self._listeners: list[Callable[[int], None]] = []
        self._renewed: datetime | None = None
        self._alive_ns = clock_ns()
        self._distrust_until_ns = 0
        self.renewals = 0
        self.reconnects = 0

    def listen(self, listener: Callable[[int], None]) -> None:
        """Call `listener` at each renewal."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pulse())
            group.create_task(self._watch_for_ever())

    async def _pulse(self) -> None:
        while True:
            self.check_frozen()
            await asyncio.sleep(PULSE_SECONDS)

    def check_frozen(self) -> bool:
        """Note that this process runs; True while it has only just come back from a freeze."""
        now_ns = self._clock_ns()
        if now_ns - self._alive_ns > FROZEN_SECONDS * 1e9:
            self._distrust_until_ns = now_ns + round(DISTRUST_SECONDS * 1e9)
        self._alive_ns = now_ns
        return now_ns < self._distrust_until_ns

    async def _watch_for_ever(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._connected(backoff)
            except Exception as error:
                # Whatever an answer has in it, the agent goes on, and the lease runs out if it stays so.
                logger.warning("operator's lease", error=str(error) or repr(error), kind=type(error).__name__)
            self._renewed = None
            self.reconnects += 1
            await backoff.pause()

    async def _connected(self, backoff: Backoff) -> None:
        """One list, then watch after watch from where it ended, until one breaks, or goes on with nothing."""
        listed = await self._session.get(self._path, **self._params)
        for lease in listed.get("items") or ():
            self._saw(lease)
        version: str | None = listed["metadata"]["resourceVersion"]
        silence_seconds = None
        while version is not None:
            version = await self._watched(version, backoff, silence_seconds)
            silence_seconds = RESUMED_SILENCE_SECONDS

    async def _watched(self, version: str, backoff: Backoff, silence_seconds: float | None) -> str | None:
        """Follow one watch to its end in order: the version to go on from.

        None where the watch brought nothing, be it for `silence_seconds`; without those it may go on from where it began.
        """
        seen = None if silence_seconds is not None else version
        params = {
            **self._params,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        events: AsyncIterator[JsonObject] = self._session.watch(
            self._path, params=params, read_timeout_seconds=WATCH_SECONDS + READ_GRACE_SECONDS
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(silence_seconds) as silence:
                async for event in events:
                    silence.reschedule(None)
                    kind, lease = event.get("type"), event["object"]
                    if kind == "ERROR":
                        raise ApiError.from_answer(int(lease.get("code", 500)), lease, f"WATCH {self._path}")
                    backoff.reset()
                    seen = lease["metadata"]["resourceVersion"]
                    if kind == "DELETED":
                        self._renewed = None
                    elif kind != "BOOKMARK":
                        self._saw(lease)
        return seen

    def _saw(self, lease: JsonObject) -> None:
        leader = read_leader(lease)
        first = self._renewed is None
        changed = leader.renewed is not None and leader.renewed != self._renewed
        self._renewed = leader.renewed
        if self.check_frozen() or first or not changed or not leader.epoch:
            return
        self.renewals += 1
        for listener in self._listeners:
            listener(leader.epoch)
