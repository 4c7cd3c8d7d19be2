"""A cluster through a day: jobs come and go, caps move, nodes fail, and every plan is the next one's starting point."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from flyball_planner.ledger.workspace import Workspace
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.priors import known_model_classes, model_class_prior
from flyball_planner.planner import plan
from flyball_planner.powerflow.greedy import ROUNDS, allocate
from flyball_planner.snapshot import CapConstraint, ClusterSnapshot, Enforcement, JobState, NodeState, Objective

from tests.support.plans import in_force

STEPS = 6


def board(product: str) -> GpuModel:
    model = gpu_model_for(product)
    assert model is not None
    return model


A100 = board("NVIDIA-A100-SXM4-40GB")
V100 = board("Tesla-V100-SXM2-16GB")


def some_job(generator: random.Random, index: int) -> JobState:
    least = generator.choice([1, 1, 1, 2, 3, 4, 6, 8, 12, 16])
    iterations = generator.choice([None, 10 ** generator.uniform(1, 6.5)])
    job = JobState(
        uid=f"job-{index}",
        name=f"default/job-{index}",
        gpus_min=least,
        gpus_max=least * generator.choice([1, 1, 2, 4, 8, 16]),
        global_batch_size=generator.choice([32, 64, 128, 256]),
        model=model_class_prior(generator.choice([*known_model_classes(), ""]), generator.choice([A100, A100, V100])),
        submit_time_seconds=float(generator.randrange(1000)),
        remaining_iterations=iterations,
        attained_gpu_seconds=generator.choice([0.0, 1e4]),
        priority=generator.choice([0, 0, 0, 0, 1, 5]),
        objective=generator.choice(list(Objective)),
        resizable=generator.random() < 0.85,
    )
    if generator.random() < 0.2:
        job = replace(job, seconds_to_deadline=generator.uniform(0, (iterations or 1e4) * 0.4))
    if generator.random() < 0.15:
        job = replace(job, remaining_energy_joules=generator.uniform(0, (iterations or 1e4) * 150))
    if generator.random() < 0.1:
        job = replace(job, clock_min_megahertz=generator.choice([600, 1000]))
    if generator.random() < 0.1:
        job = replace(job, power_limit_max_watts=generator.choice([120.0, 200.0]))
    return job


def some_caps(generator: random.Random, nodes: tuple[NodeState, ...]) -> tuple[CapConstraint, ...]:
    """One cap over everything and, often, one over each of several rows."""
    rows = generator.choice([0, 2, 4])
    members = [("all", nodes), *((f"row-{row}", nodes[row::rows]) for row in range(rows))]
    return tuple(
        CapConstraint(
            name,
            frozenset(node.name for node in part),
            sum(node.gpus * node.gpu_model.max_power_limit_watts for node in part) * generator.uniform(0.2, 1.0),
            generator.choice(list(Enforcement)),
        )
        for name, part in members
        if part
    )


def troubled(generator: random.Random, node: NodeState) -> NodeState:
    return replace(
        node,
        schedulable=generator.random() > 0.05,
        lost_gpus=int(generator.random() < 0.03),
        foreign_gpus=int(generator.random() < 0.05),
        foreign_power_limit_watts=400.0,
        fixed_bound_watts=node.gpus * 400.0 if generator.random() < 0.03 else None,
        evacuate=generator.random() < 0.03,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_every_plan_of_a_day_holds_its_caps_and_is_at_rest(seed: int) -> None:
    """Every step changes jobs, nodes and caps together; the plan before it is in force."""
    generator = random.Random(seed)
    mixed = generator.random() < 0.3
    nodes = tuple(
        NodeState(
            f"node-{index:02}",
            V100 if mixed and generator.random() < 0.4 else A100,
            generator.choice([8, 8, 8, 8, 4]),
        )
        for index in range(generator.choice([3, 8, 20]))
    )
    count = generator.choice([5, 20, 60])
    snapshot = ClusterSnapshot(
        nodes, tuple(some_job(generator, index) for index in range(count)), some_caps(generator, nodes)
    )
    created = count
    for step in range(STEPS):
        workspace = Workspace(snapshot)
        assert allocate(workspace.state, workspace.candidates, workspace.stepper) < ROUNDS / 2
        made = plan(snapshot)
        for cap, outcome in zip(snapshot.caps, made.caps, strict=True):
            assert outcome.feasible == (outcome.committed_at_min_watts <= cap.budget_watts + 1e-6), (step, cap.name)
            assert not outcome.feasible or outcome.committed_watts <= cap.budget_watts + 1e-6, (step, cap.name)
        running = in_force(snapshot, made)
        again = plan(running)
        assert [item.allocation for item in again.decisions] == [item.allocation for item in made.decisions], step
        assert again.migrations == ()

        jobs = [job for job in running.jobs if generator.random() > 0.15]
        jobs = [
            job
            if job.remaining_iterations is None
            else replace(job, remaining_iterations=job.remaining_iterations * generator.uniform(0.3, 1))
            for job in jobs
        ]
        for _ in range(generator.randrange(max(2, count // 3))):
            jobs.append(some_job(generator, created))
            created += 1
        later = tuple(troubled(generator, node) for node in nodes)
        caps = some_caps(generator, later) if generator.random() < 0.6 else snapshot.caps
        snapshot = replace(running, nodes=later, jobs=tuple(jobs), caps=caps)
