"""A result that nobody simulated, small enough to reckon with."""

from __future__ import annotations

from flyball_simulator.settings import CapStep, NodeEvent, Sample, SimulationResult, SimulationSettings

RESULT = SimulationResult(
    settings=SimulationSettings(
        policy="price", gpus=16, cap_steps=(CapStep(100.0, 0.3),), node_events=(NodeEvent(5.0, 1, up=False),)
    ),
    trace="mine",
    completion_seconds={"later, or not": 300.0, "first": 100.0},
    makespan_seconds=400.0,
    joules={"gpu": 5.0, "idle": 3.0},
    max_watts=3000.0,
    cap_watts=1500.0,
    cap_violation_seconds=0.0,
    restarts=1,
    node_failures=1,
    evictions=1,
    lost_gpu_seconds=2.0,
    migrations=0,
    profiling_joules=0.0,
    carbon_grams=None,
    plans=3,
    wall_seconds=0.1,
    samples=(
        Sample(0.0, 1000.0, None, 8, 1, 2, 0),
        Sample(100.0, 3000.0, 1500.0, 16, 2, 1, 1),
        Sample(300.0, 500.0, 1500.0, 0, 2, 0, 1),
    ),
)
