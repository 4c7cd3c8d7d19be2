"""What is wrong in a YAML file, on one line and with the place, in place of the parser's picture of it."""

from __future__ import annotations

from typing import Any


def yaml_problem(error: Exception) -> str:
    """What a YAMLError says, as `line 2, column 1: expected ...`; of one that names no place its own words on one line."""
    mark: Any = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}".replace("<stream end>", "the end of the file")
