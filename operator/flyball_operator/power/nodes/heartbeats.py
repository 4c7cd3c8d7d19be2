"""Which agents are alive: how long ago each one last was, as its reports show, and whether since a sign of a boot."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from flyball_api.gpu_node import GpuNode, GpuNodeStatus
from flyball_api.grant import GrantVersion
from msgspec import Struct, field
from msgspec.structs import replace

NANOSECONDS = 1_000_000_000
# So much faster or slower than ours a node's clock may run, while something slews one of them (docs/power-safety.md).
CLOCK_RATES_DIFFER = 0.1
# After so many reports in a row a node's clock has been set back, with its machine's whole memory for instance, or what was
# said of it before was wrong. None of them is an old one that came late: each is written over the one before it.
REPORTS_OF_A_CLOCK_SET_BACK = 3
# Of the time that a silence may last, no report takes more (docs/power-safety.md: "Reports take less than 45 s"): an agent
# that was taken to say everything later than that would seem silent for ever after.
SHARE_OF_A_WAY = 0.6
# Of the grants that a node has been sent since its last answer, so many are remembered with that: the first and the last;
# for those between the first.
MOST_GRANTS_REMEMBERED = 16
LONG_AGO = -math.inf


class _NodeClock(Struct, frozen=True):
    """How a node's CLOCK_BOOTTIME in one boot relates to our clock: no moment of it was later than `offset` makes it.

    The fastest report shows it best. What it has shown fades at the rate at which the two clocks may drift apart.
    """

    boot_id: str
    offset: float
    at: float
    # The latest moment and the last one that were reported, and how many in a row, each later than the one before it, were
    # below the latest.
    latest: float = -math.inf
    last: float = -math.inf
    below: int = 0

    def seen(self, boot_id: str, alive: float, monotonic: float) -> _NodeClock:
        """The same, with a report that came now of an agent that was alive at `alive` seconds after its boot."""
        offset = monotonic - alive
        if boot_id != self.boot_id:
            return _NodeClock(boot_id, offset, monotonic, alive, alive)
        below = 0 if alive >= self.latest else self.below + 1 if alive > self.last else 1
        if below == REPORTS_OF_A_CLOCK_SET_BACK:
            return _NodeClock(boot_id, offset, monotonic, alive, alive)
        offset = min(offset, self.offset + CLOCK_RATES_DIFFER * (monotonic - self.at))
        return _NodeClock(boot_id, offset, monotonic, max(alive, self.latest), alive, below)

    def not_before(self, alive: float, monotonic: float) -> _NodeClock:
        """The same, where `alive` seconds after the boot were no sooner than at `monotonic`."""
        return replace(self, offset=min(self.offset, monotonic - alive))


class _Pulse(Struct):
    """What is known of one agent: its last status, and by our clock when it was last alive.

    `doubted_at` is when there last was a reason to doubt that it lives, or that its node has not booted; None: there is
    none. `sent` has when each grant was sent that is not acknowledged yet, and `answered_boot` is the last boot in which
    one was; of what says nothing of how long reports take `sent` has `LONG_AGO`.
    """

    status: GpuNodeStatus
    alive_at: float
    clock: _NodeClock | None = None
    doubted_at: float | None = None
    sent: dict[GrantVersion, float] = field(default_factory=dict)
    answered_boot: str | None = None

    def doubt_silence(self, timeout_seconds: float, monotonic: float) -> None:
        """A silence that is too long by now is a doubt from when it came to be, also where there was another before it."""
        silent_at = self.alive_at + timeout_seconds
        if monotonic > silent_at and (self.doubted_at is None or self.doubted_at < silent_at):
            self.doubted_at = silent_at

    def take_first_answer(
        self, status: GpuNodeStatus, monotonic: float, longest_way: float, behind_seconds: float
    ) -> tuple[float, float] | None:
        """Take in the first status of a boot that acknowledges a grant: in seconds after the boot when it did, and the
        soonest moment by our clock at which that can have been.

        That was not before the grant was sent, if so little time has passed since that it says how long reports take. Else
        the agent is likely to have come late, as by a boot or with its image, and what it says to be as late as the watch.
        """
        answer = status.acknowledged
        if answer is None or answer.boot_id != status.boot_id:
            return None
        # What is later than all that was sent was acknowledged to a GPUNode before this one.
        answered = [at for version, at in self.sent.items() if version <= answer.version]
        if not answered or answer.version > max(self.sent):
            return None
        later = {version: at for version, at in self.sent.items() if version > answer.version}
        self.sent = {answer.version: LONG_AGO} | later  # in the next boot it may be acknowledged again
        first, self.answered_boot = self.answered_boot != answer.boot_id, answer.boot_id
        sent_at = max(answered)
        answered_at = sent_at if monotonic - sent_at <= longest_way else monotonic - min(behind_seconds, longest_way)
        return (answer.boottime_nanoseconds / NANOSECONDS, answered_at) if first else None


class Heartbeats:
    """Remembers when each agent was last alive, by its reports.

    Agents publish at least every half minute, and the energy counters make every report differ from the one before, so that
    a report needs no further sign of life. One that was sent before an agent's death may come long after it: a report says
    by the clock of its node when it was made, and is a sign of life from then, as far as the fastest report of late
    shows the way from that clock to ours. One that does not say so (an older agent's) is a sign from when it was seen.
    A new leader counts from when it first looks, and takes the first acknowledgement of a grant of its own, and the first
    one after each boot, to have been made as soon as it can have been after that was sent: nothing else shows it how long
    reports take, and claims begin with it.

    Who has been silent for too long, or has shown a sign of a boot, is so until a report that was made after that, however
    soon the sign is gone: a Node that was not ready for a moment may have had its driver loaded anew meanwhile, and nobody
    has looked since. So it is with a GPUNode that cannot be read: what shows meanwhile, nobody sees.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._longest_way = SHARE_OF_A_WAY * timeout_seconds
        self._pulses: dict[str, _Pulse] = {}
        self._sent_with_node: dict[str, GrantVersion] = {}  # to nodes whose GPUNodes are made with them

    def update(
        self,
        gpu_nodes: Mapping[str, GpuNode],
        monotonic: float,
        signs: Collection[str] = (),
        unread: Collection[str] = (),
        behind_seconds: float = 0.0,
    ) -> None:
        """Take in the GPUNodes as they are now, which nodes show a sign of a boot, and what cannot be read.

        `behind_seconds` is how late the watch has brought them of late.
        """
        for name, gpu_node in gpu_nodes.items():
            pulse = self._pulses.get(name)
            if pulse is None:
                pulse = self._pulses[name] = _Pulse(gpu_node.status, monotonic, _clock(None, gpu_node, monotonic))
                if (version := self._sent_with_node.pop(name, None)) is not None:
                    # Its agent may come as late as its image: that is not taken for how long reports take.
                    pulse.sent = {version: LONG_AGO}
                    _take_in(pulse, gpu_node, monotonic, self._longest_way, behind_seconds)
            elif pulse.status is not gpu_node.status and pulse.status != gpu_node.status:
                # Whenever it is seen: what was made before the silence was too long does not end it.
                pulse.doubt_silence(self._timeout_seconds, monotonic)
                _take_in(pulse, gpu_node, monotonic, self._longest_way, behind_seconds)
            pulse.doubt_silence(self._timeout_seconds, monotonic)
            if name in signs:
                pulse.doubted_at = monotonic
        for name in self._pulses.keys() - gpu_nodes.keys():
            if name in unread:
                self._pulses[name].doubted_at = monotonic
            else:
                del self._pulses[name]

    def sent(self, name: str, version: GrantVersion, monotonic: float) -> None:
        """A grant is sent to that node now."""
        pulse = self._pulses.get(name)
        if pulse is None:
            self._sent_with_node[name] = version
            return
        sent = pulse.sent
        sent.setdefault(version, monotonic)
        if len(sent) > MOST_GRANTS_REMEMBERED:
            _, _, third, *_ = sent
            del sent[third]

    def silent_seconds(self, monotonic: float) -> dict[str, float]:
        """The nodes without a report for too long or since their last sign, with the seconds since the last one."""
        return {
            name: monotonic - pulse.alive_at for name, pulse in self._pulses.items() if pulse.doubted_at is not None
        }

    def next_silence_seconds(self, monotonic: float) -> float:
        """Seconds until the next agent will have been silent for too long, where none reports before; infinite for none."""
        last = min([pulse.alive_at for pulse in self._pulses.values() if pulse.doubted_at is None], default=math.inf)
        return last + self._timeout_seconds - monotonic


def _take_in(pulse: _Pulse, gpu_node: GpuNode, monotonic: float, longest_way: float, behind_seconds: float) -> None:
    """Take in another status of an agent than before."""
    alive_at, clock = monotonic, _clock(pulse.clock, gpu_node, monotonic)
    first_answer = pulse.take_first_answer(gpu_node.status, monotonic, longest_way, behind_seconds)
    if clock is not None and gpu_node.alive_nanoseconds is not None:
        if first_answer is not None:
            clock = clock.not_before(*first_answer)
            # What was seen sooner may have been reckoned to be later than it was.
            pulse.alive_at = min(pulse.alive_at, first_answer[1])
        alive_at = gpu_node.alive_nanoseconds / NANOSECONDS + clock.offset
    pulse.status, pulse.clock = gpu_node.status, clock
    pulse.alive_at = max(pulse.alive_at, alive_at)
    if pulse.doubted_at is not None and alive_at >= pulse.doubted_at:
        pulse.doubted_at = None


def _clock(known: _NodeClock | None, gpu_node: GpuNode, monotonic: float) -> _NodeClock | None:
    """The way from a node's clock to ours, after what was `known` of it, with the report that came now."""
    if gpu_node.alive_nanoseconds is None:
        return None
    alive, boot_id = gpu_node.alive_nanoseconds / NANOSECONDS, gpu_node.status.boot_id
    return (_NodeClock(boot_id, math.inf, monotonic) if known is None else known).seen(boot_id, alive, monotonic)
