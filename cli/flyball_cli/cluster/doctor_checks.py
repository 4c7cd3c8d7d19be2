"""What `flyball doctor` holds an installation to: pure, from the facts that were found; each check says what would be
right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from flyball_views.nodes import SERVING_MODES, NodeRow
from flyball_views.overview import Overview
from flyball_views.texts import age_text, counted, duration_text

OLDEST_KUBERNETES = (1, 35)  # before it, which of two resourceVersions is the newer is not defined
OLDEST_KUBELET = (1, 32)  # three minor versions behind the oldest API server: what Kubernetes itself supports
MOST_SKEW_SECONDS = 5.0
NAMED = 5
_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
# deploy/base/admission.yaml has the same.
ADMISSION_POLICIES = (
    "flyball-agent-own-node",
    "flyball-brakes",
    "flyball-cap-cuts",
    "flyball-cap-floors",
    "flyball-checkpoints",
    "flyball-grants",
    "flyball-job-template",
    "flyball-labels",
    "flyball-operator-caps",
    "flyball-operator-limits",
    "flyball-operator-plans",
    "flyball-operator-pods",
    "flyball-priorities",
    "flyball-sockets",
    "flyball-stragglers",
    "flyball-submitters",
)


class Verdict(StrEnum):
    """What became of a check; `unknown` where the caller may not look."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found, and where that is not well, what would be right."""

    name: str
    verdict: Verdict
    found: str
    right: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found. None stands for what the caller may not read; `overview.missing` says why, and `refused` likewise.

    `definitions` are the cluster's CRDs by name, `own_definitions` those of this program. `lease_moved` says whether the
    operator's Lease was seen to be renewed. `policies` are the bindings of admission policies. `kubelets` have the version
    of each node, `rights` whether the caller may do a thing that people do.
    """

    overview: Overview
    client_version: str
    own_definitions: Mapping[str, Mapping[str, Any]]
    definitions: Mapping[str, Mapping[str, Any]] | None = None
    server_version: str | None = None
    lease_moved: bool | None = None
    policies: frozenset[str] | None = None
    kubelets: Mapping[str, str] = field(default_factory=dict)
    rights: Mapping[str, bool] = field(default_factory=dict)
    watched_seconds: float = 0.0


def checks(facts: Facts) -> list[Check]:
    """Every check, in the order in which an installation is made."""
    return [
        _server(facts),
        *_definitions(facts),
        _policies(facts),
        _leader(facts),
        _leaders_clock(facts),
        *_agents(facts),
        _agents_clocks(facts),
        *_gpus(facts),
        _kubelets(facts),
        *_caps(facts),
        _rights(facts),
    ]


def version_of(text: str) -> tuple[int, int] | None:
    """Major and minor of `v1.35.2` or `v1.35+`; None for anything else."""
    found = _VERSION.match(text)
    return None if found is None else (int(found[1]), int(found[2]))


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


# --- what is installed -------------------------------------------------------------------------------------------------


def _server(facts: Facts) -> Check:
    oldest = ".".join(map(str, OLDEST_KUBERNETES))
    version = None if facts.server_version is None else version_of(facts.server_version)
    if version is None:
        return Check(
            "API server", Verdict.UNKNOWN, "its version is not shown", f"Kubernetes {oldest} or newer is needed"
        )
    if version < OLDEST_KUBERNETES:
        return Check(
            "API server", Verdict.FAIL, f"is {facts.server_version}", f"upgrade it to Kubernetes {oldest} or newer"
        )
    return Check("API server", Verdict.OK, f"is {facts.server_version}")


def _definitions(facts: Facts) -> Iterator[Check]:
    name = "definitions"
    if facts.definitions is None:
        yield Check(name, Verdict.UNKNOWN, "you may not read CustomResourceDefinitions", "ask somebody who may")
        return
    absent = sorted(facts.own_definitions.keys() - facts.definitions.keys())
    if absent:
        yield Check(name, Verdict.FAIL, f"not there: {_named(absent)}", "install the chart, or apply crds/")
    differing = []
    for kind, own in sorted(facts.own_definitions.items()):
        theirs = facts.definitions.get(kind)
        if theirs is None:
            continue
        if not _established(theirs):
            yield Check(name, Verdict.FAIL, f"{kind} is not established", f"kubectl describe crd {kind}")
        lacking, more = _paths(own) - _paths(theirs), _paths(theirs) - _paths(own)
        if lacking:
            differing.append(f"{kind} lacks {_named(sorted(lacking))}")
        elif more:
            differing.append(f"{kind} has {_named(sorted(more))}, which this program does not know")
    if differing:
        right = f"bring the chart and this program ({facts.client_version}) to one version"
        yield Check(name, Verdict.WARN, "; ".join(differing), right)
    elif not absent:
        yield Check(
            name, Verdict.OK, f"{len(facts.own_definitions)} kinds, with the fields that {facts.client_version} knows"
        )


def _established(definition: Mapping[str, Any]) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Established" and item.get("status") == "True" for item in conditions)


def _paths(definition: Mapping[str, Any]) -> frozenset[str]:
    """The fields of a definition's stored version, as `spec.meter.file`."""
    versions = [item for item in definition["spec"]["versions"] if item.get("storage")]
    schema = versions[0]["schema"]["openAPIV3Schema"] if versions else {}
    found: set[str] = set()

    def walk(part: Mapping[str, Any], path: str) -> None:
        for field_name, child in (part.get("properties") or {}).items():
            found.add(f"{path}{field_name}")
            walk(child, f"{path}{field_name}.")
        if isinstance(part.get("items"), Mapping):
            walk(part["items"], path)

    for section in ("spec", "status"):
        walk((schema.get("properties") or {}).get(section) or {}, f"{section}.")
    return frozenset(found)


def _policies(facts: Facts) -> Check:
    name = "admission policies"
    if facts.policies is None:
        return Check(
            name, Verdict.UNKNOWN, "you may not read ValidatingAdmissionPolicyBindings", "ask somebody who may"
        )
    absent = sorted(set(ADMISSION_POLICIES) - facts.policies)
    if absent:
        right = "install the chart whole: without them any agent may speak for any node"
        return Check(name, Verdict.FAIL, f"not bound: {_named(absent)}", right)
    return Check(name, Verdict.OK, f"{len(ADMISSION_POLICIES)} are bound")


# --- the operator ------------------------------------------------------------------------------------------------------


def _leader(facts: Facts) -> Check:
    name, leader, namespace = "operator", facts.overview.leader, facts.overview.operator_namespace
    if leader is None:
        if "leases" in facts.overview.missing:
            return Check(name, Verdict.UNKNOWN, facts.overview.missing["leases"])
        right = f"install it; in another namespace than {namespace} say so by --operator-namespace"
        return Check(name, Verdict.FAIL, "none has led yet: there is no Lease flyball-operator", right)
    right = f"see its pods and their logs (kubectl -n {namespace} logs deploy/flyball-operator)"
    if not leader.holder or facts.lease_moved is False:
        ago = age_text(leader.renewed, facts.overview.time)
        return Check(name, Verdict.FAIL, f"none leads: the Lease of {leader.holder or 'nobody'} is {ago} old", right)
    return Check(name, Verdict.OK, f"{leader.holder} leads, epoch {leader.epoch}")


def _leaders_clock(facts: Facts) -> Check:
    """A Lease that is renewed every few seconds has a time near ours, or one of the two clocks is wrong."""
    name, leader = "clock of the operator", facts.overview.leader
    if leader is None or leader.renewed is None or not facts.lease_moved:
        return Check(name, Verdict.UNKNOWN, "no renewal of its Lease was seen")
    ahead = (leader.renewed - facts.overview.time).total_seconds()
    slack = MOST_SKEW_SECONDS + (leader.duration_seconds or 0)
    if ahead > MOST_SKEW_SECONDS or ahead < -slack:
        apart = duration_text(abs(ahead))
        right = "synchronise the clocks of this machine and the operator's node (chrony, systemd-timesyncd)"
        return Check(name, Verdict.WARN, f"is {apart} {'ahead of' if ahead > 0 else 'behind'} this machine's", right)
    return Check(name, Verdict.OK, f"agrees with this machine's within {slack:g} s")


# --- agents and nodes --------------------------------------------------------------------------------------------------


def _agents(facts: Facts) -> Iterator[Check]:
    nodes = facts.overview.nodes
    if not nodes:
        yield Check(
            "nodes",
            Verdict.WARN,
            "there is no node with GPUs",
            "see the device plugin's pods, and nvidia.com/gpu in Nodes",
        )
        return
    without = [node.name for node in nodes if node.kubelet_ready is not None and not node.agent_version]
    if without:
        right = "see the DaemonSet flyball-agent: its node selector, tolerations, and its pods there"
        yield Check(
            "agents",
            Verdict.FAIL,
            f"no agent has reported from {counted(len(without), 'node')} with GPUs: {_named(without)}",
            right,
        )
    gone = [node.name for node in nodes if node.kubelet_ready is None and "nodes" not in facts.overview.missing]
    if gone:
        right = f"if they are gone for good: flyball release node {gone[0]}, then delete the GPUNode"
        yield Check("vanished nodes", Verdict.WARN, f"no Node any more, but their watts count: {_named(gone)}", right)
    silent = [node.name for node in nodes if node.silent]
    if silent:
        yield Check("agents", Verdict.FAIL, f"silent: {_named(silent)}", "see the agents' pods there and their logs")
    troubled = [
        f"{node.name} ({_trouble(node)})" for node in nodes if node.agent_version and not node.silent and _trouble(node)
    ]
    if troubled:
        yield Check(
            "agents", Verdict.WARN, f"not serving: {_named(troubled)}", "flyball why node NAME says what would help"
        )
    versions = sorted({node.agent_version for node in nodes if node.agent_version})
    if len(versions) > 1:
        yield Check(
            "agents' versions", Verdict.WARN, f"several: {', '.join(versions)}", "let the DaemonSet's rollout end"
        )
    if not (without or silent or troubled):
        looked = (
            f"; watched for {facts.watched_seconds:g} s"
            if facts.watched_seconds
            else "; --wait 95 sees silent ones, too"
        )
        yield Check("agents", Verdict.OK, f"{counted(len(nodes), 'node')} served{looked}")


def _trouble(node: NodeRow) -> str:
    if node.degraded.status is True and node.degraded.reason != "NotPersistent":
        return node.degraded.reason
    if node.ready.status is not True:
        return node.ready.reason
    return "" if node.mode in SERVING_MODES else node.mode


def _agents_clocks(facts: Facts) -> Check:
    """What an agent acknowledged in the future, by our clock, it acknowledged by a clock that is ahead."""
    name, now = "clocks of the nodes", facts.overview.time
    ahead = [
        (node.name, (node.acknowledged - now).total_seconds())
        for node in facts.overview.nodes
        if node.acknowledged is not None and (node.acknowledged - now).total_seconds() > MOST_SKEW_SECONDS
    ]
    if ahead:
        named = _named([f"{node} by {duration_text(seconds)}" for node, seconds in ahead])
        right = "synchronise their clocks; what is promised rests on none of them, but reports and deadlines do"
        return Check(name, Verdict.WARN, f"ahead of this machine's: {named}", right)
    if not any(node.acknowledged for node in facts.overview.nodes):
        return Check(name, Verdict.UNKNOWN, "no agent has acknowledged anything yet")
    return Check(name, Verdict.OK, "none is seen to be ahead of this machine's")


def _gpus(facts: Facts) -> Iterator[Check]:
    loose, lost, drifted = [], [], []
    for node in facts.overview.nodes:
        if any(gpu.healthy.reason == "NotPersistent" for gpu in node.devices):
            loose.append(node.name)
        if any(gpu.healthy.status is False for gpu in node.devices):
            lost.append(node.name)
        if node.drifted.status is True:
            drifted.append(node.name)
    if loose:
        right = "nvidia-persistenced there, or nvidia-smi -pm 1: without it a driver that unloads forgets every limit"
        yield Check("persistence mode", Verdict.WARN, f"off on {_named(loose)}", right)
    elif any(node.devices for node in facts.overview.nodes):
        yield Check("persistence mode", Verdict.OK, "no GPU is seen to be without it")
    if lost:
        yield Check(
            "GPUs", Verdict.WARN, f"some cannot be governed on {_named(lost)}", "flyball why node NAME names them"
        )
    if drifted:
        right = "find who else sets limits there (nvidia-smi -pl, DCGM) and stop it"
        yield Check("limits", Verdict.WARN, f"somebody else changes them on {_named(drifted)}", right)


def _kubelets(facts: Facts) -> Check:
    name, oldest = "kubelets", ".".join(map(str, OLDEST_KUBELET))
    if not facts.kubelets:
        return Check(name, Verdict.UNKNOWN, facts.overview.missing.get("nodes", "there are none"))
    unread = sorted(node for node, text in facts.kubelets.items() if version_of(text) is None)
    if unread:
        return Check(name, Verdict.UNKNOWN, f"the version cannot be read of {_named(unread)}")
    old = sorted(node for node, text in facts.kubelets.items() if (version_of(text) or OLDEST_KUBELET) < OLDEST_KUBELET)
    if old:
        return Check(
            name, Verdict.FAIL, f"older than {oldest}: {_named(old)}", f"upgrade them to Kubernetes {oldest} or newer"
        )
    return Check(name, Verdict.OK, ", ".join(sorted(set(facts.kubelets.values()))))


# --- caps and rights ---------------------------------------------------------------------------------------------------


def _caps(facts: Facts) -> Iterator[Check]:
    if "powercaps" in facts.overview.missing:
        yield Check("caps", Verdict.UNKNOWN, facts.overview.missing["powercaps"])
        return
    caps = facts.overview.caps
    if not caps:
        yield Check(
            "caps", Verdict.WARN, "there is none: GPUs keep their own limits", "examples/manifests/power-cap.yaml"
        )
        return
    unread = [cap.name for cap in caps if cap.refusal]
    if unread:
        yield Check("caps", Verdict.FAIL, f"cannot be read: {_named(unread)}", f"flyball why cap {unread[0]}")
    loose = [
        f"{cap.name} ({cap.enforced.reason})" for cap in caps if cap.enforced.status is not True and not cap.refusal
    ]
    if loose:
        yield Check("caps", Verdict.WARN, f"not known to be enforced: {_named(loose)}", "flyball why cap NAME")
    breached = [cap.name for cap in caps if cap.breached.status is True]
    if breached:
        yield Check(
            "caps", Verdict.FAIL, f"more is drawn than they allow: {_named(breached)}", f"flyball why cap {breached[0]}"
        )
    if not (unread or loose or breached):
        yield Check("caps", Verdict.OK, f"{counted(len(caps), 'cap')} enforced")


def _rights(facts: Facts) -> Check:
    if not facts.rights:
        return Check("your rights", Verdict.UNKNOWN, "the API server does not say")
    may = [what for what, allowed in facts.rights.items() if allowed]
    may_not = [what for what, allowed in facts.rights.items() if not allowed]
    found = f"you may {', '.join(may) or 'nothing of this'}" + (f"; not {', '.join(may_not)}" if may_not else "")
    return Check("your rights", Verdict.OK, found)
