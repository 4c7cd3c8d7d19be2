"""The device plugin of a real node: offers its simulated GPUs to the kubelet as `nvidia.com/gpu`, each by its UUID.

`python -m flyball_testbed.realnode.device_plugin FOLDER/machine.json`, on the node. It registers with the kubelet, and
again when the kubelet has been started anew; a GPU that is lost is unhealthy, until it is back.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from flyball_agent.training.device_plugin_messages import (
    MESSAGES,
    REGISTER_METHOD,
    VERSION,
    device_plugin_handlers,
)
from flyball_api.names import GPU_RESOURCE
from flyball_kube.process.log_settings import LogSettings
from flyball_kube.process.logs import configure_logging, get_logger
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.shared import SimulatedNode

from flyball_testbed.realnode.configuration import KUBELET_ROOT, Machine
from flyball_testbed.realnode.nvidia_runtime import VISIBLE_DEVICES

logger = get_logger(__name__)

KUBELET_SOCKET = "kubelet.sock"
OWN_SOCKET = "flyball-gpus.sock"
LOOK_SECONDS = 0.5
CALL_TIMEOUT_SECONDS = 10.0
STREAMS = 8
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
UNUSABLE = DeviceFault.LOST | DeviceFault.RESET_REQUIRED


class GpuPlugin:
    """The plugin's answers to the kubelet, of the node whose GPUs are in the file `hardware`."""

    def __init__(self, hardware: str) -> None:
        self._node = SimulatedNode.open(hardware)
        self._changed = threading.Condition()
        self._ended = False

    def health(self) -> Mapping[str, str]:
        """Each GPU's UUID and its health now."""
        return {device.uuid: UNHEALTHY if device.flags & UNUSABLE else HEALTHY for device in self._node.devices}

    def options(self, _request: Any, _context: Any) -> Any:
        return MESSAGES["DevicePluginOptions"]()

    def list_and_watch(self, _request: Any, context: Any) -> Iterator[Any]:
        """All GPUs at once, and all again whenever the health of one changes."""
        sent: Mapping[str, str] | None = None
        while context.is_active() and not self._ended:
            now = self.health()
            if now != sent:
                sent = now
                devices = [MESSAGES["Device"](ID=uuid, health=health) for uuid, health in now.items()]
                yield MESSAGES["ListAndWatchResponse"](devices=devices)
            with self._changed:
                self._changed.wait(LOOK_SECONDS)

    def allocate(self, request: Any, context: Any) -> Any:
        """Tell each container's runtime which GPUs the kubelet has chosen for it; the runtime mounts the driver."""
        answer = MESSAGES["AllocateResponse"]()
        known = self.health()
        for container in request.container_requests:
            unknown = set(container.devices_ids) - set(known)
            if unknown:
                context.abort(grpc.StatusCode.NOT_FOUND, f"no GPU {', '.join(sorted(unknown))} on this node")
            given = answer.container_responses.add()
            given.envs[VISIBLE_DEVICES] = ",".join(sorted(container.devices_ids))
            logger.info("allocated", gpus=sorted(container.devices_ids))
        return answer

    def close(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._node.close()


def serve(plugin: GpuPlugin, directory: Path) -> Any:
    """Serve the plugin on its socket in the kubelet's folder of plugins; the server, to be stopped."""
    server = grpc.server(ThreadPoolExecutor(STREAMS))
    server.add_generic_rpc_handlers((device_plugin_handlers(plugin),))
    (directory / OWN_SOCKET).unlink(missing_ok=True)
    server.add_insecure_port(f"unix://{directory / OWN_SOCKET}")
    server.start()
    return server


def register(directory: Path) -> None:
    """Tell the kubelet of the plugin. Raises grpc.RpcError where it does not answer."""
    with grpc.insecure_channel(f"unix://{directory / KUBELET_SOCKET}") as channel:
        call = channel.unary_unary(
            REGISTER_METHOD, lambda request: request.SerializeToString(), MESSAGES["Empty"].FromString
        )
        request = MESSAGES["RegisterRequest"](version=VERSION, endpoint=OWN_SOCKET, resource_name=GPU_RESOURCE)
        call(request, timeout=CALL_TIMEOUT_SECONDS, wait_for_ready=True)


def run(machine: Machine, directory: Path) -> None:
    """Serve, register, and do both again whenever the kubelet has cleared its folder, as it does when it starts."""
    plugin = GpuPlugin(machine.hardware)
    while True:
        while not (directory / KUBELET_SOCKET).exists():
            time.sleep(LOOK_SECONDS / 10)
        server = serve(plugin, directory)
        try:
            register(directory)
            logger.info("registered", resource=GPU_RESOURCE, gpus=len(plugin.health()))
            while (directory / OWN_SOCKET).exists():
                time.sleep(LOOK_SECONDS)
        except grpc.RpcError as error:
            logger.warning("the kubelet does not take the plugin", error=str(error.code()))
        finally:
            server.stop(grace=None).wait()


def main() -> None:
    configure_logging(LogSettings())
    machine = Machine.read(Path(sys.argv[1]))
    run(machine, Path(KUBELET_ROOT) / "device-plugins")


if __name__ == "__main__":
    main()
