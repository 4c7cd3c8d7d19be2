"""The Events of caps."""

from __future__ import annotations

from flyball_api.power_cap import PowerCapStatus

from flyball_operator.report.announcements.announcement import Announcement, ConditionChange


def cap_announcements(before: PowerCapStatus, after: PowerCapStatus) -> list[Announcement]:
    """The Events between a cap's status and the next one, `after`.

    A cap that was lowered takes a moment to be enforced: no warning. One that was not and is exceeded is worth one.
    """
    found: list[Announcement] = []
    feasible, enforced = ConditionChange(before, after, "Feasible"), ConditionChange(before, after, "Enforced")
    breached = ConditionChange(before, after, "Breached")
    if feasible.to_reason("Unreadable"):
        return [Announcement("Unreadable", feasible.message, "Read", warning=True)]
    if feasible.to_status("False"):
        found.append(Announcement("Infeasible", feasible.message, "Enforce", warning=True))
    if feasible.to_status("True", after="False"):
        found.append(Announcement("Feasible", feasible.message, "Enforce"))
    if enforced.to_status("False", after="True"):
        lowered = (after.effective_watts or 0) < (before.effective_watts or 0)
        if lowered:
            note = f"from {before.effective_watts} W to {after.effective_watts} W: {enforced.message}"
            found.append(Announcement("Lowering", note, "Enforce"))
        else:
            found.append(Announcement("NotEnforced", enforced.message, "Enforce", warning=True))
    if enforced.to_reason("ProofStale"):
        found.append(Announcement("ProofStale", enforced.message, "Enforce", warning=True))
    if enforced.to_status("True", after="False") or enforced.proven_again:
        found.append(Announcement("Enforced", enforced.message, "Enforce"))
    if breached.to_status("True"):
        found.append(Announcement("Breached", breached.message, "Measure", warning=True))
    silent = ConditionChange(before, after, "MeterSilent")
    if silent.to_status("True"):
        found.append(Announcement("MeterSilent", silent.message, "Measure", warning=True))
    if silent.to_status("False", after="True"):
        found.append(Announcement("MeterReads", silent.message, "Measure"))
    schedule = ConditionChange(before, after, "ScheduleInvalid")
    if schedule.to_status("True"):
        found.append(Announcement("ScheduleInvalid", schedule.message, "Read", warning=True))
    if enforced.to_reason("NoNodes"):
        found.append(Announcement("NoNodes", enforced.message, "Enforce", warning=True))
    emergency = ConditionChange(before, after, "Emergency")
    if emergency.to_status("True"):
        found.append(Announcement("EmergencyDeclared", emergency.message, "Enforce", warning=True))
    if emergency.to_status("False", after="True"):
        found.append(Announcement("EmergencyEnded", emergency.message, "Enforce"))
    return found
