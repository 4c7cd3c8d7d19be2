"""What asks changes nothing: in the rooms of decisions, a method that answers and changes what its object remembers
is named by a verb that says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE_ROOMS = (
    "operator/flyball_operator/power",
    "operator/flyball_operator/jobs",
    "operator/flyball_operator/learning",
    "operator/flyball_operator/planning",
    "node_agent/flyball_agent/enforce",
    "planner/flyball_planner",
)
VERBS = frozenset(
    (
        "answered",
        "ask",
        "believe",
        "brake",
        "charge",
        "find",
        "follow",
        "grow",
        "handle",
        "judge",
        "leave",
        "load",
        "make",
        "note",
        "observe",
        "put",
        "start",
        "step",
        "swap",
        "sync",
        "take",
        "undo",
        "update",
    )
)
# What these remember is what they would work out again: asked twice, in whatever order, they say the same.
MEMORIES = frozenset(
    {
        "Fitting.fits",
        "JobColumns.parameters",
        "JobStates.timeless",
        "KnownGpus.facts_of",
        "LargestNode.gpus_of",
        "OptionBook.at",
        "PaceBands.of_class",
        "PlanState.what_if",  # undone before it answers
        "PodsGpus.of",
        "Room.cheapest_anywhere",
        "_Room.fit",
    }
)
CHANGING_CALLS = frozenset(
    (
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "setdefault",
        "update",
    )
)


def own_attribute(node: ast.expr) -> bool:
    """Whether an expression is something of `self`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return True
        node = node.value
    return False


def changes_itself(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method sets, deletes or calls upon to change anything of `self`."""
    for node in ast.walk(method):
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = [each for target in node.targets for each in ast.walk(target) if isinstance(each, ast.expr)]
            stored = [each for each in targets if isinstance(getattr(each, "ctx", None), (ast.Store, ast.Del))]
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            stored = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING_CALLS:
            stored = [node.func.value]
        else:
            continue
        if any(own_attribute(each) for each in stored):
            return True
    return False


def answers(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return method.returns is not None and ast.unparse(method.returns) not in ("None", "Self")


def asking_and_changing(source: str) -> Iterator[str]:
    """The public methods, by class and name, that answer, change something and are not named by one of VERBS."""
    for defined in ast.walk(ast.parse(source)):
        if not isinstance(defined, ast.ClassDef):
            continue
        for method in defined.body:
            if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) or method.name.startswith("_"):
                continue
            if method.name.split("_")[0] not in VERBS and answers(method) and changes_itself(method):
                yield f"{defined.name}.{method.name}"


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_what_asks_changes_nothing(room: str) -> None:
    modules = list((ROOT / room).rglob("*.py"))
    assert modules
    found = {name for module in modules for name in asking_and_changing(module.read_text())}
    assert not found - MEMORIES, "name it by a verb, or part it into what takes in and what asks"


def test_every_memory_that_is_excepted_is_there() -> None:
    modules = (module for room in PURE_ROOMS for module in (ROOT / room).rglob("*.py"))
    assert {name for module in modules for name in asking_and_changing(module.read_text())} >= MEMORIES


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return self._a", False),
        ("found = self._a; found += 1; return found", False),
        ("self._a = 1; return 2", True),
        ("self._a, b = 1, 2; return b", True),
        ("self._a[1] = 2; return 3", True),
        ("self._a += 1; return 2", True),
        ("self._a.b.pop(1); return 2", True),
        ("del self._a[1]; return 2", True),
    ],
)
def test_the_rule_sees_what_a_method_changes(body: str, found: bool) -> None:
    source = f"class A:\n    def is_it(self) -> int:\n        {body}\n"
    assert list(asking_and_changing(source)) == (["A.is_it"] if found else [])
