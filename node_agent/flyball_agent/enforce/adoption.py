"""The GPUs that an agent finds when it starts: those that the driver opened, those that it could not, those of before."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from flyball_api.values.units import MilliwattsPerGpu

from flyball_agent.enforce.gpu_state import ComingLimits, GpuFailure, GpuState, Holders
from flyball_agent.enforce.records import (
    Forgotten,
    FoundGpu,
    JournalState,
    Record,
    found_gpus,
    is_unnamed,
    unnamed_uuid,
)
from flyball_agent.gpu.gpu import Gpu, GpuDriver, GpuError, GpuLimits, GpuNotFound, UnopenedGpu

# No GPU of which nothing else is known draws more than this.
LARGEST_LIMIT_MILLIWATTS = MilliwattsPerGpu(1_500_000)
# The smallest limit of a GPU that cannot be limited: nobody may count on it.
UNKNOWN_MIN_MILLIWATTS = MilliwattsPerGpu(1)
# What a status can have, by the CRD.
MAX_REPORTED = 64
_MAX_MILLIWATTS = 10_000_000
_MAX_MODEL_LENGTH = 128
_UUID = re.compile("(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def find_gpus(
    shown: Collection[Gpu],
    journal: JournalState,
    *,
    resumed: bool,
    asked_at_ns: int | None,
    unopened: Sequence[UnopenedGpu] = (),
) -> dict[str, GpuState]:
    """Every GPU of the node, by UUID: opened by the driver, there but not opened, or only remembered by the journal.

    One that could not be opened counts at the largest limit that it may have. Before it is read, another may hold the most
    that it can; or, where the journal's last set of it was in this very driver session (`resumed`) and it has no gaps, the
    larger of what it was and what it was to be. That may have been asked for as late as `asked_at_ns`, and come after it is
    read (None: never any more, for the driver was loaded anew), whether the journal knows of it or, with gaps, does not.
    """
    sets = _Sets(
        journal,
        resumed,
        coming={} if asked_at_ns is None else _coming(journal, asked_at_ns),
        forgotten_ns=asked_at_ns if journal.gaps else None,
    )
    gpus = {
        gpu.uuid: GpuState(
            gpu.uuid,
            gpu.index,
            gpu.model,
            gpu.limits,
            sets.most(gpu.uuid, gpu.limits),
            holders=Holders.NOT_LISTED,
            coming=sets.coming.get(gpu.uuid),
            forgotten_ns=sets.forgotten_ns,
        )
        for gpu in shown
    }
    remembered, unnamed = _remembered(gpus.keys(), sets, unopened)
    gpus |= remembered
    known = [gpu.limits.max_milliwatts for gpu in gpus.values()]
    # One that says its UUID now is the same that did not before.
    known += [found.max_milliwatts for found in journal.gpus.values() if is_unnamed(found.uuid)]
    known_most = max(known, default=LARGEST_LIMIT_MILLIWATTS)
    for gpu in unopened:
        uuid = gpu.uuid or unnamed_uuid(gpu.index)
        if uuid not in gpus and (gpu.uuid or gpu in unnamed):
            gpus[uuid] = _never_known(uuid, gpu, gpu.max_milliwatts or known_most, sets.forgotten_ns)
    return gpus


@dataclass(frozen=True, slots=True)
class _Sets:
    """What is known of limits that an agent before this one has set.

    `coming` are those that may take effect yet, by UUID. Until `forgotten_ns` others may have been set that the journal
    does not know of (None: there are none).
    """

    journal: JournalState
    resumed: bool  # the journal's driver session goes on
    coming: Mapping[str, ComingLimits]
    forgotten_ns: int | None

    def most(self, uuid: str, limits: GpuLimits) -> MilliwattsPerGpu:
        """The most that a GPU may be limited to before it is read."""
        intent = self.journal.intents.get(uuid)
        if intent is None or not self.resumed or self.journal.gaps or uuid in self.journal.past:
            return limits.max_milliwatts
        return max(intent.old_milliwatts, intent.new_milliwatts)


def _remembered(
    shown: AbstractSet[str], sets: _Sets, unopened: Sequence[UnopenedGpu]
) -> tuple[dict[str, GpuState], list[UnopenedGpu]]:
    """The GPUs that the journal remembers and that are not `shown`, and the unopened ones without a UUID that are left."""
    gpus: dict[str, GpuState] = {}
    known = sets.journal.gpus
    named = {gpu.uuid: gpu for gpu in unopened if gpu.uuid}
    unnamed = [gpu for gpu in unopened if not gpu.uuid]
    new = len((shown | named.keys()) - known.keys())
    missing = [found for found in known.values() if found.uuid not in shown]
    for found in sorted(missing, key=_named_and_largest_first):
        listed = named.get(found.uuid)
        if listed is None and unnamed:  # a GPU that cannot be opened does not say its UUID: it is this one
            listed = next((gpu for gpu in unnamed if unnamed_uuid(gpu.index) == found.uuid), unnamed[0])
            unnamed.remove(listed)
        if listed is None and new and is_unnamed(found.uuid):  # it says its UUID now
            new -= 1
            continue
        state = _not_found(found) if listed is None else _not_opened(found, listed)
        gpus[found.uuid] = state.changed(
            held_milliwatts=sets.most(found.uuid, state.limits),
            coming=sets.coming.get(found.uuid),
            forgotten_ns=sets.forgotten_ns,
        )
    return gpus, unnamed


def _never_known(uuid: str, gpu: UnopenedGpu, most: MilliwattsPerGpu, forgotten_ns: int | None) -> GpuState:
    """A GPU that cannot be opened, and that the journal does not remember: it may hold the `most`."""
    return GpuState(
        uuid,
        gpu.index,
        gpu.model,
        _limits_unread(most),
        most,
        holders=Holders.NOT_LISTED,
        forgotten_ns=forgotten_ns,
        failure=_failure_of(gpu.error, never_opened=True),
    )


def found_anew(
    driver: GpuDriver, journal: JournalState, before: Mapping[str, GpuState], now_ns: int
) -> dict[str, GpuState]:
    """The GPUs of another driver, with what was known of them before."""
    asked_at_ns = now_ns if journal.gaps else None
    found = find_gpus(driver.gpus(), journal, resumed=False, asked_at_ns=asked_at_ns, unopened=driver.unopened)
    return {uuid: gpu.as_known(before[uuid], now_ns) if uuid in before else gpu for uuid, gpu in found.items()}


def in_a_status(gpu: FoundGpu) -> bool:
    """Whether a status can have this GPU. Any other is an agent's lie: it would be remembered when that agent is gone."""
    limits = 0, gpu.min_milliwatts, gpu.default_milliwatts, gpu.max_milliwatts, _MAX_MILLIWATTS
    in_order = list(limits) == sorted(limits) and gpu.min_milliwatts > 0 and gpu.found_milliwatts >= 0
    return in_order and _UUID.fullmatch(gpu.uuid) is not None and len(gpu.model) <= _MAX_MODEL_LENGTH


def not_listed(gpus: Mapping[str, GpuState], reported: Sequence[FoundGpu]) -> list[GpuState]:
    """The GPUs, of those that an agent before this one had reported, that no journal knows and no driver lists: as many as
    there were more of."""
    others = sorted((gpu for gpu in reported if gpu.uuid not in gpus), key=_named_and_largest_first)
    return [_not_found(gpu) for gpu in others[: max(0, len(reported) - len(gpus))]]


def may_be_larger(gpus: Mapping[str, GpuState], reported: Sequence[FoundGpu]) -> list[GpuState]:
    """The GPUs that never opened and count with less than what was reported of them, as that. One that does not say its
    UUID may be the largest of those that were reported and are not there; one that was not reported by its own may be
    each of those that did not say it."""
    known = {gpu.uuid: gpu.max_milliwatts for gpu in reported}
    absent = {uuid: most for uuid, most in known.items() if uuid not in gpus}
    larger = []
    for gpu in gpus.values():
        own = known.get(gpu.uuid, UNKNOWN_MIN_MILLIWATTS)
        unnamed, new = is_unnamed(gpu.uuid), gpu.uuid not in known
        most = max([own, *(each for uuid, each in absent.items() if unnamed or (new and is_unnamed(uuid)))])
        if _never_opened(gpu.limits) and gpu.limits.max_milliwatts < most:
            larger.append(gpu.changed(limits=_limits_unread(most), held_milliwatts=max(gpu.held_milliwatts, most)))
    return larger


def newly_found(
    gpus: Mapping[str, GpuState], known: Mapping[str, FoundGpu], *, unread_too: bool = False
) -> list[Record]:
    """What the journal, which knows some GPUs, is to remember of those that there are: each that was read, or that cannot
    be, and of one that has opened at last, or may be larger, what it is. A GPU that says its UUID now is there once."""
    found = [
        FoundGpu(
            gpu.uuid,
            gpu.model,
            gpu.limits.min_milliwatts,
            gpu.limits.max_milliwatts,
            gpu.limits.default_milliwatts,
            gpu.held_milliwatts if gpu.limit is None else gpu.limit.requested_milliwatts,
        )
        for gpu in gpus.values()
        if _is_news(gpu, known.get(gpu.uuid), unread_too)
    ]
    gone = tuple(uuid for uuid in known if is_unnamed(uuid) and uuid not in gpus)
    return [*([found_gpus(found)] if found else ()), *([Forgotten(gone, renamed=True)] if gone else ())]


def _is_news(gpu: GpuState, known: FoundGpu | None, unread_too: bool) -> bool:
    if known is None:
        return unread_too or gpu.usable or gpu.failure is not None
    opened = gpu.usable and gpu.limits.min_milliwatts > UNKNOWN_MIN_MILLIWATTS
    return _never_opened(known) and (opened or gpu.limits.max_milliwatts > known.max_milliwatts)


def _coming(journal: JournalState, asked_ns: int) -> dict[str, ComingLimits]:
    return {
        uuid: ComingLimits((*intent.coming_milliwatts, intent.new_milliwatts), asked_ns)
        for uuid, intent in journal.intents.items()
    }


def _named_and_largest_first(gpu: FoundGpu) -> tuple[bool, int]:
    return is_unnamed(gpu.uuid), -gpu.max_milliwatts


def _not_found(gpu: FoundGpu) -> GpuState:
    """A GPU that was here before, and may still be."""
    error = GpuNotFound("find", gpu.uuid, detail="the GPU was here before and is not found now")
    return _not_opened(gpu, UnopenedGpu(-1, gpu.uuid, gpu.model, None, error))


def _not_opened(gpu: FoundGpu, listed: UnopenedGpu) -> GpuState:
    limits = GpuLimits(gpu.min_milliwatts, gpu.max_milliwatts, gpu.default_milliwatts)
    failure = _failure_of(listed.error, never_opened=_never_opened(gpu))
    most = limits.max_milliwatts
    return GpuState(gpu.uuid, listed.index, gpu.model, limits, most, holders=Holders.NOT_LISTED, failure=failure)


def _failure_of(error: GpuError, *, never_opened: bool) -> GpuFailure:
    """What one that has never opened holds is bounded by what it is, so that it may be acknowledged for."""
    return GpuFailure(error.reason, str(error), keeps_limits=never_opened or error.keeps_limits)


def _limits_unread(most: MilliwattsPerGpu) -> GpuLimits:
    """Those of a GPU that never opened, and may be set to the `most`."""
    return GpuLimits(UNKNOWN_MIN_MILLIWATTS, most, most)


def _never_opened(limits: FoundGpu | GpuLimits) -> bool:
    return limits.min_milliwatts == UNKNOWN_MIN_MILLIWATTS
