"""Tries mutants, each in a process forked from this one, with a module's tests nearest first."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import io
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import CodeType

from tests.mutants.mutate import Mutant, mutants

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 300
PROTOCOL = "tests/operator/power/test_power_protocol.py"


@dataclass(frozen=True)
class Target:
    """A module to mutate, and the tests that should notice, the quickest first."""

    module: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        root = {"flyball_operator": "operator", "flyball_agent": "node_agent"}[self.module.split(".")[0]]
        return ROOT / root / Path(*self.module.split(".")).with_suffix(".py")


POWER = "tests/operator/power/"
TARGETS = (
    Target("flyball_operator.power.bound", (f"{POWER}test_bound.py", f"{POWER}test_admission.py", PROTOCOL)),
    Target("flyball_operator.power.admission", (f"{POWER}test_admission.py", PROTOCOL)),
    Target(
        "flyball_operator.power.targets",
        (f"{POWER}test_targets.py", "tests/operator/test_gpu_resources.py", PROTOCOL),
    ),
    Target(
        "flyball_operator.power.reservations",
        (f"{POWER}test_targets.py", f"{POWER}test_cap_state.py", PROTOCOL),
    ),
    Target("flyball_operator.power.acknowledgements", (f"{POWER}test_acknowledgements.py", PROTOCOL)),
    Target("flyball_operator.power.cap_state", (f"{POWER}test_cap_state.py", f"{POWER}test_controller.py", PROTOCOL)),
    Target("flyball_operator.power.controller", (f"{POWER}test_controller.py", PROTOCOL)),
    Target("flyball_agent.enforce.decisions", ("tests/agent/enforce/test_decisions.py", PROTOCOL)),
    Target("flyball_agent.enforce.grant", ("tests/agent/enforce/test_grant.py", PROTOCOL)),
)


@dataclass(frozen=True)
class Trial:
    """A mutant and the tests to try it with."""

    mutant: Mutant
    tests: tuple[str, ...]
    path: Path

    @property
    def module(self) -> str:
        return self.mutant.module


class Verdict(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"


def all_mutants(target: Target) -> list[Trial]:
    """The mutants of one target."""
    source = target.path.read_text(encoding="utf-8")
    return [Trial(mutant, target.tests, target.path) for mutant in mutants(target.module, source)]


def preload() -> None:
    """Import what is slow to import and not mutated, once for all forks."""
    for name in (
        "pytest",
        "hypothesis.stateful",
        "msgspec",
        "flyball_planner",
        "flyball_api.gpu_node",
        "flyball_kube.logs",
    ):
        import_module(name)
    import_module("flyball_planner.models.gpu").catalogue()


def try_all(trials: Sequence[Trial], jobs: int) -> Iterator[tuple[Trial, Verdict]]:
    """Try every mutant, `jobs` at a time, in any order."""
    running: dict[int, Trial] = {}
    waiting = list(reversed(trials))
    while waiting or running:
        while waiting and len(running) < jobs:
            trial = waiting.pop()
            running[_fork(trial)] = trial
        process, status = os.wait()
        yield running.pop(process), Verdict.SURVIVED if os.waitstatus_to_exitcode(status) == 0 else Verdict.KILLED


def _fork(trial: Trial) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        signal.alarm(TIMEOUT_SECONDS)  # ends this process: a mutant that hangs is noticed
        os.chdir(ROOT)
        code = int(survives(trial) is False)
    finally:
        os._exit(code)


def survives(trial: Trial) -> bool:
    """Whether all tests pass with the mutant; to be called in a process that has not imported its module."""
    assert trial.module not in sys.modules, f"{trial.module} has been imported already"
    sys.meta_path.insert(0, _MutantFinder(trial))
    return passes(trial.tests)


def passes(tests: Iterable[str]) -> bool:
    """Whether these tests pass, up to the first that does not."""
    import pytest

    arguments = ["-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile", "repeatable"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return all(pytest.main([*arguments, test]) == 0 for test in tests)


class _MutantFinder(importlib.abc.MetaPathFinder):
    """Finds the mutated module in the place of the real one."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._trial.module:
            return None
        loader = _MutantLoader(fullname, str(self._trial.path), self._trial.mutant)
        return importlib.machinery.ModuleSpec(fullname, loader, origin=str(self._trial.path))


class _MutantLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._mutant.tree(), self.path, "exec")
