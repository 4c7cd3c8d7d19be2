"""Why a cap is held or not, and who draws the watts under it."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_api.event import EventView

from flyball_views.caps import CapRow
from flyball_views.jobs import JobRow
from flyball_views.nodes import NodeRow
from flyball_views.overview import Overview
from flyball_views.texts import counted, energy_text, watts_text
from flyball_views.why.node import node_troubles
from flyball_views.why.reasons import (
    LET_GOVERN,
    Explanation,
    NoSuchObject,
    Reason,
    Weight,
    about,
    explained,
    leader_reasons,
    of_aspect,
)

NAMED = 5  # nodes and jobs that a sentence names; the rest are counted


def why_cap(overview: Overview, name: str, events: Sequence[EventView] = ()) -> Explanation:
    """Why a cap stands as it does; raises NoSuchObject."""
    cap = next((row for row in overview.caps if row.name == name), None)
    if cap is None:
        raise NoSuchObject(f"there is no PowerCap {name}")
    under = [node for node in overview.nodes if name in node.caps]
    reasons = [
        *_spec(cap),
        *leader_reasons(overview.leader, overview, "limits stay; nodes go to the failsafe as their grants' leases end"),
        *_emergency(cap),
        *_feasible(cap),
        *_enforced(cap, under, overview),
        *_breached(cap, under, overview),
        *_meter(cap),
        *_in_force(cap),
        *_use(cap, under, overview),
    ]
    return explained("PowerCap", name, overview, _headline(cap), reasons, about(events, "PowerCap", name))


def _headline(cap: CapRow) -> str:
    held = {True: "enforced", False: "not enforced", None: "not known to be enforced"}[cap.enforced.status]
    return (
        f"{held}: {watts_text(cap.in_force_watts)} in force, {watts_text(cap.committed_watts)} committed, "
        f"{watts_text(cap.measured_watts)} measured, {watts_text(cap.headroom_watts)} to give"
    )


def _spec(cap: CapRow) -> list[Reason]:
    found = []
    if cap.refusal:
        found.append(
            Reason(
                Weight.STOPS,
                f"it cannot be read, and until it can nothing is raised on any node: {cap.refusal}",
                f"kubectl edit powercap {cap.name}; or bring operator and CRDs to one version",
            )
        )
    if cap.deleting:
        found.append(
            Reason(
                Weight.LIMITS,
                "it was deleted, and holds until its releaseSeconds are over",
                f"to end it now: kubectl flyball release pcap {cap.name}",
            )
        )
    if not cap.current and not cap.refusal:
        found.append(
            Reason(Weight.LIMITS, "its status still speaks of the spec before the last change", "wait a second")
        )
    return found


def _emergency(cap: CapRow) -> list[Reason]:
    if cap.emergency is None or cap.emergency.status is not True:
        return []
    change = f"when it is over: kubectl flyball emergency --cap {cap.name} --end"
    return [of_aspect(Weight.STOPS, cap.emergency, change)]


def _feasible(cap: CapRow) -> list[Reason]:
    if cap.feasible.status is not False:
        return []
    change = "raise the cap, free nodes of pods that Flyball does not run, or take nodes from under it"
    return [of_aspect(Weight.STOPS, cap.feasible, f"{change} (kubectl flyball whatif pcap {cap.name} --watts N)")]


ENFORCED_CHANGE = {
    "WaitingForAcknowledgements": "nothing, where it takes seconds; else the nodes below",
    "Infeasible": "the cap is below what its nodes draw at the least: see Feasible",
    "ProofStale": "the nodes below count at their largest limits until their agents report again",
    "Adopting": "nothing: a new operator leads, and each node acknowledges its first grant within seconds",
    "Joining": "nothing: the operator is writing the nodes' labels into their GPUNodes",
    "Observing": f"{LET_GOVERN}: nothing is set until then",
    "Unreadable": "mend what cannot be read",
    "NoNodes": "a spec.nodeSelector that takes nodes, or nodes with those labels",
    "NotReported": "see that an operator leads (kubectl flyball doctor)",
}


def _enforced(cap: CapRow, under: Sequence[NodeRow], overview: Overview) -> list[Reason]:
    if cap.enforced.status is True:
        return []
    reason = cap.enforced.reason
    weight = Weight.LIMITS if reason in ("Adopting", "Joining") else Weight.STOPS
    found = [of_aspect(weight, cap.enforced, ENFORCED_CHANGE.get(reason, ""))]
    troubled = [(node, troubles[0]) for node in under if (troubles := node_troubles(node, overview))]
    found += [
        Reason(weight, f"{node.name}: {trouble.what}", trouble.change, trouble.since)
        for node, trouble in troubled[:NAMED]
    ]
    if len(troubled) > NAMED:
        more = ", ".join(node.name for node, _ in troubled[NAMED : 4 * NAMED])
        found.append(Reason(weight, f"{counted(len(troubled) - NAMED, 'more node')} in trouble: {more}"))
    return found


def _breached(cap: CapRow, under: Sequence[NodeRow], overview: Overview) -> list[Reason]:
    if cap.breached.status is not True:
        return []
    drawn = sum(node.measured_watts or 0.0 for node in under)
    change = f"the GPUs report {watts_text(drawn)} of it; what is drawn beside them no limit can lower"
    if cap.static_overhead_watts is not None:
        change += f" (staticOverheadWatts says {watts_text(cap.static_overhead_watts)})"
    return [of_aspect(Weight.STOPS, cap.breached, f"{change}. At once: kubectl flyball emergency --cap {cap.name}")]


def _meter(cap: CapRow) -> list[Reason]:
    found = []
    if cap.meter_silent.status is True:
        found.append(
            of_aspect(Weight.LIMITS, cap.meter_silent, "see the meter's exporter, and the query in spec.meter by hand")
        )
    if cap.meter_state in ("Shaping", "Cut"):
        doing = "limits are shaped" if cap.meter_state == "Shaping" else "jobs are cut by priority"
        change = "lower what is drawn beside the GPUs, or say it in spec.staticOverheadWatts, so that plans know of it"
        what = f"{doing} because of the meter, to {watts_text(cap.meter_allowed_watts)} in all"
        found.append(Reason(Weight.LIMITS, what, change))
    return found


def _in_force(cap: CapRow) -> list[Reason]:
    """Why less is in force than the spec says."""
    if cap.in_force_watts is None or cap.target_watts is None or cap.in_force_watts >= cap.target_watts:
        return []
    what = f"{watts_text(cap.in_force_watts)} are in force, not {watts_text(cap.target_watts)}"
    if cap.schedule:
        return [Reason(Weight.LIMITS, f"{what}: the schedule {cap.schedule} is in force", "its end, or spec.schedule")]
    if cap.period is not None:
        used = f"{energy_text(cap.period.consumed_kilojoules)} of {energy_text(cap.period.budget_kilojoules)} are used"
        return [Reason(Weight.LIMITS, f"{what}: the rest of its energy budget is spread over the period ({used})",
                       "the next period, or spec.energyBudget")]  # fmt: skip
    return [Reason(Weight.LIMITS, f"{what}: a rise comes at spec.rampWattsPerSecond", "time")]


def _use(cap: CapRow, under: Sequence[NodeRow], overview: Overview) -> list[Reason]:
    """Who has the watts, and whether more of them could be given."""
    found = []
    names = {node.name for node in under}
    jobs = [job for job in overview.jobs if names.intersection(job.nodes)]
    if jobs:
        jobs.sort(key=lambda job: -(job.watts or 0))
        listed = ", ".join(_use_of(job) for job in jobs[:NAMED])
        more = f", and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
        run = "runs" if len(jobs) == 1 else "run"
        found.append(Reason(Weight.NOTE, f"{counted(len(jobs), 'job')} {run} under it: {listed}{more}"))
    committed, measured, in_force = cap.committed_watts, cap.measured_watts, cap.in_force_watts
    if committed is not None and measured is not None and in_force and committed - measured > in_force / 4:
        held = watts_text(committed - measured)
        change = "spec.enforcement: Expected counts what is expected to be drawn" if cap.enforcement == "Hard" else ""
        found.append(Reason(Weight.NOTE, f"{held} are allowed by limits and not drawn", change))
    waiting = [job.key for job in overview.jobs if job.admitted.reason in ("WaitingForPower", "PowerBackOff")]
    if waiting and (cap.headroom_watts or 0) * 20 < (in_force or 0):
        listed = ", ".join(waiting[:NAMED]) + (f", and {len(waiting) - NAMED} more" if len(waiting) > NAMED else "")
        found.append(
            Reason(
                Weight.NOTE,
                f"{counted(len(waiting), 'job')} {'waits' if len(waiting) == 1 else 'wait'} for power: {listed}",
                f"kubectl flyball whatif pcap {cap.name} --watts N says what a higher cap would do",
            )
        )
    if not under:
        found.append(Reason(Weight.NOTE, "it selects no node", "see spec.nodeSelector and the Nodes' labels"))
    return found


def _use_of(job: JobRow) -> str:
    watts = "" if job.watts is None else f"{watts_text(job.watts)}, "
    return f"{job.key} ({watts}{counted(job.gpus, 'GPU')})"
