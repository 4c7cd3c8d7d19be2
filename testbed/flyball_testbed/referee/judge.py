"""Takes samples and answers in order of time, judges each sample once the next answer is there, and sums up."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flyball_testbed.referee.claims import Answer, CapClaim, bound_between, selects
from flyball_testbed.referee.hardware import Sample

COLUMNS = (
    "seconds", "limits_watts", "requested_watts", "enforced_watts", "true_watts", "joules", "cap", "cap_watts",
    "enforced_cap_watts", "limits_over_watts", "true_over_watts",
)  # fmt: skip


@dataclass(slots=True)
class CapRecord:
    """One cap's worst moments so far, and from when (seconds) each value of it was reported as enforced."""

    max_limits_over_watts: float = 0.0
    max_true_over_watts: float = 0.0
    limits_over_joules: float = 0.0
    true_over_joules: float = 0.0
    judged_seconds: float = 0.0
    unjudged_seconds: float = 0.0
    enforced: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """One sample under one cap."""

    claim: CapClaim
    bound_watts: int | None
    headroom_watts: float
    limits_over_watts: float
    true_over_watts: float


class Judge:
    """The judgement of one run; `seconds` count from `origin_ns` (CLOCK_BOOTTIME).

    `labels` are those of the nodes, for caps with a selector.
    """

    def __init__(self, csv_path: Path, origin_ns: int) -> None:
        self._origin_ns = origin_ns
        self._file = csv_path.open("w", newline="")
        self._rows = csv.writer(self._file)
        self._rows.writerow(COLUMNS)
        self._waiting: deque[tuple[Sample, float]] = deque()
        self._answers: deque[Answer] = deque()
        self._judged_ns: int | None = None
        self._latest: Sample | None = None
        self._first_energy: dict[str, float] = {}
        self.labels: Mapping[str, Mapping[str, str]] = {}
        self.records: dict[str, CapRecord] = {}
        self.joules: dict[str, float] = {}
        self.counter_joules: dict[str, float] = {}
        self.samples = 0

    def seconds(self, at_ns: int) -> float:
        return (at_ns - self._origin_ns) / 1e9

    def sample(self, sample: Sample) -> None:
        """Count a sample's energy now; it is judged when an answer comes whose request was sent after it."""
        latest, self._latest = self._latest, sample
        elapsed = 0.0 if latest is None else (sample.start_ns - latest.start_ns) / 1e9
        known = {} if latest is None else dict(zip(latest.nodes, latest.power.tolist(), strict=True))
        for node, power, energy in zip(sample.nodes, sample.power.tolist(), sample.energy.tolist(), strict=True):
            # Trapezoids between samples: our own integral, to be checked against the GPUs' count.
            joules = (known[node] + power) / 2000 * elapsed if node in known else 0.0
            self.joules[node] = self.joules.get(node, 0.0) + joules
            self.counter_joules[node] = (energy - self._first_energy.setdefault(node, energy)) / 1000
        self.samples += 1
        self._waiting.append((sample, sum(self.joules.values())))

    def answer(self, answer: Answer) -> None:
        """Take an answer of the API, and judge everything that was sampled before its request was sent."""
        self._answers.append(answer)
        while self._waiting and self._waiting[0][0].end_ns < answer.sent_ns:
            sample, joules = self._waiting.popleft()
            # The last answer known when the sample began, one that was on its way meanwhile, and the first after it.
            while len(self._answers) > 1 and self._answers[1].received_ns <= sample.start_ns:
                self._answers.popleft()
            self._judge(sample, joules)
        for name, claim in answer.claims.items():
            record = self.records.setdefault(name, CapRecord())
            if claim.enforced and claim.current and claim.effective_watts is not None:
                watts = float(claim.effective_watts)
                if not record.enforced or record.enforced[-1]["watts"] != watts:
                    record.enforced.append({"watts": watts, "seconds": self.seconds(answer.received_ns)})

    def _judge(self, sample: Sample, joules: float) -> None:
        elapsed = 0.0 if self._judged_ns is None else (sample.start_ns - self._judged_ns) / 1e9
        self._judged_ns = sample.start_ns
        before, *later = self._answers
        # An answer that came only after the sample began is no evidence of what was claimed at its moment.
        claims = before.claims if before.received_ns <= sample.start_ns else {}
        verdicts = [
            self._verdict(sample, claim, [answer.claims.get(name) for answer in later], elapsed)
            for name, claim in claims.items()
        ]
        tightest = min(verdicts, key=lambda verdict: verdict.headroom_watts, default=None)
        sums = [values.sum() / 1000 for values in (sample.limits, sample.requested, sample.enforced, sample.power)]
        row: list[object] = [
            f"{self.seconds(sample.start_ns):.3f}",
            *(f"{watts:.3f}" for watts in sums),
            f"{joules:.1f}",
        ]
        if tightest is None:
            row += ["", "", "", "0", "0"]
        else:
            requested, bound = tightest.claim.requested_watts, tightest.bound_watts
            row += [tightest.claim.name, *("" if watts is None else watts for watts in (requested, bound))]
            row += [f"{tightest.limits_over_watts:.3f}", f"{tightest.true_over_watts:.3f}"]
        self._rows.writerow(row)

    def _verdict(self, sample: Sample, claim: CapClaim, later: list[CapClaim | None], elapsed: float) -> _Verdict:
        record = self.records.setdefault(claim.name, CapRecord())
        bounds = [bound_between(claim, after) for after in later]
        known = [watts for watts in bounds if watts is not None]
        bound = max(known) if known and len(known) == len(bounds) else None
        taken = np.array(
            [not claim.selector or selects(claim.selector, self.labels.get(node, {})) for node in sample.nodes]
        )
        limits = int(sample.limits[taken].sum()) / 1000 + claim.overhead_watts
        true = int(sample.power[taken].sum()) / 1000 + claim.overhead_watts
        limits_over = true_over = 0.0
        if bound is not None:
            limits_over = max(0.0, limits - bound) if claim.hard else 0.0
            true_over = max(0.0, true - bound)
            record.judged_seconds += elapsed
            record.max_limits_over_watts = max(record.max_limits_over_watts, limits_over)
            record.max_true_over_watts = max(record.max_true_over_watts, true_over)
            record.limits_over_joules += limits_over * elapsed
            record.true_over_joules += true_over * elapsed
        elif claim.enforced:
            record.unjudged_seconds += elapsed
        cap = claim.requested_watts if claim.requested_watts is not None else claim.effective_watts
        headroom = float("inf") if cap is None else cap - limits
        return _Verdict(claim, bound, headroom, limits_over, true_over)

    def summary(self) -> dict[str, Any]:
        """The judgement so far: the content of the summary file."""
        latest = self._latest
        claims = self._answers[-1].claims if self._answers else {}
        return {
            "origin_ns": self._origin_ns,
            "seconds": 0.0 if latest is None else self.seconds(latest.start_ns),
            "samples": self.samples,
            "limits_watts": 0.0 if latest is None else latest.limits_watts,
            "true_watts": 0.0 if latest is None else int(latest.power.sum()) / 1000,
            "joules": sum(self.joules.values()),
            "counter_joules": sum(self.counter_joules.values()),
            "node_joules": self.joules,
            "caps": {
                name: {
                    "watts": claims[name].requested_watts if name in claims else None,
                    "effective_watts": claims[name].effective_watts if name in claims else None,
                    "reported_enforced": name in claims and claims[name].enforced and claims[name].current,
                    **asdict(record),
                }
                for name, record in self.records.items()
            },
        }

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
