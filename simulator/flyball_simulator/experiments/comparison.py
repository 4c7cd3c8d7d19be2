"""What a matrix of runs comes to: one document, one table, and each policy's curve over the seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from flyball_simulator.experiments.at_equal_energy import CONFIDENCE, Comparison, Envelope, Point, compare_all
from flyball_simulator.experiments.matrix import Outcome


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean over seeds, and half of the 95 % t-interval around it (0 with one seed)."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        array = np.asarray(values, dtype=float)
        if len(array) < 2:
            return cls(float(array.mean()), 0.0)
        t = stats.t.ppf((1 + CONFIDENCE) / 2, len(array) - 1)
        return cls(float(array.mean()), float(t * array.std(ddof=1) / math.sqrt(len(array))))


@dataclass(frozen=True, slots=True)
class SettingSummary:
    """One setting of one policy, over its seeds. `on_envelope`: no other setting of the policy beats it."""

    sweep: tuple[tuple[str, float], ...]
    seeds: int
    energy_joules: Estimate
    mean_jct_seconds: Estimate
    p50_jct_seconds: Estimate
    p99_jct_seconds: Estimate
    gpu_joules: float
    idle_joules: float
    node_joules: float
    max_watts: float
    cap_violation_seconds: float
    restarts: float
    on_envelope: bool


@dataclass(frozen=True, slots=True)
class PolicyCurve:
    """A policy's settings, by rising energy."""

    label: str
    settings: tuple[SettingSummary, ...]

    @property
    def envelope(self) -> tuple[SettingSummary, ...]:
        return tuple(one for one in self.settings if one.on_envelope)

    @property
    def fastest(self) -> SettingSummary:
        return self.envelope[-1]

    @property
    def thriftiest(self) -> SettingSummary:
        return self.envelope[0]


def comparisons(outcomes: Sequence[Outcome]) -> list[Comparison]:
    """Every curve against every other, from the runs that came to an end."""
    points: dict[str, dict[int, list[Point]]] = {}
    for outcome in outcomes:
        if outcome.result is not None:
            seeds = points.setdefault(outcome.cell.curve, {})
            seeds.setdefault(outcome.cell.settings.seed, []).append(_point(outcome.result))
    return compare_all(points)


def comparison_document(outcomes: Sequence[Outcome], entries: Sequence[Comparison]) -> dict[str, Any]:
    """`comparison.json`."""
    return {
        "runs": [
            {
                **outcome.result,
                "sweep": dict(outcome.cell.sweep),
                "seed": outcome.cell.settings.seed,
                "label": outcome.cell.curve,
            }
            for outcome in outcomes
            if outcome.result is not None
        ],
        "at_equal_energy": [entry.to_json() for entry in entries],
        "failed": [
            {
                "policy": outcome.cell.settings.policy,
                "sweep": dict(outcome.cell.sweep),
                "seed": outcome.cell.settings.seed,
                "error": outcome.error,
            }
            for outcome in outcomes
            if outcome.result is None
        ],
    }


def run_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """`runs.csv`: one row a run, flat."""
    swept = list(dict.fromkeys(name for outcome in outcomes for name, _ in outcome.cell.sweep))
    rows = []
    for outcome in outcomes:
        if outcome.result is None:
            continue
        values = dict(outcome.cell.sweep)
        row: dict[str, Any] = {"label": outcome.cell.curve, "seed": outcome.cell.settings.seed}
        row |= {name: values.get(name) for name in swept}
        for name, value in outcome.result.items():
            if name == "energy_joules":
                row |= {f"{where}_joules": joules for where, joules in value.items()}
            elif name not in ("settings", "seed"):
                row[name] = value
        rows.append(row)
    return rows


def curves(outcomes: Sequence[Outcome]) -> list[PolicyCurve]:
    """Each policy's settings over the seeds, best policy first: the one of the shortest mean JCT."""
    found: dict[str, dict[tuple[tuple[str, float], ...], list[dict[str, Any]]]] = {}
    for outcome in outcomes:
        if outcome.result is not None:
            settings = found.setdefault(outcome.cell.curve, {})
            settings.setdefault(outcome.cell.sweep, []).append(outcome.result)
    made = [_curve(label, settings) for label, settings in found.items()]
    return sorted(made, key=lambda curve: curve.fastest.mean_jct_seconds.mean)


def _point(result: dict[str, Any]) -> Point:
    return Point(result["energy_joules"]["total"], result["mean_jct_seconds"], result["p99_jct_seconds"])


def _curve(label: str, settings: dict[tuple[tuple[str, float], ...], list[dict[str, Any]]]) -> PolicyCurve:
    means = {
        sweep: Point(
            float(np.mean([r["energy_joules"]["total"] for r in results])),
            float(np.mean([r["mean_jct_seconds"] for r in results])),
            float(np.mean([r["p99_jct_seconds"] for r in results])),
        )
        for sweep, results in settings.items()
    }
    kept = set(Envelope(means.values()).points)
    summaries = []
    for sweep, results in settings.items():
        joules = [result["energy_joules"] for result in results]
        summaries.append(
            SettingSummary(
                sweep=sweep,
                seeds=len(results),
                energy_joules=Estimate.of([one["total"] for one in joules]),
                mean_jct_seconds=Estimate.of([r["mean_jct_seconds"] for r in results]),
                p50_jct_seconds=Estimate.of([r["p50_jct_seconds"] for r in results]),
                p99_jct_seconds=Estimate.of([r["p99_jct_seconds"] for r in results]),
                gpu_joules=float(np.mean([one["gpu"] for one in joules])),
                idle_joules=float(np.mean([one["idle"] for one in joules])),
                node_joules=float(np.mean([one["node"] for one in joules])),
                max_watts=max(r["max_watts"] for r in results),
                cap_violation_seconds=max(r["cap_violation_seconds"] for r in results),
                restarts=float(np.mean([r["restarts"] for r in results])),
                on_envelope=means[sweep] in kept,
            )
        )
    return PolicyCurve(label, tuple(sorted(summaries, key=lambda one: one.energy_joules.mean)))
