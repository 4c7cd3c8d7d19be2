"""When a PowerBrake is written, and how far it lowers: one write in place of a grant for each node under a cap.

Pure: no I/O, no clock of its own. A brake is worth its write where a cap has several nodes to lower. It frees nothing by
itself: what a node may draw falls once its agent has acknowledged what the brake leaves (`bound.committed_bound`). Grants
to the same nodes would only keep the API server from the acknowledgements, and from the status that tells of them; they are
held back for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from flyball_api.grant import MILLIONTHS, BrakeVersion, CapOverNode
from flyball_api.power_brake import PowerBrake, PowerBrakeSpec
from flyball_api.values.units import NodeMilliwatts, of_nodes

from flyball_operator.power.bound import CapBudget
from flyball_operator.power.caps.state import CapState
from flyball_operator.power.nodes.info import NodeInfo

# With fewer nodes to lower, a grant for each costs no more.
FEWEST_NODES = 4
# For how long after a brake the grants of its nodes are held back; an agent that follows it takes a fraction of this.
HOLD_BACK_SECONDS = 2.0
# And each of very many nodes so long: grants would keep the API server from their acknowledgements.
HOLD_BACK_SECONDS_EACH = 0.008
# While acknowledgements come in and some are still owed, grants are held back for so long after the last, and at most so
# many times as long as otherwise: beside those of a thousand nodes they make the server take five times as long.
STILL_COMING_SECONDS = 1.0
LONGEST_HOLD_BACK = 4.0
# Nodes that are late would hear a grant no sooner than the brake: for so long one would only be another write.
LATE_HOLD_BACK_SECONDS = 10.0
# A cap that falls all the time is braked again and again: of so many times as long, grants have their turn in the rest.
HOLD_BACK_TURN = 2.0
# After a brake that could not be written, grants do the work for a while.
PAUSE_SECONDS = 5.0
# As many caps as a GPUNode can name.
MAX_CAPS_OVER_NODE = 64


@dataclass(frozen=True, slots=True)
class SendBrake:
    """Write this PowerBrake of a cap; it must still be of `resource_version`, where empty it is to be made."""

    cap: str
    spec: PowerBrakeSpec
    resource_version: str


@dataclass(frozen=True, slots=True)
class _Sent:
    """A brake of this leader, the nodes that should follow it, and since and until when their grants are held back for it.

    `budget_milliwatts`: what its cap comes to once all have followed; `committed_milliwatts`: what it last came to.
    """

    version: BrakeVersion
    kept_millionths: int
    nodes: frozenset[str]
    budget_milliwatts: NodeMilliwatts
    committed_milliwatts: NodeMilliwatts
    held_since: float
    held_until: float

    def seen(self, committed_milliwatts: NodeMilliwatts, monotonic: float) -> _Sent:
        """With what its cap comes to now; held back for longer where that has fallen and has further to fall."""
        until = self.held_until
        if monotonic < until and self.budget_milliwatts < committed_milliwatts < self.committed_milliwatts:
            longest = self.held_since + LONGEST_HOLD_BACK * _hold_back_seconds(self.nodes)
            until = max(until, min(monotonic + STILL_COMING_SECONDS, longest))
        return replace(self, committed_milliwatts=committed_milliwatts, held_until=until)


class Brakes:
    """The brakes of one leader term."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._seen: Mapping[str, PowerBrake] = {}
        self._sequences: dict[str, int] = {}  # the last one used in this term, by cap
        self._sent: dict[str, _Sent] = {}
        self._under_way: set[str] = set()
        self._paused_until: dict[str, float] = {}
        self._late: frozenset[str] = frozenset()
        self._cut_by_grants: frozenset[str] = frozenset()  # nodes under caps that are over, and that no brake lowers

    def update(self, seen: Mapping[str, PowerBrake]) -> None:
        """Take in every PowerBrake as it is now, by the cap's name."""
        self._seen = seen
        for cap, brake in seen.items():
            if brake.version.epoch == self._epoch:
                self._sequences[cap] = max(self._sequences.get(cap, 0), brake.version.sequence)

    def known(self, cap: str) -> BrakeVersion:
        """The version of the cap's brake that a grant written now is made with.

        A brake of an earlier term that has not landed yet is not to be followed either, hence at least the term's first.
        """
        seen = self._seen.get(cap)
        own = BrakeVersion(self._epoch, self._sequences.get(cap, 0))
        return own if seen is None else max(own, seen.version)

    def over(self, node: NodeInfo, caps: Iterable[str]) -> tuple[CapOverNode, ...]:
        """What the grant of a node under these caps names. An emergency goes on for nodes that have left their cap.

        Where there are more than a grant can name, those with an emergency: the others' cuts come with grants.
        """
        grant = node.power.grant
        held = () if grant is None else (cap.name for cap in grant.caps if self._is_active(cap.name))
        first = sorted({*caps, *held}, key=lambda name: (not self._is_active(name), name))[:MAX_CAPS_OVER_NODE]
        return tuple(CapOverNode(name, self.known(name)) for name in sorted(first))

    def step(self, caps: Iterable[CapState], nodes: Mapping[str, NodeInfo], monotonic: float) -> tuple[SendBrake, ...]:
        """Decide which brakes to write now; they count as sent from here on."""
        caps = tuple(caps)
        self._late = frozenset(name for name, info in nodes.items() if info.late)
        sends = self._sends(caps, nodes, monotonic)
        cut = (
            cap.nodes - self._held_late(cap.name, monotonic)
            for cap in caps
            if not self._holds_back(cap.name, monotonic) and cap.is_over(nodes)
        )
        self._cut_by_grants = frozenset().union(*cut) if self._sent else frozenset()
        return sends

    def _sends(
        self, caps: Iterable[CapState], nodes: Mapping[str, NodeInfo], monotonic: float
    ) -> tuple[SendBrake, ...]:
        sends = []
        for cap in caps:
            if cap.name in self._sent:
                self._sent[cap.name] = self._sent[cap.name].seen(cap.committed_milliwatts, monotonic)
            budget = cap.planning_budget()
            if not cap.is_over_budget:
                if cap.known_enforced or not self._holds_back(cap.name, monotonic):
                    self._sent.pop(cap.name, None)
                continue
            if cap.name in self._under_way or self._is_active(cap.name):
                continue
            if monotonic < self._paused_until.get(cap.name, monotonic):
                continue
            followers = self._followers(cap, nodes, monotonic)
            fixed = {name: budget.counted(nodes[name].power.committed) for name in cap.nodes if name not in followers}
            slopes = {name: _Slope.of(info, expected=budget.expected) for name, info in followers.items()}
            # Where nothing is above the smallest limits, all brakes are the same.
            lowerable = [followers[name] for name, slope in slopes.items() if slope.above]
            standing = self._standing(cap.name, lowerable)
            if standing is not None and (standing == 0 or _fit(slopes, standing, fixed, budget)):
                continue  # as low as it has to be: its acknowledgements are awaited, or grants do the rest
            kept = _share_that_fits(slopes, fixed, budget)
            # Where the cap is over for want of acknowledgements alone, there is nothing to lower.
            lowered = sum(slope.at(kept) < slope.at(MILLIONTHS) for slope in slopes.values())
            if lowered < FEWEST_NODES:
                continue
            sends.append(self._send(cap, kept, frozenset(followers), monotonic))
        return tuple(sends)

    def held_back(self, monotonic: float) -> frozenset[str]:
        """The nodes whose grants can wait: until their acknowledgements of a brake, and the status that says so, are in.

        Not those that another cap cuts by grants: what one brake lowers need not be enough for that.
        """
        held = (sent.nodes for cap, sent in self._sent.items() if self._holds_back(cap, monotonic))
        late = (self._held_late(cap, monotonic) for cap in self._sent)
        return frozenset().union(*held, *late) - self._cut_by_grants

    def take_answer(self, cap: str, *, done: bool, monotonic: float) -> None:
        """What became of a brake's write; where it failed, grants lower the nodes."""
        self._under_way.discard(cap)
        if not done:
            self._sent.pop(cap, None)
            self._paused_until[cap] = monotonic + PAUSE_SECONDS

    def _followers(self, cap: CapState, nodes: Mapping[str, NodeInfo], monotonic: float) -> dict[str, NodeInfo]:
        """The nodes of the cap that a brake is reckoned to lower.

        A few late ones are not: they may never answer, and the others make room for them. Where half of all are late the
        API server is, and they hear a brake as soon as anything; those that one was sent to are awaited.
        """
        able = {name: nodes[name] for name in cap.nodes if _follows(nodes[name], cap.name)}
        if 2 * len(able.keys() & self._late) >= len(cap.nodes):
            return able
        awaited = self._held_late(cap.name, monotonic)
        return {name: info for name, info in able.items() if not info.late or name in awaited}

    def _held_late(self, cap: str, monotonic: float) -> frozenset[str]:
        """The nodes that are late and that the cap's brake was sent to a short while ago."""
        sent = self._sent.get(cap)
        if sent is None or monotonic - sent.held_since >= LATE_HOLD_BACK_SECONDS:
            return frozenset()
        return sent.nodes & self._late

    def _holds_back(self, cap: str, monotonic: float) -> bool:
        sent = self._sent.get(cap)
        return sent is not None and monotonic < sent.held_until

    def _is_active(self, cap: str) -> bool:
        return cap in self._seen and self._seen[cap].active

    def _standing(self, cap: str, followers: Iterable[NodeInfo]) -> int | None:
        """The share of the brake that stands, where some grant was not made with it; None where it has done its work.

        A later one must not keep more: an agent that lost its memory would follow it alone.
        """
        shares = [self._sent[cap].kept_millionths] if cap in self._sent else []
        brake = self._seen.get(cap)
        if brake is not None and any(_named(info, cap) < brake.version for info in followers):
            shares.append(brake.spec.kept_millionths)
        return min(shares, default=None)

    def _send(self, cap: CapState, kept: int, nodes: frozenset[str], monotonic: float) -> SendBrake:
        self._sequences[cap.name] = self._sequences.get(cap.name, 0) + 1
        version = BrakeVersion(self._epoch, self._sequences[cap.name])
        last, seconds = self._sent.get(cap.name), _hold_back_seconds(nodes)
        since, until = monotonic, monotonic + seconds
        if last is not None and monotonic < last.held_until + (HOLD_BACK_TURN - 1) * seconds:  # grants have their turn
            since, until = last.held_since, max(last.held_until, last.held_since + seconds)
        self._sent[cap.name] = _Sent(
            version, kept, nodes, cap.grantable_milliwatts, cap.committed_milliwatts, since, until
        )
        self._under_way.add(cap.name)
        seen = self._seen.get(cap.name)
        return SendBrake(
            cap.name, PowerBrakeSpec(*version, kept), "" if seen is None else seen.metadata.resource_version
        )


def _hold_back_seconds(nodes: frozenset[str]) -> float:
    return max(HOLD_BACK_SECONDS, HOLD_BACK_SECONDS_EACH * len(nodes))


def _named(info: NodeInfo, cap: str) -> BrakeVersion:
    """Up to which version of the cap's brake the node's grant was made with knowledge of."""
    grant = info.power.grant
    return max(
        (item.brake for item in (() if grant is None else grant.caps) if item.name == cap), default=BrakeVersion()
    )


def _follows(info: NodeInfo, cap: str) -> bool:
    """Whether a brake of the cap lowers what stands on the node: its agent follows brakes, and its grant names the cap."""
    return info.believed and not info.power.unsettled and info.follows_brakes and cap in info.named_caps


@dataclass(frozen=True, slots=True)
class _Slope:
    """What one node comes to under its grant, in milliwatts as the cap counts them, as a function of the share kept.

    `top` is what its grant allows as it is held to, `least` and `above` what that comes to with nothing kept and what each
    share adds; `excess` is held above the grant. `expected`: where the cap counts predicted draw, the prediction, which
    limits can only bound.
    """

    top: NodeMilliwatts
    least: NodeMilliwatts
    above: NodeMilliwatts
    excess: NodeMilliwatts
    expected: NodeMilliwatts | None

    @classmethod
    def of(cls, info: NodeInfo, *, expected: bool) -> _Slope:
        grant = info.power.grant
        assert grant is not None  # noqa: S101 - only nodes that follow brakes are asked about
        braked, committed = info.power.braked_milliwatts, info.power.committed
        allowed = grant.bound if braked is None else grant.bound.at_most(braked)
        least = grant.lowered(0).bound.limit_milliwatts
        is_current = info.power.accepted == grant.version  # else what is committed is of grants before it, too
        excess = NodeMilliwatts(0)
        if is_current:
            excess = max(excess, committed.limit_milliwatts - allowed.limit_milliwatts)
        if excess:  # some GPU there does not take its limit, nor would it take a lower one
            least = allowed.limit_milliwatts
        return cls(
            top=allowed.limit_milliwatts,
            least=least,
            above=max(NodeMilliwatts(0), grant.bound.limit_milliwatts - least),
            excess=excess,
            expected=allowed.expected_milliwatts if expected else None,
        )

    def at(self, kept_millionths: int) -> NodeMilliwatts:
        """What it counts with once a brake with this share is acknowledged; shares of limits are rounded down."""
        limit = min(self.top, self.least + NodeMilliwatts(self.above * kept_millionths // MILLIONTHS))
        return (limit if self.expected is None else min(limit, self.expected)) + self.excess


def _fit(
    slopes: Mapping[str, _Slope], kept_millionths: int, fixed: Mapping[str, NodeMilliwatts], budget: CapBudget
) -> bool:
    """Whether the nodes, beside those that are `fixed`, come to no more than the budget under a brake with this share;
    under none above it, where not."""
    draws = [slope.at(kept_millionths) for slope in slopes.values()]
    reserve = budget.reserve.of(chain(fixed.items(), zip(slopes, draws, strict=True)))
    return of_nodes(draws) + of_nodes(fixed.values()) + reserve <= budget.budget_milliwatts


def _share_that_fits(slopes: Mapping[str, _Slope], fixed: Mapping[str, NodeMilliwatts], budget: CapBudget) -> int:
    """The largest share under which the nodes come to no more than the budget; 0 where none does."""
    low, high = 0, MILLIONTHS
    while low < high:
        middle = (low + high + 1) // 2
        if _fit(slopes, middle, fixed, budget):
            low = middle
        else:
            high = middle - 1
    return low
