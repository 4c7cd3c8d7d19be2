"""Exploration with pruning: one walk from the default batch size down, then up, each until one fails.

Zeus, section 4.4 and Algorithm 3, lines 2-9. The cost over batch sizes is convex around its least, so a batch size
beyond one that failed need not be tried. A round is a value: what to explore next follows from what was explored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Explored:
    """What one exploratory run came to: its cost in joules, and whether it reached the target before its limit."""

    batch_size: int
    cost: float
    reached: bool


@dataclass(frozen=True)
class PruningRound:
    """One round: the batch sizes it may try (rising), where it starts, and what it found so far, in order.

    Raises ValueError where the default is not among the batch sizes, or these do not rise.
    """

    batch_sizes: tuple[int, ...]
    default_batch_size: int
    explored: tuple[Explored, ...] = ()

    def __post_init__(self) -> None:
        if list(self.batch_sizes) != sorted(set(self.batch_sizes)) or not self.batch_sizes or self.batch_sizes[0] <= 0:
            raise ValueError(f"batch sizes {self.batch_sizes}: at least one, positive, each once, in rising order")
        if self.default_batch_size not in self.batch_sizes:
            raise ValueError(f"default batch size {self.default_batch_size} is not one of {self.batch_sizes}")

    @property
    def next_batch_size(self) -> int | None:
        """The batch size to explore now, or None where the round is over (Algorithm 3, lines 3-5)."""
        found = {result.batch_size: result.reached for result in self.explored}
        down = [size for size in reversed(self.batch_sizes) if size <= self.default_batch_size]
        up = [size for size in self.batch_sizes if size > self.default_batch_size]
        for direction in (down, up):
            for size in direction:
                if size not in found:
                    return size
                if not found[size]:
                    break
        return None

    def after(self, result: Explored) -> PruningRound:
        """The round once `next_batch_size` was run; raises ValueError on a run of any other batch size."""
        if result.batch_size != self.next_batch_size:
            raise ValueError(f"explored batch size {result.batch_size}; the round waits for {self.next_batch_size}")
        return replace(self, explored=(*self.explored, result))

    @property
    def survivors(self) -> tuple[int, ...]:
        """The batch sizes that reached the target, rising (line 6)."""
        return tuple(sorted(result.batch_size for result in self.explored if result.reached))

    def following(self) -> PruningRound:
        """The next round: the survivors, from the one of least cost (lines 6-7).

        Raises ValueError where nothing survived.
        """
        best = least(self.explored)
        if best is None:
            raise ValueError(f"no batch size of {self.batch_sizes} reached the target")
        return PruningRound(self.survivors, best.batch_size)

    def to_json(self) -> dict[str, Any]:
        return {
            "batch_sizes": list(self.batch_sizes),
            "default_batch_size": self.default_batch_size,
            "explored": [[result.batch_size, result.cost, result.reached] for result in self.explored],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> PruningRound:
        return cls(
            tuple(record["batch_sizes"]),
            record["default_batch_size"],
            tuple(Explored(*result) for result in record["explored"]),
        )


def least(results: Sequence[Explored]) -> Explored | None:
    """The cheapest result that reached the target, the smaller batch size among equals; None where none did."""
    reached = [result for result in results if result.reached]
    return min(reached, key=lambda result: (result.cost, result.batch_size)) if reached else None
