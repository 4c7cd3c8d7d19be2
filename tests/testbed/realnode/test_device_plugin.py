"""The device plugin against a kubelet's half of its API, on sockets in a folder."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from flyball_agent.training.device_plugin_messages import MESSAGES, PACKAGE, SERVICE, VERSION
from flyball_api.names import GPU_RESOURCE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_testbed.realnode import gpus
from flyball_testbed.realnode.device_plugin import (
    HEALTHY,
    KUBELET_SOCKET,
    OWN_SOCKET,
    UNHEALTHY,
    GpuPlugin,
    register,
    serve,
)

PRODUCT = "NVIDIA-A100-SXM4-40GB"
PATIENCE_SECONDS = 30


@pytest.fixture
def hardware(tmp_path: Path) -> Path:
    gpus.create_hardware(tmp_path / "node.gpus", PRODUCT, 3)
    return tmp_path / "node.gpus"


@pytest.fixture
def uuids(hardware: Path) -> list[str]:
    with SimulatedNode.open(hardware) as node:
        return [device.uuid for device in node.devices]


@pytest.fixture
def channel(hardware: Path, tmp_path: Path) -> Iterator[Any]:
    """A channel to the plugin, as the kubelet opens one."""
    plugin = GpuPlugin(str(hardware))
    server = serve(plugin, tmp_path)
    with grpc.insecure_channel(f"unix://{tmp_path / OWN_SOCKET}") as opened:
        yield opened
    plugin.close()
    server.stop(grace=None).wait()


def call(channel: Any, method: str, request: Any, answer: str) -> Any:
    stub = channel.unary_unary(
        f"/{SERVICE}/{method}", lambda message: message.SerializeToString(), MESSAGES[answer].FromString
    )
    return stub(request, timeout=PATIENCE_SECONDS)


def test_every_gpu_is_listed_and_a_lost_one_is_told_of(channel: Any, hardware: Path, uuids: list[str]) -> None:
    stub = channel.unary_stream(
        f"/{SERVICE}/ListAndWatch",
        lambda message: message.SerializeToString(),
        MESSAGES["ListAndWatchResponse"].FromString,
    )
    lists = stub(MESSAGES["Empty"](), timeout=PATIENCE_SECONDS)

    def health() -> dict[str, str]:
        return {device.ID: device.health for device in next(lists).devices}

    assert health() == dict.fromkeys(uuids, HEALTHY)
    with SimulatedNode.open(hardware) as node:
        node.device(uuids[1]).flags |= DeviceFault.LOST
        assert health() == {uuids[0]: HEALTHY, uuids[1]: UNHEALTHY, uuids[2]: HEALTHY}
        node.device(uuids[1]).flags &= ~DeviceFault.LOST
        assert health() == dict.fromkeys(uuids, HEALTHY)
    lists.cancel()


def test_each_container_is_told_the_gpus_chosen_for_it(channel: Any, uuids: list[str]) -> None:
    request = MESSAGES["AllocateRequest"](
        container_requests=[
            MESSAGES["ContainerAllocateRequest"](devices_ids=uuids[:2]),
            MESSAGES["ContainerAllocateRequest"](devices_ids=uuids[2:]),
        ]
    )
    first, second = call(channel, "Allocate", request, "AllocateResponse").container_responses
    assert first.envs["NVIDIA_VISIBLE_DEVICES"].split(",") == sorted(uuids[:2])
    assert second.envs["NVIDIA_VISIBLE_DEVICES"] == uuids[2]


def test_a_gpu_that_the_node_does_not_have_is_refused(channel: Any) -> None:
    request = MESSAGES["AllocateRequest"](
        container_requests=[MESSAGES["ContainerAllocateRequest"](devices_ids=["GPU-elsewhere"])]
    )
    with pytest.raises(grpc.RpcError) as refusal:
        call(channel, "Allocate", request, "AllocateResponse")
    assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
    assert "GPU-elsewhere" in refusal.value.details()


def test_registering_tells_the_kubelet_where_and_what(tmp_path: Path) -> None:
    received: queue.Queue[Any] = queue.Queue()

    def take(request: Any, _context: Any) -> Any:
        received.put(request)
        return MESSAGES["Empty"]()

    kubelet = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(
        take, MESSAGES["RegisterRequest"].FromString, lambda answer: answer.SerializeToString()
    )
    kubelet.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(f"{PACKAGE}.Registration", {"Register": handler}),)
    )
    kubelet.add_insecure_port(f"unix://{tmp_path / KUBELET_SOCKET}")
    kubelet.start()
    try:
        register(tmp_path)
        request = received.get(timeout=PATIENCE_SECONDS)
    finally:
        kubelet.stop(grace=None).wait()
    assert (request.version, request.endpoint, request.resource_name) == (VERSION, OWN_SOCKET, GPU_RESOURCE)


def test_a_product_that_the_catalogue_lacks_is_named_with_those_it_has(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"NVIDIA-Z9.*{PRODUCT}"):
        gpus.create_hardware(tmp_path / "node.gpus", "NVIDIA-Z9", 1)
