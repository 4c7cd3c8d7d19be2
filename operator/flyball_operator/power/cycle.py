"""What goes into a cycle of the power controller, what comes out of it and, later, what became of its writes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from flyball_api.grant import Grant
from flyball_api.workloads import PodView
from flyball_planner.snapshot import JobDecision
from msgspec.structs import replace

from flyball_operator.cluster.outcome import Outcome
from flyball_operator.cluster.state import ClusterState
from flyball_operator.power.bound import NO_RESERVE, CapBudget
from flyball_operator.power.caps.memberships import LabelSync
from flyball_operator.power.caps.state import CapStates
from flyball_operator.power.caps.status_writes import CapStatusWrite
from flyball_operator.power.grants.brakes import SendBrake
from flyball_operator.power.holds import HoldChange
from flyball_operator.power.nodes.info import NodeInfo


@dataclass(frozen=True, slots=True)
class PlanInForce:
    """The last plan: each job's decision by uid, the caps that it cannot hold, and whether the next one is being made.

    `made`: there is one in this leader's term; until then pods keep what they were granted by the leader before.
    """

    decisions: Mapping[str, JobDecision] = field(default_factory=dict)
    infeasible: Collection[str] = ()
    next_is_near: bool = False
    made: bool = True


@dataclass(frozen=True, slots=True)
class PowerState:
    """What the cluster comes to in one cycle, before anything is decided.

    `cutting`: a cap is on its way down, so that the API server's time belongs to the agents' acknowledgements, and other
    statuses should wait; for longer, while `figures_wait`, those that tell of limits or figures alone.
    `next_silence_seconds` is when an agent that does not report before will have been silent for too long (infinite for
    none).
    """

    cluster: ClusterState
    nodes: Mapping[str, NodeInfo]
    caps: CapStates
    cutting: bool = False
    figures_wait: bool = False
    next_silence_seconds: float = math.inf

    @property
    def all_read(self) -> bool:
        """Every cap and GPUNode could be read. Else nothing is raised: a cap that cannot be read must not count as no
        cap, nor a node's grant as none."""
        return not self.caps.unreadable and not self.cluster.unread

    def planning_budgets(self) -> list[CapBudget]:
        """What the plan should aim at under each cap, less what is held back now: plans do not reckon with reserves."""
        return [
            replace(state.planning_budget(), budget_milliwatts=state.grantable_milliwatts, reserve=NO_RESERVE)
            for state in self.caps.states
        ]


@dataclass(frozen=True, slots=True)
class PowerCycle:
    """What one cycle of the power decisions is made on; `now` is the wall clock's instant, `monotonic` in seconds.

    `status_writes` has the uids of the caps whose statuses are being written, `stopping` the incarnations (by job uid and
    number) that are to be stopped.
    """

    state: PowerState
    plan: PlanInForce
    now: datetime
    monotonic: float
    status_writes: Collection[str] = ()
    stopping: Collection[tuple[str, int]] = ()


@dataclass(frozen=True, slots=True)
class SendGrant:
    """Write this grant to the node's GPUNode, whose version must be the one that `node` was read from."""

    node: NodeInfo
    grant: Grant
    waits: bool  # part of what the node should have waits for watts that others have yet to free


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a grant that was sent to a node; `invalid` is the grant where the API server takes none such."""

    node: str
    outcome: Outcome
    invalid: Grant | None = None


@dataclass(frozen=True, slots=True)
class BrakeAnswered:
    """What became of a brake that was sent for a cap."""

    cap: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class PowerInstructions:
    """What to do after one step. Brakes and grants go first; they wait for no status.

    `untaint` are nodes whose agents have acknowledged a grant and that are to be opened for pods, `taint` those whose
    acknowledgement is doubted or void since, and that are to be closed again; `reserved` the pods (by
    name and job uid) whose nodes are granted just what they should have. `held_up` are the incarnations (by job uid and
    number) whose stop has to wait for a ramp. `owing` nodes have yet to acknowledge a grant. A cut that is held back goes
    in the next step after `next_cut_seconds` (infinite for none).
    """

    brakes: tuple[SendBrake, ...] = ()
    sends: tuple[SendGrant, ...] = ()
    untaint: tuple[NodeInfo, ...] = ()
    taint: tuple[NodeInfo, ...] = ()
    cap_statuses: tuple[CapStatusWrite, ...] = ()
    reserved: frozenset[tuple[str, str]] = frozenset()
    held_up: frozenset[tuple[str, int]] = frozenset()
    owing: int = 0
    label_syncs: tuple[LabelSync, ...] = ()
    holds: tuple[HoldChange, ...] = ()
    next_cut_seconds: float = math.inf

    def is_reserved(self, pod: PodView) -> bool:
        """Whether the pod's watts are reserved, so that its gate may open."""
        return (pod.name, pod.job_uid) in self.reserved
