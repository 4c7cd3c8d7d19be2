"""Gives pods their training sockets as a device plugin: a pod that asks for one `flyball.dev/socket` has a folder mounted.

So that no pod needs a hostPath, and namespaces that are `restricted` can have sockets. Each allocation has a fresh folder,
`<socket-dir>/<device>.<random>`; which pod holds the device is the kubelet's word, as with GPUs. What lies on the disk
outlives the agent: the folder of a device is that of its last allocation, and is removed by its next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
from flyball_api.names import SOCKET_RESOURCE
from flyball_kube.process.logs import get_logger

from flyball_agent.training.device_plugin_messages import (
    MESSAGES,
    REGISTER_METHOD,
    VERSION,
    device_plugin_handlers,
)

logger = get_logger(__name__)

KUBELET_SOCKET = "kubelet.sock"
OWN_SOCKET = "flyball-socket.sock"
SOCKET_MOUNT = "/run/flyball"
SOCKET_VARIABLE = "FLYBALL_SOCKET"
SOCKET_NAME = "flyball.sock"
# More pods than a kubelet takes by default (110).
UNITS = 128
LOOK_SECONDS = 1.0
AGAIN_SECONDS = 5.0
CALL_SECONDS = 10.0
_FOLDER = re.compile(r"(socket-[0-9]{1,4})\.[0-9a-f]{16}")


class SocketPlugin:
    """The plugin of one node. `folder` is the sockets' folder as the agent sees it, `host_folder` as the kubelet does."""

    def __init__(
        self,
        kubelet_folder: str | os.PathLike[str],
        folder: str | os.PathLike[str],
        host_folder: str | os.PathLike[str] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kubelet_folder = Path(kubelet_folder)
        self._folder = Path(folder)
        self._host_folder = Path(host_folder or folder)
        self._monotonic = monotonic
        self._devices = tuple(f"socket-{number}" for number in range(UNITS))
        # device -> its folder's name, and since when by the monotonic clock
        self._allocated: dict[str, tuple[str, float]] = {}
        for name in self._found():
            self._allocated[name.partition(".")[0]] = (name, float("-inf"))

    def _found(self) -> list[str]:
        """The folders that earlier agents made; of one device there are several only where a removal failed."""
        with contextlib.suppress(FileNotFoundError):
            names = [entry for entry in os.scandir(self._folder) if _FOLDER.fullmatch(entry.name)]
            return [entry.name for entry in sorted(names, key=lambda entry: entry.stat().st_mtime_ns)]
        return []

    def folder_of(self, device: str, asked_at: float) -> str | None:
        """The name of the folder that the device's holder has mounted, as the kubelet said when it was asked then.

        None for a device that was given away since: that answer may name the one who had it before.
        """
        name, since = self._allocated.get(device, ("", 0.0))
        return name if name and since < asked_at else None

    # --- what the kubelet calls -----------------------------------------------------------------------------------

    async def options(self, _request: Any, _context: Any) -> Any:
        return MESSAGES["DevicePluginOptions"]()

    async def list_and_watch(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        """All sockets, once: none is ever lost while the agent serves."""
        devices = [MESSAGES["Device"](ID=device, health="Healthy") for device in self._devices]
        yield MESSAGES["ListAndWatchResponse"](devices=devices)
        await asyncio.Event().wait()

    async def allocate(self, request: Any, context: Any) -> Any:
        """A fresh folder for each container, mounted at `SOCKET_MOUNT`."""
        answer = MESSAGES["AllocateResponse"]()
        for container in request.container_requests:
            devices = sorted(container.devices_ids)
            if not devices or not set(devices) <= set(self._devices):
                await context.abort(grpc.StatusCode.NOT_FOUND, f"no socket {', '.join(devices)} on this node")
            try:
                name = self._allocate(devices[0])
            except OSError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"no folder for a training socket: {error}")
            given = answer.container_responses.add()
            given.envs[SOCKET_VARIABLE] = f"{SOCKET_MOUNT}/{SOCKET_NAME}"
            # To connect is no write to the file system: a pod can leave nothing here.
            given.mounts.add(container_path=SOCKET_MOUNT, host_path=str(self._host_folder / name), read_only=True)
        return answer

    def _allocate(self, device: str) -> str:
        for name in self._found():
            if name.startswith(f"{device}."):
                shutil.rmtree(self._folder / name, ignore_errors=True)
        name = f"{device}.{secrets.token_hex(8)}"
        path = self._folder / name
        path.mkdir(parents=True)
        path.chmod(0o755)  # whatever our umask is, and whatever user the pod's processes are
        self._allocated[device] = (name, self._monotonic())
        return name

    # --- its life --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve and register until cancelled, and again whenever the kubelet has been started anew. Raises nothing else."""
        while True:
            try:
                await self._serve_one_kubelet()
            except (grpc.RpcError, OSError, RuntimeError) as error:
                logger.warning("the kubelet does not take the training sockets", error=str(error))
                await asyncio.sleep(AGAIN_SECONDS)

    async def _serve_one_kubelet(self) -> None:
        while not (self._kubelet_folder / KUBELET_SOCKET).exists():  # noqa: ASYNC110 - nobody tells of files
            await asyncio.sleep(LOOK_SECONDS)
        own = self._kubelet_folder / OWN_SOCKET
        own.unlink(missing_ok=True)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((device_plugin_handlers(self),))
        server.add_insecure_port(f"unix://{own}")
        await server.start()
        try:
            await self._register()
            logger.info("registered", resource=SOCKET_RESOURCE, sockets=len(self._devices))
            while own.exists():  # noqa: ASYNC110 - a kubelet that starts clears its folder
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await server.stop(None)

    async def _register(self) -> None:
        async with grpc.aio.insecure_channel(f"unix://{self._kubelet_folder / KUBELET_SOCKET}") as channel:
            call = channel.unary_unary(
                REGISTER_METHOD,
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=MESSAGES["Empty"].FromString,
            )
            request = MESSAGES["RegisterRequest"](version=VERSION, endpoint=OWN_SOCKET, resource_name=SOCKET_RESOURCE)
            await call(request, timeout=CALL_SECONDS, wait_for_ready=True)
