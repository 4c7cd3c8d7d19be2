"""What clusters begin with: made once for what goes into it, and nobody else's where it names its cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flyball_api.manifests import manifests
from flyball_testbed.controlplane import install, prepared
from flyball_testbed.controlplane.api import Json
from flyball_testbed.controlplane.components import API_SERVER, CONTROLLER_MANAGER, ETCD
from flyball_testbed.controlplane.control_plane import ComponentError, ControlPlane
from flyball_testbed.controlplane.install import CRDS
from flyball_testbed.controlplane.prepared import STORES_KEPT, prepared_store, stores_directory
from flyball_testbed.controlplane.programs.binaries import Binaries

from benchmarks.churn import manifest
from tests.support.control_plane import IsolatedCluster


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Binaries:
    """Programs by name alone, and a cache of the test's own, where to make a store is to make its folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = {name: tmp_path / name for name in (ETCD, API_SERVER, CONTROLLER_MANAGER)}
    for path in found.values():
        path.write_text("1.0")
    return Binaries(found)


def unread(report: str) -> None:
    """Nobody reads what is reported."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The stores that have been made."""
    stores: list[Path] = []

    def make(store: Path, _programs: Binaries) -> None:
        store.mkdir()
        stores.append(store)

    monkeypatch.setattr(prepared, "_make", make)
    return stores


def test_it_is_made_once_also_for_who_asks_at_the_same_time(programs: Binaries, made: list[Path]) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: prepared_store(programs, unread), range(4)))
    assert found == set(made)
    assert len(made) == 1
    os.utime(made[0], (1, 1))
    prepared_store(programs, unread)
    assert made[0].stat().st_mtime > 1, "it counts as used"


def test_other_programs_kinds_or_rights_are_another_store(
    programs: Binaries, made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared_store(programs, unread)
    programs[API_SERVER].write_text("1.0.1")
    prepared_store(programs, unread)
    monkeypatch.setattr(prepared, "manifests", lambda: manifests()[1:])
    prepared_store(programs, unread)
    monkeypatch.setattr(prepared.install, "read_manifests", lambda _directory: [])
    prepared_store(programs, unread)
    assert len(set(made)) == 4


def test_without_a_cache_there_is_none(programs: Binaries, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    said: list[str] = []
    assert prepared_store(programs, said.append) is None
    assert "no store is kept" in said[0]


def test_one_that_cannot_be_made_leaves_nothing_and_old_ones_go(
    programs: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores_directory().mkdir(parents=True)
    (stores_directory() / f"{prepared.SCRATCH_PREFIX}killed").mkdir()
    for age in range(STORES_KEPT):
        old = stores_directory() / f"{age:016}"
        old.mkdir()
        os.utime(old, (1000 - age, 1000 - age))

    class Plane:
        """Has what a store is made of, or cannot be started."""

        fails = True
        directory: Path

        @classmethod
        def start(cls, directory: Path, **_options: object) -> Plane:
            if cls.fails:
                raise RuntimeError("etcd ended")
            (directory / "etcd").mkdir(parents=True)
            plane = cls()
            plane.directory = directory
            return plane

        def __enter__(self) -> Plane:
            self.api = self
            return self

        def wait_for(self, *_what: object) -> None:
            pass

        def __exit__(self, *_how: object) -> None:
            pass

    monkeypatch.setattr(prepared, "ControlPlane", Plane)
    with pytest.raises(RuntimeError, match="etcd ended"):
        prepared_store(programs, unread)
    assert sorted(path.name for path in stores_directory().iterdir()) == [
        f"{age:016}" for age in range(STORES_KEPT)
    ] + ["lock"]
    Plane.fails = False
    store = prepared_store(programs, unread)
    assert sorted(path.name for path in stores_directory().iterdir()) == sorted(
        [store.name, *(f"{age:016}" for age in range(STORES_KEPT - 1)), "lock"]
    )


def test_one_that_cannot_be_copied_is_said_in_words(programs: Binaries, tmp_path: Path) -> None:
    with pytest.raises(ComponentError, match=r"data cannot be copied: .*No such file or directory"):
        ControlPlane.start(tmp_path / "cluster", binaries=programs, store=tmp_path / "gone")


def test_a_cluster_that_began_with_it_is_its_own(cluster: IsolatedCluster) -> None:
    plane = cluster.devcluster.control_plane
    authority = plane.layout.authority.read_text()
    cluster.api.wait_for(
        "/api/v1/namespaces/default/configmaps/kube-root-ca.crt",
        lambda found: found is not None and found["data"]["ca.crt"] == authority,
        what="this cluster's",
    )
    names = {crd["metadata"]["name"] for crd in manifests()}
    assert {crd["metadata"]["name"] for crd in cluster.api.list_objects(CRDS)} == names


def test_a_policy_with_parameters_is_in_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two of five starts with it in the store, no EnergyAwareJob was taken for half a minute."""

    class Api:
        applied: list[str]

        def __init__(self) -> None:
            self.applied = []

        def apply(self, item: Json) -> None:
            self.applied.append(f"{item['kind']} {item['metadata']['name']}")

        def for_each(self, call: Callable[[Json], None], items: Iterable[Json]) -> None:
            for item in items:
                call(item)

    monkeypatch.setattr(install, "apply_crds", lambda _api, _crds: [])
    stored: Any = Api()
    prepared._install(stored)
    later: Any = Api()
    install.install_parameterized(later)
    assert later.applied == ["ValidatingAdmissionPolicy flyball-priorities"]
    everything = {
        f"{item['kind']} {item['metadata']['name']}" for item in install.read_manifests(install.BASE_DIRECTORY)
    }
    assert set(stored.applied) == everything - set(later.applied)


def test_a_cluster_takes_a_job_at_once(cluster: IsolatedCluster) -> None:
    path = "/apis/flyball.dev/v1alpha1/namespaces/default/energyawarejobs"
    cluster.api.request("POST", path, manifest("first", "default", 1), query={"dryRun": "All"})
