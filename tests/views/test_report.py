"""What jobs have used, added up, and what the sums leave out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from flyball_views.jobs import JobRow
from flyball_views.overview import read_overview
from flyball_views.report import By, Prices, report
from hypothesis import given
from hypothesis import strategies as st

from tests.support.shown_cluster import NOW, cluster, running_job, succeeded_job


def rows(*jobs: dict[str, Any]) -> tuple[JobRow, ...]:
    return read_overview(NOW, jobs=jobs or cluster()["jobs"]).jobs


def used(name: str, kilojoules: int, *, namespace: str = "team", ended: str = "", started: str = "") -> dict[str, Any]:
    raw = succeeded_job() if ended else running_job()
    raw["metadata"] |= {"name": name, "namespace": namespace}
    raw["status"]["energy"] = {"consumedKilojoules": kilojoules}
    raw["status"]["progress"] = {"attainedGpuSeconds": 7200}
    if ended:
        raw["status"]["completionTime"] = ended
    raw["status"]["startTime"] = started or "2030-06-01T11:00:00Z"
    return raw


def test_by_job_the_thirstiest_first() -> None:
    found = report(rows(used("a", 3600), used("b", 7200)), NOW)
    assert [(line.name, line.kilowatt_hours, line.gpu_hours, line.open_jobs) for line in found.lines] == [
        ("team/b", 2.0, 2.0, 1),
        ("team/a", 1.0, 2.0, 1),
    ]
    assert (found.total.kilowatt_hours, found.total.jobs, found.total.money) == (3.0, 2, None)


def test_money_and_emissions() -> None:
    prices = Prices(0.25, 400, 1.5)
    line = report(rows(used("a", 7200)), NOW, prices=prices).lines[0]
    assert (line.kilowatt_hours, line.money, line.kilograms_co2) == (3.0, 0.75, 1.2)


def test_by_namespace() -> None:
    found = report(rows(used("a", 3600), used("b", 3600), used("c", 36_000, namespace="other")), NOW, By.NAMESPACE)
    assert [(line.name, line.jobs, line.kilowatt_hours) for line in found.lines] == [
        ("other", 1, 10.0),
        ("team", 2, 2.0),
    ]


def test_a_job_belongs_to_the_month_of_its_end_and_one_that_runs_to_this_one() -> None:
    jobs = rows(
        used("old", 3600, ended="2030-04-30T23:59:59Z", started="2030-04-01T00:00:00Z"),
        used("over", 7200, ended="2030-05-01T01:00:00Z", started="2030-04-30T22:00:00Z"),
        used("runs", 10_800),
    )
    found = report(jobs, NOW, By.MONTH)
    assert [(line.name, line.kilowatt_hours) for line in found.lines] == [
        ("2030-04", 1.0), ("2030-05", 2.0), ("2030-06", 3.0),
    ]  # fmt: skip
    assert any("1 of the jobs ran in more than one month" in caveat for caveat in found.caveats)
    may = report(jobs, NOW, since=NOW.replace(month=5, day=1, hour=0), until=NOW.replace(day=1, hour=0))
    assert [line.name for line in may.lines] == ["team/over"]


def test_what_is_left_out_is_said() -> None:
    fresh = running_job()
    fresh["status"] = {}
    found = report(rows(fresh), NOW)
    text = " ".join(found.caveats)
    assert "jobs that were deleted are not in it" in text
    assert "hosts, network and cooling come on top" in text
    assert "of 1 jobs nothing is known yet: team/train" in text
    assert "multiplied by 1.4" in " ".join(report(rows(), NOW, prices=Prices(power_usage_effectiveness=1.4)).caveats)


@pytest.mark.parametrize(
    "wrong",
    [
        {"power_usage_effectiveness": 0.9},
        {"power_usage_effectiveness": float("inf")},
        {"per_kilowatt_hour": -1.0},
    ],
)
def test_prices_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="or more"):
        Prices(**wrong)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.sampled_from("abc"), st.integers(0, 400)), max_size=12))
def test_however_it_is_cut_the_sum_is_the_same(jobs: list[tuple[int, str, int]]) -> None:
    made = rows(
        used("x", 0),
        *(
            used(f"j{index}", kilojoules, namespace=namespace, ended=(NOW - timedelta(days=days)).isoformat())
            for index, (kilojoules, namespace, days) in enumerate(jobs)
        ),
    )
    whole = sum(kilojoules for kilojoules, _, _ in jobs) / 3600
    for by in (By.JOB, By.NAMESPACE, By.MONTH):
        found = report(made, NOW, by)
        assert found.total.kilowatt_hours == pytest.approx(whole)
        assert sum(line.kilowatt_hours for line in found.lines) == pytest.approx(whole)
        assert sum(line.jobs for line in found.lines) == len(made)


def test_what_statuses_do_not_tell_is_refused() -> None:
    for by in (By.CAP, By.DAY):
        with pytest.raises(ValueError, match=f"by {by.value} EnergyReports tell alone"):
            report(rows(), NOW, by)
