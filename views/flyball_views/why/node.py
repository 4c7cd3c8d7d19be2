"""Why a node draws what it draws, and what keeps it from serving."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_api.event import EventView

from flyball_views.nodes import SILENT_SECONDS, NodeRow
from flyball_views.overview import Overview
from flyball_views.texts import age_text, counted, watts_text
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
    standing,
)

# What helps against each reason of Degraded.
DEGRADED_CHANGE = {
    "RoundFailed": "read the agent's log; it tries again every round",
    "JournalUnwritable": "make room on the node's disk, or mend the mount of the agent's journal (--state-dir)",
    "BrakesUnknown": "let the agent read PowerBrakes: ClusterRole flyball-agent, and the way to the API server",
    "InvalidSpec": "operator and agent are of versions that do not go together: bring the older one up to date",
    "StaleSpec": "an older grant was written over a newer one: see who beside the operator writes GPUNodes",
    "GpuFailed": "look at the GPU on the node (dmesg for XID errors, nvidia-smi -q), reset it or take it out",
    "NotPersistent": "enable persistence mode on the node: nvidia-persistenced, or nvidia-smi -pm 1",
    "PodsUnknown": "give the agent the kubelet's pod-resources socket, and see that the kubelet answers there",
}
MODE_REASON = {
    "Failsafe": (
        "its grant's lease has ended without a sign of an operator, and its GPUs are at the failsafe limits",
        "see that an operator leads, and that the node reaches the API server",
    ),
    "Holding": (
        "its grant's lease has ended without a sign of an operator; its limits are held for the time that the caps allow",
        "see that an operator leads, and that the node reaches the API server",
    ),
    "Observing": ("its agent was told to set nothing", LET_GOVERN),
    "Adopting": ("no grant has come to its agent yet: its GPUs stay as they were found", "the operator's first grant"),
}


def why_node(overview: Overview, name: str, events: Sequence[EventView] = ()) -> Explanation:
    """Why a node stands as it does; raises NoSuchObject."""
    node = next((row for row in overview.nodes if row.name == name), None)
    if node is None:
        raise NoSuchObject(f"there is no GPU node {name}")
    mine = [*about(events, "Node", name), *about(events, "GPUNode", name)]
    reasons = [
        *leader_reasons(overview.leader, overview, "the node holds its grant until the lease ends, then the failsafe"),
        *node_troubles(node, overview),
        *_from_events(mine, overview),
        *_notes(node),
    ]
    return explained("GPUNode", name, overview, _headline(node), reasons, mine)


def node_troubles(node: NodeRow, overview: Overview) -> list[Reason]:
    """What keeps a node from serving, the gravest first."""
    return [*_presence(node, overview), *_agent(node, overview), *_gpus(node)]


def _headline(node: NodeRow) -> str:
    drawn = f"{watts_text(node.measured_watts)} of {watts_text(node.limit_watts)} that its limits allow"
    serving = "serves" if node.ready.status else "does not serve" if node.ready.status is False else "is not heard"
    gpus = "GPUs not known" if node.gpus is None else counted(node.gpus, "GPU")
    return f"{serving}: {drawn}, {gpus}, {counted(len(node.jobs), 'job')}"


def _presence(node: NodeRow, overview: Overview) -> list[Reason]:
    found = []
    if node.deleting:
        found.append(
            Reason(
                Weight.STOPS,
                "its GPUNode was deleted, and what it was granted goes on counting under its caps",
                f"if the machine draws nothing there any more: kubectl flyball release gpunode {node.name}",
            )
        )
    if node.kubelet_ready is None and "nodes" not in overview.missing:
        found.append(
            Reason(
                Weight.STOPS,
                "there is no Node of this name any more; what it was granted goes on counting under its caps",
                f"if the machine is gone for good: kubectl flyball release gpunode {node.name}, then delete the GPUNode",
            )
        )
    if node.kubelet_ready is False:
        found.append(
            Reason(
                Weight.STOPS,
                "its kubelet is not ready: no pod starts there, and its GPUs count at their largest limits",
                f"kubectl describe node {node.name}; see the kubelet's log there",
            )
        )
    if node.cordoned:
        found.append(Reason(Weight.LIMITS, "it is cordoned: no job is placed there", f"kubectl uncordon {node.name}"))
    if node.granted_watts is None and node.kubelet_ready is not None:
        found.append(
            Reason(
                Weight.STOPS,
                "the operator has granted it nothing yet",
                "it does so once an agent runs there: see the agents' DaemonSet, its tolerations and node selector",
            )
        )
    return found


def _agent(node: NodeRow, overview: Overview) -> list[Reason]:
    found = []
    if node.silent:
        since = f"since {age_text(node.reported, overview.time)}" if node.reported else f"for {SILENT_SECONDS:.0f} s"
        found.append(
            Reason(
                Weight.STOPS,
                f"its agent has reported nothing {since}: its GPUs count at their largest limits",
                f"kubectl -n {overview.operator_namespace} get pods -o wide --field-selector spec.nodeName={node.name}, "
                "and their logs",
                node.reported,
            )
        )
    degraded = node.degraded
    if degraded.status is True:
        weight = Weight.LIMITS if degraded.reason in ("NotPersistent", "PodsUnknown") else Weight.STOPS
        change = DEGRADED_CHANGE.get(degraded.reason, "read the agent's log, and run flyball agent check-gpu there")
        found.append(of_aspect(weight, degraded, change))
    if node.ready.status is False:
        change = "wait for the operator's first grant" if node.ready.reason == "NoSpec" else ""
        change = change or "the agent applies it and reads it back within a second; longer is a fault of GPU or driver"
        found.append(of_aspect(Weight.LIMITS if degraded.status is True else Weight.STOPS, node.ready, change))
    if node.mode in MODE_REASON:
        what, change = MODE_REASON[node.mode]
        found.append(Reason(Weight.LIMITS, what, change))
    if node.granted_watts is not None and not node.acknowledged_current:
        committed, granted = watts_text(node.committed_watts), watts_text(node.granted_watts)
        found.append(
            Reason(
                Weight.LIMITS,
                f"it owes the acknowledgement of its last grant: it was granted {granted}, and counts with {committed}",
                "nothing where it comes within seconds; else see the agent's log",
                node.acknowledged,
            )
        )
    if node.drifted.status is True:
        found.append(
            of_aspect(
                Weight.LIMITS,
                node.drifted,
                "find who else sets limits on the node (nvidia-smi -pl, DCGM, another agent) and stop it",
            )
        )
    return found


def _gpus(node: NodeRow) -> list[Reason]:
    lost = [gpu for gpu in node.devices if gpu.healthy.status is False]
    if not lost:
        return []
    named = "; ".join(f"GPU {gpu.index if gpu.index is not None else gpu.uuid}: {gpu.healthy.reason}" for gpu in lost)
    return [
        Reason(
            Weight.LIMITS,
            f"{counted(len(lost), 'GPU')} of {len(node.devices)} cannot be governed, and count at their largest limits "
            f"({named})",
            DEGRADED_CHANGE["GpuFailed"],
            lost[0].healthy.since,
        )
    ]


def _from_events(events: Sequence[EventView], overview: Overview) -> list[Reason]:
    """Reasons that only the node's Events give."""
    changes = (
        (
            "NodeUnresponsive",
            ("NodeAnswers", "NodeArrived"),
            Weight.STOPS,
            "see the agent's log, and its way to the API",
        ),
        ("NodeProofStale", ("NodeAnswers",), Weight.STOPS, "its agent's next report ends it; else see the agent's log"),
        (
            "GrantRefused",
            (),
            Weight.LIMITS,
            "see what the API server says of it; a job's name or pod is not as it should be",
        ),
        ("LeavesCap", ("LeftCap",), Weight.LIMITS, "give it its labels back, or let it be idle for a minute"),
        ("PartLeftOut", (), Weight.LIMITS, "bring operator and agent to one version"),
    )
    found = []
    for raised, cleared, weight, change in changes:
        event = standing(events, raised, *cleared, now=overview.time)
        if event is not None:
            found.append(Reason(weight, event.note, change, event.time))
    return found


def _notes(node: NodeRow) -> list[Reason]:
    found = []
    if node.caps:
        found.append(Reason(Weight.NOTE, f"it counts under {', '.join(node.caps)}"))
    else:
        found.append(
            Reason(Weight.NOTE, "no cap selects it: its limits are its GPUs' own", "a PowerCap over its labels")
        )
    if node.jobs:
        found.append(Reason(Weight.NOTE, f"it runs {', '.join(node.jobs)}"))
    return found
