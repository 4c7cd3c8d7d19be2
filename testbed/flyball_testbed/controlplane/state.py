"""A control plane's state file: all that another process needs to take it over."""

from __future__ import annotations

import json
import os
from dataclasses import astuple, dataclass
from pathlib import Path

from flyball_testbed.controlplane.components import Layout
from flyball_testbed.controlplane.network import Link
from flyball_testbed.controlplane.processes import ProcessIdentity

STATE_VERSION = 2


@dataclass(frozen=True)
class Options:
    """How a control plane is run, kept in its state file so that components can be started again in the same way."""

    pod_start_delay_seconds: float = 0.5
    node_lease_seconds: int = 40
    die_with_parent: bool = True
    real_nodes: bool = False  # put the API server where nodes in namespaces of their own reach it (needs root)


@dataclass(frozen=True)
class State:
    """What runs, how, and whose it is; `owner` is the process that started it."""

    binaries: dict[str, Path]
    options: Options
    ports: dict[str, int]
    link: Link | None
    owner: ProcessIdentity
    processes: dict[str, ProcessIdentity]


def read_state(layout: Layout) -> State:
    """The state of the control plane in `layout`. Raises FileNotFoundError where there is none, ValueError for one of
    another version."""
    state = json.loads(layout.state.read_text())
    if state.get("version") != STATE_VERSION:
        raise ValueError(
            f"{layout.directory}: state of version {state.get('version')}, this is version {STATE_VERSION}"
        )
    return State(
        {name: Path(path) for name, path in state["binaries"].items()},
        Options(**state["options"]),
        dict(state["ports"]),
        Link(*state["link"]) if state["link"] is not None else None,
        ProcessIdentity(*state["owner"]),
        {name: ProcessIdentity(*identity) for name, identity in state["processes"].items()},
    )


def write_state(layout: Layout, state: State) -> None:
    """Write it whole or not at all, over what stood there."""
    document = {
        "version": STATE_VERSION,
        "binaries": {name: str(path) for name, path in state.binaries.items()},
        "options": vars(state.options),
        "ports": state.ports,
        "link": astuple(state.link) if state.link is not None else None,
        "owner": astuple(state.owner),
        "processes": {name: astuple(identity) for name, identity in state.processes.items()},
    }
    temporary = layout.state.with_suffix(".new")
    temporary.write_text(json.dumps(document, indent=1))
    os.replace(temporary, layout.state)
