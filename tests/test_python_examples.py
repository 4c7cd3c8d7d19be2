"""The documents' examples in Python: what they import and call is there, and those that are whole run as they stand."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "client" / "flyball"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What the client's guide calls the objects that it hands out.
OF_THE_CLIENT = {"job", "pipeline", "computation", "step"}


@dataclass(frozen=True)
class Example:
    document: str
    number: int
    source: str

    def __str__(self) -> str:
        return f"{self.document}-{self.number}"


EXAMPLES = [
    Example(document.name, number, source)
    for document in sorted((ROOT / "docs").glob("*.md"))
    for number, source in enumerate(BLOCK.findall(document.read_text()))
]


def example(document: str, beginning: str) -> str:
    """The one that begins with such a line."""
    (found,) = (each.source for each in EXAMPLES if each.document == document and each.source.startswith(beginning))
    return found


@pytest.mark.parametrize("each", EXAMPLES, ids=str)
def test_what_is_imported_is_there(each: Example) -> None:
    for node in ast.walk(ast.parse(each.source)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def names_of_the_client() -> set[str]:
    """Functions, methods and fields of the client's classes."""
    names = set()
    for path in CLIENT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                names.add(node.targets[0].attr)
    return names


def test_what_is_asked_of_the_client_is_there() -> None:
    asked = {
        node.attr
        for each in EXAMPLES
        for node in ast.walk(ast.parse(each.source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in OF_THE_CLIENT
    }
    assert {"epochs", "register_state", "completes_batch"} <= asked
    assert asked - names_of_the_client() == set()


def output_of(source: str, folder: Path) -> str:
    """What it prints, run in that folder."""
    done = subprocess.run([sys.executable, "-c", source], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_plan_is_made_as_the_planner_s_page_says(tmp_path: Path) -> None:
    printed = output_of(example("planner.md", "from flyball_planner import"), tmp_path)
    assert "GPUs on" in printed
    assert "row-a" in printed


def test_a_frontier_is_made_in_three_lines(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "profiles" / "gpt3-a40-8-stages.csv", tmp_path / "stages.csv")
    assert output_of(example("frontiers.md", "from flyball_frontiers import"), tmp_path).strip()


def test_a_simulated_node_is_made_and_set_as_its_page_says(tmp_path: Path) -> None:
    (tmp_path / "hw").mkdir()
    printed = output_of(example("simulated-gpu.md", "from flyball_simulated_gpu") + "\nprint(state)\n", tmp_path)
    assert "power_milliwatts" in printed
