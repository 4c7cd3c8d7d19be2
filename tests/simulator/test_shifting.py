"""Jobs that can wait run where the grid emits least, and are done in time all the same."""

from __future__ import annotations

from random import Random

import pytest
from flyball_planner.models.gpu import gpu_model_for
from flyball_simulator.engine import simulate
from flyball_simulator.knowledge import decision_clocks
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.settings import SimulationResult, SimulationSettings
from flyball_simulator.workloads.workload import SimulatedJob

from tests.support.recorded_carbon import GRAMS_PER_KILOWATT_HOUR

HOUR = 3600.0
GPUS = 128
CARBON = tuple((index * HOUR, float(grams)) for index, grams in enumerate(GRAMS_PER_KILOWATT_HOUR))


def day_of_jobs(flexible_hours: float) -> list[SimulatedJob]:
    """Sixty jobs of half an hour to three hours over a day, each done in so many hours at the latest."""
    gpu = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert gpu is not None
    random, oracle = Random(1), Oracle(gpu, decision_clocks(gpu), 8)
    jobs = []
    for index in range(60):
        gpus = random.choice([1, 2, 4, 8])
        table = oracle.performance("resnet50", 256, gpus)
        submitted, seconds = random.uniform(0.0, 24 * HOUR), random.uniform(0.5, 3.0) * HOUR
        iterations = seconds / table.seconds_rows[table.position[gpus]][-1]
        until = submitted + flexible_hours * HOUR
        jobs.append(
            SimulatedJob(f"job-{index}", submitted, gpus, "resnet50", 256, iterations, flexible_until_seconds=until)
        )
    return jobs


def outcome(jobs: list[SimulatedJob], policy: str, *, shifts: bool) -> SimulationResult:
    settings = SimulationSettings(
        policy,
        gpus=GPUS,
        carbon_grams_per_kwh=CARBON,
        shifts=shifts,
        power_off_empty_nodes=True,
        measure_clocks=False,
    )
    return simulate(jobs, settings)


def late(jobs: list[SimulatedJob], result: SimulationResult) -> list[str]:
    return [
        job.job_id
        for job in jobs
        if job.submit_seconds + result.completion_seconds[job.job_id] > (job.flexible_until_seconds or 0.0)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo", "powerflow-strict"])
def test_a_recorded_day_takes_less_co2_and_nothing_is_late(policy: str) -> None:
    jobs = day_of_jobs(12.0)
    at_once, shifted = (outcome(jobs, policy, shifts=shifts) for shifts in (False, True))
    assert (late(jobs, at_once), late(jobs, shifted)) == ([], [])
    assert at_once.carbon_grams is not None
    assert shifted.carbon_grams is not None
    saved = 1 - shifted.carbon_grams / at_once.carbon_grams
    print(
        f"{policy}: {at_once.carbon_grams / 1e3:.1f} kg at once, {shifted.carbon_grams / 1e3:.1f} kg shifted, {saved:.0%}"
    )
    assert saved >= 0.15
    if policy == "fifo":  # the very same work at the very same clocks: all of it is the time of day
        assert shifted.joules["gpu"] == pytest.approx(at_once.joules["gpu"], rel=0.01)


def test_jobs_that_cannot_wait_are_not_put_off() -> None:
    jobs = day_of_jobs(1.0)
    for shifts in (False, True):
        assert (
            outcome(jobs, "fifo", shifts=shifts).completion_seconds
            == outcome(jobs, "fifo", shifts=False).completion_seconds
        )


def test_without_the_grids_carbon_nothing_can_be_put_off() -> None:
    with pytest.raises(ValueError, match="give carbon_grams_per_kwh with shifts"):
        SimulationSettings("fifo", gpus=8, shifts=True)
