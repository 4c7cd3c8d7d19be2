"""Who may command the nodes: one leader by a Lease, and an epoch that fences whoever led before.

The epoch is the Lease's `spec.leaseTransitions`, raised by one at each acquisition. Only CLOCK_BOOTTIME judges time:
a holder's claim ends `duration` after it *sent* its last renewal that succeeded, less a margin; a rival takes over
only `duration` after it *saw* the last one. Sending comes before seeing, so the claim ends first, whatever the wall
clocks say and however long a process was stopped. The renewals are also the heartbeat that keeps every node's grant.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.resources import LEASES
from flyball_kube.session import ApiSession, JsonObject

logger = logging.getLogger(__name__)

# No process of ours leads for longer without a renewal, so that a longer duration found in a Lease is a mistake.
MAX_DURATION_SECONDS = 300
# What a claim gives up before a rival may take over: different oscillators, and a write that was checked just before.
MARGIN_SHARE = 0.1
FIRST_BACKOFF_SECONDS = 0.2
RELEASE_ATTEMPTS = 3


class LeadershipLost(Exception):
    """The epoch under which something was decided is not held any more: nothing may be written in its name."""


def boottime_seconds() -> float:
    """Seconds since boot, counted through suspension too, untouched by changes of the wall clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class _Record:
    """What a Lease says, with everything that is missing or senseless read as nobody, never or zero."""

    holder: str
    transitions: int
    duration_seconds: int | None

    @classmethod
    def of(cls, lease: JsonObject) -> _Record:
        spec = lease.get("spec") or {}
        transitions, duration = spec.get("leaseTransitions"), spec.get("leaseDurationSeconds")
        return cls(
            str(spec.get("holderIdentity") or ""),
            transitions if isinstance(transitions, int) and transitions > 0 else 0,
            min(duration, MAX_DURATION_SECONDS) if isinstance(duration, int) and duration > 0 else None,
        )


async def _no_floor() -> int:
    return 0


class LeaderLease:
    """Competes for a Lease; run it as a task with `run`, and ask `epoch` or `check` before each act.

    `identity` must be new for each process (pod name and a random part). `epoch_floor` is asked before each
    acquisition for the highest epoch that any node was ever commanded under; a Lease that was deleted or set back
    can then not lead to an epoch that the nodes would refuse. `on_change` is called, synchronously, with the new epoch,
    or None when leadership ends. Raises ValueError where the durations leave no room for a second try at renewing.
    """

    def __init__(
        self,
        session: ApiSession,
        identity: str,
        namespace: str,
        name: str,
        duration_seconds: int = 15,
        renew_seconds: float = 5.0,
        *,
        epoch_floor: Callable[[], Awaitable[int]] = _no_floor,
        on_change: Callable[[int | None], None] = lambda epoch: None,
        clock: Callable[[], float] = boottime_seconds,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if not identity:
            raise ValueError(f"Lease {namespace}/{name}: an empty identity would mean that nobody leads")
        if (
            not 0 < 2 * renew_seconds <= duration_seconds * (1 - MARGIN_SHARE)
            or duration_seconds > MAX_DURATION_SECONDS
        ):
            raise ValueError(
                f"Lease {namespace}/{name}: renewing every {renew_seconds} s under a duration of {duration_seconds} s "
                f"(wanted: renew <= {(1 - MARGIN_SHARE) / 2:g} x duration, duration <= {MAX_DURATION_SECONDS} s)"
            )
        self._session, self._identity, self._namespace, self._name = session, identity, namespace, name
        self._duration_seconds, self._renew_seconds = duration_seconds, renew_seconds
        self._epoch_floor, self._on_change, self._clock, self._wall_clock = epoch_floor, on_change, clock, wall_clock
        self._lease: JsonObject | None = None  # as last seen
        self._seen_at: float | None = None  # when it was first seen like that; None before the first answer
        self._epoch: int | None = None
        self._deadline = 0.0
        self._highest_epoch = 0
        self._renew_time = datetime.fromtimestamp(0, UTC)
        self._leading = asyncio.Event()
        self._released = False
        self._one_at_a_time = asyncio.Lock()

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def epoch(self) -> int | None:
        """The epoch, while it is certain that nobody else can hold one; else None."""
        return self._epoch if self._clock() < self._deadline else None

    def remaining_seconds(self) -> float:
        """How long the present epoch is certain if no renewal succeeds any more: a bound for a write's timeout."""
        return max(0.0, self._deadline - self._clock()) if self._epoch is not None else 0.0

    def check(self, epoch: int) -> None:
        """Raise `LeadershipLost` unless `epoch` is held at this instant; call it right before every write."""
        held = self.epoch
        if held != epoch:
            now = "no epoch is held" if held is None else f"epoch {held} is held"
            raise LeadershipLost(f"Lease {self._namespace}/{self._name}: decided under epoch {epoch}, but {now} now")

    async def wait_leading(self) -> int:
        """Return the epoch once this process leads."""
        while True:
            await self._leading.wait()
            epoch = self.epoch
            if epoch is not None:
                return epoch
            self._notice_lapse()

    async def run(self) -> None:
        """Acquire, renew, lose and acquire again until cancelled or released; no failure ends it."""
        backoff = FIRST_BACKOFF_SECONDS
        while not self._released:
            try:
                async with self._one_at_a_time:
                    if self._released:
                        return
                    pause = await self._step()
                backoff = FIRST_BACKOFF_SECONDS
            except (ApiError, ApiUnreachable) as error:
                logger.warning("lease %s/%s: %s", self._namespace, self._name, error)
                pause, backoff = backoff * random.uniform(0.5, 1.0), min(2 * backoff, self._renew_seconds)  # noqa: S311
            self._notice_lapse()
            if self._epoch is not None:
                pause = min(pause, self.remaining_seconds())
            await asyncio.sleep(pause)

    async def release(self) -> None:
        """Give the Lease up, so that the next leader need not wait; on failure it simply runs out. Never raises.

        The renewTime stays: giving up must not look like a heartbeat to the nodes.
        """
        self._released = True
        self._end("released")
        async with self._one_at_a_time:
            for _ in range(RELEASE_ATTEMPTS):
                try:
                    lease = await self._get()
                    if lease is None or _Record.of(lease).holder != self._identity:
                        return
                    lease["spec"]["holderIdentity"] = ""
                    await self._call("PUT", LEASES.path(self._namespace, self._name), lease)
                    return
                except (ApiError, ApiUnreachable) as error:
                    logger.warning("lease %s/%s: not released: %s", self._namespace, self._name, error)

    async def _step(self) -> float:
        """Renew, look or acquire, once; returns the seconds until the next step."""
        if self._epoch is not None and self._lease is not None:
            try:
                return await self._write(self._lease, self._epoch)
            except ApiError as error:
                if not (error.conflict or error.not_found):
                    raise
        self._observe(await self._get())
        if self.epoch is not None and self._epoch is not None:
            # A renewal met a conflict: whose Lease it is now decides. While the claim lasts, no rival of ours creates a
            # missing one, so that creating it again goes on with the same epoch.
            if self._lease is None or _Record.of(self._lease) == _Record(
                self._identity, self._epoch, self._duration_seconds
            ):
                return await self._write(self._lease, self._epoch)
            self._end(f"the Lease says {_Record.of(self._lease)}")
        return await self._compete()

    async def _compete(self) -> float:
        record = _Record.of(self._lease) if self._lease is not None else None
        floor = await self._epoch_floor()
        waited = self._clock() - (self._seen_at if self._seen_at is not None else self._clock())
        if record is None:
            # Nobody may have led yet, or a leader may not know yet that its Lease is gone: floor 0 is the proof.
            wait = 0.0 if floor == 0 and self._epoch_floor is not _no_floor else self._duration_seconds - waited
        elif record.holder in ("", self._identity):
            wait = 0.0
        else:
            wait = (record.duration_seconds or self._duration_seconds) - waited
        if wait > 0:
            return min(wait, self._renew_seconds / 5) * random.uniform(0.8, 1.0)  # noqa: S311 - jitter, no secret
        return await self._write(self._lease, max(record.transitions if record else 0, floor, self._highest_epoch) + 1)

    def _observe(self, lease: JsonObject | None) -> None:
        """Take note of what the Lease says now, and of when it last said something else."""
        known, new = (_content(known) for known in (self._lease, lease))
        if self._seen_at is None or known != new:
            self._seen_at = self._clock()
        if lease is not None:
            self._highest_epoch = max(self._highest_epoch, _Record.of(lease).transitions)
        self._lease = lease

    async def _get(self) -> JsonObject | None:
        try:
            return await self._call("GET", LEASES.path(self._namespace, self._name))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def _call(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        # A request that hangs must leave time for another one before the claim ends.
        return await self._session.request(method, path, body=body, timeout_seconds=self._renew_seconds)

    async def _write(self, lease: JsonObject | None, epoch: int) -> float:
        """Create or replace the Lease as ours under `epoch`; it is held from the moment of sending."""
        # A heartbeat is a *changed* renewTime, also while the wall clock stands still.
        wall = self._wall_clock()
        self._renew_time = wall if wall != self._renew_time else wall + timedelta(microseconds=1)
        renew_time = self._renew_time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        renewing = epoch == self._epoch
        acquire_time = lease["spec"].get("acquireTime") if renewing and lease is not None else None
        metadata: JsonObject = {"name": self._name, "namespace": self._namespace}
        if lease is not None:
            metadata = {**lease["metadata"], "managedFields": None}
        body: JsonObject = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": self._duration_seconds,
                "leaseTransitions": epoch,
                "acquireTime": acquire_time or renew_time,
                "renewTime": renew_time,
            },
        }
        sent_at = self._clock()
        if lease is None:
            answer = await self._call("POST", LEASES.path(self._namespace), body)
        else:
            answer = await self._call("PUT", LEASES.path(self._namespace, self._name), body)
        self._observe(answer)
        self._deadline = sent_at + self._duration_seconds * (1 - MARGIN_SHARE)
        if not renewing:
            self._epoch = epoch
            if self.epoch is not None:
                logger.info("lease %s/%s: %s leads, epoch %d", self._namespace, self._name, self._identity, epoch)
                self._leading.set()
                self._on_change(epoch)
        return max(0.0, sent_at + self._renew_seconds - self._clock())

    def _notice_lapse(self) -> None:
        if self._epoch is not None and self.epoch is None:
            self._end("no renewal succeeded in time")

    def _end(self, why: str) -> None:
        if self._epoch is None:
            return
        logger.warning("lease %s/%s: epoch %d has ended: %s", self._namespace, self._name, self._epoch, why)
        self._epoch = None
        self._deadline = 0.0
        self._leading.clear()
        self._on_change(None)


def _content(lease: JsonObject | None) -> Any:
    """What tells one renewal from the next; metadata that others may edit (labels, versions) does not count."""
    return None if lease is None else (lease["metadata"].get("uid"), lease.get("spec"))
