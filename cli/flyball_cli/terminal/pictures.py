"""Bars with a heading, as files: what pictures of reports share."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES, HEAD_INCHES, BAR_INCHES, LINE_INCHES = 8.0, 1.2, 0.3, 0.15
LETTERS = 100  # of the heading's font, across the picture
DOTS_AN_INCH = 120
LONGEST_NAME = 40


def cut_short(name: str) -> str:
    """A name as it fits beside a bar: of a long one the beginning and the end."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half + 1 :]}"


def bars(names: Sequence[str], title: str, notes: Sequence[str]) -> tuple[Figure, Axes]:
    """An empty picture with a place for a bar of each name, from top to bottom, under a title and notes on it."""
    from matplotlib.figure import Figure  # takes half a second, and is asked for seldom

    heading = [line for text in (title, *notes) for line in textwrap.wrap(text, LETTERS)]
    height = HEAD_INCHES + BAR_INCHES * max(1, len(names)) + LINE_INCHES * len(heading)
    figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DOTS_AN_INCH, layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(names)), [cut_short(name) for name in names])
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.02)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("\n".join(heading), x=0.01, ha="left", fontsize=9)
    return figure, axes
