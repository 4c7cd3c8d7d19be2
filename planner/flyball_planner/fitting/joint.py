"""Time and energy together: the last stage of a fit, where joules help to separate the parts of an iteration.

Where input and gradients overlap, seconds alone hardly say which of them is the longer; joules do, because only gradients
draw power. A fit in two stages that took the wrong one for the longer cannot explain the joules any more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flyball_planner.fitting.energy import EnergyFit
from flyball_planner.fitting.time import TimeFit

Array = NDArray[np.float64]


class JointFit:
    """The coordinates of the time, then those of the energy; log errors of the seconds, then of the joules."""

    def __init__(self, time: TimeFit, energy: EnergyFit) -> None:
        self._time, self._energy = time, energy
        self._split = len(time.start)
        self.start = np.concatenate([time.start, energy.start])
        self.scale = np.concatenate([time.scale, energy.scale])
        self.stiffness = np.concatenate([time.stiffness, energy.stiffness])
        self.low = np.concatenate([time.low, energy.low])
        self.high = np.concatenate([time.high, energy.high])
        self.free = np.concatenate([time.free, energy.free + self._split])
        self.groups = time.groups + energy.groups
        self._all_powered = time.groups == energy.groups

    @property
    def fitted_names(self) -> list[str]:
        """The parameters that the data can move."""
        return self._time.fitted_names + self._energy.fitted_names

    def parameters(self, points: Array) -> Array:
        """PowerFlow's parameters, (parameters, copies), of coordinates (copies, coordinates)."""
        times, energies = points[:, : self._split], points[:, self._split :]
        return self._energy.parameters(energies, self._time.parameters(times))

    def residuals(self, points: Array) -> Array:
        """Log errors times the square root of their weight, (copies, observations)."""
        times, energies = points[:, : self._split], points[:, self._split :]
        of_seconds, of_joules = self._energy.both_residuals(energies, self._time.parameters(times))
        if not self._all_powered:  # some windows' seconds are not among those
            of_seconds = self._time.residuals(times)
        return np.concatenate([of_seconds, of_joules], axis=1)
