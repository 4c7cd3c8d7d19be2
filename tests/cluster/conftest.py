"""Whole sites for the tests: control plane, simulated hardware, agents, operator, training processes, referee."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.site import Site, SitePlan

from tests.support.last_words import Sections, last_words
from tests.support.site_bench import GROUP, Bench, bench_on

# Quick leases and timers, so that a test of what happens when they end need not wait for minutes.
QUICK = (
    "--leader-lease-seconds", "4", "--leader-renew-seconds", "0.5", "--grant-lease-seconds", "15",
    "--replan-seconds", "2", "--status-interval-seconds", "1", "--restart-seconds", "1", "--first-pause-seconds", "0.5",
    "--evacuate-after-seconds", "10", "--report-seconds", "2",
)  # fmt: skip
STEADY_SIGNAL = "time,gCO2/kWh\n2026-01-01T00:00:00Z,400\n2096-01-01T00:00:00Z,400\n"


@pytest.fixture(scope="session")
def grid_signal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the shared site's grid signal: the same at all hours, so that nothing waits for another one."""
    path = tmp_path_factory.mktemp("signal") / "signal.csv"
    path.write_text(STEADY_SIGNAL)
    return path


@pytest.fixture(scope="session")
def meters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the shared site's power meters; there is none."""
    return tmp_path_factory.mktemp("meters")


@pytest.fixture(scope="session")
def site(
    control_plane_programs: Binaries, grid_signal: Path, meters: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """Four nodes of eight GPUs, shared by all tests that leave them whole; those that kill more than the operator take
    `make_site`."""
    plan = SitePlan(
        nodes=4,
        operator_arguments=(*QUICK, "--signal-file", str(grid_signal), "--meter-dir", str(meters)),
        workload_arguments=("--run-programs",),
    )
    with Site.start(plan, tmp_path_factory.mktemp("site")) as started:
        yield started


@pytest.fixture
def bench(site: Site) -> Iterator[Bench]:
    """The shared site, with a namespace and caps of the test's own; cleaned up after."""
    made = bench_on(site)
    yield made
    made.clean()


@pytest.fixture
def neighbour(bench: Bench) -> Iterator[Bench]:
    """Another namespace on the same site."""
    made = bench_on(bench.site)
    yield made
    # What holds for the whole site, `bench` awaits.
    for raw in made.objects("energyawarejobs", GROUP):
        bench.api.delete(made.path(raw["metadata"]["name"]))
    made.wait(lambda: not made.objects("pods"), lambda: f"no pods in {made.namespace}")


@dataclass
class SiteMaker:
    """Sites of a test's own, for tests that kill parts of them."""

    directory: Path
    started: list[Site] = field(default_factory=list)

    def __call__(self, nodes: int = 4, *, operator_arguments: Sequence[str] = (), **keywords: Any) -> Bench:
        plan = SitePlan(nodes=nodes, operator_arguments=(*QUICK, *operator_arguments), **keywords)
        site = Site.start(plan, self.directory / f"site-{len(self.started)}")
        self.started.append(site)
        return bench_on(site)


@pytest.fixture
def make_site(control_plane_programs: Binaries, tmp_path: Path) -> Iterator[SiteMaker]:
    made = SiteMaker(tmp_path)
    yield made
    for site in made.started:
        site.stop()


@last_words.register
def _of_a_site(site: Site) -> Sections:
    ended = site.ended()
    return [("does not run", ended)] if ended else []


@last_words.register
def _of_own_sites(made: SiteMaker) -> Sections:
    return [section for site in made.started for section in last_words(site)]
