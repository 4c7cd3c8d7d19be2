"""Which pod holds which GPUs: what a source of that gives, and the simulated kubelet's file (`kubelet` is the real one).

A device's id names its GPU, whatever extended resource it was asked for by: `GPU-<uuid>` for a whole GPU, and
`GPU-<uuid>::<replica>` where a GPU is handed out several times; `gpu_of` gives the GPU. Other ids are a GPU's and do not
name it: slices (`MIG-<uuid>`), indexes (`0`, `nvidia0`), claims of dynamic resource allocation. A pod with such an id holds
*some* GPU, so that none may be taken for idle. The kubelet names pods without a UID; the simulated file has it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flyball_api.names import SOCKET_RESOURCE

# A node has a few hundred pods; a longer answer or file is not what it says it is.
MAX_BYTES = 16 * 1024 * 1024


# Resources of other things than GPUs that count their devices by bare numbers.
_NO_GPU_RESOURCES = ("rdma/",)
_INDEX = re.compile(r"(nvidia)?[0-9]+(:[0-9]+)?")


class PodResourcesError(Exception):
    """It cannot be found out now which pod holds what; the last answer still stands."""


@dataclass(frozen=True, slots=True)
class PodDevices:
    """One pod and the GPUs that it holds, by UUID in order; `uid` is None where the source does not give it.

    `unresolved` are ids of devices that it holds and that are GPUs, or slices of them, nobody knows which; `sockets` those
    of its training sockets (`socket_plugin`).
    """

    namespace: str
    name: str
    uid: str | None
    gpus: tuple[str, ...]
    unresolved: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()


class PodResources(Protocol):
    """A source of pods with GPUs."""

    async def list(self) -> Sequence[PodDevices]:
        """Every pod that holds a GPU. Raises PodResourcesError."""
        ...

    async def close(self) -> None: ...


def gpu_of(device_id: str) -> str | None:
    """The GPU's UUID of a device id; None where the id does not name a GPU."""
    uuid = device_id.split("::", 1)[0]
    return uuid if uuid.startswith("GPU-") else None


def is_unresolved_gpu(device_id: str, resource: str = "") -> bool:
    """Whether a device is, or may be, a GPU or a part of one, and its id does not name the GPU."""
    if gpu_of(device_id) is not None:
        return False
    if device_id.startswith("MIG-") or resource.startswith("nvidia.com/") or "gpu" in resource.lower():
        return True
    return _INDEX.fullmatch(device_id) is not None and not resource.startswith(_NO_GPU_RESOURCES)


def pod_gpus(
    namespace: str, name: str, uid: str | None, devices: Iterable[tuple[str, str]], claims: Iterable[str] = ()
) -> PodDevices | None:
    """A pod by its devices, each a resource's name and an id, and its claims of GPUs; None where it holds no GPU."""
    gpus: dict[str, None] = {}
    unresolved: dict[str, None] = {}
    sockets: list[str] = []
    for resource, device_id in devices:
        gpu = gpu_of(device_id)
        if resource == SOCKET_RESOURCE:
            sockets.append(device_id)
        elif gpu is not None:
            gpus[gpu] = None
        elif is_unresolved_gpu(device_id, resource):
            unresolved[device_id] = None
    unresolved.update((claim, None) for claim in claims)
    if not gpus and not unresolved:
        return None
    return PodDevices(namespace, name, uid, tuple(gpus), tuple(unresolved), tuple(sockets))


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
        uid = pod.get("uid")
        devices = [("", str(device)) for device in pod["devices"]]
        found = pod_gpus(str(pod["namespace"]), str(pod["name"]), str(uid) if uid else None, devices)
        if found is not None:
            pods.append(found)
    return pods
