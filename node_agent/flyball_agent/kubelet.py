"""Which pod holds which GPUs, from the kubelet: its PodResources API (v1), gRPC on a Unix socket."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from flyball_agent.gpu.gpu import claimed_device_id
from flyball_agent.pod_resources import MAX_BYTES, PodGpus, PodResourcesError, pod_gpus

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
    "ContainerResources": [
        ("name", 1, None, False),
        ("devices", 2, "ContainerDevices", True),
        ("dynamic_resources", 5, "DynamicResource", True),
    ],
    "ContainerDevices": [("resource_name", 1, None, False), ("device_ids", 2, None, True)],
    "DynamicResource": [
        ("claim_name", 2, None, False),
        ("claim_namespace", 3, None, False),
        ("claim_resources", 4, "ClaimResource", True),
    ],
    "ClaimResource": [
        ("cdi_devices", 1, "CDIDevice", True),
        ("driver_name", 2, None, False),
        ("device_name", 4, None, False),
    ],
    "CDIDevice": [("name", 1, None, False)],
}
LIST_METHOD = "/v1.PodResourcesLister/List"
# NVIDIA's driver for claims calls a GPU gpu-3, and a part of it gpu-3-mig-9-0-1 (profile, first slice, slices).
_CLAIMS_DRIVER = "gpu.nvidia.com"
_CLAIMED_GPU = re.compile(r"gpu-([0-9]{1,4})(?:-(mig-[0-9-]+))?")


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


def _devices(pod: Any) -> Iterator[tuple[str, str]]:
    for container in pod.containers:
        for devices in container.devices:
            for device_id in devices.device_ids:
                yield devices.resource_name, device_id


def _claimed_gpus(pod: Any) -> Iterator[str]:
    """The GPUs of the pod's claims: by the device's name where it is one that NVIDIA's driver gives, else by the claim's.

    A claim of which it is not said who serves it may be of GPUs, too.
    """
    for container in pod.containers:
        for claim in container.dynamic_resources:
            resources = claim.claim_resources
            names = [resource.driver_name for resource in resources]
            names += [device.name for resource in resources for device in resource.cdi_devices]
            if any(names) and not any("gpu" in name for name in names):
                continue
            for resource in resources or [None]:
                named = None if resource is None else _CLAIMED_GPU.fullmatch(resource.device_name)
                if named is not None and resource.driver_name == _CLAIMS_DRIVER:
                    part = f"::{named[2]}" if named[2] else ""
                    yield claimed_device_id(int(named[1])) + part
                elif resource is None or resource.driver_name in ("", _CLAIMS_DRIVER) or "gpu" in resource.driver_name:
                    yield f"claim {claim.claim_namespace}/{claim.claim_name}"


class KubeletPodResources:
    """Asks the kubelet over its Unix socket (`PodResourcesLister/List`; the kubelet allows 100 calls a second)."""

    def __init__(
        self,
        socket: str | os.PathLike[str],
        *,
        timeout_seconds: float = 2.0,
    ) -> None:
        self._socket = os.fspath(socket)
        self._timeout = timeout_seconds
        self._channel = grpc.aio.insecure_channel(
            f"unix://{self._socket}", options=[("grpc.max_receive_message_length", MAX_BYTES)]
        )
        self._list = self._channel.unary_unary(
            LIST_METHOD,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=MESSAGES["ListPodResourcesResponse"].FromString,
        )

    async def list(self) -> Sequence[PodGpus]:
        try:
            answer = await self._list(MESSAGES["ListPodResourcesRequest"](), timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise PodResourcesError(f"{self._socket}: {error.code().name}: {error.details()}") from error
        if answer is None:  # what gRPC makes of an answer that does not decode
            raise PodResourcesError(f"{self._socket}: the answer is no list of pods")
        found = (
            pod_gpus(pod.namespace, pod.name, None, _devices(pod), _claimed_gpus(pod)) for pod in answer.pod_resources
        )
        return [pod for pod in found if pod is not None]

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> KubeletPodResources:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
