"""Kubernetes Events about what the operator decides, for `kubectl describe` and for those who watch a job.

Events are a courtesy: recording one costs no await and never raises, the same one again only counts up, each object and
the whole process have a rate, and what does not fit is dropped and counted.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from flyball_api.names import REPORTING_CONTROLLER
from flyball_api.values.times import format_micro_time
from flyball_kube.backoff import Backoff
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.process.logs import get_logger
from flyball_kube.resources import EVENTS
from flyball_kube.session import ApiSession, JsonObject

logger = get_logger(__name__)

# Events about cluster-scoped objects live here, by the API server's own rule.
CLUSTER_SCOPE_NAMESPACE = "default"

# As client-go: the same event within six minutes is the same series.
SERIES_SECONDS = 360.0
# How often a series' count is written.
SERIES_WRITE_SECONDS = 60.0
MAX_SERIES = 2000
OBJECT_BURST, OBJECT_SECONDS_PER_EVENT = 10.0, 30.0
PROCESS_BURST, PROCESS_SECONDS_PER_EVENT = 100.0, 0.2
# The API server's own limits on an Event.
MAX_NOTE_BYTES = 1024
MAX_REASON_LENGTH = 128
MAX_NAME_LENGTH = 253
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that an Event is about; `namespace` is empty for a cluster-scoped one."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""

    def reference(self) -> JsonObject:
        fields = {"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "uid": self.uid}
        return {**fields, "namespace": self.namespace} if self.namespace else fields


@dataclass(slots=True)
class _Bucket:
    """Tokens for events: `burst` at once, then one in `seconds_per_event`."""

    burst: float
    seconds_per_event: float
    tokens: float
    at: float

    def tokens_at(self, now: float) -> float:
        return min(self.burst, self.tokens + (now - self.at) / self.seconds_per_event)

    def take(self, now: float) -> bool:
        self.tokens, self.at = self.tokens_at(now), now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


@dataclass(slots=True)
class _Series:
    """One event and how often it has come; `written` is the count that the API server knows (0: none yet)."""

    regarding: Regarding
    body: JsonObject
    count: int
    last: datetime
    last_at: float
    written: int = 0
    written_at: float = float("-inf")

    @property
    def path(self) -> str:
        return EVENTS.path(self.body["metadata"]["namespace"], self.body["metadata"]["name"])


class EventRecorder:
    """Takes events in by `record` and writes them in `run`, which is to be run as a task.

    `instance` names this process (the lease's identity). `dropped` counts what rates, bounds and refusals have cost.
    """

    def __init__(
        self,
        session: ApiSession,
        instance: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._session = session
        self._instance = instance[:MAX_REASON_LENGTH]
        self._monotonic = monotonic
        self._wall_clock = wall_clock
        self._series: OrderedDict[tuple[Any, ...], _Series] = OrderedDict()  # the least recently seen first
        self._buckets: OrderedDict[tuple[str, str, str], _Bucket] = OrderedDict()
        self._process = _Bucket(PROCESS_BURST, PROCESS_SECONDS_PER_EVENT, PROCESS_BURST, monotonic())
        self._work = asyncio.Event()
        self.dropped = 0

    @property
    def room(self) -> int:
        """How many Events that can be recorded later may be now: half of the burst is for those that cannot."""
        return max(0, int(self._process.tokens_at(self._monotonic()) - PROCESS_BURST / 2))

    def record(self, regarding: Regarding, reason: str, note: str, *, action: str, warning: bool = False) -> None:
        """Record that `action` was taken on `regarding`: why in one word (`reason`), and in a sentence (`note`)."""
        now, kind = self._monotonic(), "Warning" if warning else "Normal"
        key = (regarding, kind, reason, action, note)
        series = self._series.get(key)
        if series is not None and now - series.last_at <= SERIES_SECONDS:
            series.count, series.last, series.last_at = series.count + 1, self._wall_clock(), now
            self._series.move_to_end(key)
            self._work.set()
            return
        if not self._admitted(regarding, now):
            self.dropped += 1
            return
        wall = self._wall_clock()
        self._series[key] = _Series(regarding, self._body(regarding, kind, reason, action, note, wall), 1, wall, now)
        self._series.move_to_end(key)
        while len(self._series) > MAX_SERIES:
            _, oldest = self._series.popitem(last=False)
            self.dropped += oldest.written == 0
        self._work.set()

    def _admitted(self, regarding: Regarding, now: float) -> bool:
        key = (regarding.kind, regarding.namespace, regarding.name)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(OBJECT_BURST, OBJECT_SECONDS_PER_EVENT, OBJECT_BURST, now)
            if len(self._buckets) > MAX_SERIES:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        return bucket.take(now) and self._process.take(now)

    def _body(self, regarding: Regarding, kind: str, reason: str, action: str, note: str, now: datetime) -> JsonObject:
        suffix = f".{uuid.uuid4().hex[:16]}"
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": regarding.name[: MAX_NAME_LENGTH - len(suffix)].rstrip(".-") + suffix,
                "namespace": regarding.namespace or CLUSTER_SCOPE_NAMESPACE,
            },
            "eventTime": format_micro_time(now),
            "reportingController": REPORTING_CONTROLLER,
            "reportingInstance": self._instance,
            "type": kind,
            "reason": reason[:MAX_REASON_LENGTH],
            "action": action[:MAX_REASON_LENGTH],
            "note": note.encode()[:MAX_NOTE_BYTES].decode(errors="ignore"),
            "regarding": regarding.reference(),
        }

    async def run(self) -> None:
        """Write what is recorded until cancelled; while the API server is away, what is recorded waits, within bounds."""
        backoff = Backoff(FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS)
        while True:
            self._work.clear()
            pause: float | None
            try:
                pause = await self._write_due()
                backoff.reset()
            except ApiUnreachable as error:
                logger.debug("Events wait: no answer", error=str(error))
                await backoff.pause()
                continue
            try:
                async with asyncio.timeout(pause):
                    await self._work.wait()
            except TimeoutError:
                continue

    async def _write_due(self) -> float | None:
        """Write every series that is due; returns the seconds until the next one is (None: nothing waits)."""
        pause: float | None = None
        for key, series in list(self._series.items()):
            if self._series.get(key) is not series:
                continue  # dropped, or begun anew, while another one was written
            now = self._monotonic()
            if series.written == series.count:
                if now - series.last_at > SERIES_SECONDS:
                    del self._series[key]
                continue
            wait = series.written_at + SERIES_WRITE_SECONDS - now
            if series.written and wait > 0:
                pause = wait if pause is None else min(pause, wait)
                continue
            try:
                await self._write(series)
            except ApiError as error:
                # An event that is refused (its namespace is going away, a quota) is not worth a second try.
                logger.warning("Event refused", error=str(error))
                self.dropped += 1
                self._series.pop(key, None)
        return pause

    async def _write(self, series: _Series) -> None:
        count, now = series.count, self._monotonic()
        tally = None if count < 2 else {"count": count, "lastObservedTime": format_micro_time(series.last)}
        if series.written:
            try:
                await self._session.patch(series.path, {"series": tally})
            except ApiError as error:
                if not error.not_found:
                    raise
                series.written = 0  # the API server drops events after an hour: it is recorded again
        if not series.written:
            body: Mapping[str, Any] = series.body if tally is None else {**series.body, "series": tally}
            try:
                await self._session.create(EVENTS.path(series.body["metadata"]["namespace"]), dict(body))
            except ApiError as error:
                if not error.conflict:  # a conflict is our own event, whose answer was lost
                    raise
        series.written, series.written_at = count, now
