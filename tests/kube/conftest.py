"""A namespace on the real API server, and a way there that can be broken."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest_asyncio
from flyball_kube.informer import Informer
from flyball_kube.resources import Resource
from flyball_kube.session import ApiSession, JsonObject, load_configuration

PATIENCE_SECONDS = 30.0
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")


def _load(name: str) -> ModuleType:
    """A module beside this file: tests are imported one by one, so that there is no package to import it from."""
    spec = importlib.util.spec_from_file_location(f"flyball_tests_kube_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Proxy = _load("proxy").Proxy


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str = "") -> None:
    """Return once `condition` holds; fails after a long while."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = condition()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError as error:
        raise AssertionError(f"never came true: {what or condition}") from error


@dataclass
class Way:
    """The API server directly (`direct`) and through a proxy (`session`), with ConfigMaps in a namespace to play with."""

    direct: ApiSession
    session: ApiSession
    proxy: Any
    namespace: str
    until: Callable[..., Awaitable[None]] = field(default=until)

    def path(self, name: str | None = None) -> str:
        return CONFIG_MAPS.path(self.namespace, name)

    async def put(self, name: str, value: str = "1") -> JsonObject:
        """Create a ConfigMap with `data.value`, or change it."""
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}}
        return await self.direct.apply(self.path(name), body, "tests")

    async def delete(self, name: str) -> None:
        await self.direct.delete(self.path(name))

    async def stored(self) -> dict[str, str]:
        """What the API server has: data.value by name."""
        items = (await self.direct.get(self.path()))["items"]
        return {
            item["metadata"]["name"]: value(item) for item in items if item["metadata"]["name"] != "kube-root-ca.crt"
        }

    def held(self, informer: Informer[str]) -> dict[str, str]:
        """What an informer has, by name."""
        return {key.partition("/")[2]: held for key, held in informer.items() if not key.endswith("/kube-root-ca.crt")}

    async def in_step(self, informer: Informer[str]) -> None:
        """Return once the informer has what the API server has."""

        async def equal() -> bool:
            return self.held(informer) == await self.stored()

        await until(equal, "the informer has what the API server has")


def value(raw: JsonObject) -> str:
    """What the tests' informers keep of a ConfigMap; raises ValueError where its value is not a number."""
    data = raw.get("data") or {}
    return str(int(data["value"])) if "value" in data else ""


async def open_way(stack: AsyncExitStack, devcluster: Any, namespace: str) -> Way:
    """Sessions to `devcluster`, one of them through a proxy, closed by `stack`."""
    kubeconfig = devcluster.control_plane.kubeconfig()
    proxy = await stack.enter_async_context(Proxy(int(devcluster.control_plane.server_url.rpartition(":")[2])))
    configuration = await load_configuration(kubeconfig)
    direct = await stack.enter_async_context(ApiSession(configuration))
    around = await load_configuration(kubeconfig)
    around.host = f"https://127.0.0.1:{proxy.port}"
    session = await stack.enter_async_context(ApiSession(around, timeout_seconds=PATIENCE_SECONDS))
    return Way(direct, session, proxy, namespace)


@pytest_asyncio.fixture
async def way(cluster: Any) -> AsyncIterator[Way]:
    async with AsyncExitStack() as stack:
        yield await open_way(stack, cluster.devcluster, cluster.namespace)


@pytest_asyncio.fixture
async def fresh_way(fresh_cluster: Any) -> AsyncIterator[Way]:
    """A way to a control plane of the test's own, whose parts may be stopped."""
    async with AsyncExitStack() as stack:
        yield await open_way(stack, fresh_cluster, "default")


Run = Callable[..., Informer[str]]


@pytest_asyncio.fixture
async def watching() -> AsyncIterator[Run]:
    """Starts informers of a way's ConfigMaps: `watching(way, watch_seconds=...)`."""
    tasks: list[asyncio.Task[None]] = []

    def run(
        way: Way, *, session: ApiSession | None = None, parse: Callable[[JsonObject], str] = value, **options: Any
    ) -> Any:
        informer = Informer(session or way.session, CONFIG_MAPS, parse, namespace=way.namespace, **options)
        tasks.append(asyncio.create_task(informer.run()))
        return informer

    yield run
    for task in tasks:
        assert not task.done(), "an informer must never end by itself"
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
