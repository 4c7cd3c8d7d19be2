"""Which pod holds which GPUs, from the kubelet: its PodResources API (v1), gRPC on a Unix socket."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Sequence
from types import TracebackType

from flyball_agent.gpu.gpu import claimed_device_id
from flyball_agent.pods.resources import MAX_BYTES, PodDevices, PodResourcesError, pod_gpus
from flyball_agent.wire.unary_call import CallFailed, call

LIST_METHOD = "/v1.PodResourcesLister/List"
# The fields of k8s.io/kubelet/pkg/apis/podresources/v1 that are read, by their numbers; what else there is is skipped.
POD_RESOURCES = 1  # of the answer
POD_NAME, POD_NAMESPACE, POD_CONTAINERS = 1, 2, 3
CONTAINER_DEVICES, CONTAINER_DYNAMIC_RESOURCES = 2, 5
DEVICES_RESOURCE_NAME, DEVICES_IDS = 1, 2
CLAIM_NAME, CLAIM_NAMESPACE, CLAIM_RESOURCES = 2, 3, 4
RESOURCE_CDI_DEVICES, RESOURCE_DRIVER_NAME, RESOURCE_DEVICE_NAME = 1, 2, 4
CDI_DEVICE_NAME = 1
# NVIDIA's driver for claims calls a GPU gpu-3, and a part of it gpu-3-mig-9-0-1 (profile, first slice, slices).
_CLAIMS_DRIVER = "gpu.nvidia.com"
_CLAIMED_GPU = re.compile(r"gpu-([0-9]{1,4})(?:-(mig-[0-9-]+))?")


class _Message:
    """A message of protocol buffers as it is on the wire: the texts and messages in it by the numbers of their fields."""

    def __init__(self, raw: bytes) -> None:
        self._fields: dict[int, list[bytes]] = {}
        for number, content in fields_of(raw):
            self._fields.setdefault(number, []).append(content)

    def messages(self, number: int) -> list[_Message]:
        return [_Message(content) for content in self._fields.get(number, ())]

    def texts(self, number: int) -> list[str]:
        return [content.decode() for content in self._fields.get(number, ())]

    def text(self, number: int) -> str:
        """The last one counts, as everywhere in protocol buffers."""
        return self.texts(number)[-1] if number in self._fields else ""


def fields_of(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """The number and the content of each field that has a length, which texts and messages have. Raises ValueError."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, kind = tag >> 3, tag & 7
        length = 0
        if kind == 0:
            _, at = _varint(raw, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        elif kind == 2:
            length, at = _varint(raw, at)
        else:
            raise ValueError(f"a field of kind {kind}")
        if not number or at + length > len(raw):
            raise ValueError(f"field {number} is cut off")
        if kind == 2:
            yield number, raw[at : at + length]
        at += length


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            break
        value |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return value, at
    raise ValueError("a number is cut off")


def _devices(pod: _Message) -> Iterator[tuple[str, str]]:
    for container in pod.messages(POD_CONTAINERS):
        for devices in container.messages(CONTAINER_DEVICES):
            for device_id in devices.texts(DEVICES_IDS):
                yield devices.text(DEVICES_RESOURCE_NAME), device_id


def _claimed_gpus(pod: _Message) -> Iterator[str]:
    """The GPUs of the pod's claims: by the device's name where it is one that NVIDIA's driver gives, else by the claim's.

    A claim of which it is not said who serves it may be of GPUs, too.
    """
    for container in pod.messages(POD_CONTAINERS):
        for claim in container.messages(CONTAINER_DYNAMIC_RESOURCES):
            resources = claim.messages(CLAIM_RESOURCES)
            drivers = [resource.text(RESOURCE_DRIVER_NAME) for resource in resources]
            devices = [device for resource in resources for device in resource.messages(RESOURCE_CDI_DEVICES)]
            names = drivers + [device.text(CDI_DEVICE_NAME) for device in devices]
            if any(names) and not any("gpu" in name for name in names):
                continue
            unnamed = f"claim {claim.text(CLAIM_NAMESPACE)}/{claim.text(CLAIM_NAME)}"
            if not resources:
                yield unnamed
            for resource, driver in zip(resources, drivers, strict=True):
                named = _CLAIMED_GPU.fullmatch(resource.text(RESOURCE_DEVICE_NAME))
                if named is not None and driver == _CLAIMS_DRIVER:
                    part = f"::{named[2]}" if named[2] else ""
                    yield claimed_device_id(int(named[1])) + part
                elif driver in ("", _CLAIMS_DRIVER) or "gpu" in driver:
                    yield unnamed


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

    async def list(self) -> Sequence[PodDevices]:
        try:
            async with asyncio.timeout(self._timeout):
                raw = await call(self._socket, LIST_METHOD, b"", MAX_BYTES)
        except (CallFailed, OSError) as error:  # TimeoutError has no words
            words = str(error) or f"no answer within {self._timeout:g} s"
            raise PodResourcesError(f"{self._socket}: {words}") from error
        try:
            pods = _Message(raw).messages(POD_RESOURCES)
            found = [
                pod_gpus(pod.text(POD_NAMESPACE), pod.text(POD_NAME), None, _devices(pod), _claimed_gpus(pod))
                for pod in pods
            ]
        except ValueError as error:
            raise PodResourcesError(f"{self._socket}: the answer is no list of pods: {error}") from error
        return [pod for pod in found if pod is not None]

    async def close(self) -> None:
        """Nothing is open between two calls."""

    async def __aenter__(self) -> KubeletPodResources:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
