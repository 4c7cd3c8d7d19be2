"""Every field that people may write has a test that shows what it does: nothing stands in the API that nobody acts upon."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.spec_fields import SHOWN, shown_by

ROOT = Path(__file__).parents[1]


def _fields(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, field in (schema.get("properties") or {}).items():
        below = field if "properties" in field else field.get("items") or {}
        inside = f"{path}{name}{'[]' if below is not field else ''}"
        if "properties" in below:
            yield from _fields(below, f"{inside}.")
        else:
            yield f"{path}{name}"


@pytest.mark.parametrize("kind", SHOWN)
def test_every_field_has_a_test_that_shows_what_it_does(kind: str) -> None:
    (version,) = yaml.safe_load((ROOT / "crds" / f"{kind}.yaml").read_text())["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert sorted(SHOWN[kind]) == sorted(_fields(spec))


def test_every_kind_that_people_write_is_here() -> None:
    written = {"energyawarejobs", "powercaps", "energyquotas"}
    by_components = {"gpunodes", "powerbrakes", "brakeacknowledgements", "energyprofiles", "energyreports"}
    assert {path.stem for path in (ROOT / "crds").glob("*.yaml")} == written | by_components
    assert set(SHOWN) == written


class _Module:
    """The source of each function, class and constant at the top of a module of tests, by its name."""

    def __init__(self, path: Path) -> None:
        text = path.read_text()
        lines = text.splitlines()
        self._sources: dict[str, str] = {}
        for node in ast.parse(text).body:
            first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", 0)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([first, *(each.lineno for each in node.decorator_list)])
                self._sources[node.name] = "\n".join(lines[first - 1 : last])
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
                self._sources |= dict.fromkeys(names, "\n".join(lines[first - 1 : last]))
        self.tests = {name for name in self._sources if name.startswith("test_")}

    def words_of(self, test: str) -> set[str]:
        """The words of a test, and of all in its module that it uses."""
        words, seen, ahead = set[str](), set[str](), {test}
        while ahead:
            seen |= ahead
            found = {word for name in ahead for word in re.findall(r"\w+", self._sources[name])}
            words |= found
            ahead = (found & self._sources.keys()) - seen
        return words


@pytest.fixture(scope="module")
def words() -> dict[str, set[str]]:
    """The words of every test that shows a field, by its name; of none that does not exist."""
    wanted = {test for tests in SHOWN.values() for shown in tests.values() for test in shown_by(shown)}
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        if path.name != Path(__file__).name and any(f"def {test}(" in text for test in wanted):
            module = _Module(path)
            for test in module.tests & wanted:
                found.setdefault(test, set()).update(module.words_of(test))
    return found


@pytest.mark.parametrize("kind", SHOWN)
def test_the_tests_that_show_it_exist_and_one_of_them_names_the_field(kind: str, words: dict[str, set[str]]) -> None:
    for field, shown in SHOWN[kind].items():
        tests = shown_by(shown)
        assert set(tests) <= words.keys(), field
        name = field.removesuffix("[]").rpartition(".")[2]
        spelled = {name, re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)}
        assert any(spelled & words[test] for test in tests), f"{field}: nothing in {tests} names it"


@pytest.mark.slow
def test_without_a_field_one_of_its_tests_fails() -> None:
    """A test that spells a field may show nothing of it."""
    command = [sys.executable, "-m", "tests.mutants.fields", "--jobs", "2"]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stdout + tried.stderr
