"""Who holds which GPU: the simulated kubelet's file, and the gRPC client against a real server on a Unix socket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from flyball_agent.pods.kubelet import LIST_METHOD, KubeletPodResources, fields_of
from flyball_agent.pods.resources import PodDevices, PodResourcesError, SimulatedPodResources, gpu_of
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st


def test_device_ids_name_their_gpu() -> None:
    assert gpu_of("GPU-1") == "GPU-1"
    assert gpu_of("GPU-1::3") == "GPU-1"
    assert gpu_of("MIG-1") is None
    assert gpu_of("0000:3b:00.0") is None


async def test_the_file_is_read_and_read_again_where_it_changed(tmp_path: Path) -> None:
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
async def test_a_broken_file_is_said_and_read_again_once_it_is_whole(tmp_path: Path, content: str) -> None:
    path = tmp_path / "node-0.pods.json"
    path.write_text(content)
    source = SimulatedPodResources(path)
    with pytest.raises(PodResourcesError, match="not a list of pods"):
        await source.list()
    write(path, [{"namespace": "n", "name": "a", "devices": ["GPU-1"]}])
    assert list(await source.list()) == [PodDevices("n", "a", None, ("GPU-1",))]


def write(path: Path, pods: list[dict[str, Any]]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"pods": pods}))
    fresh.rename(path)


class Kubelet:
    """A gRPC server that answers List as the kubelet does, with fields that our client does not know."""

    def __init__(self, socket: Path) -> None:
        self.answer = b""
        self.refuse = False
        self.server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self.list, request_deserializer=lambda raw: raw, response_serializer=lambda raw: raw
        )
        service, method = LIST_METHOD[1:].split("/")
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self.server.add_insecure_port(f"unix://{socket}")

    async def list(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if self.refuse:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return self.answer


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    kubelet = Kubelet(tmp_path / "kubelet.sock")
    await kubelet.server.start()
    yield kubelet
    await kubelet.server.stop(None)


def field(number: int, content: bytes) -> bytes:
    """One length-delimited protobuf field, by hand: the test shares no encoder with the client."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


async def test_the_kubelets_answer_is_understood(tmp_path: Path, kubelet: Kubelet) -> None:
    gpus = field(1, b"nvidia.com/gpu") + field(2, b"GPU-1") + field(2, b"GPU-2") + field(3, b"\x0a\x00")
    nics = field(1, b"example.com/nic") + field(2, b"0000:17:00.0")
    container = field(1, b"trainer") + field(2, gpus) + field(2, nics)
    pod = field(1, b"gpt2-0") + field(2, b"research") + field(3, container)
    bare = field(1, b"coredns") + field(2, b"kube-system") + field(3, field(1, b"dns"))
    shared = field(1, b"shared") + field(2, b"other")
    shared += field(3, field(2, field(1, b"nvidia.com/gpu.shared") + field(2, b"GPU-3::7")))
    renamed = field(1, b"renamed") + field(2, b"other")
    renamed += field(3, field(2, field(1, b"example.com/a100") + field(2, b"GPU-4")))
    kubelet.answer = field(1, pod) + field(1, bare) + field(1, shared) + field(1, renamed)
    async with KubeletPodResources(tmp_path / "kubelet.sock") as source:
        assert list(await source.list()) == [
            PodDevices("research", "gpt2-0", None, ("GPU-1", "GPU-2")),
            PodDevices("other", "shared", None, ("GPU-3",)),
            PodDevices("other", "renamed", None, ("GPU-4",)),
        ]
        kubelet.answer = b""
        assert list(await source.list()) == []


async def test_ids_and_claims_that_name_no_gpu_are_said(tmp_path: Path, kubelet: Kubelet) -> None:
    def pod(name: bytes, container: bytes) -> bytes:
        return field(1, field(1, name) + field(2, b"n") + field(3, container))

    def devices(resource: bytes, device_id: bytes) -> bytes:
        return field(2, field(1, resource) + field(2, device_id))

    def claim(name: bytes, served_by: bytes) -> bytes:
        return field(5, field(2, name) + field(3, b"n") + field(4, served_by))

    kubelet.answer = pod(b"slice", devices(b"nvidia.com/mig-1g.5gb", b"MIG-4f2a"))
    kubelet.answer += pod(b"index", devices(b"nvidia.com/gpu", b"0"))
    kubelet.answer += pod(b"renamed", devices(b"example.com/a100", b"nvidia0"))
    kubelet.answer += pod(b"claim", claim(b"c", field(2, b"gpu.nvidia.com") + field(4, b"gpu-0")))
    kubelet.answer += pod(b"part", claim(b"p", field(2, b"gpu.nvidia.com") + field(4, b"gpu-11-mig-9-0-1")))
    kubelet.answer += pod(b"passed", claim(b"v", field(2, b"gpu.nvidia.com") + field(4, b"gpu-vfio-1")))
    kubelet.answer += pod(b"others", claim(b"o", field(2, b"gpu.intel.com") + field(4, b"gpu-0")))
    kubelet.answer += pod(b"nameless", field(5, field(2, b"l") + field(3, b"n")))
    kubelet.answer += pod(b"old-claim", claim(b"d", field(1, field(1, b"k8s.gpu.nvidia.com/claim=1"))))
    kubelet.answer += pod(b"nic", devices(b"rdma/hca_shared", b"0") + claim(b"e", field(2, b"dra.net")))
    async with KubeletPodResources(tmp_path / "kubelet.sock") as source:
        assert list(await source.list()) == [
            PodDevices("n", "slice", None, (), ("MIG-4f2a",)),
            PodDevices("n", "index", None, (), ("0",)),
            PodDevices("n", "renamed", None, (), ("nvidia0",)),
            PodDevices("n", "claim", None, (), ("gpu.nvidia.com/gpu-0",)),
            PodDevices("n", "part", None, (), ("gpu.nvidia.com/gpu-11::mig-9-0-1",)),
            PodDevices("n", "passed", None, (), ("claim n/v",)),
            PodDevices("n", "others", None, (), ("claim n/o",)),
            PodDevices("n", "nameless", None, (), ("claim n/l",)),
            PodDevices("n", "old-claim", None, (), ("claim n/d",)),
        ]


async def test_an_answer_that_does_not_decode_is_said(tmp_path: Path, kubelet: Kubelet) -> None:
    async with KubeletPodResources(tmp_path / "kubelet.sock") as source:
        kubelet.answer = b"\x0a\xff\xff"
        with pytest.raises(PodResourcesError, match=r"kubelet\.sock"):
            await source.list()


async def test_a_kubelet_that_refuses_or_is_not_there_is_said(tmp_path: Path, kubelet: Kubelet) -> None:
    async with KubeletPodResources(tmp_path / "kubelet.sock") as source:
        kubelet.refuse = True
        with pytest.raises(PodResourcesError, match=r"kubelet.sock: RESOURCE_EXHAUSTED: rejected"):
            await source.list()
        kubelet.refuse = False
        assert list(await source.list()) == []
    async with KubeletPodResources(tmp_path / "none.sock", timeout_seconds=0.3) as source:
        with pytest.raises(PodResourcesError, match=r"none\.sock"):
            await source.list()


def _any_message() -> Any:
    """A message of protobuf's own with fields of every kind that there is on the wire."""
    kinds = descriptor_pb2.FieldDescriptorProto
    types = [
        kinds.TYPE_STRING,
        kinds.TYPE_BYTES,
        kinds.TYPE_INT64,
        kinds.TYPE_FIXED32,
        kinds.TYPE_DOUBLE,
        kinds.TYPE_BOOL,
    ]
    file = descriptor_pb2.FileDescriptorProto(name="any.proto", package="any", syntax="proto3")
    message = file.message_type.add(name="Any")
    for number, kind in enumerate(types, start=1):
        number = number if number < 5 else number * 1000  # a tag of several bytes
        message.field.add(name=f"f{number}", number=number, type=kind, label=kinds.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("any.Any"))


ANY = _any_message()


@given(
    texts=st.lists(st.text(max_size=300)),
    blobs=st.lists(st.binary(max_size=300)),
    numbers=st.lists(st.integers(-(2**63), 2**63 - 1)),
    words=st.lists(st.integers(0, 2**32 - 1)),
    floats=st.lists(st.floats()),
)
def test_fields_are_those_that_protobufs_own_library_has_written(
    texts: list[str], blobs: list[bytes], numbers: list[int], words: list[int], floats: list[float]
) -> None:
    message = ANY(f1=texts, f2=blobs, f3=numbers, f4=words, f5000=floats, f6000=[True, False])
    found = list(fields_of(message.SerializeToString()))
    assert [content.decode() for number, content in found if number == 1] == texts
    assert [content for number, content in found if number == 2] == blobs
    assert {number for number, _ in found} <= {1, 2, 3, 4, 5000, 6000}  # numbers in a row are packed into one field


@given(st.binary(max_size=80))
def test_what_is_no_message_is_refused_in_words(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(fields_of(raw))
