"""Tests import nothing from each other: what several of them use is in `tests/support`."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def imported(path: Path) -> set[str]:
    """The modules that a file imports, absolutely."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{item.name}" for item in node.names)}
    return found


def test_no_test_is_imported() -> None:
    tests = {".".join(path.relative_to(TESTS.parent).with_suffix("").parts) for path in TESTS.rglob("test_*.py")}
    assert "tests.support.test_imports" in tests
    found = {str(path.relative_to(TESTS)): imported(path) & tests for path in TESTS.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}
