"""What all processes of a start do together: rank 0 says what, all do it, and rank 0 says what came of it.

By files of the volume that they share, and only where a checkpoint is made or loaded: a training's own collectives are not
Flyball's to use. Each value has one length always, as one is written over the other.
"""

from __future__ import annotations

import time
from typing import Callable

from flyball.shared_values import SharedValues

_WORDS = 160


class Together:
    """One kind of thing that is done together, by its `name`; what is done carries a number, each larger than the last.

    Raises OSError where the volume cannot be read or written. Without `values` a process is alone, and all is agreed.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        world_size: int,
        values: SharedValues | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._rank = rank
        self._others = range(1, world_size) if values is not None else range(0)
        self._values = values
        self._monotonic = monotonic
        if values is not None:
            for what in ("begun", "ended", *(f"done-{other}" for other in self._others)):
                values.declare(f"{name}-{what}")

    def begin(self, number: int, words: str) -> None:
        """On rank 0: start the piece of work `number`, described by `words`, on all processes."""
        self._put("begun", number, words)

    def begun(self, number: int, seconds: float) -> str | None:
        """On the other ranks: what rank 0 described as work `number`; None where it does not in time."""
        return self._wait("begun", number, seconds)

    def done(self, number: int, *, well: bool) -> None:
        """On the other ranks: note that this process has finished its part, and whether it succeeded."""
        self._put(f"done-{self._rank}", number, "well" if well else "failed")

    def all_done(self, number: int, seconds: float) -> str:
        """Rank 0: why not all others have done their part well; empty where they have. It waits for each, failed or not."""
        until, why = self._monotonic() + seconds, ""
        for other in self._others:
            words = self._wait(f"done-{other}", number, until - self._monotonic())
            if words != "well":
                why = why or f"rank {other} {'has failed' if words else f'did not answer within {seconds:g} s'}"
        return why

    def end(self, number: int, words: str) -> None:
        """On rank 0: publish the result of the work."""
        self._put("ended", number, words)

    def ended(self, number: int, seconds: float) -> str | None:
        """On the other ranks: the result that rank 0 published; None where it does not in time."""
        return self._wait("ended", number, seconds)

    def newest(self, what: str) -> tuple[int, str] | None:
        """The number and the words of the latest message of this kind; None where there is none."""
        text = None if self._values is None else self._values.get(f"{self._name}-{what}")
        number, _, words = (text or "").partition(" ")
        return (int(number), words.strip()) if number.isdecimal() else None

    def _put(self, what: str, number: int, words: str) -> None:
        if self._values is not None:
            self._values.put(f"{self._name}-{what}", f"{number:015d} {words[:_WORDS]:<{_WORDS}}")

    def _wait(self, what: str, number: int, seconds: float) -> str | None:
        until = self._monotonic() + seconds
        while True:
            found = self.newest(what)
            if found is not None and found[0] >= number:
                return found[1] if found[0] == number else None
            if self._values is None or self._monotonic() >= until:
                return None
            self._values.pause()
