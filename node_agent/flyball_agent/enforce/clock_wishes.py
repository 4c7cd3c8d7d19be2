"""Clocks that training processes ask for, each for a while: below what their job was granted, never above.

They are in no journal and end by themselves, so that a trainer or an agent that dies leaves the grant's own range.
"""

from __future__ import annotations

from collections.abc import Mapping

from flyball_agent.enforce.gpu_state import PodName

MAX_WISHES = 1024  # more than a node has pods and GPUs

Wish = tuple[PodName, str]
"""Whose: of a pod, for one of its GPUs (by UUID), or for all of them (empty)."""


class ClockWishes:
    """The highest clock that each pod wants on its GPUs, until when."""

    def __init__(self) -> None:
        self._wishes: dict[Wish, tuple[int, int]] = {}

    def ask(self, wish: Wish, max_megahertz: int | None, until_ns: int, now_ns: int) -> None:
        """Take a wish in place of the last one; None takes it back."""
        self._wishes.pop(wish, None)
        self._forget(now_ns)
        if max_megahertz is not None and len(self._wishes) < MAX_WISHES:
            self._wishes[wish] = (max_megahertz, until_ns)

    def current(self, now_ns: int) -> Mapping[Wish, int]:
        """The wishes that have not run out, in megahertz."""
        self._forget(now_ns)
        return {wish: megahertz for wish, (megahertz, _) in self._wishes.items()}

    def _forget(self, now_ns: int) -> None:
        self._wishes = {wish: wanted for wish, wanted in self._wishes.items() if wanted[1] > now_ns}
