"""Waiting until a component serves, or has ended in the attempt."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator

import urllib3

from flyball_testbed.controlplane.components import API_SERVER, ETCD, ETCD_SOCKET, KWOK, SCHEDULER, Layout
from flyball_testbed.controlplane.credentials import ADMIN
from flyball_testbed.controlplane.ports import LOOPBACK
from flyball_testbed.controlplane.processes import Process

PORT_TAKEN = "address already in use"
READY_TIMEOUT_SECONDS = 120.0
PROBE_INTERVAL_SECONDS = 0.02


class ComponentError(Exception):
    """A component ended or did not become ready; the message has the end of its log."""

    @property
    def lost_its_port(self) -> bool:
        """Whether it ended because another process had taken its port in between."""
        return PORT_TAKEN in str(self)


def await_ready(
    process: Process,
    layout: Layout,
    port: int | None,
    *,
    address: str = LOOPBACK,
    timeout_seconds: float = READY_TIMEOUT_SECONDS,
) -> None:
    """Wait until the component `process.name` serves on its port (etcd: on its socket).

    Raises ComponentError where it ends, or is not ready in time.
    """
    deadline = time.monotonic() + timeout_seconds
    probe = _etcd_probe(layout) if process.name == ETCD else _http_probe(process.name, layout, f"{address}:{port}")
    with probe as is_ready:
        while not is_ready():
            if not process.is_running():
                raise _error(process, f"ended with status {process.exit_status}")
            if time.monotonic() >= deadline:
                raise _error(process, f"is not ready after {timeout_seconds:g} s")
            process.wait(PROBE_INTERVAL_SECONDS)  # returns at once when the component ends


def _error(process: Process, what: str) -> ComponentError:
    return ComponentError(f"{process.name} {what}; the end of {process.log_path}:\n{process.log_tail()}")


@contextlib.contextmanager
def _http_probe(name: str, layout: Layout, place: str) -> Iterator[Callable[[], bool]]:
    scheme = "http" if name == KWOK else "https"
    path = "/readyz" if name in (API_SERVER, SCHEDULER) else "/healthz"
    with urllib3.PoolManager(
        retries=False,
        timeout=urllib3.Timeout(connect=1.0, read=5.0),
        ca_certs=str(layout.authority),
        cert_file=str(layout.certificate(ADMIN)),
        key_file=str(layout.key(ADMIN)),
    ) as pool:

        def answers() -> bool:
            try:
                return pool.request("GET", f"{scheme}://{place}{path}").status == 200
            except urllib3.exceptions.HTTPError:
                return False

        yield answers


@contextlib.contextmanager
def _etcd_probe(layout: Layout) -> Iterator[Callable[[], bool]]:
    descriptor = os.open(layout.directory, os.O_PATH | os.O_DIRECTORY)

    def accepts() -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                # By way of the open folder: the socket's own path may be too long to connect to.
                client.connect(f"/proc/self/fd/{descriptor}/{ETCD_SOCKET}")
            except OSError:
                return False
        return True

    try:
        yield accepts
    finally:
        os.close(descriptor)
