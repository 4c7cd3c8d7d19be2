"""Which operator leads: its Lease, as people and programs that only look at it see it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from flyball_api.reading import ApiStruct, Count, Time, read_object


class Leader(ApiStruct, frozen=True):
    """The holder of the operator's Lease (empty: nobody), under which epoch, when it renewed it last, for how long."""

    holder: str
    epoch: int
    renewed: datetime | None = None
    duration_seconds: int | None = None

    def silent_at(self, now: datetime) -> bool:
        """Whether nobody leads at `now`, as far as the clock that wrote the renewal agrees with the one of `now`."""
        if not self.holder or self.renewed is None:
            return True
        return (now - self.renewed).total_seconds() > (self.duration_seconds or 0)


class _LeaseSpec(ApiStruct, frozen=True):
    holder_identity: str = ""
    lease_transitions: Count = 0
    lease_duration_seconds: Count | None = None
    renew_time: Time | None = None


class _Lease(ApiStruct, frozen=True):
    spec: _LeaseSpec = _LeaseSpec()


def read_leader(raw: Mapping[str, Any]) -> Leader:
    """The leader by a `coordination.k8s.io/v1.Lease`; raises InvalidObject where it is none."""
    spec = read_object("Lease", raw, _Lease).spec
    return Leader(spec.holder_identity, spec.lease_transitions, spec.renew_time, spec.lease_duration_seconds)
