"""How `make test` shares the tests among workers (`--dist loadfile`): by file, all tests on one control plane together.

What starts a control plane comes first, because it takes longest. Tests that share one, or the shared site, are on one
worker, so that there is one of each. (xdist's own groups, `--dist loadgroup`, have no effect with pytest 9.)
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.support.control_plane import MARKER

SHARED_FIXTURES = {"control_plane", "site"}
"""The control plane and the site of a whole session."""
SHARED = "what shares a control plane"
GROUPS_FILE = "groups_file"
FOLDER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


class GroupScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types for its schedulers
    """Hands files to workers in the order in which they were collected, and the group of shared control planes whole."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._groups: dict[str, str] | None = None

    def _split_scope(self, nodeid: str) -> str:
        if self._groups is None:
            self._groups = json.loads(_groups_file(self.config).read_text())
        return self._groups.get(nodeid) or str(super()._split_scope(nodeid))


def _groups_file(config: pytest.Config) -> Path:
    return Path(config.stash[FOLDER].name) / "groups.json"


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder in which the workers leave the tests' groups: of a test, its name is all that comes from them."""
    if config.getoption("dist", "no") == "loadfile":
        config.stash[FOLDER] = tempfile.TemporaryDirectory(prefix="flyball-tests-")
        config.add_cleanup(config.stash[FOLDER].cleanup)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Name a worker the file for the groups; all workers write the same, each by a rename."""
    if FOLDER in node.config.stash:
        node.workerinput[GROUPS_FILE] = str(_groups_file(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling | None:
    """Take our scheduler where files are handed out."""
    return GroupScheduling(config, log) if FOLDER in config.stash else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker, begin with what starts a control plane, and leave the groups where they are asked for."""
    workerinput = getattr(config, "workerinput", {})
    if GROUPS_FILE not in workerinput:
        return
    items.sort(key=lambda item: item.get_closest_marker(MARKER) is None)
    groups = {item.nodeid: SHARED for item in items if SHARED_FIXTURES & set(getattr(item, "fixturenames", ()))}
    path = Path(workerinput[GROUPS_FILE])
    fresh = path.with_suffix(f".{workerinput['workerid']}")
    fresh.write_text(json.dumps(groups))
    fresh.rename(path)
