"""What a dashboard is made of, as data: panels that each answer one question, whoever draws them.

Queries are PromQL with Grafana's `$__rate_interval` and `$__range`, and `$name` for a dashboard's own variables; `bound`
puts values in their places, for those who know none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

RATE_INTERVAL = "$__rate_interval"
RANGE = "$__range"
COLUMNS = 24


class Unit(StrEnum):
    """What a panel's numbers are; its value is Grafana's name of the unit."""

    WATTS = "watt"
    JOULES = "joule"
    KILOWATT_HOURS = "kwatth"
    SHARE = "percentunit"
    SECONDS = "s"
    HERTZ = "hertz"
    COUNT = "none"
    PER_SECOND = "ops"
    MONEY = "currency:"  # of no certain country: what is shown is a number
    KILOGRAMS = "masskg"
    BYTES = "bytes"
    CELSIUS = "celsius"


class Shape(StrEnum):
    """How a panel is drawn: lines over time, the same stacked, one number now, or a row for each job now."""

    LINES = "lines"
    STACKED = "stacked"
    NUMBER = "number"
    TABLE = "table"


class Colour(StrEnum):
    """What a value means to somebody on call."""

    GOOD = "green"
    LOOK = "orange"
    ACT = "red"


@dataclass(frozen=True, slots=True)
class Query:
    """One query, and what its series are called; in a table, the title of its column and the column's unit.

    `colour` is for the line of a query that has one only; an `upper` one is what the others must stay below.
    """

    expr: str
    legend: str
    unit: Unit | None = None
    colour: Colour | None = None
    upper: bool = False


@dataclass(frozen=True, slots=True)
class Threshold:
    """From this value on, a number is of this colour."""

    value: float
    colour: Colour


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `question` is what somebody looks at it for; `width` is in columns, of which there are COLUMNS.

    `base` is a number's colour below its first threshold (None: it has no good or bad). `repeated` names a variable of the
    dashboard: there is one such panel for each of its values. `at_most` is where the axis ends, if it must not go on.
    """

    title: str
    question: str
    queries: tuple[Query, ...]
    unit: Unit
    shape: Shape = Shape.LINES
    thresholds: tuple[Threshold, ...] = ()
    base: Colour | None = None
    width: int = 12
    repeated: str = ""
    at_most: float | None = None

    def __post_init__(self) -> None:
        if not self.queries or not 1 <= self.width <= COLUMNS or not self.question.endswith("?"):
            raise ValueError(f"panel {self.title!r}: a question, at least one query, and a width of 1 to 24")


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A variable whose values are a label's, of which any number may be chosen; all at first."""

    name: str
    label: str
    metric: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A variable that people may set to another number."""

    name: str
    label: str
    value: float


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; its `uid` is part of its address and never changes."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Choice | Constant, ...] = ()

    def panels(self) -> Iterator[Panel]:
        """Every panel, in order."""
        for row in self.rows:
            yield from row.panels

    def bound(self, expr: str, *, rate_interval: str, span: str, chosen: Mapping[str, str] | None = None) -> str:
        """A query with everything in its place: all of each choice unless one is `chosen`, the constants as they begin."""
        values = {"__rate_interval": rate_interval, "__range": span}
        for variable in self.variables:
            values[variable.name] = ".*" if isinstance(variable, Choice) else f"{variable.value:g}"
        values |= chosen or {}
        return re.sub(r"\$(\w+)", lambda found: values[found.group(1)], expr)


def lines(panels: Iterable[Panel]) -> Iterator[list[Panel]]:
    """Panels as they stand side by side; one that is repeated has its line, or as many as it needs, to itself."""
    line: list[Panel] = []
    for panel in panels:
        if line and (panel.repeated or line[-1].repeated or sum(one.width for one in line) + panel.width > COLUMNS):
            yield line
            line = []
        line.append(panel)
    if line:
        yield line
