"""A small blocking client of the Kubernetes API, for setting clusters up and for tests; threads may share it.

The operator and the agents use `flyball_kube`'s session; this client raises the same errors and needs no event loop, so
that a fixture, a command and a thread pool can all call it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
import urllib3
import yaml
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.http import json_depth

Json = dict[str, Any]

CONNECTIONS = 16
PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
POLL_SECONDS = 0.05
# How often an object that is awaited is asked for although its changes are watched: a condition may look elsewhere, too.
WATCH_SECONDS = 2
FIELD_MANAGER = "flyball-devcluster"


class ApiClient:
    """The API of one cluster as one user.

    Every method raises `ApiError` where the server refuses and `ApiUnreachable` where no answer comes in time.
    """

    def __init__(
        self,
        server: str,
        *,
        authority_file: Path | None = None,
        authority_pem: str | None = None,
        certificate_file: Path | None = None,
        key_file: Path | None = None,
        token: str | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        self.server = server.rstrip("/")
        self._timeout = urllib3.Timeout(connect=timeout_seconds, read=timeout_seconds)
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool = urllib3.PoolManager(
            maxsize=CONNECTIONS,
            block=False,
            retries=False,
            ca_certs=str(authority_file) if authority_file is not None else None,
            ca_cert_data=authority_pem,
            cert_file=str(certificate_file) if certificate_file is not None else None,
            key_file=str(key_file) if key_file is not None else None,
        )
        self._resources: dict[tuple[str, str], tuple[str, bool]] = {}
        self._resources_lock = threading.Lock()

    def close(self) -> None:
        self._pool.clear()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        content_type: str | None = None,
    ) -> Any:
        """One request; the decoded answer (text where it is not JSON)."""
        url = self.server + path
        if query:
            url += "?" + urllib.parse.urlencode({name: value for name, value in query.items() if value is not None})
        headers = self._headers if content_type is None else {**self._headers, "Content-Type": content_type}
        data = orjson.dumps(body) if body is not None else None
        try:
            response = self._pool.request(method, url, body=data, headers=headers, timeout=self._timeout)
        except urllib3.exceptions.HTTPError as error:
            raise ApiUnreachable(f"{method} {path}: {error}") from error
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        answer = json_depth.loads(response.data) if is_json else response.data.decode(errors="replace")
        if response.status >= 400:
            raise ApiError.from_answer(response.status, answer, f"{method} {path}")
        return answer

    def get(self, path: str, **query: Any) -> Json:
        """One object, by its path (`/api/v1/nodes/node-000`)."""
        answer: Json = self.request("GET", path, query=query)
        return answer

    def get_or_none(self, path: str) -> Json | None:
        """One object; None where there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    def list_objects(self, path: str, **query: Any) -> list[Json]:
        """The objects of a collection, in full (`labelSelector=...`, `fieldSelector=...`)."""
        items: list[Json] = self.request("GET", path, query=query).get("items") or []
        return items

    def create(self, path: str, body: Json) -> Json:
        """Create in a collection (or post to a subresource)."""
        answer: Json = self.request("POST", path, body, query={"fieldManager": FIELD_MANAGER})
        return answer

    def replace(self, path: str, body: Json) -> Json:
        answer: Json = self.request("PUT", path, body, query={"fieldManager": FIELD_MANAGER})
        return answer

    def patch(self, path: str, body: Any, *, kind: str = "merge", **query: Any) -> Json:
        """Patch an object; `kind` is one of `merge`, `json`, `strategic`, `apply`."""
        if kind == "apply":
            query = {"fieldManager": FIELD_MANAGER, "force": "true", **query}
        answer: Json = self.request("PATCH", path, body, query=query, content_type=PATCH_TYPES[kind])
        return answer

    def delete(
        self, path: str, *, grace_seconds: int | None = None, propagation: str | None = None, missing_ok: bool = True
    ) -> None:
        """Delete an object; `propagation` is one of `Background`, `Foreground`, `Orphan`."""
        body: Json = {}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        if propagation is not None:
            body["propagationPolicy"] = propagation
        try:
            self.request("DELETE", path, body)
        except ApiError as error:
            if not (missing_ok and error.not_found):
                raise

    def delete_collection(self, path: str, *, grace_seconds: int | None = None, **query: Any) -> None:
        body = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self.request("DELETE", path, body, query=query)

    def for_each(self, call: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
        """`call` for each value, at most `CONNECTIONS` at a time; the results in order. The first error is raised."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            return list(pool.map(call, values))

    def wait_for(
        self, path: str, condition: Callable[[Json | None], bool], *, timeout_seconds: float = 30.0, what: str = ""
    ) -> Json:
        """The object at `path` once `condition` holds for it.

        The condition gets None for an object that does not exist; where that is what it waits for, the result is empty.
        A collection's path gives the condition the whole list. A server that cannot be reached, or cannot reach its
        store, is asked again. Raises TimeoutError with the last state seen, ApiError where the request is refused.
        """
        deadline = time.monotonic() + timeout_seconds
        failure: Exception | None = None
        current: Json | None = None
        while True:
            asked = time.monotonic()
            try:
                current, failure = self.get_or_none(path), None
            except ApiUnreachable as error:
                failure = error
            except ApiError as error:
                if error.status < 500 and error.status != 429:
                    raise
                failure = error
            if failure is None and condition(current):
                return current or {}
            answered = time.monotonic()
            if answered >= deadline:
                seen = failure or (yaml.safe_dump(_brief(current)) if current is not None else "it does not exist")
                raise TimeoutError(
                    f"{path}: not {what or 'as awaited'} within {timeout_seconds:g} s; last seen:\n{seen}"
                ) from failure
            version = None if failure or current is None else current.get("metadata", {}).get("resourceVersion")
            if version and current is not None and "items" not in current and deadline - answered > 1:
                for current in self._changes(path, version, min(WATCH_SECONDS, deadline - answered)):
                    if condition(current):
                        return current or {}
            # A large collection is asked for less often, so that watching does not slow what is awaited.
            time.sleep(max(POLL_SECONDS, 3 * (answered - asked)))

    def _changes(self, path: str, version: str, seconds: float) -> Iterator[Json | None]:
        """An object after each change since this version of it, None where it is gone, for so long at the most.

        It ends early where the server tells of no changes, or of none since that version any more.
        """
        collection, _, name = path.rpartition("/")
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": version,
            "timeoutSeconds": math.ceil(seconds),
        }
        url = f"{self.server}{collection}?{urllib.parse.urlencode(query)}"
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            answer = self._pool.request("GET", url, headers=self._headers, timeout=self._timeout, preload_content=False)
            with contextlib.closing(answer):
                left = b""
                for chunk in answer.stream() if answer.status == HTTPStatus.OK else ():
                    *lines, left = (left + chunk).split(b"\n")
                    for event in map(json_depth.loads, lines):
                        if event["type"] == "ERROR":
                            return
                        yield None if event["type"] == "DELETED" else event["object"]

    def wait_gone(self, path: str, *, timeout_seconds: float = 30.0) -> None:
        """Wait until the object is gone from the API."""
        self.wait_for(path, lambda current: current is None, timeout_seconds=timeout_seconds, what="gone")

    def path_of(self, manifest: Json) -> str:
        """The path of the object that a manifest describes, by the server's own discovery.

        Raises LookupError where the server has no such kind.
        """
        collection, namespaced = self._resource(manifest["apiVersion"], manifest["kind"])
        name = manifest["metadata"]["name"]
        if not namespaced:
            return f"{collection}/{name}"
        prefix, _, plural = collection.rpartition("/")
        return f"{prefix}/namespaces/{manifest['metadata'].get('namespace', 'default')}/{plural}/{name}"

    def apply(self, manifest: Json) -> Json:
        """Server-side apply of one manifest, taking over fields that others own."""
        return self.patch(self.path_of(manifest), manifest, kind="apply")

    def _resource(self, api_version: str, kind: str) -> tuple[str, bool]:
        key = (api_version, kind)
        with self._resources_lock:
            if key not in self._resources:
                base = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
                for resource in (self.get_or_none(base) or {"resources": []})["resources"]:
                    if "/" not in resource["name"]:
                        found = (f"{base}/{resource['name']}", bool(resource["namespaced"]))
                        self._resources[(api_version, resource["kind"])] = found
            if key not in self._resources:
                raise LookupError(f"the API server serves no kind {kind} in {api_version}")
            return self._resources[key]


def _brief(manifest: Json) -> Any:
    """An object without its bookkeeping, for messages; of a collection the names."""
    if "items" in manifest:
        names = [item["metadata"]["name"] for item in manifest["items"]]
        return f"{len(names)} objects" + "".join(f", {name}" for name in names[:10])
    metadata = {name: value for name, value in manifest.get("metadata", {}).items() if name != "managedFields"}
    return {**manifest, "metadata": metadata}
