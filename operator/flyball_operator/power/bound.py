"""The most that a node may draw, as far as anyone can prove: the arithmetic that the power promise stands on.

For every cap, at every instant: the sum over its nodes of these bounds, plus the static overhead, is at most the cap
(docs/power-safety.md, "The invariant"). A bound is derived from API objects alone, so that any operator, started at any
moment, comes to the same figure as the one before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from flyball_api.gpu_node import Acknowledgement, DriverSession
from flyball_api.grant import Grant, GrantVersion, PowerBound
from flyball_api.values.units import NodeMilliwatts, of_nodes
from msgspec import Struct, field

NOTHING = PowerBound()
NEVER = GrantVersion()  # before every version
# The most that a grant can say of a node (crds/gpunodes.yaml); no machine draws as much.
MOST_OF_A_NODE = NodeMilliwatts(1_000_000_000)
# An agent that acknowledges so many grants more than its leader has sent lies: the numbers would come to an end.
MOST_GRANTS_UNKNOWN = 1_000_000


def committed_bound(
    grant: Grant | None,
    acknowledged: Acknowledgement | None,
    session: DriverSession,
    largest: NodeMilliwatts,
    unseen: NodeMilliwatts = NodeMilliwatts(0),
    read_back_since: NodeMilliwatts = NodeMilliwatts(0),
) -> PowerBound:
    """The most that a node's GPUs may draw now, as far as its agent's last acknowledgement is still true.

    `session` is the driver session that the agent last reported, `largest` what the node's GPUs come to at their largest
    limits, `unseen` the share of it of GPUs that the agent has never seen and so never reads back, `read_back_since` what
    it has read back since its acknowledgement where that is more. Of a node without an acknowledgement in its present
    driver session nobody knows the limits: a reboot or driver load puts them to their
    defaults, but somebody may have raised them since.
    """
    sent = NOTHING if grant is None else grant.committed | grant.bound
    largest = min(largest, MOST_OF_A_NODE)
    if acknowledged is None or acknowledged.session != session:
        return sent | PowerBound(largest, largest)
    if acknowledged.version > (NEVER if grant is None else grant.version) or acknowledges_another(grant, acknowledged):
        # Its GPUNode was made anew, or the API server's store was restored: nobody knows what the agent's grant allows.
        most = max(largest, acknowledged.limits_milliwatts)
        return sent | PowerBound(most, most)
    # What the grant in force allows a moment later (a pod that has yet to start) can be above what was read back; what
    # was read back can be above the grant (a GPU that refused to be lowered): the higher of the two counts.
    allowed = sent
    if grant is not None and acknowledged.version == grant.version:
        # A brake may have lowered it: to what the agent says that it holds itself to until a later grant, no further.
        bound = acknowledged.bound_milliwatts
        allowed = grant.bound if bound is None else grant.bound.at_most(bound)
    read_back = min(max(acknowledged.limits_milliwatts, read_back_since) + unseen, MOST_OF_A_NODE)
    above = NodeMilliwatts(max(0, read_back - allowed.limit_milliwatts))
    # Nobody has predicted what is drawn above the grant: all of it may be.
    return allowed + PowerBound(above, above)


def acknowledges_another(grant: Grant | None, acknowledged: Acknowledgement | None) -> bool:
    """Whether what the agent acknowledged is another grant than the one that stands, though of the same version."""
    if grant is None or acknowledged is None:
        return False
    return acknowledged.version == grant.version and not acknowledged.is_of(grant)


class NodePower(Struct, frozen=True):
    """What the admission of grants knows of a node: the grant that stands (None: none yet) and the most it may draw.

    `accepted` is the version that its agent acknowledged last, which the next grant must pass even where the GPUNode was
    deleted and made again. `unsettled`: a grant was sent and nobody knows whether it arrived, or the agent has another
    one of the same version; only another write tells. `braked_milliwatts`: what its agent holds to until another grant
    comes, where a brake makes that less than the grant. `sent_generation` is that of the last grant which this leader has
    sent there, where no GPUNode has one: its agent may have taken it.
    """

    grant: Grant | None
    committed: PowerBound
    accepted: GrantVersion = NEVER
    unsettled: bool = False
    braked_milliwatts: NodeMilliwatts | None = None
    sent_generation: int = 0

    def next_generation(self, epoch: int) -> int:
        """The generation of the next grant under the leader epoch `epoch`: above every one used before it."""
        sent = self.sent_generation if self.grant is None else self.grant.generation
        accepted = self.accepted.generation if self.accepted.epoch == epoch else 0
        return (max(sent, accepted) if accepted - sent <= MOST_GRANTS_UNKNOWN else sent) + 1


class JumpReserve(Struct, frozen=True):
    """That so many of the `nodes` may jump to the largest limits of their GPUs, `largest` of each, by the nodes' names."""

    nodes: int = 0
    largest: Mapping[str, NodeMilliwatts] = field(default_factory=dict)

    def of(self, draws: Iterable[tuple[str, NodeMilliwatts]]) -> NodeMilliwatts:
        """What is to be held back while the nodes may draw so much: the largest distances to their largest limits."""
        if not self.nodes:
            return NodeMilliwatts(0)
        distances = [max(NodeMilliwatts(0), self.largest[node] - draw) for node, draw in draws if node in self.largest]
        return of_nodes(heapq.nlargest(self.nodes, distances))


NO_RESERVE = JumpReserve()


class CapBudget(Struct, frozen=True):
    """What a cap leaves to the GPUs of its nodes, its static overhead taken off.

    What the nodes may draw and what `reserve` holds back beside it come to no more than `budget_milliwatts`.
    `expected`: the cap adds up what is predicted to be drawn, not limits. `by_priority`: where it does not fit, jobs of low
    priority pay first, all the way to their smallest limits. `pauses`: where limits cannot hold it, a plan may pause jobs.
    """

    name: str
    nodes: frozenset[str]
    budget_milliwatts: NodeMilliwatts
    expected: bool = False
    by_priority: bool = False
    pauses: bool = True
    reserve: JumpReserve = NO_RESERVE

    def counted(self, bound: PowerBound) -> NodeMilliwatts:
        """The figure of a bound that this cap adds up."""
        return bound.expected_milliwatts if self.expected else bound.limit_milliwatts

    def counted_together(self, bounds: Iterable[PowerBound]) -> NodeMilliwatts:
        """What this cap adds up of several bounds."""
        if self.expected:
            return of_nodes([bound.expected_milliwatts for bound in bounds])
        return of_nodes([bound.limit_milliwatts for bound in bounds])

    def committed(self, power: Mapping[str, NodePower]) -> NodeMilliwatts:
        """The most that the cap's nodes may draw at this instant."""
        return self.counted_together([power[node].committed for node in self.nodes if node in power])
