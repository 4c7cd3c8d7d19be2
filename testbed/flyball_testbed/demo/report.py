"""What a run comes to: report.json, and the table at the end.

`report.json` has exactly these fields. Seconds and kilojoules of jobs and energy are simulated ones (real times the
compression), `wall_seconds` and the times of the cap's steps are real, counted from the first submission; watts are watts.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from flyball_testbed.demo.baseline import POLICY, BaselineResult
from flyball_testbed.demo.scenario import Boot, Fall
from flyball_testbed.demo.screen import energy, simulated_time

# A cap that was reported as enforced may be exceeded by less than this: limits are whole milliwatts, so it is 0 or wrong.
ALLOWED_WATTS = 1.0


@dataclass(frozen=True, slots=True)
class CapStep:
    """One change of the cap: when it was asked for and when the API first reported it as enforced (None: never).

    By then limits had fallen by so much, on so many nodes.
    """

    watts: int
    requested_at: float
    enforced_at: float | None
    seconds: float | None
    limits_fell_watts: float | None = None
    nodes_lowered: int | None = None

    @property
    def lowered_limits(self) -> bool:
        """Whether limits fell by a watt or more."""
        return self.limits_fell_watts is not None and self.limits_fell_watts >= 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run in real seconds and joules; `completion_seconds` by job that succeeded, from its submission."""

    nodes: int
    gpus: int
    submitted: int
    failed: int
    completion_seconds: Mapping[str, float]
    resizes: int
    migrations: int
    wall_seconds: float
    cap_steps: Sequence[CapStep]
    limits_over_watts: float
    true_over_watts: float
    joules: float
    max_true_watts: float
    baseline: BaselineResult
    boot: Boot | None = None

    @property
    def lost(self) -> int:
        """Jobs that neither succeeded nor failed."""
        return self.submitted - self.failed - len(self.completion_seconds)

    @property
    def faults(self) -> list[str]:
        """Why the run does not count as a success; empty where it does."""
        found = []
        if max(self.limits_over_watts, self.true_over_watts) >= ALLOWED_WATTS:
            found.append(
                f"a cap reported as enforced was exceeded: limits by {self.limits_over_watts:.3f} W, "
                f"true draw by {self.true_over_watts:.3f} W"
            )
        if self.lost:
            found.append(f"{self.lost} of {self.submitted} jobs did not end")
        if self.failed:
            found.append(f"{self.failed} of {self.submitted} jobs failed")
        if self.boot is not None and self.boot.withdrawn_seconds is None:
            found.append(f"the cap went on being called enforced after {self.boot.node} had booted without its agent")
        late = [str(step.watts) for step in self.cap_steps if step.enforced_at is None]
        if late:
            found.append(f"the cap of {', '.join(late)} W was never reported as enforced")
        return found

    @property
    def remarks(self) -> list[str]:
        """What the run leaves open, though it is a success."""
        measured = [step for step in self.cap_steps if step.limits_fell_watts is not None]
        if measured and not any(step.lowered_limits for step in measured):
            return ["no step of the cap had to lower a limit, which shows little: run more jobs, or cap lower"]
        return []

    @property
    def mean_completion_seconds(self) -> float:
        times = list(self.completion_seconds.values())
        return sum(times) / len(times) if times else 0.0

    def report(self, compression: float) -> dict[str, Any]:
        """The content of report.json."""
        return {
            "nodes": self.nodes,
            "gpus": self.gpus,
            "jobs": {"submitted": self.submitted, "succeeded": len(self.completion_seconds), "failed": self.failed},
            "resizes": self.resizes,
            "migrations": self.migrations,
            "wall_seconds": round(self.wall_seconds, 1),
            "simulated_seconds": round(self.wall_seconds * compression, 1),
            "mean_jct_seconds": round(self.mean_completion_seconds * compression, 1),
            "cap_steps": [asdict(step) for step in self.cap_steps],
            "max_limits_over_enforced_cap_watts": round(self.limits_over_watts, 3),
            "max_true_over_enforced_cap_watts": round(self.true_over_watts, 3),
            "energy_kilojoules": round(self.joules * compression / 1000, 1),
            "boot": None if self.boot is None else _rounded(asdict(self.boot)),
            "baseline": {
                "policy": POLICY,
                "mean_jct_seconds": round(self.baseline.mean_completion_seconds * compression, 1),
                "energy_kilojoules": round(self.baseline.joules * compression / 1000, 1),
                "max_true_watts": round(self.baseline.max_true_watts, 1),
            },
        }

    def table(self, compression: float) -> Table:
        """The figures beside the baseline's, for people."""
        base = self.baseline
        table = Table(title=f"{len(self.completion_seconds)} of {self.submitted} jobs succeeded", title_justify="left")
        table.add_column("")
        table.add_column("flyball, capped", justify="right", style="bold")
        table.add_column("baseline, no cap", justify="right")
        table.add_column("", justify="right")

        def row(name: str, own: float, other: float, show: Any) -> None:
            table.add_row(name, show(own), show(other), f"{own / other - 1:+.0%}" if other else "")

        row("mean job completion time", self.mean_completion_seconds, base.mean_completion_seconds,
            lambda seconds: simulated_time(seconds * compression))  # fmt: skip
        row("time to the last job's end", self.wall_seconds, base.makespan_seconds,
            lambda seconds: simulated_time(seconds * compression))  # fmt: skip
        row("energy of all GPUs", self.joules, base.joules, lambda joules: energy(joules * compression))
        row("highest true draw", self.max_true_watts, base.max_true_watts, lambda watts: f"{watts / 1000:.1f} kW")
        table.add_section()
        for step in self.cap_steps:
            took = "never" if step.seconds is None else f"{step.seconds:.2f} s"
            table.add_row(f"cap {step.watts / 1000:.1f} kW enforced after", took, "–", "")
            if step.limits_fell_watts is not None and step.lowered_limits:
                fell = f"{step.limits_fell_watts / 1000:.1f} kW, {step.nodes_lowered} nodes"
                table.add_row("  limits fell by then by", fell, "–", "")
        if self.boot is not None:
            for name, seconds in (
                ("not called enforced after", self.boot.withdrawn_seconds),
                ("enforced again after", self.boot.enforced_again_seconds),
            ):
                took = "never" if seconds is None else f"{seconds:.2f} s"
                table.add_row(f"{self.boot.node} boots, its agent away: {name}", took, "–", "")
        table.add_row("limits over enforced cap, worst", f"{self.limits_over_watts:.0f} W", "–", "")
        table.add_row("draw over enforced cap, worst", f"{self.true_over_watts:.0f} W", "–", "")
        table.add_row("resizes, migrations", f"{self.resizes}, {self.migrations}", "0, 0", "")
        return table


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}


def joules_between(referee_csv: Path, start_seconds: float, end_seconds: float) -> tuple[float, float]:
    """(joules, highest true watts) that the referee counted between two of its times."""
    first = last = most = 0.0
    begun = False
    with referee_csv.open() as file:
        for row in csv.DictReader(file):
            at = float(row["seconds"])
            if at > end_seconds:
                break
            joules = float(row["joules"])
            if at >= start_seconds:
                most = max(most, float(row["true_watts"]))
                if not begun:
                    first, begun = joules, True
            last = joules
    return (last - first if begun else 0.0), most


def cap_steps(
    requested: Sequence[tuple[int, float]],
    enforced: Sequence[Mapping[str, float]],
    origin: float,
    falls: Mapping[int, Fall] | None = None,
) -> list[CapStep]:
    """Match the changes of the cap (watts, referee's seconds) with what the referee saw reported as enforced, in order.

    `origin` is the referee's second from which the steps' times count; `falls` has how far limits fell, by which change.
    """
    steps = []
    for index, (watts, asked) in enumerate(requested):
        until = requested[index + 1][1] if index + 1 < len(requested) else float("inf")
        seen = [each["seconds"] for each in enforced if each["watts"] == watts and asked <= each["seconds"] < until]
        at = seen[0] if seen else None
        fall = (falls or {}).get(index)
        steps.append(
            CapStep(
                watts,
                round(asked - origin, 3),
                None if at is None else round(at - origin, 3),
                None if at is None else round(at - asked, 3),
                None if fall is None else round(fall.watts, 1),
                None if fall is None else fall.nodes,
            )
        )
    return steps


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(report, indent=2) + "\n")
