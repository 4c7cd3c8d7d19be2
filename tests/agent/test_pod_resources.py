"""Who holds which board: the simulated kubelet's file, and the gRPC client against a real server on a Unix socket."""

from __future__ import annotations

import json

import grpc
import pytest
from flyball_agent.pod_resources import (
    LIST_METHOD,
    MESSAGES,
    KubeletPodResources,
    PodDevices,
    PodResourcesError,
    SimulatedPodResources,
    board_of,
)


def test_device_ids_name_their_board():
    assert board_of("GPU-1") == "GPU-1"
    assert board_of("GPU-1::3") == "GPU-1"
    assert board_of("MIG-1") is None
    assert board_of("0000:3b:00.0") is None


async def test_the_file_is_read_and_read_again_where_it_changed(tmp_path):
    path = tmp_path / "node-0.pods.json"
    source = SimulatedPodResources(path)
    assert list(await source.list()) == []
    write(path, [{"namespace": "research", "name": "a", "uid": "u", "devices": ["GPU-1", "GPU-2", "GPU-1::1"]}])
    assert list(await source.list()) == [PodDevices("research", "a", "u", ("GPU-1", "GPU-2"))]
    assert await source.list() is await source.list()  # not parsed again
    write(path, [])
    assert list(await source.list()) == []
    path.unlink()
    assert list(await source.list()) == []
    await source.close()


@pytest.mark.parametrize("content", ["{", "[]", '{"pods": [{"name": 1}]}', '{"pods": 5}'])
async def test_a_broken_file_is_said_and_read_again_once_it_is_whole(tmp_path, content):
    path = tmp_path / "node-0.pods.json"
    path.write_text(content)
    source = SimulatedPodResources(path)
    with pytest.raises(PodResourcesError, match="not a list of pods"):
        await source.list()
    write(path, [{"namespace": "n", "name": "a", "devices": ["GPU-1"]}])
    assert list(await source.list()) == [PodDevices("n", "a", None, ("GPU-1",))]


def write(path, pods) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"pods": pods}))
    fresh.rename(path)


class Kubelet:
    """A gRPC server that answers List as the kubelet does, with fields that our client does not know."""

    def __init__(self, socket) -> None:
        self.answer = b""
        self.refuse = False
        self.server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self.list, request_deserializer=lambda raw: raw, response_serializer=lambda raw: raw
        )
        service, method = LIST_METHOD[1:].split("/")
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self.server.add_insecure_port(f"unix://{socket}")

    async def list(self, request, context):
        if self.refuse:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return self.answer


@pytest.fixture
async def kubelet(tmp_path):
    kubelet = Kubelet(tmp_path / "kubelet.sock")
    await kubelet.server.start()
    yield kubelet
    await kubelet.server.stop(None)


def field(number: int, content: bytes) -> bytes:
    """One length-delimited protobuf field, by hand: the test shares no encoder with the client."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


async def test_the_kubelets_answer_is_understood(tmp_path, kubelet):
    gpus = field(1, b"nvidia.com/gpu") + field(2, b"GPU-1") + field(2, b"GPU-2") + field(3, b"\x0a\x00")
    nics = field(1, b"example.com/nic") + field(2, b"GPU-not-a-gpu")
    container = field(1, b"trainer") + field(2, gpus) + field(2, nics)
    pod = field(1, b"gpt2-0") + field(2, b"research") + field(3, container)
    bare = field(1, b"coredns") + field(2, b"kube-system") + field(3, field(1, b"dns"))
    shared = field(1, b"shared") + field(2, b"other")
    shared += field(3, field(2, field(1, b"nvidia.com/gpu.shared") + field(2, b"GPU-3::7")))
    kubelet.answer = field(1, pod) + field(1, bare) + field(1, shared)
    async with KubeletPodResources(tmp_path / "kubelet.sock") as source:
        assert list(await source.list()) == [
            PodDevices("research", "gpt2-0", None, ("GPU-1", "GPU-2")),
            PodDevices("other", "shared", None, ("GPU-3",)),
        ]
        kubelet.answer = b""
        assert list(await source.list()) == []


async def test_a_kubelet_that_refuses_or_is_not_there_is_said(tmp_path, kubelet):
    async with KubeletPodResources(tmp_path / "kubelet.sock") as source:
        kubelet.refuse = True
        with pytest.raises(PodResourcesError, match=r"kubelet.sock: RESOURCE_EXHAUSTED: rejected"):
            await source.list()
        kubelet.refuse = False
        assert list(await source.list()) == []
    async with KubeletPodResources(tmp_path / "none.sock", timeout_seconds=0.3) as source:
        with pytest.raises(PodResourcesError, match=r"none\.sock"):
            await source.list()


def test_the_request_is_empty_on_the_wire():
    assert MESSAGES["ListPodResourcesRequest"]().SerializeToString() == b""
