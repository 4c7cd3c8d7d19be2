"""EnvPipe: what it plans, that it ends, and that Perseus is never worse in the same time."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flyball_frontiers.pipeline.envpipe import EnvPipeResult, Reconfiguration, envpipe, rescheduled, valley_clock
from flyball_frontiers.pipeline.evaluate import execute
from flyball_frontiers.pipeline.graph import GraphError
from flyball_frontiers.pipeline.perseus import PerseusPlanner
from flyball_frontiers.pipeline.profile import PipelineProfile, ProfileError

CLOCKS = tuple(range(1400, 800, -15))


def save(result: EnvPipeResult) -> float:
    return 1 - result.frontier.fastest.energy_joules / result.baseline.energy_joules


@pytest.mark.parametrize("reconfiguration", list(Reconfiguration))
@pytest.mark.parametrize("seconds", [(1.0, 1.0, 1.0, 1.2), (1.2, 1.0, 1.0, 1.0), (1.0, 1.3, 1.0, 1.1), (1.0,) * 4])
def test_ends_wherever_the_heaviest_stage_is_and_loses_no_time(
    made_up: Callable[..., PipelineProfile], seconds: tuple[float, ...], reconfiguration: Reconfiguration
) -> None:
    profile = made_up(*seconds, clocks=CLOCKS)
    result = envpipe(profile, 8, 30.0, reconfiguration=reconfiguration)
    point = result.frontier.fastest
    assert point.time_seconds == pytest.approx(result.baseline.time_seconds)
    assert point.energy_joules < result.baseline.energy_joules
    assert {p.clock_megahertz for p in result.baseline.plan.chosen} == {1400}
    best = PerseusPlanner(result.graph, 30.0).plan(point.time_seconds)
    assert best.realised_energy_joules < point.energy_joules


def test_nothing_runs_below_the_valley_or_slower_on_the_envelope(made_up: Callable[..., PipelineProfile]) -> None:
    result = envpipe(made_up(1.0, 1.0, 1.0, 1.3, clocks=CLOCKS), 6, 30.0)
    assert len(set(result.valley_clocks_megahertz)) == 1
    for operation, clock in zip(result.graph.operations, result.frontier.fastest.plan.clocks_megahertz, strict=True):
        assert clock is not None
        assert clock >= result.valley_clocks_megahertz[operation.chunk]
        if operation.stage == 3 or (operation.instruction, operation.microbatch) in (("forward", 0), ("backward", 5)):
            assert clock == 1400


def test_valley_clock_is_the_least_of_the_sweep() -> None:
    header = "stage,instruction,frequency,time,energy\n"
    rows = "0,forward,1400,1,9\n0,forward,1000,2,4\n0,forward,900,3,5\n"
    rows += "0,backward,1400,1,9\n0,backward,1000,2,9\n0,backward,900,3,7.5\n0,backward,800,9,0\n"
    assert valley_clock(PipelineProfile.from_csv(header + rows), 0) == 900
    with pytest.raises(ProfileError, match="stage 0: forward and backward have no clock in common"):
        valley_clock(PipelineProfile.from_csv(header + "0,forward,1400,1,9\n0,backward,1300,1,9\n"), 0)


def test_rescheduling_uses_the_memory_there_is_and_loses_no_time(made_up: Callable[..., PipelineProfile]) -> None:
    profile = made_up(1.0, 1.0, 1.0, 1.2, clocks=CLOCKS)
    assert rescheduled(profile, 8, [4, 3, 2, 1]) == (0, 0, 0, 0)
    assert rescheduled(profile, 8, [6, 5, 4, 3]) == (2, 2, 2, 0)
    for slots in ([6] * 4, [8] * 4, [4, 6, 6, 6], [8, 3, 8, 8]):
        ahead = rescheduled(profile, 8, slots)
        held = [4 - stage + extra for stage, extra in enumerate(ahead)]
        assert all(most <= slot for most, slot in zip(held, slots, strict=True))
        assert held == sorted(held, reverse=True)
        result = envpipe(profile, 8, 30.0, activation_slots=slots)
        assert result.ahead == ahead
        assert result.baseline.time_seconds == pytest.approx(envpipe(profile, 8, 30.0).baseline.time_seconds)
    with_memory, without = envpipe(profile, 8, 30.0, activation_slots=[8] * 4), envpipe(profile, 8, 30.0)
    assert save(with_memory) > save(without)
    with pytest.raises(GraphError, match="stage 1 has 2 activation slots; 1F1B holds up to 3"):
        rescheduled(profile, 8, [4, 2, 2, 1])
    with pytest.raises(GraphError, match="3 entries for 4 stages"):
        rescheduled(profile, 8, [4, 4, 4])


@pytest.mark.parametrize(("stages", "microbatches", "clocks"), [(1, 3, CLOCKS), (3, 1, CLOCKS), (3, 4, (1400,))])
def test_where_there_is_nothing_to_win(
    made_up: Callable[..., PipelineProfile], stages: int, microbatches: int, clocks: tuple[int, ...]
) -> None:
    result = envpipe(made_up(*[1.0] * stages, clocks=clocks), microbatches, 30.0)
    assert result.frontier.fastest.energy_joules == pytest.approx(result.baseline.energy_joules)
    assert result.iterations == 0


@pytest.mark.slow
@pytest.mark.parametrize("microbatches", [12, 24])
def test_reproduces_the_published_emulation(
    gpt3: Callable[..., PipelineProfile], gpu: Any, perseus_data: Path, microbatches: int
) -> None:
    """envpipe_emulation_gpt3.csv: EnvPipe on the same profiles, time by 10 (layers), energy by 10 x 8 (tensor parallel)."""
    published = {
        (row["device"], int(row["num_microbatches"])): row
        for row in csv.DictReader((perseus_data / "envpipe_emulation_gpt3.csv").open())
    }
    row = published[gpu.name, microbatches]
    result = envpipe(gpt3(gpu), microbatches, gpu.blocking_power_watts)
    point = result.frontier.fastest
    assert 10 * point.time_seconds == pytest.approx(float(row["iteration_time"]), abs=1e-3)
    assert 80 * point.energy_joules == pytest.approx(float(row["energy"]), rel=3e-4)
    assert execute(result.graph, point.plan.chosen, gpu.blocking_power_watts).energy_joules == point.energy_joules
    best = PerseusPlanner(result.graph, gpu.blocking_power_watts).plan(point.time_seconds)
    assert best.realised_time_seconds <= point.time_seconds
    assert best.realised_energy_joules < 0.995 * point.energy_joules
