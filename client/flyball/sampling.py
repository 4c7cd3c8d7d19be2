"""Which samples each process trains on: the same global batches at every size, whoever computes which part of one.

An epoch is a permutation of the samples that the seed and the epoch's number give; a global batch is the next
`global_batch_size` of them, the last one what is left. Where training is, is therefore two numbers that know nothing of
how many processes there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

_MASK = (1 << 64) - 1
_ROUNDS = 6


def _mixed(value: int) -> int:
    """64 bits in which each depends on every bit of `value` (the finalizer of splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Order:
    """A permutation of `range(size)`, computed where it is asked for: no memory, and no start however large.

    A Feistel network over a rectangle that holds the size, walked until it is inside (Black and Rogaway, Ciphers with
    Arbitrary Finite Domains, CT-RSA 2002, section 5). Without `shuffle` the samples come as they are.
    """

    def __init__(self, size: int, seed: int, epoch: int, shuffle: bool = True) -> None:
        if size < 1:
            raise ValueError(f"a dataset of {size} samples cannot be trained on")
        self.size = size
        self._shuffle = shuffle
        self._rows = isqrt(size - 1) + 1
        self._columns = -(-size // self._rows)
        key = _mixed(seed & _MASK) ^ epoch
        self._keys = [_mixed(_mixed(key) + number) for number in range(_ROUNDS)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> int:
        """The sample at a place of the epoch. Raises IndexError."""
        if not 0 <= place < self.size:
            raise IndexError(f"place {place} is not within 0..{self.size - 1}")
        if not self._shuffle:
            return place
        while True:
            place = self._encrypted(place)
            if place < self.size:
                return place

    def __iter__(self) -> Iterator[int]:
        return (self[place] for place in range(self.size))

    def _encrypted(self, place: int) -> int:
        rows, columns = self._rows, self._columns
        left, right = place % rows, place // rows
        for number, key in enumerate(self._keys):
            if number % 2:
                right = (right + _mixed(left ^ key)) % columns
            else:
                left = (left + _mixed(right ^ key)) % rows
        return right * rows + left


@dataclass(frozen=True)
class Part:
    """Samples that one process computes at once.

    A mean loss over them times `weight` gives, summed over a process' parts and averaged over the processes, the mean over
    the whole global batch. A process for which a short batch has no sample computes another's with weight 0
    (`samples` is 0 then), since all of them have to take part in the step.
    """

    indices: tuple[int, ...]
    samples: int
    weight: float
    completes_batch: bool
    global_samples: int


def parts_of(
    order: Order, start: int, batch: int, rank: int, world_size: int, max_part: int | None = None
) -> Iterator[Part]:
    """One process' parts of the global batch that begins at place `start`; as many for every process.

    `max_part` is how many samples fit into its memory at once.
    """
    taken = min(batch, len(order) - start)
    first, last = start + taken * rank // world_size, start + taken * (rank + 1) // world_size
    largest_share = -(-taken // world_size)
    count = -(-largest_share // max_part) if max_part else 1
    for number in range(count):
        begin = first + (last - first) * number // count
        end = first + (last - first) * (number + 1) // count
        indices = tuple(order[place] for place in range(begin, end)) or (order[start],)
        yield Part(indices, end - begin, (end - begin) * world_size / taken, number == count - 1, taken)


@dataclass(frozen=True)
class Position:
    """How far training is: whole steps done over all starts, the epoch, and the samples of it that are done."""

    iteration: int = 0
    epoch: int = 0
    samples: int = 0

    def after(self, samples: int, size: int) -> Position:
        """One more step of so many samples of a dataset of `size`."""
        done = self.samples + samples
        if done >= size:
            return Position(self.iteration + 1, self.epoch + 1, 0)
        return Position(self.iteration + 1, self.epoch, done)


def even_parts(batch: int, processes: int, most: int | None) -> tuple[int, int]:
    """A global batch shared evenly: how many samples each process computes at once, `most` at most, and how often.

    Raises ValueError where it cannot be.
    """
    share, rest = divmod(batch, processes)
    if rest or not share:
        raise ValueError(f"a global batch of {batch} samples cannot be shared evenly by {processes} processes")
    times = next(times for times in range(1, share + 1) if share % times == 0 and share // times <= (most or share))
    return share // times, times
