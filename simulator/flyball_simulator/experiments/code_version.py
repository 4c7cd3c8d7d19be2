"""A digest of everything in the source that a simulation's figures depend on.

Kept results are valid for one such digest only. It covers the modules that the engine and the workloads import, directly
or not, and the packages' data files; a change of a picture or of a report leaves it as it is.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOTS = ("flyball_simulator.engine", "flyball_simulator.workloads.source")
PACKAGES = ("flyball_simulator", "flyball_planner")


@cache
def code_version() -> str:
    """Twelve hexadecimal digits."""
    digest = hashlib.sha256()
    for name, path in sorted(modules_behind(ROOTS).items()):
        digest.update(f"{name}\0".encode() + path.read_bytes())
    for package in PACKAGES:
        folder = _file_of(package)
        for path in sorted((folder.parent if folder else Path()).rglob("*")):
            if path.is_file() and path.suffix not in (".py", ".pyc", ".typed") and not path.name.startswith("."):
                digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def modules_behind(roots: tuple[str, ...]) -> dict[str, Path]:
    """The roots, and every module of ours that they import, wherever the import stands."""
    found: dict[str, Path] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        path = _file_of(name) if name not in found else None
        if path is None:
            continue
        found[name] = path
        parts = name.split(".")
        waiting += [".".join(parts[:count]) for count in range(1, len(parts))]  # a package's __init__ runs too
        waiting += [imported for imported in _imports(path) if imported.split(".")[0] in PACKAGES]
    return found


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)  # a name may be a module


def _file_of(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # `package.module.name`, where name is no module
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None
