"""The state file from which another process takes a control plane over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flyball_testbed.controlplane.components import Layout
from flyball_testbed.controlplane.network import Link
from flyball_testbed.controlplane.processes import ProcessIdentity
from flyball_testbed.controlplane.state import Options, State, read_state, write_state


@pytest.mark.parametrize("link", [None, Link("veth0", "10.0.0.2")])
def test_what_was_written_is_read(tmp_path: Path, link: Link | None) -> None:
    state = State(
        {"etcd": Path("/programs/etcd")},
        Options(pod_start_delay_seconds=0.1, real_nodes=link is not None),
        {"etcd": 2379},
        link,
        ProcessIdentity(1, 20),
        {"etcd": ProcessIdentity(300, 4000)},
    )
    write_state(Layout(tmp_path), state)
    assert read_state(Layout(tmp_path)) == state
    assert [path.name for path in tmp_path.iterdir()] == [Layout(tmp_path).state.name]


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    Layout(tmp_path).state.write_text(json.dumps({"version": 1}))
    with pytest.raises(ValueError, match="state of version 1, this is version 2"):
        read_state(Layout(tmp_path))


def test_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_state(Layout(tmp_path))
