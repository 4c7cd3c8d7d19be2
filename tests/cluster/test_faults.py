"""Whatever dies, stops or is cut off: the same end state, and a referee that saw nothing above an enforced cap."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from flyball_testbed.controlplane.api import Json
from flyball_testbed.controlplane.components import API_SERVER, CONTROLLER_MANAGER, ETCD, KWOK, SCHEDULER
from flyball_testbed.parts import AGENTS, OPERATOR

from tests.support.site_bench import Bench, condition

LONG = 1_000_000
KILLS = 6  # each of the parts that die, at each of the steps; tests/schedules has them die by the thousand


def start_load(bench: Bench, jobs: int = 4) -> int:
    """A cap at 80 % with jobs that fill it; returns the site's maximum watts."""
    full = bench.site.plan.max_watts
    bench.set_cap("site", int(full * 0.8))
    bench.wait_enforced("site", int(full * 0.8))
    for index in range(jobs):
        bench.submit(f"load-{index}", gpus=(1, 8), iterations=LONG, batch=512, objective="Time")
    for index in range(jobs):
        bench.wait_running(f"load-{index}")
    return full


def trains(raw: Json | None) -> bool:
    """Its pods run, and it has been said how far it is: on a busy machine the first report is later than the last kill."""
    progress = ((raw or {}).get("status") or {}).get("progress") or {}
    return condition(raw, "PodsReady") == "True" and progress.get("iterations", 0) > 0


def settled_limits_watts(bench: Bench, seconds: float = 1.0) -> float:
    """What the limits add up to, once that has stayed the same for so long."""
    seen, since = bench.limits_watts(), time.monotonic()

    def stays() -> bool:
        nonlocal seen, since
        if (now := bench.limits_watts()) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since >= seconds

    bench.wait(stays, lambda: f"limits that stay; now {seen} W")
    return seen


@pytest.mark.long
def test_kill_operator_agents_or_both_at_random_moments_of_a_cap_step(make_site: Callable[..., Bench]) -> None:
    bench = make_site(nodes=4)
    full = start_load(bench)
    moments = random.Random(20261120)
    for kill in range(KILLS):
        watts = int(full * (0.4, 0.7)[kill % 2])
        bench.set_cap("site", watts)
        time.sleep(moments.uniform(0.0, 0.5))  # the moment of death, which is what this test varies
        for part in ((OPERATOR,), (AGENTS,), (OPERATOR, AGENTS))[kill % 3]:
            bench.site.parts[part].kill()
            bench.site.start_part(part)
        bench.wait_enforced("site", watts)
        assert bench.limits_watts() <= watts, f"after kill {kill}"
    for index in range(4):
        running = bench.wait_job(f"load-{index}", trains, "running, with what it has done")
        assert running["status"]["restarts"] == 0
    assert bench.judged_seconds("site") > 5
    assert bench.overshoot_watts("site") == 0.0


@pytest.mark.long
@pytest.mark.timeout(240)
def test_api_server_away_for_less_and_for_longer_than_a_lease(make_site: Callable[..., Bench]) -> None:
    bench = make_site(nodes=2)
    full = start_load(bench, jobs=2)
    control_plane = bench.site.cluster.control_plane
    bench.wait(lambda: bench.limits_watts() > bench.floor_watts(), lambda: "the jobs' limits raised")
    # Shorter than the grants' lease (15 s): the agents hold what they have.
    control_plane.kill_component("kube-apiserver")
    ends = time.monotonic() + 7
    held = settled_limits_watts(bench)  # a grant may have been on its way
    assert held > bench.floor_watts()
    while time.monotonic() < ends:
        assert bench.limits_watts() == held
        time.sleep(0.5)
    control_plane.start_component("kube-apiserver")
    bench.wait_enforced("site", int(full * 0.8))
    # Longer: they step down to the floor by themselves, and come back when it does.
    control_plane.kill_component("kube-apiserver")
    bench.wait_at_floor()
    control_plane.start_component("kube-apiserver")
    bench.wait(lambda: bench.limits_watts() > bench.floor_watts(), lambda: "limits raised again")
    for index in range(2):
        bench.wait_running(f"load-{index}")
    bench.set_cap("site", int(full * 0.5))
    bench.wait_enforced("site", int(full * 0.5))
    assert bench.overshoot_watts("site") == 0.0


def grant_versions(bench: Bench) -> dict[str, tuple[int, int]]:
    """Epoch and generation of each node's grant."""
    return {node["metadata"]["name"]: (node["spec"]["epoch"], node["spec"]["generation"]) for node in bench.gpu_nodes()}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_store_that_is_restored_from_a_backup_brings_back_no_watts(
    make_site: Callable[..., Bench], tmp_path: Path
) -> None:
    """The backup is from before a cut: grants, acknowledgements, the Lease and all versions are as they were."""
    bench = make_site(nodes=2)
    full = start_load(bench, jobs=2)
    control_plane, backup = bench.site.cluster.control_plane, tmp_path / "backup"
    store = control_plane.directory / ETCD

    def with_the_store_at_rest(work: Callable[[], object]) -> None:
        """What follows a restore by the book: every component is started anew."""
        names = (KWOK, SCHEDULER, CONTROLLER_MANAGER, API_SERVER, ETCD)
        for name in names:
            control_plane.stop_component(name)
        work()
        for name in reversed(names):
            control_plane.start_component(name)

    with_the_store_at_rest(lambda: shutil.copytree(store, backup))
    bench.wait_enforced("site", int(full * 0.8))
    low = int(full * 0.4)
    bench.set_cap("site", low)
    bench.wait_enforced("site", low)
    epochs = {node["spec"]["epoch"] for node in bench.gpu_nodes()}
    held = bench.limits_watts()

    def restore() -> None:
        shutil.rmtree(store)
        backup.rename(store)

    with_the_store_at_rest(restore)
    bench.set_cap("site", low)  # whoever cut it does so again: of that, the store remembers nothing
    bench.wait_enforced("site", low)
    assert bench.limits_watts() <= max(held, low)
    assert all(node["spec"]["epoch"] > max(epochs) for node in bench.gpu_nodes())
    for index in range(2):
        bench.wait_running(f"load-{index}")
    bench.set_cap("site", int(full * 0.6))
    bench.wait_enforced("site", int(full * 0.6))
    bench.wait(lambda: bench.limits_watts() > low, lambda: "limits raised again")
    assert bench.overshoot_watts("site") == 0.0


@pytest.mark.long
def test_a_leader_stopped_past_its_lease_counts_for_nothing(make_site: Callable[..., Bench]) -> None:
    bench = make_site(nodes=2)
    full = start_load(bench, jobs=2)
    first = bench.site.parts[OPERATOR]
    (old,) = {node["spec"]["epoch"] for node in bench.gpu_nodes()}
    second = bench.site.start_part(OPERATOR)  # stands by
    first.pause()
    low = int(full * 0.4)
    bench.set_cap("site", low)
    bench.wait_enforced("site", low)
    versions = grant_versions(bench)
    assert min(epoch for epoch, _ in versions.values()) > old
    first.resume()
    try:
        bench.wait(
            lambda: "standing down" in first.log_tail(200), lambda: f"the old leader's word: {first.log_tail(5)}"
        )
        assert first.is_running()
        assert second.is_running()
        # The new leader may have gone on; nothing went back, and no job carries the old leader's epoch.
        assert all(version >= versions[name] for name, version in grant_versions(bench).items())
        for index in range(2):
            bench.wait_job(
                f"load-{index}",
                lambda raw: raw is not None and raw["status"]["allocation"]["epoch"] > old,
                "planned by the new leader",
            )
        assert bench.overshoot_watts("site") == 0.0
    finally:
        first.stop(10)
