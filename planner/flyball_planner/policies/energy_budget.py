"""The price of a joule that makes the energy over a window meet a budget: the outer loop of the policy `price`.

Integral control: what has been drawn above the budget raises the price, what was left of it lowers it,

    d(ln l)/dt = GAIN / window * (watts / budget - 1),

so a price at rest means that the mean draw is the budget. It works on the logarithm because a joule's price spans decades
from no matter to everybody at the thriftiest clock. At the ends of its range the price stops (no wind-up): a night far
below the budget is not saved up for days, and a budget that no price can keep does not keep it high when it could be kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_PRICE, HIGHEST_PRICE = 1e-6, 1e-2  # job-seconds for a joule: below and above, nobody would choose otherwise
GAIN = 4.0  # twice the budget for one window takes the price through most of its range
LARGEST_STEP = 1.0  # of ln l at once, however long nobody asked


@dataclass(frozen=True, slots=True)
class EnergyBudget:
    """Mean watts that may be drawn, over a window in seconds. Raises ValueError unless both are positive and finite."""

    watts: float
    window_seconds: float = 6 * 3600.0

    def __post_init__(self) -> None:
        for name, value in (("watts", self.watts), ("window", self.window_seconds)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"an energy budget's {name} is {value}, and must be above 0")

    def next_price(self, price: float, joules: float, seconds: float) -> float:
        """The price after `joules` were drawn in `seconds` at `price`, all at least 0."""
        excess_seconds = joules / self.watts - seconds
        step = GAIN * excess_seconds / self.window_seconds
        step = min(max(step, -LARGEST_STEP), LARGEST_STEP)
        return min(max(max(price, LEAST_PRICE) * math.exp(step), LEAST_PRICE), HIGHEST_PRICE)
