"""The control groups of real nodes: made in every hierarchy under `flyball/`, and removed when the node is gone.

They are all that the kernel does not take away by itself with a node's processes. Each is named after the process that
is the node, so that what a crash has left is known by its name alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from flyball_testbed.controlplane.processes import ProcessIdentity, wait_until

PARENT = "flyball"
MOUNTS = Path("/proc/self/mounts")
NEEDED = frozenset({"cpu", "cpuset", "memory", "pids"})
# What a machine may lack, and a pod has only where it is there.
WELCOME = frozenset({"hugetlb", "io"})
REMOVAL_TIMEOUT_SECONDS = 10.0
MAKE_ATTEMPTS = 5


class CgroupError(Exception):
    """This machine's control groups cannot hold a node's pods; says which and why."""


def hierarchies(mounts: str) -> dict[Path, frozenset[str]]:
    """The mounted hierarchies, each with its controllers (of version 2: none here, they are in a file of it).

    `mounts` is the text of /proc/self/mounts. On a machine with both versions the controllers are those of version 1,
    and runc makes a group in version 2 all the same.
    """
    found: dict[Path, frozenset[str]] = {}
    for line in mounts.splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup":
            found[Path(place)] = frozenset(options.split(",")) - {"rw", "ro", "relatime", "nosuid", "nodev", "noexec"}
        elif kind == "cgroup2":
            found[Path(place)] = frozenset()
    return found


def _own_hierarchies() -> dict[Path, frozenset[str]]:
    return hierarchies(MOUNTS.read_text())


def _is_second_version(hierarchy: Path) -> bool:
    return (hierarchy / "cgroup.subtree_control").exists()


def obstacle() -> str | None:
    """Why no node can have its control groups here; None where it can."""
    found = _own_hierarchies()
    if not found:
        return "no control groups are mounted (/sys/fs/cgroup)"
    controllers: set[str] = set()
    for hierarchy, names in found.items():
        controllers |= names
        if _is_second_version(hierarchy):
            controllers |= set((hierarchy / "cgroup.controllers").read_text().split())
        if not os.access(hierarchy, os.W_OK):
            return f"{hierarchy} cannot be written to"
    missing = NEEDED - controllers
    return f"the control groups lack {', '.join(sorted(missing))}" if missing else None


def create(identity: ProcessIdentity) -> str:
    """Make the node's group in every hierarchy; its path within each, as the kubelet's `cgroupRoot` has it.

    Raises CgroupError.
    """
    name = f"{PARENT}/{identity.pid}-{identity.started_ticks}"
    for hierarchy in _own_hierarchies():
        try:
            if _is_second_version(hierarchy):
                _delegate(hierarchy)
                (hierarchy / PARENT).mkdir(exist_ok=True)
                _delegate(hierarchy / PARENT)
            _make(hierarchy / name)
        except OSError as error:
            raise CgroupError(f"{hierarchy / name}: {error}") from error
    return f"/{name}"


def _make(group: Path) -> None:
    """Make a group and its parent, which the sweep of another cluster may remove in between, empty as it is."""
    for attempt in range(MAKE_ATTEMPTS):
        try:
            group.mkdir(parents=True, exist_ok=True)
            return
        except FileNotFoundError:
            if attempt == MAKE_ATTEMPTS - 1:
                raise


def _delegate(group: Path) -> None:
    """Let the group's children have the controllers that pods need (version 2)."""
    available = set((group / "cgroup.controllers").read_text().split())
    wanted = sorted((NEEDED | WELCOME) & available)
    (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))


def sweep() -> list[str]:
    """Remove the groups of nodes that no longer run, whoever started them; the names of those that would not go."""
    left = []
    for hierarchy in _own_hierarchies():
        parent = hierarchy / PARENT
        left += [str(group) for group in _groups_of_dead_nodes(parent) if not _removed_in_time(group)]
        with contextlib.suppress(OSError):  # another node's group is in it, or it is not there
            parent.rmdir()
    return left


def _groups_of_dead_nodes(parent: Path) -> Iterator[Path]:
    for group in parent.iterdir() if parent.is_dir() else ():
        pid, _, ticks = group.name.partition("-")
        if pid.isdigit() and ticks.isdigit() and not ProcessIdentity(int(pid), int(ticks)).is_running():
            yield group


def _removed_in_time(group: Path) -> bool:
    return wait_until(lambda: _removed(group), REMOVAL_TIMEOUT_SECONDS)


def _removed(group: Path) -> bool:
    """Remove a group and those within; whether all are gone. The last process of a group may still be on its way out."""
    for directory in _innermost_first(group):
        with contextlib.suppress(OSError):
            directory.rmdir()
    return not group.exists()


def _innermost_first(group: Path) -> Iterable[Path]:
    return (Path(directory) for directory, _, _ in os.walk(group, topdown=False))
