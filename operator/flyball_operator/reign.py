"""What one leader remembers from cycle to cycle during one epoch: all of it could be lost and derived again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from flyball_planner.cluster import CapOutcome, ClusterSnapshot, JobDecision, Plan

from flyball_operator.acknowledgements import Acknowledgements
from flyball_operator.background import Background
from flyball_operator.cap_ledger import CapLedger
from flyball_operator.execute import Executor
from flyball_operator.hold import Hold, JobGrant
from flyball_operator.reporting import Reporter

STATUS_WRITES_AT_ONCE = 4


def _calm() -> asyncio.Event:
    """No cap is on its way down."""
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True)
class Reign:
    """What a leader remembers during one epoch; a new epoch starts with nothing."""

    epoch: int
    executor: Executor
    ledger: CapLedger
    reporter: Reporter
    acknowledgements: Acknowledgements
    background: Background
    decisions: dict[str, JobDecision] = field(default_factory=dict)
    cap_outcomes: dict[str, CapOutcome] = field(default_factory=dict)
    planned_key: ClusterSnapshot | None = None
    planned_at: float = float("-inf")
    planning: asyncio.Task[Plan] | None = None
    planning_for: ClusterSnapshot | None = None
    planning_since: float = 0.0
    cutting_since: float | None = None
    squeezing_since: float | None = None
    # Grants whose writing has begun, with the version of the GPUNode that they replace: until that version is seen to be
    # gone, or the API server has said no, they may stand there already, whatever our copy says.
    attempted: dict[str, tuple[str, Hold]] = field(default_factory=dict)
    wanted: dict[tuple[str, str], JobGrant] = field(default_factory=dict)  # by pod name and job uid
    # Figures are worth less than steps: few of their writes at a time, so that they never crowd out the others.
    calm: asyncio.Event = field(default_factory=_calm)
    status_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STATUS_WRITES_AT_ONCE))
