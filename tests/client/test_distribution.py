"""The client as a training image gets it: alone, on an old Python, with nothing but the standard library."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from itertools import islice
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "client" / "flyball"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
# Only where somebody imports it by its name; the framework is there then.
ADAPTERS = {
    "torch.py": {"torch"},
    "jax.py": {"jax", "numpy", "orbax"},
    "huggingface.py": {"transformers"},
    "lightning.py": {"lightning"},
    "keras.py": {"keras", "numpy"},
}

TRAIN = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
import flyball
job = flyball.join()
seen = []
for epoch in job.epochs(2):
    for batch in job.loader(range(10), 4):
        with job.step():
            seen += batch
assert sorted(seen) == sorted(list(range(10)) * 2), seen
print(sorted({name.partition(".")[0] for name in sys.modules}))
"""


def imported(source: Path) -> set[str]:
    """The top-level modules that a source imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.name}: imports are written in full"
            names.add((node.module or "").partition(".")[0])
    return names


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_it_imports_the_standard_library_and_itself(source: Path) -> None:
    allowed = sys.stdlib_module_names | {"flyball"} | ADAPTERS.get(source.name, set())
    assert imported(source) <= allowed


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_it_is_written_in_the_oldest_python_that_it_names(source: Path) -> None:
    assert PROJECT["requires-python"] == ">=3.9"
    ast.parse(source.read_text(), feature_version=(3, 9))


def test_nothing_of_ours_imports_it_but_what_trains_by_it() -> None:
    """What runs on nodes and in the operator is no training."""
    folders = ["crds", "kube", "planner", "operator", "node_agent", "views", "page", "cli", "frontiers", "simulator"]
    sources = [source for folder in folders for source in (ROOT / folder).rglob("*.py")]
    imports = re.compile(r"^\s*(?:import|from)\s+flyball(?:\.|\s)", re.MULTILINE)
    assert len(sources) > 100
    assert [source for source in sources if imports.search(source.read_text())] == []


def pythons() -> list[str]:
    """This interpreter, and older and newer ones that run; pyenv's too, which on PATH are scripts that refuse to."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [sys.executable]
    for version in ("3.9", "3.10", "3.13"):
        on_path = shutil.which(f"python{version}")
        programs = [*([on_path] if on_path else []), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}")))]
        ran = (
            program
            for program in programs
            if subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0
        )
        found.extend(islice(ran, 1))
    return found


@pytest.mark.parametrize("python", pythons())
def test_it_trains_without_any_installed_package(python: str, tmp_path: Path) -> None:
    modules = [
        ".".join(("flyball", *source.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for source in SOURCES
        if source.name not in ADAPTERS
    ]
    answer = subprocess.run(
        [python, "-I", "-S", "-c", TRAIN, str(ROOT / "client"), *modules],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert answer.returncode == 0, answer.stderr
    assert "asyncio" not in json.loads(answer.stdout.replace("'", '"')), "an import that training does not wait for"


def test_it_is_a_distribution_of_its_own_without_dependencies(tmp_path: Path) -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (PROJECT["dependencies"], PROJECT["version"]) == ([], whole["version"])
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    answer = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT / "client"
    )
    wheel = zipfile.ZipFile(tmp_path / answer.stdout.split()[-1])
    packed = {name.partition("/")[0] for name in wheel.namelist()}
    assert packed == {"flyball", f"flyball_client-{PROJECT['version']}.dist-info"}
    assert {name for name in wheel.namelist() if name.startswith("flyball/")} == {
        *(str(source.relative_to(PACKAGE.parent)) for source in SOURCES),
        "flyball/py.typed",
    }
