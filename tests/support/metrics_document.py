"""The tables of docs/metrics.md, and the same of what is served: name, type, labels and help text of every metric."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import Metric

DOCUMENT = Path(__file__).parents[2] / "docs/metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)


class Described(NamedTuple):
    """What is said of one metric beside its name."""

    type: str
    labels: frozenset[str]
    text: str


def documented(heading: str) -> dict[str, Described]:
    """The metrics of the table under a heading of the document."""
    section = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return {
        name: Described(kind, frozenset(re.findall(r"`(\w+)`", labels)), text.strip())
        for name, kind, labels, text in ROW.findall(section)
    }


def described(families: Iterable[Metric]) -> dict[str, Described]:
    """The metrics of ours among what is served; each family must have a sample, which alone shows its labels."""
    found = {}
    for family in families:
        if not family.name.startswith("flyball_"):
            continue
        assert family.samples, f"{family.name} has no series to show its labels"
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
        found[name] = Described(family.type, labels, family.documentation)
    return found


def table(served: dict[str, Described]) -> str:
    """The Markdown of a table as `documented` reads it."""
    rows = [
        f"| `{name}` | {what.type} | {', '.join(f'`{label}`' for label in sorted(what.labels))} | {what.text} |"
        for name, what in sorted(served.items())
    ]
    return "\n".join(["| metric | type | labels | what it says |", "|---|---|---|---|", *rows, ""])
