"""One HTML page of a comparison: pictures, tables and settings in a single file, which asks for nothing from elsewhere.

What it says is worked out here; how it looks is `report.html.jinja`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from flyball_simulator.experiments.at_equal_energy import Comparison
from flyball_simulator.experiments.comparison import Estimate, PolicyCurve, SettingSummary
from flyball_simulator.experiments.matrix import Outcome
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from flyball_studies.simulation.plots import (
    MEAN_JCT,
    P99_JCT,
    energy_figure,
    inline_svg,
    inlined,
    look_of,
    pareto_figure,
)


class _Policy(NamedTuple):
    """A policy's label and the look that it has in every picture."""

    label: str
    colour: str
    fill: str


class _Cell(NamedTuple):
    """A table's cell: its text, and what stands below it in small print."""

    text: str
    small: str = ""


class _Ratio(NamedTuple):
    """A cell of a matrix: its text, small print, background (a CSS colour) and what shows when it is pointed at."""

    text: str
    small: str = ""
    colour: str = ""
    title: str | None = None


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("flyball_studies.simulation", "."),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    return environment.get_template("report.html.jinja")


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
    policies = {label: _policy(label, labels) for label in labels}
    with inlined():
        pictures = {
            "mean": inline_svg(
                pareto_figure(curves, MEAN_JCT), "mean", "Mean job completion time against total energy"
            ),
            "p99": inline_svg(
                pareto_figure(curves, P99_JCT), "p99", "99th percentile completion time against total energy"
            ),
            "energy": inline_svg(energy_figure(curves), "energy", "Where the joules of each policy went"),
        }
    return _template().render(
        title=title,
        facts=facts,
        command=command,
        tiles=_tiles(curves, entries, outcomes),
        failed=[outcome for outcome in outcomes if outcome.result is None],
        pictures={name: Markup(svg) for name, svg in pictures.items()},  # noqa: S704 - drawn here, of escaped labels
        policies=list(policies.values()),
        ratios={
            "median": _matrix(policies, entries, "median"),
            "best": _matrix(policies, entries, "best"),
            "p99": _matrix(policies, entries, "median", p99=True),
        },
        settings=[(policies[curve.label], _setting(one)) for curve in curves for one in curve.settings],
        runs=[_run(outcome) for outcome in outcomes if outcome.result is not None],
    )


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


def _policy(label: str, labels: Sequence[str]) -> _Policy:
    look = look_of(label, labels)
    return _Policy(label, look.colour, "transparent" if look.hollow else look.colour)


def _tiles(
    curves: Sequence[PolicyCurve], entries: Sequence[Comparison], outcomes: Sequence[Outcome]
) -> list[tuple[str, str]]:
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
    return [*shown, (f"{ended} of {len(outcomes)}", "runs came to an end")]


def _matrix(
    policies: Mapping[str, _Policy], entries: Sequence[Comparison], which: str, p99: bool = False
) -> list[tuple[_Policy, list[_Ratio]]]:
    """A row for each policy: how it compares with every one, at the `which` ("median" or "best") energy."""
    found: Mapping[tuple[str, str], Comparison] = {
        (entry.policy, entry.against): entry
        for entry in entries
        if getattr(entry, which) or entry.mean_jct_ratio is None
    }
    return [
        (
            policy,
            [_Ratio("") if other == label else _ratio(found.get((label, other)), p99) for other in policies],
        )
        for label, policy in policies.items()
    ]


def _ratio(entry: Comparison | None, p99: bool) -> _Ratio:
    if entry is None:
        return _Ratio("–")
    ratio = entry.p99_jct_ratio if p99 else entry.mean_jct_ratio
    if ratio is None:
        less = None if p99 else entry.mean_jct_ratio_at_less_energy
        return _Ratio("– ", f"({less:.2f})", title=entry.note or "") if less else _Ratio("–", title=entry.note or "")
    low, high = (entry.p99_low, entry.p99_high) if p99 else (entry.low, entry.high)
    strength = min(0.5, 0.5 * abs(math.log(ratio)) / math.log(2))
    return _Ratio(
        f"{ratio:.2f}",
        "" if low is None or high is None else f"{low:.2f}–{high:.2f}",
        f"rgba(var(--{'good' if ratio > 1 else 'bad'}),{strength:.2f})",
        f"at {energy(entry.energy_joules or 0.0)}" + (f"; {entry.note}" if entry.note else ""),
    )


def _setting(one: SettingSummary) -> list[_Cell]:
    sweep = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in one.sweep) or "–"
    return [
        _Cell(sweep, "" if one.on_envelope else "beaten"),
        _with_half(one.energy_joules, energy),
        _with_half(one.mean_jct_seconds, duration),
        _Cell(duration(one.p50_jct_seconds.mean)),
        _with_half(one.p99_jct_seconds, duration),
        _Cell(f"{one.idle_joules / one.energy_joules.mean:.0%}"),
        _Cell(f"{one.max_watts / 1000:,.1f} kW"),
        _Cell(duration(one.cap_violation_seconds) if one.cap_violation_seconds else "–"),
        _Cell(f"{one.restarts:,.0f}"),
    ]


def _with_half(estimate: Estimate, shown: Callable[[float], str]) -> _Cell:
    return _Cell(shown(estimate.mean), f"± {estimate.half / estimate.mean:.1%}" if estimate.half else "")


def _run(outcome: Outcome) -> list[str]:
    assert outcome.result is not None  # noqa: S101 - asked by the caller
    result = outcome.result
    return [
        outcome.cell.curve,
        ", ".join(f"{name} {value:g}" for name, value in outcome.cell.sweep) or "–",
        str(outcome.cell.settings.seed),
        energy(result["energy_joules"]["total"]),
        duration(result["mean_jct_seconds"]),
        duration(result["p50_jct_seconds"]),
        duration(result["p99_jct_seconds"]),
        duration(result["makespan_seconds"]),
        f"{result['restarts']:,}",
        duration(result["wall_seconds"]),
    ]
