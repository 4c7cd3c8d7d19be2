"""Under which epochs nodes have been commanded: what is written, and what agents say of epochs that nothing else knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flyball_kube.serving.token_bucket import TokenBucket

# A restore takes the Lease and the grants back by the epochs since the backup. An agent that acknowledges one further ahead
# is wrong: believed, it could use up the numbers that a Lease can have.
MAX_EPOCHS_LOST = 1000
# An epoch that an agent alone knows of ends a leader's term. There may be several restores in a row, but nobody restores a
# store all day: so often a node's word does it, and then once in so many seconds.
WORDS_AT_ONCE, SECONDS_BETWEEN_WORDS = 8, 600.0
# By then a node may say so as often as one that never has. No sooner is it forgotten that it has: an agent writes what its
# status acknowledges, and may leave it out.
FORGOTTEN_SECONDS = WORDS_AT_ONCE * SECONDS_BETWEEN_WORDS


@dataclass
class _Word:
    """What one node has acknowledged that nothing else knew, and how often it may say so anew."""

    allowed: TokenBucket
    epoch: int = 0
    taken_at: float = 0.0


class Epochs:
    """Remembers how often each node has had a word on epochs."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._words: dict[str, _Word] = {}  # by the node's name

    def take_in(self, written: int, acknowledged: Mapping[str, int]) -> int:
        """The highest epoch that there has been, by the highest that stands in grants and brakes, and by what each node has
        acknowledged, of which a later one counts as often as that node may say so."""
        forgotten = self._monotonic() - FORGOTTEN_SECONDS
        self._words = {
            name: word for name, word in self._words.items() if name in acknowledged or word.taken_at > forgotten
        }
        highest = written
        for name, epoch in acknowledged.items():
            if written < epoch <= written + MAX_EPOCHS_LOST and self._counts(name, epoch):
                highest = max(highest, epoch)
        return highest

    def _counts(self, name: str, epoch: int) -> bool:
        word = self._words.get(name)
        if word is None:
            allowed = TokenBucket(1 / SECONDS_BETWEEN_WORDS, WORDS_AT_ONCE, self._monotonic)
            word = self._words[name] = _Word(allowed)
        if epoch != word.epoch and word.allowed.take():
            word.epoch, word.taken_at = epoch, self._monotonic()
        return epoch == word.epoch
