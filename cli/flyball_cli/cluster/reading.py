"""The cluster as commands read it: everything that the caller may see, and what he may not by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from flyball_api.event import EventView, read_event
from flyball_api.names import DEFAULT_NAMESPACE, LEADER_LEASE
from flyball_api.reading import InvalidObject
from flyball_kube.errors import ApiError
from flyball_kube.resources import ENERGY_AWARE_JOBS, EVENTS, GPU_NODES, LEASES, NODES, POWER_CAPS, Resource
from flyball_kube.session import ApiSession
from flyball_views.overview import Overview, read_overview
from flyball_views.sightings import Sightings

from flyball_cli.cluster.access import missing_right

PAGE_SIZE = 500
# Events about cluster-scoped objects live here, by the API server's own rule.
CLUSTER_SCOPE_NAMESPACE = "default"


async def list_all(
    session: ApiSession, resource: Resource, namespace: str | None = None, **params: str
) -> list[dict[str, Any]]:
    """Every object of a resource, page by page; raises ApiError and ApiUnreachable."""
    return [item async for item in each_of(session, resource, namespace, params)]


async def each_of(
    session: ApiSession,
    resource: Resource,
    namespace: str | None = None,
    params: Mapping[str, str] | None = None,
    page_size: int = PAGE_SIZE,
) -> AsyncIterator[dict[str, Any]]:
    """The same, one after the other: of large objects no more are held at once than `page_size`."""
    token = ""
    while True:
        page = {**(params or {}), "limit": str(page_size), **({"continue": token} if token else {})}
        answer = await session.get(resource.path(namespace), **page)
        for item in answer.get("items") or []:
            yield item
        token = str((answer.get("metadata") or {}).get("continue") or "")
        if not token:
            return


async def look(
    session: ApiSession,
    namespace: str | None,
    sightings: Sightings | None = None,
    operator_namespace: str = DEFAULT_NAMESPACE,
) -> Overview:
    """The overview now, with the jobs of one namespace, or of all for None; what may not be read is in `missing`.

    Raises ApiError where nothing of Flyball's may be read, or it is not there; and ApiUnreachable.
    """
    missing: dict[str, str] = {}

    async def listed(resource: Resource, of: str | None = None) -> list[dict[str, Any]]:
        try:
            return await list_all(session, resource, of)
        except ApiError as error:
            if error.status != 403:
                raise
            missing[resource.plural] = missing_right(error.message)
            return []

    async def leading() -> dict[str, Any] | None:
        try:
            return await session.get(LEASES.path(operator_namespace, LEADER_LEASE))
        except ApiError as error:
            if error.status == 403:
                missing[LEASES.plural] = missing_right(error.message)
            elif not error.not_found:
                raise
            return None

    caps, gpu_nodes, jobs, nodes, lease = await asyncio.gather(
        listed(POWER_CAPS), listed(GPU_NODES), listed(ENERGY_AWARE_JOBS, namespace), listed(NODES), leading()
    )
    if {POWER_CAPS.plural, GPU_NODES.plural, ENERGY_AWARE_JOBS.plural} <= missing.keys():
        raise ApiError(403, "Forbidden", missing[ENERGY_AWARE_JOBS.plural], "")
    now = datetime.now(UTC)
    return read_overview(
        now,
        caps,
        gpu_nodes,
        jobs,
        nodes,
        lease,
        sightings=sightings,
        missing=missing,
        operator_namespace=operator_namespace,
    )


async def events_about(session: ApiSession, kind: str, name: str, namespace: str = "") -> Sequence[EventView]:
    """The events about one object, of those that the caller may read; none where he may read none."""
    selector = f"regarding.kind={kind},regarding.name={name}"
    try:
        raw = await list_all(session, EVENTS, namespace or CLUSTER_SCOPE_NAMESPACE, fieldSelector=selector)
    except ApiError as error:
        if error.status == 403:
            return ()
        raise
    found = []
    for item in raw:
        try:
            found.append(read_event(item))
        except InvalidObject:  # an event says nothing that another one does not
            continue
    return found
