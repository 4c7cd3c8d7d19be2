"""What the books of energy are kept of, from one cycle."""

from __future__ import annotations

from collections.abc import Mapping

from flyball_planner.snapshot import JobDecision

from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.steps.step import JobsStep
from flyball_operator.power.cycle import PowerState
from flyball_operator.report.energy_books import Seen
from flyball_operator.report.gpu_holders import owner_of
from flyball_operator.report.would_have import RatioSource, comparisons


def energy_seen(
    cluster: ClusterState,
    state: PowerState,
    jobs: JobsStep,
    decisions: Mapping[str, JobDecision],
    models: RatioSource,
    emitted_grams_per_kilowatt_hour: float | None,
    *,
    everything_observed: bool,
) -> Seen:
    """What stands, who used it, and what observed jobs would have used by the plan in force (`decisions`)."""
    return Seen(
        nodes=state.nodes,
        caps={cap.name: cap.nodes for cap in state.caps.states},
        jobs=jobs.consumptions,
        owners={(pod.namespace, pod.name): owner_of(pod) for pod in cluster.pods if not pod.job_uid},
        job_pods={(pod.namespace, pod.name) for pod in cluster.pods if pod.job_uid},
        emitted_grams_per_kilowatt_hour=emitted_grams_per_kilowatt_hour,
        observed=comparisons(jobs.jobs.values(), decisions, state.nodes, models, everything=everything_observed),
    )
