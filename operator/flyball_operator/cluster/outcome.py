"""What became of a write to the API server, as far as its answer shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """DONE: the write took effect. REFUSED: a 4xx answer, the only failure after which it certainly did not. UNKNOWN: it
    may have."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome of one write; `invalid` is the API server's message where the object itself is refused (sending it again
    cannot help), `not_found` where the object to be changed does not exist, `conflict` where another writer was first.

    `message` is what the API server says of any write that it refuses.
    """

    outcome: Outcome
    invalid: str = ""
    not_found: bool = False
    conflict: bool = False
    message: str = ""

    @property
    def done(self) -> bool:
        return self.outcome is Outcome.DONE


DONE = WriteResult(Outcome.DONE)
UNKNOWN = WriteResult(Outcome.UNKNOWN)


def combined(results: Iterable[WriteResult]) -> WriteResult:
    """DONE where every one of the writes is, or else the first result that is not."""
    return next((result for result in results if not result.done), DONE)
