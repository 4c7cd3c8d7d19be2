"""The mutants themselves: each of the mistakes is made, everything else stays, and the list of accepted ones is true."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.accepted import ACCEPTED
from tests.mutants.mutate import mutants
from tests.mutants.run import TARGETS, Target, all_mutants

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


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.module)
def test_mutants_can_be_compiled_and_differ_from_what_is_there(target: Target) -> None:
    source = ast.unparse(ast.parse(target.path.read_text(encoding="utf-8")))
    trials = all_mutants(target)
    assert len(trials) > 5
    for trial in trials[:: len(trials) // 5]:
        tree = trial.mutant.tree()
        compile(tree, "mutant", "exec")
        assert ast.unparse(tree) != source, trial.mutant.key


def test_every_accepted_mutant_exists() -> None:
    keys = {trial.mutant.key for target in TARGETS for trial in all_mutants(target)}
    assert ACCEPTED.keys() <= keys
