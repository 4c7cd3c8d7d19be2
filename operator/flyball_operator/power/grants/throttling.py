"""How far what the plan wants is lowered until every cap fits it: for a cap that fell before there is another plan."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from flyball_api.grant import JobGrant, PowerBound
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts, in_whole_watts, node_milliwatts, of_nodes
from msgspec.structs import replace

from flyball_operator.power.bound import CapBudget, NodePower
from flyball_operator.power.grants.admission import GrantTarget

LOWEST_PRIORITY = -(2**63)


def throttle(
    targets: Iterable[GrantTarget],
    power: Mapping[str, NodePower],
    caps: Iterable[CapBudget],
    fixed: frozenset[str],
    priorities: Mapping[str, int] = MappingProxyType({}),
) -> list[GrantTarget]:
    """`targets` with job limits lowered, evenly towards the smallest limit, until every cap fits them.

    A plan fits by itself; this holds a cap that fell a moment ago while the planner is still at work, or has failed.
    `fixed` names the nodes that cannot be commanded: they count with all that they may draw; the others' GPUs that do not
    take their limits count with what they hold above them. Where even the smallest limits do not fit, everything under that
    cap goes to them. Under a cap that cuts by priority, jobs pay in the order of their `priorities`, by uid (a job without
    one is of the lowest); those of one priority evenly.

    More room under a cap on limits lowers nothing: grants would follow each other round and round. So caps on what is
    predicted come first: for them a limit falls below what the job draws, however little they lack, and whether it must
    would else hang on what another cap has lowered before. What a cap holds in reserve follows from the targets, too, and
    from nothing that is granted as yet; what a later cap lowers of them frees as much as it adds to the reserve.
    """
    by_node = {target.node: target for target in targets}
    for cap in sorted(caps, key=lambda each: not each.expected):
        under = [by_node[node] for node in sorted(cap.nodes) if node in by_node]
        loads = [_Load.of(target, power[target.node], cap, target.node in fixed, priorities) for target in under]
        above_smallest = _above_smallest(loads)
        excess = _excess(loads, above_smallest, cap)
        for priority, above in sorted(above_smallest.items()):
            if excess <= 0:
                break
            if above == 0:
                continue
            share = max(0, above - excess) / above
            for target in under:
                if target.node not in fixed:
                    uids = {job.uid for job in target.jobs if _priority(job, cap, priorities) == priority}
                    by_node[target.node] = _throttled(by_node[target.node], share, cap, uids)
            excess -= above
    return list(by_node.values())


@dataclass(frozen=True, slots=True)
class _Load:
    """What one node comes to under a cap in milliwatts: at the smallest limits, and above them by the jobs' priority."""

    node: str
    least: NodeMilliwatts
    above: Mapping[int, NodeMilliwatts]

    @classmethod
    def of(
        cls, target: GrantTarget, node: NodePower, cap: CapBudget, is_fixed: bool, priorities: Mapping[str, int]
    ) -> _Load:
        if is_fixed:
            return cls(target.node, cap.counted(node.committed | target.bound), {})
        least = cap.counted(target.rest) + _held_above(node, cap)
        above: dict[int, NodeMilliwatts] = {}
        for job, bound in zip(target.jobs, target.job_bounds, strict=True):
            smallest = min(node_milliwatts(target.min_limit_milliwatts, job.gpus), cap.counted(bound))
            least += smallest
            priority = _priority(job, cap, priorities)
            above[priority] = above.get(priority, NodeMilliwatts(0)) + (cap.counted(bound) - smallest)
        return cls(target.node, least, above)

    def at(self, shares: Mapping[int, tuple[int, int]]) -> NodeMilliwatts:
        """What it comes to where so much (in so many parts) of what is above is kept, by priority; rounded up."""
        kept = (
            -(-above * shares[priority][0] // shares[priority][1]) for priority, above in self.above.items() if above
        )
        return self.least + NodeMilliwatts(sum(kept))


def _above_smallest(loads: Iterable[_Load]) -> Counter[int]:
    """How much can be taken of all by lowering them to the smallest limits, by priority."""
    found: Counter[int] = Counter()
    for load in loads:
        found.update(load.above)
    return found


def _excess(loads: Sequence[_Load], above: Counter[int], cap: CapBudget) -> int:
    """How much has to be taken of what the jobs have `above` the smallest limits, by priority, so that the cap fits.

    Where the cap reserves for nodes that jump, what is taken of a node can make the reserve grow by as much.
    """
    excess = of_nodes(load.least for load in loads) + above.total() - cap.budget_milliwatts
    if not cap.reserve.nodes:
        return excess
    least = max(0, min(excess, above.total()))
    if _fits(least, loads, above, cap):
        return least  # as in nearly every cycle
    return bisect_left(range(above.total()), True, lo=least, key=lambda taken: _fits(taken, loads, above, cap))


def _fits(taken: int, loads: Sequence[_Load], above: Mapping[int, int], cap: CapBudget) -> bool:
    """Whether the cap and what it holds in reserve fit once so much is taken of the jobs."""
    shares, left = {}, taken
    for priority, milliwatts in sorted(above.items()):
        shares[priority] = max(0, milliwatts - left), milliwatts
        left = max(0, left - milliwatts)
    draws = [(load.node, load.at(shares)) for load in loads]
    return of_nodes(draw for _, draw in draws) + cap.reserve.of(draws) <= cap.budget_milliwatts


def _held_above(node: NodePower, cap: CapBudget) -> NodeMilliwatts:
    """What a node's GPUs hold above the grant that its agent has acknowledged, which no lower one takes from them."""
    grant = node.grant
    if grant is None or node.unsettled or node.accepted != grant.version:
        return NodeMilliwatts(0)
    return max(NodeMilliwatts(0), cap.counted(node.committed) - cap.counted(grant.bound))


def _priority(job: JobGrant, cap: CapBudget, priorities: Mapping[str, int]) -> int:
    """Whose turn a job is in to be lowered; all are lowered together unless the cap says otherwise."""
    return priorities.get(job.uid, LOWEST_PRIORITY) if cap.by_priority else 0


def _throttled(target: GrantTarget, share: float, cap: CapBudget, uids: Container[str]) -> GrantTarget:
    """One node's target with what the cap counts of each job in `uids` above the smallest limit cut to `share` of it."""
    jobs: list[JobGrant] = []
    bounds: list[PowerBound] = []
    for job, bound in zip(target.jobs, target.job_bounds, strict=True):
        if job.uid not in uids:
            jobs.append(job)
            bounds.append(bound)
            continue
        each = cap.counted(bound) // job.gpus
        smallest = min(target.min_limit_milliwatts, each)
        kept = smallest + int((each - smallest) * share)
        # Agents set whole watts: what changes by less, as where a share follows from what stands, is no other grant.
        cut = max(target.min_limit_milliwatts, in_whole_watts(MilliwattsPerGpu(kept)))
        lowered = replace(job, power_limit_milliwatts=MilliwattsPerGpu(min(job.power_limit_milliwatts, cut)))
        jobs.append(lowered)
        limits = lowered.limit_milliwatts
        bounds.append(PowerBound(limits, min(bound.expected_milliwatts, limits)))
    return replace(target, jobs=tuple(jobs), job_bounds=tuple(bounds))
