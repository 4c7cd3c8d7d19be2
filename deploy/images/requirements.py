"""Print what `pip` must install for extras of this project, one requirement a line, the project itself left out.

    python requirements.py pyproject.toml operator [more extras]

So that the libraries are a layer of the image that stays the same while only the project's own code changes.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any


def requirements(project: dict[str, Any], extras: list[str]) -> list[str]:
    """The requirements of a `[project]` table with its extras, sorted; extras that name extras are followed.

    Raises KeyError for an extra that the table does not have.
    """
    own = re.compile(rf"{re.escape(project['name'])}\[([^]]+)]$")
    found = set(project["dependencies"])
    seen: set[str] = set()
    waiting = list(extras)
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in project["optional-dependencies"][extra]:
            others = own.match(requirement)
            if others is None:
                found.add(requirement)
            else:
                waiting += others.group(1).split(",")
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(requirements(tomllib.loads(Path(sys.argv[1]).read_text())["project"], sys.argv[2:])))
