"""How much less CO2 a recorded day's work takes where it may wait for the grid, on the real control plane.

    python -m benchmarks.shifted_day [--jobs 24] [--hour-seconds 9.5]

A day on California's grid, its hours shortened to seconds: jobs of half an hour to three hours come over it, each twice
and at the same moment. One of the two has twelve hours' time (`spec.flexibleUntil`), the other none. API server, operator,
agents and books are real, GPUs and training simulated; what a job has emitted is the energy in its status times the
signal's mean from its first pod to its end. All run at the highest clock, so that what is saved is the time of day alone.
Exits with 1 where those that can wait emit less than 15 % less, or one of them is late: ends after `flexibleUntil` by more
than what starting takes, which no hour is short enough for.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from flyball_api.energy_aware_job import (
    EnergyAwareJob,
    EnergyAwareJobSpec,
    GpuRange,
    Training,
    read_energy_aware_job,
)
from flyball_api.writing import api_object
from flyball_kube.resources import ENERGY_AWARE_JOBS
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.shifting import Signal
from flyball_testbed.controlplane.api import Json
from flyball_testbed.site import Site, SitePlan
from flyball_testbed.workload.pods import simulated_trainer

from tests.support.recorded_carbon import GRAMS_PER_KILOWATT_HOUR

JOBS = ENERGY_AWARE_JOBS.path("default")
FLEXIBLE_HOURS = 12
WANTED_SHARE = 0.15
STARTING_SECONDS = 15.0
BATCH = 256
QUICK = (
    "--replan-seconds", "2", "--status-interval-seconds", "1", "--restart-seconds", "1", "--report-seconds", "2",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """One job of the day: when it comes, in hours, and how many hours it takes."""

    name: str
    arrives: float
    hours: float


@dataclass(frozen=True)
class Outcome:
    """What came of those that could wait, or of those that could not."""

    grams: float
    kilowatt_hours: float
    late: dict[str, float]  # by how many seconds


def day_of_work(jobs: int) -> list[Work]:
    random = Random(1)
    work = [Work(f"{index:02d}", random.uniform(0.0, 24.0), random.uniform(0.5, 3.0)) for index in range(jobs)]
    return sorted(work, key=lambda item: item.arrives)


def manifest(name: str, iterations: int, until: datetime | None) -> Json:
    spec = EnergyAwareJobSpec(
        gpus=GpuRange(1, 1),
        training=Training(BATCH, iterations, model_class="resnet50"),
        template={"spec": {"containers": [simulated_trainer("resnet50", BATCH, iterations)]}},
        objective="Time",
        profile_key="work",
        flexible_until=until,
    )
    return api_object(ENERGY_AWARE_JOBS.kind, name, spec, namespace="default")


def seconds_of_an_iteration() -> float:
    gpu = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert gpu is not None
    return float(model_class_prior("resnet50", gpu).curves(1, 1, BATCH).seconds[0, -1])


def run_the_day(site: Site, work: list[Work], began: datetime, hour_seconds: float) -> set[str]:
    """Submit everything as it comes, and wait until all have ended; the names of those that were seen to be put off."""
    api, each, put_off = site.cluster.api, seconds_of_an_iteration(), set[str]()
    ahead = list(work)
    while True:
        now = datetime.now(UTC)
        while ahead and began + timedelta(seconds=ahead[0].arrives * hour_seconds) <= now:
            item = ahead.pop(0)
            iterations = max(1, round(item.hours * hour_seconds / each))
            until = now + timedelta(seconds=FLEXIBLE_HOURS * hour_seconds)
            api.create(JOBS, manifest(f"waits-{item.name}", iterations, until))
            api.create(JOBS, manifest(f"urgent-{item.name}", iterations, None))
        jobs = map(read_energy_aware_job, api.list_objects(JOBS))
        states = {job.name: job.status.state for job in jobs}
        put_off |= {name for name, state in states.items() if state == "WaitingForSignal"}
        if not ahead and all(state == "Succeeded" for state in states.values()):
            return put_off
        time.sleep(0.5)


def outcome(jobs: list[EnergyAwareJob], signal: Signal) -> Outcome:
    grams = joules = 0.0
    late = {}
    for job in jobs:
        energy, start, end = job.status.energy, job.status.start_time, job.status.completion_time
        if energy is None or start is None or end is None:
            raise ValueError(f"the status of {job.name} has no energy, start or end: {job.status}")
        used = sum(entry.millijoules for entry in energy.incarnations) + energy.settled_millijoules
        mean = signal.mean(start.timestamp(), max(1.0, (end - start).total_seconds()))
        if mean is None:
            raise ValueError(f"the signal does not reach over {job.name}, from {start} to {end}")
        joules += used / 1e3
        grams += used / 1e3 / 3.6e6 * mean
        until = job.spec.flexible_until
        over = 0.0 if until is None else (end - until).total_seconds()
        if over > 0:
            late[job.name] = over
    return Outcome(grams, joules / 3.6e6, late)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=24, help="how many jobs come over the day (default: 24)")
    parser.add_argument("--hour-seconds", type=float, default=9.5, help="how many seconds an hour takes (default: 9.5)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "signal.csv"
        file.write_text("time,gCO2/kWh\n2026-01-01T00:00:00Z,300\n")
        plan = SitePlan(nodes=4, operator_arguments=(*QUICK, "--signal-file", str(file)))
        with Site.start(plan, Path(scratch) / "site") as site:
            began = datetime.now(UTC) + timedelta(seconds=2)
            steps = [
                (began.timestamp() + hour * arguments.hour_seconds, float(grams))
                for hour, grams in enumerate(GRAMS_PER_KILOWATT_HOUR)
            ]
            rows = [f"{datetime.fromtimestamp(second, UTC).isoformat()},{value:.0f}" for second, value in steps]
            file.write_text("\n".join(["time,gCO2/kWh", *rows]) + "\n")
            put_off = run_the_day(site, day_of_work(arguments.jobs), began, arguments.hour_seconds)
            time.sleep(5.0)  # what agents report after the end
            jobs = [read_energy_aware_job(raw) for raw in site.cluster.api.list_objects(JOBS)]
    signal = Signal.of(steps)
    waits, urgent = (
        outcome([job for job in jobs if job.name.startswith(kind)], signal) for kind in ("waits", "urgent")
    )
    saved = 1 - waits.grams / urgent.grams
    for name, found in (("at once", urgent), ("can wait", waits)):
        print(f"{name}: {1e3 * found.grams:.0f} mg of CO2, {1e3 * found.kilowatt_hours:.1f} Wh")
    print(f"{len(put_off)} of {arguments.jobs} jobs put off; {saved:.1%} less CO2")
    for name, seconds in waits.late.items():
        print(f"{name} ended {seconds:.0f} s after its time")
    return 0 if saved >= WANTED_SHARE and max(waits.late.values(), default=0.0) <= STARTING_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
