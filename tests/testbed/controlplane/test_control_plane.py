"""Starting, stopping, damaging and finding again the control plane's processes."""

from __future__ import annotations

import datetime
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_testbed.controlplane import control_plane
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.components import API_SERVER, COMPONENTS, CONTROLLER_MANAGER, ETCD, KWOK, SCHEDULER
from flyball_testbed.controlplane.control_plane import ComponentError, ControlPlane
from flyball_testbed.controlplane.nodes import NODE_LEASES, NODES, create_nodes, gpu_node, is_ready, set_not_ready
from flyball_testbed.controlplane.processes import ProcessIdentity, wait_until

pytestmark = pytest.mark.cluster
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def mendable() -> Iterator[list[DevCluster]]:
    kept: list[DevCluster] = []
    yield kept
    for devcluster in kept:
        devcluster.stop()


@pytest.fixture
def damaged(mendable: list[DevCluster]) -> DevCluster:
    """A cluster of this file's own, to damage and mend again; a new one where a test has left it damaged."""
    if mendable and not mendable[-1].control_plane.is_running():
        mendable.pop().stop()
    if not mendable:
        mendable.append(DevCluster.start(2))
    return mendable[-1]


def identities(plane: ControlPlane) -> list[ProcessIdentity]:
    return [plane.component(name).identity for name in COMPONENTS]


def test_two_control_planes_at_once_share_nothing_and_leave_nothing() -> None:
    with ThreadPoolExecutor(2) as pool:
        planes = list(pool.map(lambda _: ControlPlane.start(), range(2)))
    try:
        first, second = planes
        of_the_first, of_the_second = map(identities, planes)
        assert all(process.is_running() for process in of_the_first)
        assert first.is_running()
        assert first.server_url != second.server_url
        first.api.create(CONFIG_MAPS, {"metadata": {"name": "only-in-the-first"}})
        names = {found["metadata"]["name"] for found in second.api.list_objects(CONFIG_MAPS)}
        assert "only-in-the-first" not in names
        first.stop()
        assert not any(process.is_running() for process in of_the_first)
        assert not first.directory.exists()
        assert second.is_running()
        assert second.api.get("/readyz?verbose=1") is not None
        second.pause_component(SCHEDULER)
        second.pause_component(ETCD)
        second.stop()
        assert not any(process.is_running() for process in of_the_second), "one that is paused is stopped all the same"
    finally:
        for plane in planes:
            plane.stop()


def test_the_api_server_comes_back_on_its_port_with_its_data(damaged: DevCluster) -> None:
    plane, api = damaged.control_plane, damaged.api
    url = plane.server_url
    api.create(CONFIG_MAPS, {"metadata": {"name": "kept"}, "data": {"answer": "42"}})
    before = plane.component(API_SERVER).pid

    plane.stop_component(API_SERVER)
    with pytest.raises(ApiUnreachable, match="refused"):
        api.get(f"{CONFIG_MAPS}/kept")
    assert not plane.is_running()

    plane.start_component(API_SERVER)
    assert plane.server_url == url
    assert plane.component(API_SERVER).pid != before
    assert api.get(f"{CONFIG_MAPS}/kept")["data"] == {"answer": "42"}
    # The others found it again: a new node is seen by kwok, and its taint of not being ready is taken off.
    create_nodes(api, [gpu_node("late")])
    api.wait_for(
        f"{NODES}/late",
        lambda node: (
            node is not None
            and is_ready(node)
            and not any("not-ready" in taint["key"] for taint in node["spec"].get("taints", []))
        ),
        timeout_seconds=60,
        what="ready",
    )


def test_a_paused_api_server_answers_nobody_and_resumes(damaged: DevCluster) -> None:
    plane = damaged.control_plane
    impatient = plane.api_with_token(plane.token("default", "default"), timeout_seconds=1.0)
    plane.pause_component(API_SERVER)
    try:
        with pytest.raises(ApiUnreachable, match="timed out"):
            impatient.get("/version")
        assert plane.component(API_SERVER).is_running()
    finally:
        plane.resume_component(API_SERVER)
    assert plane.api.get("/version")["minor"] == "36"


def test_etcd_killed_and_started_again_keeps_the_data(damaged: DevCluster) -> None:
    plane, api = damaged.control_plane, damaged.api
    api.create(CONFIG_MAPS, {"metadata": {"name": "kept-by-etcd"}})
    plane.kill_component(ETCD)
    plane.start_component(ETCD)

    # The API server finds it again in its own time.
    api.wait_for(f"{CONFIG_MAPS}/kept-by-etcd", lambda kept: kept is not None, timeout_seconds=60)


@pytest.mark.long
def test_a_killed_kwok_started_again_governs_its_nodes_at_once(damaged: DevCluster) -> None:
    plane, api = damaged.control_plane, damaged.api
    plane.kill_component(KWOK)
    plane.start_component(KWOK)
    # Within the 40 s for which the dead one's leases would have held.
    set_not_ready(api, "node-001", timeout_seconds=38)


@pytest.mark.long
def test_what_a_killed_kwok_asked_last_keeps_no_node_from_the_next_one(
    damaged: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, api = damaged.control_plane, damaged.api
    plane.kill_component(KWOK)
    create_nodes(api, [gpu_node("half-seen")])
    spawn, refused = plane._spawn, []

    def answer_the_dead_first(name: str) -> None:
        spec = {
            "holderIdentity": "the-dead-one",
            "leaseDurationSeconds": 600,
            "renewTime": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }
        with pytest.raises(ApiError) as refusal:
            api.create(NODE_LEASES, {"metadata": {"name": "half-seen"}, "spec": spec})
        refused.append(refusal.value.reason)
        spawn(name)

    monkeypatch.setattr(plane, "_spawn", answer_the_dead_first)
    plane.start_component(KWOK)
    assert refused == ["AlreadyExists"]
    set_not_ready(api, "half-seen", timeout_seconds=38)


def test_starting_a_running_component_is_refused(damaged: DevCluster) -> None:
    with pytest.raises(ValueError, match=CONTROLLER_MANAGER):
        damaged.control_plane.start_component(CONTROLLER_MANAGER)


def test_an_unknown_component_is_named_with_those_there_are(control_plane: DevCluster) -> None:
    with pytest.raises(KeyError, match=r"no component 'apiserver'.*kube-apiserver"):
        control_plane.control_plane.component("apiserver")


def test_another_process_can_attach_and_stop_it(tmp_path: Path) -> None:
    plane = ControlPlane.start(tmp_path / "cluster")
    try:
        processes = identities(plane)
        program = (
            "import sys\n"
            "from flyball_testbed.controlplane.control_plane import ControlPlane\n"
            "plane = ControlPlane.attach(sys.argv[1])\n"
            "assert plane.is_running()\n"
            f"plane.api.create({CONFIG_MAPS!r}, {{'metadata': {{'name': 'from-afar'}}}})\n"
            "plane.stop()\n"
        )
        subprocess.run([sys.executable, "-c", program, str(plane.directory)], check=True, timeout=60)
        assert not any(process.is_running() for process in processes)
    finally:
        plane.stop()
    assert (tmp_path / "cluster").is_dir(), "a folder that was given is the giver's to remove"


def test_the_processes_die_with_a_killed_parent_and_its_folder_is_swept(tmp_path: Path) -> None:
    program = (
        "import signal\n"
        "from flyball_testbed.controlplane.control_plane import ControlPlane\n"
        "print(ControlPlane.start().directory, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        directory = Path(parent.stdout.readline().strip())
        processes = identities(ControlPlane.attach(directory))
        assert all(process.is_running() for process in processes)
        parent.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not any(process.is_running() for process in processes), 30)
    assert directory.is_dir(), "the killed one could not remove it"
    with ControlPlane.start() as next_one:
        assert not directory.exists()
        # One whose components are all down on purpose is its owner's to keep.
        for name in COMPONENTS:
            next_one.kill_component(name)
        control_plane._sweep_temporary_directories()
        assert next_one.directory.is_dir()


def test_a_component_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane, "scheduler_arguments", lambda port: ["--no-such-flag"])
    with pytest.raises(ComponentError, match=r"kube-scheduler ended with status 1(?s:.*)no-such-flag"):
        ControlPlane.start(tmp_path / "cluster")
    state = json.loads((tmp_path / "cluster" / "state.json").read_text())
    assert state["processes"] == {}
    assert not processes_under(tmp_path / "cluster")


def test_in_a_folder_with_a_long_name_a_port_taken_in_between_is_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Unix socket's path may have 107 bytes."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        lost = taken.getsockname()[1]
        honest = control_plane.free_port
        offers = iter([lost, honest(), lost])  # the API server's first, its second, the scheduler's first
        monkeypatch.setattr(control_plane, "free_port", lambda: next(offers, None) or honest())
        with ControlPlane.start(tmp_path / ("long-" * 30) / "cluster") as plane:
            assert plane.is_running()
            assert str(lost) not in plane.server_url
            assert plane.layout.log(f"{API_SERVER}-port-taken-0").exists()
            assert plane.layout.log(f"{SCHEDULER}-port-taken-0").exists()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        ControlPlane.start(tmp_path)


def processes_under(directory: Path) -> list[int]:
    """The ids of the processes whose working directory is `directory`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == directory.resolve():
                found.append(int(entry.name))
        except OSError:
            continue  # gone meanwhile, or not ours to look at
    return found
