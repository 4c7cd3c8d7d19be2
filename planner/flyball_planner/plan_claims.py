"""From a snapshot to what a policy works on: pools, caps' accounts, options, and one claim for each job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flyball_planner.allocation_ledger import Claim, Ledger
from flyball_planner.allocation_options import Option, OptionBook, variant_of
from flyball_planner.allocation_steps import Stepper
from flyball_planner.allocation_tables import JobColumns, Terms
from flyball_planner.cluster import CapConstraint, ClusterSnapshot, JobState, NodeState
from flyball_planner.placement_pools import build_pools, eligible_pools, selectors_of
from flyball_planner.power import cap_accounts

UNKNOWN_REMAINDER_SECONDS = 600.0  # a job that says nothing of its end: as long again as it has run, and at least this


class Workspace:
    """Everything that one plan is made in; built from the snapshot, and independent of the order of its parts."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        self.nodes = {node.name: node for node in snapshot.nodes}
        self.caps = sorted(snapshot.caps, key=lambda cap: cap.name)
        self.jobs = sorted(snapshot.jobs, key=lambda job: (job.submit_time_seconds, job.name, job.uid))
        self.accounts = cap_accounts(self.caps, self.nodes)
        selectors = selectors_of(self.jobs)
        self.pools, position = build_pools(snapshot.nodes, self.caps, selectors)
        price = snapshot.joules_per_job_second
        if price is None:
            price = going_price(snapshot.nodes, self.caps, len(self.jobs))
        terms = Terms(snapshot.guard_fraction, price, snapshot.restart_seconds)
        columns = JobColumns(self.jobs)
        eligible = [eligible_pools(job, self.pools, selectors) for job in self.jobs]
        self.book = OptionBook(
            self.jobs, columns, terms, [variant_of(pool, self.accounts) for pool in self.pools], eligible
        )
        self.ledger = Ledger(self.pools, self.accounts, self.book)
        self.stepper = Stepper(self.ledger, snapshot.restart_seconds, price)
        self.claims = [
            self._claim(index, job, pools, position)
            for index, (job, pools) in enumerate(zip(self.jobs, eligible, strict=True))
        ]
        self._prepare_options()
        for claim in self.claims:
            self._complete(claim)
        self._displace_overfull()

    def _claim(
        self, index: int, job: JobState, pools: tuple[int, ...], position: Mapping[str, tuple[int, int]]
    ) -> Claim:
        """The claim without what its options decide. A job whose energy budget is spent has no size that it may have."""
        spent = job.remaining_energy_joules is not None and job.remaining_energy_joules <= 0 and not job.throttled
        claim = Claim(index, job, () if spent else self.book.ladders[index], pools, adjustable=job.resizable)
        current = job.current
        if current is None or not current.nodes:
            return claim
        claim.displaced = spent or any(
            name not in position or gpus < 1 or self.nodes[name].evacuate for name, gpus in current.nodes
        )
        if claim.displaced:
            return claim
        claim.present = tuple((*position[name], gpus) for name, gpus in current.nodes)
        gpus_in: dict[int, int] = {}
        for pool, _, gpus in claim.present:
            gpus_in[pool] = gpus_in.get(pool, 0) + gpus
        claim.present_parts = tuple(sorted(gpus_in.items()))
        claim.clock_ceiling = _clock_ceiling(job, self.nodes)
        claim.adjustable = job.resizable and all(self.nodes[name].fixed_hold_watts is None for name, _ in current.nodes)
        claim.movable = claim.adjustable and all(self.pools[pool].capacities[place] for pool, place, _ in claim.present)
        return claim

    def _prepare_options(self) -> None:
        """Compute at once what every job will be asked for first: where it is, one size up, and its smallest sizes."""
        wanted: list[tuple[int, int, int, int | None]] = []
        for claim in self.claims:
            job, sizes = claim.job, claim.ladder
            if claim.present:
                assert job.current is not None  # noqa: S101 - what is present has an allocation
                pool = self.book.strictest(pool for pool, _ in claim.present_parts)
                wanted.append((claim.index, pool, job.current.gpus, len(job.current.nodes)))
            bound = job.seconds_to_deadline is not None or job.remaining_energy_joules is not None
            if not bound:
                reach = (
                    job.current.gpus * 2 if claim.present and job.current is not None else sizes[1] if sizes[1:] else 0
                )
                sizes = tuple(size for rung, size in enumerate(sizes) if size <= reach or rung == 0)
            wanted += [(claim.index, pool, size, None) for pool in claim.pools[:1] for size in sizes]
        self.book.prepare(wanted)

    def _complete(self, claim: Claim) -> None:
        """What follows from the options: the present one, and the iterations left."""
        job = claim.job
        if claim.present and job.current is not None:
            pool = self.book.strictest(pool for pool, _ in claim.present_parts)
            claim.present_option = self.book.at(claim.index, pool, job.current.gpus, len(job.current.nodes))
            claim.displaced = claim.present_option is None  # no clock that a floored cap would allow
        reference = self._first_option(claim) or claim.present_option
        if job.remaining_iterations is not None:
            claim.remaining = max(0.0, job.remaining_iterations)
        elif reference is not None:
            seconds = max(job.attained_gpu_seconds / reference.gpus, UNKNOWN_REMAINDER_SECONDS)
            claim.remaining = seconds / reference.seconds

    def _first_option(self, claim: Claim) -> Option | None:
        """The smallest size in the first pool that has it: a yardstick that does not depend on where the job is now."""
        options = (self.book.at(claim.index, pool, claim.ladder[0]) for pool in sorted(claim.pools) if claim.ladder)
        return next((option for option in options if option is not None), None)

    def _displace_overfull(self) -> None:
        """Where running jobs hold more than a node still has (a GPU was lost, a foreign pod came), the least must go."""
        held: dict[tuple[int, int], list[Claim]] = {}
        for claim in self.claims:
            for pool, place, _ in claim.present:
                held.setdefault((pool, place), []).append(claim)
        for (pool, place), residents in sorted(held.items()):
            capacity = self.pools[pool].capacities[place]
            if not capacity:
                continue  # closed to new jobs: whoever is there stays as it is
            residents = [claim for claim in residents if not claim.displaced]
            residents.sort(key=lambda claim: (-claim.job.priority, *claim.order))
            used = sum(gpus for claim in residents for p, q, gpus in claim.present if (p, q) == (pool, place))
            while used > capacity and residents:
                victim = residents.pop()
                victim.displaced = True
                used -= sum(gpus for p, q, gpus in victim.present if (p, q) == (pool, place))


def _clock_ceiling(job: JobState, nodes: Mapping[str, NodeState]) -> float:
    """A job on a node that cannot be told to go faster gains nothing where its other GPUs do."""
    current = job.current
    if current is None or current.clock_megahertz <= 0:
        return math.inf
    deaf = any(name in nodes and nodes[name].fixed_hold_watts is not None for name, _ in current.nodes)
    return float(current.clock_megahertz) if deaf else math.inf


def going_price(nodes: Sequence[NodeState], caps: Sequence[CapConstraint], jobs: int) -> float:
    """Joules that one second of one job's time is worth: what the cluster may draw, shared among the jobs that want it.

    A job that ends a second sooner leaves its share of the power to others for a second. What the cluster may draw is every
    usable GPU at its default limit, less what the tightest cap over each node takes away.
    """
    full = {
        node.name: node.usable_gpus * node.gpu_model.default_power_limit_watts
        for node in sorted(nodes, key=lambda node: node.name)
    }
    share = dict.fromkeys(full, 1.0)
    for cap in caps:
        members = [name for name in sorted(cap.node_names) if name in full]
        total = sum(full[name] for name in members)
        if total > 0:
            allowed = min(1.0, max(0.0, cap.budget_watts) / total)
            for name in members:
                share[name] = min(share[name], allowed)
    return sum(watts * share[name] for name, watts in full.items()) / max(1, jobs)
