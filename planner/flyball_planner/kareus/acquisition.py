"""How much an unmeasured schedule would push the time-energy frontier: hypervolume improvement.

Kareus, section 4.3.2, "Exploitation with hypervolume improvement", and Figure 6. All arrays are of points (time,
energy), lower is better in both; the units are the caller's.
"""

from __future__ import annotations

import numpy as np


def frontier_indices(time: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """Indices of the Pareto front of points (`time`, `energy`), shape (points,) each, in rising time."""
    order = np.lexsort((energy, time))
    best = np.minimum.accumulate(energy[order])
    first = np.concatenate(([True], energy[order][1:] < best[:-1]))
    kept: np.ndarray = order[first]
    return kept


def hypervolume(time: np.ndarray, energy: np.ndarray, reference: tuple[float, float]) -> float:
    """The area that the points dominate below `reference`; points beyond it add nothing."""
    inside = (time < reference[0]) & (energy < reference[1])
    if not inside.any():
        return 0.0
    time, energy = time[inside], energy[inside]
    front = frontier_indices(time, energy)
    ceilings = np.concatenate(([reference[1]], energy[front][:-1]))
    return float(((reference[0] - time[front]) * (ceilings - energy[front])).sum())


def hypervolume_improvement(
    time: np.ndarray,
    energy: np.ndarray,
    front_time: np.ndarray,
    front_energy: np.ndarray,
    reference: tuple[float, float],
) -> np.ndarray:
    """HV(front and candidate) - HV(front), for each candidate, shape (candidates,).

    `front_time` and `front_energy` are the frontier in rising time. Between two neighbours of it the ceiling is the
    energy of the left one (the reference's before the first), so a candidate gains a strip of each interval.
    """
    edges = np.concatenate(([-np.inf], front_time, [reference[0]]))
    edges = np.minimum(edges, reference[0])
    ceilings = np.minimum(np.concatenate(([reference[1]], front_energy)), reference[1])
    widths = np.maximum(0.0, edges[1:][None, :] - np.maximum(edges[:-1][None, :], time[:, None]))
    heights = np.maximum(0.0, ceilings[None, :] - energy[:, None])
    gained: np.ndarray = (widths * heights).sum(axis=1)
    return gained


def shortfall(time: np.ndarray, energy: np.ndarray, front_time: np.ndarray, front_energy: np.ndarray) -> np.ndarray:
    """How much better in both objectives a candidate must be to reach the frontier, shape (candidates,).

    Positive where it is dominated, zero or less where it is not (the additive epsilon indicator): ranks candidates whose
    improvement is zero, which trees often predict for all of them, as they never predict below the best they saw.
    """
    behind = np.minimum(time[:, None] - front_time[None, :], energy[:, None] - front_energy[None, :])
    worst: np.ndarray = behind.max(axis=1)
    return worst
