"""Puts Flyball's API into a cluster: the CRDs, the namespace, RBAC and admission policies, and the agents' DaemonSet."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flyball_api.manifests import manifests
from flyball_api.manifests import read_manifests as manifests_of
from flyball_api.names import DEFAULT_NAMESPACE, LABEL_GPU_PRODUCT
from flyball_kube.errors import ApiError

from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.nodes import pod_path

REPOSITORY = Path(__file__).resolve().parents[3]
BASE_DIRECTORY = REPOSITORY / "deploy" / "base"

OPERATOR = "flyball-operator"
AGENT = "flyball-agent"
COMPONENT_LABEL = "app.kubernetes.io/component"
AGENT_COMPONENT = "agent"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

NAMESPACE_KIND = "Namespace"


def read_manifests(directory: Path) -> list[Json]:
    """Every manifest of a folder's `*.yaml`, namespaces first, because the others may be in them.

    Raises FileNotFoundError where the folder has none.
    """
    found = manifests_of(directory)
    if not found:
        raise FileNotFoundError(f"no manifests in {directory} (*.yaml)")
    return sorted(found, key=lambda manifest: bool(manifest["kind"] != NAMESPACE_KIND))


def apply_crds(api: ApiClient, crds: Sequence[Json], *, timeout_seconds: float = 60.0) -> list[str]:
    """Apply CustomResourceDefinitions and wait until each is served. The names, in order."""
    api.for_each(api.apply, crds)
    wait_served(api, crds, timeout_seconds=timeout_seconds)
    return [crd["metadata"]["name"] for crd in crds]


def wait_served(api: ApiClient, crds: Sequence[Json], *, timeout_seconds: float = 60.0) -> None:
    """Wait until each of these CustomResourceDefinitions, which are there, is served."""
    for crd in crds:
        name = crd["metadata"]["name"]
        api.wait_for(f"{CRDS}/{name}", _established, timeout_seconds=timeout_seconds, what="Established")
        spec = crd["spec"]
        for version in spec["versions"]:
            if version["served"]:
                # Established comes a moment before the API server routes requests to it.
                api.wait_for(
                    f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}?limit=1",
                    lambda collection: collection is not None,
                    timeout_seconds=timeout_seconds,
                    what="served",
                )


def _established(crd: Json | None) -> bool:
    conditions = (crd or {}).get("status", {}).get("conditions") or []
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


def install_api(api: ApiClient) -> list[str]:
    """Apply the repository's CRDs and base manifests (server-side, so again and again changes nothing).

    The names of the CRDs. Raises FileNotFoundError where there are no base manifests, ApiError where one is refused.
    """
    names = install_all_but_parameterized(api)
    install_parameterized(api)
    return names


def install_all_but_parameterized(api: ApiClient) -> list[str]:
    """Apply everything but the admission policies whose parameters are objects of our kinds."""
    names = apply_crds(api, manifests())
    base = [manifest for manifest in read_manifests(BASE_DIRECTORY) if not is_parameterized(manifest)]
    api.for_each(api.apply, [manifest for manifest in base if manifest["kind"] == NAMESPACE_KIND])
    api.for_each(api.apply, [manifest for manifest in base if manifest["kind"] != NAMESPACE_KIND])
    return names


def install_parameterized(api: ApiClient) -> None:
    """Apply those policies, once their kinds are served.

    An API server that reads one before it serves the kind of its parameters refuses everything that the policy is for,
    for half a minute: it looks for new kinds no more often.
    """
    api.for_each(api.apply, filter(is_parameterized, read_manifests(BASE_DIRECTORY)))


def is_parameterized(manifest: Json) -> bool:
    """Whether this is an admission policy that names a kind of parameters."""
    return "paramKind" in manifest.get("spec", {})


def agent_daemon_set() -> Json:
    """The DaemonSet whose simulated pods carry the agents' identity: one pod on each node with GPUs, taint or not.

    The agents themselves run as ordinary processes, each with a token bound to its pod.
    """
    labels = {"app.kubernetes.io/name": "flyball", COMPONENT_LABEL: AGENT_COMPONENT}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": AGENT, "namespace": DEFAULT_NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            # After a change every pod is replaced at once: they are markers, nothing runs in them.
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": AGENT,
                    "terminationGracePeriodSeconds": 1,
                    "priorityClassName": "system-node-critical",
                    "tolerations": [{"operator": "Exists"}],
                    "affinity": {
                        "nodeAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {
                                "nodeSelectorTerms": [
                                    {"matchExpressions": [{"key": LABEL_GPU_PRODUCT, "operator": "Exists"}]}
                                ]
                            }
                        }
                    },
                    "containers": [{"name": "agent", "image": "flyball.dev/simulated-agent"}],
                },
            },
        },
    }


def install_agent_daemon_set(api: ApiClient) -> None:
    """Create the agents' DaemonSet. Raises LookupError where the agents' service account does not exist."""
    if api.get_or_none(f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/serviceaccounts/{AGENT}") is None:
        raise LookupError(f"no service account {DEFAULT_NAMESPACE}/{AGENT}: install the API first")
    api.apply(agent_daemon_set())


TOUCHED_ANNOTATION = "testbed.flyball.dev/touched"
PASSED_OVER = timedelta(seconds=5)
MOST_TOUCHED = 16
AGENT_PODS = f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/pods?labelSelector={COMPONENT_LABEL}%3D{AGENT_COMPONENT}"


def agent_pods(api: ApiClient) -> dict[str, str]:
    """The agents' pods that run: node -> name of the pod."""
    pods = api.get(AGENT_PODS)
    touch_passed_over(api, pods)
    return running_pods(pods)


def touch_passed_over(api: ApiClient, pods: Json) -> None:
    """Change an annotation of pods that were bound seconds ago and do not start, of a few at a time.

    kwok passes over a pod that comes while it has a node's Lease made but has not yet seen it, as the agents' do, which
    come with their node; and it looks at a pod only when that changes.
    """
    now = datetime.now(UTC)

    def is_passed_over(pod: Json) -> bool:
        metadata = pod["metadata"]
        touched = (metadata.get("annotations") or {}).get(TOUCHED_ANNOTATION, metadata["creationTimestamp"])
        bound = pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending"
        return bool(bound) and now - datetime.fromisoformat(touched) > PASSED_OVER

    for pod in list(filter(is_passed_over, pods["items"]))[:MOST_TOUCHED]:
        with contextlib.suppress(ApiError):  # it has gone meanwhile
            api.patch(pod_path(pod), {"metadata": {"annotations": {TOUCHED_ANNOTATION: now.isoformat()}}})


def running_pods(pods: Json) -> dict[str, str]:
    """The running pods of a collection that has one on each node: node -> name of the pod."""
    return {
        pod["spec"]["nodeName"]: pod["metadata"]["name"]
        for pod in pods["items"]
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def pods_summary(pods: Json) -> str:
    """Each pod of a collection in words, for an error: its node, its phase, whether it is being deleted."""

    def described(pod: Json) -> str:
        metadata, phase = pod["metadata"], pod.get("status", {}).get("phase", "no phase")
        bound = pod["spec"].get("nodeName")
        place = f"on {bound}" if bound else f"for {_daemon_target(pod) or 'any node'}, not bound"
        deleted = f", being deleted since {metadata['deletionTimestamp']}" if "deletionTimestamp" in metadata else ""
        return f"{metadata['name']} {place}: {phase}, made at {metadata.get('creationTimestamp', '?')}{deleted}"

    return "; ".join(sorted(described(pod) for pod in pods["items"])) or "none"


def _daemon_target(pod: Json) -> str:
    """The node that a DaemonSet made a pod for; the scheduler reads it there."""
    required = (pod["spec"].get("affinity") or {}).get("nodeAffinity", {})
    terms = (required.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    fields = [field for term in terms for field in term.get("matchFields") or () if field["key"] == "metadata.name"]
    return ", ".join(value for field in fields for value in field["values"])
