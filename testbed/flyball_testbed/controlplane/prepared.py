"""What a control plane begins with, made once and copied: etcd's data with Kubernetes' own objects and Flyball's API.

To make them anew takes the API server and the controller manager a second of processor time, and several of waiting.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from flyball_api.manifests import manifests
from flyball_api.names import DEFAULT_NAMESPACE

from flyball_testbed.controlplane import install
from flyball_testbed.controlplane.api import ApiClient
from flyball_testbed.controlplane.components import (
    API_SERVER,
    CONTROLLER_MANAGER,
    ETCD,
    api_server_arguments,
    controller_manager_arguments,
    etcd_arguments,
)
from flyball_testbed.controlplane.control_plane import ETCD_DATA, ControlPlane, Options, copy_store
from flyball_testbed.controlplane.programs.binaries import Binaries, Report
from flyball_testbed.controlplane.programs.build import locked

# Those used last: another checkout may be copying its own while one is made here.
STORES_KEPT = 8
SCRATCH_PREFIX = ".making."


def stores_directory() -> Path:
    """The folder of the stores, in the cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "flyball" / "stores"


def prepared_store(programs: Binaries, report: Report = print) -> Path | None:
    """A folder with the data of an etcd for these programs, with the kinds and base manifests of this checkout in it, but
    for the admission policies with parameters (`install.install_parameterized`).

    Where there is none yet, a control plane is started and stopped for it. None where the cache cannot be written.
    Raises what `ControlPlane.start` raises.
    """
    store = stores_directory() / _version(programs)
    try:
        if not store.is_dir():
            with locked(stores_directory() / "lock", report):
                if not store.is_dir():
                    _make(store, programs)
        os.utime(store)
    except OSError as error:
        report(f"no store is kept for the next start: {error}")
        return None
    return store


def _version(programs: Binaries) -> str:
    """The hash of everything that goes into a store, or decides what is made there."""
    digest = hashlib.sha256()
    for path in (programs[name] for name in (ETCD, API_SERVER, CONTROLLER_MANAGER)):
        about = path.stat()
        digest.update(f"{path.resolve()} {about.st_size} {about.st_mtime_ns}\0".encode())
    options = [etcd_arguments(), api_server_arguments(0), controller_manager_arguments(0, 0)]
    base = [item for item in install.read_manifests(install.BASE_DIRECTORY) if not install.is_parameterized(item)]
    digest.update(json.dumps([options, manifests(), base]).encode())
    return digest.hexdigest()[:16]


def _make(store: Path, programs: Binaries) -> None:
    for left_over in store.parent.glob(f"{SCRATCH_PREFIX}*"):
        shutil.rmtree(left_over, ignore_errors=True)  # of a process that was killed: we hold the lock
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=store.parent) as scratch:
        options = Options(die_with_parent=True)  # nobody else knows of them
        with ControlPlane.start(
            Path(scratch) / "cluster", options=options, binaries=programs, before_controllers=_install
        ) as plane:
            account = f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/serviceaccounts/default"
            plane.api.wait_for(account, lambda found: found is not None)
        copy_store(plane.directory / ETCD_DATA, Path(scratch) / "store")
        (Path(scratch) / "store").rename(store)
    for old in sorted(store.parent.glob("[0-9a-f]*"), key=_age)[STORES_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _install(api: ApiClient) -> None:
    install.install_all_but_parameterized(api)


def _age(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):
        return -path.stat().st_mtime
    return 0.0
