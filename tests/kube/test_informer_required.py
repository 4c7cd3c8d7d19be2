"""A resource that can be done without: a server that refuses it, or does not know it, keeps nobody waiting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from flyball_kube.errors import ApiError
from flyball_kube.informer import Informer
from flyball_kube.resources import ENERGY_QUOTAS
from flyball_kube.session import JsonObject

from tests.support.waiting import until

LONG_AGO = 1e9


class RefusingSession:
    """An API server that answers lists with `status` until that is 200, and whose watches end at `cut`."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.lists = 0
        self.cut = asyncio.Event()

    async def get(self, path: str, **params: str) -> JsonObject:
        self.lists += 1
        if self.status != 200:
            raise ApiError(self.status, "", "the test says so", f"GET {path}")
        items = [{"metadata": {"name": "q", "namespace": "team", "resourceVersion": "7"}}]
        return {"metadata": {"resourceVersion": "10"}, "items": items}

    async def page(self, path: str, params: Mapping[str, str], max_bytes: int) -> JsonObject:
        return await self.get(path, **params)

    async def watch(self, path: str, **options: Any) -> AsyncIterator[JsonObject]:
        await self.cut.wait()
        self.cut.clear()
        raise ApiError(self.status, "", "the test says so", f"WATCH {path}")
        yield {}


async def informer_on(session: Any, *, required: bool) -> tuple[Informer[JsonObject], asyncio.Task[None]]:
    informer: Informer[JsonObject] = Informer(session, ENERGY_QUOTAS, lambda raw: raw, required=required)
    return informer, asyncio.create_task(informer.run())


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("status", [404, 403, 500])
async def test_only_what_is_required_is_waited_for(status: int) -> None:
    session = RefusingSession(status)
    needed, first = await informer_on(session, required=True)
    optional, second = await informer_on(session, required=False)
    await until(lambda: session.lists >= 4)
    assert optional.synced
    assert not needed.synced
    # That there is nothing is known; what one may not read is not.
    assert (optional.age_seconds() < LONG_AGO) == (status == 404)
    session.status = 200
    await until(lambda: len(optional) == len(needed) == 1)
    await end(first)
    await end(second)


async def test_a_kind_that_goes_takes_its_objects_along_and_is_spoken_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = RefusingSession(200)
    informer, task = await informer_on(session, required=False)
    await until(lambda: len(informer) == 1)
    session.status = 404
    with caplog.at_level(logging.WARNING):
        session.cut.set()
        await until(lambda: len(informer) == 0 and session.lists >= 3)
    assert sum("has no such resource" in record.getMessage() for record in caplog.records) == 1
    session.status = 200
    await until(lambda: len(informer) == 1)
    await end(task)


async def test_what_is_refused_later_counts_as_it_was_known() -> None:
    session = RefusingSession(200)
    informer, task = await informer_on(session, required=False)
    await until(lambda: len(informer) == 1)
    session.status = 403
    session.cut.set()
    await until(lambda: session.lists >= 3)
    assert len(informer) == 1
    await end(task)
