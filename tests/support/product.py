"""Where what people install, run or copy lies in the repository."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def packages() -> list[Path]:
    """The folders of what is installed."""
    found = []
    for project in (ROOT / "pyproject.toml", ROOT / "client/pyproject.toml"):
        names = tomllib.loads(project.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        found += [project.parent / name for name in names]
    return found


def product_folders() -> list[Path]:
    """Whatever is installed, run or copied by people: all but the tests."""
    return [ROOT / "benchmarks", ROOT / "deploy", ROOT / "examples", *packages()]
