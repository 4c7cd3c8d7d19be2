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
    """What the plan wants of one node.

    `job_holds` prices each entry of `jobs`, `rest` everything else on the node; `floor_milliwatts` is the smallest limit
    of one of its GPUs (1 where nobody knows it: the agent sets the smallest).
    """

    node: str
    devices: DeviceGrant
    lease_seconds: int
    jobs: tuple[JobGrant, ...]
    job_holds: tuple[Hold, ...]
    rest: Hold
    floor_milliwatts: int

    @property
    def hold(self) -> Hold:
        return sum(self.job_holds, self.rest)


@dataclass(frozen=True, slots=True)
class NodePower:
    """What a node holds: its grant in the API (None: none yet), its worst hold, and the version that its agent accepted
    last (which a grant object that was deleted and made again must pass).

    `unsettled`: a grant was sent and its fate is not known; only another write brings certainty.
    """

    grant: Grant | None
    worst: Hold
    accepted: tuple[int, int] = (0, 0)
    unsettled: bool = False

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


def squeeze(
    wanted: Iterable[WantedGrant], power: Mapping[str, NodePower], caps: Iterable[CapBudget], fixed: frozenset[str]
) -> list[WantedGrant]:
    """`wanted` with job limits lowered, evenly towards the smallest limit, until every cap fits them.

    A plan fits by itself; this is what holds a cap that fell a moment ago while the planner is still at work, or has
    failed. `fixed` names the nodes that cannot be commanded: they count at their worst hold. Where even the smallest
    limits do not fit, everything under that cap goes to them.
    """
    items = {item.node: item for item in wanted}
    for cap in caps:
        under = [items[node] for node in sorted(cap.nodes) if node in items]
        rest = sum(cap.reading(power[item.node].worst | item.hold) for item in under if item.node in fixed)
        movable = [item for item in under if item.node not in fixed]
        rest += sum(cap.reading(item.rest) for item in movable)
        above = floors = 0
        for item in movable:
            for job, hold in zip(item.jobs, item.job_holds, strict=True):
                floor = min(item.floor_milliwatts * job.gpus, cap.reading(hold))
                floors += floor
                above += cap.reading(hold) - floor
        room = cap.budget_milliwatts - rest - floors
        if above <= room or above == 0:
            continue
        share = max(0.0, room / above)
        for item in movable:
            items[item.node] = _squeezed(item, share, cap)
    return list(items.values())


def _squeezed(item: WantedGrant, share: float, cap: CapBudget) -> WantedGrant:
    """One node's grant with what each job reads above the smallest limit cut to `share` of it."""
    jobs: list[JobGrant] = []
    holds: list[Hold] = []
    for job, hold in zip(item.jobs, item.job_holds, strict=True):
        each = cap.reading(hold) // job.gpus
        floor = min(item.floor_milliwatts, each)
        limit = min(job.power_limit_milliwatts, max(item.floor_milliwatts, floor + int((each - floor) * share)))
        jobs.append(replace(job, power_limit_milliwatts=limit))
        holds.append(Hold(limit * job.gpus, min(hold.expected_milliwatts, limit * job.gpus)))
    return replace(item, jobs=tuple(jobs), job_holds=tuple(holds))


def without_raises(wanted: WantedGrant, current: Grant | None, worst: Hold) -> WantedGrant:
    """The part of `wanted` that raises nothing on a node that stands at `current` and holds `worst` already.

    Entries that the node does not have yet wait at the smallest limit, those it has keep the lower limit and clock, and
    foreign pods' GPUs get no more room than they had. So a cut goes through whatever else on its node has to wait.
    """
    held = {} if current is None else {(job.pod_name, job.uid): job for job in current.jobs}
    left = worst.expected_milliwatts
    jobs: list[JobGrant] = []
    holds: list[Hold] = []
    for job, hold in zip(wanted.jobs, wanted.job_holds, strict=True):
        before = held.get((job.pod_name, job.uid))
        limit = min(
            job.power_limit_milliwatts, wanted.floor_milliwatts if before is None else before.power_limit_milliwatts
        )
        clock = job.clock_max_megahertz if before is None else min(job.clock_max_megahertz, before.clock_max_megahertz)
        jobs.append(
            replace(
                job,
                power_limit_milliwatts=limit,
                clock_max_megahertz=clock,
                clock_min_megahertz=min(job.clock_min_megahertz, clock),
            )
        )
        # Under limits and clocks that stand already, no more can be drawn than what was said of them.
        expected = min(hold.expected_milliwatts, limit * job.gpus, left)
        holds.append(Hold(limit * job.gpus, expected))
        left -= expected
    spare = Hold(max(0, worst.limit_milliwatts - sum(hold.limit_milliwatts for hold in holds)), left)
    rest, devices = wanted.rest, wanted.devices
    if not spare.covers(rest):
        rest = Hold(
            min(rest.limit_milliwatts, spare.limit_milliwatts), min(rest.expected_milliwatts, spare.expected_milliwatts)
        )
        devices = _without_foreign_raise(devices, None if current is None else current.devices)
    return replace(wanted, devices=devices, jobs=tuple(jobs), job_holds=tuple(holds), rest=rest)


def _without_foreign_raise(wanted: DeviceGrant, current: DeviceGrant | None) -> DeviceGrant:
    """`wanted` with as many foreign GPUs provided for as before, at no higher limit (0 is the default, the highest)."""
    before = DeviceGrant() if current is None else current
    limits = [
        limit for limit in (wanted.foreign_power_limit_milliwatts, before.foreign_power_limit_milliwatts) if limit
    ]
    return replace(
        wanted,
        foreign_gpus=min(wanted.foreign_gpus, before.foreign_gpus),
        foreign_power_limit_milliwatts=min(limits, default=0),
    )


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
            and not now.unsettled
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
        held_back = without_raises(want, now.grant, now.worst)
        worst = now.worst | held_back.hold
        # A first grant on a node at its defaults, and any cut, is covered by what the node holds anyway.
        if now.worst.covers(held_back.hold):
            send(held_back, now, worst)
    return Admission(grants, tuple(waiting))
