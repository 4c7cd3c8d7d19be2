"""What an explanation is made of, and what goes for every object: who leads, and what was said of it lately."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from flyball_api.event import EventView
from flyball_api.lease import Leader

from flyball_views.overview import Overview
from flyball_views.row import Aspect, Row
from flyball_views.texts import age_text

# How far back warnings are told that no condition repeats, and how many of the latest events are shown beside.
RECENT = timedelta(hours=1)
SHOWN_EVENTS = 6

# How a value of the chart is changed: without the option the release would lose its other ones.
CHANGE_VALUE = "helm upgrade ... --reset-then-reuse-values --set"
LET_GOVERN = f"let Flyball govern ({CHANGE_VALUE} mode=govern)"


class Weight(StrEnum):
    """How much a reason matters: it keeps the object from what it is for, it holds it back, or it is good to know."""

    STOPS = "stops"
    LIMITS = "limits"
    NOTE = "note"


_ORDER = {Weight.STOPS: 0, Weight.LIMITS: 1, Weight.NOTE: 2}


class Reason(Row, frozen=True):
    """One reason: what is so and since when, and what would change it (empty: nothing needs to)."""

    weight: Weight
    what: str
    change: str = ""
    since: datetime | None = None


class Explanation(Row, frozen=True):
    """Why an object stands as it does: a headline, reasons with the weightiest first, the latest events.

    `unknown` says what could not be looked at, and may be missing here.
    """

    kind: str
    name: str
    time: datetime
    headline: str
    reasons: tuple[Reason, ...] = ()
    events: tuple[EventView, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        """Nothing stops the object or holds it back."""
        return all(reason.weight is Weight.NOTE for reason in self.reasons)


class NoSuchObject(LookupError):
    """The overview has no object of that name."""


def explained(
    kind: str, name: str, overview: Overview, headline: str, reasons: Iterable[Reason], events: Sequence[EventView]
) -> Explanation:
    """An explanation with its reasons in order: by weight, and of the same weight as they were found."""
    return Explanation(
        kind=kind,
        name=name,
        time=overview.time,
        headline=headline,
        reasons=tuple(sorted(reasons, key=lambda reason: _ORDER[reason.weight])),
        events=tuple(sorted(events, key=_time_of, reverse=True)[:SHOWN_EVENTS]),
        unknown=tuple(f"{what}: {why}" for what, why in sorted(overview.missing.items())),
    )


def of_aspect(weight: Weight, aspect: Aspect, change: str, what: str = "") -> Reason:
    """A reason that a condition gives, in its own words unless `what` says it better."""
    return Reason(weight, what or aspect.message or aspect.reason, change, aspect.since)


def leader_reasons(leader: Leader | None, overview: Overview, what_stands: str) -> list[Reason]:
    """That nobody leads, where that is known; `what_stands` says what that means for the object."""
    if leader is None or not leader.silent_at(overview.time):
        return []
    gone = f"{leader.holder or 'nobody'} holds the operator's Lease"
    if leader.renewed is not None:
        gone += f", which was last renewed {age_text(leader.renewed, overview.time)} ago"
    return [
        Reason(
            Weight.STOPS,
            f"no operator leads ({gone}): {what_stands}",
            "see that the operator's pods run and reach the API server (kubectl flyball doctor)",
            leader.renewed,
        )
    ]


def about(events: Iterable[EventView], kind: str, name: str, namespace: str = "") -> list[EventView]:
    """The events about one object."""
    return [event for event in events if (event.kind, event.name, event.namespace) == (kind, name, namespace)]


def standing(events: Iterable[EventView], raised: str, *cleared: str, now: datetime) -> EventView | None:
    """The latest event of reason `raised`, unless one of `cleared` came after it, or it is not recent."""
    found = None
    for event in sorted(events, key=_time_of):
        if event.reason == raised:
            found = event
        elif event.reason in cleared:
            found = None
    return found if found is not None and found.time is not None and now - found.time <= RECENT else None


def _time_of(event: EventView) -> float:
    return 0.0 if event.time is None else event.time.timestamp()
