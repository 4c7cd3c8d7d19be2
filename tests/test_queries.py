"""What asks changes nothing: in the rooms of decisions, a function that answers and changes what its object remembers, or
what it was given, is named by a verb that says so. And nothing there reads a clock that nobody has given it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
Method = ast.FunctionDef | ast.AsyncFunctionDef
PURE_ROOMS = (
    "operator/flyball_operator/power",
    "operator/flyball_operator/jobs",
    "operator/flyball_operator/learning",
    "operator/flyball_operator/planning",
    "operator/flyball_operator/cluster",
    "operator/flyball_operator/report",
    "node_agent/flyball_agent/enforce",
    "node_agent/flyball_agent/energy",
    "node_agent/flyball_agent/govern",
    "planner/flyball_planner",
    "simulator/flyball_simulator",
    "frontiers/flyball_frontiers",
    "crds/flyball_api",
    "views/flyball_views",
)
VERBS = frozenset(
    (
        "answered",
        "ask",
        "attribute",
        "believe",
        "brake",
        "charge",
        "clear",
        "end",
        "fall",
        "fill",
        "find",
        "follow",
        "give",
        "grow",
        "handle",
        "judge",
        "leave",
        "load",
        "look",
        "make",
        "note",
        "observe",
        "put",
        "receive",
        "renew",
        "run",
        "serve",
        "set",
        "shrink",
        "start",
        "step",
        "swap",
        "sync",
        "take",
        "undo",
        "update",
        "write",
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
        "NodeUses.read",
        "NodeUses.used",  # it lets go of what nobody takes any more
        "OptionBook.at",
        "Oracle.performance",
        "PaceBands.of_class",
        "PaceBands.of_fit",
        "PlanCodec.from_json",
        "PlanState.what_if",  # undone before it answers
        "PodsGpus.of",
        "Predictor.predict",
        "Room.cheapest_anywhere",
        "Room.relevant_pools",
        "Savings._ratio",
        "Stepper.base_gpus",
        "_Demands.of",
        "_consumption",
        "_job_view",
        "fitted_model",
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


def named(node: ast.expr) -> str | None:
    """The variable of which an expression is an attribute or item, however deep; None where it is none of a variable."""
    depth = 0
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node, depth = node.value, depth + 1
    return node.id if isinstance(node, ast.Name) and depth else None


def names_in(*targets: ast.AST) -> set[str]:
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def bound_to(method: Method, given: frozenset[str]) -> set[str]:
    """The variables that are something of what was given, or that itself: `known = self._known[uid]`.

    What is bound to anything else as well (`job = replace(job, ...)`) is a method's own: what happens to it is not judged.
    """
    bound, others = set(given), set[str]()
    for node in ast.walk(method):
        if isinstance(node, ast.Assign):
            found = node.value
            if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute) and found.func.attr == "get":
                found = found.func.value
            copied = isinstance(found, ast.Subscript) and isinstance(found.slice, ast.Slice)
            (bound if named(found) in bound and not copied else others).update(
                name for target in node.targets if isinstance(target, ast.Name) for name in names_in(target)
            )
            others |= names_in(*(target for target in node.targets if isinstance(target, ast.Tuple))) - given
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and isinstance(node.target, ast.Name):
            others.add(node.target.id)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            others |= names_in(node.target)
    return bound - others


def changed(method: Method) -> Iterator[ast.expr]:
    """What a method sets, deletes or calls upon to change."""
    for node in ast.walk(method):
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = [each for target in node.targets for each in ast.walk(target) if isinstance(each, ast.expr)]
            yield from (each for each in targets if isinstance(getattr(each, "ctx", None), (ast.Store, ast.Del)))
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            yield node.target
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING_CALLS:
            yield ast.Attribute(node.func.value, node.func.attr)


def changes(method: Method, given: frozenset[str]) -> bool:
    """Whether a method changes something of the variables that it was given."""
    bound = bound_to(method, given)
    return any(named(each) in bound for each in changed(method))


def changes_what_it_was_given(method: Method) -> bool:
    """Whether a function changes what is remembered elsewhere: of its object, or of its arguments."""
    every = method.args
    given = {each.arg for each in (*every.posonlyargs, *every.args, *every.kwonlyargs)}
    return changes(method, frozenset(given if method.name[0] != "_" else given - {"self"}))


def answers(method: Method) -> bool:
    return method.returns is not None and ast.unparse(method.returns) not in ("None", "Self")


def asking_and_changing(source: str) -> Iterator[str]:
    """The functions and methods, by class and name, that answer, change something and are not named by one of VERBS.

    Of private methods only what they change of their arguments is looked at: they are parts of a public one.
    """
    tree = ast.parse(source)
    places: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree)]
    places += [(f"{node.name}.", node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for prefix, place in places:
        for method in place.body:
            if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) or method.name.startswith("__"):
                continue
            verb = method.name.lstrip("_").split("_")[0]
            if verb not in VERBS and answers(method) and changes_what_it_was_given(method):
                yield f"{prefix}{method.name}"


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_what_asks_changes_nothing(room: str) -> None:
    modules = list((ROOT / room).rglob("*.py"))
    assert modules
    found = {name for module in modules for name in asking_and_changing(module.read_text())}
    assert not found - MEMORIES, "name it by a verb, or part it into what takes in and what asks"


CLOCKS = frozenset(
    f"{module}.{name}"
    for module, names in {
        "time": ("monotonic", "monotonic_ns", "time", "time_ns", "perf_counter", "process_time", "thread_time"),
        "datetime": ("now", "utcnow", "today"),
        "date": ("today",),
    }.items()
    for name in names
)


def clocks_read(source: str) -> list[str]:
    """The calls of a clock in a module; a default argument may be one, by which a caller can give another."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    defaults = [
        each for node in functions for each in (*node.args.defaults, *node.args.kw_defaults) if each is not None
    ]
    given = {id(node) for each in defaults for node in ast.walk(each)}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in given)
    return [name for call in calls if (name := ast.unparse(call.func)) in CLOCKS]


# A simulation tells how long it took.
@pytest.mark.parametrize("room", [room for room in PURE_ROOMS if room != "simulator/flyball_simulator"])
def test_what_decides_reads_no_clock_of_its_own(room: str) -> None:
    modules = list((ROOT / room).rglob("*.py"))
    assert {str(module): read for module in modules if (read := clocks_read(module.read_text()))} == {}


def test_a_clock_is_seen_wherever_it_is_read_and_may_be_a_default() -> None:
    assert clocks_read("def a():\n    return [datetime.now(UTC) for _ in range(time.monotonic_ns())]\n") == [
        "datetime.now",
        "time.monotonic_ns",
    ]
    assert clocks_read("def a(*, clock=lambda: datetime.now(UTC)):\n    return clock()\n") == []


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
        ("known = self._a[1]; known.b = 2; return 3", True),
        ("known = self._a.get(1); known.append(2); return 3", True),
        ("known = self._a[1:]; known.append(2); return known", False),
        ("known = list(self._a); known.append(2); return known", False),
        ("given.append(1); return 2", True),
        ("given[1] = 2; return 3", True),
        ("given.a.b = 1; return 2", True),
        ("given = set(given); given.add(1); return given", False),
    ],
)
def test_the_rule_sees_what_a_method_changes(body: str, found: bool) -> None:
    source = f"class A:\n    def is_it(self, given: Any) -> int:\n        {body}\n"
    assert list(asking_and_changing(source)) == (["A.is_it"] if found else [])


def test_functions_are_held_to_it_too_and_parts_of_a_method_for_their_arguments() -> None:
    source = "def found(given: Any) -> int:\n    given.pop()\n    return 1\n"
    assert list(asking_and_changing(source)) == ["found"]
    source = "class A:\n    def _part(self, given: Any) -> int:\n        self._a = 1\n        return given.pop()\n"
    assert list(asking_and_changing(source)) == ["A._part"]
    assert list(asking_and_changing(source.replace("given.pop()", "1"))) == []
