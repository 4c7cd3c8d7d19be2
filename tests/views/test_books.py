"""Reports from the daily books: every line, and that they add up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from flyball_api.energy.report import (
    CapEnergy,
    EnergyRates,
    EnergyReportSpec,
    NamespaceEnergy,
    OwnerEnergy,
    ReportedJob,
)
from flyball_views.books import book_report
from flyball_views.report import By, Prices, Report
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2030, 6, 3, tzinfo=UTC)
HOUR = 3_600_000_000  # a kilowatt-hour in millijoules


def book(day: str = "2030-06-01", **fields: Any) -> EnergyReportSpec:
    return EnergyReportSpec(day, NOW, NOW, **fields)


BOOKS = [
    book(
        gpus_millijoules=20 * HOUR,
        jobs_millijoules=12 * HOUR,
        pods_millijoules=3 * HOUR,
        namespaces=(
            NamespaceEnergy("red", 8 * HOUR, 0, 7200),
            NamespaceEnergy("blue", 4 * HOUR, 2 * HOUR, 3600),
            NamespaceEnergy("web", 0, 1 * HOUR),
        ),
        jobs=(ReportedJob("red", "a", "uid-a", 6 * HOUR, 3600), ReportedJob("blue", "b", "uid-b", 4 * HOUR, 3600)),
        owners=(OwnerEnergy("blue", "Deployment/serve", 2 * HOUR),),
        caps=(CapEnergy("hall", 20 * HOUR), CapEnergy("row", 5 * HOUR)),
        rates=EnergyRates(200_000, 400_000),
    ),
    book("2030-07-01", gpus_millijoules=HOUR, jobs_millijoules=HOUR, namespaces=(NamespaceEnergy("red", HOUR),),
         jobs=(ReportedJob("red", "a", "uid-a", HOUR),), rates=EnergyRates(300_000, 500_000)),
]  # fmt: skip


def hours(report: Report) -> dict[str, float]:
    return {line.name: line.kilowatt_hours for line in report.lines}


def test_what_the_lists_have_no_room_for_is_in_the_lines_all_the_same() -> None:
    full = book(
        gpus_millijoules=20 * HOUR,
        jobs_millijoules=12 * HOUR,
        pods_millijoules=3 * HOUR,
        namespaces=(NamespaceEnergy("red", 8 * HOUR),),
        jobs=(ReportedJob("blue", "b", "uid-b", 1 * HOUR),),
        owners=(OwnerEnergy("web", "Deployment/serve", 2 * HOUR),),
    )
    lines = hours(book_report([full], NOW, By.NAMESPACE))
    assert lines == {"red": 8.0, "blue": 1.0, "web": 2.0, "(other namespaces)": 4.0, "(idle)": 5.0}


def test_by_job_with_all_that_no_job_has_used() -> None:
    assert hours(book_report(BOOKS, NOW, By.JOB)) == {
        "red/a": 7.0,
        "(idle)": 5.0,
        "blue/b": 4.0,
        "blue/Deployment/serve": 2.0,
        "red/(other jobs)": 2.0,
        "web/(other pods)": 1.0,
    }


def test_the_days_are_named() -> None:
    assert "it is of 2 days, from 2030-06-01 to 2030-07-01 (UTC)" in "".join(book_report(BOOKS, NOW, By.JOB).caveats)
    assert "it is of one day, 2030-07-01 (UTC)" in "".join(book_report(BOOKS[1:], NOW, By.JOB).caveats)


def test_by_namespace_day_month_and_cap() -> None:
    assert hours(book_report(BOOKS, NOW, By.NAMESPACE)) == {"red": 9.0, "blue": 6.0, "(idle)": 5.0, "web": 1.0}
    assert hours(book_report(BOOKS, NOW, By.DAY)) == {"2030-06-01": 20.0, "2030-07-01": 1.0}
    assert hours(book_report(BOOKS, NOW, By.MONTH)) == {"2030-06": 20.0, "2030-07": 1.0}
    by_cap = book_report(BOOKS, NOW, By.CAP)
    assert hours(by_cap) == {"hall": 20.0, "row": 5.0}
    assert "a GPU under several caps is in the line of each, and once in the total" in by_cap.caveats


def test_each_day_has_its_own_price_unless_one_is_given() -> None:
    total = book_report(BOOKS, NOW).total
    assert (total.kilowatt_hours, total.jobs, total.gpu_hours) == (21.0, 2, 3.0)
    assert total.money == pytest.approx(20 * 0.2 + 0.3)
    assert total.kilograms_co2 == pytest.approx(20 * 0.4 + 0.5)
    given_ = book_report(BOOKS, NOW, prices=Prices(1.0, 100, 1.5)).total
    assert (given_.money, given_.kilograms_co2) == (pytest.approx(31.5), pytest.approx(3.15))


def test_without_a_price_there_is_none() -> None:
    found = book_report([book(gpus_millijoules=HOUR), BOOKS[0]], NOW)
    assert found.total.money is None
    assert "of some of the days no price is known (--price)" in found.caveats


def test_a_namespace_alone() -> None:
    found = book_report(BOOKS, NOW, By.JOB, namespace="blue")
    assert hours(found) == {"blue/b": 4.0, "blue/Deployment/serve": 2.0}
    assert found.total.kilowatt_hours == 6.0


def test_of_a_namespace_that_has_used_nothing_it_is_said() -> None:
    assert (
        "nothing that was used is known of a namespace nowhere" in book_report(BOOKS, NOW, namespace="nowhere").caveats
    )
    assert not any("nothing that" in words for words in book_report(BOOKS, NOW, namespace="red").caveats)


def test_of_a_cap_nobody_knows_the_jobs_nor_one_namespaces_share() -> None:
    made = book_report(BOOKS, NOW, By.CAP)
    assert {(line.jobs, line.gpu_hours) for line in made.lines} == {(None, None)}
    assert made.total.jobs == 2
    with pytest.raises(ValueError, match="is in no book by namespace"):
        book_report(BOOKS, NOW, By.CAP, namespace="red")


def test_no_books_at_all() -> None:
    found = book_report([], NOW)
    assert found.caveats == ("there is no EnergyReport of that time",)
    assert (found.total.money, found.total.kilograms_co2) == (None, None), "as of a day without a price"
    given_ = book_report([], NOW, prices=Prices(0.2, 400)).total
    assert (given_.money, given_.kilograms_co2) == (0.0, 0.0)


COUNTS = st.integers(0, 10**15)


@given(
    jobs=st.lists(st.tuples(st.sampled_from("ab"), COUNTS), max_size=5),
    pods=st.lists(st.tuples(st.sampled_from("ab"), COUNTS), max_size=5),
    unlisted=COUNTS,
    idle=COUNTS,
    by=st.sampled_from([By.JOB, By.NAMESPACE, By.DAY, By.MONTH]),
)
def test_the_lines_add_up_to_the_counters(
    jobs: list[tuple[str, int]], pods: list[tuple[str, int]], unlisted: int, idle: int, by: By
) -> None:
    spaces = tuple(
        NamespaceEnergy(
            name,
            sum(used for of, used in jobs if of == name) + (unlisted if name == "a" else 0),
            sum(used for of, used in pods if of == name),
        )
        for name in "ab"
    )
    of_jobs, of_pods = sum(used for _, used in jobs) + unlisted, sum(used for _, used in pods)
    made = book_report(
        [
            book(
                gpus_millijoules=of_jobs + of_pods + idle,
                jobs_millijoules=of_jobs,
                pods_millijoules=of_pods,
                namespaces=spaces,
                jobs=tuple(ReportedJob(of, f"j{index}", f"u{index}", used) for index, (of, used) in enumerate(jobs)),
                owners=tuple(OwnerEnergy(of, f"Pod/p{index}", used) for index, (of, used) in enumerate(pods)),
            )
        ],
        NOW,
        by,
    )
    expected = (of_jobs + of_pods + idle) / HOUR
    assert sum(hours(made).values()) == pytest.approx(expected)
    assert made.total.kilowatt_hours == pytest.approx(expected)
