"""Every version that the API server stored of some kinds' objects, for tests of what happened in between."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from flyball_kube.resources import Resource
from flyball_kube.session import ApiSession
from flyball_testbed.controlplane.api import Json

WATCH_SECONDS = 300
PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.02


def resource_version(raw: Json) -> int:
    """The place of a version among all writes of the API server, of any kind (Kubernetes orders them)."""
    return int(raw["metadata"]["resourceVersion"])


class Versions:
    """Watches some kinds inside a `with` block, in a thread; the objects as they stood at its beginning come first."""

    def __init__(self, kubeconfig: Path, *resources: Resource) -> None:
        self._kubeconfig = kubeconfig
        self._resources = resources
        self._seen: dict[tuple[str, int], Json] = {}
        self._watching = threading.Barrier(len(resources) + 1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="versions", daemon=True)
        self._work: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._watching.wait(PATIENCE_SECONDS)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._work is not None:
            self._loop.call_soon_threadsafe(self._work.cancel)
        self._thread.join()

    def await_seen(self, listed: Iterable[Json]) -> None:
        """Wait until the watches have come as far as these objects, which were read from the API."""
        wanted = {(raw["metadata"]["uid"], resource_version(raw)) for raw in listed}
        ends = time.monotonic() + PATIENCE_SECONDS
        while not wanted <= self._seen.keys():
            assert time.monotonic() < ends, f"the watches never came to {wanted - self._seen.keys()}"
            time.sleep(POLL_SECONDS)

    def of(self, resource: Resource) -> list[Json]:
        """All versions of one kind's objects, in the order of their writes."""
        return sorted((raw for raw in list(self._seen.values()) if raw["kind"] == resource.kind), key=resource_version)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._follow_all())
        finally:
            self._watching.abort()  # a thread that waits for watches which will not begin goes on, with an error
            self._loop.close()

    async def _follow_all(self) -> None:
        self._work = asyncio.current_task()
        try:
            async with await ApiSession.connect(self._kubeconfig) as session, asyncio.TaskGroup() as group:
                for resource in self._resources:
                    group.create_task(self._follow(session, resource))
        except asyncio.CancelledError:
            pass

    async def _follow(self, session: ApiSession, resource: Resource) -> None:
        listed = await session.get(resource.path())
        for raw in listed["items"]:
            self._keep({"kind": resource.kind, **raw})
        await asyncio.to_thread(self._watching.wait, PATIENCE_SECONDS)
        params = {"resourceVersion": listed["metadata"]["resourceVersion"], "timeoutSeconds": str(WATCH_SECONDS)}
        async for event in session.watch(resource.path(), params=params, read_timeout_seconds=WATCH_SECONDS):
            assert event["type"] != "ERROR", event
            self._keep(event["object"])

    def _keep(self, raw: Json) -> None:
        self._seen[(raw["metadata"]["uid"], resource_version(raw))] = raw
