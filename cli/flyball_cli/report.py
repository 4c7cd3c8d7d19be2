"""`flyball report`: energy, money and CO2 by job, namespace or month."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flyball_cli.cluster_access import Access, Context, Kubeconfig, Namespace

if TYPE_CHECKING:
    from flyball_kube.session import ApiSession
    from flyball_views.overview import Overview
    from flyball_views.report import Report, ReportLine

HEADINGS = ("jobs", "not ended", "GPU hours", "kWh", "cost", "kg CO2")
LONGEST_PICTURE = 30


class GroupBy(StrEnum):
    """What a line adds up."""

    JOB = "job"
    NAMESPACE = "namespace"
    MONTH = "month"


class Output(StrEnum):
    """How a report is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def _month(word: str) -> datetime:
    try:
        return datetime.strptime(word, "%Y-%m").replace(tzinfo=UTC)
    except ValueError as error:
        raise typer.BadParameter(f"{word!r} is no month, such as 2030-06") from error


def month_after(month: datetime) -> datetime:
    """The first moment of the next month."""
    return month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)


def register(app: typer.Typer) -> None:
    """Add `flyball report`."""

    @app.command()
    def report(
        by: Annotated[GroupBy, typer.Option(help="What a line adds up.")] = GroupBy.JOB,
        month: Annotated[
            str | None, typer.Option(metavar="YYYY-MM", help="Only jobs that ended in this month (UTC).")
        ] = None,
        price: Annotated[float | None, typer.Option(help="What a kilowatt-hour costs, in your currency.")] = None,
        co2: Annotated[float | None, typer.Option(help="Grams of CO2 a kilowatt-hour.")] = None,
        pue: Annotated[float, typer.Option(help="What the building draws for each watt of the GPUs.")] = 1.0,
        output: Annotated[Output, typer.Option("--output", "-o", help="How it is printed.")] = Output.TABLE,
        png: Annotated[Path | None, typer.Option(help="Draw it into this file, too (needs matplotlib).")] = None,
        namespace: Namespace = None,
        kubeconfig: Kubeconfig = None,
        context: Context = None,
    ) -> None:
        """What jobs have used: energy, money and CO2, of all namespaces or one (-n).

        It is made of what the jobs' statuses hold now, and says what that leaves out: jobs that were deleted, and the
        course of time within a job.

        \b
          flyball report --by namespace --price 0.21 --co2 380
          flyball report --by month -o csv > energy.csv
        """
        from flyball_views.report import By, Prices
        from flyball_views.report import report as make_report

        from flyball_cli.cluster_access import fail, on_cluster

        try:
            prices = Prices(price, co2, pue)
        except ValueError as error:
            fail("report", error)
        since = None if month is None else _month(month)
        access = Access(kubeconfig, context, namespace)
        overview = on_cluster("report", access, lambda session, _: _look(session, namespace))
        if "energyawarejobs" in overview.missing:
            fail("report", overview.missing["energyawarejobs"])
        until = None if since is None else month_after(since)
        made = make_report(overview.jobs, overview.time, By(by.value), prices, since, until)
        typer.echo(printed(made, output))
        if png is not None:
            draw(made, png)
            typer.echo(f"drawn: {png}", err=True)


async def _look(session: ApiSession, namespace: str | None) -> Overview:
    from flyball_cli.cluster_reading import look

    return await look(session, namespace)


def printed(report: Report, output: Output) -> str:
    """A report as a table with what it leaves out below, as CSV, or as JSON."""
    from flyball_cli.printing import columns_text

    if output is Output.JSON:
        import msgspec

        return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    if output is Output.CSV:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([report.by.value, *HEADINGS])
        writer.writerows([line.name, *_figures(line, "")] for line in report.lines)
        return text.getvalue().rstrip("\n")
    rows = [[report.by.value.upper(), *(heading.upper() for heading in HEADINGS)]]
    rows += [[line.name, *_figures(line)] for line in (*report.lines, report.total)]
    notes = "\n".join(f"- {caveat}" for caveat in report.caveats)
    return f"{columns_text(rows, [False, *[True] * len(HEADINGS)])}\n\n{notes}"


def _figures(line: ReportLine, unknown: str = "-") -> list[str]:
    money = unknown if line.money is None else f"{line.money:.2f}"
    emitted = unknown if line.kilograms_co2 is None else f"{line.kilograms_co2:.2f}"
    return [str(line.jobs), str(line.open_jobs), f"{line.gpu_hours:.1f}", f"{line.kilowatt_hours:.2f}", money, emitted]


def draw(report: Report, path: Path) -> None:
    """The report's kilowatt-hours as bars; of many lines the thirstiest, and the rest as one."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    bars = [(line.name, line.kilowatt_hours) for line in report.lines]
    if len(bars) > LONGEST_PICTURE:
        rest = sum(value for _, value in bars[LONGEST_PICTURE:])
        bars = [*bars[:LONGEST_PICTURE], (f"{len(report.lines) - LONGEST_PICTURE} more", rest)]
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.3 * max(1, len(bars))), layout="constrained")
    drawn = axes.barh([name for name, _ in reversed(bars)], [value for _, value in reversed(bars)], color="#3b6ea5")
    axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
    axes.margins(x=0.12)
    axes.set_xlabel(f"kWh by {report.by.value}, {report.time:%Y-%m-%d %H:%M} UTC")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
