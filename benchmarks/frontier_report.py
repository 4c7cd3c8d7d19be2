"""What `frontier.py` prints and keeps, and the thresholds that its figures are set against."""

from __future__ import annotations

from dataclasses import dataclass, field

THRESHOLDS = {
    "seconds of 8 x 32": 2.0,  # what the operator's planning loop can wait for
    "seconds of 8 x 128": 10.0,  # the same, for the longest pipeline in the paper and a third more
    "energy of repeated plans above": 1e-6,  # what a solver's tolerance may be
    "milliseconds of a look-up": 1.0,  # "instantaneous" (section 6.5)
    "speed-up over lowtime, 8 x 96 at 1 ms": 100.0,
}


@dataclass
class Report:
    """What is printed, and what is kept for --output."""

    figures: dict[str, object] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def line(self, text: str = "") -> None:
        print(text, flush=True)

    def hold(self, name: str, figure: float, *, at_least: bool = False) -> None:
        """Keep a figure and set it against its threshold."""
        limit = THRESHOLDS[name]
        fine = figure >= limit if at_least else figure <= limit
        self.figures[name] = {"figure": figure, "threshold": limit, "held": fine}
        self.line(
            f"  {name}: {figure:.3g} ({'at least' if at_least else 'at most'} {limit:g}: {'held' if fine else 'MISSED'})"
        )
        if not fine:
            self.missed.append(name)
