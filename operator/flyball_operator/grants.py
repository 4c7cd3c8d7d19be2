"""Which grants may be sent now: down before up, and nothing raised until what it needs is provably free.

The wanted grants come from the plan; this module only decides which of them, or which part of each, can be sent at this
moment without the sum of worst holds passing any cap (power-safety.md, "Protocol" 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flyball_operator.hold import DeviceGrant, Grant, Hold, JobGrant


@dataclass(frozen=True, slots=True)
class WantedGrant:
    """What the plan wants of one node; `job_holds` prices each entry of `jobs`, `rest` everything else on the node."""

    node: str
    devices: DeviceGrant
    lease_seconds: int
    jobs: tuple[JobGrant, ...]
    job_holds: tuple[Hold, ...]
    floor_holds: tuple[Hold, ...]  # each entry of `jobs`, were its GPUs at their smallest limit
    rest: Hold

    @property
    def hold(self) -> Hold:
        return sum(self.job_holds, self.rest)


@dataclass(frozen=True, slots=True)
class NodePower:
    """What a node holds: its grant in the API (None: none yet), its worst hold, and the version that its agent accepted
    last (which a grant object that was deleted and made again must pass)."""

    grant: Grant | None
    worst: Hold
    accepted: tuple[int, int] = (0, 0)

    def next_generation(self, epoch: int) -> int:
        sent = 0 if self.grant is None else self.grant.generation
        return max(sent, self.accepted[1] if self.accepted[0] == epoch else 0) + 1


@dataclass(frozen=True, slots=True)
class CapBudget:
    """One cap in milliwatts, already without its static overhead; `expected`: it sums predicted draw, not limits."""

    name: str
    nodes: frozenset[str]
    budget_milliwatts: int
    expected: bool = False

    def reading(self, hold: Hold) -> int:
        return hold.expected_milliwatts if self.expected else hold.limit_milliwatts


@dataclass(frozen=True, slots=True)
class Admission:
    """The grants to send now, by node, and the nodes whose raise waits for watts that others have yet to free."""

    grants: dict[str, Grant]
    waiting: tuple[str, ...]


def committed(cap: CapBudget, power: Mapping[str, NodePower]) -> int:
    """Milliwatts that the cap's nodes may draw at this instant."""
    return sum(cap.reading(power[node].worst) for node in cap.nodes if node in power)


def without_raises(wanted: WantedGrant, current: Grant | None) -> WantedGrant:
    """The part of `wanted` that raises nothing: entries that the node does not have yet wait at the smallest limit, and
    those it has keep the lower of the two limits."""
    held = {} if current is None else {(job.pod_name, job.uid): job for job in current.jobs}
    jobs: list[JobGrant] = []
    holds: list[Hold] = []
    for job, hold, floor in zip(wanted.jobs, wanted.job_holds, wanted.floor_holds, strict=True):
        before = held.get((job.pod_name, job.uid))
        if before is None or before.power_limit_milliwatts == 0:
            jobs.append(replace(job, power_limit_milliwatts=0))
            holds.append(floor)
        elif job.power_limit_milliwatts > before.power_limit_milliwatts:
            # Priced as limits: what a held limit is expected to draw is at most the limit itself.
            limit = before.power_limit_milliwatts * job.gpus
            jobs.append(replace(job, power_limit_milliwatts=before.power_limit_milliwatts))
            holds.append(Hold(limit, min(limit, hold.expected_milliwatts)))
        else:
            jobs.append(job)
            holds.append(hold)
    return replace(wanted, jobs=tuple(jobs), job_holds=tuple(holds))


def admit(
    wanted: Iterable[WantedGrant],
    power: Mapping[str, NodePower],
    caps: Iterable[CapBudget],
    epoch: int,
    raises_allowed: bool = True,
) -> Admission:
    """Decide what to send now under leader epoch `epoch`, given every node's `power` and every cap's budget.

    Cuts always go. A raise goes only where, for each cap over its node, the sum of all worst holds with this node's
    raised still fits; else the part of it that raises nothing goes. `raises_allowed` is False while some grant still
    carries an earlier epoch: a leader that lost its lease could yet write there. Nodes are taken in the order of their
    names, so that the same state always gives the same grants.
    """
    caps = list(caps)
    standing = {cap.name: committed(cap, power) for cap in caps}
    of_node: dict[str, list[CapBudget]] = {}
    for cap in caps:
        for node in cap.nodes:
            of_node.setdefault(node, []).append(cap)
    grants: dict[str, Grant] = {}
    waiting: list[str] = []

    def send(want: WantedGrant, now: NodePower, worst: Hold) -> None:
        grant = Grant(
            epoch=epoch,
            generation=now.next_generation(epoch),
            lease_seconds=want.lease_seconds,
            hold=want.hold,
            worst=worst,
            devices=want.devices,
            jobs=want.jobs,
        )
        standing_grant = now.grant
        if (
            standing_grant is not None
            and standing_grant.epoch == epoch
            and standing_grant.version >= now.accepted
            and standing_grant.same_content(grant)
        ):
            return
        grants[want.node] = grant
        for cap in of_node.get(want.node, ()):
            standing[cap.name] += cap.reading(worst) - cap.reading(now.worst)

    for want in sorted(wanted, key=lambda item: item.node):
        now = power[want.node]
        worst = now.worst | want.hold
        fits = raises_allowed and all(
            standing[cap.name] + cap.reading(worst) - cap.reading(now.worst) <= cap.budget_milliwatts
            for cap in of_node.get(want.node, ())
        )
        if fits or now.worst.covers(want.hold):
            send(want, now, worst)
            continue
        waiting.append(want.node)
        held_back = without_raises(want, now.grant)
        worst = now.worst | held_back.hold
        # A first grant on a node at its defaults, and any cut, is covered by what the node holds anyway.
        if now.worst.covers(held_back.hold):
            send(held_back, now, worst)
    return Admission(grants, tuple(waiting))
