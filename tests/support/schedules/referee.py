"""The referee: compares what caps' statuses claim with what the hardware allows, after every change of either.

It shares no code with what it judges. A claim is `Enforced=True` with its watts and with those that are committed; it
stands from the instant at which the API server accepts it to the instant at which it accepts another. While it stands,
the limits of the nodes under the cap and the static overhead add up to no more than either, with nothing excused but
this: what the hardware did by itself, or what somebody outside Flyball did to it, counts at what was before, for
`SECONDS_ALLOWED` from the first sign of it at the API server, or until the agent sets the GPU again. Those seconds run
only while a leader is in office whose way to the API server is whole: nobody else could withdraw anything. Every such
window is named and measured.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from flyball_simulated_gpu.virtual import VirtualDevice

from tests.support.schedules.memory_api import Change, Json

SECONDS_ALLOWED = 2.0
LOOK_EVERY_SECONDS = 0.25
# What is written so often in so many seconds is a storm: nobody's doing, and the API server's end.
STORM_WRITES, STORM_SECONDS = 60, 5.0
# Where a node's agent says how it is: after each it may be silent for as long as the operator waits.
REPORTS = {"gpunodes": "status", "brakeacknowledgements": "spec"}


class Violation(AssertionError):
    """A claim was not true."""


@dataclass(frozen=True)
class Claim:
    """A cap whose status says that these watts are enforced."""

    watts: int
    committed_watts: int
    overhead_watts: int
    labels: Mapping[str, str]


@dataclass
class Excuse:
    """Something that nobody commanded: since when, what was before, and the office seconds at which it ends, if known.

    `node_milliwatts` is what the whole node came to before: while its agent shares that out anew, one GPU after the other,
    some count as they were before and others as they are. Until `settled` the limit may not be there yet. Where the agent
    has set the GPU `lowered` to more than was before, it counts at that; what the node comes to is excused all the same
    until the agent raises a limit on it, reports, or has had the seconds allowed. From then on what its GPUs were commanded
    counts, where that is more. By a report a GPU that has not taken a limit since is commanded nothing: what its agent had
    asked of it under an earlier grant is no share of the one that it shares out now. Once it has had the seconds allowed
    from its first report on, it has seen that the GPU takes none, and leaves it that.
    """

    cause: str
    since: float
    before_milliwatts: int
    ends: float | None = None
    node_milliwatts: int | None = None
    settled: float = 0.0
    lowered: bool = False
    commanded: bool = False  # the agent has set the GPU since
    answered_from: float | None = None  # the office seconds from which it answers for the GPU in any case, if known
    by_silence: bool = False  # `ends` is known by nothing but this


@dataclass
class Window:
    """A time in which the limits stood above a claim by something that nobody commanded."""

    cause: str
    since: float
    seconds: float = 0.0
    watts: float = 0.0


@dataclass
class Verdict:
    """What the referee saw: how often it looked at a claim, and the windows that are excused."""

    judged: int = 0
    windows: list[Window] = field(default_factory=list)


class Referee:
    """`clear` says whether a leader is in office that could withdraw a claim now; `note` is told what happens."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clear: Callable[[], bool],
        report_timeout_seconds: float,
        note: Callable[[str], None],
    ) -> None:
        self.verdict = Verdict()
        self.violation: str | None = None
        self._violated = asyncio.Event()
        self._loop = loop
        self._clear = clear
        self._report_timeout = report_timeout_seconds
        self._note = note
        self._devices: dict[str, list[VirtualDevice]] = {}
        self._cabling: dict[str, Mapping[str, str]] = {}  # the labels that tell where a node really hangs
        self._asked: dict[str, int] = {}  # what each GPU's agent asked for last
        self._allowed: dict[str, int] = {}  # what each GPU allowed at the last look
        self._excuses: dict[str, Excuse] = {}  # by the GPU's UUID
        self._silenced: dict[str, Excuse] = {}  # those that have ended by nothing but silence
        self._newcomers: dict[tuple[str, str], Excuse] = {}  # by cap and node
        # Where each node hung before, whoever claims it now: each move that is still excused.
        self._moved: defaultdict[str, list[tuple[Mapping[str, str], Excuse]]] = defaultdict(list)
        self._claims: dict[str, Claim] = {}
        self._specs: dict[tuple[str, int], Json] = {}  # by the cap's uid and generation
        self._open: dict[str, Window] = {}
        self._boottimes_ns: dict[str, Callable[[], int]] = {}
        self._reported: dict[str, float] = {}
        self._reports: dict[tuple[str, str], Json] = {}
        self._boot_ids: dict[str, str] = {}
        self._written: defaultdict[tuple[str, str], deque[float]] = defaultdict(partial(deque, maxlen=STORM_WRITES))
        self._office, self._looked_at, self._was_clear = 0.0, 0.0, False
        self._looking = False

    async def violated_before(self, seconds: float) -> bool:
        """Wait so many seconds, or until a claim is not true; True where one is not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._violated.wait()
        return self._violated.is_set()

    # --- what the hardware does ----------------------------------------------------------------------------------------

    def add(
        self, node: str, devices: list[VirtualDevice], labels: Mapping[str, str], boottime_ns: Callable[[], int]
    ) -> None:
        """A node is there, with its limits as they are, under the caps that select these labels.

        By `boottime_ns`, which is its CLOCK_BOOTTIME now, its agent says when it has last looked.
        """
        self._devices[node], self._boottimes_ns[node] = devices, boottime_ns
        self.cable(node, labels, "arrival")

    def cable(self, node: str, labels: Mapping[str, str], cause: str) -> None:
        """Somebody hangs the node elsewhere, and says so at the API server: it counts there after the seconds allowed."""
        before, self._cabling[node] = self._cabling.get(node), labels
        self._advance()
        if before is not None:
            self._moved[node].append((before, Excuse(cause, self._loop.time(), 0, self._office + SECONDS_ALLOWED)))
        self.look()

    def by_itself(
        self, device: VirtualDevice, cause: str, change: Callable[[], object], settles_seconds: float = 0.0
    ) -> None:
        """`change` does something to the GPU's limit that Flyball did not command; it shows after `settles_seconds`."""
        # What the agent asked for last counts, also where an out-of-band cap stands below it.
        before = max(_limit(device), self._asked.get(device.uuid, 0))
        known = self._excuses.get(device.uuid)
        floor = before if known is None else min(before, known.before_milliwatts)
        node = self._beside(device)
        others = sum(_counted(_limit(other), self._excuses.get(other.uuid)) for other in node if other is not device)
        change()
        requested = device.read().requested_limit_milliwatts
        if requested < self._asked.get(device.uuid, 0):
            self._asked[device.uuid] = requested  # an agent that finds it at what it wants now commands nothing
        comes = max(_limit(device), requested if settles_seconds else 0)
        self._silenced.pop(device.uuid, None)
        if comes > before:
            now = self._loop.time()
            self._excuses[device.uuid] = Excuse(
                cause, now, floor, node_milliwatts=floor + others, settled=now + settles_seconds
            )
            self._note(f"{cause}: {device.uuid[-4:]} {before // 1000} -> {comes // 1000} W")
        self.look()

    def commanded(self, device: VirtualDevice) -> None:
        """The agent has just set the GPU: what it asked for is its doing.

        What the GPU still allows above that, until it has settled, is as little its doing as it was before.
        """
        self._silenced.pop(device.uuid, None)
        excuse = self._excuses.get(device.uuid)
        asked = self._asked[device.uuid] = device.read().requested_limit_milliwatts
        raised = asked > self._allowed.get(device.uuid, 0)
        if raised:
            self._end_lowering(self._beside(device), self._beside(device))
        if excuse is not None:
            excuse.commanded = True
        if excuse is not None and asked > excuse.before_milliwatts:
            if not raised and excuse.node_milliwatts is not None:
                self._advance()
                ends = self._office + SECONDS_ALLOWED
                excuse.ends = ends if excuse.ends is None else min(ends, excuse.ends)
                excuse.before_milliwatts, excuse.lowered = asked, True
            else:
                del self._excuses[device.uuid]
        self.look()

    def _end_lowering(self, devices: Collection[VirtualDevice], answered_for: Iterable[VirtualDevice]) -> None:
        """The agent has done with a node whose GPUs it had to lower: it answers for what it has commanded there."""
        commanded = sum(self._asked.get(device.uuid, 0) for device in answered_for)
        for excuse in filter(None, (self._excuses.get(device.uuid) for device in devices)):
            excuse.lowered = False
            if excuse.node_milliwatts is not None:
                excuse.node_milliwatts = max(excuse.node_milliwatts, commanded)

    def _beside(self, device: VirtualDevice) -> list[VirtualDevice]:
        """All GPUs of the device's node, itself among them."""
        return next((devices for devices in self._devices.values() if device in devices), [device])

    # --- what the API server is told -----------------------------------------------------------------------------------

    def told(self, change: Change) -> None:
        """The API server has accepted a change."""
        name, item = change.item["metadata"]["name"], change.item
        self._count_write(change.plural, name)
        if change.plural == "powercaps":
            claim = None if change.kind == "DELETED" else self._claim(item)
            if claim is None:
                self._claims.pop(name, None)
            else:
                self._claims[name] = claim
            self._note(f"cap {name}: {_told(item)}")
        elif change.plural == "nodes":
            boot_id = item["status"].get("nodeInfo", {}).get("bootID", "")
            known, self._boot_ids[name] = self._boot_ids.get(name, boot_id), boot_id
            if change.kind == "DELETED" or boot_id != known or not _ready(item):
                self._sign(name)
        elif change.plural in REPORTS:
            report = {} if change.kind == "DELETED" else item.get(REPORTS[change.plural]) or {}
            if report != self._reports.get((change.plural, name)):
                self._reports[change.plural, name], self._reported[name] = report, self._loop.time()
                if change.plural == "gpunodes":
                    self._end_silence(name, report)
                    self._sign_of_status(name, report)
        self.look()

    def _count_write(self, plural: str, name: str) -> None:
        times, now = self._written[plural, name], self._loop.time()
        if len(times) == STORM_WRITES and now - times[0] < STORM_SECONDS:
            self._violate(f"{plural} {name}: written {STORM_WRITES} times in {now - times[0]:.1f} s")
        times.append(now)

    def _violate(self, words: str) -> None:
        if self.violation is None:
            self.violation = words
            self._note(f"VIOLATION {words}")
            self._violated.set()

    def _claim(self, cap: Json) -> Claim | None:
        """What a cap's status claims: by its spec in the generation that the status is of."""
        metadata = cap["metadata"]
        self._specs[metadata["uid"], metadata["generation"]] = cap["spec"]
        observed = (cap.get("status") or {}).get("observedGeneration", metadata["generation"])
        spec: Json = self._specs.get((metadata["uid"], observed)) or cap["spec"]
        return _claim(cap, spec)

    def everything_is_as_of_old(self, caps: Iterable[Json]) -> None:
        """The store was put back: claims stand again that nobody makes now. They have the seconds allowed, too."""
        self._advance()
        self._claims = {}
        for item in caps:
            claim = self._claim(item)
            if claim is not None:
                name = item["metadata"]["name"]
                self._claims[name] = claim
                for node in self._devices:
                    self._newcomers[name, node] = Excuse(
                        "restore", self._loop.time(), 0, self._office + SECONDS_ALLOWED
                    )
        self.look()

    def _sign(self, node: str) -> None:
        """The API server now shows that something befell the node."""
        for device in self._devices.get(node, ()):
            self._shown(device)

    def _shown(self, device: VirtualDevice) -> None:
        self._silenced.pop(device.uuid, None)
        self._advance()
        excuse = self._excuses.get(device.uuid)
        if excuse is not None and (excuse.ends is None or excuse.by_silence):
            ends = self._office + SECONDS_ALLOWED
            excuse.ends, excuse.by_silence = ends if excuse.ends is None else min(ends, excuse.ends), False

    def _end_silence(self, node: str, status: Json) -> None:
        """The agent has been heard again: if what it says is no older than a silence may last, silence is no sign now."""
        made, now = (status.get("lastRound") or {}).get("boottimeNanoseconds"), self._boottimes_ns[node]()
        if made is None or not 0 <= now - made <= self._report_timeout * 1e9:
            return
        for device in self._devices[node]:
            excuse = self._excuses.get(device.uuid)
            if excuse is None and (excuse := self._silenced.pop(device.uuid, None)) is not None:
                self._excuses[device.uuid] = excuse
            if excuse is not None and excuse.by_silence:
                excuse.ends, excuse.by_silence = None, False

    def _sign_of_status(self, node: str, status: Json) -> None:
        """The agent has reported: what it shows of the limits as they are now is a sign."""
        devices = self._devices.get(node, ())
        self._end_lowering(devices, [device for device in devices if self._is_answered_for(device)])
        shown = {item["uuid"]: item.get("limits", {}).get("enforcedMilliwatts") for item in status.get("devices", ())}
        for device in devices:
            if shown.get(device.uuid) == _limit(device):
                self._shown(device)

    def _is_answered_for(self, device: VirtualDevice) -> bool:
        """Whether by a report that comes now its agent answers for what it has asked of the GPU last."""
        excuse = self._excuses.get(device.uuid)
        if excuse is None or excuse.commanded:
            return True
        self._advance()
        if excuse.answered_from is None:
            excuse.answered_from = self._office + SECONDS_ALLOWED
        return self._office > excuse.answered_from

    # --- judging -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compare every claim with the hardware."""
        self._advance()
        excused_somewhere = bool(self._excuses or self._newcomers or self._moved)
        if excused_somewhere:
            self._end_excuses()
        limits = {device.uuid: _limit(device) for devices in self._devices.values() for device in devices}
        self._allowed = limits
        for name, claim in self._claims.items():
            self.verdict.judged += 1
            true = judged = claim.overhead_watts * 1000
            causes: set[str] = set()
            for node, devices in self._devices.items():
                if not _selects(claim.labels, self._cabling[node]):
                    continue
                if not excused_somewhere:
                    of_node = sum([limits[device.uuid] for device in devices])
                    true, judged = true + of_node, judged + of_node
                    continue
                newcomer = self._newcomers.get((name, node)) or self._moved_under(claim, node)
                excused = [(device, newcomer or self._excuses.get(device.uuid)) for device in devices]
                excuses = [excuse for _, excuse in excused if excuse is not None]
                causes |= {excuse.cause for excuse in excuses}
                true += sum(limits[device.uuid] for device in devices)
                of_node = sum(_counted(limits[device.uuid], excuse) for device, excuse in excused)
                judged += min(
                    [of_node, *(item.node_milliwatts for item in excuses if item.node_milliwatts is not None)]
                )
            if judged > claim.watts * 1000:
                self._violate(f"{name}: {claim.watts} W claimed as enforced, {judged / 1000:g} W allowed by the limits")
            elif judged > claim.committed_watts * 1000:
                self._violate(f"{name}: {claim.committed_watts} W said to be committed, {judged / 1000:g} W are")
            self._measure(name, true / 1000 - claim.watts, causes)
        for name in self._open.keys() - self._claims.keys():
            del self._open[name]

    def _moved_under(self, claim: Claim, node: str) -> Excuse | None:
        """The excuse of a node that hangs under the cap since a moment ago: a claim that was on its way is as good as one
        that stood."""
        moves = reversed(self._moved.get(node, ()))
        return next((excuse for before, excuse in moves if not _selects(claim.labels, before)), None)

    def _measure(self, cap: str, over_watts: float, causes: set[str]) -> None:
        now = self._loop.time()
        if over_watts <= 0:
            self._open.pop(cap, None)
            return
        window = self._open.get(cap)
        if window is None:
            window = self._open[cap] = Window(" and ".join(sorted(causes)) or "nothing", now)
            self.verdict.windows.append(window)
        window.seconds, window.watts = now - window.since, max(window.watts, over_watts)

    def _advance(self) -> None:
        now = self._loop.time()
        if self._was_clear:
            self._office += now - self._looked_at
        self._looked_at, self._was_clear = now, self._clear()

    def _end_excuses(self) -> None:
        for node, devices in self._devices.items():
            # Nothing says so but silence: no report for so long.
            silent_since = self._reported.get(node, 0.0)
            for device in devices:
                excuse = self._excuses.get(device.uuid)
                if excuse is None:
                    continue
                if excuse.ends is None and self._loop.time() - silent_since > self._report_timeout:
                    excuse.ends, excuse.by_silence = self._office + SECONDS_ALLOWED, True
                gone = _limit(device) <= excuse.before_milliwatts and self._loop.time() > excuse.settled
                if excuse.lowered and excuse.node_milliwatts is not None:
                    gone = sum(_limit(each) for each in devices) <= excuse.node_milliwatts
                if _over(excuse, self._office) or gone:
                    del self._excuses[device.uuid]
                    if excuse.by_silence and not gone:
                        self._silenced[device.uuid] = excuse
        for key, excuse in list(self._newcomers.items()):
            if _over(excuse, self._office):
                del self._newcomers[key]
        for node, moves in list(self._moved.items()):
            self._moved[node] = [(before, excuse) for before, excuse in moves if not _over(excuse, self._office)]
            if not self._moved[node]:
                del self._moved[node]
        if (self._excuses or self._newcomers or self._moved) and not self._looking:
            self._looking = True
            self._loop.call_later(LOOK_EVERY_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        self.look()


def _over(excuse: Excuse, office: float) -> bool:
    return excuse.ends is not None and office > excuse.ends


def _limit(device: VirtualDevice) -> int:
    return device.read().enforced_limit_milliwatts


def _counted(limit_milliwatts: int, excuse: Excuse | None) -> int:
    return limit_milliwatts if excuse is None else min(limit_milliwatts, excuse.before_milliwatts)


def _selects(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return wanted.items() <= labels.items()


def _claim(cap: Json, spec: Json) -> Claim | None:
    status = cap.get("status") or {}
    says = {item["type"]: item["status"] for item in status.get("conditions") or ()}
    if says.get("Enforced") != "True" or spec.get("enforcement") == "Expected":
        return None
    labels = (spec.get("nodeSelector") or {}).get("matchLabels") or {}
    return Claim(status["effectiveWatts"], status["committedWatts"], spec.get("staticOverheadWatts", 0), labels)


def _told(cap: Json) -> str:
    status = cap.get("status") or {}
    says = {item["type"]: (item["status"], item["reason"]) for item in status.get("conditions") or ()}
    return (
        f"spec {cap['spec'].get('watts')} W, Enforced={says.get('Enforced')}, effective {status.get('effectiveWatts')} W, "
        f"committed {status.get('committedWatts')} W"
    )


def _ready(node: Json) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"].get("conditions", ()))
