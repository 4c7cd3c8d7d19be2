"""The façade, as a program uses it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from flyball_testbed.controlplane.cluster import DevCluster, take_down
from flyball_testbed.controlplane.components import COMPONENTS
from flyball_testbed.controlplane.control_plane import ControlPlane, Options
from flyball_testbed.controlplane.processes import Process, ProcessIdentity

from tests.support.control_plane import IsolatedCluster

pytestmark = pytest.mark.cluster


async def test_a_cluster_in_an_event_loop() -> None:
    async with await DevCluster.start_async(2, 4, options=Options(pod_start_delay_seconds=0.0)) as cluster:
        plane = cluster.control_plane
        processes = [plane.component(name).identity for name in COMPONENTS]
        names = await asyncio.to_thread(cluster.node_names)
        assert names == ["node-000", "node-001"]
        assert list(await asyncio.to_thread(cluster.agent_pods)) == names
        # The worker thread that started them is not what they live by.
        assert all(process.is_running() for process in processes)
    assert not any(process.is_running() for process in processes)


def test_a_cluster_that_its_own_command_takes_away_meanwhile_is_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that runs in the foreground both remove the folder: the command, and who takes it down elsewhere."""
    directory = tmp_path / "cluster"
    (directory / "pki").mkdir(parents=True)
    certificate = directory / "pki" / "ca.crt"
    certificate.write_text("")

    class Stopped:
        def running(self) -> list[str]:
            return []

        def stop(self) -> None: ...

    unlink = os.unlink

    def overtaken(path: str, **at: Any) -> None:
        with contextlib.suppress(FileNotFoundError):
            unlink(certificate)
        unlink(path, **at)

    with monkeypatch.context() as racing:
        racing.setattr(ControlPlane, "attach", lambda directory: Stopped())
        racing.setattr(os, "unlink", overtaken)
        assert take_down(directory)
    assert not directory.exists()


def test_a_failure_on_the_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ProcessIdentity] = []
    spawn = Process.spawn

    def recording(*arguments: Any, **keywords: Any) -> Process:
        process = spawn(*arguments, **keywords)
        seen.append(process.identity)
        return process

    monkeypatch.setattr(Process, "spawn", recording)
    monkeypatch.setattr(DevCluster, "add_nodes", lambda self, *a, **k: (_ for _ in ()).throw(RuntimeError("no nodes")))
    with pytest.raises(RuntimeError, match="no nodes"):
        DevCluster.start(1, install=False, directory=tmp_path / "cluster")
    assert len(seen) == len(COMPONENTS)
    assert not any(identity.is_running() for identity in seen)


def test_agents_that_do_not_come_are_named(cluster: IsolatedCluster) -> None:
    with pytest.raises(TimeoutError, match="no agent pod runs on nowhere"):
        cluster.devcluster.agent_pods(["nowhere"], timeout_seconds=0.2)
