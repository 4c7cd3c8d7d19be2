"""The bound that no policy can pass: by hand, and under every policy on small clusters."""

from __future__ import annotations

import numpy as np
import pytest
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.policies.registry import policy_names
from flyball_planner.policies.view import Performance
from flyball_simulator.engine import simulate
from flyball_simulator.experiments.at_equal_energy import Point
from flyball_simulator.knowledge import decision_clocks
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.settings import REFERENCE_GPU, SimulationSettings
from flyball_simulator.workloads.workload import SimulatedJob
from flyball_studies.evaluation import tables
from flyball_studies.evaluation.lower_bound import LeastJct

# One size, two clocks: 2 s and 100 J, or 1 s and 300 J.
TWO = Performance([1], np.array([[2.0, 1.0]]), np.array([[100.0, 300.0]]))


def test_a_job_with_two_clocks_can_be_anywhere_on_the_line_between_them() -> None:
    found = LeastJct([(10.0, TWO)]).at(np.array([1000.0, 2000.0, 3000.0, 9000.0]))
    assert found == pytest.approx([20.0, 15.0, 10.0, 10.0], rel=0.05), "prices are a grid, so a little below at corners"
    assert (found <= np.array([20.0, 15.0, 10.0, 10.0]) + 1e-9).all()


def test_nobody_meets_an_energy_below_the_least() -> None:
    assert LeastJct([(10.0, TWO)]).at(np.array([500.0]))[0] > 50.0
    with pytest.raises(ValueError, match="at least one job"):
        LeastJct([])


@pytest.mark.parametrize("policy", [*policy_names(), "afs+zeus"])
def test_no_policy_passes_it(policy: str) -> None:
    jobs = [
        SimulatedJob(f"j{index}", 40.0 * index, 1 << index % 3, model_class, batch, 400.0 * (1 + index % 4))
        for index, (model_class, batch) in enumerate([("vgg16", 64), ("resnet50", 128), ("bert", 64)] * 3)
    ]
    settings = SimulationSettings(policy=policy, gpus=16, power_off_empty_nodes=True)
    gpu = gpu_model_for(REFERENCE_GPU)
    assert gpu is not None
    oracle = Oracle(gpu, decision_clocks(gpu), 8)
    bound = LeastJct([(job.iterations, oracle.performance(job.model_class, job.global_batch_size, 16)) for job in jobs])
    result = simulate(jobs, settings)
    least = bound.at(np.array([sum(result.joules.values())]))[0]
    assert np.mean(list(result.completion_seconds.values())) >= least > 0.0


def test_the_highest_ratio_is_the_others_jct_over_the_bound() -> None:
    bound = LeastJct([(10.0, TWO)])
    ours = {0: [Point(1000.0, 20.0, 20.0), Point(3000.0, 10.0, 10.0)]}
    theirs = {0: [Point(1000.0, 40.0, 40.0), Point(3000.0, 10.0, 10.0)]}
    assert tables.highest_ratio(ours, theirs, {0: bound}) == pytest.approx(2.0, rel=0.05)
    with pytest.raises(ValueError, match="no seed"):
        tables.highest_ratio({0: [Point(5.0, 1.0, 1.0)]}, theirs, {0: bound})
