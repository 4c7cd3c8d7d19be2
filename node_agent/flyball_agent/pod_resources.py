"""Which pod holds which boards: the kubelet's word (PodResources v1), or the simulated kubelet's file.

Device ids are `GPU-<uuid>` for a whole board, `MIG-<uuid>` for a slice of one, and `<uuid>::<replica>` where a board is
handed out several times; `board_of` gives the board. The kubelet names pods without a UID; the simulated file has it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

logger = logging.getLogger(__name__)

KUBELET_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
GPU_RESOURCE = "nvidia.com/gpu"
# A node has a few hundred pods; a longer answer or file is not what it says it is.
MAX_BYTES = 16 * 1024 * 1024


class PodResourcesError(Exception):
    """Nobody says now which pod holds what; the last answer still stands."""


@dataclass(frozen=True, slots=True)
class PodDevices:
    """One pod and the boards that it holds, by UUID in order; `uid` is None where the source does not tell."""

    namespace: str
    name: str
    uid: str | None
    boards: tuple[str, ...]


class PodResources(Protocol):
    """A source of pods with boards."""

    async def list(self) -> Sequence[PodDevices]:
        """Every pod that holds a board. Raises PodResourcesError."""
        ...

    async def close(self) -> None: ...


def board_of(device_id: str) -> str | None:
    """The board's UUID of a device id; None for what is no board (a MIG slice's board is not told by its id)."""
    uuid = device_id.split("::", 1)[0]
    return uuid if uuid.startswith("GPU-") else None


class SimulatedPodResources:
    """Reads `<node>.pods.json`, written atomically by the simulated kubelet; again only where it has changed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int, int] | None = None
        self._pods: Sequence[PodDevices] = ()

    async def list(self) -> Sequence[PodDevices]:
        return self.read()

    def read(self) -> Sequence[PodDevices]:
        """Every pod in the file; no pod where there is no file yet. Raises PodResourcesError for one that is broken."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._seen, self._pods = None, ()
            return self._pods
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if version != self._seen:
            try:
                if status.st_size > MAX_BYTES:
                    raise ValueError(f"{status.st_size} bytes")
                self._pods = _parse(json.loads(self.path.read_bytes()))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise PodResourcesError(f"{self.path}: not a list of pods: {error!r}") from error
            self._seen = version
        return self._pods

    async def close(self) -> None:
        """Nothing is held open."""


def _parse(content: Mapping[str, Any]) -> Sequence[PodDevices]:
    pods = []
    for pod in content["pods"]:
        boards = tuple(dict.fromkeys(board for device in pod["devices"] if (board := board_of(str(device)))))
        if boards:
            uid = pod.get("uid")
            pods.append(PodDevices(str(pod["namespace"]), str(pod["name"]), str(uid) if uid else None, boards))
    return pods


# ---- the kubelet -------------------------------------------------------------------------------------------------
# The part of k8s.io/kubelet/pkg/apis/podresources/v1 that we read; protobuf skips what a message does not declare.
_PACKAGE = "v1"
_MESSAGES: dict[str, list[tuple[str, int, str | None, bool]]] = {
    # message: (field, number, message type or None for string, repeated)
    "ListPodResourcesRequest": [],
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources", True)],
    "PodResources": [
        ("name", 1, None, False),
        ("namespace", 2, None, False),
        ("containers", 3, "ContainerResources", True),
    ],
    "ContainerResources": [("name", 1, None, False), ("devices", 2, "ContainerDevices", True)],
    "ContainerDevices": [("resource_name", 1, None, False), ("device_ids", 2, None, True)],
}
LIST_METHOD = "/v1.PodResourcesLister/List"


def _message_classes() -> Mapping[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="flyball/podresources.proto", package=_PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            message.field.add(
                name=field,
                number=number,
                type=kinds.TYPE_STRING if kind is None else kinds.TYPE_MESSAGE,
                type_name=None if kind is None else f".{_PACKAGE}.{kind}",
                label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()  # not the default one: others may have registered v1 there
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


MESSAGES = _message_classes()


class KubeletPodResources:
    """Asks the kubelet over its Unix socket (`PodResourcesLister/List`; the kubelet allows 100 calls a second)."""

    def __init__(
        self,
        socket: str | os.PathLike[str] = KUBELET_SOCKET,
        *,
        resource: str = GPU_RESOURCE,
        timeout_seconds: float = 2.0,
    ) -> None:
        self._socket = os.fspath(socket)
        self._resource = resource
        self._timeout = timeout_seconds
        self._channel = grpc.aio.insecure_channel(
            f"unix://{self._socket}", options=[("grpc.max_receive_message_length", MAX_BYTES)]
        )
        self._list = self._channel.unary_unary(
            LIST_METHOD,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=MESSAGES["ListPodResourcesResponse"].FromString,
        )

    async def list(self) -> Sequence[PodDevices]:
        try:
            answer = await self._list(MESSAGES["ListPodResourcesRequest"](), timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise PodResourcesError(f"{self._socket}: {error.code().name}: {error.details()}") from error
        pods = []
        for pod in answer.pod_resources:
            ids = (
                device
                for container in pod.containers
                for devices in container.devices
                if devices.resource_name == self._resource or devices.resource_name.startswith(f"{self._resource}.")
                for device in devices.device_ids
            )
            boards = tuple(dict.fromkeys(board for device in ids if (board := board_of(device))))
            if boards:
                pods.append(PodDevices(pod.namespace, pod.name, None, boards))
        return pods

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> KubeletPodResources:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
