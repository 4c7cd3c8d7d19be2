"""How much an unmeasured schedule would push the time-energy frontier: hypervolume improvement.

Kareus, section 4.3.2, "Exploitation with hypervolume improvement", and Figure 6. All arrays are of points (time,
energy), lower is better in both; the units are the caller's.
"""

from __future__ import annotations

import numpy as np

REFERENCE_MARGIN = 1.1
"""Appendix C: a reference point is 1.1 times the worst time and the worst energy."""


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


def choose_by_improvement(
    time: np.ndarray,
    energy: np.ndarray,
    predicted_time: np.ndarray,
    predicted_energy: np.ndarray,
    tie_order: np.ndarray,
    wanted: int,
    taken: frozenset[int],
) -> list[int]:
    """The `wanted` candidates that together promise the largest hypervolume improvement, greedily.

    `time` and `energy`, shape (measured,), are what was measured; `predicted_time` and `predicted_energy`, shape (models,
    candidates), what each model expects. A candidate is worth its improvement on average over the models; once chosen it
    counts as measured, by each model as that model predicts it. Where no candidate improves anything, the one nearest to
    the frontier is next; `tie_order` decides between equals. Candidates in `taken` are left out.
    """
    reference = (REFERENCE_MARGIN * time.max(), REFERENCE_MARGIN * energy.max())
    known = [(time, energy) for _ in predicted_time]
    open_candidates = [index for index in range(predicted_time.shape[1]) if index not in taken]
    chosen: list[int] = []
    while open_candidates and len(chosen) < wanted:
        gain, behind = np.zeros(len(open_candidates)), np.zeros(len(open_candidates))
        for (known_time, known_energy), times, energies in zip(known, predicted_time, predicted_energy, strict=True):
            front = frontier_indices(known_time, known_energy)
            front_time, front_energy = known_time[front], known_energy[front]
            own_time, own_energy = times[open_candidates], energies[open_candidates]
            gain += hypervolume_improvement(own_time, own_energy, front_time, front_energy, reference)
            behind += shortfall(
                own_time / reference[0],
                own_energy / reference[1],
                front_time / reference[0],
                front_energy / reference[1],
            )
        place = int(np.lexsort((tie_order[open_candidates], behind, -gain))[0])
        best = open_candidates.pop(place)
        chosen.append(best)
        known = [
            (np.append(known_time, times[best]), np.append(known_energy, energies[best]))
            for (known_time, known_energy), times, energies in zip(known, predicted_time, predicted_energy, strict=True)
        ]
    return chosen
