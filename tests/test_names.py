"""Names as docs/development.md has them under Style: values do not speak, and a package's classes have different names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.product import ROOT, packages, product_folders

SPEAKS = re.compile(r"(^|_)(told|said|heard)(_|$)", re.IGNORECASE)


# One for each framework, and a script imports one of them.
IN_EACH_FRAMEWORK = "FlyballCallback"


def public_classes(package: Path) -> list[str]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(package.rglob("*.py"))]
    return [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]


def names(source: str) -> Iterator[tuple[int, str]]:
    """What a module gives a name to: classes, functions, arguments, variables, attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def test_every_kind_of_name_is_looked_at() -> None:
    source = "class A_said:\n def told(self, heard):\n  self.said_at = word_told = 1\n  return self.told(heard)"
    assert sorted(name for _, name in names(source) if SPEAKS.search(name)) == [
        *("A_said", "heard", "said_at", "told", "word_told")
    ]


def test_no_name_speaks() -> None:
    modules = sorted(path for folder in product_folders() for path in folder.rglob("*.py"))
    assert len(modules) > 500
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in modules
        for line, name in names(path.read_text(encoding="utf-8"))
        if SPEAKS.search(name)
    ]
    assert found == []


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.name)
def test_a_class_has_a_name_of_its_own_in_its_package(package: Path) -> None:
    twice = {name for name, count in Counter(public_classes(package)).items() if count > 1}
    assert twice <= {IN_EACH_FRAMEWORK}
