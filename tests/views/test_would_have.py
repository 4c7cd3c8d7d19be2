"""What governing observed jobs would have saved, as the daily books have it: lines, sums, bands, and what is unknown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from flyball_api.energy.report import EnergyReportSpec, NamespaceEnergy, ObservedUse, OwnerEnergy, ReportedJob
from flyball_views.report import By
from flyball_views.would_have import MOST_PODS, Estimate, PodsLine, would_have_report

NOW = datetime(2030, 6, 3, 6, 30, tzinfo=UTC)
HOUR = 3_600_000_000  # a kilowatt-hour in millijoules


def use(known: float, *, unknown: float = 0.0, seconds: int = 1000) -> ObservedUse:
    """Of so many kilowatt-hours four fifths would have been used, 10 % more or less, in a tenth more time."""
    return ObservedUse(
        unknown_millijoules=round(unknown * HOUR),
        millijoules=round(known * HOUR),
        governed_millijoules=round(0.8 * known * HOUR),
        least_millijoules=round(0.7 * known * HOUR),
        most_millijoules=round(0.9 * known * HOUR),
        milliseconds=1000 * seconds,
        governed_milliseconds=1100 * seconds,
        least_milliseconds=1050 * seconds,
        most_milliseconds=1150 * seconds,
    )


def book(day: str, *jobs: ReportedJob, **fields: Any) -> EnergyReportSpec:
    return EnergyReportSpec(day, NOW, NOW, jobs=jobs, **fields)


BOOKS = [
    book(
        "2030-06-01",
        ReportedJob("red", "a", "uid-a", 11 * HOUR, 3600, use(10.0, unknown=1.0)),
        ReportedJob("blue", "b", "uid-b", 4 * HOUR, 3600, use(4.0)),
        ReportedJob("blue", "governed", "uid-g", 9 * HOUR, 3600),
        pods_millijoules=2 * HOUR,
    ),
    book("2030-06-02", ReportedJob("red", "a", "uid-a", 10 * HOUR, 3600, use(10.0))),
]


def test_jobs_add_up_over_the_days_and_who_would_have_saved_most_comes_first() -> None:
    report = would_have_report(BOOKS, NOW)
    assert [line.name for line in report.lines] == ["red/a", "blue/b"]
    first = report.lines[0]
    assert (first.jobs, first.kilowatt_hours, first.unknown_kilowatt_hours) == (1, 21.0, 1.0)
    assert first.saved_kilowatt_hours == pytest.approx(Estimate(2.0, 4.0, 6.0))
    assert first.saved_share == pytest.approx(Estimate(0.1, 0.2, 0.3))
    assert first.longer_share == pytest.approx(Estimate(0.05, 0.1, 0.15))
    total = report.total
    assert (total.jobs, total.kilowatt_hours) == (2, 25.0)
    assert total.saved_kilowatt_hours is not None
    assert total.saved_kilowatt_hours.expected == pytest.approx(4.8)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        (By.NAMESPACE, ["red", "blue"]),
        (By.DAY, ["2030-06-01", "2030-06-02"]),
        (By.MONTH, ["2030-06"]),
    ],
)
def test_by_namespace_day_and_month(by: By, names: list[str]) -> None:
    report = would_have_report(BOOKS, NOW, by)
    assert [line.name for line in report.lines] == names
    assert sum(line.kilowatt_hours for line in report.lines) == report.total.kilowatt_hours


def test_of_one_namespace_alone() -> None:
    report = would_have_report(BOOKS, NOW, namespace="blue")
    assert [line.name for line in report.lines] == ["blue/b"]
    assert report.total.kilowatt_hours == 4.0


def test_of_one_namespace_what_is_said_of_pods_is_of_that_one() -> None:
    books = [
        book(
            "2030-06-01",
            ReportedJob("blue", "b", "uid-b", 4 * HOUR, 3600, use(4.0)),
            pods_millijoules=7 * HOUR,
            namespaces=(NamespaceEnergy("red", 0, 5 * HOUR), NamespaceEnergy("blue", 4 * HOUR, 2 * HOUR)),
            owners=(
                OwnerEnergy("red", "Deployment/web", 5 * HOUR, 3 * HOUR),
                OwnerEnergy("blue", "Deployment/chat", 2 * HOUR, 1 * HOUR),
            ),
        )
    ]
    for namespace, outside, idle in ((None, 7, 4), ("blue", 2, 1)):
        caveats = " ".join(would_have_report(books, NOW, namespace=namespace).caveats)
        assert f"{outside:.2f} kWh of pods outside Flyball" in caveats
        assert f"{idle:.2f} kWh of that GPUs drew" in caveats


def test_what_nobody_knows_is_said_to_be_unknown() -> None:
    report = would_have_report(
        [book("2030-06-01", ReportedJob("red", "new", "uid-n", HOUR, 60, use(0, unknown=1, seconds=0)))], NOW
    )
    (line,) = report.lines
    assert (line.saved_kilowatt_hours, line.saved_share, line.longer_share) == (None, None, None)
    assert (line.kilowatt_hours, line.unknown_kilowatt_hours) == (1.0, 1.0)
    assert any(caveat.startswith("unknown is what jobs used before anything was learned") for caveat in report.caveats)


def test_it_says_how_to_read_it() -> None:
    caveats = would_have_report(BOOKS, NOW).caveats
    assert caveats[0] == "it is of 2 days, from 2030-06-01 to 2030-06-02 (UTC), as of 06:30"
    assert any("2.00 kWh of pods outside Flyball are not in it" in caveat for caveat in caveats)
    assert would_have_report([], NOW).caveats == ("there is no EnergyReport of that time",)
    nobody = would_have_report([book("2030-06-01", ReportedJob("blue", "governed", "uid-g", HOUR))], NOW)
    assert "flyball.dev/mode=observe" in nobody.caveats[0]
    assert nobody.lines == ()


def test_caps_have_no_line() -> None:
    with pytest.raises(ValueError, match="not by cap"):
        would_have_report(BOOKS, NOW, By.CAP)


def test_of_pods_outside_flyball_what_they_held_without_computing_is_said_and_nothing_else() -> None:
    books = [
        book(
            day,
            owners=(
                OwnerEnergy("web", "Deployment/serve", 4 * HOUR, HOUR),
                OwnerEnergy("lab", "Pod/notebook", 2 * HOUR, 2 * HOUR),
                *(OwnerEnergy("many", f"Pod/{number}", HOUR) for number in range(MOST_PODS)),
            ),
            pods_millijoules=(6 + MOST_PODS) * HOUR,
        )
        for day in ("2030-06-01", "2030-06-02")
    ]
    report = would_have_report([*books, BOOKS[1]], NOW)
    assert len(report.pods) == MOST_PODS
    assert report.pods[:2] == (PodsLine("lab/Pod/notebook", 4.0, 4.0), PodsLine("web/Deployment/serve", 8.0, 2.0))
    assert any(caveat.startswith("6.00 kWh of that GPUs drew that such pods held") for caveat in report.caveats)
    (only,) = would_have_report(books, NOW, namespace="web").pods
    assert only.name == "web/Deployment/serve"
