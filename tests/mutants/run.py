"""Tries mutants: the tests are imported once, and each mutant is a process forked from there with one function changed.

A first round without any mistake tells which tests run which statement, and how long each takes. A mutant is then tried
by those that run its statement, up to the first that fails: those that noticed other mistakes in the same function or
module before quick ones, and quick ones before slow ones. Nothing is left out by that: a test that does not run the
statement cannot notice what is wrong in it.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants.mutate import Mutant, mutants, recorded
from tests.mutants.order import Order
from tests.mutants.swap import swap

ROOT = Path(__file__).parents[2]
FOLDERS = {"flyball_operator": "operator", "flyball_agent": "node_agent", "flyball_api": "crds"}
PROTOCOL = "tests/operator/power/test_power_protocol.py"
OPERATOR = ("tests/operator/power", "tests/operator/test_gpu_resources.py")
DECISIONS = (
    *("adoption", "brakes", "clock_wishes", "decisions", "driver_access", "enforcer"),
    *("grant", "lock_drift", "locks_in_flight"),
)
ENFORCE = tuple(f"tests/agent/enforce/test_{name}.py" for name in DECISIONS)
AGENT = (*ENFORCE, PROTOCOL)
CONTRACT = tuple(f"tests/api/test_{name}.py" for name in ("brake_acknowledgement", "gpu_node", "grant"))
# A mutant is killed where it computes so much longer than its tests do without a mistake, waits so long, or takes so much.
PROCESSOR_SECONDS = 20.0
TIMES_THE_PROCESSOR_SECONDS = 5.0
WAITING_SECONDS = 600
MEMORY_BYTES = 4 << 30
ARGUMENTS = (
    *("-qq", "--no-header", "--no-summary", "--capture=no", "-p", "no:cacheprovider", "--timeout=0"),
    *("--tb=no", "--assert=plain"),  # nobody reads what failed, only that it did
    *("--hypothesis-profile", "repeatable", "-m", "not cluster and not whole_data"),
)
NOT_MADE = 3  # the exit status of a fork whose mutant cannot be put into the module
RECORD = "_flyball_mutants_record"


@dataclass(frozen=True)
class Target:
    """A module to mutate, and where the tests are that should notice."""

    module: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        return ROOT / FOLDERS[self.module.split(".")[0]] / Path(*self.module.split(".")).with_suffix(".py")

    @property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")


TARGETS = (
    Target("flyball_operator.power.bound", OPERATOR),
    Target("flyball_operator.power.grants.admission", OPERATOR),
    Target("flyball_operator.power.grants.throttling", OPERATOR),
    Target("flyball_operator.power.grants.targets", OPERATOR),
    Target("flyball_operator.power.nodes.reservations", OPERATOR),
    Target("flyball_operator.power.nodes.acknowledgements", OPERATOR),
    Target("flyball_operator.power.grants.brakes", OPERATOR),
    Target("flyball_operator.power.caps.state", OPERATOR),
    Target("flyball_operator.power.caps.tracker", OPERATOR),
    Target("flyball_operator.power.controller", OPERATOR),
    Target("flyball_operator.power.grant_writes", OPERATOR),
    Target("flyball_operator.power.grants.late_nodes", OPERATOR),
    Target("flyball_operator.power.patience", OPERATOR),
    Target("flyball_operator.power.starts_and_stops", OPERATOR),
    Target("flyball_operator.power.nodes.failsafe", OPERATOR),
    Target("flyball_operator.power.holds", OPERATOR),
    Target("flyball_operator.power.caps.memberships", OPERATOR),
    Target("flyball_operator.power.caps.foreign_shares", OPERATOR),
    Target("flyball_operator.power.nodes.info", OPERATOR),
    Target("flyball_operator.power.nodes.heartbeats", OPERATOR),
    Target("flyball_operator.power.caps.reserve", OPERATOR),
    Target("flyball_operator.power.grants.ramp", OPERATOR),
    Target("flyball_operator.power.caps.schedule", OPERATOR),
    Target("flyball_operator.power.observing", OPERATOR),
    Target("flyball_operator.power.nodes.pod_gpus", OPERATOR),
    Target("flyball_operator.power.caps.overhead", OPERATOR),
    Target("flyball_operator.power.caps.meter", OPERATOR),
    Target("flyball_operator.power.caps.status", OPERATOR),
    Target("flyball_operator.power.caps.status_writes", OPERATOR),
    Target("flyball_operator.power.nodes.gpu_facts", OPERATOR),
    Target("flyball_agent.enforce.decisions", AGENT),
    Target("flyball_agent.enforce.grant", AGENT),
    Target("flyball_agent.enforce.brakes", ENFORCE),
    Target("flyball_agent.enforce.adoption", ENFORCE),
    Target("flyball_agent.enforce.clock_wishes", ENFORCE),
    Target("flyball_api.grant", (*CONTRACT, "tests/agent/enforce/test_brakes.py")),
    Target("flyball_api.gpu_node", CONTRACT),
)


class Verdict(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    NOT_RUN = "no test runs it"


class TestsFailError(Exception):
    """The tests fail without any mistake, so that their failure would tell nothing of one."""


@dataclass(frozen=True)
class Recorded:
    """What one test did without a mistake: the statements that it ran, as (module, line), and its processor time."""

    statements: frozenset[tuple[str, int]]
    processor_seconds: float


Near = tuple[pytest.Item, Recorded]


@dataclass(frozen=True)
class RecordedFile:
    """What the tests did without a mistake, in a file; `of` says of which sources and targets that is."""

    path: Path
    of: str

    def read(self) -> dict[str, Recorded] | None:
        """By the tests' names; None where the file has nothing of these sources and targets."""
        if not self.path.exists():
            return None
        of, found = pickle.loads(self.path.read_bytes())  # noqa: S301 - ours
        return found if of == self.of else None

    def write(self, found: dict[str, Recorded]) -> None:
        """Keep them in the place of others."""
        temporary = self.path.with_suffix(".new")
        temporary.write_bytes(pickle.dumps((self.of, found)))
        temporary.rename(self.path)


def all_mutants(target: Target) -> list[Mutant]:
    """The mutants of one target."""
    return list(mutants(target.module, target.source))


def try_all(
    targets: Sequence[Target],
    jobs: int,
    report: Callable[[Iterator[tuple[Mutant, Verdict]]], None],
    known: Collection[str] = (),
    recorded: RecordedFile | None = None,
) -> None:
    """Try every mutant of these but the `known` keys, `jobs` at a time, and hand `report` the verdicts as they come.

    They come in any order; what `report` does not ask for is not tried. What the tests do without a mutant is taken from
    `recorded` where that has it. Raises TestsFailError where the tests fail without any mutant.
    """
    run = _Run(targets, jobs, report, known, recorded)
    tests = sorted({test for target in targets for test in target.tests})
    code = pytest.main([*ARGUMENTS, *tests], plugins=[run])
    if run.error is not None:
        raise run.error
    if code != pytest.ExitCode.OK:
        raise TestsFailError(f"pytest ended with {code!r} before any test ran: {', '.join(tests)}")


class _Run:
    """A plugin of pytest that tries mutants in the place of running the tests once."""

    def __init__(
        self,
        targets: Sequence[Target],
        jobs: int,
        report: Callable[[Iterator[tuple[Mutant, Verdict]]], None],
        known: Collection[str],
        recorded: RecordedFile | None,
    ) -> None:
        self._targets = targets
        self._jobs = jobs
        self._report = report
        self._known = known
        self._recorded = recorded
        self.error: Exception | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        try:
            kept = None if self._recorded is None else self._recorded.read()
            if kept is None:
                tests = _without_a_mistake(self._targets, session)
                if self._recorded is not None:
                    self._recorded.write({item.nodeid: what for item, what in tests})
            else:
                tests = [(item, kept[item.nodeid]) for item in session.items]
            self._report(self._verdicts(session, tests))
        except TestsFailError as error:
            self.error = error
        return True

    def _verdicts(self, session: pytest.Session, tests: Sequence[Near]) -> Iterator[tuple[Mutant, Verdict]]:
        gc.freeze()  # a fork that looks through what it shares copies it
        order, items = Order(), {item.nodeid: item for item, _ in tests}
        running: dict[int, tuple[Mutant, Sequence[pytest.Item], mmap.mmap]] = {}
        waiting = [
            mutant
            for target in reversed(self._targets)
            for mutant in reversed(all_mutants(target))
            if mutant.key not in self._known
        ]
        try:
            while waiting or running:
                while waiting and len(running) < self._jobs:
                    mutant = waiting.pop()
                    near = {
                        item.nodeid: recorded.processor_seconds
                        for item, recorded in tests
                        if (mutant.module, mutant.statement) in recorded.statements
                    }
                    if near:
                        ordered, tried = [items[name] for name in order.of(mutant, near.items())], mmap.mmap(-1, 8)
                        task = partial(_survives, mutant, session, ordered, sum(near.values()), tried)
                        running[in_a_fork(task)] = mutant, ordered, tried
                    else:
                        yield mutant, Verdict.NOT_RUN
                if running:
                    process, status = os.wait()
                    code = os.waitstatus_to_exitcode(status)
                    mutant, given, tried = running.pop(process)
                    if code == NOT_MADE:
                        raise TestsFailError(f"this mistake cannot be made: {mutant.key}")
                    if code != 0:
                        order.noticed(mutant, given[int.from_bytes(tried[:8], sys.byteorder)].nodeid)
                    yield mutant, Verdict.SURVIVED if code == 0 else Verdict.KILLED
        finally:
            for process in running:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)


def _without_a_mistake(targets: Sequence[Target], session: pytest.Session) -> list[Near]:
    """Run every test once in a process of its own; returns them with what was recorded."""
    reading, writing = os.pipe()

    def record() -> bool:
        seen: set[tuple[str, int]] = set()
        for target in targets:
            module = import_module(target.module)
            setattr(module, RECORD, lambda line, name=target.module: seen.add((name, line)))
            swap(module, recorded(target.source, RECORD))
        found: list[Recorded | str] = []
        for item, following in zip(session.items, [*session.items[1:], None], strict=True):
            seen.clear()
            started = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            found.append(Recorded(frozenset(seen), time.process_time() - started))
            if session.testsfailed:
                found[-1] = item.nodeid
                break
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(found, pipe)
        return True

    process = in_a_fork(record)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        written = pipe.read()
    os.waitpid(process, 0)
    found: list[Recorded | str] = pickle.loads(written) if written else ["the process of the tests"]  # noqa: S301 - ours
    if isinstance(found[-1], str):
        raise TestsFailError(f"without any mistake, this fails already: {found[-1]}")
    return [(item, what) for item, what in zip(session.items, found, strict=True) if isinstance(what, Recorded)]


def in_a_fork(task: Callable[[], bool]) -> int:
    """Do the task in a process of its own, which says nothing and whose exit status is 0 where the task returns True."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        silence = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silence, descriptor)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        code = 0 if task() else 1
    finally:
        os._exit(code)


def _survives(
    mutant: Mutant, session: pytest.Session, tests: Sequence[pytest.Item], usual_seconds: float, tried: mmap.mmap
) -> bool:
    """Whether these tests pass with the mutant; `tried` always has the number of the one that is on."""
    limit = int(PROCESSOR_SECONDS + TIMES_THE_PROCESSOR_SECONDS * usual_seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.alarm(WAITING_SECONDS)  # ends this process: a mutant that waits for ever is noticed
    try:
        put(mutant, sys.modules[mutant.module])
    except Exception:  # it must not pass for a test that failed
        os._exit(NOT_MADE)
    for number, (item, following) in enumerate(zip(tests, [*tests[1:], None], strict=True)):
        tried[:8] = number.to_bytes(8, sys.byteorder)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return False
    return True


def put(mutant: Mutant, module: ModuleType) -> None:
    """Make the mistake in the imported module."""
    around = [mutant.function[:end] for end, sign in enumerate(f"{mutant.function}.") if sign == "."]
    assert swap(module, mutant.tree(), around.__contains__) == 1, mutant.key
