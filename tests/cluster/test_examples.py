"""What `flyball devcluster up` starts, and every manifest of `examples/` on it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.install import REPOSITORY
from flyball_testbed.controlplane.nodes import DEFAULT_GPU_PRODUCT
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.standing import processes_of, set_up, take_down

from tests.support.site_bench import condition

MANIFESTS = sorted((REPOSITORY / "examples" / "manifests").glob("*.yaml"))
NODES = 6
PATIENCE_SECONDS = 120.0


@pytest.fixture
def standing(control_plane_programs: Binaries, tmp_path: Path) -> Iterator[DevCluster]:
    """A cluster with everything on it; nothing of it is left afterwards."""
    directory = tmp_path / "standing"
    cluster = DevCluster.start(NODES, directory=directory, binaries=control_plane_programs)
    try:
        set_up(cluster, 8, DEFAULT_GPU_PRODUCT, die_with_parent=True)
        yield cluster
    finally:
        parts = processes_of(directory)
        assert take_down(directory)
    assert parts
    assert not any(process.is_running() for process in parts)
    assert not directory.exists()


def cap_holds(cap: Json | None) -> bool:
    """Whether a cap has nodes under it, and is enforced or waits for nothing but its meter."""
    status = (cap or {}).get("status") or {}
    current = status.get("observedGeneration") == ((cap or {}).get("metadata") or {}).get("generation")
    return current and status.get("nodes", 0) > 0 and condition(cap, "Enforced") == "True"


def trains(job: Json | None) -> bool:
    """Whether all pods of a job run, and its training has reported steps."""
    progress = ((job or {}).get("status") or {}).get("progress") or {}
    running = condition(job, "PodsReady") == "True" and condition(job, "PowerLimitsEnforced") == "True"
    return running and progress.get("iterations", 0) > 0 and not progress.get("estimated", True)


def apply(api: ApiClient, manifest: Path) -> list[Json]:
    """Apply a file as `kubectl apply` would; its objects."""
    objects: list[Json] = [item for item in yaml.safe_load_all(manifest.read_text()) if item]
    for item in objects:
        api.apply(item)
    return objects


def test_every_example_runs_as_it_is(standing: DevCluster) -> None:
    api = standing.api
    jobs = []
    for manifest in MANIFESTS:
        for item in apply(api, manifest):
            path = api.path_of(item)
            if item["kind"] == "PowerCap":  # several are of one name: each in its turn
                api.wait_for(path, cap_holds, timeout_seconds=PATIENCE_SECONDS, what=f"held ({manifest.name})")
            elif item["kind"] == "EnergyAwareJob":
                jobs.append(path)
    assert len(jobs) >= 4
    for path in jobs:
        api.wait_for(path, trains, timeout_seconds=PATIENCE_SECONDS, what="training")
