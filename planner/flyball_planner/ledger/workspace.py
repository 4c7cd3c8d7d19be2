"""From a snapshot to what a policy works on: pools, caps' accounts, options, and one candidate for each job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flyball_planner.ledger.caps import cap_accounts
from flyball_planner.ledger.curves import JobColumns, Terms
from flyball_planner.ledger.options import Option, OptionBook, variant_of
from flyball_planner.ledger.pools import build_pools, eligible_pools, open_to_jobs, selectors_of
from flyball_planner.ledger.returns import Stepper
from flyball_planner.ledger.state import Candidate, PlanState
from flyball_planner.snapshot import CapConstraint, ClusterSnapshot, JobState, NodeState

UNKNOWN_REMAINDER_SECONDS = 600.0  # a job of unknown end: as long again as it has run, and at least this


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
        self.state = PlanState(self.pools, self.accounts, self.book)
        self.stepper = Stepper(self.state, snapshot.restart_seconds, price)
        self.candidates = [
            self._candidate(index, job, pools, position)
            for index, (job, pools) in enumerate(zip(self.jobs, eligible, strict=True))
        ]
        self._prepare_options()
        for candidate in self.candidates:
            self._complete(candidate)
        self._displace_overfull()

    def _candidate(
        self, index: int, job: JobState, pools: tuple[int, ...], position: Mapping[str, tuple[int, int]]
    ) -> Candidate:
        """The candidate without what its options decide. A job whose energy budget is spent may have no size."""
        spent = job.remaining_energy_joules is not None and job.remaining_energy_joules <= 0 and not job.throttled
        candidate = Candidate(index, job, () if spent else self.book.ladders[index], pools, adjustable=job.resizable)
        current = job.current
        if current is None or not current.nodes:
            return candidate
        candidate.displaced = spent or any(
            name not in position or gpus < 1 or self.nodes[name].evacuate for name, gpus in current.nodes
        )
        if candidate.displaced:
            return candidate
        candidate.present = tuple((*position[name], gpus) for name, gpus in current.nodes)
        gpus_in: dict[int, int] = {}
        for pool, _, gpus in candidate.present:
            gpus_in[pool] = gpus_in.get(pool, 0) + gpus
        candidate.present_parts = tuple(sorted(gpus_in.items()))
        candidate.clock_ceiling = _clock_ceiling(job, self.nodes)
        candidate.adjustable = job.resizable and all(
            self.nodes[name].fixed_bound_watts is None for name, _ in current.nodes
        )
        candidate.movable = candidate.adjustable and all(
            self.pools[pool].capacities[place] for pool, place, _ in candidate.present
        )
        return candidate

    def _prepare_options(self) -> None:
        """Compute at once what every job will be asked for first: where it is, one size up, and its smallest sizes."""
        wanted: list[tuple[int, int, int, int | None]] = []
        for candidate in self.candidates:
            job, sizes = candidate.job, candidate.ladder
            reach = sizes[1] if sizes[1:] else 0
            if candidate.present:
                assert job.current is not None  # noqa: S101 - what is present has an allocation
                pool, gpus = self.book.strictest([pool for pool, _ in candidate.present_parts]), job.current.gpus
                wanted.append((candidate.index, pool, gpus, len(job.current.nodes)))
                reach = 2 * gpus
            bound = job.seconds_to_deadline is not None or job.remaining_energy_joules is not None
            if not bound:
                sizes = tuple(size for rung, size in enumerate(sizes) if size <= reach or rung == 0)
            wanted += [(candidate.index, pool, size, None) for pool in candidate.pools[:1] for size in sizes]
        self.book.prepare(wanted)

    def _complete(self, candidate: Candidate) -> None:
        """What follows from the options: the present one, and the iterations left."""
        job = candidate.job
        if candidate.present and job.current is not None:
            pool = self.book.strictest([pool for pool, _ in candidate.present_parts])
            candidate.present_option = self.book.at(candidate.index, pool, job.current.gpus, len(job.current.nodes))
            candidate.displaced = candidate.present_option is None  # no clock that a at_min_limits cap would allow
        reference = self._first_option(candidate) or candidate.present_option
        if job.remaining_iterations is not None:
            candidate.remaining = max(0.0, job.remaining_iterations)
        elif reference is not None:
            seconds = max(job.attained_gpu_seconds / reference.gpus, UNKNOWN_REMAINDER_SECONDS)
            candidate.remaining = seconds / reference.seconds

    def _first_option(self, candidate: Candidate) -> Option | None:
        """The smallest size in the first pool that has it: a yardstick that does not depend on where the job is now."""
        options = (
            self.book.at(candidate.index, pool, candidate.ladder[0])
            for pool in sorted(candidate.pools)
            if candidate.ladder
        )
        return next((option for option in options if option is not None), None)

    def _displace_overfull(self) -> None:
        """Where running jobs hold more than a node still has (a GPU was lost, a foreign pod came), the least must go."""
        held: dict[tuple[int, int], list[Candidate]] = {}
        for candidate in self.candidates:
            for pool, place, _ in candidate.present:
                held.setdefault((pool, place), []).append(candidate)
        for (pool, place), residents in sorted(held.items()):
            capacity = self.pools[pool].capacities[place]
            if not open_to_jobs(self.nodes[self.pools[pool].node_names[place]]):
                continue  # its residents stay as they are
            residents = [candidate for candidate in residents if not candidate.displaced]
            residents.sort(key=lambda candidate: candidate.precedence)
            used = sum(gpus for candidate in residents for p, q, gpus in candidate.present if (p, q) == (pool, place))
            while used > capacity and residents:
                victim = residents.pop()
                victim.displaced = True
                used -= sum(gpus for p, q, gpus in victim.present if (p, q) == (pool, place))


def _clock_ceiling(job: JobState, nodes: Mapping[str, NodeState]) -> float:
    """The clock of a job on an uncontrollable node: raising it on the other nodes alone would gain nothing."""
    current = job.current
    if current is None or current.clock_megahertz <= 0:
        return math.inf
    uncontrollable = any(name in nodes and nodes[name].fixed_bound_watts is not None for name, _ in current.nodes)
    return float(current.clock_megahertz) if uncontrollable else math.inf


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
