"""Why a job has the GPUs that it has, or none, and what keeps it from being faster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from flyball_api.event import EventView
from flyball_api.names import SOCKET_VOLUME

from flyball_views.jobs import JobRow, QueueRow
from flyball_views.nodes import NodeRow
from flyball_views.overview import Overview
from flyball_views.row import Aspect
from flyball_views.texts import age_text, counted, energy_text, share_text, until_text, watts_text
from flyball_views.why.job_changes import (
    CLOCK_CHANGE,
    OBSTACLE_CHANGE,
    SOCKET_VOLUME_CHANGE,
    STEP_REASON,
    WAITING_CHANGE,
)
from flyball_views.why.node import node_troubles
from flyball_views.why.reasons import (
    Explanation,
    NoSuchObject,
    Reason,
    Weight,
    about,
    explained,
    leader_reasons,
    of_aspect,
    standing,
)

# A training that reports does so every few seconds.
REPORT_AGE = timedelta(minutes=5)
# A model that is further off than this is worth a word.
WRONG_PERMILLE = 150
# A cap with more than this left of it keeps only the largest jobs out, and their conditions say how much they need.
TIGHT_SHARE = 0.2


def why_job(overview: Overview, namespace: str, name: str, events: Sequence[EventView] = ()) -> Explanation:
    """Why a job stands as it does; raises NoSuchObject."""
    job = next((row for row in overview.jobs if (row.namespace, row.name) == (namespace, name)), None)
    if job is None:
        raise NoSuchObject(f"there is no EnergyAwareJob {name} in the namespace {namespace}")
    mine = about(events, "EnergyAwareJob", name, namespace)
    return explained(
        "EnergyAwareJob",
        f"{namespace}/{name}",
        overview,
        _headline(job, overview),
        _reasons(job, overview, mine),
        mine,
    )


def _reasons(job: JobRow, overview: Overview, events: Sequence[EventView]) -> list[Reason]:
    if job.finished:
        return _finished(job)
    return [
        *leader_reasons(overview.leader, overview, "nothing is planned, started or moved; what runs goes on"),
        *_admitted(job, overview),
        *_on_its_way(job),
        *_limits(job, overview),
        *_promises(job, overview),
        *_size(job, overview),
        *_training(job, overview),
        *_run(job),
        *_from_events(job, events, overview),
    ]


def _headline(job: JobRow, overview: Overview) -> str:
    if not job.gpus:
        place = "" if job.queue is None else f", number {job.queue.position} of {job.queue.waiting} that wait"
        return f"{job.state or 'not looked at yet'}: no GPUs{place}"
    progress = "" if job.progress is None else f", {share_text(job.progress.fraction, 1.0)} done"
    ends = "" if job.finish is None else f", ends in {finish_text(job, overview.time)}"
    clock = "" if job.clock_megahertz is None else f" at {job.clock_megahertz} MHz"
    watts = "" if job.watts is None else f", {watts_text(job.watts)}"
    return f"{job.state}: {counted(job.gpus, 'GPU')}{clock}{watts}{progress}{ends}"


def finish_text(job: JobRow, now: datetime) -> str:
    """`3h (2h50m to 3h20m)`: how long until a job's end, and between what; empty where that is not known."""
    if job.finish is None:
        return ""
    expected = until_text(job.finish, now)
    if job.earliest_finish is None or job.latest_finish is None:
        return expected
    return f"{expected} ({until_text(job.earliest_finish, now)} to {until_text(job.latest_finish, now)})"


def _finished(job: JobRow) -> list[Reason]:
    used = "" if job.energy is None else f"; it used {energy_text(job.energy.consumed_kilojoules)}"
    if job.failed is not None and job.failed.status is True:
        failed = f"it failed for good: {job.failed.message or job.failed.reason}{used}"
        change = "read its logs (kubectl flyball logs), mend it, and submit it anew: it goes on from its checkpoint"
        return [Reason(Weight.STOPS, failed, change, job.completed)]
    return [Reason(Weight.NOTE, f"it has succeeded{used}", "", job.completed)]


def _admitted(job: JobRow, overview: Overview) -> list[Reason]:
    admitted = job.admitted
    found = []
    if job.deleting:
        found.append(Reason(Weight.STOPS, "it is being deleted", "its pods' leaving"))
    if admitted.status is True:
        return found
    weight = Weight.LIMITS if admitted.reason in ("Planning", "NotReported") else Weight.STOPS
    found.append(of_aspect(weight, admitted, WAITING_CHANGE.get(admitted.reason, "")))
    if job.queue is not None:
        found.append(_expected_start(job.queue, overview.time))
    if admitted.reason in ("WaitingForPower", "Preempted"):
        found += _tight_caps(overview)
    if admitted.reason in ("WaitingForGpus", "Preempted"):
        found += [*_holders(job, overview), *_closed_nodes(overview)]
    return found


def _expected_start(queue: QueueRow, now: datetime) -> Reason:
    """When a job that waits can expect to start, and by which plan."""
    found = f"by the plan of {age_text(queue.time, now)} ago"
    if queue.start is None:
        return Reason(Weight.NOTE, f"when it starts is not known: {queue.basis} ({found})", "", queue.time)
    when = until_text(queue.start, now)
    return Reason(Weight.NOTE, f"it can expect to start in {when}, {queue.basis} ({found})", "", queue.time)


def _tight_caps(overview: Overview) -> list[Reason]:
    """The caps with the least left to give; those that have much left are only good to know."""
    left = {
        cap.name: cap.headroom_watts / cap.in_force_watts
        for cap in overview.caps
        if cap.headroom_watts is not None and cap.in_force_watts
    }
    tight = sorted((cap for cap in overview.caps if cap.name in left), key=lambda cap: left[cap.name])
    return [
        Reason(
            Weight.STOPS if left[cap.name] < TIGHT_SHARE or not cap.enforced.status else Weight.NOTE,
            f"the cap {cap.name} has {watts_text(cap.headroom_watts)} left of {watts_text(cap.in_force_watts)}"
            + ("" if cap.enforced.status else f", and is not enforced ({cap.enforced.reason})"),
            f"kubectl flyball why pcap {cap.name}",
        )
        for cap in tight[:3]
    ]


def _holders(job: JobRow, overview: Overview) -> list[Reason]:
    """Who has the GPUs, and whether a higher priority would get some."""
    holding = sorted((other for other in overview.jobs if other.gpus), key=lambda other: (-other.gpus, other.key))
    if not holding:
        return []
    named = ", ".join(f"{other.key} ({other.gpus})" for other in holding[:3])
    more = f" and {len(holding) - 3} more" if len(holding) > 3 else ""
    first = sum(other.gpus for other in holding if other.priority >= job.priority)
    totals = overview.totals
    what = f"{totals.gpus_in_jobs} of {counted(totals.gpus, 'GPU')} are in jobs: {named}{more}"
    change = f"{first} of them have its priority ({job.priority}) or a higher one" if first else ""
    return [Reason(Weight.STOPS, what, change)]


def _closed_nodes(overview: Overview) -> list[Reason]:
    """The nodes whose GPUs no job can get; one that owes an acknowledgement for a moment is none of them."""
    closed = [
        (node, troubles[0])
        for node in overview.nodes
        if (troubles := node_troubles(node, overview)) and (troubles[0].weight is Weight.STOPS or node.cordoned)
    ]
    if not closed:
        return []
    gpus = sum(node.gpus or 0 for node, _ in closed)
    known = counted(gpus, "GPU") if gpus else "GPUs"  # of some nodes nobody may say how many
    named = "; ".join(f"{node.name}: {trouble.what}" for node, trouble in closed[:3])
    more = f"; and {len(closed) - 3} more" if len(closed) > 3 else ""
    return [
        Reason(
            Weight.STOPS,
            f"{known} on {counted(len(closed), 'node')} cannot be used now ({named}{more})",
            f"kubectl flyball why node {closed[0][0].name}",
        )
    ]


def _on_its_way(job: JobRow) -> list[Reason]:
    """What stands between a plan and pods that run: an obstacle, or the step that it is at."""
    if job.admitted.status is not True:
        return []
    for item in (job.ready, job.placed):
        if item.status is not True and item.reason in OBSTACLE_CHANGE:
            return [_obstacle(item)]
    waiting = job.placed if job.placed.status is not True else job.ready
    if waiting.status is True:
        return []
    what, change = STEP_REASON.get(waiting.reason, ("", ""))
    if what:
        return [of_aspect(Weight.STOPS, waiting, change, what)]
    return [_obstacle(waiting)] if waiting.message else []


def _obstacle(aspect: Aspect) -> Reason:
    """What keeps pods from being placed or ready, in the words of the scheduler, kubelet or API server."""
    change = OBSTACLE_CHANGE.get(aspect.reason, "")
    if aspect.reason == "PodSecurityViolated" and SOCKET_VOLUME in aspect.message:
        change = SOCKET_VOLUME_CHANGE
    return of_aspect(Weight.STOPS, aspect, change, f"{aspect.reason}: {aspect.message}")


def _limits(job: JobRow, overview: Overview) -> list[Reason]:
    """Nodes of the job that owe an acknowledgement, or are in trouble."""
    found: list[Reason] = []
    mine = [node for node in overview.nodes if node.name in (job.nodes or job.planned_nodes)]
    waiting = job.limits_enforced.status is False and job.limits_enforced.reason == "WaitingForAcknowledgements"
    if waiting:
        found.append(
            of_aspect(
                Weight.LIMITS,
                job.limits_enforced,
                "the acknowledgements of its nodes",
                "its limits are not read back on every node yet",
            )
        )
    for node in mine:
        found += [
            Reason(Weight.LIMITS, f"{node.name}: {trouble.what}", trouble.change, trouble.since)
            for trouble in node_troubles(node, overview)[:1]
        ]
    return found


def _promises(job: JobRow, overview: Overview) -> list[Reason]:
    found = []
    if job.deadline_at_risk.status is True:
        flexible = job.flexible_until is not None and (job.deadline is None or job.flexible_until < job.deadline)
        later = "a later spec.flexibleUntil" if flexible else "a later spec.deadline"
        change = f"{later}, a larger spec.gpus.max, a higher spec.priority, or a higher cap"
        passed = job.deadline_at_risk.reason == "DeadlinePassed"
        found.append(of_aspect(Weight.LIMITS, job.deadline_at_risk, f"{later}, or none" if passed else change))
    if job.budget_healthy.status is False:
        change = "a higher spec.energy.budgetKilojoules; objective: Energy takes the cheapest clock"
        found.append(of_aspect(Weight.LIMITS, job.budget_healthy, change))
    if job.bounds_kept is not None and job.bounds_kept.status is False:
        found.append(of_aspect(Weight.LIMITS, job.bounds_kept, "bounds within what its GPUs can take"))
    return found


def _size(job: JobRow, overview: Overview) -> list[Reason]:
    """Why a job that runs has not more, and what holds its clocks."""
    if not job.gpus:
        return []
    found = []
    elastic = job.max_gpus > job.min_gpus
    if job.why:
        found.append(
            Reason(Weight.NOTE, f"of {job.min_gpus} to {job.max_gpus} GPUs: {job.why}" if elastic else job.why)
        )
    for cap in overview.caps:
        if not any(name in cap.nodes for name in job.nodes):
            continue
        if cap.emergency is not None and cap.emergency.status is True:
            what = f"an emergency is declared for the cap {cap.name}: its GPUs are at their smallest limits"
            found.append(of_aspect(Weight.LIMITS, cap.emergency, f"kubectl flyball why pcap {cap.name}", what))
        elif cap.meter_state in ("Shaping", "Cut", "Silent"):
            what = f"the meter of the cap {cap.name} lowers limits ({cap.meter_state})"
            found.append(Reason(Weight.LIMITS, what, f"kubectl flyball why pcap {cap.name}"))
    slow = _lowest_limit(job, [node for node in overview.nodes if node.name in job.nodes])
    if slow:
        found.append(slow)
    return found


def _lowest_limit(job: JobRow, nodes: Sequence[NodeRow]) -> Reason | None:
    """That the job's power limit is less than its GPUs take."""
    most = [gpu.default_watts for node in nodes for gpu in node.devices if gpu.default_watts is not None]
    if job.power_limit_watts is None or not most or job.power_limit_watts >= min(most):
        return None
    what = f"each GPU is limited to {watts_text(job.power_limit_watts)} of {watts_text(min(most))}"
    clock = "" if "throttled" in job.why else job.why.rpartition("; ")[2]
    change = next((change for words, change in CLOCK_CHANGE if words in clock), "")
    return Reason(Weight.NOTE, what, change)


def _training(job: JobRow, overview: Overview) -> list[Reason]:
    found = []
    progress = job.progress
    if job.restarts:
        of = "" if job.max_restarts is None else f" of {job.max_restarts} times that it may"
        found.append(
            Reason(
                Weight.LIMITS,
                f"it has failed and was started again {counted(job.restarts, 'time')}{of}",
                f"read why: kubectl flyball logs {job.name} -n {job.namespace} --previous",
            )
        )
    if job.gpus and progress is not None and progress.estimated:
        found.append(
            Reason(
                Weight.NOTE,
                "the training reports nothing: progress, end and energy are the model's estimate",
                "report steps on FLYBALL_SOCKET",
            )
        )
    prediction = job.prediction
    if job.gpus and prediction is not None and abs(prediction.time_error_permille) >= WRONG_PERMILLE:
        longer = "longer" if prediction.time_error_permille > 0 else "less"
        off = f"{abs(prediction.time_error_permille) / 10:.0f}%"
        what = f"an iteration takes {off} {longer} than the model of it says, by which it is planned"
        found.append(Reason(Weight.NOTE, what, "more reports: it is fitted again as they come"))
    reported = None if progress is None or progress.estimated or not job.gpus else progress.reported
    if reported is not None and overview.time - reported > REPORT_AGE:
        ago = age_text(reported, overview.time)
        change = f"see whether it hangs: kubectl flyball logs {job.name} -n {job.namespace}"
        found.append(Reason(Weight.LIMITS, f"the training last reported {ago} ago", change, reported))
    return found


def _run(job: JobRow) -> list[Reason]:
    """Why a run of a recurring job has its batch size, and what it may cost."""
    run = job.run
    if run is None:
        return []
    cost = "" if run.cost_joules is None else f"; it has cost {run.cost_joules} J"
    limit = "" if run.cost_limit_joules is None else f", and is stopped at {run.cost_limit_joules} J"
    return [Reason(Weight.NOTE, f"its batch size is {run.global_batch_size}: {run.message}{cost}{limit}", "")]


def _from_events(job: JobRow, events: Sequence[EventView], overview: Overview) -> list[Reason]:
    event = standing(events, "UnknownModelClass", now=overview.time)
    return [] if event is None else [Reason(Weight.NOTE, event.note, "", event.time)]
