"""PowerCaps as the API reports them, and what bounds a sample of the hardware between two of its answers."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

POWER_CAPS = "/apis/flyball.dev/v1alpha1/powercaps"
NODES = "/api/v1/nodes"


@dataclass(frozen=True, slots=True)
class CapClaim:
    """One PowerCap as one answer of the API reports it; watts include `overhead_watts` outside the GPUs.

    `current`: the status is about the present generation of the spec.
    """

    name: str
    requested_watts: int | None
    effective_watts: int | None
    enforced: bool
    current: bool
    hard: bool
    overhead_watts: int
    selector: Mapping[str, Any]

    @classmethod
    def read(cls, cap: Mapping[str, Any]) -> CapClaim:
        """From a PowerCap as the API gives it. Raises KeyError or TypeError for anything else."""
        metadata, spec, status = cap["metadata"], cap["spec"], cap.get("status") or {}
        reported = {condition["type"]: condition for condition in status.get("conditions") or []}.get("Enforced", {})
        about = reported.get("observedGeneration", status.get("observedGeneration"))
        effective = status.get("effectiveWatts")
        return cls(
            name=metadata["name"],
            requested_watts=spec.get("watts"),
            effective_watts=effective,
            enforced=reported.get("status") == "True" and effective is not None,
            current=about is None or about == metadata.get("generation"),
            hard=spec.get("enforcement", "Hard") == "Hard",
            overhead_watts=spec.get("staticOverheadWatts", 0),
            selector=spec.get("nodeSelector") or {},
        )

    @property
    def bound_watts(self) -> int | None:
        """The watts that the nodes may be held to; None where they cannot be known from this answer."""
        if self.effective_watts is None or self.current:
            return self.effective_watts
        return None if self.requested_watts is None else max(self.effective_watts, self.requested_watts)


@dataclass(frozen=True, slots=True)
class Answer:
    """The PowerCaps as one request saw them, at some instant between sending and receiving (CLOCK_BOOTTIME)."""

    sent_ns: int
    received_ns: int
    claims: Mapping[str, CapClaim]


def bound_between(before: CapClaim, after: CapClaim | None) -> int | None:
    """The watts that a sample taken between two answers is held to; None where it is not judged.

    The rules are those of the package's docstring.
    """
    bound = before.bound_watts
    if not before.enforced or bound is None or after is None:
        return None
    later = after.bound_watts
    if later is not None and later > bound:
        return later
    if after.enforced:
        return bound
    lowered = any(watts is not None and watts < bound for watts in (after.effective_watts, after.requested_watts))
    return bound if lowered else None


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector (matchLabels, matchExpressions) takes a node with these labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for need in selector.get("matchExpressions") or []:
        value, values = labels.get(need["key"]), need.get("values") or []
        holds = {
            "In": value is not None and value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not holds[need["operator"]]:
            return False
    return True


class PlainApi:
    """GET requests with the credentials of a kubeconfig's current context (client certificate or token), kept alive."""

    def __init__(self, kubeconfig: Path, timeout_seconds: float = 5.0) -> None:
        settings = yaml.safe_load(kubeconfig.read_text())
        context = _named(settings["contexts"], settings["current-context"])["context"]
        cluster = _named(settings["clusters"], context["cluster"])["cluster"]
        user = _named(settings["users"], context["user"])["user"]
        self._address = urllib.parse.urlsplit(cluster["server"])
        authority = cluster.get("certificate-authority-data")
        self._tls = ssl.create_default_context(
            cafile=None if authority else str(kubeconfig.parent / cluster["certificate-authority"]),
            cadata=base64.b64decode(authority).decode() if authority else None,
        )
        if "client-certificate-data" in user:
            with tempfile.NamedTemporaryFile() as pair:  # the ssl module takes files only
                pair.write(base64.b64decode(user["client-certificate-data"]) + b"\n")
                pair.write(base64.b64decode(user["client-key-data"]))
                pair.flush()
                self._tls.load_cert_chain(pair.name)
        elif "client-certificate" in user:
            certificate, key = (str(kubeconfig.parent / user[name]) for name in ("client-certificate", "client-key"))
            self._tls.load_cert_chain(certificate, key)
        self._headers = {"Accept": "application/json"}
        if "token" in user:
            self._headers["Authorization"] = f"Bearer {user['token']}"
        self._timeout = timeout_seconds
        self._connection: http.client.HTTPSConnection | None = None

    def list(self, path: str) -> list[dict[str, Any]]:
        """The items of a collection. Raises OSError or http.client.HTTPException where no good answer comes."""
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(
                self._address.hostname or "", self._address.port, timeout=self._timeout, context=self._tls
            )
        try:
            self._connection.request("GET", path, headers=self._headers)
            response = self._connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self._connection = None
            raise
        if response.status != 200:
            raise OSError(f"GET {path}: HTTP {response.status}: {body[:300].decode(errors='replace')}")
        items: list[dict[str, Any]] = json.loads(body).get("items") or []
        return items


def _named(entries: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)
