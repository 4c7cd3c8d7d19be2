"""Operator and agents of different versions on one cluster, as in the middle of an upgrade, by an earlier commit."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest
from flyball_testbed.controlplane.install import REPOSITORY
from flyball_testbed.controlplane.processes import Process
from flyball_testbed.parts import AGENTS, OPERATOR
from flyball_testbed.site import Site

from tests.support.site_bench import Bench

# The last commit whose grants had no digests, and whose operator and agents knew no brakes.
EARLIER = "708babd0f0e7214ef7dd0282faeab9f8feee0d3f"
EARLIER_VERSION, PRESENT_VERSION = "0.0.9", version("flyball")
LONG = 100_000


@pytest.fixture
def earlier_sources(tmp_path: Path) -> Path:
    """The sources of the earlier commit; skips where this clone does not have it."""
    asked = subprocess.run(
        ["git", "archive", "--format=tar", EARLIER, "--output", str(tmp_path / "earlier.tar")],
        capture_output=True, text=True, check=False, cwd=REPOSITORY,
    )  # fmt: skip
    if asked.returncode != 0:
        pytest.skip(f"this clone has no history as far back as {EARLIER[:7]}: {asked.stderr.strip()}")
    folder = tmp_path / "earlier"
    folder.mkdir()
    subprocess.run(
        ["tar", "--extract", "--file", str(tmp_path / "earlier.tar"), "--directory", str(folder)], check=True
    )
    return folder


# What the benches give the operator that the earlier one has no name for; each has a value.
LATER_OPTIONS = frozenset({"--first-pause-seconds", "--evacuate-after-seconds", "--report-seconds"})


@dataclass
class Earlier:
    """The earlier commit's packages, run as processes on a site."""

    site: Site
    sources: Path
    agents: list[Process] = field(default_factory=list)

    @property
    def environment(self) -> str:
        """What has Python take its packages, and their version, before the installed ones."""
        metadata = self.sources / "version" / f"flyball-{EARLIER_VERSION}.dist-info"
        metadata.mkdir(parents=True, exist_ok=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flyball\nVersion: {EARLIER_VERSION}\n")
        packages = [path.parent for path in sorted(self.sources.glob("*/flyball_*"))]
        return "PYTHONPATH=" + ":".join(str(path) for path in (metadata.parent, *packages))

    def start_operator(self) -> None:
        """Its operator in the place of the present one."""
        site = self.site
        site.parts[OPERATOR].stop()
        present = site._commands[OPERATOR]()
        unknown = {place + of for place, item in enumerate(present) if item in LATER_OPTIONS for of in (0, 1)}
        known = [item for place, item in enumerate(present) if place not in unknown]
        command = ["/usr/bin/env", self.environment, *known]
        site.parts[OPERATOR] = Process.spawn(OPERATOR, command, log_path=site.logs / "operator-earlier.log")

    def start_agents(self) -> None:
        """Its agents, a process each, in the place of the present ones, on their hardware and with their journals."""
        site = self.site
        site.parts[AGENTS].stop()
        for node, kubeconfig in site.cluster.agent_kubeconfigs().items():
            options = [
                "--driver", "simulated", "--hardware-dir", str(site.hardware), "--journal-dir", str(site.agents),
                "--kubeconfig", str(kubeconfig), "--metrics-port", "-1", "--tick-seconds", "0.25",
            ]  # fmt: skip
            flyball = str(Path(sysconfig.get_path("scripts")) / "flyball")
            command = ["/usr/bin/env", self.environment, f"NODE_NAME={node}", flyball, "agent", "run", *options]
            self.agents.append(Process.spawn(node, command, log_path=site.logs / f"{node}-earlier.log"))

    def stop_agents(self) -> None:
        """Stop them; all of them must have run until then."""
        assert all(agent.is_running() for agent in self.agents), "\n".join(agent.log_tail() for agent in self.agents)
        for agent in self.agents:
            agent.stop()
        self.agents.clear()


def epochs(bench: Bench) -> set[int]:
    return {node["spec"]["epoch"] for node in bench.gpu_nodes()}


def agents(bench: Bench) -> set[str]:
    """The versions of the agents that report."""
    return {node["status"]["agentVersion"] for node in bench.gpu_nodes()}


@pytest.mark.long
def test_a_cap_is_held_and_moved_with_an_earlier_operator_and_with_earlier_agents(
    make_site: Callable[..., Bench], earlier_sources: Path
) -> None:
    bench = make_site(2)
    site, full = bench.site, bench.site.plan.max_watts
    high, low, middle = (int(full * share) for share in (0.8, 0.4, 0.6))

    def moves_the_cap() -> None:
        for watts in (low, middle):
            bench.set_cap("site", watts)
            bench.wait_enforced("site", watts, 90)
            assert bench.limits_watts() <= watts

    bench.set_cap("site", high)
    bench.wait_enforced("site", high)
    bench.submit("trains", gpus=(4, 4), iterations=LONG, batch=256)
    bench.wait_running("trains")
    pods = {pod["metadata"]["uid"] for pod in bench.objects("pods")}

    # The definitions are the present ones, as in every upgrade: they come first.
    before = epochs(bench)
    earlier = Earlier(site, earlier_sources)
    earlier.start_operator()
    bench.wait(lambda: min(epochs(bench)) > max(before), lambda: "an earlier operator leads", 90)
    moves_the_cap()

    earlier.start_agents()
    bench.wait(lambda: agents(bench) == {EARLIER_VERSION}, lambda: "earlier agents report")
    moves_the_cap()

    before = epochs(bench)
    site.parts[OPERATOR].stop()
    site.start_part(OPERATOR)
    bench.wait(lambda: min(epochs(bench)) > max(before), lambda: "the present operator leads", 90)
    moves_the_cap()
    assert agents(bench) == {EARLIER_VERSION}, "they acknowledge what the present operator grants"

    earlier.stop_agents()
    site.start_part(AGENTS)
    bench.wait(lambda: agents(bench) == {PRESENT_VERSION}, lambda: "the present agents report")
    moves_the_cap()

    assert bench.judged_seconds("site") > 1
    assert bench.overshoot_watts("site") == 0.0
    assert {pod["metadata"]["uid"] for pod in bench.objects("pods")} == pods, "the job trains on"
    bench.wait_running("trains")
