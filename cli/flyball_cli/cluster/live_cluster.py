"""The cluster as a view follows it: local copies kept by list and watch, so that looking often costs the API nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Self

from flyball_api.event import EventView
from flyball_api.names import DEFAULT_NAMESPACE, LEADER_LEASE
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.informer import Informer
from flyball_kube.resources import ENERGY_AWARE_JOBS, GPU_NODES, LEASES, NODES, POWER_CAPS, Resource
from flyball_kube.session import ApiSession
from flyball_views.overview import Overview, read_overview
from flyball_views.sightings import Sightings

from flyball_cli.cluster.access import missing_right, refusal
from flyball_cli.cluster.reading import events_about
from flyball_cli.cluster.terminal_view.app import SourceError

# Silence for longer than the API server's bookmarks and our watches take: what is shown may be old.
STALE_SECONDS = 90.0
FIRST_SECONDS = 20.0


class LiveCluster:
    """An `OverviewSource`: an async context manager around a session. Jobs are those of `namespace`, of all for None."""

    def __init__(self, session: ApiSession, namespace: str | None, operator_namespace: str = DEFAULT_NAMESPACE) -> None:
        self._session = session
        self._operator_namespace = operator_namespace
        self._wanted: tuple[tuple[Resource, str | None, dict[str, str]], ...] = (
            (POWER_CAPS, None, {}),
            (GPU_NODES, None, {}),
            (ENERGY_AWARE_JOBS, namespace, {}),
            (NODES, None, {}),
            (LEASES, operator_namespace, {"fieldSelector": f"metadata.name={LEADER_LEASE}"}),
        )
        self._informers: dict[Resource, Informer[Any]] = {}
        self._missing: dict[str, str] = {}
        self._sightings = Sightings()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Find out what may be read and follow that; raises ApiError where it is nothing of Flyball's."""
        refused: dict[Resource, ApiError] = {}
        for resource, namespace, params in self._wanted:
            try:
                await self._session.get(resource.path(namespace), limit="1", **params)
            except ApiError as error:
                if error.status != 403:
                    raise
                refused[resource] = error
                self._missing[resource.plural] = missing_right(error.message)
                continue
            self._informers[resource] = Informer(self._session, resource, _object, namespace=namespace, params=params)
        if not self._informers.keys() & {POWER_CAPS, GPU_NODES, ENERGY_AWARE_JOBS}:
            raise refused[ENERGY_AWARE_JOBS]
        tasks = [asyncio.create_task(informer.run()) for informer in self._informers.values()]
        self._stack.push_async_callback(_ended, tasks)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def overview(self) -> Overview:
        """The cluster by the copies as they are; raises SourceError where they may be old."""
        informers = self._informers
        try:
            async with asyncio.timeout(FIRST_SECONDS):
                await asyncio.gather(*(informer.wait_synced() for informer in informers.values()))
        except TimeoutError as error:
            raise SourceError(f"the API server has not given every list within {FIRST_SECONDS:g} s") from error
        age = max(informer.age_seconds() for informer in informers.values())
        if age > STALE_SECONDS:
            raise SourceError(f"nothing has come from the API server for {age:.0f} s")

        def of(resource: Resource) -> list[Any]:
            return list(informers[resource]) if resource in informers else []

        return read_overview(
            datetime.now(UTC),
            of(POWER_CAPS),
            of(GPU_NODES),
            of(ENERGY_AWARE_JOBS),
            of(NODES),
            next(iter(of(LEASES)), None),
            sightings=self._sightings,
            missing=self._missing,
            operator_namespace=self._operator_namespace,
        )

    async def events(self, kind: str, name: str, namespace: str) -> Sequence[EventView]:
        """The Events of one object lately; of a GPUNode those of its Node, too."""
        try:
            found = list(await events_about(self._session, kind, name, namespace))
            if kind == "GPUNode":
                found += await events_about(self._session, "Node", name)
        except ApiError as error:
            raise SourceError(refusal(error)) from error
        except ApiUnreachable as error:
            raise SourceError(str(error)) from error
        return found


def _object(raw: dict[str, Any]) -> dict[str, Any]:
    return raw


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
