"""A local copy of one API resource, kept by list and watch, that knows how old it is.

Five things that the common informers lack, and that a promise about power needs: after every relist what the list no
longer names is swept (an object deleted while the watch was broken would otherwise stay for ever); after a watch that
broke everything is listed, as its server's store may have been put back to a backup meanwhile; a silent watch is given up
after a bound; `age_seconds` says when the copy was last proven fresh; and
`behind_seconds` how late it brings what is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from flyball_kube.backoff import Backoff
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.pages import Pages
from flyball_kube.process.logs import get_logger
from flyball_kube.resources import Resource
from flyball_kube.session import ApiSession, JsonObject
from flyball_kube.watch_lag import WatchLag

T = TypeVar("T")

# The server ends each watch after this long, in order; resuming from the last resourceVersion costs one request.
WATCH_SECONDS = 60
# Silence that outlasts the watch's own end means a peer that vanished.
READ_GRACE_SECONDS = 10.0
# A watch that ends sooner than this without an event is one that the server would rather not serve now.
SHORTEST_WATCH_SECONDS = 0.5
# Servers send a bookmark before they end a watch. One that asks for a version from before its etcd was restored from a
# backup gets no event at all and no error: after so many watches without one, list again.
MAX_EMPTY_WATCHES = 5


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an informer waits: at most `last_pause_seconds` from a try that failed to the next one, and for a list that
    has no answer `answer_seconds` before it is asked for once more beside it.

    As they are, thousands of clients may have them at once.
    """

    last_pause_seconds: float = 5.0
    answer_seconds: float = math.inf


PATIENT = Patience()


class _HistoryRewound(Exception):
    """The server's versions went back (etcd restored from a backup): nothing that is stored can be trusted."""


def loop_seconds() -> float:
    """The monotonic clock of the running event loop, by which its timeouts are counted, too."""
    return asyncio.get_running_loop().time()


def object_key(raw: JsonObject) -> str:
    """`namespace/name`, or the bare name of a cluster-scoped object."""
    metadata = raw["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


class Informer(Generic[T]):
    """Keeps `{key: parse(object)}` of one resource in step with the API server; run it as a task with `run`.

    `parse` turns a raw object into what the store holds; where it raises, that object is left out of the store and named
    in `invalid` with the error, so that one bad object cannot hide its siblings.
    `on_change(key)` is called after each change of the store, synchronously: it should only set a flag. `on_rewound` is
    called likewise where the server's store turns out to have been put back, before anything that it says now is stored.
    A watch that stays silent for `watch_seconds + read_grace_seconds` is given up. Once a try has failed, the pause before
    the next one grows up to what `patience` says; a watch that was served for longer than that has it begin anew.
    Nobody waits for a resource that is not `required` once the server has refused its list: it counts as it was known last.
    One that the server does not know has no objects.
    """

    def __init__(
        self,
        session: ApiSession,
        resource: Resource,
        parse: Callable[[JsonObject], T],
        *,
        on_change: Callable[[str], None] = lambda key: None,
        on_rewound: Callable[[], None] = lambda: None,
        namespace: str | None = None,
        params: Mapping[str, str] | None = None,
        required: bool = True,
        watch_seconds: int = WATCH_SECONDS,
        read_grace_seconds: float = READ_GRACE_SECONDS,
        patience: Patience = PATIENT,
        monotonic: Callable[[], float] = loop_seconds,
    ) -> None:
        self._session = session
        self._resource = resource
        self._log = get_logger(__name__, resource=resource.plural)
        self._parse = parse
        self._on_change = on_change
        self._on_rewound = on_rewound
        self._path = resource.path(namespace)
        self._params = dict(params or {})
        self._required = required
        self._watch_seconds = watch_seconds
        self._read_grace_seconds = read_grace_seconds
        self._patience = patience
        self._monotonic = monotonic
        self._objects: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        self._pages = Pages(session, self._path, patience.answer_seconds)
        self._resource_version = ""  # where to resume; empty: list first
        self._seen_version = 0  # the highest of any list or watch
        self._empty_watches = 0
        self._watching: asyncio.Task[bool] | None = None
        self._listing: asyncio.Task[None] | None = None
        self._refreshes: list[asyncio.Future[None]] = []  # asked for and not begun
        self._asked = asyncio.Event()
        self._fresh_at: float | None = None
        self._lag = WatchLag()
        self._synced = asyncio.Event()
        self._unknown_to_server = False
        self.invalid: dict[str, str] = {}
        self.relists = 0
        self.broken_watches = 0

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def items(self) -> Iterator[tuple[str, T]]:
        return iter(self._objects.items())

    @property
    def synced(self) -> bool:
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Return once the first list is complete; of what is not required, once it was asked for and answered."""
        await self._synced.wait()

    async def refresh(self) -> None:
        """Return once a list that began after this call is complete: nothing in the store is older than the call."""
        done = asyncio.get_running_loop().create_future()
        self._refreshes.append(done)
        self._asked.set()
        # A list that began before this call may hang, and would not count.
        for under_way in (self._watching, self._listing):
            if under_way is not None:
                under_way.cancel()
        await done

    def age_seconds(self) -> float:
        """Seconds since the copy was last proven fresh (a list, an event, a bookmark, a watch that ended in order)."""
        return float("inf") if self._fresh_at is None else self._monotonic() - self._fresh_at

    def behind_seconds(self) -> float:
        """How late the watch brings what is stored, as far as writes of ours that were taken in have shown of late."""
        return self._lag.seconds(self._monotonic())

    async def run(self) -> None:
        """List and watch until cancelled; every failure is logged and tried again with growing, jittered pauses."""
        backoff = Backoff(last_seconds=self._patience.last_pause_seconds)
        while True:
            listed_at = math.inf
            try:
                if (not self._resource_version or self._refreshes) and not await self._relist():
                    continue
                listed_at = self._monotonic()
                if await self._watch_until_refresh():
                    backoff.reset()
                    continue
            except ApiError as error:
                # 410: the version is compacted away. Anything else may be a version from another server's past; a list
                # is right after each.
                self._resource_version = ""
                if not self._did_without(error) and not error.gone:
                    self._log.warning("refused; listing anew", error=str(error))
            except ApiUnreachable as error:
                # What was away may come back as an older store, whose versions may have passed ours by then, or do so soon:
                # a watch that goes on from a version tells nothing of that.
                self._resource_version = ""
                self.broken_watches += 1
                self._log.warning("watch broken", error=str(error))
            except _HistoryRewound:
                # The server answers: how long it was away is no reason to go on by a past that is no more.
                self._resource_version = ""
                backoff.reset()
                self._log.error("the server's versions went back; listing anew")
            except Exception:
                # An answer like no other, or a callback's mistake: a watcher that ends in silence would be worse.
                self._resource_version = ""
                self._log.exception("unexpected error; listing anew")
            if self._monotonic() - listed_at > self._patience.last_pause_seconds:
                backoff.reset()  # what failed before that is over
            # Who asks for a refresh waits for it: it comes at once, whatever has failed before it was asked for.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_seconds()):
                    await self._asked.wait()

    def absorb(self, raw: JsonObject) -> None:
        """Take in an object that a write of ours returned, so that the next decision does not wait for the watch.

        Ignored where the stream has passed it already: the object may have been changed or deleted since.
        """
        version = int(raw["metadata"]["resourceVersion"])
        if self._resource_version and version > int(self._resource_version):
            self._lag.written(version, self._monotonic())
            self._store(object_key(raw), raw)

    def _fresh(self) -> None:
        self._fresh_at = self._monotonic()

    def _note_version(self, resource_version: str) -> None:
        """Follow the server's history; where it went back, forget which version of each object is the newest."""
        version = int(resource_version)
        if version < self._seen_version:
            self._versions = dict.fromkeys(self._versions, -1)
            self._seen_version = version
            self._lag.forget()
            self._on_rewound()
            raise _HistoryRewound
        self._seen_version = version
        self._lag.come_to(version, self._monotonic())

    def _did_without(self, error: ApiError) -> bool:
        """Whether the server knows no such resource, and it is not required; logged once. The copy then is empty."""
        if self._required:
            return False
        if not error.not_found:
            self._synced.set()
            return False
        for key in list(self._versions):
            self._remove(key)
        self._fresh()
        self._synced.set()
        if not self._unknown_to_server:
            self._unknown_to_server = True
            self._log.warning("the API server has no such resource: its definition is not applied", error=str(error))
        return True

    async def _relist(self) -> bool:
        """List everything; False where a refresh was asked for before the list was complete."""
        asked, self._refreshes = self._refreshes, []
        self._asked.clear()
        self._listing = asyncio.create_task(self._list())
        listed = False
        try:
            await asyncio.wait([self._listing])
            if self._listing.cancelled():
                return False
            self._listing.result()
            listed = True
        finally:
            self._listing.cancel()
            await asyncio.gather(self._listing, return_exceptions=True)
            self._listing = None
            if not listed:
                self._refreshes += asked
        for done in asked:
            if not done.done():
                done.set_result(None)
        return True

    async def _list(self) -> None:
        seen: set[str] = set()
        params = dict(self._params)
        newest = max(self._versions.values(), default=-1)
        while True:
            page = await self._pages.next(params)
            self._note_version(page["metadata"]["resourceVersion"])
            listed = int(page["metadata"]["resourceVersion"])
            if listed < newest:  # what a write of ours returned before this list was asked for is not in it
                self._on_rewound()
                self._versions = {key: -1 if known <= newest else known for key, known in self._versions.items()}
            for raw in page.get("items") or []:
                key = object_key(raw)
                seen.add(key)
                # A version that is not newer than the list, and not the listed object's, is of a past that is no more: the
                # server's versions went back and have passed ours since.
                if int(raw["metadata"]["resourceVersion"]) < self._versions.get(key, -1) <= listed:
                    self._versions[key] = -1
                    self._on_rewound()
                self._store(key, raw)
            metadata = page["metadata"]
            if not metadata.get("continue"):
                break
            params["continue"] = metadata["continue"]
        for key in self._versions.keys() - seen:
            self._remove(key)
        self._resource_version = metadata["resourceVersion"]
        self.relists += 1
        self._fresh()
        self._synced.set()
        self._unknown_to_server = False

    async def _watch_until_refresh(self) -> bool:
        """Follow one watch, as `_watch`, until a refresh is asked for."""
        if self._refreshes:
            return True  # asked for while the list was under way
        self._watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait([self._watching])
            return self._watching.cancelled() or self._watching.result()
        finally:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    async def _watch(self) -> bool:
        """Follow one watch to its end in order; False where it was so short that the next should wait a little."""
        began_at, had_event = self._monotonic(), False
        params = {
            **self._params,
            "resourceVersion": self._resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watch_seconds),
        }
        events = self._session.watch(
            self._path, params=params, read_timeout_seconds=self._watch_seconds + self._read_grace_seconds
        )
        async for event in events:
            kind, raw = event.get("type"), event["object"]
            if kind == "ERROR":
                raise ApiError.from_answer(int(raw.get("code", 500)), raw, f"WATCH {self._path}")
            self._note_version(raw["metadata"]["resourceVersion"])
            self._fresh()
            had_event = True
            if kind != "BOOKMARK":
                key = object_key(raw)
                # A write of ours may have been absorbed that made the object again after this deletion.
                if kind != "DELETED":
                    self._store(key, raw)
                elif self._seen_version >= self._versions.get(key, -1):
                    self._remove(key)
            self._resource_version = raw["metadata"]["resourceVersion"]
        self._fresh()
        self._empty_watches = 0 if had_event else self._empty_watches + 1
        if self._empty_watches >= MAX_EMPTY_WATCHES:
            self._empty_watches, self._resource_version = 0, ""
        return had_event or self._monotonic() - began_at >= SHORTEST_WATCH_SECONDS

    def _store(self, key: str, raw: JsonObject) -> None:
        raw["metadata"].pop("managedFields", None)  # half of an object's bytes, and nobody here reads them
        # Versions are comparable integers since Kubernetes 1.35; an absorbed write can be ahead of the stream.
        version = int(raw["metadata"]["resourceVersion"])
        if version <= self._versions.get(key, -1):
            return
        self._versions[key] = version
        try:
            parsed = self._parse(raw)
        except Exception as error:
            self.invalid[key] = f"{type(error).__name__}: {error}"
            self._objects.pop(key, None)
            self._log.error("object left out: it cannot be read", object=key, error=self.invalid[key])
        else:
            self.invalid.pop(key, None)
            self._objects[key] = parsed
        self._on_change(key)

    def _remove(self, key: str) -> None:
        self._versions.pop(key, None)
        self.invalid.pop(key, None)
        if self._objects.pop(key, None) is not None:
            self._on_change(key)
