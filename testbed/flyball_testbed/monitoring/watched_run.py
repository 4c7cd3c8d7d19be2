"""A run for the pictures: a site with two rows under caps, jobs of a trace, and what befalls a cluster in five minutes.

The cluster's cap falls and rises again; somebody changes limits by hand; an agent is away for a while. Some jobs have an
energy budget or a deadline, which one of them cannot meet; their team has a quota. Some batch Jobs of another team are let
run by power. The grid's signal falls.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from flyball_api.energy.quota import EnergyQuotaSpec
from flyball_api.energy_aware_job import JobEnergy
from flyball_api.names import ADMISSION_BY_POWER, LABEL_ADMISSION
from flyball_api.power_cap import EnergyBudget, PowerCapSpec
from flyball_api.values.label_selector import LabelSelector
from flyball_api.values.times import format_time, whole_second
from flyball_api.writing import api_object
from flyball_kube.resources import ENERGY_AWARE_JOBS, ENERGY_QUOTAS, POWER_CAPS
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_simulator.workloads.traces import load_trace
from msgspec import structs

from flyball_testbed.controlplane.install import REPOSITORY
from flyball_testbed.controlplane.programs.binaries import Report
from flyball_testbed.controlplane.programs.monitoring_tools import find_monitoring_tools
from flyball_testbed.demo.jobs import DemoJob, demo_jobs, job_spec
from flyball_testbed.monitoring.dashboards import DASHBOARDS
from flyball_testbed.monitoring.pictures import PlotRange, draw
from flyball_testbed.monitoring.prometheus import Prometheus
from flyball_testbed.site import Site, SitePlan
from flyball_testbed.workload.devices import hardware_path

NAMESPACE = "research"
ROW_LABEL = "topology.example.com/row"
ROWS = ("row-a", "row-b")
TRACE = REPOSITORY / "examples/traces/itp-hour.csv"
JOBS, COMPRESSION, SEED = 16, 24.0, 3
PLAN = SitePlan(
    nodes=4,
    # The operator's pace is scaled down with the trace.
    operator_arguments=(
        "--replan-seconds", "2", "--status-interval-seconds", "2", "--restart-seconds", "5",
        "--report-timeout-seconds", "20", "--grant-lease-seconds", "20",
    ),
)  # fmt: skip
RATE_INTERVAL = "15s"
BUDGETS_KILOJOULES = (450, 60, 80)
# Shares of all GPUs' largest limits: what a row may draw, and the cluster before, in and after its dip.
ROW_SHARE, FIRST_SHARE, LOW_SHARE, LAST_SHARE = 0.45, 0.8, 0.45, 0.7
# Of the time that the run takes.
FALLS_AT, RISES_AT, CHANGED_BY_HAND_AT, AWAY_AT, BACK_AT = 0.35, 0.6, 0.72, 0.76, 0.92
CHANGES_BY_HAND = 4
QUOTA = EnergyQuotaSpec(gpus=32, energy_budget=EnergyBudget(kilojoules=1900, period_seconds=86400))
ALL_NODES = LabelSelector()
OTHERS = "analytics"
# When each of the other team's Jobs comes, of the time that the run takes, and its GPUs: the last one fits nowhere.
OTHERS_COME = ((0.0, 2), (0.1, 4), (0.3, 4), (0.4, 16))
# Grams of CO2 a kilowatt-hour, for a third of the run each, and then on.
SIGNAL = (430, 390, 340, 300)


@dataclass(frozen=True, slots=True)
class _Event:
    """Something that is done at a time, in seconds after the start."""

    at: float
    what: str
    do: Callable[[], object]


def draw_watched_run(output: Path, seconds: float, report: Report = print) -> list[Path]:
    """Make the run and draw every dashboard of it into `output`; the pictures' paths.

    Raises what a site's start raises, PrometheusError and PartError.
    """
    tools = find_monitoring_tools(report)
    with (
        watched_site(report) as site,
        Prometheus.start(tools, site.metrics_addresses(), site.out / "prometheus") as prometheus,
    ):
        began = time.time()
        let_things_happen(site, seconds, report)
        view = PlotRange(prometheus, began, time.time(), RATE_INTERVAL)
        paths = [output / f"dashboard-{made.uid.removeprefix('flyball-')}.png" for made in DASHBOARDS]
        for made, path in zip(DASHBOARDS, paths, strict=True):
            draw(made, view, path)
            report(str(path))
    return paths


@contextmanager
def watched_site(report: Report = print) -> Iterator[Site]:
    """The site of the run, with its rows and their caps. Raises what a site's start raises."""
    with (
        tempfile.TemporaryDirectory(prefix="flyball-watched-") as folder,
        Site.start(with_signal(PLAN, Path(folder) / "signal.csv"), Path(folder), report) as site,
    ):
        _prepare(site)
        yield site


def with_signal(plan: SitePlan, path: Path, step_seconds: float = 100.0) -> SitePlan:
    """The plan, its operator with the grid's signal in a file that is written here."""
    steps = [
        (datetime.now(UTC) + timedelta(seconds=number * step_seconds), value) for number, value in enumerate(SIGNAL)
    ]
    lines = [f"{format_time(at)},{value}" for at, value in [*steps, (steps[-1][0] + timedelta(hours=12), SIGNAL[0])]]
    path.write_text("\n".join(["time,gCO2/kWh", *lines]) + "\n")
    return replace(plan, operator_arguments=(*plan.operator_arguments, "--signal-file", str(path)))


def let_things_happen(site: Site, seconds: float, report: Report = print) -> None:
    """Do to the site, for so long, what the run consists of. Raises PartError where a part of it ends by itself."""
    started = time.monotonic()
    for event in sorted(_events(site, seconds), key=lambda event: event.at):
        time.sleep(max(0.0, started + event.at - time.monotonic()))
        report(f"{event.at:4.0f} s: {event.what}")
        event.do()
        site.check()
    time.sleep(max(0.0, started + seconds - time.monotonic()))


def _prepare(site: Site) -> None:
    api = site.cluster.api
    for namespace in (NAMESPACE, OTHERS):
        api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        api.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", lambda account: account is not None)
    for number, node in enumerate(site.cluster.node_names()):
        row = ROWS[number * len(ROWS) // PLAN.nodes]
        api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {ROW_LABEL: row}}})
    api.apply(api_object(ENERGY_QUOTAS.kind, "team", QUOTA, namespace=NAMESPACE))
    for row in ROWS:
        api.apply(_cap(row, ROW_SHARE, LabelSelector({ROW_LABEL: row})))


def _cap(name: str, share: float, nodes: LabelSelector = ALL_NODES) -> dict[str, Any]:
    spec = PowerCapSpec(watts=round(share * PLAN.max_watts), node_selector=nodes)
    return api_object(POWER_CAPS.kind, name, spec)


def _events(site: Site, seconds: float) -> list[_Event]:
    api, nodes = site.cluster.api, site.cluster.node_names()

    def cap(share: float) -> Callable[[], object]:
        return lambda: api.apply(_cap("cluster", share))

    def change_by_hand() -> None:
        with SimulatedNode.open(hardware_path(site.hardware, nodes[0])) as node:
            for device in node.devices:
                device.set_power_limit_milliwatts(device.constants.max_limit_milliwatts)

    by_hand = [
        _Event(CHANGED_BY_HAND_AT * seconds + 2 * number, f"somebody sets limits on {nodes[0]}", change_by_hand)
        for number in range(CHANGES_BY_HAND)
    ]
    jobs = [_Event(0.5 + at, f"job {name}", submit) for at, name, submit in _submissions(site)]
    return [
        *(job for job in jobs if job.at < seconds),
        *(
            _Event(
                0.2 + share * seconds, f"another team's Job of {gpus} GPUs", partial(_submit_other, site, number, gpus)
            )
            for number, (share, gpus) in enumerate(OTHERS_COME)
        ),
        *by_hand,
        _Event(0.0, "the cluster's cap", cap(FIRST_SHARE)),
        _Event(FALLS_AT * seconds, "the cap falls", cap(LOW_SHARE)),
        _Event(RISES_AT * seconds, "the cap rises", cap(LAST_SHARE)),
        _Event(AWAY_AT * seconds, f"the agent of {nodes[-1]} goes away", lambda: site.keep_agent_away(nodes[-1])),
        _Event(BACK_AT * seconds, f"the agent of {nodes[-1]} is back", lambda: site.let_agent_back(nodes[-1])),
    ]


def _submissions(site: Site) -> list[tuple[float, str, Callable[[], object]]]:
    """When each job comes, its name, and what submits it."""
    jobs = demo_jobs(load_trace(TRACE, JOBS), COMPRESSION, SEED, PLAN.gpus)
    return [(job.submit_seconds, job.name, partial(_submit, site, number, job)) for number, job in enumerate(jobs)]


def _submit(site: Site, number: int, job: DemoJob) -> None:
    """Every third job has a budget, every fourth a deadline."""
    spec = job_spec(job, seconds_between_resizes=20)
    if number % 3 == 0:
        budget = BUDGETS_KILOJOULES[number // 3 % len(BUDGETS_KILOJOULES)]
        spec = structs.replace(spec, energy=JobEnergy(budget_kilojoules=budget))
    if number % 4 == 1:
        minutes = (1, 30)[number // 4 % 2]
        spec = structs.replace(spec, deadline=whole_second(datetime.now(UTC) + timedelta(minutes=minutes)))
    manifest = api_object(ENERGY_AWARE_JOBS.kind, job.name, spec, namespace=NAMESPACE)
    site.cluster.api.create(ENERGY_AWARE_JOBS.path(NAMESPACE), manifest)


def _submit_other(site: Site, number: int, gpus: int) -> None:
    container = {"name": "main", "image": "somebodys", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    metadata = {"name": f"query-{number}", "labels": {LABEL_ADMISSION: ADMISSION_BY_POWER}}
    jobs = f"/apis/batch/v1/namespaces/{OTHERS}/jobs"
    site.cluster.api.create(jobs, {"metadata": metadata, "spec": {"suspend": True, "template": template}})
