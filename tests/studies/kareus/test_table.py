"""The recorded table: read, refused where it is wrong, and searched as section 7 of the plan requires."""

from __future__ import annotations

from pathlib import Path

import pytest
from flyball_frontiers.kareus import NOT_OVERLAPPED, KernelSchedule, SearchBudget
from flyball_frontiers.kareus.search import MULTI_PASS, RANDOM_ONLY
from flyball_studies.kareus.table import A100_STATIC_POWER_WATTS, RecordedTable, read_table
from flyball_studies.kareus.table_study import most_measurements, search_table, summarise_method

HEADER = (
    "overlap_start,overlap_end,comm_sm_number,comm_block_size,"
    "0:time (s),0:total energy (J),1:time (s),1:total energy (J)"
)


def recorded(data: Path) -> RecordedTable:
    tables = []
    for name, clock in (("default_clock", 1410), ("1200mhz", 1200)):
        path = data / "kareus" / f"attention_tp2_bs4_seq4096_{name}.csv"
        tables.append(read_table(path.read_text().splitlines(), clock))
    return tables[0].merged(tables[1])


def test_lines_are_schedules_and_means_over_the_repetitions() -> None:
    table = read_table([HEADER, "-1,-1,6,512,0.010,2.0,0.012,2.2", "2,5,9,1024,0.008,1.8,0.008,1.8"], 1200)
    alone, beside = table.schedules
    assert alone == KernelSchedule(1200, 6, NOT_OVERLAPPED, None, 512)
    assert beside == KernelSchedule(1200, 9, 2, 5, 1024)
    assert table.measure(alone).time_seconds == pytest.approx(0.011)
    assert table.measure(alone).energy_joules == pytest.approx(2.1)
    assert table.time_spread == pytest.approx((0.001 / 0.011) / 2)
    assert [point.plan for point in table.frontier.points] == [beside]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["a,b", "1,2"], "wanted `0:time"),
        ([HEADER], "has no lines"),
        ([HEADER, "x,5,9,512,1,1,1,1"], "line 2"),
        ([HEADER, "0,5,9,512,1,1,1"], "line 2"),
        ([HEADER, "0,5,9,512,1,1,1,1", "0,5,9,512,1,1,1,1"], "line 3: .* is there twice"),
    ],
)
def test_a_wrong_table_is_refused_by_its_line(lines: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_table(lines, 1410)


def test_two_clocks_are_one_space_but_one_clock_is_not_two() -> None:
    lines = [HEADER, "-1,-1,6,512,0.010,2.0,0.012,2.2"]
    both = read_table(lines, 1410).merged(read_table(lines, 1200))
    assert {schedule.clock_megahertz for schedule in both.schedules} == {1200, 1410}
    with pytest.raises(ValueError, match="1 schedules are in both tables"):
        both.merged(read_table(lines, 1200))


@pytest.mark.slow
def test_the_recorded_frontier_is_found_with_a_third_of_its_measurements(measured_data: Path) -> None:
    table = recorded(measured_data)
    budget, static = SearchBudget.for_partition(5), 2 * A100_STATIC_POWER_WATTS
    assert budget.most <= most_measurements(table)
    seeds = range(2)
    multi, random = (
        summarise_method("", table, [search_table(table, shares, static, budget, seed) for seed in seeds], budget)
        for shares in (MULTI_PASS, RANDOM_ONLY)
    )
    assert multi.measured[:, -1].max() <= most_measurements(table)
    assert multi.paper[:, -1].min() >= 0.99
    assert multi.near[:, -1].mean() > random.near[:, -1].mean()
    assert multi.near[:, -1].mean() >= 0.97
