"""The power protocol against random interleavings: agents that lag, apply half, refuse or vanish, and leaders that crash.

The state machine keeps a small cluster: the API's grants and acknowledgements, and per node the limits that its hardware
really has. The operator's part is the real code; agents follow the documented rules (lower first, then raise, never above
the grant) but stop at any step. After every rule: no node's limits pass its worst hold, and no cap that was held is passed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flyball_operator.grants import CapBudget, NodePower, WantedGrant, admit, committed, squeeze
from flyball_operator.hold import Acknowledgement, DeviceGrant, Grant, Hold, JobGrant, worst_hold
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

GPUS = 2
FLOOR, DEFAULT, LARGEST = 100_000, 400_000, 450_000
NODES = ("a", "b")
UIDS = tuple(f"job-{index}" for index in range(GPUS))
LIMITS = st.sampled_from([FLOOR, 250_000, DEFAULT, LARGEST])
BUDGETS = st.sampled_from([share * GPUS * len(NODES) * LARGEST // 10 for share in (1, 3, 5, 7, 10)])


@dataclass
class Agent:
    """One node's hardware and its agent's journal."""

    limits: list[int] = field(default_factory=lambda: [DEFAULT] * GPUS)
    boot: int = 0
    accepted: Grant | None = None
    stuck: set[int] = field(default_factory=set)  # GPUs whose setter reports success and does nothing
    started: set[str] = field(
        default_factory=lambda: {f"{uid}-0" for uid in UIDS}
    )  # pods that hold their GPU; the others' GPUs are idle

    def targets(self) -> list[int]:
        assert self.accepted is not None
        wanted = [job.power_limit_milliwatts if job.pod_name in self.started else FLOOR for job in self.accepted.jobs]
        return (wanted + [FLOOR] * GPUS)[:GPUS]

    def apply(self, steps: int) -> bool:
        """At most `steps` settings, lower ones first; True once every limit is at or below what is wanted."""
        targets = self.targets()
        for index, target in enumerate(targets):
            if self.limits[index] > target and index not in self.stuck:
                if steps == 0:
                    return False
                steps -= 1
                self.limits[index] = target
        for index, target in enumerate(targets):
            above = target - self.limits[index]
            if above > 0 and sum(self.limits) + above <= self.accepted.hold.limit_milliwatts:  # type: ignore[union-attr]
                if steps == 0:
                    return False
                steps -= 1
                self.limits[index] = target
        return True


class PowerProtocol(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.agents = {name: Agent() for name in NODES}
        self.grants: dict[str, Grant] = {}
        self.acknowledged: dict[str, Acknowledgement] = {}
        self.boots: dict[str, int] = dict.fromkeys(NODES, -1)  # as last reported; -1: never heard of
        self.wanted_limits: dict[str, list[int]] = {name: [] for name in NODES}
        self.epoch = 1
        self.cap = CapBudget("row", frozenset(NODES), 0)
        self.held = False

    @initialize(budget=BUDGETS)
    def begin(self, budget: int) -> None:
        self.cap = CapBudget("row", frozenset(NODES), budget)

    # --- the operator, from the API alone ---------------------------------------------------------------------------

    def power(self) -> dict[str, NodePower]:
        result = {}
        for name in NODES:
            acknowledged = self.acknowledged.get(name)
            worst = worst_hold(self.grants.get(name), acknowledged, (str(self.boots[name]), ""), GPUS * DEFAULT)
            accepted = (0, 0) if acknowledged is None else acknowledged.version
            result[name] = NodePower(self.grants.get(name), worst, accepted)
        return result

    def wants(self) -> list[WantedGrant]:
        wanted = []
        for name in NODES:
            limits = self.wanted_limits[name]
            jobs = tuple(
                JobGrant("default", uid, uid, 1, f"{uid}-0", 1, limit, 0, 1410)
                for uid, limit in zip(UIDS, limits, strict=False)
            )
            holds = tuple(Hold(job.power_limit_milliwatts, job.power_limit_milliwatts) for job in jobs)
            rest = (GPUS - len(jobs)) * FLOOR
            wanted.append(WantedGrant(name, DeviceGrant(), 60, jobs, holds, Hold(rest, rest), FLOOR))
        return wanted

    @rule(
        delivered=st.sampled_from([(True, True), (True, True), (True, False), (False, True)]),
        replanned=st.none() | st.tuples(st.sampled_from(NODES), st.lists(LIMITS, min_size=1, max_size=GPUS)),
    )
    def operator_cycle(self, delivered: tuple[bool, ...], replanned: tuple[str, list[int]] | None) -> None:
        """A cycle; some of its writes are lost (the operator crashed among them, or the API was away)."""
        if replanned is not None:
            node, limits = replanned
            self.wanted_limits[node] = limits
        power = self.power()
        fixed = frozenset(name for name in NODES if name not in self.acknowledged)
        wanted = squeeze(self.wants(), power, [self.cap], fixed)
        adopted = all(grant.epoch == self.epoch for grant in self.grants.values())
        admission = admit(wanted, power, [self.cap], self.epoch, raises_allowed=adopted)
        for arrives, (name, grant) in zip(delivered, sorted(admission.grants.items()), strict=False):
            before = self.grants.get(name)
            assert before is None or grant.version > before.version  # what the CRD's transition rule demands
            if arrives:
                self.grants[name] = grant

    @rule(budget=BUDGETS)
    def cap_changes(self, budget: int) -> None:
        self.cap = CapBudget("row", frozenset(NODES), budget)
        self.held = False

    @rule()
    def leader_changes(self) -> None:
        """Nothing but the API's objects reaches the next leader."""
        self.epoch += 1

    # --- the agents -------------------------------------------------------------------------------------------------

    @rule(node=st.sampled_from(NODES), steps=st.sampled_from([1, 9, 9]), says=st.booleans())
    def agent_ticks(self, node: str, steps: int, says: bool) -> None:
        agent, grant = self.agents[node], self.grants.get(node)
        if grant is not None and (agent.accepted is None or grant.version > agent.accepted.version):
            agent.accepted = grant
        if agent.accepted is None:
            if says:
                self.boots[node] = agent.boot
            return
        done = agent.apply(steps)
        if says:
            self.boots[node] = agent.boot
            if done:
                self.acknowledged[node] = Acknowledgement(
                    agent.accepted.epoch, agent.accepted.generation, sum(agent.limits), str(agent.boot), ""
                )

    @rule(node=st.sampled_from(NODES), pod=st.sampled_from([f"{uid}-0" for uid in UIDS]), runs=st.booleans())
    def pod_comes_or_goes(self, node: str, pod: str, runs: bool) -> None:
        (self.agents[node].started.add if runs else self.agents[node].started.discard)(pod)

    @rule(node=st.sampled_from(NODES), gpu=st.integers(0, GPUS - 1))
    def setter_starts_to_lie(self, node: str, gpu: int) -> None:
        self.agents[node].stuck.add(gpu)

    @rule(node=st.sampled_from(NODES))
    def lease_ends(self, node: str) -> None:
        agent = self.agents[node]
        agent.limits = [
            limit if index in agent.stuck else min(limit, FLOOR) for index, limit in enumerate(agent.limits)
        ]

    @rule(node=st.sampled_from(NODES))
    def reboots_and_says_so(self, node: str) -> None:
        agent = self.agents[node]
        agent.boot += 1
        agent.stuck = set()
        agent.limits = [DEFAULT] * GPUS
        self.boots[node] = agent.boot
        self.held = False  # a reboot is no one's command; the cap says "not enforced" from the moment it is told

    # --- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def no_node_passes_its_worst_hold(self) -> None:
        for name, power in self.power().items():
            assert sum(self.agents[name].limits) <= power.worst.limit_milliwatts, name

    @invariant()
    def a_held_cap_stays_held(self) -> None:
        now = committed(self.cap, self.power())
        if self.held:
            assert now <= self.cap.budget_milliwatts
        self.held = now <= self.cap.budget_milliwatts


PowerProtocol.TestCase.settings = settings(max_examples=400, stateful_step_count=50, deadline=None)
TestPowerProtocol = PowerProtocol.TestCase
