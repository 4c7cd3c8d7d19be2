"""Any policy on a real cluster: its choices of sizes and clocks, realised on nodes and under caps that it knows little of.

A policy sees one kind of node (`ClusterView`), so each group of pools of one GPU model and node size is a view of its
own, the largest group first; a job that waits is offered to each group in turn, one that runs only to its own. Then the
ledger takes the choices in the policy's order: whoever keeps its size keeps its nodes; everyone else gets its chosen
size, or the next smaller one for which there are GPUs, and watts at its lowest clock. Clocks follow from the caps as for
every plan, up to the chosen ones. So caps, gangs and bounds hold under every policy, and what a policy assumed wrongly
costs speed and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from flyball_planner.allocation_ledger import Claim, Ledger
from flyball_planner.allocation_options import FLOOR, Option
from flyball_planner.placement_pools import Pool, shape
from flyball_planner.plan_claims import Workspace
from flyball_planner.policies.view import Choice, ClusterView, JobView, Performance, Policy
from flyball_planner.power import Accounting

LEAST_REMAINING_ITERATIONS = 1.0  # a job that has not said its end yet is never quite done


@dataclass(slots=True)
class Realised:
    """What a policy chose, by the claim's index, and which running jobs it left out."""

    policy: str
    choices: dict[int, Choice] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)

    def top(self, claim: Claim) -> int:
        """The highest clock position that a placed claim may have: the chosen one, within the job's own bounds."""
        option = claim.option
        assert option is not None  # noqa: S101 - only placed claims have a clock
        choice = self.choices.get(claim.index)
        wanted = option.fastest_index if choice is None else choice.clock_index
        highest = option.base_index if claim.job.throttled else option.fastest_index
        return max(option.floor_index, min(wanted, highest))


@dataclass(frozen=True, slots=True)
class _Group:
    """Pools of one GPU model and node size: what one view can describe."""

    pools: tuple[Pool, ...]

    @property
    def capacity(self) -> int:
        return sum(sum(pool.capacities) for pool in self.pools)

    def cells(self, pools: Iterable[int], level: int) -> int:
        """How many cells of 2^level GPUs some of its pools would have if nobody were there."""
        wanted = set(pools)
        return sum(count >> level for pool in self.pools if pool.index in wanted for count in pool.capacities)


def realise(workspace: Workspace, policy: Policy) -> Realised:
    """Let a policy decide, and enter its choices into the workspace's ledger.

    Raises ValueError where the policy breaks its own interface (a job or a size that it was not offered).
    """
    ledger, realised = workspace.ledger, Realised(policy.name)
    _settle(ledger, workspace.claims)
    for group in _groups(workspace.pools):
        indices = {pool.index for pool in group.pools}
        members = []
        for claim in workspace.claims:
            runs_here = claim.option is not None and claim.staying and claim.parts[0][0] in indices
            if runs_here or (claim.option is None and claim.index not in realised.paused):
                members.append(claim)
        view, claim_of = _view(workspace, group, members)
        if not claim_of:
            continue
        _enter(ledger, group, policy, view, claim_of, realised)
    return realised


def _groups(pools: Sequence[Pool]) -> list[_Group]:
    found: dict[tuple[object, int], list[Pool]] = {}
    for pool in pools:
        found.setdefault((pool.gpu_model, pool.cell_gpus), []).append(pool)
    groups = [_Group(tuple(members)) for members in found.values()]
    return sorted(groups, key=lambda group: (-group.capacity, group.pools[0].index))


def _settle(ledger: Ledger, claims: Sequence[Claim]) -> None:
    """Everyone who runs keeps its place before the policy is asked, as far as the caps can be held at all."""
    running = [claim for claim in claims if claim.present_option is not None and not claim.displaced]
    for claim in sorted(running, key=lambda claim: (-claim.job.priority, claim.order)):
        assert claim.present_option is not None  # noqa: S101 - filtered above
        if ledger.affords(ledger.contribution(claim.present_option, claim.present_parts), FLOOR):
            ledger.stay(claim)


def _enter(
    ledger: Ledger,
    group: _Group,
    policy: Policy,
    view: ClusterView,
    claim_of: dict[str, Claim],
    realised: Realised,
) -> None:
    """Ask the policy, and give what it chose, in its order."""
    chosen: dict[int, Choice] = {}
    for choice in policy.decide(view):
        claim = claim_of.get(choice.uid)
        if claim is None or claim.index in chosen or not 0 <= choice.clock_index < len(view.clocks_megahertz):
            raise ValueError(f"policy {policy.name}: {choice} is not what it was offered, or not the first for its job")
        chosen[claim.index] = choice
    for claim in claim_of.values():
        if claim.option is None or not claim.adjustable:
            continue
        wanted = chosen.get(claim.index)
        if wanted is None:
            realised.paused.add(claim.index)
        if wanted is None or wanted.gpus != claim.gpus:
            ledger.leave(claim)
    for index, choice in chosen.items():
        claim = claim_of[choice.uid]
        realised.choices[index] = choice
        if claim.option is None:
            _float(ledger, group, claim, choice.gpus, policy.repacks)


def _float(ledger: Ledger, group: _Group, claim: Claim, gpus: int, migrate: bool) -> None:
    """The chosen size, or the next smaller one that has room and watts; where none has, the claim stays out."""
    indices = {pool.index for pool in group.pools}
    pools = [pool for pool in claim.pools if pool in indices]
    for size in reversed([size for size in claim.ladder if size <= gpus]):
        found = ledger.find(claim, size, FLOOR, migrate=migrate, pools=pools)
        if found is not None:
            ledger.float_at(claim, *found)
            return


def _view(workspace: Workspace, group: _Group, members: Sequence[Claim]) -> tuple[ClusterView, dict[str, Claim]]:
    """The group as a policy sees it, and who is in it by the job's uid."""
    snapshot = workspace.snapshot
    gpu_model = group.pools[0].gpu_model
    now = snapshot.now_seconds
    if now is None:
        now = max((job.submit_time_seconds for job in snapshot.jobs), default=0.0)
    tables: dict[object, Performance] = {}
    jobs, claim_of = [], {}
    for claim in members:
        job = _job_view(workspace, group, claim, now, tables)
        if job is not None:
            jobs.append(job)
            claim_of[job.uid] = claim
    closed = {(pool.index, place) for pool in group.pools for place, count in enumerate(pool.capacities) if not count}
    held_on_closed = sum(
        gpus
        for claim in claim_of.values()
        if claim.staying
        for pool, place, gpus in claim.present
        if (pool, place) in closed
    )
    gpus = group.capacity + held_on_closed
    idle, limit = _power_limit(workspace, group, gpus)
    return ClusterView(
        now_seconds=now,
        gpus=gpus,
        gpus_per_node=group.pools[0].cell_gpus,
        clocks_megahertz=gpu_model.clocks_megahertz,
        jobs=jobs,
        max_gpu_watts=gpu_model.max_power_limit_watts,
        idle_gpu_watts=idle,
        sunk_gpu_watts=gpu_model.idle_power_watts,
        power_limit_watts=limit,
        guard_fraction=snapshot.guard_fraction,
        price=1.0 / workspace.stepper.joules_per_job_second if workspace.stepper.joules_per_job_second > 0 else 0.0,
    ), claim_of


def _job_view(
    workspace: Workspace, group: _Group, claim: Claim, now: float, tables: dict[object, Performance]
) -> JobView | None:
    """A job as a policy sees it; None where the group has nothing that it could ever have."""
    job, running = claim.job, claim.option
    options = _options(workspace, group, claim)
    if not options:
        return None
    model = (id(job.model), *map(id, job.models_elsewhere), job.global_batch_size)
    bounds = (job.clock_min_megahertz, job.clock_max_megahertz, job.power_limit_max_watts)
    key = (model, bounds, tuple((option.gpus, option.nodes, option.floor_index) for option in options))
    if key not in tables:
        tables[key] = _performance(options)
    sizes = tables[key].sizes
    current = job.current
    clock = 0
    if running is not None and current is not None:
        clock = max(0, bisect_right(running.curves.clocks_megahertz, current.clock_megahertz) - 1)
    deadline = job.seconds_to_deadline if claim.dated else None
    return JobView(
        uid=job.uid,
        submit_time_seconds=job.submit_time_seconds,
        requested_gpus=next((gpus for gpus in claim.ladder if gpus in sizes), sizes[0]),
        performance=tables[key],
        remaining_iterations=max(claim.remaining, LEAST_REMAINING_ITERATIONS),
        restart_seconds=workspace.snapshot.restart_seconds,
        attained_gpu_seconds=job.attained_gpu_seconds,
        gpus=0 if running is None else running.gpus,
        clock_index=clock,
        since_seconds=job.submit_time_seconds if job.since_seconds is None else job.since_seconds,
        resizable=claim.adjustable or running is None,
        priority=job.priority,
        deadline_seconds=None if deadline is None else now + deadline,
        remaining_energy_joules=job.remaining_energy_joules,
    )


def _options(workspace: Workspace, group: _Group, claim: Claim) -> list[Option]:
    """The sizes that the job could have in the group, and the one that it has now, ascending."""
    pools = [pool.index for pool in group.pools if pool.index in set(claim.pools)]
    found: dict[int, Option] = {}
    if claim.option is not None:
        found[claim.option.gpus] = claim.option
    for gpus in claim.ladder[:1] if claim.job.throttled else claim.ladder:
        if gpus in found or not pools:
            continue
        nodes, on_each = shape(gpus, group.pools[0].cell_gpus)
        if group.cells(pools, (on_each - 1).bit_length()) < nodes:
            break
        option = next(
            (item for pool in pools if (item := workspace.book.at(claim.index, pool, gpus)) is not None), None
        )
        if option is not None:
            found[gpus] = option
    return [found[gpus] for gpus in sorted(found)]


def _performance(options: Sequence[Option]) -> Performance:
    """The tables of some options; a clock that the job may not have stands for the nearest that it may."""
    seconds, joules = [], []
    for option in options:
        clocks = np.arange(option.curves.seconds.shape[1]).clip(option.floor_index, option.fastest_index)
        seconds.append(option.curves.seconds[option.row, clocks])
        joules.append(option.curves.joules[option.row, clocks])
    return Performance([option.gpus for option in options], np.stack(seconds), np.stack(joules))


def _power_limit(workspace: Workspace, group: _Group, gpus: int) -> tuple[float, float | None]:
    """What an idle GPU counts and the most that the group may draw, by the tightest cap over all of it; None: no cap.

    A cap over several groups is shared by what their GPUs could take of it. Caps over a part of the group are not seen by
    the policy; the ledger holds them all the same.
    """
    ledger = workspace.ledger
    idle = group.pools[0].idle_draw_watts
    tightest: tuple[float, float] | None = None
    open_pools = [pool for pool in group.pools if any(pool.capacities)]
    for cap in set.intersection(*(set(pool.cap_indices) for pool in open_pools)) if open_pools else ():
        account = ledger.accounts[cap]
        by_limits = account.accounting is Accounting.LIMITS
        of_group = sum(_range_watts(pool, by_limits) for pool in open_pools)
        of_all = sum(_range_watts(pool, by_limits) for pool in ledger.pools if cap in pool.cap_indices)
        share = of_group / of_all if of_all > 0 else 1.0
        counted = group.pools[0].idle_limit_watts if by_limits else group.pools[0].idle_draw_watts
        above_idle = account.headroom_watts * share
        if tightest is None or (above_idle, counted) < tightest:
            tightest = (above_idle, counted)
    if tightest is None:
        return idle, None
    return tightest[1], max(0.0, tightest[0] + tightest[1] * gpus)


def _range_watts(pool: Pool, by_limits: bool) -> float:
    idle = pool.idle_limit_watts if by_limits else pool.idle_draw_watts
    return sum(pool.capacities) * max(0.0, pool.gpu_model.max_power_limit_watts - idle)
