"""Policies: who gets how many GPUs. One interface, chosen by name, for the operator and for the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flyball_planner.allocation import allocate
from flyball_planner.allocation_ledger import Claim, Ledger
from flyball_planner.allocation_steps import Stepper

DEFAULT_POLICY = "powerflow-strict"


class AllocationPolicy(Protocol):
    """Decides the size and the pools of every claim; nodes and clocks follow in the same way for every policy."""

    @property
    def name(self) -> str:
        """How the policy is chosen."""
        ...

    def allocate(self, ledger: Ledger, claims: Sequence[Claim], stepper: Stepper) -> None:
        """Give the claims their sizes, in the ledger, so that every cap holds with all clocks at their lowest."""
        ...


class StrictPowerFlow:
    """PowerFlow's greedy in which no step may pass a cap."""

    name = "powerflow-strict"

    def allocate(self, ledger: Ledger, claims: Sequence[Claim], stepper: Stepper) -> None:
        allocate(ledger, claims, stepper)


_POLICIES: dict[str, AllocationPolicy] = {policy.name: policy for policy in (StrictPowerFlow(),)}


def policy_names() -> tuple[str, ...]:
    """The policies there are."""
    return tuple(_POLICIES)


def policy_named(name: str) -> AllocationPolicy:
    """The policy of a name; raises ValueError that lists the names for an unknown one."""
    try:
        return _POLICIES[name]
    except KeyError:
        raise ValueError(f"policy {name!r} is unknown; there is {', '.join(_POLICIES)}") from None
