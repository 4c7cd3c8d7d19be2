"""Takes the steps that the job controller decided on: the next incarnation made, an old one stopped, gates opened."""

from __future__ import annotations

from collections.abc import Mapping

from flyball_kube.process.logs import get_logger

from flyball_operator.cluster.outcome import WriteResult
from flyball_operator.jobs.runs.lifecycle import (
    CreateIncarnation,
    CreateService,
    OpenGates,
    RemovePods,
    StopIncarnation,
)
from flyball_operator.jobs.steps.step import JobAction
from flyball_operator.writes.job_writes import JobWrites

logger = get_logger(__name__)


async def take_action(executor: JobWrites, item: JobAction, hostnames: Mapping[str, str]) -> WriteResult:
    """Take one action for one job; `hostnames` gives the hostname label of each node."""
    job, action = item.job, item.action
    match action:
        case StopIncarnation(incarnation, reason):
            event, number = "stop", incarnation.incarnation
            result = await executor.stop_incarnation(action)
        case RemovePods(pods):
            event, number, reason = "remove-pods", pods[0].incarnation, "a deletion of their Job has left them behind"
            result = await executor.remove_pods(action)
        case OpenGates(pods):
            event, number, reason = "start", pods[0][0].incarnation, "every old pod is gone and the watts are reserved"
            result = await executor.open_gates(action, hostnames)
        case CreateIncarnation(_, number, nodes):
            event = "create"
            result = await executor.create_incarnation(job, number, nodes)
            reason = result.message or result.invalid or f"on {', '.join(name for name, _ in nodes)}"
        case CreateService(incarnation):
            event, number = "create-service", incarnation.incarnation
            result = await executor.create_service(action)
            reason = result.message or "its ranks find each other by it"
    logger.info(event, job=job.key, incarnation=number, reason=reason, done=result.done)
    return result
