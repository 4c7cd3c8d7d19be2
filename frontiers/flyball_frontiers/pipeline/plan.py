"""One energy schedule of a pipeline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flyball_frontiers.pipeline.profile import OperatingPoint

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class PipelinePlan:
    """One energy schedule: seconds and joules planned of each operation, in the graph's order, and the measured point
    that it is run at.

    A steady state is kept once: `places` says for each operation where its own values are in `kept_durations`,
    `kept_energies` and `kept_chosen` (None: in the same place).
    """

    __slots__ = ("kept_chosen", "kept_durations", "kept_energies", "places")

    def __init__(
        self, durations: Floats, energies: Floats, chosen: tuple[OperatingPoint, ...], places: Integers | None = None
    ) -> None:
        self.kept_durations, self.kept_energies, self.kept_chosen, self.places = durations, energies, chosen, places

    @property
    def durations(self) -> Floats:
        return self.kept_durations if self.places is None else self.kept_durations[self.places]

    @property
    def energies(self) -> Floats:
        return self.kept_energies if self.places is None else self.kept_energies[self.places]

    @property
    def chosen(self) -> tuple[OperatingPoint, ...]:
        if self.places is None:
            return self.kept_chosen
        return tuple([self.kept_chosen[place] for place in self.places.tolist()])

    @property
    def clocks_megahertz(self) -> tuple[int | None, ...]:
        return tuple(point.clock_megahertz for point in self.chosen)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PipelinePlan)
            and self.chosen == other.chosen
            and np.array_equal(self.durations, other.durations)
            and np.array_equal(self.energies, other.energies)
        )

    __hash__ = None  # type: ignore[assignment]
