"""What the operator writes for power: grants, brakes, holds, labels, taints, and what it says of caps."""

from __future__ import annotations

from flyball_api.gpu_node import former_labels_annotation, gpu_node_object
from flyball_api.grant import Grant, grant_spec
from flyball_api.names import (
    ANNOTATION_FORMER_LABELS,
    ANNOTATION_RELEASE,
    HOLD_FINALIZER,
    STARTUP_TAINT,
)
from flyball_api.power_brake import power_brake_object
from flyball_api.power_cap import PowerCap, PowerCapStatus
from flyball_kube.errors import ApiError
from flyball_kube.resources import (
    CRDS,
    GPU_NODES,
    NODES,
    POWER_BRAKES,
    POWER_CAPS,
    Resource,
)
from flyball_kube.session import JsonObject

from flyball_operator.cluster.outcome import DONE, WriteResult
from flyball_operator.power.caps.memberships import LabelSync
from flyball_operator.power.grants.brakes import SendBrake
from flyball_operator.power.holds import HoldAction, HoldChange
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.writes.writer import Writer

# The API server stops tracking who set which field of an object whose list is overwritten with one empty entry, until
# someone applies it server-side. A GPUNode has one writer for its spec and one for its status, and the tracking is more
# than half of what a write of one costs the server (docs/decisions.md).
UNTRACKED_FIELDS: list[JsonObject] = [{}]

# Tells a startup taint that was put back from the one that a node is registered with.
PROOF_STALE_VALUE = "proof-stale"


class PowerWrites(Writer):
    """The writes of power control."""

    async def write_grant(self, info: NodeInfo, grant: Grant) -> WriteResult:
        """Put a grant into the node's GPUNode, which must not have changed since it was read; make it where missing."""
        gpu_node = info.gpu_node
        if gpu_node is None:
            labels = {} if info.node is None else dict(info.node.labels)
            body = gpu_node_object(info.name, labels, grant)
            return await self._write("create-gpunode", GPU_NODES, lambda: self._session.create(GPU_NODES.path(), body))
        patch: JsonObject = {
            "metadata": {"resourceVersion": gpu_node.metadata.resource_version, "managedFields": UNTRACKED_FIELDS},
            "spec": grant_spec(grant),
        }
        before = 0 if gpu_node.grant is None else gpu_node.grant.bound.limit_milliwatts
        kind = "lower-grant" if grant.bound.limit_milliwatts < before else "write-grant"
        path = GPU_NODES.path(name=info.name)
        return await self._write(kind, GPU_NODES, lambda: self._session.patch(path, patch))

    async def sync_labels(self, sync: LabelSync) -> WriteResult:
        """Put a node's labels, and the former ones that still count, into its GPUNode as it was read."""
        gpu_node, labels = sync.node.gpu_node, sync.node.labels
        if gpu_node is None:
            return DONE
        annotations: JsonObject = {ANNOTATION_FORMER_LABELS: former_labels_annotation(sync.former_labels)}
        if sync.by_annotation:  # it has been taken at its word, and says nothing of the next time
            annotations[ANNOTATION_RELEASE] = None
        patch = {
            "metadata": {
                "resourceVersion": gpu_node.metadata.resource_version,
                "managedFields": UNTRACKED_FIELDS,
                "labels": {**{key: None for key in gpu_node.labels if key not in labels}, **labels},
                "annotations": annotations,
            }
        }
        path = GPU_NODES.path(name=sync.node.name)
        return await self._write("sync-labels", GPU_NODES, lambda: self._session.patch(path, patch))

    async def write_hold(self, change: HoldChange) -> WriteResult:
        """Put our finalizer on an object as it was read, or take it away."""
        item = change.item
        resource = POWER_CAPS if isinstance(item, PowerCap) else GPU_NODES
        others = [name for name in item.metadata.finalizers if name != HOLD_FINALIZER]
        finalizers = [*others, HOLD_FINALIZER] if change.action is HoldAction.HOLD else others
        metadata = {
            "uid": item.metadata.uid,
            "resourceVersion": item.metadata.resource_version,
            "finalizers": finalizers or None,
        }

        async def patch() -> JsonObject:
            if change.action is HoldAction.RELEASE_UNLESS_KIND_GOES and await self._kind_goes(resource):
                raise ApiError(409, "KindGoes", f"the CRD of {resource.plural} is being deleted", "not sent")
            self._check()
            return await self._session.patch(resource.path(name=item.metadata.name), {"metadata": metadata})

        return await self._write(f"{change.action.name.lower().partition('_')[0]}-deletion", resource, patch)

    async def _kind_goes(self, resource: Resource) -> bool:
        """Whether the kind's CRD is being deleted, which takes every object of it along, meant or not."""
        crd = await self._session.get(CRDS.path(name=f"{resource.plural}.{resource.group}"))
        return crd["metadata"].get("deletionTimestamp") is not None

    async def write_brake(self, send: SendBrake) -> WriteResult:
        """Put a brake in place of the one that was read; make it where there was none."""
        body = power_brake_object(send.cap, send.spec, send.resource_version)
        body["metadata"]["managedFields"] = UNTRACKED_FIELDS
        if not send.resource_version:
            path = POWER_BRAKES.path()
            return await self._write("brake", POWER_BRAKES, lambda: self._urgent_session.create(path, body))
        path = POWER_BRAKES.path(name=send.cap)
        return await self._write("brake", POWER_BRAKES, lambda: self._urgent_session.replace(path, body))

    async def set_startup_taint(self, info: NodeInfo, *, closed: bool) -> WriteResult:
        """Close a node for pods, or open it now that its agent has acknowledged its grant; other taints stay."""
        path = NODES.path(name=info.name)

        async def patch() -> JsonObject:
            node = await self._session.get(path)
            taints = [taint for taint in node["spec"].get("taints") or () if taint.get("key") != STARTUP_TAINT]
            if closed:
                taints.append({"key": STARTUP_TAINT, "effect": "NoSchedule", "value": PROOF_STALE_VALUE})
            body = {
                "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
                "spec": {"taints": taints or None},
            }
            self._check()
            return await self._session.patch(path, body)

        return await self._write("add-taint" if closed else "remove-taint", NODES, patch)

    async def write_cap_status(self, cap: PowerCap, status: PowerCapStatus) -> WriteResult:
        return await self._put_status("cap-status", POWER_CAPS, cap.metadata, status, urgent=True)
