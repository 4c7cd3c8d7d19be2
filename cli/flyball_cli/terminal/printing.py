"""Tables and explanations as plain text: no colours, no frames, made to be read, searched and mailed."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from flyball_views.tables import Line, Table
from flyball_views.texts import age_text
from flyball_views.why.reasons import Explanation, Weight

GAP = "  "
NARROWEST = 20
# What drives a terminal, or turns the order of its letters around; not the tab.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")
_SPACE = re.compile("[\t\n\x0b\x0c\r]")
_MARKS = {Weight.STOPS: "x", Weight.LIMITS: "!", Weight.NOTE: "-"}


def harmless(text: str) -> str:
    """`text` without colours, and with whatever else would drive a terminal made visible (`\\x1b`).

    Names and messages, and what trainers say, come from anybody; they are printed on the terminals of those who may more.
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), _COLOUR.sub("", text))


def in_one_line(text: str) -> str:
    """`harmless` words, with spaces for ends of lines."""
    return harmless(_SPACE.sub(" ", text))


def terminal_width() -> int | None:
    """How wide the terminal is; None where the output goes elsewhere, and nothing need be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_text(table: Table, lines: Iterable[Line] | None = None, width: int | None = None) -> str:
    """A table as kubectl prints them; its last column is cut to `width`, which the others are not."""
    rows = [[column.title for column in table.columns]]
    rows += [[cell.text for cell in line.cells] for line in (table.lines if lines is None else lines)]
    return columns_text(rows, [column.right for column in table.columns], width)


def columns_text(rows: Sequence[Sequence[str]], right: Sequence[bool], width: int | None = None) -> str:
    """Rows of words in columns; those of `right` are set to the right."""
    rows = [[in_one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in rows) for index in range(len(right))]
    before = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    last = widths[-1] if width is None else min(widths[-1], max(NARROWEST, width - before))
    printed = []
    for row in rows:
        cells = [
            cell.rjust(wide) if to_the_right else cell.ljust(wide)
            for cell, wide, to_the_right in zip(row[:-1], widths, right, strict=False)
        ]
        end = row[-1] if len(row[-1]) <= last else row[-1][: last - 1] + "…"
        printed.append(GAP.join([*cells, end.rjust(last) if right[-1] else end]).rstrip())
    return "\n".join(printed)


def explanation_text(explanation: Explanation, program: str = "kubectl flyball", width: int | None = None) -> str:
    """An explanation, a reason a paragraph: what stops the object (x), what holds it back (!), what is good to know (-)."""
    wide = min(width or 100, 120)
    parts = [in_one_line(f"{explanation.kind} {explanation.name}"), in_one_line(explanation.headline), ""]
    for reason in explanation.reasons:
        age = f" ({age_text(reason.since, explanation.time)})" if reason.since is not None else ""
        parts.append(_paragraph(f"{_MARKS[reason.weight]} ", reason.what + age, wide))
        if reason.change:
            parts.append(_paragraph("    → ", reason.change.replace("kubectl flyball", program), wide))
    if explanation.events:
        parts += ["", "Events:"]
        for event in explanation.events:
            times = f" ({event.count} times)" if event.count > 1 else ""
            ago = age_text(event.time, explanation.time)
            parts.append(_paragraph(f"  {ago:>6}  ", f"{event.reason}: {event.note}{times}", wide))
    if explanation.unknown:
        parts += ["", "Not looked at:"]
        parts += [_paragraph("  ", what, wide) for what in explanation.unknown]
    return "\n".join(parts).rstrip()


def _paragraph(mark: str, words: str, width: int) -> str:
    return textwrap.fill(
        in_one_line(words), width, initial_indent=mark, subsequent_indent=" " * len(mark), break_on_hyphens=False
    )
