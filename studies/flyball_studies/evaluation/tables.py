"""The figures of the evaluation as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from flyball_simulator.experiments.at_equal_energy import Comparison, Envelope, Point, shared_range
from flyball_simulator.experiments.comparison import comparisons
from flyball_simulator.experiments.matrix import Outcome

from flyball_studies.evaluation.lower_bound import Bounds
from flyball_studies.evaluation.small import TREND_POLICIES, Trend, TwoGpus
from flyball_studies.evaluation.studies import STUDIED

Key = tuple[str, float]  # trace, load


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(heading), " | ".join("---" for _ in heading)]
    lines += [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def at_equal_energy(
    studies: Mapping[Key, Sequence[Outcome]],
    policies: Sequence[str],
    against: str,
    bounds: Mapping[tuple[str, float, int], Bounds],
    *,
    days_ahead: bool = False,
) -> str:
    """One row a trace, load and policy: the median over the shared energies, the range, and energy at equal JCT.

    `bounds`: what no policy can pass, by trace, load and seed. Their columns are the ratios that they leave at the median's
    energy, without and with counting GPUs, and the share of the latter's gain that the policy has. `days_ahead`: a
    column for how many seeds, which are days then, the policy is ahead on.
    """
    rows = []
    for (trace, load), outcomes, policy in (
        (key, outcomes, policy) for key, outcomes in studies.items() for policy in policies
    ):
        entries = [entry for entry in comparisons(outcomes) if (entry.policy, entry.against) == (policy, against)]
        shared = [entry for entry in entries if entry.mean_jct_ratio is not None]
        cells = [f"{trace}, load {load}" + (f": {policy}" if len(policies) > 1 else "")]
        if not shared:
            cells += ["no energy shared", "", "", "", "", "", "", *([""] if days_ahead else [])]
        else:
            median = next(entry for entry in shared if entry.median)
            ratios = [entry.mean_jct_ratio or 0.0 for entry in shared]
            p99 = [entry.p99_jct_ratio or 0.0 for entry in shared]
            cells += [_ratio(median), *(["{} of {}".format(*ahead(outcomes, policy, against))] if days_ahead else [])]
            cells.append(f"{min(ratios):.2f} to {max(ratios):.2f}")
            cells += [f"{min(p99):.2f} to {max(p99):.2f}", _saved(outcomes, policy, against)]
            curves = _points(outcomes, policy), _points(outcomes, against)
            of_seeds = {seed: bounds[trace, load, seed] for seed in curves[0]}
            alone, together = highest_ratios(*curves, of_seeds, median.fraction or 0.0)
            cells += [f"{alone:.2f}", f"{together:.2f}", _share(median.mean_jct_ratio or 1.0, together)]
        rows.append(cells)
    heading = [
        "",
        "median (95 %)",
        *(["days ahead"] if days_ahead else []),
        "over the range",
        "p99 over the range",
        "energy saved at its thriftiest JCT",
        "bound, GPUs without number",
        "bound",
        "share of the possible",
    ]
    return table(heading, rows)


def ahead(outcomes: Sequence[Outcome], policy: str, against: str) -> tuple[int, int]:
    """With how many seeds the policy's median ratio is above 1, and how many share an energy with the other."""
    medians: list[float] = []
    for seed in sorted({outcome.cell.settings.seed for outcome in outcomes}):
        pair = [
            outcome
            for outcome in outcomes
            if outcome.cell.settings.seed == seed and outcome.cell.curve in (policy, against)
        ]
        entries = comparisons(pair)
        medians += [
            entry.mean_jct_ratio
            for entry in entries
            if (entry.policy, entry.against, entry.median) == (policy, against, True) and entry.mean_jct_ratio
        ]
    return sum(ratio > 1.0 for ratio in medians), len(medians)


def _share(ratio: float, possible: float) -> str:
    """How much of the gain that is possible at all a policy has."""
    return f"{(ratio - 1.0) / (possible - 1.0):.2f}" if possible > 1.0 else ""


def _ratio(entry: Comparison) -> str:
    interval = "" if entry.low is None else f" ({entry.low:.2f} to {entry.high:.2f})"
    return f"**{entry.mean_jct_ratio:.2f}**{interval}"


def _points(outcomes: Iterable[Outcome], label: str) -> dict[int, list[Point]]:
    found: dict[int, list[Point]] = {}
    for outcome in outcomes:
        if outcome.result is not None and outcome.cell.curve == label:
            result = outcome.result
            point = Point(result["energy_joules"]["total"], result["mean_jct_seconds"], result["p99_jct_seconds"])
            found.setdefault(outcome.cell.settings.seed, []).append(point)
    return found


def saved_energy(ours: Mapping[int, Sequence[Point]], others: Mapping[int, Sequence[Point]]) -> float | None:
    """The share of energy that ours needs less for the mean JCT that the other's thriftiest setting gives, over seeds.

    None where ours is never as fast. Both are by seed.
    """
    saved = []
    for seed in ours.keys() & others.keys():
        theirs = Envelope(others[seed]).points[0]
        rising = Envelope(ours[seed]).points[::-1]  # by mean JCT
        seconds = [point.mean_jct_seconds for point in rising]
        if seconds[0] <= theirs.mean_jct_seconds:
            joules = np.interp(theirs.mean_jct_seconds, seconds, [point.energy_joules for point in rising])
            saved.append(1.0 - float(joules) / theirs.energy_joules)
    return float(np.mean(saved)) if saved else None


def highest_ratios(
    ours: Mapping[int, Sequence[Point]],
    others: Mapping[int, Sequence[Point]],
    bounds: Mapping[int, Bounds],
    fraction: float,
) -> tuple[float, float]:
    """The best ratios that any policy could have to the other's mean JCT, at a fraction of the energies that ours shares.

    Without and with counting GPUs. All are by seed; geometric means over the seeds that share a range. Raises ValueError
    where none does.
    """
    logs = []
    for seed in ours.keys() & others.keys():
        other = Envelope(others[seed])
        shared = shared_range(Envelope(ours[seed]), other)
        if shared is not None:
            joules = np.array([shared[0] + fraction * (shared[1] - shared[0])])
            logs.append([float(np.log(other.at(joules)[0] / least)[0]) for least in bounds[seed].at(joules)])
    if not logs:
        raise ValueError("no seed has energies that both curves cover")
    alone, together = np.exp(np.mean(logs, axis=0)).tolist()
    return alone, together


def _saved(outcomes: Sequence[Outcome], policy: str, against: str) -> str:
    saved = saved_energy(_points(outcomes, policy), _points(outcomes, against))
    return "never as fast" if saved is None else f"{saved:.0%}"


def powerflow_claims(studies: Mapping[Key, Sequence[Outcome]]) -> str:
    """The paper's best ratios at equal energy, and ours by trace and load."""
    claims = {"gandiva": 3.39, "tiresias": 1.73, "gandiva+zeus": 2.90, "tiresias+zeus": 1.62, "afs": 1.57}
    found = {key: comparisons(outcomes) for key, outcomes in studies.items()}
    rows = []
    for against, paper in claims.items():
        cells = [against, f"{paper:.2f}"]
        rows.append([*cells, *(best_ratio(entries, "powerflow-paper", against) for entries in found.values())])
    return table(["PowerFlow against", "paper", *(f"{trace}, load {load}" for trace, load in found)], rows)


def best_ratio(entries: Sequence[Comparison], policy: str, against: str) -> str:
    """The other's mean JCT over the policy's where that is most, at equal energy; else at less energy than the other's."""
    pair = [entry for entry in entries if (entry.policy, entry.against) == (policy, against)]
    best = next((entry for entry in pair if entry.best and entry.mean_jct_ratio is not None), None)
    if best is not None:
        return f"{best.mean_jct_ratio:.2f}"
    less = next((entry.mean_jct_ratio_at_less_energy for entry in pair), None)
    return "none shared" if less is None else f"{less:.2f} at less energy"


def u_shape(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for outcome in outcomes:
        if outcome.result is not None:
            energy = outcome.result["energy_joules"]
            rows.append(
                [
                    f"{outcome.cell.sweep[0][1]:.0f}",
                    f"{outcome.result['mean_jct_seconds']:,.0f}",
                    f"{energy['gpu'] / 1e9:.2f}",
                    f"{energy['total'] / 1e9:.2f}",
                ]
            )
    return table(["clock, MHz", "mean JCT, s", "busy GPUs, GJ", "with idle GPUs, GJ"], rows)


def robustness(outcomes: Sequence[Outcome]) -> str:
    """Mean JCT and energy of each variant, relative to the same policy as it is."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for outcome in outcomes:
        if outcome.result is not None:
            policy, variant = outcome.cell.curve.split("|")
            pair = (outcome.result["mean_jct_seconds"], outcome.result["energy_joules"]["total"])
            found.setdefault((variant, policy), []).append(pair)
    variants = list(dict.fromkeys(variant for variant, _ in found))
    rows = []
    for variant in variants:
        cells = [variant]
        for policy in STUDIED:
            seconds, joules = np.mean(found[variant, policy], axis=0)
            base_seconds, base_joules = np.mean(found["as it is", policy], axis=0)
            if variant == "as it is":
                cells.append(f"{seconds:,.0f} s, {joules / 1e9:.2f} GJ")
            else:
                cells.append(f"{seconds / base_seconds - 1:+.1%}, {joules / base_joules - 1:+.1%}")
        rows.append(cells)
    return table(["", *STUDIED], rows)


def caps(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for outcome in outcomes:
        policy, schedule = outcome.cell.curve.split("|")
        if outcome.result is None:
            rows.append([policy, schedule, f"failed: {outcome.error}", "", "", "", "", ""])
            continue
        result = outcome.result
        rows.append(
            [
                policy,
                schedule,
                f"{result['mean_jct_seconds']:,.0f}",
                f"{result['p99_jct_seconds']:,.0f}",
                f"{result['energy_joules']['total'] / 1e9:.2f}",
                f"{(result['carbon_grams'] or 0.0) / 1e6:.3f}",
                f"{result['max_watts'] / 1e3:.1f}",
                f"{result['cap_violation_seconds']:,.0f}",
            ]
        )
    heading = ["policy", "cap", "mean JCT, s", "p99 JCT, s", "energy, GJ", "CO2, t", "most, kW", "over the cap, s"]
    return table(heading, rows)


def two_gpus(found: Sequence[TwoGpus]) -> str:
    base = found[0]
    rows = [["paper: Tiresias", "180.4", "85,546", "", ""], ["paper: PowerFlow", "142.5", "46,195", "-21 %", "-46 %"]]
    rows += [
        [
            each.policy,
            f"{each.mean_jct_seconds:.1f}",
            f"{each.joules:,.0f}",
            "" if each is base else f"{each.mean_jct_seconds / base.mean_jct_seconds - 1:+.0%}",
            "" if each is base else f"{each.joules / base.joules - 1:+.0%}",
        ]
        for each in found
    ]
    return table(["", "mean JCT, s", "energy, J", "JCT", "energy"], rows)


def trends(found: Sequence[Trend]) -> str:
    rows = [
        [
            trend.varied,
            trend.value,
            *(f"{trend.mean_jct_seconds[policy]:,.0f}" for policy in TREND_POLICIES),
            f"{trend.mean_jct_seconds['tiresias'] / trend.mean_jct_seconds['powerflow-paper']:.2f}",
        ]
        for trend in found
    ]
    return table(["varied", "", *TREND_POLICIES, "tiresias / powerflow-paper"], rows)


def clusters(gpus: Mapping[tuple[str, int, float], int], jobs: Mapping[str, int]) -> str:
    loads = sorted({load for _, _, load in gpus})
    rows = []
    for trace, count in jobs.items():
        cells = [trace, f"{count:,}"]
        for load in loads:
            values = sorted({size for (name, _, of), size in gpus.items() if (name, of) == (trace, load)})
            cells.append(f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}")
        rows.append(cells)
    return table(["trace", "jobs", *(f"GPUs at load {load}" for load in loads)], rows)
