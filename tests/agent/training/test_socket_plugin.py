"""The device plugin of training sockets, against a kubelet's half of its API and on a folder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from flyball_agent.pods.resources import pod_gpus
from flyball_agent.process.options import AgentOptions
from flyball_agent.training.device_plugin_messages import MESSAGES, PACKAGE, SERVICE
from flyball_agent.training.socket_plugin import KUBELET_SOCKET, OWN_SOCKET, UNITS, SocketPlugin
from flyball_api.names import SOCKET_RESOURCE

from tests.support.waiting import PATIENCE_SECONDS, until


@pytest.fixture
def folder(short_folder: Path) -> Path:
    (short_folder / "plugins").mkdir()
    return short_folder


class Kubelet:
    """As much of a kubelet as registers plugins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.registered: list[Any] = []

    async def _register(self, request: Any, _context: Any) -> Any:
        self.registered.append(request)
        return MESSAGES["Empty"]()

    async def start(self) -> None:
        """As a kubelet starts: with its folder cleared."""
        for path in self._folder.iterdir():
            path.unlink()
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, MESSAGES["RegisterRequest"].FromString, lambda answer: answer.SerializeToString()
        )
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(f"{PACKAGE}.Registration", {"Register": handler}),)
        )
        self._server.add_insecure_port(f"unix://{self._folder / KUBELET_SOCKET}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def allocate(self, *devices: str) -> Any:
        request = MESSAGES["AllocateRequest"](
            container_requests=[MESSAGES["ContainerAllocateRequest"](devices_ids=devices)]
        )
        async with grpc.aio.insecure_channel(f"unix://{self._folder / OWN_SOCKET}") as channel:
            call = channel.unary_unary(
                f"/{SERVICE}/Allocate",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=MESSAGES["AllocateResponse"].FromString,
            )
            (given,) = (await call(request, timeout=PATIENCE_SECONDS)).container_responses
        return given

    async def listed(self) -> dict[str, str]:
        async with grpc.aio.insecure_channel(f"unix://{self._folder / OWN_SOCKET}") as channel:
            call = channel.unary_stream(
                f"/{SERVICE}/ListAndWatch",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=MESSAGES["ListAndWatchResponse"].FromString,
            )
            async for answer in call(MESSAGES["Empty"](), timeout=PATIENCE_SECONDS):
                return {device.ID: device.health for device in answer.devices}
        return {}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def running(plugin: SocketPlugin, kubelet: Kubelet) -> AsyncIterator[None]:
    task = asyncio.create_task(plugin.run())
    try:
        await kubelet.start()
        await until(lambda: bool(kubelet.registered), "the plugin registers")
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await kubelet.stop()


async def test_a_pod_is_given_a_fresh_folder_that_its_device_then_names(folder: Path) -> None:
    clock = Clock()
    plugin = SocketPlugin(folder / "plugins", folder / "s", "/host/s", monotonic=clock)
    kubelet = Kubelet(folder / "plugins")
    async with running(plugin, kubelet):
        (request,) = kubelet.registered
        assert (request.resource_name, request.endpoint) == (SOCKET_RESOURCE, OWN_SOCKET)
        listed = await kubelet.listed()
        assert len(listed) == UNITS
        assert set(listed.values()) == {"Healthy"}
        first = await kubelet.allocate("socket-3")
        (mount,) = first.mounts
        (made,) = (folder / "s").iterdir()
        assert (mount.container_path, mount.host_path) == ("/run/flyball", f"/host/s/{made.name}")
        assert mount.read_only
        assert first.envs["FLYBALL_SOCKET"] == "/run/flyball/flyball.sock"
        assert plugin.folder_of("socket-3", clock.now + 1) == made.name
        assert plugin.folder_of("socket-4", clock.now + 1) is None

        # The next pod on the same device sees nothing of the one before; an answer of before does not mean it.
        clock.now = 200.0
        (made / "left").touch()
        await kubelet.allocate("socket-3")
        (other,) = (folder / "s").iterdir()
        assert other.name != made.name
        assert not list(other.iterdir())
        assert plugin.folder_of("socket-3", 199.0) is None
        assert plugin.folder_of("socket-3", 201.0) == other.name


async def test_what_was_given_is_known_after_a_restart(folder: Path) -> None:
    plugin, kubelet = SocketPlugin(folder / "plugins", folder / "s"), Kubelet(folder / "plugins")
    async with running(plugin, kubelet):
        await kubelet.allocate("socket-7")
    (made,) = (folder / "s").iterdir()
    (folder / "s" / "9f1c-a-pods-uid").mkdir()  # of the way by hostPath
    again = SocketPlugin(folder / "plugins", folder / "s")
    assert again.folder_of("socket-7", 0.0) == made.name


async def test_it_registers_again_with_a_kubelet_that_was_started_anew(folder: Path) -> None:
    plugin, kubelet = SocketPlugin(folder / "plugins", folder / "s"), Kubelet(folder / "plugins")
    async with running(plugin, kubelet):
        await kubelet.stop()
        await kubelet.start()
        await until(lambda: len(kubelet.registered) >= 2, "it has registered again")
        assert (await kubelet.allocate("socket-0")).mounts


@pytest.mark.parametrize("device", ["socket-9999", "../../etc", "GPU-1"])
async def test_a_device_that_is_not_offered_is_refused(folder: Path, device: str) -> None:
    plugin, kubelet = SocketPlugin(folder / "plugins", folder / "s"), Kubelet(folder / "plugins")
    async with running(plugin, kubelet):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await kubelet.allocate(device)
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
        assert not (folder / "s").exists()


async def test_a_folder_that_cannot_be_made_is_refused_and_the_next_one_is_given(folder: Path) -> None:
    plugin, kubelet = SocketPlugin(folder / "plugins", folder / "s"), Kubelet(folder / "plugins")
    async with running(plugin, kubelet):
        (folder / "s").touch()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await kubelet.allocate("socket-1")
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        (folder / "s").unlink()
        assert (await kubelet.allocate("socket-1")).mounts


def test_a_socket_is_no_gpu() -> None:
    devices = [("nvidia.com/gpu", "GPU-1"), (SOCKET_RESOURCE, "socket-3")]
    found = pod_gpus("default", "fit", None, devices)
    assert found is not None
    assert (found.gpus, found.unresolved, found.sockets) == (("GPU-1",), (), ("socket-3",))
    assert pod_gpus("default", "fit", None, devices[1:]) is None


def test_a_plugin_without_a_folder_for_sockets_is_refused() -> None:
    with pytest.raises(ValueError, match="--socket-dir"):
        AgentOptions(node_name="n", socket_plugin_dir=Path("/var/lib/kubelet/device-plugins"))
