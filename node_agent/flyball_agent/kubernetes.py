"""The agent's shell towards the Kubernetes API: its GPUNode's spec in, its status out, the operator's pulse.

The agent itself runs without any of this; every task here may fail for as long as it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable

from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.informer import Informer
from flyball_kube.resources import GPU_NODES, LEASES, PODS
from flyball_kube.session import ApiSession, JsonObject

from flyball_agent.agent import NodeAgent
from flyball_agent.clock import boottime_ns

logger = logging.getLogger(__name__)

LEASE_NAME = "flyball-operator"
SYSTEM_NAMESPACE = "flyball-system"
WATCH_SECONDS = 60
# A lease is renewed every few seconds; a watch on it that stays silent this long past its own end is broken.
READ_GRACE_SECONDS = 10.0
FIRST_BACKOFF_SECONDS = 0.2
LAST_BACKOFF_SECONDS = 10.0
PULSE_SECONDS = 0.5
# After a freeze of this process, what the socket's buffer holds may be old: it proves nothing.
FROZEN_SECONDS = 3.0
DISTRUST_SECONDS = 1.0


class Backoff:
    """Growing, jittered pauses after failures."""

    def __init__(self) -> None:
        self._seconds = FIRST_BACKOFF_SECONDS

    def succeeded(self) -> None:
        self._seconds = FIRST_BACKOFF_SECONDS

    async def pause(self) -> None:
        await asyncio.sleep(self._seconds * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
        self._seconds = min(self._seconds * 2, LAST_BACKOFF_SECONDS)


class LeaseWatch:
    """Tells its listeners each time the operator is *seen* to renew its Lease; one serves all agents of a process.

    Only a change of renewTime counts, and only against one seen over the same unbroken connection: the first sight
    after (re)connecting may be of any age. Whose clock wrote renewTime does not matter: it is only compared with itself.
    """

    def __init__(
        self,
        session: ApiSession,
        *,
        namespace: str = SYSTEM_NAMESPACE,
        name: str = LEASE_NAME,
        clock_ns: Callable[[], int] = boottime_ns,
    ) -> None:
        self._session = session
        self._path = LEASES.path(namespace)
        self._params = {"fieldSelector": f"metadata.name={name}"}
        self._clock_ns = clock_ns
        self._listeners: list[Callable[[], None]] = []
        self._renew_time: str | None = None
        self._alive_ns = clock_ns()
        self._distrust_until_ns = 0
        self.renewals = 0
        self.reconnects = 0

    def listen(self, listener: Callable[[], None]) -> None:
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
            except (ApiError, ApiUnreachable) as error:
                logger.warning("operator's lease", extra={"detail": str(error)})
            self._renew_time = None
            self.reconnects += 1
            await backoff.pause()

    async def _connected(self, backoff: Backoff) -> None:
        """One list, then watch after watch from where it ended, until something breaks."""
        listed = await self._session.get(self._path, **self._params)
        for lease in listed.get("items") or ():
            self._saw(lease)
        version = listed["metadata"]["resourceVersion"]
        while True:
            params = {
                **self._params,
                "resourceVersion": version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(WATCH_SECONDS),
            }
            events: AsyncIterator[JsonObject] = self._session.watch(
                self._path, params=params, read_timeout_seconds=WATCH_SECONDS + READ_GRACE_SECONDS
            )
            async for event in events:
                kind, lease = event.get("type"), event["object"]
                if kind == "ERROR":
                    raise ApiError.from_answer(int(lease.get("code", 500)), lease, f"WATCH {self._path}")
                backoff.succeeded()
                version = lease["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self._renew_time = None
                elif kind != "BOOKMARK":
                    self._saw(lease)

    def _saw(self, lease: JsonObject) -> None:
        renew_time = (lease.get("spec") or {}).get("renewTime")
        first = self._renew_time is None
        changed = renew_time is not None and renew_time != self._renew_time
        self._renew_time = renew_time
        if self.check_frozen() or first or not changed:
            return
        self.renewals += 1
        for listener in self._listeners:
            listener()


class GpuNodeChannel:
    """One agent's GPUNode: follows its spec, publishes its status. Run it as a task with `run`."""

    def __init__(self, session: ApiSession, agent: NodeAgent, *, status_interval_seconds: float = 30.0) -> None:
        self._session = session
        self._agent = agent
        self._interval = status_interval_seconds
        self._path = GPU_NODES.path(name=agent.node, subresource="status")
        self._present = asyncio.Event()
        self._uid: str | None = None
        self.published = 0
        self.failed = 0
        self.informer: Informer[JsonObject] = Informer(
            session,
            GPU_NODES,
            _object,
            on_change=self._node_changed,
            params={"fieldSelector": f"metadata.name={agent.node}"},
        )

    async def run(self) -> None:
        """Follow and publish until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.informer.run())
            group.create_task(self._publish_for_ever())

    def _node_changed(self, key: str) -> None:
        if key != self._agent.node:
            return
        raw = self.informer.get(key)
        if raw is None:
            self._present.clear()
            self._agent.spec_gone()
            return
        if raw["metadata"].get("uid") != self._uid:
            self._uid = raw["metadata"].get("uid")
            self._agent.changed.set()  # a new object has no status yet
        self._present.set()
        self._agent.accept_spec(raw.get("spec"))

    async def _publish_for_ever(self) -> None:
        """News at once, measurements every interval; what happens while a write is under way goes with the next."""
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        told: object = None
        due = loop.time()
        while True:
            await self._present.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._agent.changed.wait()
            self._agent.changed.clear()
            if self._agent.facts is None:
                await self._agent.changed.wait()  # set by the first round
            news = (self._uid, self._agent.facts)
            if news == told and loop.time() < due:
                continue
            try:
                await self._session.patch(self._path, {"status": self._agent.status()})
            except (ApiError, ApiUnreachable) as error:
                self.failed += 1
                logger.warning("status not written", extra={"node": self._agent.node, "detail": str(error)})
                told = None  # it may have been written, and only the answer lost
                self._agent.changed.set()
                await backoff.pause()
                continue
            backoff.succeeded()
            self.published += 1
            told, due = news, loop.time() + self._interval


class PodUids:
    """The UIDs of a node's pods by name: the kubelet names pods without one."""

    def __init__(self, session: ApiSession, node: str) -> None:
        self._informer: Informer[str] = Informer(session, PODS, _uid, params={"fieldSelector": f"spec.nodeName={node}"})

    async def run(self) -> None:
        await self._informer.run()

    def __call__(self, namespace: str, name: str) -> str | None:
        return self._informer.get(f"{namespace}/{name}")


def _object(raw: JsonObject) -> JsonObject:
    return raw


def _uid(raw: JsonObject) -> str:
    return str(raw["metadata"]["uid"])
