"""Control groups of nodes: which hierarchies there are, and that only those of dead nodes are removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from flyball_testbed.controlplane.processes import ProcessIdentity
from flyball_testbed.realnode import cgroups

FIRST_VERSION = """\
tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup {root}/cpu,cpuacct cgroup rw,nosuid,nodev,noexec,relatime,cpu,cpuacct 0 0
cgroup {root}/memory cgroup rw,relatime,memory 0 0
cgroup2 {root}/unified cgroup2 rw,relatime 0 0
"""
SECOND_VERSION = "cgroup2 {root} cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0\n"
DEAD = ProcessIdentity(2**22, 1)  # above the largest process id


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders in place of a machine's hierarchies, those of both versions."""
    for name in ("cpu,cpuacct", "memory", "unified"):
        (tmp_path / "groups" / name).mkdir(parents=True)
    (tmp_path / "mounts").write_text(FIRST_VERSION.format(root=tmp_path / "groups"))
    monkeypatch.setattr(cgroups, "MOUNTS", tmp_path / "mounts")
    return tmp_path / "groups"


def test_the_hierarchies_are_those_that_are_mounted(root: Path) -> None:
    assert cgroups.hierarchies(FIRST_VERSION.format(root=root)) == {
        root / "cpu,cpuacct": frozenset({"cpu", "cpuacct"}),
        root / "memory": frozenset({"memory"}),
        root / "unified": frozenset(),
    }
    assert cgroups.hierarchies(SECOND_VERSION.format(root=root)) == {root: frozenset()}


def test_what_pods_need_and_is_missing_is_named(root: Path) -> None:
    assert cgroups.obstacle() == "the control groups lack cpuset, pids"


def test_a_machine_of_the_second_version_is_asked_for_its_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "unified"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (root / "cgroup.subtree_control").write_text("")
    (tmp_path / "mounts").write_text(SECOND_VERSION.format(root=root))
    monkeypatch.setattr(cgroups, "MOUNTS", tmp_path / "mounts")
    assert cgroups.obstacle() is None
    (root / "cgroup.controllers").write_text("cpu memory\n")
    assert cgroups.obstacle() == "the control groups lack cpuset, pids"


def test_a_nodes_group_is_in_every_hierarchy_and_goes_when_the_node_is_dead(root: Path) -> None:
    path = cgroups.create(DEAD)
    living = cgroups.create(ProcessIdentity.own())
    groups = [hierarchy / path.lstrip("/") for hierarchy in root.iterdir()]
    for group in groups:
        (group / "kubepods" / "pod1").mkdir(parents=True)
    assert cgroups.sweep() == []
    assert not any(group.exists() for group in groups)
    assert all((hierarchy / living.lstrip("/")).is_dir() for hierarchy in root.iterdir()), "one that runs is left alone"
    assert str(os.getpid()) in living


def test_groups_of_others_are_left_alone(root: Path) -> None:
    other = root / "memory" / "flyball" / "not-a-node"
    other.mkdir(parents=True)
    assert cgroups.sweep() == []
    assert other.is_dir()


def test_a_group_that_will_not_go_is_told_of(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cgroups.create(DEAD)
    held = root / "memory" / path.lstrip("/") / "held"
    held.write_text("a file cannot be removed as a group")
    monkeypatch.setattr(cgroups, "REMOVAL_TIMEOUT_SECONDS", 0.05)
    assert cgroups.sweep() == [str(held.parent)]
