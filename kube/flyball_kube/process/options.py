"""A process' settings as a dataclass whose fields say what they are; the command line is made from them.

    @dataclass(frozen=True)
    class Settings:
        replan_seconds: float = field(default=10.0, metadata=option("Plan again at least this often.", minimum=0.5))

So a setting is written once: its name, type, default, unit, limits and help stand in the field. The option is called as the
field is (`--replan-seconds`), and so is the environment variable (`FLYBALL_REPLAN_SECONDS`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VARIABLE_PREFIX = "FLYBALL_"
# What a field counts, by the end of its name; anything else needs a unit of its own, or is no number.
UNITS = ("seconds", "watts", "fraction", "port")

_KEY = "flyball_option"


@dataclass(frozen=True, slots=True)
class OptionText:
    """How a field is given: what it is in one sentence (`help`), what it counts (`unit`), its limits and its names.

    Of the environment `variables` the first that is set counts.
    """

    name: str
    help: str
    unit: str
    minimum: float | None
    maximum: float | None
    variables: tuple[str, ...]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def own_variable(self) -> str:
        return VARIABLE_PREFIX + self.name.upper()


def option(
    help: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    name: str = "",
    variables: tuple[str, ...] = (),
) -> Mapping[str, Any]:
    """A field's metadata, from which its option is made; `name` and `variables` where they are not the field's own."""
    return {_KEY: OptionText(name, help, unit, minimum, maximum, variables)}


def options(settings: type[Any]) -> dict[str, OptionText]:
    """The option of each field of a dataclass, by the field's name; raises TypeError for a field without one."""
    found = {}
    for field in dataclasses.fields(settings):
        given = field.metadata.get(_KEY)
        if not isinstance(given, OptionText):
            raise TypeError(f"{settings.__name__}.{field.name} says nothing of its option: metadata=option(...)")
        name = given.name or field.name
        unit = given.unit or next((unit for unit in UNITS if field.name.endswith(f"_{unit}")), "")
        named = dataclasses.replace(given, name=name, unit=unit)
        found[field.name] = dataclasses.replace(named, variables=given.variables or (named.own_variable,))
    return found
