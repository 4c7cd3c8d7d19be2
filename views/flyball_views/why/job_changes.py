"""What would change what a job's conditions and its explanation say, by their words."""

from __future__ import annotations

from flyball_api.names import SOCKET_VOLUME

from flyball_views.why.reasons import CHANGE_VALUE, LET_GOVERN

WAITING_CHANGE = {
    "WaitingForGpus": "another job's end, a smaller spec.gpus.min, a higher spec.priority, or more nodes",
    "WaitingForPower": "a higher cap, another job's end, a smaller spec.gpus.min, or a lower spec.clocks.maxMegahertz",
    "WaitingForBudget": "a higher spec.energy.budgetKilojoules, or spec.energy.onExhausted: Throttle",
    "Suspended": "spec.suspend: false",
    "Preempted": "a higher spec.priority, a higher cap, or another job's end",
    "InvalidSpec": "mend spec.template as the API server's words say (with spec.suspend: true in the same change)",
    "UnknownGpuResource": "set spec.gpus.resourceName to one of those",
    "NotSupported": "give spec.pipeline its plan, or take it out (with spec.suspend: true in the same change)",
    "ChoosingBatchSize": "the first report of a node's GPUs, in seconds",
    "CostLimitReached": "the end of its pods; submit it anew for another batch size",
    "WaitingForSignal": "the time that it starts at; without spec.flexibleUntil it starts as soon as it can",
    "BudgetTooSmall": "a higher spec.energy.budgetKilojoules, or spec.energy.onExhausted: Throttle",
    "NoNodeFits": "nodes that have what they lack, or a spec.template that asks for less",
    "ExceedsCluster": "a smaller spec.gpus.min, or more nodes",
    "QuotaExceeded": "a larger quota, a smaller spec.gpus.min, or the end of another job of the namespace",
    "StartTimedOut": "mend what its message names; it is tried again by itself, and at once where its spec changes",
    "RestartBackOff": "its next start; mend what ends it, by its logs (kubectl flyball logs --previous)",
    "DisruptionBackOff": "its next start; see what ends its pods (kubectl describe, status.failures)",
    "PowerBackOff": "its next start, or a smaller spec.elasticity.minSecondsBetweenResizes; see what moves the cap",
    "PlanningFailed": "another spec, where its message says what is odd; it is a mistake of the planner's, to be reported",
    "Planning": "the first plan, in seconds",
    "Observing": f"{LET_GOVERN}: the operator was told to start nothing",
    "NotReported": "the operator's first look at it, in seconds; see that one leads (kubectl flyball doctor)",
}
STEP_REASON = {
    "Stopping": (
        "its pods of before are checkpointing and leaving",
        "they have spec.template.spec.terminationGracePeriodSeconds for it",
    ),
    "Creating": ("its pods are being made", "seconds"),
    "Gated": (
        "its pods wait until the watts for them are reserved on every node, and the GPUs are free there",
        "acknowledgements of its nodes",
    ),
    "Starting": (
        "its pods are starting: not all of them are ready",
        "kubectl describe the pods: images, volumes, readiness",
    ),
}


# What would raise a job's clock, and with it its power limit, by the words in which its explanation says what holds it.
CLOCK_CHANGE = (
    ("going price", "objective: Time"),
    ("maxMegahertz", "a higher spec.clocks.maxMegahertz"),
    ("that its GPUs may have", "a higher spec.powerLimit.maxWatts, or more watts in the EnergyQuotas of its namespace"),
    ("energy budget", "a higher spec.energy.budgetKilojoules"),
    ("that meets its deadline", "objective: Time, or a sooner spec.deadline"),
    ("the clock of least energy", "objective: Balanced, or Time"),
    ("cap ", "a higher cap"),
)


# What keeps pods from running, beside the step; the condition's message has the words of whoever says so.
OBSTACLE_CHANGE = {
    "Unschedulable": "what the scheduler's sentence names: taints, selectors, volumes, or CPU and memory there",
    "SchedulingGated": "the removal of the other scheduling gate, by whoever has put it there",
    "QuotaExceeded": WAITING_CHANGE["QuotaExceeded"],
    "PodSecurityViolated": "a spec.template that the namespace's pod security allows, or another namespace",
    "ServiceAccountNotFound": "create the service account, or name another in spec.template",
    "PodsRefused": "mend spec.template as those words say",
    "JobRefused": "mend what the API server says; see admission webhooks, too",
    "ServiceRefused": "mend what the API server says; see admission webhooks, too",
    "GatesRefused": "see which admission policy or webhook keeps the operator from opening the gates",
    "StopRefused": "see which admission policy or webhook keeps the operator from deleting the Job",
    "ImagePullFailed": "mend the image's name, its registry, or imagePullSecrets",
    "NodeLost": "its kubelet, or the taint that the message names once the machine is off for certain",
    "ContainerRefused": "mend the container as the kubelet says: command, mounts, security context",
    "RestartBackOff": WAITING_CHANGE["RestartBackOff"],
    "DisruptionBackOff": WAITING_CHANGE["DisruptionBackOff"],
    "StartTimedOut": WAITING_CHANGE["StartTimedOut"],
    "PowerBackOff": WAITING_CHANGE["PowerBackOff"],
}


# No template of its owner can mend this: the volume is put into it.
SOCKET_VOLUME_CHANGE = (
    f"the volume {SOCKET_VOLUME} is Flyball's own: {CHANGE_VALUE} agent.devicePluginsDir="
    "/var/lib/kubelet/device-plugins gives sockets without it; then suspend the job, and resume it. What else is named is "
    "spec.template's"
)
