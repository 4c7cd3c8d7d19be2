"""What is wrong with an option's value, with the value and what would be right, in place of a validator's own words."""

from __future__ import annotations

from typing import Any

import typer

# By the kind of the validator's finding: what the value is, and what was wanted; the bound that it broke goes in.
_FINDINGS = {
    "int_parsing": ("no whole number", "one such as 3"),
    "int_from_float": ("no whole number", "one such as 3"),
    "float_parsing": ("no number", "one such as 2.5"),
    "finite_number": ("no finite number", "one such as 2.5"),
    "greater_than_equal": ("too small", "at least {ge}"),
    "less_than_equal": ("too large", "at most {le}"),
    "greater_than": ("too small", "more than {gt}"),
    "less_than": ("too large", "less than {lt}"),
    "bool_parsing": ("neither yes nor no", "true or false"),
}


def in_plain_words(error: typer.BadParameter) -> None:
    """Have the error say what was given and what was wanted, and name environment variables as they are written."""
    param = error.param
    variables = getattr(param, "envvar", None)
    if param is not None and isinstance(variables, (list, tuple)) and getattr(param, "show_envvar", False):
        error.param_hint = " / ".join(f"'{name}'" for name in param.opts) + f" ({', '.join(variables)})"
    findings = getattr(error.__cause__, "errors", None)
    if findings is not None:
        error.message = _of_finding(findings()[0])


def _of_finding(finding: dict[str, Any]) -> str:
    bounds, kind = finding.get("ctx", {}), finding["type"]
    if kind == "value_error":
        return str(bounds["error"])
    if kind in _FINDINGS:
        what, wanted = _FINDINGS[kind]
        return f"{finding['input']} is {what}; wanted {wanted.format(**bounds)}"
    return f"{finding['input']}: {finding['msg']}"
