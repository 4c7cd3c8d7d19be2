"""Which operator may write grants: one leader by a Lease, and an epoch that fences every earlier one.

The epoch is the Lease's `spec.leaseTransitions`, raised by one at each acquisition. Only CLOCK_BOOTTIME judges time:
a holder's claim ends `duration` after it *sent* its last renewal that succeeded, less a margin; a rival takes over
only `duration` after it *saw* the last one. Sending comes before seeing, so the claim ends first, whatever the wall
clocks say and however long a process was stopped. The renewals are also the heartbeat that keeps every node's grant.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from flyball_api.lease import NOBODY, Leader, lease_spec, read_leader, released
from flyball_kube.backoff import FIRST_SECONDS, Backoff
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.process.logs import get_logger
from flyball_kube.resources import LEASES
from flyball_kube.server_clock import boottime_seconds
from flyball_kube.session import ApiSession, JsonObject

MAX_DURATION_SECONDS = 300  # no process of ours leads longer without a renewal: a longer duration found is a mistake
MARGIN_SHARE = 0.1  # what a claim gives up: oscillators differ, and a write takes time after it was checked
RELEASE_ATTEMPTS = 3
STORE_PUT_BACK = "the API server's versions went back, as after a restore of its store"


class LeadershipLost(Exception):
    """The epoch under which something was decided is not held any more: nothing may be written in its name."""


class LeaderLease:
    """Competes for a Lease; run it as a task with `run`, and ask `epoch` or `check` before each act.

    `identity` must be new for each process (pod name and a random part). `least_epoch` is awaited before each
    acquisition for the highest epoch under which any node was ever commanded: a Lease that was deleted or set back
    then cannot lead to an epoch that the nodes refuse; it may raise ApiError and ApiUnreachable. `on_change` is called,
    synchronously, with each new epoch, and with None when one ends; it must not raise.
    Raises ValueError on an empty identity, or durations that leave no room for a second try at renewing.
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
        least_epoch: Callable[[], Awaitable[int]] | None = None,
        on_change: Callable[[int | None], None] = lambda epoch: None,
        clock: Callable[[], float] = boottime_seconds,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._described = f"lease {namespace}/{name}"
        self._claim_seconds = duration_seconds * (1 - MARGIN_SHARE)
        if not identity:
            raise ValueError(f"{self._described}: an empty identity would mean that nobody leads")
        if not 0 < 2 * renew_seconds <= self._claim_seconds or duration_seconds > MAX_DURATION_SECONDS:
            raise ValueError(
                f"{self._described}: renewing every {renew_seconds} s under a duration of {duration_seconds} s "
                f"(wanted: renew <= {(1 - MARGIN_SHARE) / 2:g} x duration, duration <= {MAX_DURATION_SECONDS} s)"
            )
        self.identity = identity
        self._log = get_logger(__name__, lease=f"{namespace}/{name}", identity=identity)
        self._session, self._namespace, self._name = session, namespace, name
        self._duration_seconds, self._renew_seconds = duration_seconds, renew_seconds
        self._least_epoch, self._on_change, self._clock, self._wall_clock = least_epoch, on_change, clock, wall_clock
        self._lease: JsonObject | None = None  # as last seen
        self._seen_at: float | None = None  # when it was first seen to say what it says; None before the first answer
        self._highest_epoch = 0  # ever seen
        self._highest_version = 0  # of the Lease, ever seen
        self._epoch: int | None = None
        self._claim_ends_at = 0.0
        self._stands_back_until = float("-inf")
        self._ends = 0  # how often an epoch has ended, or was not to begin
        self._acquired = self._renewed = datetime.fromtimestamp(0, UTC)
        self._leading = asyncio.Event()
        self._released = False
        self._one_at_a_time = asyncio.Lock()

    @property
    def epoch(self) -> int | None:
        """The epoch of this process' lead, while it is certain that no other process leads; else None."""
        return self._epoch if self._clock() < self._claim_ends_at and not self._released else None

    def remaining_seconds(self) -> float:
        """How long the epoch is still certain if no renewal succeeds any more: a bound for a write's timeout."""
        return max(0.0, self._claim_ends_at - self._clock())

    def check(self, epoch: int) -> None:
        """Raise `LeadershipLost` unless `epoch` is held at this instant; call it right before every write.

        Whoever was told so begins anew, and has forgotten what was sent: that epoch is over, whatever is answered later.
        """
        held = self.epoch
        if held != epoch:
            self._notice_lapse()
            raise LeadershipLost(f"{self._described}: decided under epoch {epoch}, but held is {held or 'none'} now")

    def give_up(self, why: str, stand_back_seconds: float = 0.0) -> None:
        """End the epoch that is held, and compete for the next one, which is higher, only after `stand_back_seconds`."""
        self._stands_back_until = self._clock() + stand_back_seconds
        self._end(why)

    async def wait_leading(self) -> int:
        """Return the epoch once this process leads."""
        while True:
            await self._leading.wait()
            if (epoch := self.epoch) is not None:
                return epoch
            self._notice_lapse()

    async def run(self) -> None:
        """Acquire, renew, lose and acquire again until cancelled or released; no failure of the API ends it."""
        backoff = Backoff(min(FIRST_SECONDS, self._renew_seconds), self._renew_seconds)
        while not self._released:
            try:
                async with self._one_at_a_time:
                    pause = await self._step()
                backoff.reset()
            except (ApiError, ApiUnreachable, TimeoutError) as error:
                outrun = isinstance(error, ApiError) and error.conflict
                reason = str(error) or "no least epoch in time"
                self._log.log(logging.INFO if outrun else logging.WARNING, "lease not written", error=reason)
                pause = backoff.next_seconds()
            self._notice_lapse()
            await asyncio.sleep(pause if self._epoch is None else min(pause, self.remaining_seconds()))

    async def release(self) -> None:
        """Give the Lease up, so that the next leader need not wait; on failure it simply runs out. Never raises.

        renewTime stays as it is: giving up must not look like a heartbeat to the nodes.
        """
        self._released = True
        self._end("released")
        async with self._one_at_a_time:
            self._epoch = None  # a renewal may have been under way
            for _ in range(RELEASE_ATTEMPTS):
                try:
                    lease = await self._get()
                    if lease is None or read_leader(lease).holder != self.identity:
                        return
                    await self._call("PUT", LEASES.path(self._namespace, self._name), released(lease))
                    return
                except (ApiError, ApiUnreachable) as error:
                    self._log.warning("lease not released", error=str(error))

    async def _step(self) -> float:
        """Renew, acquire or look, once; returns the seconds until the next step."""
        if self._released:
            return 0.0
        self._notice_lapse()
        if self._epoch is None and self._clock() < self._stands_back_until:
            return self._renew_seconds
        if self._epoch is not None and self._lease is not None:
            try:
                return await self._write(self._epoch)
            except ApiError as error:
                if not (error.conflict or error.not_found):
                    raise
        self._observe(await self._get())
        self._notice_lapse()
        if self._epoch is not None:
            # Somebody wrote or deleted the Lease meanwhile (or an answer to a renewal was lost). Rivals of ours leave a
            # missing one alone until any claim to it has ended, so that creating it again goes on with the same epoch.
            leader = _leader(self._lease)
            if self._lease is None or (leader.holder, leader.epoch) == (self.identity, self._epoch):
                return await self._write(self._epoch)
            self._end(f"the Lease has {leader}")
        return await self._compete()

    async def _compete(self) -> float:
        leader, seen_at = _leader(self._lease), self._seen_at
        wait = 0.0
        if leader.holder not in ("", self.identity) or self._lease is None:
            duration_seconds = min(leader.duration_seconds or self._duration_seconds, MAX_DURATION_SECONDS)
            wait = duration_seconds - (self._clock() - (seen_at or self._clock()))
        least_epoch = 0
        if self._least_epoch is not None and (wait <= 0 or self._highest_epoch == 0):
            async with asyncio.timeout(self._claim_seconds):
                least_epoch = await self._least_epoch()
            if self._lease is None and self._highest_epoch == least_epoch == 0:
                wait = 0.0  # no node was ever commanded: nobody has led yet, and nobody need be waited for
        if wait > 0:
            return min(wait, self._renew_seconds / 5) * random.uniform(0.8, 1.0)  # noqa: S311 - jitter, no secret
        return await self._write(max(self._highest_epoch, least_epoch) + 1)

    def _observe(self, lease: JsonObject | None) -> bool:
        """Note the Lease's present fields; labels and other metadata that anybody may edit count as no renewal.

        A version below one that was seen says that the store was restored from a backup (then False). Watches go on from
        versions that are no more and bring nothing, so that whoever leads begins anew.
        """
        if self._seen_at is None or _content(lease) != _content(self._lease):
            self._seen_at = self._clock()
        self._lease = lease
        self._highest_epoch = max(self._highest_epoch, _leader(lease).epoch)
        version = 0 if lease is None else int(lease["metadata"].get("resourceVersion") or 0)
        before, self._highest_version = self._highest_version, version or self._highest_version
        if 0 < version < before:
            self._end(STORE_PUT_BACK)
            return False
        return True

    async def _get(self) -> JsonObject | None:
        try:
            return await self._call("GET", LEASES.path(self._namespace, self._name))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def _call(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        # A request that hangs must leave time for another one before the claim ends.
        answer = await self._session.request(method, path, body=body, timeout_seconds=self._renew_seconds)
        if not isinstance(answer.get("metadata"), dict):
            raise ApiUnreachable(f"{method} {path}: the answer is no Lease")
        return answer

    async def _write(self, epoch: int) -> float:
        """Create or replace the Lease as ours under `epoch`; it is held from the moment of sending."""
        # A heartbeat is a new renewTime, also where the wall clock stands still or is set back.
        self._renewed = max(self._wall_clock(), self._renewed + timedelta(microseconds=1))
        acquired = self._acquired if epoch == self._epoch else self._renewed
        body: JsonObject = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": self._lease["metadata"] if self._lease else {"name": self._name, "namespace": self._namespace},
            "spec": lease_spec(self.identity, epoch, self._duration_seconds, acquired=acquired, renewed=self._renewed),
        }
        sent_at, ends = self._clock(), self._ends
        method, name = ("PUT", self._name) if self._lease else ("POST", None)
        if not self._observe(await self._call(method, LEASES.path(self._namespace, name), body)):
            return 0.0
        if self._ends != ends:
            return 0.0  # while the answer was on its way: the next epoch is a higher one
        self._claim_ends_at, self._acquired = sent_at + self._claim_seconds, acquired
        known, self._epoch = self._epoch, epoch
        if known != epoch == self.epoch:
            self._log.info("leading", epoch=epoch)
            self._leading.set()
            self._on_change(epoch)
        return max(0.0, sent_at + self._renew_seconds - self._clock())

    def _notice_lapse(self) -> None:
        if self._epoch is not None and self.epoch is None:
            self._end("no renewal succeeded in time")

    def _end(self, why: str) -> None:
        self._ends += 1
        if self._epoch is not None:
            self._log.warning("epoch ended", epoch=self._epoch, reason=why)
            self._epoch, self._claim_ends_at = None, 0.0
            self._leading.clear()
            self._on_change(None)


def _leader(lease: JsonObject | None) -> Leader:
    return NOBODY if lease is None else read_leader(lease)


def _content(lease: JsonObject | None) -> Any:
    return None if lease is None else (lease["metadata"].get("uid"), lease.get("spec"))
