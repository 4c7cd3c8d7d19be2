"""Room by count: whether jobs of given sizes fit the free GPUs of a pool, without saying yet which node each gets.

Cells are powers of two, so each divides the next, and descending first fit never fails where anything fits: a set of
cells fits nodes with free counts c_i exactly when, at every level l, the cells of at least 2^l GPUs, counted in units of
2^l, are no more than the sum of floor(c_i / 2^l). A job of another size takes the smallest cell that holds it, whole. Each
pool keeps that difference per level, so a test or a change costs a few additions.
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball_planner.ledger.pools import Pool, block_of, level_of, take_room

# What pools are alike by: their kind, and their room in both readings.
_Alike = tuple[int, tuple[int, ...], tuple[int, ...]]


class Slots:
    """Room in every pool, in two readings.

    *Free* room leaves every unchanged job where it is; *open* room lets every movable one migrate. Jobs whose nodes are
    still to be chosen are demand on both. GPUs are counted, never numbered: which device a pod gets is the kubelet's word.

    Pools that differ by nothing but who may come there, and have the same room, need be looked at once: jobs that want
    nodes of their choice may tell apart every node of a cluster.
    """

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._capacities = [pool.capacities for pool in pools]
        self.free = [list(pool.capacities) for pool in pools]
        self.open = [list(pool.capacities) for pool in pools]
        self.free_room = [_rooms(pool) for pool in pools]
        self.open_room = [_rooms(pool) for pool in pools]
        kinds: dict[object, int] = {}
        self._kinds = [kinds.setdefault(_kind(pool), len(kinds)) for pool in pools]
        self._alike: dict[_Alike, int] = {}  # which pools, a bit for each
        self._key_of = [self._key(pool) for pool in range(len(pools))]
        for pool, key in enumerate(self._key_of):
            self._alike[key] = self._alike.get(key, 0) | 1 << pool

    def first_of_alike(self, pools: int) -> list[int]:
        """Of these pools (a bit for each) the first of all that are alike, ascending."""
        found = (members & pools for members in self._alike.values())
        return sorted((members & -members).bit_length() - 1 for members in found if members)

    def free_gpus(self, pools: int) -> int:
        """How many GPUs are free in these pools (a bit for each), those that are wanted beyond what there is taken off."""
        return sum([free[0] * (members & pools).bit_count() for (_, free, _), members in self._alike.items() if free])

    def hold(self, pool: int, place: int, gpus: int, movable: bool) -> None:
        """An unchanged job holds GPUs of one node (on a node that is closed to new jobs it takes nobody's room)."""
        if self._capacities[pool][place]:
            self._occupy(self.free[pool], self.free_room[pool], place, block_of(gpus))
            if movable:
                take_room(self.open_room[pool], level_of(gpus), 1)
            else:
                self._occupy(self.open[pool], self.open_room[pool], place, block_of(gpus))
            self._note(pool)

    def release(self, pool: int, place: int, gpus: int, movable: bool) -> None:
        """The inverse of `hold`."""
        if self._capacities[pool][place]:
            self._occupy(self.free[pool], self.free_room[pool], place, -block_of(gpus))
            if movable:
                take_room(self.open_room[pool], level_of(gpus), -1)
            else:
                self._occupy(self.open[pool], self.open_room[pool], place, -block_of(gpus))
            self._note(pool)

    def demand(self, pool: int, level: int, cells: int) -> None:
        """Cells of 2^level GPUs whose nodes are still to be chosen (negative: no longer wanted)."""
        take_room(self.free_room[pool], level, cells)
        take_room(self.open_room[pool], level, cells)
        self._note(pool)

    def fits(self, pool: int, level: int, cells: int, migrate: bool) -> bool:
        """Whether so many more cells of 2^level GPUs have room, with every unchanged job in place or with migrations."""
        room = self.open_room[pool] if migrate else self.free_room[pool]
        if level >= len(room) or room[level] < cells:
            return False
        # Asked tens of thousands of times a plan: all() of a generator takes twice as long.
        for lower in range(level):  # noqa: SIM110
            if room[lower] < cells << (level - lower):
                return False
        return True

    def most_cells(self, pool: int, level: int, migrate: bool) -> int:
        """How many more cells of 2^level GPUs have room."""
        room = self.open_room[pool] if migrate else self.free_room[pool]
        return max(0, min(room[lower] >> (level - lower) for lower in range(level + 1))) if level < len(room) else 0

    def _key(self, pool: int) -> _Alike:
        return self._kinds[pool], tuple(self.free_room[pool]), tuple(self.open_room[pool])

    def _note(self, pool: int) -> None:
        """Take in that the pool's room has changed."""
        before, key, bit = self._key_of[pool], self._key(pool), 1 << pool
        if key == before:
            return
        left = self._alike[before] ^ bit
        if left:
            self._alike[before] = left
        else:
            del self._alike[before]
        self._alike[key] = self._alike.get(key, 0) | bit
        self._key_of[pool] = key

    @staticmethod
    def _occupy(counts: list[int], room: list[int], place: int, gpus: int) -> None:
        before = counts[place]
        after = counts[place] = before - gpus
        # A node that has lost a GPU since may have less than the cells on it: nobody else lacks those.
        before, after = max(0, before), max(0, after)
        for level in range(len(room)):
            room[level] += (after >> level) - (before >> level)


def _kind(pool: Pool) -> tuple[object, ...]:
    """All that options, watts and caps follow from."""
    return pool.group, pool.cap_indices, pool.idle_limit_watts, pool.idle_draw_watts


def _rooms(pool: Pool) -> list[int]:
    return [sum(capacity >> level for capacity in pool.capacities) for level in range(pool.levels + 1)]
