"""Everything that one agent knows, as data: what its status and its metrics are made from."""

from __future__ import annotations

from dataclasses import dataclass, field

from flyball_agent.energy.attribution import EnergyAccounts
from flyball_agent.energy.observations import Observations
from flyball_agent.energy.pods import PodOnGpus
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.enforce.state import EnforcerState


@dataclass(slots=True)
class RoundCounts:
    """Counts of the control loop since this process started."""

    rounds: int = 0
    late_rounds: int = 0
    failed_rounds: int = 0
    reports: int = 0


@dataclass(frozen=True, slots=True)
class EndedPod:
    """A pod that held GPUs until `ended_ns` of CLOCK_BOOTTIME."""

    pod: PodOnGpus
    ended_ns: int


@dataclass(slots=True)
class AgentState:
    """Everything that one agent knows after its last round; the agent alone changes it, and others only read.

    `pods_listed`: the pods were listed, and `accounted`: energy was accounted for, at least once in this process.
    `pods_unresolved` says which pods hold devices whose GPUs are not known, `pods_error` why it is not known now which pod
    holds which GPU, `round_error` what the last round ended in, and `last_round_ns` when that was (CLOCK_BOOTTIME).
    `ended_pods` are the pods that ended lately.
    """

    node: str
    version: str
    enforced: EnforcerState
    accounts: EnergyAccounts
    jobs: Observations
    pods: dict[PodName, PodOnGpus] = field(default_factory=dict)
    pods_listed: bool = False
    pods_unresolved: str | None = None
    pods_error: str | None = None
    accounted: bool = False
    ended_pods: dict[PodName, EndedPod] = field(default_factory=dict)
    round_error: str | None = None
    last_round_ns: int | None = None
    counts: RoundCounts = field(default_factory=RoundCounts)

    def pod_millijoules(self, pod: PodOnGpus) -> int:
        """What a pod has used since its start."""
        return self.accounts.pod_millijoules(pod.energy_key)
