"""What a GPU draws while it waits for others: in watts, and no more than any GPU draws."""

from __future__ import annotations

from flyball_planner.models.gpu import LARGEST_DEFAULT_LIMIT_WATTS

MOST_BLOCKING_WATTS = LARGEST_DEFAULT_LIMIT_WATTS


def checked_blocking_watts(name: str, watts: float) -> float:
    """`watts` as a GPU can draw them while it waits; raises ValueError that calls them by `name`."""
    if watts > MOST_BLOCKING_WATTS:
        raise ValueError(
            f"{name} {watts:g}: no GPU draws more than {MOST_BLOCKING_WATTS:g} W; wanted the watts of one that waits "
            f"(milliwatts would be {watts / 1000:g} W)"
        )
    return watts
