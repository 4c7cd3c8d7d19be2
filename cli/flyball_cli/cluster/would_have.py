"""How `flyball report --would-have-saved` is printed and drawn."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from flyball_cli.terminal.pictures import bars

if TYPE_CHECKING:
    from flyball_views.would_have import Estimate, WouldHaveLine, WouldHaveReport
    from matplotlib.figure import Figure

CSV_HEADINGS = (
    "jobs", "kWh", "unknown kWh",
    "saved kWh", "saved kWh least", "saved kWh most",
    "saved %", "saved % least", "saved % most",
    "longer %", "longer % least", "longer % most",
)  # fmt: skip
HEADINGS = ("jobs", "kWh", "would have saved", "", "longer", "unknown kWh")
POD_HEADINGS = ("kWh", "held idle kWh", "would have saved else")
LONGEST_PICTURE = 31


def printed_would_have(report: WouldHaveReport, output: str) -> str:
    """A report as a table with how to read it below, as CSV, or as JSON."""
    from flyball_cli.terminal.printing import columns_text

    if output == "json":
        import msgspec

        return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    if output == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([report.by.value, *CSV_HEADINGS])
        writer.writerows([line.name, *_fields(line)] for line in report.lines)
        return text.getvalue().rstrip("\n")
    rows = [[report.by.value.upper(), *(heading.upper() for heading in HEADINGS)]]
    rows += [[line.name, *_cells(line)] for line in (*report.lines, report.total)]
    table = columns_text(rows, [False, *[True] * len(HEADINGS)])
    if report.pods:
        pods = [["PODS OUTSIDE FLYBALL", *(heading.upper() for heading in POD_HEADINGS)]]
        pods += [
            [pod.name, f"{pod.kilowatt_hours:.2f}", f"{pod.held_idle_kilowatt_hours:.2f}", "unknown"]
            for pod in report.pods
        ]
        table += "\n\n" + columns_text(pods, [False, True, True, True])
    notes = "\n".join(f"- {caveat}" for caveat in report.caveats)
    return f"{table}\n\n{notes}"


def _fields(line: WouldHaveLine) -> list[str]:
    def three(estimate: Estimate | None, scale: float, digits: int) -> list[str]:
        if estimate is None:
            return ["", "", ""]
        return [f"{scale * value:.{digits}f}" for value in (estimate.expected, estimate.least, estimate.most)]

    return [
        str(line.jobs),
        f"{line.kilowatt_hours:.3f}",
        f"{line.unknown_kilowatt_hours:.3f}",
        *three(line.saved_kilowatt_hours, 1.0, 3),
        *three(line.saved_share, 100.0, 2),
        *three(line.longer_share, 100.0, 2),
    ]


def _cells(line: WouldHaveLine) -> list[str]:
    def percent(estimate: Estimate | None) -> str:
        if estimate is None:
            return "unknown"
        values = (estimate.expected, estimate.least, estimate.most)
        return "{:.1f} % ({:.1f} to {:.1f})".format(*(100 * value for value in values))

    saved = line.saved_kilowatt_hours
    return [
        str(line.jobs),
        f"{line.kilowatt_hours:.2f}",
        "unknown" if saved is None else f"{saved.expected:.2f} kWh",
        "" if saved is None else percent(line.saved_share),
        percent(line.longer_share),
        f"{line.unknown_kilowatt_hours:.2f}",
    ]


def picture_of_savings(report: WouldHaveReport) -> Figure:
    """What would have been saved as bars with their bands; of many lines those with the most."""
    known = [(line.name, line.saved_kilowatt_hours) for line in report.lines if line.saved_kilowatt_hours is not None]
    shown = known[:LONGEST_PICTURE]
    left_out = f", {len(known) - len(shown)} more not drawn" if len(known) > len(shown) else ""
    total = _cells(report.total)
    title = f"{total[2]}, {total[3]}, of {total[1]} kWh by {report.by.value}{left_out}"
    figure, axes = bars([name for name, _ in shown], title, report.caveats[:1])
    expected = [saved.expected for _, saved in shown]
    below = [max(0.0, saved.expected - saved.least) for _, saved in shown]
    above = [max(0.0, saved.most - saved.expected) for _, saved in shown]
    axes.barh(range(len(shown)), expected, color="#3b6ea5", xerr=[below, above], ecolor="#222222", capsize=3)
    axes.set_xlabel("kWh that governing would have saved, and its band")
    return figure


def draw_would_have(report: WouldHaveReport, path: Path) -> None:
    """Write the picture of what would have been saved to a file."""
    picture_of_savings(report).savefig(path)
