"""The mutants themselves: each of the mistakes is made, everything else stays, and the list of accepted ones is true."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants.__main__ import KeptVerdicts
from tests.mutants.accepted import ACCEPTED
from tests.mutants.mutate import mutants, recorded
from tests.mutants.order import Order
from tests.mutants.run import ROOT, TARGETS, Recorded, RecordedFile, Target, Verdict, all_mutants, put
from tests.mutants.swap import swap

SOURCE = '''
LIMIT = 1 < 2

def guarded(self, items: int = 1 < 2):
    """A docstring."""
    if items < LIMIT and self.open:
        return None
    logger.info("logged")
    self.seen[items] = max(items, LIMIT)
    return self.low | self.high
'''


def changes() -> dict[str, str]:
    """What becomes of the source's function, by the mistake."""
    return {
        item.change: ast.unparse(next(node for node in item.tree().body if isinstance(node, ast.FunctionDef)))
        for item in mutants("module", SOURCE)
    }


@pytest.mark.parametrize(
    ("change", "made"),
    [
        ("if not (items < LIMIT and self.open)", "if not (items < LIMIT and self.open):"),
        ("if True", "if True:"),
        ("if False", "if False:"),
        ("without 'items < LIMIT'", "if self.open and self.open:"),
        ("without 'self.open'", "if items < LIMIT and items < LIMIT:"),
        ("LtE", "if items <= LIMIT and self.open:"),
        ("forgotten", "    pass\n"),
        ("without 'items'", "max(LIMIT)"),
        ("without 'LIMIT'", "max(items)"),
        ("without the right side", "return self.low | self.low"),
        ("without the left side", "return self.high | self.high"),
    ],
)
def test_each_mistake_is_made(change: str, made: str) -> None:
    assert made in changes()[change]


def test_nothing_else_is_mistaken() -> None:
    found = [item for item in mutants("module", SOURCE) if "LIMIT = 1" in item.original or "logged" in item.original]
    assert found == []
    assert {item.function for item in mutants("module", SOURCE)} == {"guarded"}


def test_a_call_of_the_base_class_is_not_forgotten() -> None:
    """The function without it could not be put in the place of the one with it."""
    source = "class Error(ValueError):\n    def __init__(self):\n        super().__init__('x')\n        self.note()\n"
    assert [mutant.original for mutant in mutants("module", source)] == ["self.note()"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.module)
def test_mutants_can_be_compiled_and_differ_from_what_is_there(target: Target) -> None:
    source = ast.unparse(ast.parse(target.path.read_text(encoding="utf-8")))
    made = all_mutants(target)
    assert len(made) > 5
    for mutant in made[:: len(made) // 5]:
        tree = mutant.tree()
        compile(tree, "mutant", "exec")
        assert ast.unparse(tree) != source, mutant.key


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.module)
def test_every_mutant_can_be_put_into_the_imported_module(target: Target) -> None:
    module = import_module(target.module)
    mistakes = {mutant.function: mutant for mutant in all_mutants(target)}  # the last of each function
    try:
        for mutant in mistakes.values():
            put(mutant, module)
    finally:
        assert swap(module, ast.parse(target.source)) >= len({name.split(".<locals>")[0] for name in mistakes})


def test_every_accepted_mutant_exists() -> None:
    keys = [mutant.key for target in TARGETS for mutant in all_mutants(target)]
    assert ACCEPTED.keys() <= set(keys)
    assert len(keys) == len(set(keys))


def test_every_accepted_mutant_is_told_with_its_reason() -> None:
    told = (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")
    listed = [line for line in told.splitlines() if line.startswith("- `flyball_")]
    assert listed == [f"- `{key}`: {reason}" for key, reason in ACCEPTED.items()]


def test_every_module_that_is_mutated_is_named() -> None:
    told = (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")
    for target in TARGETS:
        assert f"`{target.path.stem}`" in told, target.module


# --- mistakes in an imported module --------------------------------------------------------------------------------------

IMPORTED = """
import functools

def doubled(value, times=2, *, plus=1 + 0):
    if value:
        return value * times + plus
    return [times for _ in range(value)]

class Box:
    def __init__(self, value): self.value = value
    @property
    def size(self): return self.value + 1
    @classmethod
    def of(cls, value): return cls(value + 1)
    @functools.cached_property
    def once(self): return self.value + 1
"""


def imported() -> ModuleType:
    module = ModuleType("imported")
    exec(IMPORTED, vars(module))  # noqa: S102
    return module


def test_a_mistake_is_seen_by_whoever_has_imported_the_function() -> None:
    module = imported()
    doubled, box = module.doubled, module.Box
    found = {item.key: item for item in mutants("imported", IMPORTED)}
    put(found["imported:doubled: value * times + plus -> Sub"], module)
    assert doubled(3) == 5
    put(found["imported:doubled: 1 + 0 -> Sub"], module)
    assert doubled(3) == 7
    for function in ("Box.size", "Box.of", "Box.once"):
        put(found[f"imported:{function}: {'self.' if function != 'Box.of' else ''}value + 1 -> Sub"], module)
    assert box(3).size == 2
    assert box.of(3).value == 2
    assert box(3).once == 2


def test_what_is_recorded_is_every_statement_that_a_test_runs_and_none_else() -> None:
    module = imported()
    seen: list[int] = []
    module.record = seen.append  # type: ignore[attr-defined]
    assert swap(module, recorded(IMPORTED, "record")) == 5
    assert module.doubled(3) == 7
    assert [IMPORTED.splitlines()[line - 1].strip() for line in seen] == ["if value:", "return value * times + plus"]
    lines = {item.statement for item in mutants("imported", IMPORTED) if item.function == "doubled"}
    assert set(seen) <= lines


def test_a_function_that_cannot_be_found_is_said_so() -> None:
    module = imported()
    module.doubled = 3  # type: ignore[attr-defined]
    with pytest.raises(LookupError, match="doubled is no function"):
        swap(module, ast.parse(IMPORTED))


# --- a run: in which order, and in pieces ---------------------------------------------------------------------------------


def test_what_noticed_a_mistake_in_the_function_is_tried_first_then_what_is_quick() -> None:
    source = "def one(value):\n    return value + 1 + 2\ndef other(value):\n    return value + 1\n"
    first, second, elsewhere = sorted(mutants("module", source), key=lambda item: item.function)
    assert (first.function, second.function, elsewhere.function) == ("one", "one", "other")
    seconds = {"slow": 9.0, "noticed": 0.3, "quick": 0.004, "quicker": 0.003}
    order = Order()
    assert order.of(first, seconds.items()) == ["quicker", "quick", "noticed", "slow"]
    order.noticed(first, "noticed")
    assert order.of(second, seconds.items()) == ["noticed", "quicker", "quick", "slow"]
    assert order.of(elsewhere, seconds.items()) == ["quicker", "quick", "noticed", "slow"]
    order.noticed(second, "slow")
    assert order.of(first, seconds.items()) == ["noticed", "quicker", "quick", "slow"], (
        "that it noticed one pays for so much"
    )


def test_a_run_goes_on_where_it_was_stopped_on_the_same_sources_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    assert list(KeptVerdicts(path, "sources").read()) == []
    KeptVerdicts(path, "sources").add("a", Verdict.KILLED)
    KeptVerdicts(path, "other sources").add("b", Verdict.KILLED)
    KeptVerdicts(path, "sources").add("c", Verdict.NOT_RUN)
    with path.open("a") as file:
        file.write('\n["sources", "half a li')
    assert list(KeptVerdicts(path, "sources").read()) == [("a", Verdict.KILLED), ("c", Verdict.NOT_RUN)]
    KeptVerdicts(path, "sources").add("d", Verdict.SURVIVED)
    assert list(KeptVerdicts(path, "sources").read())[2:] == [("d", Verdict.SURVIVED)]


def test_what_tests_run_is_kept_for_the_same_sources_and_targets_alone(tmp_path: Path) -> None:
    path = tmp_path / "recorded"
    assert RecordedFile(path, "sources bound").read() is None
    found = {"test_a": Recorded(frozenset({("module", 3)}), 0.5)}
    RecordedFile(path, "sources bound").write(found)
    assert RecordedFile(path, "sources bound").read() == found
    assert RecordedFile(path, "sources bound targets").read() is None
