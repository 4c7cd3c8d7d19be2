"""The report as people and spreadsheets get it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from flyball_cli.cluster.access import refusal
from flyball_cli.cluster.report import ReportOutput, _books, _made, _month, draw, month_after, picture, printed
from flyball_cli.cluster.would_have import draw_would_have, picture_of_savings, printed_would_have
from flyball_cli.terminal.pictures import LONGEST_NAME, cut_short
from flyball_kube.errors import ApiError
from flyball_views.overview import read_overview
from flyball_views.report import By, Prices, Report, report
from flyball_views.would_have import Estimate, PodsLine, WouldHaveLine, WouldHaveReport
from matplotlib.figure import Figure

from tests.support.shown_cluster import NOW, cluster

MADE = report(read_overview(NOW, **cluster()).jobs, NOW, By.NAMESPACE, Prices(0.25, 400))


def test_a_table_with_its_sum_and_what_it_leaves_out() -> None:
    lines = printed(MADE, ReportOutput.TABLE).splitlines()
    assert lines[0].split() == ["NAMESPACE", "JOBS", "NOT", "ENDED", "GPU", "HOURS", "KWH", "COST", "KG", "CO2"]
    assert lines[1].split() == ["other", "1", "0", "0.0", "0.19", "0.05", "0.08"]
    assert lines[3].split()[:2] == ["total", "3"]
    assert lines[5].startswith("- jobs that were deleted are not in it")


def test_csv_reads_back() -> None:
    found = list(csv.DictReader(printed(MADE, ReportOutput.CSV).splitlines()))
    assert [(row["namespace"], row["jobs"], row["kWh"]) for row in found] == [
        ("other", "1", "0.194444"),
        ("team", "2", "0.055556"),
    ]
    sums = [sum(float(row[column]) for row in found) for column in ("kWh", "cost", "kg CO2")]
    assert sums == pytest.approx([MADE.total.kilowatt_hours, MADE.total.money, MADE.total.kilograms_co2], rel=1e-4)


def test_json_reads_back() -> None:
    assert msgspec.json.decode(printed(MADE, ReportOutput.JSON), type=Report) == MADE


def test_a_picture(tmp_path: Path) -> None:
    draw(MADE, tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def with_long_names(made: Report) -> Report:
    lines = tuple(msgspec.structs.replace(line, name="n" * 80) for line in made.lines)
    return msgspec.structs.replace(made, lines=lines)


@pytest.mark.parametrize(
    "draw_it",
    [
        lambda: picture(MADE),
        lambda: picture(with_long_names(MADE)),
        lambda: picture_of_savings(msgspec.structs.replace(WOULD_HAVE, caveats=("many words " * 30,))),
    ],
    ids=["a report", "long names", "what would have been saved"],
)
def test_all_that_a_picture_says_can_be_read(draw_it: Callable[[], Figure]) -> None:
    figure = draw_it()
    figure.draw_without_rendering()
    (title,) = figure.texts
    extent = title.get_window_extent()
    assert figure.bbox.x0 <= extent.x0 < extent.x1 <= figure.bbox.x1
    assert extent.y1 <= figure.bbox.y1
    assert figure.axes[0].get_position().y1 * figure.bbox.height <= extent.y0


def test_a_picture_says_what_it_cost_and_emitted() -> None:
    (title,) = picture(MADE).texts
    first = title.get_text().splitlines()[0]
    assert first == "0.25 kWh by namespace, as of 2030-06-01 12:00 UTC; cost 0.06; 0.10 kg of CO2"


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


class NoBooks:
    """An API server that lets the caller read jobs, of which there are none, and no EnergyReport."""

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        if path.endswith("/energyreports"):
            reason = (
                'energyreports.flyball.dev is forbidden: User "eve" cannot list resource "energyreports" in API group'
            )
            raise ApiError(403, "Forbidden", f'{reason} "flyball.dev" at the cluster scope', path)
        return {"items": []}


async def test_who_may_read_no_report_gets_what_jobs_used_and_is_refused_what_they_would_have_saved() -> None:
    session: Any = NoBooks()
    made = await _made(session, By.JOB, Prices(), None, None)
    assert any("may not be read" in caveat for caveat in made.caveats)
    with pytest.raises(ApiError) as refused:
        await _books(session, None)
    assert "you have no right to list energyreports.flyball.dev" in refusal(refused.value)
    assert "flyball-viewer has it" in refusal(refused.value)


def test_a_long_name_leaves_room_for_its_bar() -> None:
    long = "research/JobSet/evaluation-of-everything-that-there-is-0007"
    assert len(cut_short(long)) == LONGEST_NAME
    assert cut_short(long).startswith("research/JobSet/")
    assert cut_short(long).endswith("-0007")
    assert cut_short("research/gpt2") == "research/gpt2"


# --- what observed jobs would have saved ----------------------------------------------------------------------------------

KNOWN = WouldHaveLine(
    "team/a", 1, 10.0, 1.0, Estimate(1.0, 2.0, 3.0), Estimate(0.111, 0.222, 0.333), Estimate(0.01, 0.02, 0.03)
)
NEW = WouldHaveLine("team/new", 1, 0.5, 0.5, None, None, None)
TOTAL = msgspec.structs.replace(KNOWN, name="total", jobs=2, kilowatt_hours=10.5, unknown_kilowatt_hours=1.5)
WOULD_HAVE: WouldHaveReport = WouldHaveReport(By.JOB, NOW, (KNOWN, NEW), TOTAL, ("it is of one day",))


def test_what_would_have_been_saved_as_a_table() -> None:
    lines = printed_would_have(WOULD_HAVE, "table").splitlines()
    assert lines[0].split() == ["JOB", "JOBS", "KWH", "WOULD", "HAVE", "SAVED", "LONGER", "UNKNOWN", "KWH"]
    assert " ".join(lines[1].split()) == "team/a 1 10.00 2.00 kWh 22.2 % (11.1 to 33.3) 2.0 % (1.0 to 3.0) 1.00"
    assert lines[2].split() == ["team/new", "1", "0.50", "unknown", "unknown", "0.50"]
    assert lines[3].split()[:3] == ["total", "2", "10.50"]
    assert lines[-1] == "- it is of one day"


def test_what_would_have_been_saved_as_csv_and_json() -> None:
    first, second = csv.DictReader(printed_would_have(WOULD_HAVE, "csv").splitlines())
    assert (first["job"], first["saved kWh"], first["saved kWh least"], first["saved % most"]) == (
        "team/a", "2.000", "1.000", "33.30",
    )  # fmt: skip
    assert (second["saved kWh"], second["longer %"], second["unknown kWh"]) == ("", "", "0.500")
    assert msgspec.json.decode(printed_would_have(WOULD_HAVE, "json"), type=WouldHaveReport) == WOULD_HAVE


@pytest.mark.parametrize("lines", [(), (KNOWN, NEW)])
def test_what_would_have_been_saved_as_a_picture(lines: tuple[WouldHaveLine, ...], tmp_path: Path) -> None:
    draw_would_have(msgspec.structs.replace(WOULD_HAVE, lines=lines), tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_pods_outside_flyball_have_a_table_of_their_own() -> None:
    pods = (PodsLine("web/Deployment/serve", 8.0, 2.0),)
    report = WouldHaveReport(By.JOB, NOW, (KNOWN, NEW), TOTAL, ("it is of one day",), pods)
    lines = printed_would_have(report, "table").splitlines()
    assert [line.split() for line in lines if "serve" in line] == [["web/Deployment/serve", "8.00", "2.00", "unknown"]]
    assert "PODS OUTSIDE FLYBALL" not in printed_would_have(WOULD_HAVE, "table")
    assert msgspec.json.decode(printed_would_have(report, "json"), type=WouldHaveReport) == report
