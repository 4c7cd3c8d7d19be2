"""One HTML page of a comparison: pictures, tables and settings in a single file, which asks for nothing from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from flyball_simulator.at_equal_energy import Comparison
from flyball_simulator.comparison import Estimate, PolicyCurve, SettingSummary
from flyball_simulator.matrix import Outcome
from flyball_simulator.plots import MEAN_JCT, P99_JCT, energy_figure, inline_svg, inlined, look_of, pareto_figure

STYLE = """
:root { --font: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --page: #ffffff; --ink: #1b1f24; --soft: #59636e; --line: #d9dee4; --card: #f6f8fa; --good: 0,158,115; --bad: 213,94,0;
  color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0f1317; --ink: #e4e8ec; --soft: #98a3ae; --line: #2b333b; --card: #171c22; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.55 var(--font); }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 27px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 19px; margin: 44px 0 8px; }
p { margin: 8px 0; max-width: 78ch; } .soft { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(215px, 1fr)); gap: 12px; margin: 24px 0 8px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.tile b { display: block; font-size: 21px; line-height: 1.3; } .tile span { color: var(--soft); font-size: 13px; }
figure { margin: 12px 0; padding: 10px; border: 1px solid var(--line); border-radius: 10px; background: var(--card); }
figure svg { display: block; width: 100%; height: auto; color: var(--ink); }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 10px; margin: 12px 0; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
thead th { border-top: 0; background: var(--card); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
thead th:first-child { background: var(--card); }
td.left { text-align: left; white-space: normal; } td small { display: block; color: var(--soft); font-size: 11px; }
.matrix td, .matrix thead th { text-align: center; } .matrix thead th { font-size: 12px; white-space: normal; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 7px; border: 2px solid; }
details { margin: 12px 0; } summary { cursor: pointer; font-weight: 600; padding: 4px 0; }
code { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.warning { border: 1px solid rgb(var(--bad)); border-radius: 10px; padding: 10px 16px; margin: 16px 0; }
footer { margin-top: 48px; padding-top: 16px; border-top: 1px solid var(--line); color: var(--soft); font-size: 13px; }
"""

METHOD = """Each point is one setting of a policy's own knob (a cluster-wide clock, PowerFlow's power limit, or the price of
a joule), averaged over the seeds; bars are 95 % t-intervals. Lines join the settings that no other setting of the policy
beats in both energy and mean JCT; faint points are beaten."""

AT_EQUAL_ENERGY = """How many times longer the column's jobs take than the row's when both clusters use the same total
energy: above 1, the row is better. Both are read off the lines between their own settings, seed by seed, only where both
have been run; the p99 JCT is that of the settings which give the mean. Small print: 95 % t-interval over seeds (geometric
mean). A dash: the two share no energy range; with a number behind it, the row's fastest setting needs less energy than any
of the column's, and is so many times faster than its thriftiest."""


def report_html(
    title: str,
    facts: Sequence[tuple[str, str]],
    outcomes: Sequence[Outcome],
    curves: Sequence[PolicyCurve],
    entries: Sequence[Comparison],
    command: str,
) -> str:
    """The page; `facts` are the settings in words, `command` is what made it. Raises ValueError where no run has ended."""
    if not curves:
        raise ValueError("no run has ended: there is nothing to report")
    labels = [curve.label for curve in curves]
    with inlined():
        mean = inline_svg(pareto_figure(curves, MEAN_JCT), "mean", "Mean job completion time against total energy")
        p99 = inline_svg(pareto_figure(curves, P99_JCT), "p99", "99th percentile completion time against total energy")
        where = inline_svg(energy_figure(curves), "energy", "Where the joules of each policy went")
    failed = [outcome for outcome in outcomes if outcome.result is None]
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(" · ".join(value for _, value in facts[:5]))}</p>',
        _tiles(curves, entries, outcomes),
        _failures(failed),
        "<h2>Completion time against energy</h2>",
        f"<p>{escape(METHOD)}</p>",
        f"<figure>{mean}</figure><figure>{p99}</figure>",
    ]
    if len(curves) > 1:
        body += [
            "<h2>At equal energy</h2>",
            f"<p>{escape(AT_EQUAL_ENERGY)}</p>",
            "<p><b>Mean JCT, at the median of the shared range's ratios</b></p>",
            _matrix(labels, entries, "median"),
            "<details><summary>At the energy that is best for the row</summary>",
            _matrix(labels, entries, "best"),
            "</details><details><summary>p99 JCT, at the energies of the first table</summary>",
            _matrix(labels, entries, "median", p99=True),
            "</details>",
        ]
    body += [
        "<h2>Where the joules went</h2>",
        f"<figure>{where}</figure>",
        "<h2>Every setting</h2>",
        "<p>Means over seeds with half of the 95 % interval; watts and violations are the worst of any seed.</p>",
        _settings_table(curves, labels),
        "<details><summary>Every run</summary>",
        _runs_table(outcomes),
        "</details>",
        "<h2>What was run</h2>",
        _table(("setting", "value"), [(escape(name), escape(value)) for name, value in facts], left=True),
        f"<p><code>{escape(command)}</code></p>",
        "<footer>Made by Flyball's simulator. JCT is from submission to completion; energy is all of the cluster's, idle "
        "GPUs and nodes included, until the last job ends.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body><main>\n" + "\n".join(body)
    ) + "\n</main></body>\n</html>\n"


def duration(seconds: float) -> str:
    """As people say it: 45 s, 12.3 min, 4.56 h, 1.2 d."""
    for size, unit in ((86_400.0 * 2, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / (86_400.0 if unit == 'd' else size):.3g} {unit}"
    return f"{seconds:.3g} s"


def energy(joules: float) -> str:
    for size, unit in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ")):
        if joules >= size:
            return f"{joules / size:.4g} {unit}"
    return f"{joules:.4g} J"


def _tiles(curves: Sequence[PolicyCurve], entries: Sequence[Comparison], outcomes: Sequence[Outcome]) -> str:
    first = curves[0]
    thriftiest = min(curves, key=lambda curve: curve.thriftiest.energy_joules.mean)
    shown = [
        (first.label, f"shortest mean JCT: {duration(first.fastest.mean_jct_seconds.mean)}"),
        (thriftiest.label, f"least energy: {energy(thriftiest.thriftiest.energy_joules.mean)}"),
    ]
    medians = [entry for entry in entries if entry.median and entry.policy == first.label and entry.mean_jct_ratio]
    if medians:
        nearest = min(medians, key=lambda entry: entry.mean_jct_ratio or math.inf)
        shown.append(
            (f"{nearest.mean_jct_ratio:.2f}×", f"{first.label} against {nearest.against}, the nearest, at equal energy")
        )
    ended = sum(outcome.result is not None for outcome in outcomes)
    shown.append((f"{ended} of {len(outcomes)}", "runs came to an end"))
    tiles = (f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in shown)
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _failures(failed: Sequence[Outcome]) -> str:
    if not failed:
        return ""
    lines = "".join(f"<li>{escape(str(one.cell))}: {escape(one.error or '')}</li>" for one in failed)
    return f'<div class="warning"><b>{len(failed)} runs failed</b>, and are in no figure below:<ul>{lines}</ul></div>'


def _matrix(labels: Sequence[str], entries: Sequence[Comparison], which: str, p99: bool = False) -> str:
    found: Mapping[tuple[str, str], Comparison] = {
        (entry.policy, entry.against): entry
        for entry in entries
        if getattr(entry, which) or entry.mean_jct_ratio is None
    }
    rows = []
    for policy in labels:
        cells = [_name(policy, labels)]
        cells += ["" if against == policy else _ratio_cell(found.get((policy, against)), p99) for against in labels]
        rows.append(cells)
    heading = "".join(f"<th>{escape(label)}</th>" for label in labels)
    body = "".join(
        "<tr>" + f"<td>{cells[0]}</td>" + "".join(cell or "<td></td>" for cell in cells[1:]) + "</tr>" for cells in rows
    )
    return (
        f'<div class="wide"><table class="matrix"><thead><tr><th>faster ↓ than →</th>{heading}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _ratio_cell(entry: Comparison | None, p99: bool) -> str:
    if entry is None:
        return "<td>–</td>"
    ratio = entry.p99_jct_ratio if p99 else entry.mean_jct_ratio
    if ratio is None:
        less = entry.mean_jct_ratio_at_less_energy
        shown = "–" if less is None or p99 else f"– <small>({less:.2f})</small>"
        return f'<td title="{escape(entry.note or "")}">{shown}</td>'
    low, high = (entry.p99_low, entry.p99_high) if p99 else (entry.low, entry.high)
    interval = "" if low is None or high is None else f"<small>{low:.2f}–{high:.2f}</small>"
    strength = min(0.5, 0.5 * abs(math.log(ratio)) / math.log(2))
    colour = f"rgba(var(--{'good' if ratio > 1 else 'bad'}),{strength:.2f})"
    where = f"at {energy(entry.energy_joules or 0.0)}" + (f"; {entry.note}" if entry.note else "")
    return f'<td style="background:{colour}" title="{escape(where)}">{ratio:.2f}{interval}</td>'


def _settings_table(curves: Sequence[PolicyCurve], labels: Sequence[str]) -> str:
    heading = (
        "policy",
        "setting",
        "energy",
        "mean JCT",
        "p50",
        "p99",
        "idle",
        "most watts",
        "over the cap",
        "restarts",
    )
    rows = [
        (
            _name(curve.label, labels),
            escape(_sweep(one)) + ("" if one.on_envelope else " <small>beaten</small>"),
            _with_half(one.energy_joules, energy),
            _with_half(one.mean_jct_seconds, duration),
            duration(one.p50_jct_seconds.mean),
            _with_half(one.p99_jct_seconds, duration),
            f"{one.idle_joules / one.energy_joules.mean:.0%}",
            f"{one.max_watts / 1000:,.1f} kW",
            duration(one.cap_violation_seconds) if one.cap_violation_seconds else "–",
            f"{one.restarts:,.0f}",
        )
        for curve in curves
        for one in curve.settings
    ]
    return _table(heading, rows)


def _runs_table(outcomes: Sequence[Outcome]) -> str:
    heading = ("policy", "setting", "seed", "energy", "mean JCT", "p50", "p99", "makespan", "restarts", "took")
    rows = []
    for outcome in outcomes:
        result: dict[str, Any] | None = outcome.result
        if result is not None:
            rows.append(
                (
                    escape(outcome.cell.curve),
                    escape(", ".join(f"{name} {value:g}" for name, value in outcome.cell.sweep) or "–"),
                    str(outcome.cell.settings.seed),
                    energy(result["energy_joules"]["total"]),
                    duration(result["mean_jct_seconds"]),
                    duration(result["p50_jct_seconds"]),
                    duration(result["p99_jct_seconds"]),
                    duration(result["makespan_seconds"]),
                    f"{result['restarts']:,}",
                    duration(result["wall_seconds"]),
                )
            )
    return _table(heading, rows)


def _sweep(one: SettingSummary) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in one.sweep) or "–"


def _with_half(estimate: Estimate, say: Any) -> str:
    spread = f" <small>± {estimate.half / estimate.mean:.1%}</small>" if estimate.half else ""
    return f"{say(estimate.mean)}{spread}"


def _name(label: str, labels: Sequence[str]) -> str:
    look = look_of(label, labels)
    fill = "transparent" if look.hollow else look.colour
    return f'<span class="dot" style="border-color:{look.colour};background:{fill}"></span>{escape(label)}'


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]], left: bool = False) -> str:
    style = ' class="left"' if left else ""
    head = "".join(f"<th{style}>{escape(name)}</th>" for name in heading)
    body = "".join("<tr>" + "".join(f"<td{style}>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
