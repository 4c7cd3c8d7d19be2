"""Clocks that training processes ask for, each for a while: below what their job was granted, never above.

They are in no journal and end by themselves, so that a trainer or an agent that dies leaves the grant's own range.
"""

from __future__ import annotations

from collections.abc import Mapping

from flyball_agent.enforce.gpu_state import PodName

MAX_WISHES = 256  # more pods than a kubelet takes


class ClockWishes:
    """The highest clock that each pod wants on its GPUs, until when."""

    def __init__(self) -> None:
        self._wishes: dict[PodName, tuple[int, int]] = {}

    def ask(self, pod: PodName, max_megahertz: int | None, until_ns: int, now_ns: int) -> None:
        """Take a pod's wish in place of its last one; None takes it back."""
        self._wishes.pop(pod, None)
        self._forget(now_ns)
        if max_megahertz is not None and len(self._wishes) < MAX_WISHES:
            self._wishes[pod] = (max_megahertz, until_ns)

    def current(self, now_ns: int) -> Mapping[PodName, int]:
        """The wishes that have not run out, in megahertz."""
        self._forget(now_ns)
        return {pod: megahertz for pod, (megahertz, _) in self._wishes.items()}

    def _forget(self, now_ns: int) -> None:
        self._wishes = {pod: wish for pod, wish in self._wishes.items() if wish[1] > now_ns}
