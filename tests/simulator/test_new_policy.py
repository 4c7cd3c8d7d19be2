"""A new policy is one module and one line of the registry: then it simulates, and plans a cluster of real nodes."""

from __future__ import annotations

import pytest
from flyball_planner import ClusterSnapshot, JobState, NodeState, plan
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.policies.registry import POLICIES, policy_named
from flyball_planner.policies.view import Choice, ClusterView, Knob, Traits
from flyball_simulator.engine import simulate
from flyball_simulator.settings import SimulationSettings
from flyball_simulator.workloads.source import WorkloadSource


class SmallestFirst:
    """Everybody at the smallest size, the smallest requests first: a whole policy, for this test."""

    name = "smallest-first"
    traits = Traits(knob=Knob.CLOCK, elastic=True, repacks=True)

    def decide(self, view: ClusterView) -> list[Choice]:
        free, choices = view.gpus, []
        for job in sorted(view.jobs, key=lambda job: (not job.gpus, job.requested_gpus, job.order)):
            gpus = job.gpus if job.gpus and not job.resizable else job.performance.sizes[0]
            if gpus <= free:
                free -= gpus
                choices.append(Choice(job.uid, gpus, view.clock_of(job, gpus)))
        return choices


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(POLICIES, "smallest-first", SmallestFirst)
    return "smallest-first"


def test_one_line_makes_it_simulate(registered: str) -> None:
    source = WorkloadSource("synthetic", seed=1, first=12)
    for policy in (registered, f"{registered}+zeus"):
        settings = SimulationSettings(policy=policy, gpus=16, power_limit_fraction=0.8)
        result = simulate(source.workload(settings), settings)
        assert len(result.completion_seconds) == 12
        assert policy_named(policy).name == policy


def test_the_same_line_makes_it_plan_nodes(registered: str) -> None:
    gpu = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert gpu is not None
    job = JobState("uid", "ns/job", 2, 8, 256, model_class_prior("gpt2", gpu), submit_time_seconds=0.0)
    decision = plan(ClusterSnapshot((NodeState("node", gpu, 8),), (job,)), registered).decisions[0]
    assert decision.allocation is not None
    assert decision.allocation.gpus == 2
    assert "smallest-first chose" in decision.explanation


def test_without_the_line_the_names_that_there_are_are_listed() -> None:
    with pytest.raises(
        ValueError,
        match=r"'smallest-first' is unknown; there is powerflow-paper, .*, fifo, each .* with .zeus or .priced",
    ):
        policy_named("smallest-first")
