"""The one number that Zeus minimises: joules and seconds weighed against each other by the user's eta."""

from __future__ import annotations

import math


def energy_time_cost(
    energy_joules: float, time_seconds: float, energy_weight: float, maximum_power_watts: float
) -> float:
    """eta * energy + (1 - eta) * MAXPOWER * time, in joules (Zeus, section 3.1, equation 2).

    `energy_weight` is the paper's eta in [0, 1]: 1 counts joules only, 0 seconds only. `maximum_power_watts` is the
    largest power limit of all GPUs of the job together; it turns seconds into joules. Raises ValueError where the
    weight is outside [0, 1] or the power is not a positive number.
    """
    check_weights(energy_weight, maximum_power_watts)
    return energy_weight * energy_joules + (1.0 - energy_weight) * maximum_power_watts * time_seconds


def check_weights(energy_weight: float, maximum_power_watts: float) -> None:
    """Raises ValueError where eta is outside [0, 1] or the maximum power is not a positive number."""
    if not 0.0 <= energy_weight <= 1.0:
        raise ValueError(f"energy weight {energy_weight} is outside [0, 1] (1: joules only, 0: seconds only)")
    if not (maximum_power_watts > 0.0 and math.isfinite(maximum_power_watts)):
        raise ValueError(f"maximum power {maximum_power_watts} W is not a positive number of watts")
