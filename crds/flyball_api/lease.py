"""The operator's Lease: which operator leads, for those that compete for it, watch it, or show it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta

from flyball_api.reading import ApiStruct, Count, JsonObject, Time, read_readable
from flyball_api.values.times import format_micro_time


class Leader(ApiStruct, frozen=True):
    """The holder of the operator's Lease (empty: nobody), under which epoch, when it renewed it last, for how long."""

    holder: str
    epoch: int
    renewed: datetime | None = None
    duration_seconds: int | None = None

    def silent_at(self, now: datetime) -> bool:
        """Whether the Lease has no holder, or has run out by `now` (whose clock may differ from its holder's)."""
        if not self.holder or self.renewed is None:
            return True
        return (now - self.renewed).total_seconds() > (self.duration_seconds or 0)


NOBODY = Leader("", 0)


class _LeaseSpec(ApiStruct, frozen=True):
    holder_identity: str = ""
    lease_transitions: Count = 0
    lease_duration_seconds: Annotated[int, Meta(gt=0)] | None = None
    renew_time: Time | None = None


def read_leader(lease: Mapping[str, Any]) -> Leader:
    """The leader by a `coordination.k8s.io/v1.Lease`; what is missing or makes no sense reads as nobody, zero, or None.

    It never fails: who competes for the Lease has to go on whatever somebody wrote into it.
    """
    spec, _ = read_readable("spec", lease, _LeaseSpec)
    return Leader(spec.holder_identity, spec.lease_transitions, spec.renew_time, spec.lease_duration_seconds)


def lease_spec(holder: str, epoch: int, duration_seconds: int, *, acquired: datetime, renewed: datetime) -> JsonObject:
    """The spec of a Lease that `holder` has taken and renewed at these times, for `duration_seconds` from the last one."""
    return {
        "holderIdentity": holder,
        "leaseDurationSeconds": duration_seconds,
        "leaseTransitions": epoch,
        "acquireTime": format_micro_time(acquired),
        "renewTime": format_micro_time(renewed),
    }


def released(lease: Mapping[str, Any]) -> JsonObject:
    """The Lease without a holder and else as it is: a new renewTime would look like a heartbeat."""
    return {**lease, "spec": {**lease["spec"], "holderIdentity": ""}}
