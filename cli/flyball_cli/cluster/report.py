"""`flyball report`: energy, money and CO2 by job, namespace, cap, day or month."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flyball_cli.cluster.access import Access, Context, Kubeconfig, OneNamespace
from flyball_cli.terminal.files import check_picture
from flyball_cli.terminal.pictures import bars

if TYPE_CHECKING:
    from flyball_api.energy.report import EnergyReportSpec
    from flyball_kube.session import ApiSession
    from flyball_views.report import By, Prices, Report, ReportLine
    from matplotlib.figure import Figure

HEADINGS = ("jobs", "not ended", "GPU hours", "kWh", "cost", "kg CO2")
# A day's report of a large cluster has a megabyte, and there are 400 of them.
REPORTS_AT_ONCE = 8
LONGEST_PICTURE = 31  # the days of a month


class GroupBy(StrEnum):
    """What a line adds up."""

    JOB = "job"
    NAMESPACE = "namespace"
    CAP = "cap"
    DAY = "day"
    MONTH = "month"


class ReportOutput(StrEnum):
    """How a report is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def _month(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no month, such as 2030-06") from error


def month_after(month: datetime) -> datetime:
    """The first moment of the next month."""
    return month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)


def register(app: typer.Typer) -> None:
    """Add `flyball report`."""

    @app.command()
    def report(
        by: Annotated[GroupBy, typer.Option(help="What a line adds up.")] = GroupBy.JOB,
        month: Annotated[
            str | None, typer.Option(metavar="YYYY-MM", help="Only what was used in this month (UTC).")
        ] = None,
        price: Annotated[
            float | None,
            typer.Option(
                min=0, help="What a kilowatt-hour costs, in your currency; by default what each day's report has."
            ),
        ] = None,
        co2: Annotated[
            float | None,
            typer.Option(min=0, help="Grams of CO2 a kilowatt-hour; by default what each day's report has."),
        ] = None,
        pue: Annotated[float, typer.Option(min=1, help="What the building draws for each watt of the GPUs.")] = 1.0,
        output: Annotated[ReportOutput, typer.Option("--output", "-o", help="How it is printed.")] = ReportOutput.TABLE,
        png: Annotated[
            Path | None, typer.Option(help="Draw it into this file, too: a .png, .svg or .pdf (needs matplotlib).")
        ] = None,
        would_have_saved: Annotated[
            bool,
            typer.Option("--would-have-saved", help="What governing the jobs that are only observed would have saved."),
        ] = False,
        namespace: OneNamespace = None,
        kubeconfig: Kubeconfig = None,
        context: Context = None,
    ) -> None:
        """What was used: energy, money and CO2, of the whole cluster or one namespace (-n).

        It is made of the operator's daily EnergyReports, which keep what deleted jobs used, what other pods with GPUs used,
        and what GPUs used idle. Who may not read them, or has none, gets what the statuses of the jobs hold now.

        \b
          flyball report --by namespace --month 2030-06
          flyball report -n research --month 2030-06 --price 0.21 --png june.png
          flyball report --by day -o csv > energy.csv

        Jobs with the label flyball.dev/mode=observe, their own or their namespace's, run as fast as caps let them. What
        their objectives would have chosen, and what that would have saved, is kept beside what they used:

        \b
          flyball report --would-have-saved --by namespace
        """
        from flyball_views.report import By, Prices
        from flyball_views.would_have import would_have_report

        from flyball_cli.cluster.access import on_cluster
        from flyball_cli.cluster.would_have import draw_would_have, printed_would_have
        from flyball_cli.terminal.endings import fail

        check_picture("--png", png, (".png", ".svg", ".pdf"))
        try:
            prices = Prices(price, co2, pue)
            access = Access(kubeconfig, context, namespace)
            since = None if month is None else _month(month)
            if would_have_saved:
                books, _ = on_cluster(access, lambda session, _: _books(session, since))
                found = would_have_report(books, datetime.now(UTC), By(by.value), namespace)
                typer.echo(printed_would_have(found, output.value))
                if png is not None:
                    draw_would_have(found, png)
                    typer.echo(f"drawn: {png}", err=True)
                return
            made = on_cluster(access, lambda session, _: _made(session, By(by.value), prices, since, namespace))
        except ValueError as error:
            fail(error)
        typer.echo(printed(made, output))
        if png is not None:
            draw(made, png)
            typer.echo(f"drawn: {png}", err=True)


async def _made(session: ApiSession, by: By, prices: Prices, month: datetime | None, namespace: str | None) -> Report:
    """The report by the daily books; without any, by the jobs' statuses. Raises ValueError for what those do not tell."""
    from flyball_kube.errors import ApiError
    from flyball_kube.resources import ENERGY_AWARE_JOBS
    from flyball_views.books import book_report
    from flyball_views.report import report as make_report

    from flyball_cli.cluster.reading import look

    try:
        chosen, kept = await _books(session, month)
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        chosen, kept = [], False
    if kept:
        return book_report(chosen, datetime.now(UTC), by, prices, namespace)
    overview = await look(session, namespace)
    if ENERGY_AWARE_JOBS.plural in overview.missing:
        raise ValueError(overview.missing[ENERGY_AWARE_JOBS.plural])
    until = None if month is None else month_after(month)
    return make_report(overview.jobs, overview.time, by, prices, month, until)


async def _books(session: ApiSession, month: datetime | None) -> tuple[list[EnergyReportSpec], bool]:
    """The daily books of a month (None: all) in their order, and whether there are any at all.

    Raises ApiError, also where they may not be read.
    """
    import msgspec
    from flyball_api.energy.report import read_energy_report
    from flyball_kube.resources import ENERGY_REPORTS

    from flyball_cli.cluster.reading import each_of

    chosen, kept = [], False
    async for raw in each_of(session, ENERGY_REPORTS, page_size=REPORTS_AT_ONCE):
        kept = True
        if month is None or raw["metadata"]["name"].startswith(f"{month:%Y-%m}-"):
            chosen.append(msgspec.structs.replace(read_energy_report(raw).spec, marks=None))
    return sorted(chosen, key=lambda book: book.day), kept


def printed(report: Report, output: ReportOutput) -> str:
    """A report as a table with what it leaves out below, as CSV, or as JSON."""
    from flyball_cli.terminal.printing import columns_text

    if output is ReportOutput.JSON:
        import msgspec

        return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    if output is ReportOutput.CSV:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([report.by.value, *HEADINGS])
        writer.writerows([line.name, *_figures(line, "", ("{:.4f}", "{:.6f}"))] for line in report.lines)
        return text.getvalue().rstrip("\n")
    rows = [[report.by.value.upper(), *(heading.upper() for heading in HEADINGS)]]
    rows += [[line.name, *_figures(line)] for line in (*report.lines, report.total)]
    notes = "\n".join(f"- {caveat}" for caveat in report.caveats)
    return f"{columns_text(rows, [False, *[True] * len(HEADINGS)])}\n\n{notes}"


def _figures(line: ReportLine, unknown: str = "-", forms: tuple[str, str] = ("{:.1f}", "{:.2f}")) -> list[str]:
    """One line's figures, hours in the first of the forms; a file has them as they are, for whoever adds them up."""
    hours, other = forms
    counts = [unknown if count is None else str(count) for count in (line.jobs, line.open_jobs)]
    used = (line.kilowatt_hours, line.money, line.kilograms_co2)
    held = unknown if line.gpu_hours is None else hours.format(line.gpu_hours)
    return [*counts, held, *(unknown if figure is None else other.format(figure) for figure in used)]


def picture(report: Report) -> Figure:
    """The report's kilowatt-hours as bars; of many lines the thirstiest, and the rest as one."""
    shown = [(line.name, line.kilowatt_hours) for line in report.lines]
    if len(shown) > LONGEST_PICTURE:
        rest = sum(value for _, value in shown[LONGEST_PICTURE:])
        shown = [*shown[:LONGEST_PICTURE], (f"{len(report.lines) - LONGEST_PICTURE} more", rest)]
    total = report.total
    title = f"{total.kilowatt_hours:,.2f} kWh by {report.by.value}, as of {report.time:%Y-%m-%d %H:%M} UTC"
    title += "" if total.money is None else f"; cost {total.money:,.2f}"
    title += "" if total.kilograms_co2 is None else f"; {total.kilograms_co2:,.2f} kg of CO2"
    figure, axes = bars([name for name, _ in shown], title, report.caveats[:1])
    # By their places: two names that are cut short may look the same.
    drawn = axes.barh(range(len(shown)), [value for _, value in shown], color="#3b6ea5")
    axes.bar_label(drawn, fmt="{:,.2f}", padding=3, fontsize=8)
    axes.set_xlabel("kWh")
    return figure


def draw(report: Report, path: Path) -> None:
    """Write the report's picture to a file."""
    picture(report).savefig(path)
