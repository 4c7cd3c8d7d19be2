"""Algorithm 1 of PowerFlow on instances small enough to follow by hand."""

from __future__ import annotations

from flyball_planner.policies.powerflow_paper import PaperPowerFlow
from flyball_planner.policies.view import Choice

from tests.support.policy_views import cluster, job, table


def chosen(choices: list[Choice]) -> dict[str, tuple[int, int]]:
    return {choice.uid: (choice.gpus, choice.clock_index) for choice in choices}


def test_jobs_without_gpus_come_first_shortest_remaining_time_first() -> None:
    kind = table([1.0, 0.5])
    jobs = [job("long", kind, 1000.0), job("short", kind, 10.0), job("middle", kind, 100.0)]
    assert set(chosen(PaperPowerFlow().decide(cluster(jobs, gpus=2)))) == {"short", "middle"}


def test_the_largest_marginal_return_gets_the_next_gpu() -> None:
    # At the start clock: efficient saves 0.5 s for no joules more, wasteful 0.1 s for 80 % more.
    jobs = [job("wasteful", table([1.0, 0.9])), job("efficient", table([1.0, 0.5]))]
    sizes = {uid: size for uid, (size, _) in chosen(PaperPowerFlow().decide(cluster(jobs, gpus=3))).items()}
    assert sizes == {"wasteful": 1, "efficient": 2}


def test_no_time_gained_is_no_candidate() -> None:
    jobs = [job("flat", table([1.0, 1.0, 0.5]))]
    assert PaperPowerFlow().decide(cluster(jobs))[0].gpus == 1


def test_clocks_rise_until_the_power_has_passed_the_limit() -> None:
    kind = table([1.0])
    jobs = [job("a", kind), job("b", kind, submit=1.0)]
    low, middle, high = kind.watts_rows[0]
    start = kind.efficient[0]
    assert chosen(PaperPowerFlow().decide(cluster(jobs, gpus=2))) == {"a": (1, 2), "b": (1, 2)}
    # A limit just above what the start clocks draw still takes one step, which passes it: the paper tests before.
    watts = 2 * kind.watts_rows[0][start]
    found = chosen(PaperPowerFlow().decide(cluster(jobs, gpus=2, power_limit_watts=watts + 1.0)))
    assert sum(clock for _, clock in found.values()) == 2 * start + 1
    assert low < middle < high


def test_the_limit_is_looked_at_when_a_node_is_full() -> None:
    kind = table([1.0])
    jobs = [job(f"j{index}", kind, 100.0 + index) for index in range(4)]
    two_nodes = cluster(jobs, gpus=4, power_limit_watts=1.0)
    assert len(PaperPowerFlow().decide(two_nodes)) == 4  # one node of four: full before the first look


def test_a_job_that_is_measured_keeps_what_it_has() -> None:
    kind = table([1.0, 0.5, 0.3])
    jobs = [job("measured", kind, gpus=4, clock_index=0, resizable=False), job("other", kind)]
    assert chosen(PaperPowerFlow().decide(cluster(jobs, gpus=8)))["measured"][0] == 4
