"""Every folder with several modules has its order of them in `pyproject.toml`, where import-linter holds it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def packages(project: Path) -> dict[str, Path]:
    """The folders of a distribution that hold several modules or folders, by their dotted names."""
    wheel = tomllib.loads(project.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    found = {}
    for root in (project.parent / package for package in wheel["packages"]):
        for folder in (path.parent for path in root.rglob("__init__.py")):
            inside = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
            inside += [path.parent for path in folder.glob("*/__init__.py")]
            if len(inside) > 1:
                found[".".join(folder.relative_to(root.parent).parts)] = folder
    return found


def layered(project: Path) -> set[str]:
    contracts = tomllib.loads(project.read_text())["tool"]["importlinter"]["contracts"]
    layers = [contract for contract in contracts if contract["type"] == "layers"]
    assert all(contract["exhaustive"] for contract in layers), "a new module has to be given its place"
    return {container for contract in layers for container in contract["containers"]}


@pytest.mark.parametrize("project", ["pyproject.toml", "client/pyproject.toml"])
def test_every_folder_has_its_layers(project: str) -> None:
    found = packages(ROOT / project)
    assert found, "there are packages"
    assert sorted(found.keys() - layered(ROOT / project)) == []
