"""The event loop on jobs few enough to reckon with, and what must add up whatever the policy."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.policies.registry import policy_named, policy_names
from flyball_simulator.cluster.meter import ConservationError, Meter
from flyball_simulator.cluster.runs import restart_seconds
from flyball_simulator.engine import simulate
from flyball_simulator.knowledge import decision_clocks
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.settings import (
    REFERENCE_GPU,
    CapStep,
    Knowledge,
    NodeEvent,
    SimulationResult,
    SimulationSettings,
)
from flyball_simulator.workloads.workload import SimulatedJob
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

GPU = gpu_model_for(REFERENCE_GPU)
assert GPU is not None
CLOCKS = decision_clocks(GPU)
ORACLE = Oracle(GPU, CLOCKS, 8)
NAMES = [*policy_names(), "afs+zeus", "tiresias+zeus", "gandiva+zeus", "afs+priced"]
KINDS = (("resnet50", 64), ("gpt2", 128), ("deepspeech2", 64), ("vgg16", 64))


def job(
    name: str, seconds: float, gpus: int = 1, submit: float = 0.0, kind: tuple[str, int] = KINDS[0]
) -> SimulatedJob:
    """A job that takes so long at its traced size and the highest clock."""
    truth = ORACLE.performance(*kind, 64)
    return SimulatedJob(name, submit, gpus, *kind, seconds / truth.seconds_rows[truth.position[gpus]][-1])


def run(jobs: list[SimulatedJob], policy: str = "fifo", gpus: int = 8, **fields: object) -> SimulationResult:
    given: dict[str, Any] = {"knowledge": Knowledge.IDEAL, **fields}
    return simulate(jobs, SimulationSettings(policy=policy, gpus=gpus, **given))


def test_price_hurries_where_hosts_draw_watts_that_an_empty_node_would_not() -> None:
    def seconds(**fields: Any) -> float:
        return run([job("only", 1000.0)], "price", price=0.01, **fields).completion_seconds["only"]

    spared, plain = seconds(power_off_empty_nodes=True, node_overhead_watts=1400.0), seconds(power_off_empty_nodes=True)
    assert spared < plain
    assert seconds(node_overhead_watts=1400.0) == seconds(), "nodes that stay on draw them in any case"


def test_one_job_alone_takes_its_time_and_its_joules() -> None:
    result = run([job("only", 1000.0)])
    truth = ORACLE.performance(*KINDS[0], 64)
    assert result.completion_seconds["only"] == pytest.approx(1000.0)
    assert result.joules["gpu"] == pytest.approx(1000.0 * truth.watts_rows[0][-1])
    assert result.joules["idle"] == pytest.approx(7 * GPU.idle_power_watts * 1000.0)
    assert result.joules["node"] == 0.0
    assert result.restarts == 0
    assert result.max_watts == pytest.approx(truth.watts_rows[0][-1] + 7 * GPU.idle_power_watts)


def test_a_lower_clock_is_the_oracles_time_and_power() -> None:
    clock = CLOCKS[0]
    result = run([job("only", 1000.0)], clock_megahertz=clock)
    truth = ORACLE.performance(*KINDS[0], 64)
    slower = truth.seconds_rows[0][0] / truth.seconds_rows[0][-1]
    assert result.completion_seconds["only"] == pytest.approx(1000.0 * slower)
    assert result.joules["gpu"] == pytest.approx(1000.0 * slower * truth.watts_rows[0][0])


def test_first_come_waits_for_room() -> None:
    result = run([job("first", 1000.0, 8), job("second", 500.0, 8, submit=10.0)])
    assert result.completion_seconds["first"] == pytest.approx(1000.0)
    assert result.completion_seconds["second"] == pytest.approx(990.0 + 500.0, abs=30.0)  # one planning interval


def test_a_resize_costs_the_measured_restart() -> None:
    # The long job has the node to itself, then shares it, then has it again.
    jobs = [job("long", 20_000.0, 1), job("short", 3_000.0, 1, submit=2_000.0)]
    free = run(jobs, "afs", restart_scale=0.0)
    dear = run(jobs, "afs")
    assert dear.restarts == free.restarts > 0
    lost = sum(dear.completion_seconds.values()) - sum(free.completion_seconds.values())
    assert lost >= restart_seconds(1)
    assert restart_seconds(8) == pytest.approx(2.0 + 2.0 * 4.0 + 27.0)


def test_empty_nodes_are_booted_for_jobs_and_powered_off_after() -> None:
    jobs = [job("first", 1000.0), job("later", 1000.0, submit=20_000.0)]
    on = run(jobs, gpus=16)
    off = run(jobs, gpus=16, power_off_empty_nodes=True, boot_seconds=100.0, boot_joules=1e4)
    assert off.completion_seconds["first"] == pytest.approx(1100.0)  # its node had to boot
    assert off.joules["node"] == pytest.approx(2e4)
    assert off.joules["idle"] < 0.2 * on.joules["idle"]
    assert off.joules["gpu"] == pytest.approx(on.joules["gpu"] + 2 * 100.0 * GPU.idle_power_watts)


def test_what_is_measured_costs_time_and_teaches() -> None:
    jobs = [job(f"j{index}", 4_000.0, kind=KINDS[index]) for index in range(4)]
    blind = run(jobs, "price", knowledge=Knowledge.FITTED, measure_clocks=False, price=0.001)
    seen = run(jobs, "price", knowledge=Knowledge.FITTED, price=0.001)
    assert blind.profiling_joules == 0.0
    assert 0.0 < seen.profiling_joules < seen.joules["gpu"]


@pytest.mark.parametrize("policy", ["price", "powerflow-paper", "afs+zeus"])
def test_a_kind_is_measured_once_at_each_size_unless_every_job_is_to_be(policy: str) -> None:
    jobs = [job(f"j{index}", 4_000.0, submit=1_000.0 * index) for index in range(4)]
    once = run(jobs, policy, 1, gpus_per_node=1, knowledge=Knowledge.FITTED)
    each = run(jobs, policy, 1, gpus_per_node=1, knowledge=Knowledge.FITTED, measure_every_job=True)
    assert once.profiling_joules > 0.0
    assert each.profiling_joules == pytest.approx(4 * once.profiling_joules)
    assert sum(once.completion_seconds.values()) < sum(each.completion_seconds.values())


def test_jobs_of_a_kind_that_start_together_are_not_all_measured() -> None:
    jobs = [job(f"j{index}", 4_000.0) for index in range(4)]
    once = run(jobs, "price", knowledge=Knowledge.FITTED, gpus=4, gpus_per_node=4)
    alone = run(jobs[:1], "price", knowledge=Knowledge.FITTED, gpus=1, gpus_per_node=1)
    assert once.profiling_joules == pytest.approx(alone.profiling_joules)


def test_a_cap_that_falls_is_held_at_every_instant() -> None:
    jobs = [job(f"j{index}", 5_000.0, kind=KINDS[index % 4]) for index in range(8)]
    for policy in ("price", "powerflow-strict"):
        result = run(jobs, policy, power_limit_fraction=0.9, cap_steps=(CapStep(1_000.0, 0.35), CapStep(4_000.0, 0.6)))
        assert result.cap_violation_seconds == 0.0
        for sample in result.samples:
            assert sample.cap_watts is not None
            assert sample.watts <= sample.cap_watts + 1e-6
        assert {sample.cap_watts for sample in result.samples} >= {0.35 * 3200.0, 0.6 * 3200.0}


def test_the_papers_greedy_may_pass_its_limit_and_that_is_told() -> None:
    jobs = [job(f"j{index}", 5_000.0, kind=KINDS[1]) for index in range(8)]
    result = run(jobs, "powerflow-paper", power_limit_fraction=0.4)
    assert result.cap_violation_seconds > 0.0


def test_carbon_is_the_joules_at_their_hours_intensity() -> None:
    jobs = [job("only", 1000.0)]
    result = run(jobs, carbon_grams_per_kwh=((0.0, 360.0), (500.0, 720.0)))
    joules = sum(result.joules.values())
    assert result.carbon_grams == pytest.approx(joules / 3.6e6 * (360.0 + 720.0) / 2)
    assert run(jobs).carbon_grams is None


def test_a_failing_node_takes_its_jobs_back_to_their_last_checkpoint() -> None:
    """Down at 2,500 s, with checkpoints every 600 s: 100 s of work are lost, and the job restarts on the other node."""
    down = NodeEvent(2_500.0, 0, up=False)
    result = run([job("only", 4_000.0, 8)], gpus=16, node_events=(down,), checkpoint_seconds=600.0)
    assert result.completion_seconds["only"] == pytest.approx(4_000.0 + 100.0 + restart_seconds(8))
    assert (result.node_failures, result.evictions, result.restarts) == (1, 1, 1)
    assert result.lost_gpu_seconds == pytest.approx(800.0)
    last = result.samples[-1]
    assert last.powered_nodes == 1
    seldom = run([job("only", 4_000.0, 8)], gpus=16, node_events=(down,), checkpoint_seconds=1e6)
    assert seldom.completion_seconds["only"] == pytest.approx(4_000.0 + 2_500.0 + restart_seconds(8))


def test_jobs_wait_for_a_node_to_come_back_and_to_boot() -> None:
    events = (NodeEvent(1_000.0, 0, up=False), NodeEvent(1_000.0, 0, up=False), NodeEvent(5_000.0, 0, up=True))
    result = run([job("only", 1_500.0)], gpus=8, node_events=events, checkpoint_seconds=1_000.0, boot_seconds=120.0)
    assert result.completion_seconds["only"] == pytest.approx(5_000.0 + 120.0 + restart_seconds(1) + 500.0)
    assert result.node_failures == 1, "a node that is down cannot fail"
    truth = ORACLE.performance(*KINDS[0], 64)
    up_seconds = 1_000.0 + 620.0 + restart_seconds(1)
    assert result.joules["idle"] == pytest.approx(7 * GPU.idle_power_watts * up_seconds)
    assert result.joules["gpu"] == pytest.approx(
        1_500.0 * truth.watts_rows[0][-1] + (120.0 + restart_seconds(1)) * GPU.idle_power_watts
    )


def test_a_resize_is_a_checkpoint() -> None:
    """The job grows when the other ends at 1,000 s; what it had done by then is not lost at 1,100 s."""
    jobs = [job("long", 8_000.0, kind=KINDS[1]), *(job(f"s{index}", 1_000.0) for index in range(7))]
    result = run(
        jobs, "price", 16, node_events=(NodeEvent(1_100.0, 0, up=False), NodeEvent(1_100.0, 1, up=False),
                                        NodeEvent(1_200.0, 0, up=True)), checkpoint_seconds=1e6
    )  # fmt: skip
    assert result.evictions == 1
    assert 0.0 < result.lost_gpu_seconds <= 16 * 1_100.0
    assert result.restarts >= 1


def test_failures_of_nodes_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="of a node from 0 to 1"):
        run([job("only", 10.0)], gpus=16, node_events=(NodeEvent(0.0, 2, up=False),))
    with pytest.raises(ConservationError, match="waiting for ever"):
        run([job("only", 100.0)], gpus=8, node_events=(NodeEvent(50.0, 0, up=False),))


@pytest.mark.slow
def test_who_can_never_run_is_reported_by_policies_that_decide_at_intervals_too() -> None:
    """They, and an energy budget, look again and again: nothing else would ever end the run."""
    down = (NodeEvent(50.0, 0, up=False),)
    for policy in ("gandiva", "tiresias", "pollux", "sia", "afs+zeus"):
        with pytest.raises(ConservationError, match=r"leaves job only \(16 GPUs\) waiting for ever"):
            run([job("only", 100.0, 16)], policy, gpus=16, node_events=(*down, NodeEvent(50.0, 1, up=False)))
    with pytest.raises(ConservationError, match="waiting for ever"):
        run([job("only", 100.0)], "price", power_limit_fraction=0.15, energy_budget_watts=500.0)
    days = 3 * 86_400.0
    late = run([job("only", 100.0)], "tiresias", gpus=8, node_events=(*down, NodeEvent(days, 0, up=True)))
    assert late.completion_seconds["only"] >= days, "a node that is to come back is worth waiting for"


def test_gandiva_migrates_a_job_for_one_that_needs_a_whole_node() -> None:
    """Two halves of two nodes are left: one of the long jobs moves to the other, for a second's suspension."""
    jobs = [job("a", 100.0, 4), job("b", 5_000.0, 4), job("c", 5_000.0, 4), job("d", 100.0, 4)]
    result = run([*jobs, job("whole", 1_000.0, 8, submit=200.0)], "gandiva", 16)
    assert result.migrations == 1
    assert result.completion_seconds["whole"] == pytest.approx(1_000.0)
    assert sorted(result.completion_seconds[name] for name in "bc") == pytest.approx([5_000.0, 5_001.0])


def test_checkpoints_and_failures_that_concern_nobody_change_nothing() -> None:
    jobs = [job(f"j{index}", 3_000.0, submit=700.0 * index) for index in range(4)]
    plain = run(jobs, "price", 16, price=0.0003)
    often = run(jobs, "price", 16, price=0.0003, checkpoint_seconds=7.0)
    assert replace(often, settings=plain.settings, wall_seconds=0.0) == replace(plain, wall_seconds=0.0)
    after = NodeEvent(plain.makespan_seconds + 1.0, 0, up=False)
    late = run(jobs, "price", 16, price=0.0003, node_events=(after,))
    assert replace(late, settings=plain.settings, wall_seconds=0.0) == replace(plain, wall_seconds=0.0)


def test_gpus_of_a_node_that_is_down_are_given_to_nobody_and_draw_nothing() -> None:
    jobs = [job(f"j{index}", 6_000.0) for index in range(16)]
    events = (NodeEvent(1_000.0, 1, up=False), NodeEvent(4_000.0, 1, up=True))
    result = run(jobs, "fifo", 16, node_events=events, node_overhead_watts=300.0)
    during = [sample for sample in result.samples if 1_000.0 <= sample.seconds < 4_000.0]
    assert during
    watts = ORACLE.performance(*KINDS[0], 64).watts_rows[0][-1]
    for sample in during:
        assert (sample.powered_nodes, sample.busy_gpus, sample.waiting_jobs) == (1, 8, 8)
        assert sample.watts == pytest.approx(8 * watts + 300.0)
    assert any(sample.busy_gpus == 16 for sample in result.samples if sample.seconds >= 4_000.0)
    assert (result.node_failures, result.evictions) == (1, 8)
    assert result.lost_gpu_seconds == pytest.approx(8 * 1_000.0)  # before anybody's first checkpoint


def test_a_price_signal_makes_the_dear_hours_thrifty() -> None:
    jobs = [job(f"j{index}", 8_000.0, kind=KINDS[1]) for index in range(2)]
    plain = run(jobs, "price", price=0.0003)
    dear = run(jobs, "price", price=0.0003, price_signal=((0.0, 1.0), (600.0, 50.0)))
    assert dear.joules["gpu"] < plain.joules["gpu"]


@pytest.mark.slow
def test_an_energy_budget_moves_the_price_until_the_mean_draw_meets_it() -> None:
    """Two jobs a quarter of an hour for two days: at no price they draw more than the budget, at the highest less."""
    jobs = [job(f"j{index:03d}", 3_000.0, submit=900.0 * (index // 2), kind=KINDS[index % 2]) for index in range(384)]

    def mean_watts(**fields: object) -> float:
        result = run(jobs, "price", 32, power_off_empty_nodes=True, **fields)
        whole = [sample for sample in result.samples if 86_400.0 <= sample.seconds < 2 * 86_400.0]
        joules = sum(one.watts * (two.seconds - one.seconds) for one, two in pairwise(whole))
        return joules / (whole[-1].seconds - whole[0].seconds)

    most, least = mean_watts(price=0.0), mean_watts(price=0.01)
    budget = (most + least) / 2
    assert least < 0.9 * budget < 1.1 * budget < most
    assert mean_watts(energy_budget_watts=budget) == pytest.approx(budget, rel=0.03)
    with pytest.raises(ValueError, match="afs has no price"):
        run(jobs, "afs", 32, energy_budget_watts=budget)


def test_bad_input_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="policy 'nonesuch' is unknown"):
        run([job("only", 10.0)], "nonesuch")
    with pytest.raises(ValueError, match="no job to simulate"):
        run([])
    with pytest.raises(ValueError, match="two jobs have the same id"):
        run([job("twin", 10.0), job("twin", 10.0)])
    with pytest.raises(ValueError, match="asks for 16 GPUs; it can have one of"):
        run([job("large", 10.0, 16)])
    with pytest.raises(ValueError, match="must be a power of two"):
        SimulationSettings(policy="fifo", gpus=12, gpus_per_node=6)
    with pytest.raises(ValueError, match="multiple of the 8 GPUs"):
        SimulationSettings(policy="fifo", gpus=12)


def test_a_job_that_never_fits_is_reported_not_lost() -> None:
    # 0.15 of the cluster's power is what idle GPUs draw: nothing can ever run.
    with pytest.raises(ConservationError, match="waiting for ever"):
        run([job("only", 10.0)], "price", power_limit_fraction=0.15)


def test_the_meter_finds_books_that_do_not_add_up() -> None:
    meter = Meter(8, 8, 50.0, 0.0)
    meter.change(1, 100.0)
    meter.advance(10.0)
    with pytest.raises(ConservationError, match="the cluster counts 1000"):
        meter.check([])
    with pytest.raises(ConservationError, match="back to"):
        meter.advance(5.0)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=examples(8))
def test_everything_adds_up_under_every_policy(name: str, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 14), label="jobs")
    jobs = [
        job(
            f"j{index}",
            data.draw(st.floats(1.0, 5_000.0)),
            data.draw(st.sampled_from([1, 1, 2, 4, 8, 16])),
            data.draw(st.floats(0.0, 4_000.0)),
            data.draw(st.sampled_from(KINDS)),
        )
        for index in range(count)
    ]
    failures = [
        NodeEvent(data.draw(st.floats(0.0, 6_000.0)), data.draw(st.integers(0, 1)), up)
        for up in data.draw(st.sampled_from([(), (False,), (False, True), (False, False, True)]))
    ]
    fields = {
        "knowledge": data.draw(st.sampled_from(list(Knowledge))),
        "model_error": 0.1,
        "power_off_empty_nodes": data.draw(st.booleans()),
        "price": data.draw(st.sampled_from([None, 0.001])),
        "power_limit_fraction": data.draw(st.sampled_from([None, 0.6])),
        "node_events": (*failures, NodeEvent(20_000.0, 0, True), NodeEvent(20_000.0, 1, True)),
        "checkpoint_seconds": data.draw(st.sampled_from([60.0, 1800.0])),
        "seed": data.draw(st.integers(0, 3)),
    }
    result = run(jobs, name, gpus=16, **fields)  # raises where joules, GPU-seconds, iterations or limits do not add up
    assert set(result.completion_seconds) == {one.job_id for one in jobs}
    assert result.makespan_seconds >= max(one.submit_seconds for one in jobs)
    if policy_named(name).traits.holds_limits:
        assert result.cap_violation_seconds == 0.0
    again = run(jobs, name, gpus=16, **fields)
    assert replace(again, wall_seconds=0.0) == replace(result, wall_seconds=0.0)
