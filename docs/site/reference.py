"""Writes docs/reference: every field of the API from its CRDs, every command from the command line itself.

python -m docs.site.reference            # `make docs` does it first; a test holds the pages to it
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flyball_api.manifests import manifests
from flyball_cli.main import build_app
from typer.main import get_command

LIMITS = (
    ("minimum", "at least {}"), ("maximum", "at most {}"), ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"), ("minItems", "at least {} entries"), ("maxItems", "at most {} entries"),
    ("pattern", "like `{}`"), ("format", "{}"), ("default", "default `{}`"),
)  # fmt: skip


def cell(text: object) -> str:
    """A text in one cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def kind_of(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {kind_of(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of {kind_of(schema['additionalProperties'])}"
    return kind


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Each field below a schema with its path, in the order of the CRD; lists are marked by `[]`."""
    required = set(schema.get("required", ()))
    for name, child in schema.get("properties", {}).items():
        inner, suffix = child, ""
        if child.get("type") == "array":
            inner, suffix = child.get("items", {}), "[]"
        yield f"{path}.{name}{suffix}", child, name in required
        yield from fields(inner, f"{path}.{name}{suffix}")


def api_page() -> str:
    """The page of every field of every kind."""
    lines = ["# Every field of the API\n"]
    lines.append("From the CRDs in `crds/`, as `kubectl explain` has them. What the fields mean together stands in")
    lines.append("[the API's own page](../api.md).\n")
    for crd in sorted(manifests(), key=lambda crd: str(crd["spec"]["names"]["kind"])):
        names, scope = crd["spec"]["names"], crd["spec"]["scope"]
        short = ", ".join(f"`{name}`" for name in names.get("shortNames", ()))
        for version in crd["spec"]["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            lines.append(f"## {names['kind']}\n")
            lines.append(
                f"`{crd['spec']['group']}/{version['name']}`, {scope.lower()}{f', short {short}' if short else ''}. "
            )
            lines.append(f"{schema.get('description', '')}")
            for part in ("spec", "status"):
                if part not in schema.get("properties", {}):
                    continue
                lines += ["", f"| {part} | type | limits | what it is |", "|---|---|---|---|"]
                for path, child, required in fields(schema["properties"][part], part):
                    limits = ["required"] if required else []
                    limits += [words.format(child[key]) for key, words in LIMITS if key in child]
                    row = (f"`{path.removeprefix(part + '.')}`", kind_of(child), ", ".join(limits))
                    lines.append("| " + " | ".join(map(cell, (*row, child.get("description", "")))) + " |")
                lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{path} {name}")


def plain(default: object) -> bool:
    """Whether a default needs no word: nothing, not set, an empty list, or made only when it is asked for."""
    return default is None or default is ... or default is False or default in ("", [], ()) or callable(default)


def cli_page() -> str:
    """The page of every command with its options."""
    lines = ["# Every command\n", "From `flyball ... --help`.\n"]
    for path, command in commands(get_command(build_app()), "flyball"):
        lines.append(f"## {path}\n")
        text = command.help or ""
        lines += ["```text", *(line.rstrip() for line in text.strip().split("\n")), "```\n"]
        shown = [
            parameter
            for parameter in command.params
            if not getattr(parameter, "hidden", False) and parameter.name != "help"
        ]
        if not shown:
            continue
        lines += ["| option | default | variable | what it is |", "|---|---|---|---|"]
        for parameter in shown:
            if parameter.param_type_name == "argument":
                name = f"`{(parameter.name or '').upper()}`"
            else:
                name = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
            default = parameter.default
            said = "required" if parameter.required else "" if plain(default) else f"`{default}`"
            variables = parameter.envvar or ()
            variables = (variables,) if isinstance(variables, str) else variables
            row = (name, said, ", ".join(f"`{each}`" for each in variables))
            lines.append("| " + " | ".join(map(cell, (*row, getattr(parameter, "help", "") or ""))) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def pages() -> dict[str, str]:
    """The pages by their paths in the site."""
    return {"reference/api.md": api_page(), "reference/cli.md": cli_page()}
