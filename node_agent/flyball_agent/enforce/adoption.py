"""The GPUs that an agent finds when it starts: those that the driver opened, those that it could not, those of before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from flyball_api.values.units import MilliwattsPerGpu

from flyball_agent.enforce.gpu_state import ComingLimits, GpuFailure, GpuState, Holders
from flyball_agent.enforce.records import JournalState
from flyball_agent.gpu.gpu import Gpu, GpuDriver, GpuError, GpuLimits, GpuNotFound, UnopenedGpu

# No GPU of which nothing else is known draws more than this.
LARGEST_LIMIT_MILLIWATTS = MilliwattsPerGpu(1_500_000)
# The smallest limit of a GPU that cannot be limited: nobody may count on it.
UNKNOWN_MIN_MILLIWATTS = MilliwattsPerGpu(1)


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
    that it can; or, where the journal's last set of it was in this very driver session (`resumed`), the larger of what it
    was and what it was to be. That may have been asked for as late as `asked_at_ns`, and come after it is read (None: never
    any more, for the driver was loaded anew), whether the journal knows of it or, with gaps, does not.
    """

    def most(uuid: str, limits: GpuLimits) -> MilliwattsPerGpu:
        intent = journal.intents.get(uuid)
        if intent is None or not resumed or uuid in journal.past:
            return limits.max_milliwatts
        return max(intent.old_milliwatts, intent.new_milliwatts)

    coming = {} if asked_at_ns is None else _coming(journal, asked_at_ns)
    forgotten_ns = asked_at_ns if journal.gaps else None
    unlisted = Holders.NOT_LISTED
    gpus = {
        gpu.uuid: GpuState(
            gpu.uuid,
            gpu.index,
            gpu.model,
            gpu.limits,
            most(gpu.uuid, gpu.limits),
            holders=unlisted,
            coming=coming.get(gpu.uuid),
            forgotten_ns=forgotten_ns,
        )
        for gpu in shown
    }
    errors = {gpu.uuid: gpu.error for gpu in unopened}
    unnamed = [gpu for gpu in unopened if not gpu.uuid]
    for found in journal.gpus.values():
        if found.uuid not in gpus:
            limits = GpuLimits(found.min_milliwatts, found.max_milliwatts, found.default_milliwatts)
            detail = "the GPU was here before and is not found now"
            failure: GpuError = GpuNotFound("find", found.uuid, detail=detail)
            if found.uuid in errors:
                failure = errors[found.uuid]
            elif unnamed:  # a GPU that cannot be opened does not say its UUID: it is this one
                failure = unnamed.pop(0).error
            gpus[found.uuid] = GpuState(
                found.uuid,
                -1,
                found.model,
                limits,
                most(found.uuid, limits),
                holders=unlisted,
                coming=coming.get(found.uuid),
                forgotten_ns=forgotten_ns,
                failure=GpuFailure.of(failure),
            )
    known_most = max((gpu.limits.max_milliwatts for gpu in gpus.values()), default=LARGEST_LIMIT_MILLIWATTS)
    for gpu in unopened:
        uuid = gpu.uuid or unnamed_uuid(gpu.index)
        if uuid in gpus or (not gpu.uuid and gpu not in unnamed):
            continue
        most_milliwatts = gpu.max_milliwatts or known_most
        # What it holds is bounded by what it is, so that it may be acknowledged for.
        failure_state = GpuFailure(gpu.error.reason, str(gpu.error), keeps_limits=True)
        limits = GpuLimits(UNKNOWN_MIN_MILLIWATTS, most_milliwatts, most_milliwatts)
        gpus[uuid] = GpuState(
            uuid,
            gpu.index,
            gpu.model,
            limits,
            most_milliwatts,
            holders=unlisted,
            forgotten_ns=forgotten_ns,
            failure=failure_state,
        )
    return gpus


def found_anew(
    driver: GpuDriver,
    journal: JournalState,
    before: Mapping[str, GpuState],
    now_ns: int,
    *,
    nothing_listed: bool,
) -> dict[str, GpuState]:
    """The GPUs of another driver with what was known of them before; of none (`nothing_listed`) also those of before that
    no journal has, since they never opened: nothing says that they are gone."""
    found = find_gpus(
        driver.gpus(),
        journal,
        resumed=False,
        asked_at_ns=now_ns if journal.gaps else None,
        unopened=driver.unopened,
    )
    gpus = dict(before) if nothing_listed else {}
    for uuid, gpu in found.items():
        gpus[uuid] = gpu.as_known(before[uuid], now_ns) if uuid in before else gpu
    return gpus


def _coming(journal: JournalState, asked_ns: int) -> dict[str, ComingLimits]:
    return {
        uuid: ComingLimits((*intent.coming_milliwatts, intent.new_milliwatts), asked_ns)
        for uuid, intent in journal.intents.items()
    }


def unnamed_uuid(index: int) -> str:
    """What stands for the UUID of a GPU that does not say it."""
    return f"GPU-00000000-0000-0000-0000-{index:012d}"
