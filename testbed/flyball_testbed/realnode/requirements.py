"""What a machine must offer for real nodes, each asked by trying it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from flyball_testbed.controlplane import network
from flyball_testbed.realnode import cgroups

RUNTIMES = ("runc", "crun")
# program -> the Debian package that has it
TOOLS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "sysctl": "procps",
    "nft": "nftables",
    "cc": "gcc",
    "make": "make",
}
PROBE_TIMEOUT_SECONDS = 20


def runtime() -> Path | None:
    """What starts containers: the machine's runc or crun; None where it has neither."""
    found = next((path for name in RUNTIMES if (path := shutil.which(name)) is not None), None)
    return Path(found) if found is not None else None


def obstacles() -> list[str]:
    """Why this machine cannot run real nodes, each with what would help; empty where it can."""
    if os.geteuid() != 0:
        return ["real nodes need root: namespaces, mounts and control groups are made"]
    found = []
    packages = sorted({package for program, package in TOOLS.items() if not _is_there(program)})
    if runtime() is None:
        packages.append(RUNTIMES[0])
    if packages:
        found.append(f"programs are missing (apt-get install {' '.join(packages)})")
    cgroup = cgroups.obstacle()
    if cgroup is not None:
        found.append(cgroup)
    if not packages:
        found += _what_the_kernel_refuses()
    return found


def _is_there(program: str) -> bool:
    try:
        network.tool(program)
    except network.NetworkError:
        return False
    return True


def _what_the_kernel_refuses() -> list[str]:
    """Make what a node makes, in namespaces that end with the attempt."""
    with tempfile.TemporaryDirectory(prefix="flyball-overlay-") as folder:
        for name in ("upper", "work", "merged"):
            (Path(folder) / name).mkdir()
        overlay = f"lowerdir=/etc,upperdir={folder}/upper,workdir={folder}/work"
        attempts = {
            "namespaces of processes, mounts and networks": ["true"],
            "an overlay file system on its temporary folder": [
                "mount", "-t", "overlay", "overlay", "-o", overlay, f"{folder}/merged",
            ],
            "virtual network interfaces": ["ip", "link", "add", "one", "type", "veth", "peer", "name", "two"],
            "network bridges": ["ip", "link", "add", "bridge0", "type", "bridge"],
            "packet filter tables (nftables)": ["nft", "add", "table", "ip", "flyball"],
        }  # fmt: skip
        return [
            f"the kernel, or who runs this container, refuses {what}: {reason}"
            for what, command in attempts.items()
            if (reason := _refusal(command)) is not None
        ]


def _refusal(command: list[str]) -> str | None:
    inside = [network.tool("unshare"), "--net", "--mount", "--pid", "--fork", "--uts", "--ipc"]
    answer = subprocess.run(
        [*inside, network.tool(command[0]), *command[1:]],
        capture_output=True, text=True, check=False, timeout=PROBE_TIMEOUT_SECONDS,
    )  # fmt: skip
    return answer.stderr.strip() or f"status {answer.returncode}" if answer.returncode != 0 else None
