"""What jobs are tried at, below their plan, so that it becomes known: lower clocks, and lower power limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flyball_planner.snapshot import JobDecision

from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.runs.lifecycle import JobPhase
from flyball_operator.jobs.steps.step import JobsStep
from flyball_operator.learning.exploration import Explorations, Running, acknowledged_limit
from flyball_operator.learning.learner import Learner
from flyball_operator.learning.power_limits import PowerLimitProfiles
from flyball_operator.power.cycle import PowerState
from flyball_operator.settings import OBSERVE, Settings


class Trials:
    """The trials of one leader term; who sets nothing tries nothing."""

    def __init__(self, learner: Learner, settings: Settings) -> None:
        sets = settings.mode != OBSERVE
        self._clocks = Explorations(learner, settings.exploration_permille if sets else 0)
        self._power_limits = PowerLimitProfiles(learner, settings.profiled_power_limits if sets else 0)

    def step(
        self,
        decisions: Mapping[str, JobDecision],
        cluster: ClusterState,
        jobs: JobsStep,
        state: PowerState,
        monotonic: float,
    ) -> float:
        """Begin and end trials of the jobs that run by these decisions; returns the GPU seconds that went to them since
        last time."""
        running = list(_running(decisions, jobs, state))
        gpu_seconds = self._power_limits.step(running, cluster.jobs, monotonic)
        others = [item for item in running if not self._power_limits.under_way(item)]
        return gpu_seconds + self._clocks.step(others, cluster.jobs, monotonic)

    def granted(self, decisions: Mapping[str, JobDecision]) -> Mapping[str, JobDecision]:
        """The decisions with the lower limits and clocks that are tried: for the grants."""
        return self._clocks.granted(self._power_limits.granted(decisions))

    def explained(self, decisions: Mapping[str, JobDecision]) -> Mapping[str, JobDecision]:
        """The decisions with an explanation of what is tried: for the statuses."""
        return self._power_limits.explained(self._clocks.explained(decisions))


def _running(decisions: Mapping[str, JobDecision], jobs: JobsStep, state: PowerState) -> Iterator[Running]:
    """The jobs all of whose pods run as planned, with what they run on."""
    for uid, job in jobs.jobs.items():
        current, decision = job.step.current, decisions.get(uid)
        if current is not None and decision is not None and job.step.phase is JobPhase.RUNNING:
            info = state.nodes.get(current.nodes[0][0])
            if info is not None and info.gpu_model is not None:
                limit = acknowledged_limit(uid, current, state.nodes)
                yield Running(job.view, current, decision, info.gpu_model, limit)
