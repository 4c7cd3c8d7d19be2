"""What the browser gets, made of an overview's rows: small for what is listed by the thousand, whole for one object.

Times are whole seconds since 1970 by this server's clock, as `Date` in every answer is: a browser whose clock is wrong
tells ages right all the same. What is not known is null.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from flyball_api.energy.frontier import FrontierPoint
from flyball_api.energy.profile import EnergyProfile
from flyball_api.event import EventView
from flyball_views.caps import CapRow
from flyball_views.jobs import JobRow, ends_of
from flyball_views.nodes import NodeRow
from flyball_views.overview import Overview
from flyball_views.why.reasons import about
from msgspec.structs import replace

from flyball_page.history import PowerSample

Json = dict[str, Any]

MAX_JOBS = 1000
MAX_EVENTS = 60
MAX_PROBLEMS = 20
JOB_KIND = "EnergyAwareJob"
# The mode of an agent that sets nothing, and so acknowledges nothing.
OBSERVING = "Observing"


def seconds(moment: datetime | None) -> int | None:
    """Whole seconds since 1970; None stays unknown."""
    return None if moment is None else int(moment.timestamp())


def whole(watts: float | None) -> int | None:
    """Whole watts; None stays unknown."""
    return None if watts is None else round(watts)


def latest(events: Iterable[EventView]) -> list[EventView]:
    """The latest events first, as many as are shown; those without a time last."""
    by_time = sorted(events, key=lambda event: event.time.timestamp() if event.time else 0.0, reverse=True)
    return by_time[:MAX_EVENTS]


def overview_document(
    view: Overview,
    *,
    began: float,
    leader_seen: float | None,
    copies: Mapping[str, float | None],
    events: Iterable[EventView] = (),
) -> Json:
    """Caps, sums and what they rest on; `leader_seen` is when the operator's Lease was last seen to change, and `copies`
    when each local copy was last proven fresh (None: never), in seconds since 1970."""
    leader = view.leader
    return {
        "asOf": seconds(view.time),
        "began": int(began),
        "operator": None
        if leader is None
        else {
            "holder": leader.holder,
            "epoch": leader.epoch,
            "renewed": seconds(leader.renewed),
            "seen": None if leader_seen is None else int(leader_seen),
            "durationSeconds": leader.duration_seconds,
        },
        "caps": [_cap(cap) for cap in view.caps],
        "totals": view.totals,
        "problems": list(view.problems[:MAX_PROBLEMS]),
        "moreProblems": max(0, len(view.problems) - MAX_PROBLEMS),
        "missing": view.missing,
        "copies": {name: None if at is None else int(at) for name, at in copies.items()},
        "events": latest(event for event in events if event.kind != JOB_KIND),
    }


def unreadable(kind: str, errors: Mapping[str, str], *, of_namespaces: bool) -> list[str]:
    """What is said of the objects of a kind that cannot be read, by their keys; of what namespaces hold only how many."""
    if of_namespaces:
        return [f"{len(errors)} {kind} cannot be read"] if errors else []
    return [f"{kind} {key}: {error}" for key, error in sorted(errors.items())]


def _cap(cap: CapRow) -> Any:
    """A cap without its nodes: they name their caps themselves."""
    return replace(cap, nodes=())


def cap_samples(caps: Iterable[CapRow]) -> dict[str, PowerSample]:
    """What the history keeps of each cap, while an operator leads."""
    return {cap.name: PowerSample(cap.in_force_watts, cap.committed_watts, cap.measured_watts) for cap in caps}


def node_state(node: NodeRow, owing: Collection[str] = ()) -> tuple[str, str]:
    """What a node's sign stands for, in one word, the gravest first; and why, in a sentence (empty where all is well).

    `owing` names the nodes that have owed an acknowledgement for too long.
    """
    if not node.devices:
        return "unknown", "no agent has reported its GPUs"
    if node.kubelet_ready is False:
        return "lost", "the Node is not ready: its GPUs count at their largest limits"
    if node.silent:
        return "silent", "its agent reports nothing: what it said may not be true any more"
    if node.name in owing and node.mode != OBSERVING:
        return "waiting", "its agent has owed an acknowledgement of its grant for some time: its watts stay committed"
    for aspect in (node.degraded, node.drifted):
        if aspect.status:
            return "trouble", f"{aspect.reason}: {aspect.message}" if aspect.message else aspect.reason
    unhealthy = [device for device in node.devices if device.healthy.status is False]
    if unhealthy:
        return "trouble", f"{len(unhealthy)} of its GPUs cannot be read or set"
    return "well", ""


def nodes_document(view: Overview, owing: Collection[str] = ()) -> Json:
    """All nodes as columns, so that a thousand of them are some ten kilobytes on their way."""
    states = [node_state(node, owing) for node in view.nodes]
    return {
        "asOf": seconds(view.time),
        "name": [node.name for node in view.nodes],
        "row": [node.row for node in view.nodes],
        "product": [node.product for node in view.nodes],
        "gpus": [node.gpus for node in view.nodes],
        "state": [state for state, _ in states],
        "why": [why for _, why in states],
        "measuredWatts": [whole(node.measured_watts) for node in view.nodes],
        "unreadGpus": [node.unread_gpus for node in view.nodes],
        "limitWatts": [whole(node.limit_watts) for node in view.nodes],
        "grantedWatts": [whole(node.granted_watts) for node in view.nodes],
        "committedWatts": [whole(node.committed_watts) for node in view.nodes],
        "maxWatts": [whole(node.max_watts) for node in view.nodes],
        "cordoned": [node.cordoned for node in view.nodes],
        "mode": [node.mode for node in view.nodes],
        "reported": [seconds(node.reported) for node in view.nodes],
        "caps": [node.caps for node in view.nodes],
        "jobs": [node.jobs for node in view.nodes],
    }


def jobs_document(view: Overview, events: Iterable[EventView] = (), namespaces: Collection[str] | None = None) -> Json:
    """The jobs, of some namespaces alone where those are given: those that are not finished first, and then the latest.

    `omitted` is how many are left out because there are too many.
    """
    seen = [job for job in view.jobs if namespaces is None or job.namespace in namespaces]
    ordered = sorted(seen, key=_job_order)
    return {
        "asOf": seconds(view.time),
        "omitted": max(0, len(ordered) - MAX_JOBS),
        "namespaces": None if namespaces is None else sorted(namespaces),
        "jobs": [_job(job) for job in ordered[:MAX_JOBS]],
        "events": latest(
            event
            for event in events
            if event.kind == JOB_KIND and (namespaces is None or event.namespace in namespaces)
        ),
    }


def _job_order(job: JobRow) -> tuple[bool, int, float, str, str]:
    ended = job.completed.timestamp() if job.completed else 0.0
    return job.finished, -job.gpus, -ended, job.namespace, job.name


def _job(job: JobRow) -> Json:
    progress, energy = job.progress, job.energy
    return {
        "namespace": job.namespace,
        "name": job.name,
        "state": job.state,
        "finished": job.finished,
        "objective": job.objective,
        "gpus": job.gpus,
        "plannedGpus": job.planned_gpus,
        "minGpus": job.min_gpus,
        "maxGpus": job.max_gpus,
        "clockMegahertz": job.clock_megahertz,
        "powerLimitWatts": job.power_limit_watts,
        "watts": job.watts,
        "progress": None if progress is None else progress.fraction,
        "estimated": progress is not None and progress.estimated,
        "consumedKilojoules": None if energy is None else energy.consumed_kilojoules,
        "projectedKilojoules": None if energy is None else energy.projected_kilojoules,
        "budgetKilojoules": None if energy is None else energy.budget_kilojoules,
        "finish": seconds(job.finish),
        "earliestFinish": seconds(job.earliest_finish),
        "latestFinish": seconds(job.latest_finish),
        "queue": None
        if job.queue is None
        else {
            "position": job.queue.position,
            "waiting": job.queue.waiting,
            "start": seconds(job.queue.start),
            "basis": job.queue.basis,
        },
        "atRisk": bool(job.deadline_at_risk.status) or job.budget_healthy.status is False,
        "why": job.why,
    }


def job_document(
    view: Overview,
    job: JobRow,
    profiles: Sequence[EnergyProfile] | None = (),
    events: Iterable[EventView] = (),
    frontier: Sequence[FrontierPoint] = (),
) -> Json:
    """One job whole: its frontier, the point that it is at, and what is known of the model that both come from.

    None for `profiles`: who asks may not see what was learned. Without a `frontier`, its ends are sent, which the job's own
    status tells (`onlyEnds`: there are more choices).
    """
    return {
        "asOf": seconds(view.time),
        "job": job,
        "frontier": frontier or ends_of(job.tradeoff),
        "onlyEnds": not frontier and job.tradeoff is not None and job.tradeoff.choices > len(ends_of(job.tradeoff)),
        "present": present_point(job, view.time),
        "profiles": None
        if profiles is None
        else [
            {
                "gpuModel": profile.spec.gpu_model,
                "parameterisation": profile.status.parameterisation,
                "fitTime": seconds(None if profile.status.fit is None else profile.status.fit.time),
                "observations": None if profile.status.fit is None else profile.status.fit.observations,
                "timeErrorPermille": None if profile.status.fit is None else profile.status.fit.time_error_permille,
                "energyErrorPermille": None if profile.status.fit is None else profile.status.fit.energy_error_permille,
            }
            for profile in profiles
        ],
        "events": latest(about(events, JOB_KIND, job.name, job.namespace)),
    }


def present_point(job: JobRow, now: datetime) -> Json | None:
    """Where a job is in the plane of its frontier, by the operator's own forecast: the seconds and kilojoules that are left
    at the size and clock it has. None where it does not run, or nobody has a forecast."""
    energy = job.energy
    if not job.gpus or job.finish is None or energy is None or energy.projected_kilojoules is None:
        return None
    return {
        "gpus": job.gpus,
        "clockMegahertz": job.clock_megahertz,
        "seconds": max(0, int((job.finish - now).total_seconds())),
        "kilojoules": max(0, energy.projected_kilojoules - energy.consumed_kilojoules),
    }


def node_document(view: Overview, node: NodeRow, owing: Collection[str] = ()) -> Json:
    """One node whole, with each of its GPUs."""
    state, why = node_state(node, owing)
    return {"asOf": seconds(view.time), "node": node, "state": state, "why": why}
