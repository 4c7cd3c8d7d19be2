"""The network of a cluster with real nodes: one network namespace with a bridge, and a link to it from this machine.

The API server runs in the namespace, so that nodes and their pods reach it and nobody else does; a pair of virtual
interfaces leads from this machine's own namespace to it, and only there. The namespace has no name and no file: a process
holds it, and the kernel removes it, bridge and link included, when the last process in it ends.

Within, the addresses are the same for every cluster, since no cluster sees another's:

| | |
|---|---|
| 10.65.0.1 | the bridge: the API server, and the nodes' way to each other |
| 10.65.0.11, .12, ... | the nodes |
| 10.64.1.0/24, 10.64.2.0/24, ... | the pods of each node |
| 10.0.0.0/16 | Services (`components.SERVICE_RANGE`) |
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import random
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BRIDGE = "nodes"
BRIDGE_ADDRESS = "10.65.0.1"
NODE_PREFIX_BITS = 24
POD_RANGE = "10.64.0.0/16"
# Set aside for measurements between networks (RFC 2544): no machine has it in earnest.
LINK_RANGE = ipaddress.IPv4Network("198.18.0.0/15")
LINK_NAME_PREFIX = "flyball-"
LINK_ATTEMPTS = 100
# Of the cluster's and each node's namespace: they route, and connections of killed processes do not keep them for minutes.
SETTINGS = ("net.ipv4.ip_forward=1", "net.ipv4.tcp_orphan_retries=1")


class NetworkError(Exception):
    """A namespace, a link or an address could not be made; the message has what `ip` said."""


def node_address(index: int) -> str:
    """The address of the node with this number (1 ..)."""
    return f"10.65.0.{10 + index}"


def pod_range(index: int) -> str:
    """The addresses of that node's pods."""
    return f"10.64.{index}.0/24"


def namespace_path(pid: int) -> Path:
    """The network namespace of a process."""
    return Path(f"/proc/{pid}/ns/net")


def holder_command() -> list[str]:
    """A process that does nothing but hold a network namespace of its own."""
    return [tool("unshare"), "--net", tool("sleep"), "infinity"]


def within(namespace: Path, command: Sequence[str]) -> list[str]:
    """A command, to be run in a network namespace. (Not by `ip netns exec`, which hides the cgroups.)"""
    return [tool("nsenter"), f"--net={namespace}", *command]


def tool(name: str) -> str:
    """The path of one of the machine's own programs. Raises NetworkError where it is not installed."""
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise NetworkError(f"no program {name!r} on this machine")
    return found


def run_ip(lines: Sequence[str], *, prefix: Sequence[str] = ()) -> None:
    """Run `ip` commands as one batch, in a namespace given by the `prefix` of `within`. Raises NetworkError."""
    answer = subprocess.run(
        [*prefix, tool("ip"), "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        raise NetworkError(f"ip: {answer.stderr.strip() or answer.stdout.strip()}")


def _networks_in_use() -> list[ipaddress.IPv4Network]:
    """What this machine has addresses in."""
    answer = subprocess.run([tool("ip"), "-json", "-4", "address"], capture_output=True, text=True, check=True)
    return [
        ipaddress.IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False)
        for interface in json.loads(answer.stdout)
        for address in interface.get("addr_info", [])
    ]


def _free_link() -> tuple[str, str]:
    """Two addresses of a network of four that this machine does not use. Raises NetworkError where there is none."""
    used = _networks_in_use()
    first, last = int(LINK_RANGE.network_address), int(LINK_RANGE.broadcast_address)
    for _ in range(LINK_ATTEMPTS):
        network = ipaddress.IPv4Network((random.randrange(first, last, 4), 30))  # noqa: S311 - a spread, not a secret
        if not any(network.overlaps(other) for other in used):
            ours, theirs = network.hosts()
            return str(ours), str(theirs)
    raise NetworkError(f"no free network in {LINK_RANGE} for the link to the cluster")


@dataclass(frozen=True)
class Link:
    """The way from this machine to the cluster: the interface here, and the address there, which is the API server's."""

    interface: str
    address: str

    def remove(self) -> None:
        """Remove the link at once. The kernel does so too, once the last connection in the namespace has given up."""
        with contextlib.suppress(NetworkError):  # it has been faster
            run_ip([f"link delete {self.interface}"])


def furnish(pid: int) -> Link:
    """Make the bridge in the namespace that process `pid` holds, and the link to it. Raises NetworkError."""
    ours, theirs = _free_link()
    link = f"{LINK_NAME_PREFIX}{random.getrandbits(24):06x}"
    inside = within(namespace_path(pid), [])
    run_ip(
        [
            "link set lo up",
            f"link add {BRIDGE} type bridge",
            f"address add {BRIDGE_ADDRESS}/{NODE_PREFIX_BITS} dev {BRIDGE}",
            f"link set {BRIDGE} up",
        ],
        prefix=inside,
    )
    run_ip(
        [
            f"link add {link} type veth peer name machine netns {pid}",
            f"address add {ours}/30 dev {link}",
            f"link set {link} up",
        ]
    )
    run_ip([f"address add {theirs}/30 dev machine", "link set machine up"], prefix=inside)
    subprocess.run([*inside, tool("sysctl"), "-qw", *SETTINGS], check=True, capture_output=True)
    return Link(link, theirs)
