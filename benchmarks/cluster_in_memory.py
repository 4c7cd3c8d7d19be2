"""A cluster without network and JSON around an operator: its session, and what agents, controllers and kubelets write."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from flyball_api.names import ANNOTATION_ALLOCATION, LABEL_COMPLETION_INDEX, LABEL_JOB_UID
from flyball_kube.server_clock import ServerClock

from tests.support.operator_objects import raw_device
from tests.support.schedules.memory_api import Change, Json, MemoryApi, plural_of

GPUS = 8  # of each node
BOOKMARK_SECONDS = 1.0


class Session:
    """Calls to the API server in memory."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self.server_clock = ServerClock()
        self.writes: Counter[str] = Counter()
        self._watches: list[asyncio.Queue[Change]] = []

    @property
    def unread(self) -> bool:
        """Whether a watch has changes that its informer has not taken in."""
        return any(not changes.empty() for changes in self._watches)

    def guarded(self, before_sending: Callable[[], None]) -> Session:
        return self

    def with_turns_of_its_own(self, connections: int) -> Session:
        return self

    async def _ask(self, method: str, path: str, body: Any = None, **params: str) -> Json:
        if method != "GET":
            self.writes[f"{plural_of(path)}{'/status' * path.endswith('/status')}"] += 1
        if "dryRun" in params:
            return {}
        if isinstance(body, list):  # a gate is opened
            return opened(self._api, path.rsplit("/", 1)[-1])
        return self._api.handle(method, path, params, body)

    async def get(self, path: str, **params: str) -> Json:
        return await self._ask("GET", path, **params)

    async def create(self, path: str, body: Json, **params: str) -> Json:
        return await self._ask("POST", path, body, **params)

    async def replace(self, path: str, body: Json) -> Json:
        return await self._ask("PUT", path, body)

    async def patch(self, path: str, body: Any, content_type: str = "") -> Json:
        return await self._ask("PATCH", path, body)

    async def delete(self, path: str, body: Json | None = None) -> Json:
        return await self._ask("DELETE", path, body)

    async def page(self, path: str, params: Mapping[str, str], max_bytes: int) -> Json:
        return await self.get(path, **params)

    async def watch(self, path: str, *, params: dict[str, str], **more: object) -> AsyncIterator[Json]:
        changes: asyncio.Queue[Change] = asyncio.Queue()
        self._watches.append(changes)
        plural, version = plural_of(path), int(params["resourceVersion"])
        for change in self._api.open(plural, version, changes.put_nowait):
            changes.put_nowait(change)
        while True:
            try:
                # What has come is taken first: a bookmark must not overtake it, nor may a cancellation be lost with it.
                change = (
                    changes.get_nowait()
                    if not changes.empty()
                    else await asyncio.wait_for(changes.get(), BOOKMARK_SECONDS)
                )
            except TimeoutError:  # on a slow machine a quiet copy would else grow too old to govern on
                if not changes.empty():
                    continue
                yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self._api.version)}}}
                continue
            yield {"type": change.kind, "object": {**change.item, "metadata": dict(change.item["metadata"])}}


def opened(api: MemoryApi, name: str) -> Json:
    """A pod whose gate is taken away is bound to the node that it was placed on, and runs."""
    pod = api.get("pods", name)
    assert pod is not None
    made_by = api.get("jobs", pod["metadata"]["ownerReferences"][0]["name"])
    assert made_by is not None
    placed = json.loads(made_by["metadata"]["annotations"][ANNOTATION_ALLOCATION])["nodes"]
    node, _ = placed[int(pod["metadata"]["labels"][LABEL_COMPLETION_INDEX])]
    spec = {**pod["spec"], "nodeName": node, "schedulingGates": []}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return api.put("pods", {**pod, "spec": spec, "status": status})


class Others:
    """Agents, Job controller and kubelets: each answers what the operator writes at once, and agents report."""

    def __init__(self) -> None:
        self._seen: list[Change] = []
        self.api = MemoryApi(self._seen.append)
        self.energy: Counter[str] = Counter()
        self.iterations: Counter[str] = Counter()

    def react(self) -> None:
        """Answer what has been written since the last call, as everybody does who watches."""
        seen, self._seen[:] = list(self._seen), []
        for change in seen:
            self._changed(change)

    def _changed(self, change: Change) -> None:
        item, metadata = change.item, change.item["metadata"]
        if change.plural == "jobs" and change.kind == "ADDED":
            for index in range(item["spec"]["completions"]):
                self._make_pod(item, index)
        elif change.plural == "jobs" and change.kind == "DELETED":
            self._leave(metadata["uid"])
        elif change.plural == "energyawarejobs" and change.kind == "DELETED":
            uid = metadata["uid"]
            for name, batch in list(self.api.items.get("jobs", {}).items()):
                if batch["metadata"]["labels"][LABEL_JOB_UID] == uid:
                    self.api.remove("jobs", name)
        elif change.plural == "gpunodes" and change.kind != "DELETED":
            acknowledged = (item.get("status") or {}).get("acknowledged") or {}
            if acknowledged.get("generation") != item["spec"]["generation"]:
                self.report(metadata["name"])

    def _make_pod(self, batch: Json, index: int) -> None:
        template, metadata = batch["spec"]["template"], batch["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
        labels = {**template["metadata"]["labels"], LABEL_COMPLETION_INDEX: str(index)}
        name = f"{metadata['name']}-{index}"
        made = {"name": name, "namespace": metadata["namespace"], "labels": labels}
        made["ownerReferences"] = [{**owner, "controller": True}]
        self.api.put("pods", {"metadata": made, "spec": template["spec"], "status": {"phase": "Pending"}})

    def _leave(self, uid: str) -> None:
        for name, pod in list(self.api.items.get("pods", {}).items()):
            if pod["metadata"]["ownerReferences"][0]["uid"] == uid:
                self.api.remove("pods", name)

    def window(self, granted: Json) -> Json:
        """What a pod with this grant measured of its job's last iterations."""
        return {
            "microsecondsPerIteration": 200_000,
            "millijoulesPerIteration": int(granted["powerLimitMilliwatts"] * granted["gpus"] / 5),
            "clockMegahertz": 1200,
            "localBatchSize": 16,
        }

    def report(self, name: str, seconds: float = 0.0, moment: str = "") -> None:
        """The agent of a node has set what was granted, and says what its GPUs and pods have done in so many seconds."""
        node = self.api.get("gpunodes", name)
        assert node is not None
        spec = node["spec"]
        devices: list[Json] = []
        jobs: list[Json] = []
        for granted in spec["jobs"]:
            pod = self.api.get("pods", granted["podName"])
            if pod is None or pod["spec"].get("nodeName") != name:
                continue
            limit, key = granted["powerLimitMilliwatts"], granted["uid"]
            for _ in range(granted["gpus"]):
                limits = {"enforcedMilliwatts": limit, "requestedMilliwatts": limit}
                devices.append(raw_device(len(devices), pod=("team", granted["podName"]), **limits))
            self.energy[key] += int(seconds * limit * granted["gpus"])
            self.iterations[key] += int(seconds * 5)
            jobs.append(
                {
                    **{
                        field: granted[field]
                        for field in ("namespace", "name", "uid", "incarnation", "podName", "gpus")
                    },
                    "iterations": self.iterations[key],
                    "energyMillijoules": self.energy[key],
                    **self.window(granted),
                    **({"lastReportTime": moment} if moment else {}),
                }
            )
        devices += [raw_device(index) for index in range(len(devices), GPUS)]
        status = {
            "bootID": "boot-1",
            "driverSession": "driver-1",
            "mode": "Granted",
            "devices": devices,
            "jobs": jobs,
            "acknowledged": {
                "epoch": spec["epoch"],
                "generation": spec["generation"],
                "time": "2030-06-01T12:00:00Z",
                "limitsMilliwatts": spec["boundMilliwatts"],
                "boundMilliwatts": spec["boundMilliwatts"],
                "bootID": "boot-1",
                "driverSession": "driver-1",
            },
        }
        self.api.handle("PATCH", f"/apis/flyball.dev/v1alpha1/gpunodes/{name}/status", {}, {"status": status})
