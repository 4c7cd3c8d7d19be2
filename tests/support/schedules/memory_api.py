"""An API server in memory, as far as the power protocol leans on one.

Versions count all writes of any kind; a patch or a put over another version is refused; a status is changed by its
subresource alone; a deletion waits for finalizers; watches begin at a version and bring every change after it in order;
and a GPUNode's spec changes only as the rules of its CRD allow. Objects are never changed in place: what was handed out
stays as it was. `restore` puts the whole store, its versions too, back to what it was, as an etcd backup does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from flyball_kube.errors import ApiError
from flyball_kube.resources import GPU_NODES

Json = dict[str, Any]

# The rules of crds/gpunodes.yaml that say what a spec may become; a test holds these to be the CRD's.
COMMITTED_RULE = (
    "(self.spec.committedMilliwatts >= oldSelf.spec.committedMilliwatts && "
    "self.spec.committedExpectedMilliwatts >= oldSelf.spec.committedExpectedMilliwatts) || "
    "(has(self.status) && has(self.status.acknowledged) && "
    "self.status.acknowledged.epoch == oldSelf.spec.epoch && "
    "self.status.acknowledged.generation == oldSelf.spec.generation && "
    "(!has(self.status.acknowledged.digest) || !has(oldSelf.spec.digest) || "
    "!has(self.status.acknowledged.boundBy) || !has(self.status.agentVersion) || "
    "self.status.acknowledged.boundBy != self.status.agentVersion || "
    "self.status.acknowledged.digest == oldSelf.spec.digest))"
)
VERSION_RULE = "self.epoch > oldSelf.epoch || (self.epoch == oldSelf.epoch && self.generation >= oldSelf.generation)"
CHANGE_RULE = "self.epoch != oldSelf.epoch || self.generation != oldSelf.generation || self == oldSelf"


def _broken_rule(before: Json, after: Json) -> str:
    """The rule of the CRD that a change of a GPUNode breaks; empty where it breaks none."""
    old, new = before.get("spec"), after["spec"]
    if new["committedMilliwatts"] < new["boundMilliwatts"]:
        return "committedMilliwatts is below boundMilliwatts"
    if not old or new == old:
        return ""
    version, replaced = (new["epoch"], new["generation"]), (old["epoch"], old["generation"])
    if version < replaced:
        return VERSION_RULE
    if version == replaced:
        return CHANGE_RULE
    status = before.get("status", {})
    kept = all(new[name] >= old[name] for name in ("committedMilliwatts", "committedExpectedMilliwatts"))
    if not kept and not (status.get("acknowledged") and _acknowledges(status, old)):
        return COMMITTED_RULE
    return ""


def _acknowledges(status: Json, spec: Json) -> bool:
    """Whether this status acknowledges that spec; a digest counts only beside the version of the agent that gave it."""
    acknowledged = status["acknowledged"]
    given, wanted = acknowledged.get("digest"), spec.get("digest")
    given_by, agent = acknowledged.get("boundBy"), status.get("agentVersion")
    if given_by is None or agent is None or given_by != agent:
        given = None
    versions = all(acknowledged[name] == spec[name] for name in ("epoch", "generation"))
    return versions and (given is None or wanted is None or given == wanted)


def merged(target: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396), applied to a copy."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value) if isinstance(value, dict) else value
    return result


@dataclass(frozen=True)
class Change:
    """One change of the store: ADDED, MODIFIED or DELETED, and the object after it (or as it was last)."""

    version: int
    plural: str
    kind: str
    item: Json


@dataclass(frozen=True)
class Backup:
    """The store as it was."""

    version: int
    items: dict[str, dict[str, Json]]


class MemoryApi:
    """The store and its rules; `on_change` is called after each change, before anybody else learns of it."""

    def __init__(self, on_change: Callable[[Change], None]) -> None:
        self.items: dict[str, dict[str, Json]] = {}
        self.version = 100
        self.restores = 0
        self.changes: list[Change] = []
        self._streams: dict[str, list[Callable[[Change], None]]] = {}
        self._on_change = on_change
        self._made = 0

    def get(self, plural: str, name: str) -> Json | None:
        return self.items.get(plural, {}).get(name)

    def handle(self, method: str, path: str, params: dict[str, str], body: Any) -> Json:
        """Answer one request; raises ApiError where the API server would refuse it."""
        plural, name, subresource = _parts(path)
        request = f"{method} {path}"
        if method == "POST":
            return self._create(plural, body, request)
        if name is None:
            return self._list(plural, params)
        item = self.get(plural, name)
        if item is None:
            raise ApiError(404, "NotFound", f"{plural} {name} not found", request)
        if method == "GET":
            return item
        if method == "DELETE":
            return self._delete(plural, name, item, (body or {}).get("preconditions") or {}, request)
        return self._update(plural, name, item, method, subresource, body, request)

    def open(self, plural: str, version: int, stream: Callable[[Change], None]) -> list[Change]:
        """Begin to tell a stream of each change of one kind; what has changed since `version` is returned."""
        self._streams.setdefault(plural, []).append(stream)
        since = self.changes[bisect_right(self.changes, version, key=lambda change: change.version) :]
        return [change for change in since if change.plural == plural]

    def close(self, plural: str, stream: Callable[[Change], None]) -> None:
        self._streams[plural].remove(stream)

    def backup(self) -> Backup:
        return Backup(self.version, {plural: dict(items) for plural, items in self.items.items()})

    def restore(self, backup: Backup) -> None:
        """Put everything back to what it was; nobody who watches is told."""
        self.restores += 1
        self.version = backup.version
        self.items = {plural: dict(items) for plural, items in backup.items.items()}
        self.changes = [change for change in self.changes if change.version <= backup.version]

    # --- what the test itself does to objects, as a kubelet or a person would --------------------------------------

    def put(self, plural: str, item: Json) -> Json:
        """Create an object, or replace it whole, status and all."""
        name = item["metadata"]["name"]
        before = self.get(plural, name)
        metadata = dict(item["metadata"])
        if before is None:
            metadata = {**self._new_metadata(), **metadata}
        else:
            metadata = {**before["metadata"], **metadata}
            metadata["generation"] = before["metadata"]["generation"] + (before.get("spec") != item.get("spec"))
        return self._store("ADDED" if before is None else "MODIFIED", plural, {**item, "metadata": metadata})

    def remove(self, plural: str, name: str) -> None:
        """Delete an object as a person does: its finalizers are waited for."""
        item = self.get(plural, name)
        if item is not None:
            self._delete(plural, name, item, {}, f"DELETE {plural}/{name}")

    def force_away(self, plural: str, name: str) -> None:
        """Delete an object at once, as a person does who takes its finalizers away."""
        item = self.get(plural, name)
        if item is not None:
            bare = {key: value for key, value in item["metadata"].items() if key != "finalizers"}
            self._store("DELETED", plural, {**item, "metadata": bare})

    # --- requests ----------------------------------------------------------------------------------------------------

    def _list(self, plural: str, params: dict[str, str]) -> Json:
        only = selected_name(params)
        items = [item for name, item in self.items.get(plural, {}).items() if only in (None, name)]
        return {"kind": "List", "metadata": {"resourceVersion": str(self.version)}, "items": items}

    def _create(self, plural: str, body: Json, request: str) -> Json:
        name = body["metadata"]["name"]
        if self.get(plural, name) is not None:
            raise ApiError(409, "AlreadyExists", f"{plural} {name} exists", request)
        metadata = {**body["metadata"], **self._new_metadata()}
        item = {key: value for key, value in body.items() if key != "status"} | {"metadata": metadata}
        return self._store("ADDED", plural, item)

    def _update(
        self, plural: str, name: str, item: Json, method: str, subresource: str | None, body: Json, request: str
    ) -> Json:
        metadata = item["metadata"]
        for key in ("uid", "resourceVersion"):
            wanted = body.get("metadata", {}).get(key)
            if wanted is not None and wanted != metadata[key]:
                raise ApiError(409, "Conflict", f"{plural} {name}: {key} is {metadata[key]}, not {wanted}", request)
        whole = merged(item, body) if method == "PATCH" else body
        if subresource == "status":
            after = {**item, "status": whole.get("status", {})}
        else:
            own = {key: value for key, value in whole.items() if key not in ("status", "metadata")}
            changed = {
                key: value for key, value in whole["metadata"].items() if key in ("labels", "annotations", "finalizers")
            }
            kept = {key: value for key, value in metadata.items() if key not in ("labels", "annotations", "finalizers")}
            after = {**own, "metadata": {**kept, **changed}}
            if "status" in item:
                after["status"] = item["status"]
        if after == item:
            return item
        if after.get("spec") != item.get("spec"):
            if plural == GPU_NODES.plural and (rule := _broken_rule(item, after)):
                raise ApiError(422, "Invalid", f"{plural} {name}: {rule}", request)
            after["metadata"] = {**after["metadata"], "generation": metadata["generation"] + 1}
        if "deletionTimestamp" in metadata and not after["metadata"].get("finalizers"):
            return self._store("DELETED", plural, after)
        return self._store("MODIFIED", plural, after)

    def _delete(self, plural: str, name: str, item: Json, preconditions: Json, request: str) -> Json:
        metadata = item["metadata"]
        if preconditions.get("uid") not in (None, metadata["uid"]):
            raise ApiError(409, "Conflict", f"{plural} {name}: another uid", request)
        if metadata.get("finalizers"):
            if "deletionTimestamp" in metadata:
                return item
            marked = {**metadata, "deletionTimestamp": "2030-06-01T12:00:00Z"}
            return self._store("MODIFIED", plural, {**item, "metadata": marked})
        return self._store("DELETED", plural, item)

    def _new_metadata(self) -> Json:
        self._made += 1
        return {"uid": f"uid-{self._made}", "generation": 1, "creationTimestamp": "2030-06-01T12:00:00Z"}

    def _store(self, kind: str, plural: str, item: Json) -> Json:
        self.version += 1
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
        name = item["metadata"]["name"]
        if kind == "DELETED":
            del self.items[plural][name]
        else:
            self.items.setdefault(plural, {})[name] = item
        change = Change(self.version, plural, kind, item)
        self.changes.append(change)
        self._on_change(change)
        for stream in list(self._streams.get(plural, ())):
            stream(change)
        return item


def selected_name(params: dict[str, str]) -> str | None:
    """The one object that a list or a watch is of; None: all of them."""
    selector = params.get("fieldSelector", "")
    return selector.removeprefix("metadata.name=") if selector.startswith("metadata.name=") else None


@lru_cache(maxsize=1024)
def _parts(path: str) -> tuple[str, str | None, str | None]:
    """A path's plural name, object and subresource."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    plural, name, subresource = [*rest, None, None][:3]
    assert plural is not None
    return plural, name, subresource


def plural_of(path: str) -> str:
    return _parts(path)[0]
