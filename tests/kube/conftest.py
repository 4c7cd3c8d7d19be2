"""Ways to a namespace on the real API server, and informers at their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest_asyncio
from flyball_kube.informer import Informer
from flyball_kube.session import ApiSession, JsonObject
from flyball_testbed.controlplane.cluster import DevCluster

from tests.support.control_plane import IsolatedCluster
from tests.support.way import CONFIG_MAPS, Watch, Way, open_way, value


@pytest_asyncio.fixture
async def way(cluster: IsolatedCluster) -> AsyncIterator[Way]:
    async with AsyncExitStack() as stack:
        yield await open_way(stack, cluster.devcluster, cluster.namespace)


@pytest_asyncio.fixture
async def fresh_way(fresh_cluster: DevCluster) -> AsyncIterator[Way]:
    """A way to a control plane of the test's own, whose parts may be stopped."""
    async with AsyncExitStack() as stack:
        yield await open_way(stack, fresh_cluster, "default")


@pytest_asyncio.fixture
async def watching() -> AsyncIterator[Watch]:
    """Starts informers of a way's ConfigMaps: `watching(way, watch_seconds=...)`."""
    tasks: list[asyncio.Task[None]] = []

    def run(
        way: Way, *, session: ApiSession | None = None, parse: Callable[[JsonObject], str] = value, **options: Any
    ) -> Informer[str]:
        informer = Informer(session or way.session, CONFIG_MAPS, parse, namespace=way.namespace, **options)
        tasks.append(asyncio.create_task(informer.run()))
        return informer

    yield run
    for task in tasks:
        assert not task.done(), "an informer must never end by itself"
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
