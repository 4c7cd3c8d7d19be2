"""The rows as tables: what stands in each column, how it sorts, and whether it is well.

The same tables are printed once, drawn in the terminal view, and filtered there. A cell sorts by its value, not by its
words; what is unknown comes last either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, TypeVar

from flyball_views.caps import CapRow
from flyball_views.jobs import JobRow
from flyball_views.nodes import SERVING_MODES, NodeRow
from flyball_views.overview import Overview
from flyball_views.texts import (
    UNKNOWN,
    age_text,
    energy_text,
    share_text,
    until_text,
    watts_text,
    yes_no_text,
)

T = TypeVar("T")
Sortable = float | str | None


class Tone(StrEnum):
    """How a cell is meant: it is drawn so where there are colours, and says the same in words where there are none."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    FAINT = "faint"


class Cell(NamedTuple):
    """One cell: its words, what it sorts by (None: unknown), and how it is meant."""

    text: str
    value: Sortable = None
    tone: Tone = Tone.PLAIN


class Column(NamedTuple):
    """One column of a table; figures stand to the right."""

    title: str
    right: bool = False


class Line(NamedTuple):
    """One line of a table; `key` names its object for as long as that exists."""

    key: str
    cells: tuple[Cell, ...]


class Table(NamedTuple):
    """A table of lines."""

    name: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]


def sorted_lines(lines: Iterable[Line], column: int, *, descending: bool = False) -> list[Line]:
    """Lines by one column, those of equal value in the order that they had; unknown ones last."""

    def known(line: Line) -> bool:
        return line.cells[column].value is not None

    def value(line: Line) -> tuple[bool, float | str]:
        found = line.cells[column].value
        return (isinstance(found, str), found if found is not None else 0.0)

    lines = list(lines)
    ranked = sorted(filter(known, lines), key=value, reverse=descending)
    return ranked + [line for line in lines if not known(line)]


def filtered_lines(lines: Iterable[Line], words: str) -> list[Line]:
    """The lines in whose cells every one of the words stands somewhere, in upper or lower case."""
    wanted = words.lower().split()
    found = []
    for line in lines:
        text = " ".join(cell.text for cell in line.cells).lower()
        if all(word in text for word in wanted):
            found.append(line)
    return found


def _table(name: str, columns: Sequence[Column], rows: Iterable[T], line: Callable[[T], Line]) -> Table:
    return Table(name, tuple(columns), tuple(line(row) for row in rows))


def _figure(value: float | None, words: Callable[[float | None], str] = watts_text, tone: Tone = Tone.PLAIN) -> Cell:
    return Cell(words(value), value, Tone.FAINT if value is None else tone)


def _number(value: int | None, tone: Tone = Tone.PLAIN) -> Cell:
    return Cell(UNKNOWN if value is None else str(value), value, Tone.FAINT if value is None else tone)


def _text(value: str, tone: Tone = Tone.PLAIN) -> Cell:
    return Cell(value or UNKNOWN, value or None, tone if value else Tone.FAINT)


# --- caps --------------------------------------------------------------------------------------------------------------

CAP_COLUMNS = (
    Column("CAP"),
    Column("IN FORCE", right=True),
    Column("TARGET", right=True),
    Column("COMMITTED", right=True),
    Column("MEASURED", right=True),
    Column("HEADROOM", right=True),
    Column("NODES", right=True),
    Column("ENFORCED"),
    Column("SINCE", right=True),
    Column("WHY"),
)


def caps_table(overview: Overview) -> Table:
    """The caps: what each allows, and whether it is held."""
    return _table("caps", CAP_COLUMNS, overview.caps, lambda cap: _cap_line(cap, overview.time))


def _cap_line(cap: CapRow, now: datetime) -> Line:
    over = cap.in_force_watts is not None and (cap.committed_watts or 0) > cap.in_force_watts
    too_much = cap.breached.status is True
    target = _figure(cap.target_watts)
    if cap.target_watts is None and cap.target_permille is not None:
        target = Cell(f"{cap.target_permille / 10:g}% of max", float(cap.target_permille))
    held = cap.enforced.status
    tone = Tone.GOOD if held else Tone.BAD if held is False else Tone.WARN
    age = None if cap.enforced.since is None else (now - cap.enforced.since).total_seconds()
    return Line(
        cap.name,
        (
            Cell(cap.name, cap.name),
            _figure(cap.in_force_watts),
            target,
            _figure(cap.committed_watts, tone=Tone.BAD if over else Tone.PLAIN),
            _figure(cap.measured_watts, tone=Tone.BAD if too_much else Tone.PLAIN),
            _figure(cap.headroom_watts),
            _number(cap.counted_nodes),
            Cell(yes_no_text(held), yes_no_text(held), tone),
            Cell(age_text(cap.enforced.since, now), age, Tone.FAINT),
            _cap_why(cap),
        ),
    )


def _cap_why(cap: CapRow) -> Cell:
    """The one thing about a cap that matters most, in a few words."""
    if cap.refusal:
        return _text("Unreadable", Tone.BAD)
    if cap.emergency is not None and cap.emergency.status is True:
        return _text("Emergency", Tone.BAD)
    if cap.feasible.status is False:
        return _text("Infeasible", Tone.BAD)
    if cap.breached.status is True:
        return _text("Breached", Tone.BAD)
    if cap.enforced.status is not True:
        return _text(cap.enforced.reason, Tone.WARN)
    if cap.meter_silent.status is True:
        return _text("MeterSilent", Tone.WARN)
    if cap.meter_state in ("Shaping", "Cut"):
        return _text(cap.meter_state, Tone.WARN)
    if cap.deleting:
        return _text("HeldAfterDeletion", Tone.WARN)
    return _text(f"schedule {cap.schedule}") if cap.schedule else _text("held", Tone.FAINT)


# --- nodes -------------------------------------------------------------------------------------------------------------

NODE_COLUMNS = (
    Column("NODE"),
    Column("ROW"),
    Column("GPUS", right=True),
    Column("WATTS", right=True),
    Column("LIMITS", right=True),
    Column("MIN", right=True),
    Column("MAX", right=True),
    Column("MODE"),
    Column("READY"),
    Column("ACK", right=True),
    Column("JOBS"),
    Column("WHY"),
)


def nodes_table(overview: Overview) -> Table:
    """The nodes: what each draws and may draw, and whether its agent serves it."""
    return _table("nodes", NODE_COLUMNS, overview.nodes, lambda node: _node_line(node, overview.time))


def _node_line(node: NodeRow, now: datetime) -> Line:
    measured = _figure(node.measured_watts)
    if node.unread_gpus and node.measured_watts is not None:
        measured = Cell(f">{measured.text}", node.measured_watts, Tone.WARN)
    ready = node.ready.status
    tone = Tone.GOOD if ready else Tone.BAD if ready is False else Tone.WARN
    age = None if node.acknowledged is None else (now - node.acknowledged).total_seconds()
    return Line(
        node.name,
        (
            Cell(node.name, node.name),
            _text(node.row),
            _number(node.gpus),
            measured,
            _figure(node.limit_watts),
            _figure(node.min_watts, tone=Tone.FAINT),
            _figure(node.max_watts, tone=Tone.FAINT),
            _text(node.mode, Tone.PLAIN if node.mode in SERVING_MODES else Tone.WARN),
            Cell(yes_no_text(ready), yes_no_text(ready), tone),
            Cell(age_text(node.acknowledged, now), age, Tone.FAINT if node.acknowledged_current else Tone.WARN),
            _text(" ".join(node.jobs)),
            _node_why(node),
        ),
    )


def _node_why(node: NodeRow) -> Cell:
    """The one thing about a node that matters most, in a few words."""
    if node.silent:
        return _text("AgentSilent", Tone.BAD)
    if node.kubelet_ready is False:
        return _text("KubeletNotReady", Tone.BAD)
    if node.kubelet_ready is None:
        return _text("NoNode", Tone.WARN)
    if node.degraded.status is True:
        return _text(node.degraded.reason, Tone.BAD)
    if node.ready.status is not True:
        return _text(node.ready.reason, Tone.WARN)
    if node.mode and node.mode not in SERVING_MODES:
        return _text(node.mode, Tone.WARN)
    if not node.acknowledged_current:
        return _text("NotAcknowledged", Tone.WARN)
    if node.drifted.status is True:
        return _text("Drifted", Tone.WARN)
    return _text("Cordoned", Tone.WARN) if node.cordoned else _text("serves", Tone.FAINT)


# --- jobs --------------------------------------------------------------------------------------------------------------

JOB_COLUMNS = (
    Column("NAMESPACE"),
    Column("JOB"),
    Column("STATE"),
    Column("GPUS", right=True),
    Column("OF", right=True),
    Column("NODES", right=True),
    Column("WATTS", right=True),
    Column("CLOCK", right=True),
    Column("PROGRESS", right=True),
    Column("ENERGY", right=True),
    Column("BUDGET", right=True),
    Column("ENDS IN", right=True),
    Column("QUEUE", right=True),
    Column("DEADLINE", right=True),
    Column("WHY"),
)
_WELL = ("Running", "Succeeded")


def jobs_table(overview: Overview) -> Table:
    """The jobs: what each has, how far it is, what it costs, and why."""
    return _table("jobs", JOB_COLUMNS, overview.jobs, lambda job: _job_line(job, overview.time))


def _job_line(job: JobRow, now: datetime) -> Line:
    late = job.deadline_at_risk.status is True
    energy = job.energy
    consumed = None if energy is None else energy.consumed_kilojoules
    budget = None if energy is None else energy.budget_kilojoules
    spent = None if consumed is None or not budget else consumed / budget
    tight = job.budget_healthy.status is False
    return Line(
        job.key,
        (
            Cell(job.namespace, job.namespace),
            Cell(job.name, job.name),
            _text(job.state, _job_tone(job)),
            _number(job.gpus),
            Cell(_sizes(job), float(job.max_gpus), Tone.FAINT),
            _number(len(job.nodes)),
            _figure(job.watts if job.gpus else None),
            Cell(UNKNOWN, None, Tone.FAINT)
            if job.clock_megahertz is None
            else Cell(f"{job.clock_megahertz} MHz", job.clock_megahertz),
            _progress_cell(job),
            _figure(consumed, energy_text),
            Cell(share_text(consumed, budget), spent, Tone.WARN if tight else Tone.PLAIN if budget else Tone.FAINT),
            _time_cell(None if job.finished else job.finish, now, Tone.PLAIN, _guess(job)),
            _queue_cell(job, now),
            _time_cell(job.deadline, now, Tone.BAD if late else Tone.PLAIN),
            _text(job.why, Tone.FAINT),
        ),
    )


def _queue_cell(job: JobRow, now: datetime) -> Cell:
    """The place among those that wait, and in how long it can expect to start."""
    if job.queue is None:
        return Cell(UNKNOWN, None, Tone.FAINT)
    start = "?" if job.queue.start is None else until_text(job.queue.start, now)
    return Cell(f"{job.queue.position}/{job.queue.waiting} in {start}", job.queue.position)


def _sizes(job: JobRow) -> str:
    return str(job.max_gpus) if job.min_gpus == job.max_gpus else f"{job.min_gpus}-{job.max_gpus}"


def _guess(job: JobRow) -> str:
    """What stands before a figure that the job itself did not report."""
    return "~" if job.progress is not None and job.progress.estimated else ""


def _job_tone(job: JobRow) -> Tone:
    if job.failed is not None and job.failed.status is True:
        return Tone.BAD
    return Tone.GOOD if job.state in _WELL else Tone.WARN


def _progress_cell(job: JobRow) -> Cell:
    progress = job.progress
    if progress is None:
        return Cell(UNKNOWN, None, Tone.FAINT)
    if progress.fraction is None:
        return Cell(f"{_guess(job)}{progress.iterations:,} it", None)
    return Cell(f"{_guess(job)}{share_text(progress.fraction, 1.0)}", progress.fraction)


def _time_cell(then: datetime | None, now: datetime, tone: Tone, guess: str = "") -> Cell:
    if then is None:
        return Cell(UNKNOWN, None, Tone.FAINT)
    return Cell(guess + until_text(then, now), (then - now).total_seconds(), tone)
