"""What no policy may choose: a job twice or unasked, a size that there is not, more GPUs or watts than there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flyball_planner.ledger.caps import WATT_TOLERANCE
from flyball_planner.policies.view import Choice, Policy

from flyball_simulator.cluster.meter import ConservationError
from flyball_simulator.cluster.nodes import Nodes
from flyball_simulator.cluster.runs import Run


class PolicyRules:
    """Checks what one policy chooses; whatever breaks a rule raises ConservationError."""

    def __init__(self, policy: Policy, nodes: Nodes, clocks: int, idle_gpu_watts: float) -> None:
        self._policy = policy
        self._nodes = nodes
        self._clocks = clocks
        self._idle_gpu_watts = idle_gpu_watts

    def checked(self, choices: Sequence[Choice], active: Mapping[str, Run]) -> dict[str, tuple[Run, Choice]]:
        """The choices with their runs, in their order."""
        chosen: dict[str, tuple[Run, Choice]] = {}
        gpus = 0
        for choice in choices:
            run = active.get(choice.uid)
            if run is None or choice.uid in chosen:
                raise ConservationError(f"policy {self._policy.name} chose {choice.uid!r} twice, or unasked")
            if choice.gpus not in run.truth.position or not 0 <= choice.clock_index < self._clocks:
                raise ConservationError(f"policy {self._policy.name} chose {choice}: no such size or clock")
            gpus += choice.gpus
            chosen[choice.uid] = (run, choice)
        if gpus > self._nodes.usable_gpus:
            raise ConservationError(f"policy {self._policy.name} gave out {gpus} of {self._nodes.usable_gpus} GPUs")
        return chosen

    def check_limits(self, runs: Iterable[Run], cap_watts: float | None) -> None:
        """A policy that holds the cap keeps the sum of all limits under it: then no job's draw can break it."""
        if cap_watts is None or not self._policy.traits.holds_limits:
            return
        allowed = least = self._nodes.usable_gpus * self._idle_gpu_watts
        for run in runs:
            if run.gpus:
                allowed += run.limit_watts - run.gpus * self._idle_gpu_watts
        if allowed > max(cap_watts, least) + WATT_TOLERANCE:
            raise ConservationError(
                f"policy {self._policy.name} lets GPUs draw {allowed:.1f} W under a cap of {cap_watts:.1f} W"
            )
