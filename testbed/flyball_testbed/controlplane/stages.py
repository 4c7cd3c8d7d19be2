"""What the simulated kubelets do: kwok Stage objects for pods and nodes.

A pod's life, and who moves it on:

| stage          | when                                                | then                                            |
|----------------|-----------------------------------------------------|-------------------------------------------------|
| `pod-started`  | bound, Pending; after the start-up delay            | Running, Ready                                  |
| `pod-succeeded`| Running, annotation `outcome: Succeeded`            | Succeeded, every container exits 0              |
| `pod-failed`   | annotation `outcome: Failed`                        | Failed, exit code of annotation `exit-code` or 1|
| `pod-stopped`  | being deleted, annotation `stopped: "true"`,        | Failed, exit code 143 (SIGTERM obeyed)          |
|                | or a pod without GPUs, which has nothing to save    |                                                 |
| `pod-heard`    | Running, its containers ready and it not: the node  | Ready                                           |
|                | controller takes readiness from the pods of a node  |                                                 |
|                | that it has not heard                               |                                                 |
| `pod-killed`   | being deleted, its grace period over                | Failed, exit code 137 (SIGKILL)                 |
| `pod-removed`  | being deleted and in an end phase                   | gone                                            |

So no pod ends by itself: the process that plays the training decides when, by annotations. At most one pod stage matches
at any time (kwok would draw lots otherwise). DaemonSet pods start without the delay: they stand for the node agents.

A node is Ready as long as kwok is there to renew its lease, unless annotated `node: NotReady`.
"""

from __future__ import annotations

from typing import Any

import yaml

# libyaml's where PyYAML has it: a tenth of a second less for each start.
SAFE_DUMPER: type[yaml.SafeDumper] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

ANNOTATION_PREFIX = "devcluster.flyball.dev"
OUTCOME_ANNOTATION = f"{ANNOTATION_PREFIX}/outcome"
EXIT_CODE_ANNOTATION = f"{ANNOTATION_PREFIX}/exit-code"
STOPPED_ANNOTATION = f"{ANNOTATION_PREFIX}/stopped"
START_DELAY_ANNOTATION = f"{ANNOTATION_PREFIX}/start-delay"
NODE_ANNOTATION = f"{ANNOTATION_PREFIX}/node"

# Here the units of every extended resource that ends in this are GPUs.
GPU_RESOURCE_SUFFIX = "/gpu"
# An instance that is the whole of its board: what a partitioned GPU of the simulated driver shows.
MIG_RESOURCE = "nvidia.com/mig-7g.40gb"

SUCCEEDED = "Succeeded"
FAILED = "Failed"
NOT_READY = "NotReady"

EXIT_CODE_TERMINATED = 143
EXIT_CODE_KILLED = 137

# As the kubelet: leases carry the heartbeat, the status is written every five minutes.
NODE_STATUS_INTERVAL_MILLISECONDS = 300_000
NODE_STATUS_JITTER_MILLISECONDS = 330_000

# jq conditions on a pod
_DELETED = ".metadata.deletionTimestamp != null"
_ENDED = '(.status.phase == "Succeeded" or .status.phase == "Failed")'
_DAEMON = '([.metadata.ownerReferences[]?.kind] | index("DaemonSet") != null)'
_HOLDS_GPUS = (
    f'([.spec.containers[].resources.limits // {{}} | keys[] | select(endswith("{GPU_RESOURCE_SUFFIX}"))] | length > 0)'
)
_OUTCOME = f'.metadata.annotations["{OUTCOME_ANNOTATION}"]'
_STOPPED = f'.metadata.annotations["{STOPPED_ANNOTATION}"] == "true"'
_READY = '([.status.conditions[]? | select(.type == "Ready" and .status == "True")] | length > 0)'
_CONTAINERS_READY = _READY.replace('"Ready"', '"ContainersReady"')
_STOPS_AT_ONCE = f"({_STOPPED} or ({_HOLDS_GPUS} | not))"

_STARTED_STATUS = """
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
conditions:
{{ range $type := list "PodReadyToStartContainers" "Initialized" "ContainersReady" "Ready" }}
- type: {{ $type }}
  status: "True"
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
{{ range .spec.readinessGates }}
- type: {{ .conditionType | Quote }}
  status: "True"
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state:
    running:
      startedAt: {{ $now | Quote }}
{{ end }}
{{ with .spec.initContainers }}
initContainerStatuses:
{{ range . }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  restartCount: 0
  {{ if eq (or .restartPolicy "") "Always" }}
  started: true
  state:
    running:
      startedAt: {{ $now | Quote }}
  {{ else }}
  state:
    terminated:
      exitCode: 0
      reason: Completed
      startedAt: {{ $now | Quote }}
      finishedAt: {{ $now | Quote }}
  {{ end }}
{{ end }}
{{ end }}
{{ with NodeIPsWith .spec.nodeName }}
hostIP: {{ index . 0 | Quote }}
hostIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
{{ with PodIPsWith .spec.nodeName (or .spec.hostNetwork false) (or .metadata.uid "") (or .metadata.name "") (or .metadata.namespace "") }}
podIP: {{ index . 0 | Quote }}
podIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
"""  # noqa: E501 - one template action cannot be broken over lines

_ENDED_STATUS = """
{{ $now := Now }}
{{ $root := . }}
{{ $exitCode := %(exit_code)s }}
phase: %(phase)s
conditions:
{{ range $type := list "ContainersReady" "Ready" }}
- type: {{ $type }}
  status: "False"
  reason: %(condition_reason)s
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
containerStatuses:
{{ range $index, $container := .spec.containers }}
{{ $started := $now }}
{{ with $root.status.containerStatuses }}
{{ with (index . $index).state.running }}{{ $started = .startedAt }}{{ end }}
{{ end }}
- name: {{ $container.name | Quote }}
  image: {{ $container.image | Quote }}
  imageID: ""
  ready: false
  started: false
  restartCount: 0
  state:
    terminated:
      exitCode: {{ $exitCode }}
      reason: %(container_reason)s
      startedAt: {{ $started | Quote }}
      finishedAt: {{ $now | Quote }}
{{ end }}
"""

_READY_AGAIN_STATUS = """
conditions:
- type: Ready
  status: "True"
  lastTransitionTime: {{ Now | Quote }}
"""

_NODE_STATUS = """
{{ $now := Now }}
phase: Running
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
addresses:
- type: InternalIP
  address: {{ NodeIP | Quote }}
- type: Hostname
  address: {{ .metadata.name | Quote }}
{{ if not .status.nodeInfo.kubeletVersion }}
nodeInfo:
  architecture: amd64
  operatingSystem: linux
  bootID: ""
  machineID: ""
  systemUUID: ""
  osImage: simulated
  kernelVersion: simulated
  containerRuntimeVersion: kwok://{{ Version }}
  kubeletVersion: kwok-{{ Version }}
  kubeProxyVersion: ""
{{ end }}
"""

_NODE_NOT_READY_STATUS = """
{{ $now := Now }}
conditions:
- type: Ready
  status: "False"
  reason: KubeletNotReady
  message: annotated as not ready
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
"""

_NODE_HEARTBEAT_STATUS = """
{{ $now := Now }}
conditions:
{{ range .status.conditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ .lastTransitionTime | Quote }}
{{ end }}
"""

_NODE_HELD_DOWN = f'(.metadata.annotations["{NODE_ANNOTATION}"] == "{NOT_READY}")'


def _stage(
    kind: str,
    name: str,
    when: str,
    *,
    status: str | None = None,
    delete: bool = False,
    delay: dict[str, Any] | None = None,
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": [{"jq": {"key": when, "operator": "In", "values": ["true"]}}]},
    }
    if delay is not None:
        spec["delay"] = delay
    step: dict[str, Any] = {"delete": True} if delete else {}
    if status is not None:
        step["patch"] = {"subresource": "status", "root": "status", "template": status}
    spec["steps"] = [step]
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": spec,
    }


def _ended(phase: str, exit_code: str) -> str:
    return _ENDED_STATUS % {
        "phase": phase,
        "exit_code": exit_code,
        "condition_reason": "PodCompleted" if phase == SUCCEEDED else "PodFailed",
        "container_reason": "Completed" if phase == SUCCEEDED else "Error",
    }


def pod_stages(start_delay_seconds: float) -> list[dict[str, Any]]:
    """The life of a simulated pod; `start_delay_seconds` from binding to Ready.

    A pod's own annotation `devcluster.flyball.dev/start-delay` (a Go duration, `"30s"`) takes precedence.
    """
    live = f"({_DELETED} | not) and ({_ENDED} | not)"
    pending = f'({_DELETED} | not) and .status.phase == "Pending"'
    running = f'{live} and .status.phase == "Running"'
    no_outcome = f'({_OUTCOME} != "{SUCCEEDED}" and {_OUTCOME} != "{FAILED}")'
    no_failure = f'({_OUTCOME} != "{FAILED}")'
    stopping = f"({_DELETED}) and ({_ENDED} | not)"
    exit_code_annotation = f'(index (or .metadata.annotations dict) "{EXIT_CODE_ANNOTATION}")'
    return [
        _stage("Pod", "pod-started-daemon", f"{pending} and {no_failure} and {_DAEMON}", status=_STARTED_STATUS),
        _stage(
            "Pod",
            "pod-started",
            f"{pending} and {no_failure} and ({_DAEMON} | not)",
            status=_STARTED_STATUS,
            delay={
                "durationMilliseconds": round(start_delay_seconds * 1000),
                "durationFrom": {"jq": {"expression": f'.metadata.annotations["{START_DELAY_ANNOTATION}"] // empty'}},
            },
        ),
        _stage(
            "Pod",
            "pod-heard",
            f"{running} and {no_outcome} and {_CONTAINERS_READY} and ({_READY} | not)",
            status=_READY_AGAIN_STATUS,
        ),
        _stage(
            "Pod",
            "pod-succeeded",
            f'{running} and {_OUTCOME} == "{SUCCEEDED}"',
            status=_ended(SUCCEEDED, "0"),
        ),
        _stage(
            "Pod",
            "pod-failed",
            f'{live} and {_OUTCOME} == "{FAILED}"',
            status=_ended(FAILED, f'(or {exit_code_annotation} "1")'),
        ),
        _stage(
            "Pod",
            "pod-stopped",
            f"{stopping} and {_STOPS_AT_ONCE}",
            status=_ended(FAILED, str(EXIT_CODE_TERMINATED)),
        ),
        _stage(
            "Pod",
            "pod-killed",
            f"{stopping} and ({_STOPS_AT_ONCE} | not)",
            status=_ended(FAILED, str(EXIT_CODE_KILLED)),
            # The API server sets it to the time of the request plus the grace period.
            delay={"durationFrom": {"jq": {"expression": ".metadata.deletionTimestamp"}}},
        ),
        _stage("Pod", "pod-removed", f"{_DELETED} and {_ENDED}", delete=True),
    ]


def node_stages() -> list[dict[str, Any]]:
    """The life of a simulated node."""
    return [
        _stage("Node", "node-ready", f"({_READY} | not) and ({_NODE_HELD_DOWN} | not)", status=_NODE_STATUS),
        _stage("Node", "node-not-ready", f"{_READY} and {_NODE_HELD_DOWN}", status=_NODE_NOT_READY_STATUS),
        _stage(
            "Node",
            "node-heartbeat",
            f"{_READY} and ({_NODE_HELD_DOWN} | not)",
            status=_NODE_HEARTBEAT_STATUS,
            delay={
                "durationMilliseconds": NODE_STATUS_INTERVAL_MILLISECONDS,
                "jitterDurationMilliseconds": NODE_STATUS_JITTER_MILLISECONDS,
            },
        ),
    ]


def kwok_configuration(start_delay_seconds: float) -> str:
    """kwok's configuration file: its options, and the stages."""
    options = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "podPlayStageParallelism": 16,
            "nodePlayStageParallelism": 16,
            "nodeLeaseParallelism": 8,
            # Not kwok's default, though it is said to be: without it a pod that is bound before kwok serves its node is
            # never looked at again, and stays Pending.
            "podsOnNodeSyncParallelism": 4,
        },
    }
    documents = [options, *pod_stages(start_delay_seconds), *node_stages()]
    return yaml.dump_all(documents, Dumper=SAFE_DUMPER, sort_keys=False)
