"""Options: each job at each size it could have, computed when first asked for and in batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np

from flyball_planner.ledger.caps import Accounting, CapAccount
from flyball_planner.ledger.curves import (
    ClockChoice,
    Curves,
    Indices,
    JobColumns,
    Terms,
    Variant,
    compute_curves,
    named_clocks,
)
from flyball_planner.ledger.pools import Pool, shape
from flyball_planner.snapshot import JobState

LOWEST, ADMISSION, BASE = 0, 1, 2  # the clocks at which a plan's power is kept in account
LIMIT, DRAW = 0, 1  # the two ways in which a cap may count a GPU


class _Missing(Enum):
    """What a look-up finds where nothing is known; None says that there is no such option."""

    NOT_THERE = 0


NOT_THERE: Final = _Missing.NOT_THERE


class Option(NamedTuple):
    """One job at one size: seconds and joules of an iteration at the base clock, watts of one GPU at three clocks.

    `admission_seconds` is the time of an iteration at the admission clock, `best_seconds` at the highest clock of the job's
    own bounds. `watts` is indexed [LOWEST, ADMISSION or BASE][LIMIT or DRAW]. `row` is the option's row in `curves`, the
    `*_index` are positions in its clocks: lowest, base, highest that constraints and objective leave, the same were the job
    not only observed, and highest of its own bounds.
    """

    gpus: int
    nodes: int
    seconds: float
    joules: float
    admission_seconds: float
    watts: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
    lowest_index: int
    base_index: int
    top_index: int
    governed_index: int
    fastest_index: int
    best_seconds: float
    meets_deadline: bool
    within_budget: bool
    curves: Curves
    row: int


def ladder(job: JobState) -> tuple[int, ...]:
    """The sizes a job may have, ascending: its minimum, doubled up to its maximum, as batch and memory permit.

    Empty where no size within its bounds gives every GPU at least one sample and no more than its memory holds.
    """
    sizes = []
    gpus = job.gpus_min
    while gpus <= min(job.gpus_max, job.global_batch_size):
        if job.max_local_batch_size is None or job.global_batch_size <= gpus * job.max_local_batch_size:
            sizes.append(gpus)
        gpus *= 2
    return tuple(sizes)


def variant_of(pool: Pool, accounts: Sequence[CapAccount]) -> Variant:
    """The kind of pool, as far as options can tell."""
    kinds = {accounts[cap].accounting for cap in pool.cap_indices}
    return Variant(
        gpu_model=pool.gpu_model,
        cell_gpus=pool.cell_gpus,
        idle_limit_watts=pool.idle_limit_watts,
        idle_draw_watts=pool.idle_draw_watts,
        by_limits=Accounting.LIMITS in kinds,
        at_min_limits=Accounting.DRAW_AT_MIN_LIMITS in kinds,
    )


class OptionBook:
    """Every option that the allocation has asked for.

    Sizes climb a ladder; when one job asks for a rung, the same rung is computed for every job: soon the others will ask.
    """

    def __init__(
        self,
        jobs: Sequence[JobState],
        columns: JobColumns,
        terms: Terms,
        variant_of_pool: Sequence[Variant],
        eligible_pools: Sequence[Sequence[int]],
    ) -> None:
        self._columns = columns
        self._terms = terms
        self._variants = list(dict.fromkeys(variant_of_pool))
        self._variant_of_pool = [self._variants.index(variant) for variant in variant_of_pool]
        self._spreads: list[dict[int, int]] = [{} for _ in self._variants]  # nodes in the usual shape, by GPUs
        self.ladders = [ladder(job) for job in jobs]
        self._options: dict[tuple[int, int, int, int], Option | None] = {}
        self._of_alike: dict[
            int, dict[tuple[int, int, int], Option | None]
        ] = {}  # by variant: of the first of alike jobs
        self._usual: dict[
            tuple[int, int, int], Option | None
        ] = {}  # in the usual shape, by pool: what is asked most often
        self._rungs_noted: set[tuple[int, int]] = set()  # of which variants
        self._jobs_of_variant: list[list[int]] = [[] for _ in self._variants]
        for job, pools in enumerate(eligible_pools):
            for variant in sorted({self._variant_of_pool[pool] for pool in pools}):
                self._jobs_of_variant[variant].append(job)

    def strictest(self, pools: Sequence[int]) -> int:
        """Of the pools that a job spans, the one whose caps ask most of its clocks: its options hold in all of them."""
        if len(pools) == 1:
            return pools[0]
        variants = self._variants
        return min(
            pools,
            key=lambda pool: (
                not variants[self._variant_of_pool[pool]].at_min_limits,
                not variants[self._variant_of_pool[pool]].by_limits,
                pool,
            ),
        )

    def kind_of(self, pool: int) -> int:
        """A number that is the same for pools which give a job the same options."""
        return self._variant_of_pool[pool]

    def at_min_limits(self, pool: int) -> bool:
        """Whether a cap over the pool allows no limit above the smallest."""
        return self._variants[self._variant_of_pool[pool]].at_min_limits

    def prepare(self, wanted: Iterable[tuple[int, int, int, int | None]]) -> None:
        """Compute the options (job, pool, GPUs, nodes or None for the usual shape) that are not there yet."""
        missing: dict[int, list[tuple[int, int, int]]] = {}
        for job, pool, gpus, nodes in wanted:
            self._note_missing(missing, job, self._variant_of_pool[pool], gpus, nodes)
        self._compute_all(missing)

    def at(self, job: int, pool: int, gpus: int, nodes: int | None = None) -> Option | None:
        """A job at a size in a pool; None where a cap asks for the smallest limits and the job's bounds forbid them."""
        if nodes is not None:
            return self._in_shape(job, self._variant_of_pool[pool], gpus, nodes)
        usual = (job, pool, gpus)
        option = self._usual.get(usual, NOT_THERE)
        if option is NOT_THERE:
            variant = self._variant_of_pool[pool]
            option = self._usual[usual] = self._in_shape(job, variant, gpus, self._spread(variant, gpus))
        return option

    def _in_shape(self, job: int, variant: int, gpus: int, nodes: int) -> Option | None:
        key = (job, variant, gpus, nodes)
        option = self._options.get(key, NOT_THERE)
        if option is NOT_THERE:
            missing: dict[int, list[tuple[int, int, int]]] = {}
            self._note_missing(missing, job, variant, gpus, nodes)
            if gpus in self.ladders[job]:
                self._note_rung(missing, variant, self.ladders[job].index(gpus))
            self._compute_all(missing)
            option = self._options[key]
        return option

    def _spread(self, variant: int, gpus: int) -> int:
        spreads = self._spreads[variant]
        nodes = spreads.get(gpus)
        if nodes is None:
            nodes = spreads[gpus] = shape(gpus, self._variants[variant].cell_gpus)[0]
        return nodes

    def _note_rung(self, missing: dict[int, list[tuple[int, int, int]]], variant: int, rung: int) -> None:
        """Note what is missing of all jobs' options at this rung of their sizes, each on as few nodes as possible; once."""
        if (variant, rung) in self._rungs_noted:
            return
        self._rungs_noted.add((variant, rung))
        for job in self._jobs_of_variant[variant]:
            if len(self.ladders[job]) > rung:
                self._note_missing(missing, job, variant, self.ladders[job][rung], None)

    def _note_missing(
        self, missing: dict[int, list[tuple[int, int, int]]], job: int, variant: int, gpus: int, nodes: int | None
    ) -> None:
        spread = self._spread(variant, gpus) if nodes is None else nodes
        key = (job, variant, gpus, spread)
        if key not in self._options:
            self._options[key] = None
            missing.setdefault(variant, []).append((job, gpus, spread))

    def _compute_all(self, missing: dict[int, list[tuple[int, int, int]]]) -> None:
        first = self._columns.first_alike
        for index in sorted(missing):
            known = self._of_alike.setdefault(index, {})
            wanted = {(first[job], gpus, nodes): None for job, gpus, nodes in missing[index]}
            new = [key for key in wanted if key not in known]
            if new:
                variant = self._variants[index]
                job, gpus, nodes = np.array(new, dtype=np.int64).T
                curves = compute_curves(self._columns, self._terms, variant, job, gpus, nodes)
                choice = named_clocks(self._columns, self._terms, variant, curves, job, gpus)
                known.update(zip(new, _options(gpus, nodes, curves, choice), strict=True))
            for one, size, spread in missing[index]:
                self._options[(one, index, size, spread)] = known[(first[one], size, spread)]


def _options(gpus: Indices, nodes: Indices, curves: Curves, choice: ClockChoice) -> list[Option | None]:
    rows = np.arange(len(gpus))
    named = (choice.lowest, choice.admission, choice.base)
    watts = [
        zip(curves.limit_watts[rows, index].tolist(), curves.draw_watts[rows, index].tolist(), strict=True)
        for index in named
    ]
    watts_of_row = [(lowest, admission, base) for lowest, admission, base in zip(*watts, strict=True)]
    columns = zip(
        gpus.tolist(),
        nodes.tolist(),
        curves.seconds[rows, choice.base].tolist(),
        curves.joules[rows, choice.base].tolist(),
        curves.seconds[rows, choice.admission].tolist(),
        watts_of_row,
        choice.lowest.tolist(),
        choice.base.tolist(),
        choice.top.tolist(),
        choice.governed.tolist(),
        choice.fastest.tolist(),
        curves.seconds[rows, choice.fastest].tolist(),
        choice.meets_deadline.tolist(),
        choice.within_budget.tolist(),
        repeat(curves),
        range(len(gpus)),
        strict=False,
    )
    return [
        Option._make(column) if valid else None for column, valid in zip(columns, choice.valid.tolist(), strict=True)
    ]
