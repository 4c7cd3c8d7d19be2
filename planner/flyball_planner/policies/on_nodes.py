"""Any policy on a real cluster: its choices of sizes and clocks are fitted to the nodes and held under the power caps.

A policy sees one kind of node (`ClusterView`), so each group of pools of one GPU model and node size is a view of its
own, the largest group first; a job that waits is offered to each group in turn, one that runs only to its own. Then the
choices are given out in the policy's order: a job that keeps its size keeps its nodes; every other gets its chosen size, or
the next smaller one for which there are GPUs, and watts at its lowest clock. Clocks follow from the caps as for
every plan, up to the chosen ones. So caps, gangs and bounds hold under every policy, and what a policy assumed wrongly
costs speed and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from flyball_planner.ledger.caps import Accounting
from flyball_planner.ledger.options import LOWEST, Option
from flyball_planner.ledger.pools import Pool, shape
from flyball_planner.ledger.state import Candidate, PlanState
from flyball_planner.ledger.workspace import Workspace
from flyball_planner.policies.view import Choice, ClusterView, JobView, OrderedPolicy, Performance, Policy, Traits
from flyball_planner.powerflow.queue import queue_in_order
from flyball_planner.snapshot import Queue

LEAST_REMAINING_ITERATIONS = 1.0  # a job of unknown end is never quite done


@dataclass(slots=True)
class Realised:
    """What a policy chose, by the candidate's index, which running jobs it left out, and in which order jobs wait."""

    policy: str
    choices: dict[int, Choice] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)
    orders: list[list[int]] = field(default_factory=list)  # of each group, who comes before whom

    def top(self, candidate: Candidate) -> int:
        """The highest clock position that a placed candidate may have: the chosen one, within the job's own bounds."""
        option = candidate.option
        assert option is not None  # noqa: S101 - only placed candidates have a clock
        choice = self.choices.get(candidate.index)
        wanted = option.fastest_index if choice is None else choice.clock_index
        highest = option.base_index if candidate.job.throttled else option.fastest_index
        return max(option.lowest_index, min(wanted, highest))


def queue_by_policy(workspace: Workspace, realised: Realised, traits: Traits, clocks: Mapping[int, int]) -> Queue:
    """The queue under a finished plan, in the policy's order; the workspace's state is used up by it.

    Starts follow from the ends of jobs alone: what the policy pauses for others comes before.
    """
    if not realised.orders:
        return Queue()
    state = workspace.state
    ranks: dict[int, tuple[int, int]] = {}
    for group, order in enumerate(realised.orders):
        for rank, index in enumerate(order):
            ranks[index] = min(ranks.get(index, (rank, group)), (rank, group))
    last = (len(workspace.candidates), 0)
    waiting = [
        candidate
        for candidate in workspace.candidates
        if candidate.option is None and candidate.ladder and candidate.pools
    ]
    waiting.sort(key=lambda candidate: (ranks.get(candidate.index, last), candidate.order))

    def fits(candidate: Candidate) -> bool:
        found = state.find(candidate, candidate.ladder[0], LOWEST, migrate=traits.repacks)
        if found is not None:
            state.float_at(candidate, *found)
        return found is not None

    unless = f", if {realised.policy} pauses none before" if traits.preempts else ""
    return queue_in_order(workspace, clocks, waiting, fits, in_line=traits.in_line, unless=unless)


@dataclass(frozen=True, slots=True)
class _Group:
    """Pools of one GPU model and node size: what one view can describe."""

    pools: tuple[Pool, ...]

    @property
    def capacity(self) -> int:
        return sum(sum(pool.capacities) for pool in self.pools)

    def cells(self, pools: Iterable[int], level: int) -> int:
        """How many cells of 2^level GPUs some of its pools would have if all of them were free."""
        wanted = set(pools)
        return sum(count >> level for pool in self.pools if pool.index in wanted for count in pool.capacities)


def realise(workspace: Workspace, policy: Policy) -> Realised:
    """Let a policy decide, and enter its choices into the workspace's state.

    Raises ValueError where the policy breaks its own interface (a job or a size that it was not offered).
    """
    state, realised = workspace.state, Realised(policy.name)
    _settle(state, workspace.candidates)
    for group in _groups(workspace.pools):
        indices = {pool.index for pool in group.pools}
        members = []
        for candidate in workspace.candidates:
            runs_here = candidate.option is not None and candidate.staying and candidate.parts[0][0] in indices
            if runs_here or (candidate.option is None and candidate.index not in realised.paused):
                members.append(candidate)
        view, candidate_of = _view(workspace, group, members)
        if not candidate_of:
            continue
        if isinstance(policy, OrderedPolicy):
            realised.orders.append([candidate_of[uid].index for uid in policy.precedence(view)])
        _enter(state, group, policy, view, candidate_of, realised)
    return realised


def _groups(pools: Sequence[Pool]) -> list[_Group]:
    found: dict[tuple[object, int], list[Pool]] = {}
    for pool in pools:
        found.setdefault((pool.gpu_model, pool.cell_gpus), []).append(pool)
    groups = [_Group(tuple(members)) for members in found.values()]
    return sorted(groups, key=lambda group: (-group.capacity, group.pools[0].index))


def _settle(state: PlanState, candidates: Sequence[Candidate]) -> None:
    """Everyone who runs keeps its place before the policy is asked, as far as caps that pause jobs can be held at all."""
    running = [
        candidate for candidate in candidates if candidate.present_option is not None and not candidate.displaced
    ]
    for candidate in sorted(running, key=lambda candidate: candidate.precedence):
        assert candidate.present_option is not None  # noqa: S101 - filtered above
        contribution = state.contribution(candidate.present_option, candidate.present_parts)
        pausing = tuple(item for item in contribution if state.accounts[item[0]].constraint.pauses)
        if state.affords(pausing, LOWEST):
            state.stay(candidate)


def _enter(
    state: PlanState,
    group: _Group,
    policy: Policy,
    view: ClusterView,
    candidate_of: dict[str, Candidate],
    realised: Realised,
) -> None:
    """Ask the policy, and give what it chose, in its order."""
    chosen: dict[int, Choice] = {}
    for choice in policy.decide(view):
        candidate = candidate_of.get(choice.uid)
        if candidate is None or candidate.index in chosen or not 0 <= choice.clock_index < len(view.clocks_megahertz):
            raise ValueError(f"policy {policy.name}: {choice} is not what it was offered, or not the first for its job")
        chosen[candidate.index] = choice
    for candidate in candidate_of.values():
        if candidate.option is None or not candidate.adjustable:
            continue
        wanted = chosen.get(candidate.index)
        if wanted is None:
            realised.paused.add(candidate.index)
        if wanted is None or wanted.gpus != candidate.gpus:
            state.leave(candidate)
    for index, choice in chosen.items():
        candidate = candidate_of[choice.uid]
        realised.choices[index] = choice
        if candidate.option is None:
            _float(state, group, candidate, choice.gpus, policy.traits.repacks)


def _float(state: PlanState, group: _Group, candidate: Candidate, gpus: int, migrate: bool) -> None:
    """The chosen size, or the next smaller one that has room and watts; where none has, the candidate stays out."""
    indices = {pool.index for pool in group.pools}
    pools = [pool for pool in candidate.pools if pool in indices]
    for size in reversed([size for size in candidate.ladder if size <= gpus]):
        found = state.find(candidate, size, LOWEST, migrate=migrate, pools=pools)
        if found is not None:
            state.float_at(candidate, *found)
            return


def _view(
    workspace: Workspace, group: _Group, members: Sequence[Candidate]
) -> tuple[ClusterView, dict[str, Candidate]]:
    """The group as a policy sees it, and who is in it by the job's uid."""
    snapshot = workspace.snapshot
    gpu_model = group.pools[0].gpu_model
    now = snapshot.now_seconds
    if now is None:
        now = max((job.submit_time_seconds for job in snapshot.jobs), default=0.0)
    tables: dict[object, Performance] = {}
    jobs, candidate_of = [], {}
    for candidate in members:
        job = _job_view(workspace, group, candidate, now, tables)
        if job is not None:
            jobs.append(job)
            candidate_of[job.uid] = candidate
    closed = {(pool.index, place) for pool in group.pools for place, count in enumerate(pool.capacities) if not count}
    held_on_closed = sum(
        gpus
        for candidate in candidate_of.values()
        if candidate.staying
        for pool, place, gpus in candidate.present
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
    ), candidate_of


def _job_view(
    workspace: Workspace, group: _Group, candidate: Candidate, now: float, tables: dict[object, Performance]
) -> JobView | None:
    """A job as a policy sees it; None where the group has nothing that it could ever have."""
    job, running = candidate.job, candidate.option
    options = _options(workspace, group, candidate)
    if not options:
        return None
    model = (id(job.model), *map(id, job.models_elsewhere), job.global_batch_size)
    bounds = (job.clock_min_megahertz, job.clock_max_megahertz, job.power_limit_max_watts)
    key = (model, bounds, tuple((option.gpus, option.nodes, option.lowest_index) for option in options))
    if key not in tables:
        tables[key] = _performance(options)
    sizes = tables[key].sizes
    current = job.current
    clock = 0
    if running is not None and current is not None:
        clock = max(0, bisect_right(running.curves.clocks_megahertz, current.clock_megahertz) - 1)
    deadline = job.seconds_to_deadline if candidate.dated else None
    return JobView(
        uid=job.uid,
        submit_time_seconds=job.submit_time_seconds,
        requested_gpus=next((gpus for gpus in candidate.ladder if gpus in sizes), sizes[0]),
        performance=tables[key],
        remaining_iterations=max(candidate.remaining, LEAST_REMAINING_ITERATIONS),
        restart_seconds=workspace.snapshot.restart_seconds,
        attained_gpu_seconds=job.attained_gpu_seconds,
        gpus=0 if running is None else running.gpus,
        clock_index=clock,
        since_seconds=job.submit_time_seconds if job.since_seconds is None else job.since_seconds,
        resizable=candidate.adjustable or running is None,
        priority=job.priority,
        deadline_seconds=None if deadline is None else now + deadline,
        remaining_energy_joules=job.remaining_energy_joules,
    )


def _options(workspace: Workspace, group: _Group, candidate: Candidate) -> list[Option]:
    """The sizes that the job could have in the group, and the one that it has now, ascending."""
    pools = [pool.index for pool in group.pools if pool.index in set(candidate.pools)]
    found: dict[int, Option] = {}
    if candidate.option is not None:
        found[candidate.option.gpus] = candidate.option
    for gpus in candidate.ladder[:1] if candidate.job.throttled else candidate.ladder:
        if gpus in found or not pools:
            continue
        nodes, on_each = shape(gpus, group.pools[0].cell_gpus)
        if group.cells(pools, (on_each - 1).bit_length()) < nodes:
            break
        option = next(
            (item for pool in pools if (item := workspace.book.at(candidate.index, pool, gpus)) is not None), None
        )
        if option is not None:
            found[gpus] = option
    return [found[gpus] for gpus in sorted(found)]


def _performance(options: Sequence[Option]) -> Performance:
    """The tables of some options; a clock that the job may not have stands for the nearest that it may."""
    seconds, joules = [], []
    for option in options:
        clocks = np.arange(option.curves.seconds.shape[1]).clip(option.lowest_index, option.fastest_index)
        seconds.append(option.curves.seconds[option.row, clocks])
        joules.append(option.curves.joules[option.row, clocks])
    return Performance([option.gpus for option in options], np.stack(seconds), np.stack(joules))


def _power_limit(workspace: Workspace, group: _Group, gpus: int) -> tuple[float, float | None]:
    """What an idle GPU counts and the most that the group may draw, by the tightest cap over all of it; None: no cap.

    A cap over several groups is shared by what their GPUs could take of it. Caps over a part of the group are not seen by
    the policy; the state counts them all the same.
    """
    state = workspace.state
    idle = group.pools[0].idle_draw_watts
    tightest: tuple[float, float] | None = None
    open_pools = [pool for pool in group.pools if any(pool.capacities)]
    for cap in set.intersection(*(set(pool.cap_indices) for pool in open_pools)) if open_pools else ():
        account = state.accounts[cap]
        by_limits = account.accounting is Accounting.LIMITS
        of_group = sum(_range_watts(pool, by_limits) for pool in open_pools)
        of_all = sum(_range_watts(pool, by_limits) for pool in state.pools if cap in pool.cap_indices)
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
