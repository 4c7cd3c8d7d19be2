"""The name server of real nodes: what it answers, what it does not, and that no datagram harms it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Any

import pytest
from flyball_kube.errors import ApiUnreachable
from flyball_testbed.realnode.dns import ClusterNames, answer
from hypothesis import given
from hypothesis import strategies as st

ONE, OTHER = IPv4Address("10.64.1.2"), IPv4Address("10.64.2.2")
A, AAAA = 1, 28


def query(name: str, kind: int = A, flags: int = 0x0100) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 7, flags, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def said(reply: bytes | None) -> tuple[int, list[IPv4Address]]:
    """The status of an answer and its addresses."""
    assert reply is not None
    number, flags, questions, answers, _, _ = struct.unpack_from(">HHHHHH", reply)
    assert (number, questions) == (7, 1)
    assert flags & 0x8000
    records = reply[len(reply) - 16 * answers :] if answers else b""
    return flags & 15, [IPv4Address(records[at + 12 : at + 16]) for at in range(0, len(records), 16)]


def test_a_name_has_its_addresses_whatever_its_case_and_none_of_another_kind() -> None:
    known = {"fit-1-0.fit-1.default.svc.cluster.local": [ONE]}
    assert said(answer(query("fit-1-0.FIT-1.default.svc.cluster.local"), known.get)) == (0, [ONE])
    assert said(answer(query("fit-1-0.fit-1.default.svc.cluster.local", AAAA), known.get)) == (0, [])
    assert said(answer(query("elsewhere.example"), known.get)) == (3, [])


def test_an_api_server_that_is_away_is_a_failure_and_not_a_missing_name() -> None:
    def away(name: str) -> Sequence[IPv4Address] | None:
        raise ApiUnreachable("no answer")

    assert said(answer(query("a.b.svc.cluster.local"), away)) == (2, [])


@given(st.binary(max_size=600))
def test_no_datagram_harms_it(datagram: bytes) -> None:
    reply = answer(datagram, lambda name: [ONE])
    assert reply is None or reply[:2] == datagram[:2]


@given(st.integers(0, 300))
def test_what_is_broken_off_is_answered_by_nobody_or_whole(kept: int) -> None:
    whole = query("fit-1-0.fit-1.default.svc.cluster.local")
    reply = answer(whole[:kept], lambda name: [ONE])
    assert (reply is not None) == (kept >= len(whole))


class Api:
    """Of the API as much as is asked: Services and endpoints."""

    def __init__(self, address: str, endpoints: Sequence[dict[str, Any]] = ()) -> None:
        self._service = {"spec": {"clusterIP": address}}
        self._endpoints = list(endpoints)

    def list_objects(self, path: str, **query: str) -> list[dict[str, Any]]:
        if path == "/api/v1/namespaces/default/services" and query == {"fieldSelector": "metadata.name=fit"}:
            return [self._service]
        if path.endswith("/default/endpointslices") and query == {"labelSelector": "kubernetes.io/service-name=fit"}:
            return [{"addressType": "IPv4", "endpoints": self._endpoints}]
        return []


ENDPOINTS = (
    {"addresses": [str(ONE)], "hostname": "fit-0", "conditions": {"ready": True}},
    {"addresses": [str(OTHER)], "hostname": "fit-1", "conditions": {}},
    {"addresses": ["10.64.1.9"], "hostname": "fit-2", "conditions": {"ready": False}},
)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("fit.default.svc.cluster.local", [ONE, OTHER]),
        ("fit-1.fit.default.svc.cluster.local", [OTHER]),
        ("fit-2.fit.default.svc.cluster.local", None),
        ("fit.other.svc.cluster.local", None),
        ("fit.default", None),
        ("a/../b.default.svc.cluster.local", None),
    ],
)
def test_pods_behind_a_headless_service_have_names(name: str, found: list[IPv4Address] | None) -> None:
    assert ClusterNames(Api("None", ENDPOINTS))(name) == found  # type: ignore[arg-type]


def test_a_service_with_an_address_has_that() -> None:
    names = ClusterNames(Api("10.0.0.9", ENDPOINTS))  # type: ignore[arg-type]
    assert names("fit.default.svc.cluster.local") == [IPv4Address("10.0.0.9")]
    assert names("fit-0.fit.default.svc.cluster.local") is None
