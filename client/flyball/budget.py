"""What a job may still use: of its energy budget, and of the time until it is to be done."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from flyball.environment import BudgetSection


@dataclass(frozen=True)
class Budget:
    """The whole job's, over all its starts; what is not known is None.

    `kilojoules` is what it may use (`energy.budgetKilojoules`; None: as much as it needs), `used_kilojoules` what it has
    used: what was counted of it when it was started, and since then what this pod's GPUs have used, by the agent's last
    answer, times the pods that there are. `due` is when it is to be done: its deadline, or the end of the time for which it
    may be put off.
    """

    kilojoules: int | None = None
    used_kilojoules: float | None = None
    due: datetime | None = None

    @classmethod
    def of(cls, section: BudgetSection, pod_millijoules: int | None) -> Budget:
        """The budget that the environment gave at the start, with what this pod has used since counted for each pod."""
        used = None
        if section.used_kilojoules is not None and pod_millijoules is not None:
            used = section.used_kilojoules + section.pods * pod_millijoules / 1e6
        return cls(section.kilojoules, used, section.due)

    @property
    def left_kilojoules(self) -> float | None:
        """What is left of the energy; below 0 where the job has used more than it may."""
        if self.kilojoules is None or self.used_kilojoules is None:
            return None
        return self.kilojoules - self.used_kilojoules

    @property
    def left_seconds(self) -> float | None:
        """The seconds until it is due, by this machine's clock; below 0 where that is over."""
        return None if self.due is None else self.due.timestamp() - time.time()
