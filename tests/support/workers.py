"""How `make test` shares the tests among workers (`--dist loadfile`): by file, what waits beside what computes.

Tests on control planes wait for most of their time, so there are five workers for two processors. Three of four begin
with what starts a control plane, which takes longest; the others begin with the rest, and all go on with what is
left. Tests that share a control plane, the site or the real nodes are on one worker, so that there is one of each,
which ends with the last of them. A test marked `long` is begun early, and by itself. (xdist's own groups, `--dist
loadgroup`, have no effect with pytest 9.)
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.support.control_plane import MARKER
from tests.support.real_nodes import MARKER as REALNODE

SHARED_FIXTURES = ("site", "control_plane", "real_cluster", "real_site")
"""What a whole session has one of at the most, in the order in which their groups are begun."""
LONG = "long"
WORKERS_VARIABLE = "PYTEST_XDIST_AUTO_NUM_WORKERS"
GROUPS_FILE = "groups_file"
FOLDER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


class GroupScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types for its schedulers
    """Hands groups and files to workers in the order in which they were collected, each worker its own kind first."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._groups: dict[str, str] | None = None
        self._of_control_planes: set[str] = set()

    def _read_groups(self) -> dict[str, str]:
        if self._groups is None:
            self._groups, marked = json.loads(_groups_file(self.config).read_text())
            self._of_control_planes = {self._split_scope(nodeid) for nodeid in marked}
        return self._groups

    def _split_scope(self, nodeid: str) -> str:
        return self._read_groups().get(nodeid) or str(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        begins_with_control_planes = self.nodes.index(node) < lanes_of_control_planes(len(self.nodes))
        for scope in self.workqueue:
            if (scope in self._of_control_planes) == begins_with_control_planes:
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)


def lanes_of_control_planes(workers: int) -> int:
    """How many of so many workers begin with what starts a control plane: three of four, or one that is alone."""
    return max(1, workers - math.ceil(workers / 4))


def _groups_file(config: pytest.Config) -> Path:
    return Path(config.stash[FOLDER].name) / "groups.json"


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder in which the workers leave the tests' groups: of a test, its name is all that comes from them."""
    if config.getoption("dist", "no") == "loadfile":
        config.stash[FOLDER] = tempfile.TemporaryDirectory(prefix="flyball-tests-")
        config.add_cleanup(config.stash[FOLDER].cleanup)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Five workers for two processors, where files are handed out; with four, the two waited for a sixth of the time."""
    if WORKERS_VARIABLE in os.environ or config.getoption("dist", "no") != "loadfile":
        return None
    return math.ceil(2.5 * len(os.sched_getaffinity(0)))


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
    """In a worker, begin with what is shared and what takes long, and leave the groups where they are asked for."""
    workerinput = getattr(config, "workerinput", {})
    if GROUPS_FILE not in workerinput:
        return
    begun_early = (LONG, REALNODE)
    items.sort(key=lambda item: (_shared_place(item), [item.get_closest_marker(name) is None for name in begun_early]))
    groups = {}
    for item in items:
        if (place := _shared_place(item)) < len(SHARED_FIXTURES):
            groups[item.nodeid] = f"what shares the {SHARED_FIXTURES[place]}"
        elif item.get_closest_marker(LONG):
            groups[item.nodeid] = item.nodeid
    path = Path(workerinput[GROUPS_FILE])
    fresh = path.with_suffix(f".{workerinput['workerid']}")
    fresh.write_text(json.dumps((groups, [item.nodeid for item in items if item.get_closest_marker(MARKER)])))
    fresh.rename(path)


def _shared_place(item: pytest.Item) -> int:
    """Which of the shared fixtures a test asks for, by its place among them."""
    return next((place for place, name in enumerate(SHARED_FIXTURES) if _asks_for(item, name)), len(SHARED_FIXTURES))


def _asks_for(item: pytest.Item, name: str) -> bool:
    """Whether a test asks for what a whole session has one of by that name; a module may have a fixture of its own."""
    if not isinstance(item, pytest.Function) or name not in item.fixturenames:
        return False
    return item._fixtureinfo.name2fixturedefs[name][-1].scope == "session"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """End what is shared with the last test that asks for it: a site computes also where nobody looks at it."""
    result = yield
    if isinstance(item, pytest.Function):
        later = _later(item, nextitem)
        for name in SHARED_FIXTURES:
            if _asks_for(item, name) and not any(_asks_for(other, name) for other in later):
                for definition in item._fixtureinfo.name2fixturedefs[name]:
                    definition.finish(item._request)  # type: ignore[arg-type]  # asked for its item only
    return result


def _later(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.Item]:
    """The tests that may yet run in this process: of a worker, which has groups whole, the next one tells."""
    if hasattr(item.config, "workerinput"):
        return [] if nextitem is None else [nextitem]
    return item.session.items[item.session.items.index(item) + 1 :]
