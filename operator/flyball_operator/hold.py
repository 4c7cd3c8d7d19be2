"""The most that a node may draw, as far as anyone can prove: the arithmetic that the power promise stands on.

For every cap, at every instant: sum over its nodes of the worst hold, plus the static overhead, is at most the cap
(power-safety.md, "Invariant"). A worst hold is derived from the API objects alone, so that any operator, started at any
moment, comes to the same figure as the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Hold:
    """What limits allow (`limit_milliwatts`) and what is predicted to be drawn under them (`expected_milliwatts`)."""

    limit_milliwatts: int = 0
    expected_milliwatts: int = 0

    def __add__(self, other: Hold) -> Hold:
        return Hold(
            self.limit_milliwatts + other.limit_milliwatts, self.expected_milliwatts + other.expected_milliwatts
        )

    def __or__(self, other: Hold) -> Hold:
        """The worse of two, each figure by itself."""
        return Hold(
            max(self.limit_milliwatts, other.limit_milliwatts), max(self.expected_milliwatts, other.expected_milliwatts)
        )

    def covers(self, other: Hold) -> bool:
        """Whether `other` allows nothing that this hold does not."""
        return other.limit_milliwatts <= self.limit_milliwatts and other.expected_milliwatts <= self.expected_milliwatts


@dataclass(frozen=True, slots=True)
class JobGrant:
    """What each GPU of one pod may draw, and its range of clocks (a minimum of 0: the lowest there is)."""

    namespace: str
    name: str
    uid: str
    incarnation: int
    pod_name: str
    gpus: int
    power_limit_milliwatts: int
    clock_min_megahertz: int
    clock_max_megahertz: int


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """What the GPUs without a Flyball pod may draw, and how many of them foreign pods hold; limits of 0 as in the API:
    the smallest for idle and failsafe, the default for foreign."""

    idle_power_limit_milliwatts: int = 0
    foreign_power_limit_milliwatts: int = 0
    foreign_gpus: int = 0
    failsafe_power_limit_milliwatts: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """What the operator allows one node, as it stands in GPUNode.spec.

    `hold` is this grant's own sum; `worst` also covers every earlier grant that was not yet acknowledged when this one
    was written, which makes outstanding grants survive the operator that sent them.
    """

    epoch: int
    generation: int
    lease_seconds: int
    hold: Hold
    worst: Hold
    devices: DeviceGrant
    jobs: tuple[JobGrant, ...] = ()

    @property
    def version(self) -> tuple[int, int]:
        return (self.epoch, self.generation)

    def same_content(self, other: Self) -> bool:
        """Whether both ask the same of the agent, whatever their version."""
        return (self.hold, self.lease_seconds, self.devices, self.jobs) == (
            other.hold,
            other.lease_seconds,
            other.devices,
            other.jobs,
        )


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An agent's word, with the sum of the limits it read back from the driver after applying (epoch, generation)."""

    epoch: int
    generation: int
    limits_milliwatts: int
    boot_id: str
    driver_incarnation: str

    @property
    def version(self) -> tuple[int, int]:
        return (self.epoch, self.generation)


def worst_hold(
    grant: Grant | None,
    acknowledged: Acknowledgement | None,
    incarnation: tuple[str, str],
    defaults_milliwatts: int,
    unseen_milliwatts: int = 0,
) -> Hold:
    """The most that a node's limits may add up to now.

    `incarnation` is the (boot id, driver incarnation) that the agent last reported, `defaults_milliwatts` the node's
    GPUs at their default limits, `unseen_milliwatts` those of them that the agent has never seen: no read-back has them.
    A node that never acknowledged, or not since its last boot or driver load, is where such an event puts it: at its
    defaults, or above them where a grant allowed more.
    """
    sent = Hold() if grant is None else grant.worst | grant.hold
    if acknowledged is None or (acknowledged.boot_id, acknowledged.driver_incarnation) != incarnation:
        return sent | Hold(defaults_milliwatts, defaults_milliwatts)
    # What the grant in force allows a moment later (a pod that has yet to start) can be above what was read back; what
    # was read back can be above the grant (a GPU that refused to be lowered): the worse of the two counts.
    allowed = grant.hold if grant is not None and acknowledged.version == grant.version else sent
    read_back = acknowledged.limits_milliwatts + unseen_milliwatts
    above = max(0, read_back - allowed.limit_milliwatts)
    # Nobody has predicted what is drawn above the grant: all of it may be.
    return Hold(allowed.limit_milliwatts + above, allowed.expected_milliwatts + above)
