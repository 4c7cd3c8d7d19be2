"""What is granted to nodes that are late: those whose agents have owed an acknowledgement for long and are believed still.

Lateness alone changes no grant. Under an API server that is overloaded every agent is late, and a grant that is lowered
because nobody knows whether it will answer, and raised again once it has, is two writes for each that keep the server
overloaded. So a late node keeps the grant that it has yet to acknowledge until it does, unless a cap needs its watts:
then it is lowered as far as the others are, which make room for all that it may still draw meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flyball_api.grant import PowerBound
from msgspec.structs import replace

from flyball_operator.power.bound import CapBudget, NodePower
from flyball_operator.power.caps.state import CapStates
from flyball_operator.power.grants.admission import GrantTarget
from flyball_operator.power.grants.throttling import throttle
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.power.nodes.reservations import NO_RULES


def throttled(
    targets: Iterable[GrantTarget],
    nodes: Mapping[str, NodeInfo],
    caps: Iterable[CapBudget],
    priorities: Mapping[str, int],
) -> tuple[list[GrantTarget], bool]:
    """`targets` lowered until every cap fits them, as `throttle` does; and whether they fitted as they were, late nodes'
    as they are granted.

    Late nodes pay as if they answered, by what is planned of them: were it by what they are granted, each cut would be the
    ground for the next. The others pay as if late nodes did not answer.
    """
    targets, caps = list(targets), tuple(caps)
    power = {name: info.power for name, info in nodes.items()}
    unbelieved = frozenset(name for name, info in nodes.items() if not info.believed)
    late = frozenset(name for name, info in nodes.items() if info.late)
    if_answered = throttle(targets, power, caps, unbelieved, priorities)
    if not late:
        return if_answered, if_answered == targets
    as_granted = unraised(targets, nodes)
    if_not = throttle(as_granted, power, caps, unbelieved | late, priorities)
    asked = unraised(if_answered, nodes)
    fitting = [one if one.node in late else other for one, other in zip(asked, if_not, strict=True)]
    return fitting, fitting == as_granted


def unraised(targets: Iterable[GrantTarget], nodes: Mapping[str, NodeInfo]) -> list[GrantTarget]:
    """`targets` with those of late nodes no higher than what is granted there: nobody knows when a raise would come."""
    return [_unraised(target, nodes[target.node]) if nodes[target.node].late else target for target in targets]


def _unraised(target: GrantTarget, info: NodeInfo) -> GrantTarget:
    jobs, bounds = [], []
    for job, bound in zip(target.jobs, target.job_bounds, strict=True):
        before = info.granted(job.pod_name, job.uid)
        limit = target.min_limit_milliwatts if before is None else before.power_limit_milliwatts
        clock = job.clock_max_megahertz if before is None else min(job.clock_max_megahertz, before.clock_max_megahertz)
        job = replace(job, power_limit_milliwatts=min(job.power_limit_milliwatts, limit), clock_max_megahertz=clock)
        jobs.append(job)
        bounds.append(PowerBound(job.limit_milliwatts, min(bound.expected_milliwatts, job.limit_milliwatts)))
    return replace(target, jobs=tuple(jobs), job_bounds=tuple(bounds))


def left_as_granted(
    nodes: Mapping[str, NodeInfo], caps: CapStates, needed: frozenset[str], epoch: int
) -> frozenset[str]:
    """The late nodes whose grant is left as it is until they have acknowledged it.

    Not those under a cap that is over, or that are `needed` otherwise, or in an emergency; nor where the grant may never be
    acknowledged, being another leader's, or one that its agent has passed or that may not have arrived; nor where a GPU is
    lost: what a reset gives it back has to be reserved at once.
    """
    needed = needed.union(*(cap.nodes for cap in caps.states if cap.is_over(nodes)))
    return frozenset(
        name
        for name, info in nodes.items()
        if info.late
        and name not in needed
        and not caps.rules.get(name, NO_RULES).emergency
        and not info.lost_gpus
        and _is_awaited(info.power, epoch)
    )


def _is_awaited(power: NodePower, epoch: int) -> bool:
    """Whether the grant that stands is one that the agent has yet to acknowledge."""
    standing = power.grant
    return (
        standing is not None and not power.unsettled and standing.epoch == epoch and standing.version > power.accepted
    )
