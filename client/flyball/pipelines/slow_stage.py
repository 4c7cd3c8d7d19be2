"""Whether a stage's computations have become slower within an iteration, and how much longer that makes the iteration."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Callable, NamedTuple

# So many computations have to be longer, and of so many of an instruction on end the least slowed counts: one that was held
# up for a reason of its own says nothing.
COMPUTATIONS = 2
# What an estimate has to change by to be told anew.
SIGNIFICANT_SHARE = 0.01


class _Computation(NamedTuple):
    """One computation of an iteration, in seconds since that began."""

    instruction: str
    megahertz: int | None
    began: float
    ended: float


class SlowStage:
    """Compares a stage's computations with those of the same kind and clock in the iteration before.

    The estimate is the least that it can be: what is left of the iteration takes as much longer as its kinds have been
    seen to take, and what the stage waits for comes no later than it did. That a computation is as long as it takes, and
    not only as long as it takes to be begun, is the script's to see to. `degree` is what is known of it, `possible_degree`
    what it may turn out to be by each kind's slowest latest computations.
    """

    def __init__(self) -> None:
        self._usual: dict[tuple[str, int | None], float] = {}
        self._before: list[_Computation] = []
        self._seconds = 0.0
        self._begin()

    def _begin(self) -> None:
        self._now: list[_Computation] = []
        self._slowed: dict[str, deque[float]] = {}
        self._compared = 0
        self.degree = self.possible_degree = 1.0

    def computed(self, instruction: str, megahertz: int | None, began: float, ended: float) -> None:
        """One computation, in seconds since the iteration began."""
        self._now.append(_Computation(instruction, megahertz, began, ended))
        usual = self._usual.get((instruction, megahertz), 0.0)
        if usual <= 0.0:
            return
        self._slowed.setdefault(instruction, deque(maxlen=COMPUTATIONS)).append((ended - began) / usual)
        self._compared += 1
        self.possible_degree = self._longer({name: max(all_) for name, all_ in self._slowed.items()})
        if self._compared >= COMPUTATIONS:
            self.degree = self._longer({name: min(all_) for name, all_ in self._slowed.items()})

    def _longer(self, slowed: Mapping[str, float]) -> float:
        """By how much the iteration becomes longer where these instructions' computations take so much longer."""
        if max(slowed.values()) <= 1.0 + SIGNIFICANT_SHARE or len(self._now) > len(self._before):
            return 1.0
        at = self._now[-1].ended
        for usual in self._before[len(self._now) :]:
            at = max(at, usual.began) + (usual.ended - usual.began) * slowed.get(usual.instruction, 1.0)
        return max(1.0, (at + self._seconds - self._before[-1].ended) / self._seconds)

    def iteration_over(self, seconds: float | None) -> None:
        """The iteration would have taken so long, had it waited for no other replica; None: later ones are not to be
        compared with it."""
        self._usual, self._before = {}, []
        if seconds is not None and self._now:
            kinds: dict[tuple[str, int | None], list[float]] = {}
            for item in self._now:
                kinds.setdefault((item.instruction, item.megahertz), []).append(item.ended - item.began)
            # The middle one: a computation that was held up is no measure of the others.
            self._usual = {kind: sorted(all_)[(len(all_) - 1) // 2] for kind, all_ in kinds.items()}
            self._before, self._seconds = self._now, max(seconds, self._now[-1].ended)
        self._begin()


class SharedDegree:
    """The slowest stage's estimate, shared by all as one value: `ITERATION REPLICA STAGE DEGREE`."""

    def __init__(self, read: Callable[[], str | None], write: Callable[[str], None]) -> None:
        self._read = read
        self._write = write
        self._iteration, self._own = -1, 1.0

    def begin(self) -> None:
        """Make the value before anybody looks for it."""
        self._write(f"{0:015d} {0:08d} {0:08d} {1.0:020.9f}")

    def share(self, iteration: int, replica: int, stage: int, degree: float) -> None:
        """Share this stage's estimate where it has changed and no other stage has shared a larger one."""
        if iteration != self._iteration:
            self._iteration, self._own = iteration, 1.0
        if abs(degree - self._own) < SIGNIFICANT_SHARE:
            return
        found = self.found(iteration)
        if found is None or found[:2] == (replica, stage) or found[2] < degree:
            self._own = degree
            self._write(f"{iteration:015d} {replica:08d} {stage:08d} {degree:020.9f}")

    def found(self, iteration: int) -> tuple[int, int, float] | None:
        """Replica, stage and degree as shared in this iteration."""
        words = (self._read() or "").split(" ")
        try:
            of_iteration, replica, stage, degree = int(words[0]), int(words[1]), int(words[2]), float(words[3])
        except (ValueError, IndexError):
            return None
        return (replica, stage, degree) if of_iteration == iteration and 1.0 <= degree < float("inf") else None
