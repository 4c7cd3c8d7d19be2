"""Whatever dies, stops or is cut off: the same end state, and a referee that saw nothing above an enforced cap."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from flyball_testbed.controlplane.api import Json
from flyball_testbed.controlplane.components import API_SERVER, CONTROLLER_MANAGER, ETCD, KWOK, SCHEDULER
from flyball_testbed.parts import AGENTS, OPERATOR

from tests.support.site_bench import GROUP, Bench, condition

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
    control_plane.kill_component(API_SERVER)
    ends = time.monotonic() + 7
    held = settled_limits_watts(bench)  # a grant may have been on its way
    assert held > bench.floor_watts()
    while time.monotonic() < ends:
        assert bench.limits_watts() == held
        time.sleep(0.5)
    control_plane.start_component(API_SERVER)
    bench.wait_enforced("site", int(full * 0.8))
    # Longer: they step down to the floor by themselves, and come back when it does.
    control_plane.kill_component(API_SERVER)
    bench.wait_at_floor()
    control_plane.start_component(API_SERVER)
    bench.wait(lambda: bench.limits_watts() > bench.floor_watts(), lambda: "limits raised again")
    for index in range(2):
        bench.wait_running(f"load-{index}")
    bench.set_cap("site", int(full * 0.5))
    bench.wait_enforced("site", int(full * 0.5))
    assert bench.overshoot_watts("site") == 0.0


@pytest.mark.long
@pytest.mark.timeout(240)
def test_agents_and_operator_that_start_while_the_api_server_is_away_raise_nothing(
    make_site: Callable[..., Bench],
) -> None:
    """Agents have their journals alone, which are from before a cut: what stands is held to the end of its lease."""
    bench = make_site(nodes=2)
    full = start_load(bench, jobs=2)
    bench.wait(lambda: bench.limits_watts() > full // 2, lambda: "the jobs' limits raised")
    control_plane, nodes = bench.site.cluster.control_plane, bench.site.cluster.node_names()
    before = {journal: journal.read_bytes() for journal in bench.site.agents.glob("*.journal")}
    bench.set_cap("site", full // 2)
    bench.wait_enforced("site", full // 2)
    control_plane.kill_component(API_SERVER)
    held = settled_limits_watts(bench)  # a grant may have been on its way
    for part in (OPERATOR, AGENTS):
        bench.site.parts[part].kill()
    for journal, content in before.items():
        journal.write_bytes(content)
    for part in (AGENTS, OPERATOR):
        bench.site.start_part_as_before(part)
    bench.wait(lambda: all(map(bench.site.agent_runs, nodes)), lambda: "the agents run without an API server")
    most = held

    def at_floor() -> bool:
        nonlocal most
        most = max(most, now := bench.limits_watts())
        return now <= bench.floor_watts()

    bench.wait(at_floor, lambda: f"limits at {bench.limits_watts()} W: the leases have ended")
    assert most == held
    control_plane.start_component(API_SERVER)
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


def clock_off(seconds: int) -> dict[str, str]:
    """What makes a process' wall clock show another time; its other clocks stay as they are."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        pytest.skip("nothing here sets the clock of a process (apt-get install faketime)")
    return {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME": f"{seconds:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


def window(name: str, hours_from_now: float, watts: int) -> Json:
    """A window of the schedule that is open for an hour around then."""
    middle = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=hours_from_now)
    start, end = (middle + timedelta(minutes=minutes) for minutes in (-30, 30))
    return {"name": name, "start": start.isoformat(), "end": end.isoformat(), "watts": watts}


def clock_ahead_seconds(bench: Bench) -> float:
    """What the operator's metrics say of its clock; 0 while there are none."""
    try:
        found = re.search(r"^flyball_clock_ahead_seconds (\S+)$", bench.site.metrics(OPERATOR), re.MULTILINE)
    except OSError:
        return 0.0
    return float(found[1]) if found else 0.0


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("hours", [2, -2])
def test_an_operator_whose_clock_is_two_hours_off_holds_a_schedule_by_both_and_its_successor_by_its_own(
    make_site: Callable[..., Bench], hours: int
) -> None:
    bench = make_site(nodes=2)
    full = start_load(bench, jobs=2)
    high, true, false = (int(full * share) for share in (0.7, 0.5, 0.4))
    bench.site.parts[OPERATOR].kill()
    environment = clock_off(3600 * hours)
    bench.site.start_part(OPERATOR, environment)
    bench.wait(
        lambda: abs(clock_ahead_seconds(bench) - 3600 * hours) < 60,
        lambda: f"a clock that is {clock_ahead_seconds(bench)} s ahead",
    )
    now, then = window("now", 0, true), window("by-that-clock", hours, true)
    for windows in ([now], [then], [now, then]):
        bench.set_cap("site", high)
        bench.wait_enforced("site", high)
        bench.set_cap("site", high, schedule=windows)
        status = bench.wait_enforced("site", true)["status"]
        assert status["activeSchedule"] in [each["name"] for each in windows]
    bench.set_cap("site", high, schedule=[now, {**then, "watts": false}])
    bench.wait_enforced("site", false)
    (old,) = {node["spec"]["epoch"] for node in bench.gpu_nodes()}
    bench.site.parts[OPERATOR].kill()
    bench.site.start_part(OPERATOR)  # for which the Lease was renewed hours from now, or ago
    bench.wait_enforced("site", true)
    assert min(node["spec"]["epoch"] for node in bench.gpu_nodes()) > old
    bench.wait(lambda: bench.limits_watts() > false, lambda: "limits raised to what the true time allows")
    assert bench.overshoot_watts("site") == 0.0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_thousand_jobs_at_once_hold_up_no_cut(make_site: Callable[..., Bench]) -> None:
    bench = make_site(nodes=2)
    full = start_load(bench, jobs=2)
    names = [f"many-{index:03d}" for index in range(1000)]

    def submit(name: str) -> None:
        bench.submit(name, gpus=(1, 8), iterations=LONG)
        if name == names[len(names) // 2]:
            bench.set_cap("site", int(full * 0.4))

    bench.api.for_each(submit, names)
    bench.wait_enforced("site", int(full * 0.4))
    assert bench.limits_watts() <= int(full * 0.4)

    def undecided() -> list[str]:
        jobs = bench.api.list_objects(f"{GROUP}/namespaces/{bench.namespace}/energyawarejobs")
        return [job["metadata"]["name"] for job in jobs if not condition(job, "Admitted")]

    bench.wait(lambda: not undecided(), lambda: f"{len(undecided())} jobs of which nothing is said", 180.0)
    assert bench.overshoot_watts("site") == 0.0
