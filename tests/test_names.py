"""Values do not speak: no name says that they were told, said or heard, as docs/development.md has it under Style."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SPEAKS = re.compile(r"(^|_)(told|said|heard)(_|$)", re.IGNORECASE)


def product_folders() -> list[Path]:
    """Whatever is installed, run or copied by people: all but the tests."""
    found = [ROOT / "benchmarks", ROOT / "deploy", ROOT / "examples"]
    for project in (ROOT / "pyproject.toml", ROOT / "client/pyproject.toml"):
        packages = tomllib.loads(project.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        found += [project.parent / package for package in packages]
    return found


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
