"""The way to a real API server, which can be broken, and ConfigMaps at its end to play with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from flyball_kube.credentials import load_configuration
from flyball_kube.informer import Informer
from flyball_kube.resources import Resource
from flyball_kube.session import ApiSession, JsonObject
from flyball_testbed.controlplane.cluster import DevCluster

from tests.support.proxy import Proxy
from tests.support.waiting import PATIENCE_SECONDS, until

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")


@dataclass
class Way:
    """The API server directly (`direct`) and through a proxy (`session`), with ConfigMaps in a namespace to play with."""

    direct: ApiSession
    session: ApiSession
    proxy: Proxy
    namespace: str

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


Watch = Callable[..., Informer[str]]
"""Starts an informer of a way's ConfigMaps: `watching(way, watch_seconds=...)`."""


def value(raw: JsonObject) -> str:
    """What the tests' informers keep of a ConfigMap; raises ValueError where its value is not a number."""
    data = raw.get("data") or {}
    return str(int(data["value"])) if "value" in data else ""


async def open_way(stack: AsyncExitStack, devcluster: DevCluster, namespace: str, *, lean: bool = False) -> Way:
    """Sessions to `devcluster`, one of them through a proxy, closed by `stack`."""
    kubeconfig = devcluster.control_plane.kubeconfig()
    proxy = await stack.enter_async_context(Proxy(int(devcluster.control_plane.server_url.rpartition(":")[2])))
    configuration = load_configuration(kubeconfig)
    direct = await stack.enter_async_context(ApiSession(configuration, lean=lean))
    around = load_configuration(kubeconfig)
    around.host = f"https://127.0.0.1:{proxy.port}"
    session = await stack.enter_async_context(ApiSession(around, timeout_seconds=PATIENCE_SECONDS, lean=lean))
    return Way(direct, session, proxy, namespace)
