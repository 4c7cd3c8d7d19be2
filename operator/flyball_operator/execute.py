"""Every write that the operator makes, each one fenced: right before it is sent, the epoch must still be held.

All of them are idempotent. An object that another writer changed first, that exists already or that is gone already is no
failure: the next cycle decides anew from what is then there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.resources import (
    ENERGY_AWARE_JOBS,
    ENERGY_PROFILES,
    GPU_NODES,
    JOBS,
    NODES,
    PODS,
    POWER_CAPS,
    SERVICES,
    Resource,
)
from flyball_kube.session import JSON_PATCH, ApiSession, JsonObject

from flyball_operator.gpu_nodes import gpu_node_object, grant_spec
from flyball_operator.hold import Grant
from flyball_operator.incarnations import OpenGates, StopIncarnation
from flyball_operator.lease import LeadershipLost
from flyball_operator.manifests import incarnation_job, incarnation_service
from flyball_operator.names import LABEL_HOSTNAME, PLACEMENT_GATE, STARTUP_TAINT
from flyball_operator.picture import NodePicture
from flyball_operator.requests import CapView, JobView
from flyball_operator.workloads import PodView

logger = logging.getLogger(__name__)

# The API server stops tracking who set which field of an object whose list is overwritten with one empty entry, until
# someone applies it server-side. A GPUNode has one writer for its spec and one for its status, and the tracking is more
# than half of what a write of one costs the server (docs/decisions.md).
UNTRACKED_FIELDS: list[JsonObject] = [{}]


class Executor:
    """Sends writes under one epoch; `check` raises LeadershipLost, `absorb` takes in what a write returned.

    `training_socket_directory`: where on their nodes agents serve training processes (empty: nowhere).
    """

    def __init__(
        self,
        session: ApiSession,
        check: Callable[[], None],
        absorb: Callable[[Resource, JsonObject], None],
        count: Callable[[str], None] = lambda kind: None,
        training_socket_directory: str = "",
    ) -> None:
        self._session = session
        self._check = check
        self._absorb = absorb
        self._count = count
        self._training_socket_directory = training_socket_directory

    async def _write(
        self,
        kind: str,
        resource: Resource,
        call: Callable[[], Awaitable[JsonObject]],
        refused: Callable[[], object] = lambda: None,
    ) -> bool:
        """Make one write; True where it took effect. Raises LeadershipLost before anything is sent.

        `refused` is called where the server said no: then, other than after a lost answer, it surely took no effect.
        """
        # There must be no await between the check and the sending of the request but the connection's own.
        self._check()
        self._count(kind)
        try:
            answer = await call()
        except ApiError as error:
            if error.status < 500:
                refused()
            level = logging.DEBUG if error.conflict or error.not_found else logging.WARNING
            logger.log(level, "%s: %s", kind, error)
            return False
        except ApiUnreachable as error:
            logger.warning("%s: %s", kind, error)
            return False
        if answer.get("kind") == resource.kind:
            self._absorb(resource, answer)
        return True

    async def all(self, writes: Iterable[Coroutine[Any, Any, bool]]) -> list[bool]:
        """Make independent writes side by side; raises LeadershipLost once all of them have ended, if any did."""
        results = await asyncio.gather(*writes, return_exceptions=True)
        for result in results:
            if isinstance(result, LeadershipLost):
                raise result
        for result in results:
            if isinstance(result, BaseException):
                logger.error("a write failed unexpectedly", exc_info=result)
        return [result is True for result in results]

    async def write_grant(self, picture: NodePicture, grant: Grant, refused: Callable[[], object]) -> bool:
        """Put a grant into the node's GPUNode, which must not have changed since it was read; make it where missing.

        `refused` is called where it surely did not get there.
        """
        view = picture.gpu_node
        if view is None:
            labels = {} if picture.node is None else dict(picture.node.labels)
            body = gpu_node_object(picture.name, labels, grant)
            return await self._write("create-gpunode", GPU_NODES, lambda: self._session.create(GPU_NODES.path(), body))
        patch: JsonObject = {
            "metadata": {"resourceVersion": view.resource_version, "managedFields": UNTRACKED_FIELDS},
            "spec": grant_spec(grant),
        }
        if picture.node is not None and picture.node.labels != view.labels:
            patch["metadata"]["labels"] = {
                **{key: None for key in view.labels if key not in picture.node.labels},
                **picture.node.labels,
            }
        before = 0 if view.grant is None else view.grant.hold.limit_milliwatts
        kind = "lower-grant" if grant.hold.limit_milliwatts < before else "write-grant"
        path = GPU_NODES.path(name=picture.name)
        return await self._write(kind, GPU_NODES, lambda: self._session.patch(path, patch), refused)

    async def remove_startup_taint(self, picture: NodePicture) -> bool:
        """Open a node for pods, now that its agent has acknowledged its first grant."""
        path = NODES.path(name=picture.name)

        async def patch() -> JsonObject:
            node = await self._session.get(path)
            taints = [taint for taint in node["spec"].get("taints") or () if taint.get("key") != STARTUP_TAINT]
            body = {
                "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
                "spec": {"taints": taints or None},
            }
            self._check()
            return await self._session.patch(path, body)

        return await self._write("remove-taint", NODES, patch)

    async def create_incarnation(
        self, job: JobView, incarnation: int, nodes: tuple[tuple[str, int], ...]
    ) -> tuple[bool, str]:
        """Make the Service and the gated Job of an incarnation; second, the API server's words where it refuses them."""
        batch_job = incarnation_job(job, incarnation, nodes, self._training_socket_directory)
        service = incarnation_service(job, incarnation)
        await self._write(
            "create-service", SERVICES, lambda: self._session.create(SERVICES.path(job.namespace), service)
        )
        refused = ""

        async def create() -> JsonObject:
            nonlocal refused
            try:
                return await self._session.create(JOBS.path(job.namespace), batch_job)
            except ApiError as error:
                if error.invalid:
                    refused = error.message
                raise

        made = await self._write("create-incarnation", JOBS, create)
        return made, refused

    async def stop_incarnation(self, action: StopIncarnation) -> bool:
        """Delete an incarnation's Job, and with it, by the garbage collector, its pods and their Service."""
        item = action.incarnation
        options = {"propagationPolicy": "Background", "preconditions": {"uid": item.uid}}
        done = await self._write(
            "stop-incarnation",
            JOBS,
            lambda: self._session.delete(JOBS.path(item.namespace, item.name), options),
        )
        await self._write(
            "delete-service", SERVICES, lambda: self._session.delete(SERVICES.path(item.namespace, item.name))
        )
        return done

    async def open_gates(self, action: OpenGates, hostnames: Mapping[str, str]) -> bool:
        """Give each pod its node, by the node's hostname label, and take its gate away; True where all took effect."""
        results = await self.all(self._open_gate(pod, hostnames.get(node, node)) for pod, node in action.pods)
        return all(results)

    async def _open_gate(self, pod: PodView, hostname: str) -> bool:
        path = PODS.path(pod.namespace, pod.name)

        async def patch() -> JsonObject:
            raw = await self._session.get(path)
            gates = raw["spec"].get("schedulingGates") or []
            selector = raw["spec"].get("nodeSelector") or {}
            body = [
                # The pod that was decided on: not one of the same name made since, and not one changed by another.
                {"op": "test", "path": "/metadata/uid", "value": pod.uid},
                {"op": "test", "path": "/metadata/resourceVersion", "value": raw["metadata"]["resourceVersion"]},
                {"op": "add", "path": "/spec/nodeSelector", "value": {**selector, LABEL_HOSTNAME: hostname}},
                {
                    "op": "replace",
                    "path": "/spec/schedulingGates",
                    "value": [gate for gate in gates if gate.get("name") != PLACEMENT_GATE],
                },
            ]
            self._check()
            return await self._session.patch(path, body, JSON_PATCH)

        return await self._write("open-gate", PODS, patch)

    async def write_job_status(self, job: JobView, status: JsonObject) -> bool:
        path = ENERGY_AWARE_JOBS.path(job.namespace, job.name, "status")
        body = {"metadata": {"uid": job.uid}, "status": status}
        return await self._write("job-status", ENERGY_AWARE_JOBS, lambda: self._session.patch(path, body))

    async def write_cap_status(self, cap: CapView, status: JsonObject) -> bool:
        path = POWER_CAPS.path(name=cap.name, subresource="status")
        body = {"metadata": {"uid": cap.uid}, "status": status}
        return await self._write("cap-status", POWER_CAPS, lambda: self._session.patch(path, body))

    async def write_profile(
        self, profile: JsonObject, status: JsonObject, *, exists: bool, gone: Callable[[], object]
    ) -> bool:
        """Put what was learned into an EnergyProfile, made first unless it `exists`; `gone` is called where it does not."""
        metadata = profile["metadata"]
        if not exists:
            collection = ENERGY_PROFILES.path(metadata["namespace"])
            await self._write("create-profile", ENERGY_PROFILES, lambda: self._session.create(collection, profile))
        path = ENERGY_PROFILES.path(metadata["namespace"], metadata["name"], "status")

        async def patch() -> JsonObject:
            try:
                return await self._session.patch(path, {"status": status})
            except ApiError as error:
                if error.not_found:
                    gone()
                raise

        return await self._write("profile-status", ENERGY_PROFILES, patch)

    async def delete_job(self, job: JobView) -> bool:
        """Remove a finished EnergyAwareJob whose time to live is over."""
        path = ENERGY_AWARE_JOBS.path(job.namespace, job.name)
        options = {"propagationPolicy": "Background", "preconditions": {"uid": job.uid}}
        return await self._write("delete-finished-job", ENERGY_AWARE_JOBS, lambda: self._session.delete(path, options))
