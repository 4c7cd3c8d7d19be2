"""The report as people and spreadsheets get it."""

from __future__ import annotations

import csv
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from flyball_cli.report import LONGEST_NAME, Output, _made, _month, cut_short, draw, month_after, printed
from flyball_views.overview import read_overview
from flyball_views.report import By, Prices, Report, report

from tests.support.shown_cluster import NOW, cluster

MADE = report(read_overview(NOW, **cluster()).jobs, NOW, By.NAMESPACE, Prices(0.25, 400))


def test_a_table_with_its_sum_and_what_it_leaves_out() -> None:
    lines = printed(MADE, Output.TABLE).splitlines()
    assert lines[0].split() == ["NAMESPACE", "JOBS", "NOT", "ENDED", "GPU", "HOURS", "KWH", "COST", "KG", "CO2"]
    assert lines[1].split() == ["other", "1", "0", "0.0", "0.19", "0.05", "0.08"]
    assert lines[3].split()[:2] == ["total", "3"]
    assert lines[5].startswith("- jobs that were deleted are not in it")


def test_csv_reads_back() -> None:
    found = list(csv.DictReader(printed(MADE, Output.CSV).splitlines()))
    assert [(row["namespace"], row["jobs"], row["kWh"]) for row in found] == [
        ("other", "1", "0.19"),
        ("team", "2", "0.06"),
    ]


def test_json_reads_back() -> None:
    assert msgspec.json.decode(printed(MADE, Output.JSON), type=Report) == MADE


def test_a_picture(tmp_path: Path) -> None:
    draw(MADE, tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_months() -> None:
    assert _month("2030-12") == datetime(2030, 12, 1, tzinfo=UTC)
    assert month_after(_month("2030-12")) == datetime(2031, 1, 1, tzinfo=UTC)
    with pytest.raises(typer.BadParameter, match="is no month"):
        _month("June")


class Books:
    """An API server with so many daily reports; `longest` is the most of them that one answer had."""

    def __init__(self, days: int) -> None:
        first = date(2030, 6, 1)
        self.names = [(first + timedelta(days=index)).isoformat() for index in range(days)]
        self.longest = 0

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        begin = int(params.get("continue", "0"))
        page = self.names[begin : begin + int(params["limit"])]
        self.longest = max(self.longest, len(page))
        times = {"countedSince": "2030-06-01T00:00:00Z", "chargedUntil": "2030-06-01T00:00:00Z"}
        items = [
            {"metadata": {"name": day}, "spec": {"day": day, **times, "gpusMillijoules": 3_600_000_000}} for day in page
        ]
        after = begin + len(page)
        return {"items": items, "metadata": {"continue": str(after) if after < len(self.names) else ""}}


async def test_a_year_of_large_reports_is_read_a_few_days_at_a_time() -> None:
    session: Any = Books(400)
    report = await _made(session, By.MONTH, Prices(), None, None)
    assert [line.name for line in report.lines][:2] == ["2030-06", "2030-07"]
    assert report.total.kilowatt_hours == pytest.approx(400)
    assert session.longest <= 8
    june = await _made(session, By.DAY, Prices(), datetime(2030, 6, 1, tzinfo=UTC), None)
    assert len(june.lines) == 30
    other = await _made(session, By.DAY, Prices(), datetime(2040, 6, 1, tzinfo=UTC), None)
    assert other.caveats[0] == "there is no EnergyReport of that time"


def test_a_long_name_leaves_room_for_its_bar() -> None:
    long = "research/JobSet/evaluation-of-everything-that-there-is-0007"
    assert len(cut_short(long)) == LONGEST_NAME
    assert cut_short(long).startswith("research/JobSet/")
    assert cut_short(long).endswith("-0007")
    assert cut_short("research/gpt2") == "research/gpt2"
