"""Drops every field that people may write, one at a time, and runs the tests that are said to show what it does.

    python -m tests.mutants.fields [--only NAME ...] [--jobs N]

A field is dropped by whoever looks at it seeing its default, or, where it has none, another value (`ANOTHER`). One of the
tests that `tests/support/spec_fields.py` names for it must fail by that: else they prove only that its name is spelled.
Tests that need a control plane are not tried: of each field at least one must do without. The exit status is 1 where a
field's tests pass without it or cannot be tried, and 2 where they fail with it.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import msgspec
import pytest
from flyball_api.energy.quota import EnergyQuotaSpec
from flyball_api.energy_aware_job import EnergyAwareJobSpec
from flyball_api.power_cap import PowerCapSpec

from tests.mutants.run import ARGUMENTS, ROOT, TestsFailError, in_a_fork
from tests.support.spec_fields import SHOWN, shown_by

SPECS: dict[str, type[msgspec.Struct]] = {
    "energyawarejobs": EnergyAwareJobSpec,
    "powercaps": PowerCapSpec,
    "energyquotas": EnergyQuotaSpec,
}
WAITING_SECONDS = 300
PLAIN = "not cluster and not chart and not whole_data"

# What a field without a default is given: what may be written there, and no test does.
ANOTHER: dict[str, Any] = {
    "gpus.min": 1,
    "gpus.max": 4096,
    "training.globalBatchSize": 77_777,
    "template": {"spec": {"containers": [{"name": "another"}]}},
    "pipeline.stages": 7,
    "pipeline.plan.configMap": "another",
    "pipeline.plan.measure.highestMegahertz": 9_999,
    "pipeline.plan.measure.lowestMegahertz": 1,
    "recurrence.batchSizes": (77_777,),
    "recurrence.targetMetric": "another=7",
    "nodeSelector.matchExpressions[].key": "another",
    "nodeSelector.matchExpressions[].operator": "Exists",
    "schedule[].name": "another",
    "schedule[].watts": 77_777,
    "energyBudget.kilojoules": 777_777_777,
    "energyBudget.periodSeconds": 777,
    "meter.prometheus.endpoint": "another",
    "meter.prometheus.query": "another",
    "foreignWeights[].namespace": "another",
    "foreignWeights[].permille": 1000,
    "foreignWeights[].pods[].selector.matchExpressions[].key": "another",
    "foreignWeights[].pods[].selector.matchExpressions[].operator": "DoesNotExist",
    "foreignWeights[].pods[].permille": 1000,
}


@dataclass(frozen=True)
class Field:
    """A field of a kind's spec by its path, and the tests that are said to show it."""

    kind: str
    path: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


def all_fields(only: Sequence[str] = ("",)) -> list[Field]:
    """Those that may be dropped, whose name contains one of `only`."""
    found = [Field(kind, path, shown_by(shown)) for kind, paths in SHOWN.items() for path, shown in paths.items()]
    return [field for field in found if any(word in str(field) for word in only)]


@dataclass(frozen=True)
class Dropped:
    """A field as it is without what anybody has written into it."""

    struct: type[msgspec.Struct]
    name: str
    value: Any

    @staticmethod
    def of(field: Field) -> Dropped:
        """Raises LookupError where the field has no default, and no other value is given."""
        *above, last = field.path.split(".")
        struct = SPECS[field.kind]
        for step in above:
            struct = _struct_in(_field(struct, step).type)
        found = _field(struct, last)
        if field.path in ANOTHER:
            return Dropped(struct, found.name, ANOTHER[field.path])
        if found.default_factory is not msgspec.NODEFAULT:
            return Dropped(struct, found.name, found.default_factory())
        if found.default is msgspec.NODEFAULT:
            raise LookupError(f"{field} has no default: give it another value")
        return Dropped(struct, found.name, found.default)

    def drop(self) -> None:
        """Let whoever looks at the field see this value, however the object was made, in this process and from now on."""
        setattr(self.struct, self.name, property(lambda _self: self.value))

    def look_through(self) -> None:
        """The same, but what is seen is what was written: by this no test may fail."""
        written = self.struct.__dict__[self.name]
        setattr(self.struct, self.name, property(lambda made: written.__get__(made)))


def _field(struct: type[msgspec.Struct], step: str) -> msgspec.structs.FieldInfo:
    (found,) = (field for field in msgspec.structs.fields(struct) if field.encode_name == step.removesuffix("[]"))
    return found


def _struct_in(hint: Any) -> type[msgspec.Struct]:
    """The structure in the type of a field: itself, or what a list or an optional field has."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    return next(_struct_in(each) for each in get_args(hint) if each not in (type(None), Ellipsis))


class _Run:
    """A plugin of pytest that runs the tests of each field, first with it and then without."""

    def __init__(self, fields: Sequence[Field], jobs: int) -> None:
        self._fields = fields
        self._jobs = jobs
        self.error: TestsFailError | None = None
        self.shown: dict[Field, bool] = {}
        self.untried: list[Field] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            items.setdefault(getattr(item, "originalname", item.name), []).append(item)
        gc.freeze()
        near = {field: [item for test in field.tests for item in items.get(test, ())] for field in self._fields}
        self.untried = [field for field, found in near.items() if not found]
        used = {item.nodeid: item for found in near.values() for item in found}
        dropped = {field: Dropped.of(field) for field in self._fields}
        if self._ended([(None, partial(_control, dropped.values(), session, list(used.values())))])[None] != 0:
            self.error = TestsFailError("without any field dropped, one of the tests fails already")
            return True
        tasks = [(field, partial(_shows, dropped[field], session, found)) for field, found in near.items() if found]
        self.shown = {field: code != 0 for field, code in self._ended(tasks).items() if field is not None}
        return True

    def _ended(self, tasks: Sequence[tuple[Field | None, Callable[[], bool]]]) -> dict[Field | None, int]:
        """The exit statuses of the tasks, so many at a time."""
        waiting = list(tasks)
        running: dict[int, Field | None] = {}
        ended: dict[Field | None, int] = {}
        while waiting or running:
            while waiting and len(running) < self._jobs:
                field, task = waiting.pop(0)
                running[in_a_fork(task)] = field
            process, status = os.wait()
            ended[running.pop(process)] = os.waitstatus_to_exitcode(status)
        return ended


def _passes(session: pytest.Session, items: Sequence[pytest.Item]) -> bool:
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return False
    return True


def _control(fields: Iterable[Dropped], session: pytest.Session, items: Sequence[pytest.Item]) -> bool:
    for field in fields:
        field.look_through()
    return _passes(session, items)


def _shows(field: Dropped, session: pytest.Session, items: Sequence[pytest.Item]) -> bool:
    signal.alarm(WAITING_SECONDS)
    field.drop()
    return _passes(session, items)


def files_of(fields: Sequence[Field]) -> Iterator[str]:
    """The modules that have the fields' tests."""
    wanted = {test for field in fields for test in field.tests}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if wanted & set(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)):
            yield str(path.relative_to(ROOT))


def main(arguments: Sequence[str] | None = None) -> int:
    """Drop the fields; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.fields", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", action="extend", metavar="NAME", help="fields whose name contains one of these"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    fields = all_fields(options.only or [""])
    run = _Run(fields, options.jobs)
    pytest.main([*ARGUMENTS[:-2], "-m", PLAIN, *files_of(fields)], plugins=[run])
    if run.error is not None:
        print(f"error: {run.error}", file=sys.stderr)
        return 2
    silent = [field for field, shown in run.shown.items() if not shown]
    for field in silent:
        print(f"NOT SHOWN   {field}: {', '.join(field.tests)} pass without it")
    for field in run.untried:
        print(f"NOT TRIED   {field}: {', '.join(field.tests)} need a control plane")
    print(f"{sum(run.shown.values())} of {len(fields)} fields are shown: without each, a test of it fails")
    return 1 if silent or run.untried else 0


if __name__ == "__main__":
    sys.exit(main())
