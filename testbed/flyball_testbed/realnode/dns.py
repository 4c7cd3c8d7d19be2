"""The name server of a real node's pods: Services, and the pods behind headless ones by their host names.

`python -m flyball_testbed.realnode.dns FOLDER/machine.json`, on the node. Each question is put to the API server anew, as
kube-proxy's user, so that nothing that is answered is old. Nobody else's names are known: the cluster has no way out.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path

from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.process.log_settings import LogSettings
from flyball_kube.process.logs import configure_logging, get_logger

from flyball_testbed.controlplane.api import ApiClient
from flyball_testbed.controlplane.components import KUBE_PROXY_USER
from flyball_testbed.realnode.configuration import CLUSTER_DOMAIN, Machine

logger = get_logger(__name__)

PORT = 53
THREADS = 8
API_SECONDS = 5.0
# RFC 1035, 4.1.1 and 4.2.1
HEADER = struct.Struct(">HHHHHH")
RESPONSE, AUTHORITATIVE, RECURSION_DESIRED, OPCODE = 0x8000, 0x0400, 0x0100, 0x7800
NO_ERROR, SERVER_FAILURE, NAME_ERROR, NOT_IMPLEMENTED = 0, 2, 3, 4
A, IN = 1, 1
MAX_BYTES = 512
MAX_ADDRESSES = 24
POINTER_TO_QUESTION = 0xC000 | HEADER.size

# The addresses of a name; None where there is no such name.
Lookup = Callable[[str], Sequence[IPv4Address] | None]


def answer(query: bytes, lookup: Lookup) -> bytes | None:
    """The answer to a datagram (RFC 1035, section 4); None for what is no question, which nobody answers."""
    if len(query) < HEADER.size or len(query) > MAX_BYTES:
        return None
    number, flags, questions, _, _, _ = HEADER.unpack_from(query)
    if flags & RESPONSE or questions != 1:
        return None
    read = _question(query)
    if read is None:
        return None
    name, kind, end = read
    addresses: Sequence[IPv4Address] = ()
    status = NO_ERROR
    if flags & OPCODE:
        status = NOT_IMPLEMENTED
    else:
        try:
            found = lookup(name)
        except (ApiError, ApiUnreachable) as error:
            logger.warning("the API server does not say", name=name, error=str(error))
            status = SERVER_FAILURE
        else:
            if found is None:
                status = NAME_ERROR
            elif kind == A:
                addresses = found[:MAX_ADDRESSES]
    header_flags = RESPONSE | AUTHORITATIVE | (flags & (RECURSION_DESIRED | OPCODE)) | status
    header = HEADER.pack(number, header_flags, 1, len(addresses), 0, 0)
    record = struct.Struct(">HHHIH4s")  # no time to live: a pod of the next start has the same name
    records = (record.pack(POINTER_TO_QUESTION, A, IN, 0, 4, address.packed) for address in addresses)
    return b"".join((header, query[HEADER.size : end], *records))


def _question(query: bytes) -> tuple[str, int, int] | None:
    """The name that is asked for, in lower case, the kind of record, and where the question ends."""
    labels: list[str] = []
    at = HEADER.size
    while at < len(query):
        size = query[at]
        if size == 0:
            if at + 5 > len(query):
                return None
            kind, kin = struct.unpack_from(">HH", query, at + 1)
            return (".".join(labels).lower(), kind, at + 5) if kin == IN else None
        if size > 63 or at + 1 + size > len(query):
            return None
        labels.append(query[at + 1 : at + 1 + size].decode("ascii", errors="replace"))
        at += 1 + size
    return None


class ClusterNames:
    """What the names of a cluster mean: `SERVICE.NAMESPACE.svc.DOMAIN`, and `POD.SERVICE...` where it is headless."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def __call__(self, name: str) -> Sequence[IPv4Address] | None:
        """A name's addresses, or None. Raises ApiError, ApiUnreachable."""
        ending = f".svc.{CLUSTER_DOMAIN}"
        labels = name.removesuffix(ending).split(".") if name.endswith(ending) else []
        if len(labels) not in (2, 3) or not all(label.replace("-", "").isalnum() for label in labels):
            return None
        *host, service, namespace = labels
        found = self._api.list_objects(
            f"/api/v1/namespaces/{namespace}/services", fieldSelector=f"metadata.name={service}"
        )
        if not found:
            return None
        address = found[0]["spec"].get("clusterIP")
        if address not in (None, "", "None"):
            return None if host else [IPv4Address(address)]
        behind = self._behind(namespace, service, host[0] if host else None)
        return behind or (None if host else [])

    def _behind(self, namespace: str, service: str, host: str | None) -> list[IPv4Address]:
        slices = self._api.list_objects(
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
            labelSelector=f"kubernetes.io/service-name={service}",
        )
        endpoints = [
            endpoint
            for found in slices
            if found["addressType"] == "IPv4"
            for endpoint in found.get("endpoints") or ()
            # One that does not say is ready; a Service may want those that are not to be found, too, and says so there.
            if (endpoint.get("conditions") or {}).get("ready") is not False
        ]
        return [
            IPv4Address(address)
            for endpoint in endpoints
            if host is None or endpoint.get("hostname") == host
            for address in endpoint["addresses"]
        ]


def serve(connection: socket.socket, lookup: Lookup) -> None:
    """Answer what comes, several at once, for ever."""

    def take(query: bytes, sender: tuple[str, int]) -> None:
        reply = answer(query, lookup)
        if reply is not None:
            with contextlib.suppress(OSError):  # who asked has gone
                connection.sendto(reply, sender)

    with ThreadPoolExecutor(THREADS) as pool:
        while True:
            pool.submit(take, *connection.recvfrom(MAX_BYTES))


def main() -> None:
    configure_logging(LogSettings())
    machine = Machine.read(Path(sys.argv[1]))
    pki = Path(machine.pki)
    api = ApiClient(
        machine.server_url,
        authority_file=pki / "ca.crt",
        certificate_file=pki / f"{KUBE_PROXY_USER}.crt",
        key_file=pki / f"{KUBE_PROXY_USER}.key",
        timeout_seconds=API_SECONDS,
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.bind((machine.address, PORT))
        serve(connection, ClusterNames(api))


if __name__ == "__main__":
    main()
