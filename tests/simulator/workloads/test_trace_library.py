"""The named traces: they hold what is said of them, and say what is missing where their file is absent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median

import pytest
from _pytest.mark import ParameterSet
from flyball_simulator.workloads.trace_library import (
    DAY_JOBS,
    DAY_SECONDS,
    SYNTHETIC_MEDIAN_SECONDS,
    SYNTHETIC_PEAK_SECONDS,
    SYNTHETIC_SECONDS,
    SYNTHETIC_SIZES,
    TRACE_NAMES,
    days_of,
    is_named,
    named_trace,
    synthetic_trace,
)
from flyball_simulator.workloads.traces import TraceError


def whole(name: str, jobs: int, sizes: dict[int, int]) -> ParameterSet:
    return pytest.param("whole", name, jobs, sizes, 0.0, id=name, marks=pytest.mark.whole_data)


@pytest.mark.parametrize(
    ("measured_data", "name", "jobs", "sizes", "first_seconds"),
    [
        ("excerpt", "itp", 45, {1: 37, 4: 1, 8: 7}, 178.0),
        ("excerpt", "itp-months", 696, {1: 508, 2: 5, 4: 21, 8: 140, 16: 9, 32: 12, 64: 1}, 0.0),
        ("excerpt", "philly", 79, {1: 74, 2: 2, 8: 3}, 142.0),
        whole("itp", 1_116, {1: 928, 4: 6, 8: 169, 16: 8, 32: 5}),
        whole("itp-months", 15_802, {1: 11_924, 2: 125, 4: 532, 8: 2_779, 16: 182, 32: 254, 64: 6}),
        whole("itp-02", 524, {1: 507, 4: 5, 8: 12}),
        whole("philly", 1_901, {1: 1_849, 2: 16, 4: 13, 8: 21, 32: 2}),
    ],
    indirect=["measured_data"],
)
def test_the_windows_hold_what_is_said_of_them(
    measured_data: Path, name: str, jobs: int, sizes: dict[int, int], first_seconds: float
) -> None:
    trace = named_trace(name, 0, measured_data)
    assert len(trace) == len({job.job_id for job in trace}) == jobs
    assert Counter(job.gpus for job in trace) == sizes
    assert trace[0].submit_seconds == first_seconds, "counted from the start of the window"
    days = trace[-1].submit_seconds / DAY_SECONDS
    assert days < 1 if name != "itp-months" else 59 < days < 60


def test_a_day_of_a_trace_holds_what_was_submitted_on_it(measured_data: Path) -> None:
    for name in ("itp", "philly", "pai"):
        days = days_of(name, measured_data)
        day = max(days, key=lambda each: len(days[each]))
        assert (
            named_trace(f"{name}/{day}", 0, measured_data)
            == named_trace(f"{name}/{day}", 1, measured_data)
            == days[day]
        )
        assert all(0 <= job.submit_seconds < DAY_SECONDS for jobs in days.values() for job in jobs)
        assert named_trace(f"{name}/99999", 0, measured_data) == []
    jobs = sum(len(found) for found in days_of("itp", measured_data).values())
    assert jobs == len(named_trace("itp-months", 0, measured_data))


@pytest.mark.parametrize(("name", "known"), [("itp/3", True), ("itp", True), ("itp/x", False), ("venus/3", False)])
def test_names_of_days_are_known(name: str, known: bool) -> None:
    assert is_named(name) == known


@pytest.mark.whole_data
def test_the_busiest_day_of_itp_is_the_busiest(whole_data: Path) -> None:
    submissions = [job.submit_seconds for job in named_trace("itp-months", 0, whole_data)]
    ends = iter(range(len(submissions)))
    end, most = next(ends), 0
    for start, at in enumerate(submissions):
        while end < len(submissions) - 1 and submissions[end] < at + DAY_SECONDS:
            end = next(ends)
        most = max(most, end - start)
    assert most == len(named_trace("itp", 0, whole_data))


def test_the_pai_draw_is_the_seeds_and_like_the_year(measured_data: Path) -> None:
    trace = named_trace("pai", 3, measured_data)
    assert trace == named_trace("pai", 3, measured_data) != named_trace("pai", 4, measured_data)
    assert len({job.job_id for job in trace}) == DAY_JOBS
    assert trace[0].submit_seconds == 0.0
    assert [job.submit_seconds for job in trace] == sorted(job.submit_seconds for job in trace)
    assert 0.9 * DAY_SECONDS < trace[-1].submit_seconds < DAY_SECONDS
    assert {job.gpus for job in trace} == {1, 2, 4, 8}
    shares = Counter(job.gpus for job in trace)
    assert shares[1] / DAY_JOBS == pytest.approx(0.735, abs=0.04)  # 73,531 of 99,998 ask for one
    assert shares[8] / DAY_JOBS == pytest.approx(0.146, abs=0.03)  # and 14.6 % for five or more
    assert min(job.duration_seconds for job in trace) >= 300
    assert median(job.duration_seconds for job in trace) == pytest.approx(0.7 * 3600, rel=0.2)


@pytest.mark.parametrize("name", sorted(set(TRACE_NAMES) - {"synthetic"}))
def test_an_absent_file_is_named_with_what_works_without_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"traces/.*csv.gz: no such file") as caught:
        named_trace(name, 0, tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "'synthetic' needs none" in str(caught.value)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"'venus' is unknown; there are itp, itp-months, itp-02, philly, pai, synthetic"
    ):
        named_trace("venus", 0)


def test_the_synthetic_trace_has_the_marginals_that_it_is_drawn_from() -> None:
    trace = synthetic_trace(5, jobs=20_000)
    assert len({job.job_id for job in trace}) == 20_000
    assert trace[0].submit_seconds == 0.0
    assert trace[-1].submit_seconds < DAY_SECONDS
    assert median(job.duration_seconds for job in trace) == pytest.approx(SYNTHETIC_MEDIAN_SECONDS, rel=0.1)
    assert all(SYNTHETIC_SECONDS[0] <= job.duration_seconds <= SYNTHETIC_SECONDS[1] for job in trace)
    shares = Counter(job.gpus for job in trace)
    for size, share in SYNTHETIC_SIZES.items():
        assert shares[size] / len(trace) == pytest.approx(share, abs=0.005)
    by_hour = Counter(int(job.submit_seconds // 3600) for job in trace)
    peak = int(SYNTHETIC_PEAK_SECONDS // 3600)
    assert by_hour[peak] > 2 * by_hour[(peak + 12) % 24]


def test_the_synthetic_trace_is_the_seeds_and_needs_no_file(tmp_path: Path) -> None:
    trace = named_trace("synthetic", 1, tmp_path)
    assert trace == named_trace("synthetic", 1) != named_trace("synthetic", 2)
    assert len(trace) == DAY_JOBS
    with pytest.raises(ValueError, match="0 jobs"):
        synthetic_trace(1, jobs=0)
