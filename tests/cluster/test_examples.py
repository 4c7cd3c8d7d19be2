"""What `flyball devcluster up` starts, and every manifest of `examples/` on it as it is."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

import pytest
import yaml
from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.install import REPOSITORY
from flyball_testbed.controlplane.nodes import DEFAULT_GPU_PRODUCT
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.controlplane.programs.monitoring_tools import PROMETHEUS
from flyball_testbed.parts import AGENTS, OPERATOR, PAGE
from flyball_testbed.standing import addresses_of, processes_of, set_up, take_down

from tests.support.site_bench import condition
from tests.support.waiting import wait_until

MANIFESTS = sorted((REPOSITORY / "examples" / "manifests").glob("*.yaml"))
NODES = 6
PATIENCE_SECONDS = 120.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names


@pytest.fixture
def standing(control_plane_programs: Binaries, monitoring_tools: Binaries, tmp_path: Path) -> Iterator[DevCluster]:
    """A cluster with everything on it, a Prometheus too, as that is there; nothing of it is left afterwards."""
    directory = tmp_path / "standing"
    cluster = DevCluster.start(NODES, directory=directory, binaries=control_plane_programs)
    try:
        shown = set_up(cluster, 8, DEFAULT_GPU_PRODUCT, die_with_parent=True)
        assert shown == addresses_of(directory)
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


def lets_run(job: Json | None) -> bool:
    """Whether a batch Job that was made suspended has pods, all ready."""
    made = (job or {}).get("spec", {}).get("suspend") is False
    return made and (job or {}).get("status", {}).get("ready", 0) > 0


def document(url: str) -> Any:
    with DIRECT.open(url, timeout=30) as answer:
        return json.load(answer)


def apply(api: ApiClient, manifest: Path) -> list[Json]:
    """Apply a file as `kubectl apply` would; its objects."""
    objects: list[Json] = [item for item in yaml.safe_load_all(manifest.read_text()) if item]
    for item in objects:
        api.apply(item)
    return objects


def test_every_example_runs_as_it_is(standing: DevCluster) -> None:
    api = standing.api
    jobs, let_run = [], []
    for manifest in MANIFESTS:
        for item in apply(api, manifest):
            path = api.path_of(item)
            if item["kind"] == "PowerCap":  # several are of one name: each in its turn
                api.wait_for(path, cap_holds, timeout_seconds=PATIENCE_SECONDS, what=f"held ({manifest.name})")
            elif item["kind"] == "EnergyAwareJob":
                jobs.append(path)
            elif item["kind"] == "Job":  # submitted as one that waits for watts
                api.wait_for(path, lets_run, timeout_seconds=PATIENCE_SECONDS, what=f"let run ({manifest.name})")
                let_run.append(path)
    assert len(jobs) >= 4
    assert let_run
    for path in jobs:
        api.wait_for(path, trains, timeout_seconds=PATIENCE_SECONDS, what="training")

    # What people look at has all of it: the page by the rights of its own account, Prometheus by its scrapes.
    shown = addresses_of(standing.directory)
    overview = document(urljoin(shown[PAGE], "api/overview"))
    assert {cap["name"] for cap in overview["caps"]} == {
        cap["metadata"]["name"] for cap in api.list_objects("/apis/flyball.dev/v1alpha1/powercaps")
    }
    assert overview["operator"]["holder"]
    assert {f"{job['namespace']}/{job['name']}" for job in document(urljoin(shown[PAGE], "api/jobs"))["jobs"]} == {
        f"{path.split('/')[-3]}/{path.split('/')[-1]}" for path in jobs
    }

    def scraped(query: str) -> list[Any]:
        return list(document(urljoin(shown[PROMETHEUS], f"query?query={quote(query)}"))["data"]["result"])

    for part in (OPERATOR, AGENTS):
        wait_until(
            lambda up=f'up{{job="flyball-{part}"}} == 1': bool(scraped(up)), f"{part} is scraped", PATIENCE_SECONDS
        )
    wait_until(lambda: bool(scraped("flyball_cap_committed_watts > 0")), "caps are scraped", PATIENCE_SECONDS)
    groups = document(urljoin(shown[PROMETHEUS], "rules"))["data"]["groups"]
    assert len([rule for group in groups for rule in group["rules"]]) >= 20
