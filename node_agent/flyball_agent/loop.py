"""The enforcer: reads every board, decides by `core`, sets and reads back, and says what may be acknowledged.

It knows boards, a journal, a clock and pods by name; it knows nothing of Kubernetes, and can run in a container that
has the privilege and no credential. One `step` is one round of the control loop; who calls it, how often, and what
wakes it is the caller's. All state is touched from one task.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from flyball_agent import core
from flyball_agent.board import Acknowledgement, BoardState, Tally, find_boards
from flyball_agent.calls import DriverCalls, calls_for
from flyball_agent.clock import boottime_ns
from flyball_agent.core import Board, Mode, PodName, Purpose, SetLimit, Target
from flyball_agent.desired import DesiredSpec, InvalidSpec, parse_spec
from flyball_agent.gpu import GpuDriver, GpuError, GpuLost, GpuNotFound, NotSupported, ResetRequired
from flyball_agent.incarnation import DriverIncarnation
from flyball_agent.journal import (
    Intent,
    Journal,
    JournalError,
    KnownBoard,
    Lease,
    accept_record,
    boards_record,
    intent_record,
    lease_record,
)

logger = logging.getLogger(__name__)

NANOSECONDS = 1_000_000_000
# A limit that settles later than this, or a setter that lied this long, is reported instead of waited for.
SETTLE_SECONDS = 2.0
# After so many rounds in which every board failed the way a restart may mend, the process should end.
ROUNDS_BEFORE_EXIT = 10


class Enforcer:
    """Holds one node's boards to the operator's spec.

    `clock_ns` is CLOCK_BOOTTIME, or a simulation's clock. Nothing is set before the first `step` that has a spec.
    """

    def __init__(
        self,
        node: str,
        driver: GpuDriver,
        journal: Journal,
        *,
        clock_ns: Callable[[], int] = boottime_ns,
        wall_seconds: Callable[[], float] = time.time,
        calls: DriverCalls | None = None,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self.node = node
        self.driver = driver
        self.journal = journal
        self.clock_ns = clock_ns
        self._wall_seconds = wall_seconds
        self._calls = calls or calls_for(driver)
        self._settle_ns = round(settle_seconds * NANOSECONDS)
        self.spec: DesiredSpec | None = journal.state.spec
        self.lease: Lease | None = journal.state.lease
        self.mode = Mode.ADOPTING
        self.acknowledged: Acknowledgement | None = None
        self.invalid_spec: str | None = None
        self.stale_spec: str | None = None
        self.drifted: dict[str, str] = {}  # by UUID: what was found in this round
        self.settling = False
        self.tally = Tally()
        self.must_exit: str | None = None
        self._read_ns = 0
        self._failed_rounds = 0
        self._forbidden_rounds = 0
        self.incarnation = DriverIncarnation(driver, journal)
        self.boards = find_boards(driver, journal.state, half_set=self.incarnation.resumed)

    # ---- what comes in -------------------------------------------------------------------------------------------

    def accept(self, raw_spec: object) -> bool:
        """Take a spec in, if it is sound and newer than the last one; True where the boards may have to change.

        The pair is written now and synced before anything is set or acknowledged by it; where the disk fails, the spec
        still holds for everything that lowers power.
        """
        try:
            spec = parse_spec(raw_spec)
        except InvalidSpec as error:
            if self.invalid_spec != str(error):
                logger.error("spec refused", extra={"node": self.node, "reason": "Invalid", "detail": str(error)})
            self.invalid_spec = str(error)
            return False
        self.invalid_spec = self.stale_spec = None
        accepted = None if self.spec is None else self.spec.pair
        if not core.supersedes(spec.pair, accepted):
            if spec.pair != accepted:
                self.tally.refused_specs += 1
                self.stale_spec = f"spec {spec.pair} is below {accepted}, which was accepted before"
                logger.warning(
                    "spec refused",
                    extra={"node": self.node, "reason": "Stale", "pair": spec.pair, "accepted": accepted},
                )
            return False
        self.spec = spec
        self.lease = Lease(self.driver.boot_id, self.clock_ns() + spec.lease_seconds * NANOSECONDS)
        with contextlib.suppress(JournalError):
            self.journal.commit(accept_record(spec, self.lease), durable=False)
        for board in self.boards.values():
            board.above_since_ns = None
        logger.info(
            "spec accepted",
            extra={
                "node": self.node,
                "epoch": spec.epoch,
                "generation": spec.generation,
                "grant_milliwatts": spec.grant_milliwatts,
                "jobs": len(spec.jobs),
            },
        )
        return True

    def renew_lease(self) -> bool:
        """The operator was just seen alive; True where that brings the grant back."""
        if self.spec is None:
            return False
        self.lease = Lease(self.driver.boot_id, self.clock_ns() + self.spec.lease_seconds * NANOSECONDS)
        self.tally.lease_renewals += 1
        # Not synced: the deadline is void after a reboot, and a mere crash of this process loses nothing written.
        with contextlib.suppress(JournalError):
            self.journal.commit(lease_record(self.lease), durable=False)
        return self.mode is Mode.FAILSAFE

    def set_pods(self, pods: Mapping[str, tuple[PodName, ...]]) -> bool:
        """Say which pods hold which boards (by UUID); True where that changed."""
        changed = False
        for uuid, board in self.boards.items():
            held_by = pods.get(uuid, ())
            if held_by != board.pods:
                board.pods = held_by
                changed = True
        return changed

    # ---- what is known -------------------------------------------------------------------------------------------

    @property
    def lease_valid(self) -> bool:
        return self.lease is not None and self.lease.valid(self.driver.boot_id, self.clock_ns())

    def lease_remaining_seconds(self) -> float:
        """0 where there is no lease or it has run out."""
        if self.lease is None or self.lease.boot_id != self.driver.boot_id:
            return 0.0
        return max(0.0, (self.lease.deadline_ns - self.clock_ns()) / NANOSECONDS)

    def views(self) -> list[Board]:
        return [board.view() for board in self.boards.values()]

    # ---- one round -----------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """One round: read, decide, lower and read back, lock, raise within the grant and read back, judge."""
        self.journal.retry()
        await self._read_boards()
        spec = self.spec
        self._set_mode()
        self._find_drift()
        targets: dict[str, Target] = {}
        if spec is not None:
            targets = core.targets_of(spec, self.views(), self.mode)
            for target in targets.values():
                self.boards[target.uuid].purpose = target.purpose
            await self._set_limits(spec, core.lowers(self.views(), targets), "lower")
            await self._set_locks(targets)
            # A newer spec or the lease's end may have come while the driver was busy: then the next round decides.
            if self.mode is not Mode.FAILSAFE and self.spec is spec and self._mode_now() is self.mode:
                await self._set_limits(spec, core.raises(self.views(), targets, spec.grant_milliwatts), "raise")
        if self.spec is spec:
            self._judge(targets)

    def _mode_now(self) -> Mode:
        return core.mode_of(self.spec, self.views(), self.lease_valid)

    def _set_mode(self) -> None:
        was, self.mode = self.mode, self._mode_now()
        if self.mode is not was:
            if self.mode is Mode.FAILSAFE:
                self.tally.lease_expiries += 1
            logger.info("mode", extra={"node": self.node, "mode": str(self.mode), "was": str(was)})

    async def _read_boards(self) -> None:
        present = [board for board in self.boards.values() if board.gpu is not None]
        results = await self._calls.each(
            "read", [(board.uuid, board.gpu.read) for board in present if board.gpu is not None]
        )
        self._note_driver()
        hopeless = bool(results)
        now_ns = self.clock_ns()
        elapsed_seconds = (now_ns - self._read_ns) / NANOSECONDS if self._read_ns else 0.0
        self._read_ns = now_ns
        for board, result in zip(present, results, strict=True):
            if isinstance(result, GpuError):
                self._note_error(board, result)
                hopeless = hopeless and result.restart_may_help
                continue
            hopeless = False
            if board.error is not None:
                logger.info("board is back", extra={"node": self.node, "uuid": board.uuid})
                board.lock = None  # a reset lets go of locks
            board.error = None
            board.reading = result
            board.limit = result.limit
            board.held_milliwatts = result.limit.held_milliwatts
            self._note_throttling(board, result.throttle_reasons, elapsed_seconds)
            self._note_counter(board, result.energy_millijoules)
        self._failed_rounds = self._failed_rounds + 1 if hopeless else 0
        if self._failed_rounds >= ROUNDS_BEFORE_EXIT:
            self.must_exit = f"every board failed in {self._failed_rounds} rounds, last: {present[-1].error}"
        self._remember_boards()

    def _note_error(self, board: BoardState, error: GpuError) -> None:
        """The board cannot be read: what it held last stays reserved."""
        self.tally.errors[(error.operation, error.code)] += 1
        if type(board.error) is not type(error):
            logger.error("board failed", extra={"node": self.node, "uuid": board.uuid, "detail": str(error)})
        board.error = error
        board.reading = None
        board.limit = None

    def _find_drift(self) -> None:
        self.drifted = {}
        for board in self.boards.values():
            limit = board.limit
            if limit is None or board.ours_milliwatts is None or limit.requested_milliwatts == board.ours_milliwatts:
                continue
            if board.purpose is not Purpose.UNTOUCHED:
                self.drifted[board.uuid] = (
                    f"{board.uuid}: limit {board.ours_milliwatts} mW was changed to {limit.requested_milliwatts} mW"
                )
                self.tally.drift_corrections += 1
                logger.warning("drift", extra={"node": self.node, "detail": self.drifted[board.uuid]})
            board.ours_milliwatts = None

    async def _set_limits(self, spec: DesiredSpec, sets: Sequence[SetLimit], kind: str) -> None:
        if not sets:
            return
        intents = [Intent(change.uuid, change.old_milliwatts, change.new_milliwatts) for change in sets]
        try:
            self.journal.commit(intent_record(spec.pair, intents))
        except JournalError as error:
            logger.error("journal", extra={"node": self.node, "detail": str(error)})
        if kind == "raise" and self.journal.degraded is not None:
            return  # what cannot be remembered may not be given
        started_ns = self.clock_ns()
        boards = [self.boards[change.uuid] for change in sets]
        gpus = [board.gpu for board in boards if board.gpu is not None]
        done = await self._calls.each(
            f"set power limit ({kind})",
            [
                (gpu.uuid, partial(gpu.set_power_limit_milliwatts, change.new_milliwatts))
                for gpu, change in zip(gpus, sets, strict=True)
            ],
        )
        back = await self._calls.each("read power limit", [(gpu.uuid, gpu.read_power_limit) for gpu in gpus])
        for board, change, outcome, read in zip(boards, sets, done, back, strict=True):
            if isinstance(outcome, GpuError):
                self.tally.errors[(outcome.operation, outcome.code)] += 1
                board.set_error = str(outcome)
            else:
                board.set_error = None
            if isinstance(read, GpuError):
                self._note_error(board, read)
                board.held_milliwatts = max(board.held_milliwatts, change.new_milliwatts)
                board.ours_milliwatts = None
                continue
            board.limit = read
            board.held_milliwatts = read.held_milliwatts
            taken = read.requested_milliwatts == change.new_milliwatts
            board.ours_milliwatts = change.new_milliwatts if taken else None
            if not taken and board.set_error is None:
                board.set_error = (
                    f"{board.uuid}: set to {change.new_milliwatts} mW with success, reads back "
                    f"{read.requested_milliwatts} mW"
                )
            logger.info(
                "limit",
                extra={
                    "node": self.node,
                    "uuid": board.uuid,
                    "change": kind,
                    "old_milliwatts": change.old_milliwatts,
                    "new_milliwatts": change.new_milliwatts,
                    "read_back_milliwatts": read.requested_milliwatts,
                    "epoch": spec.epoch,
                    "generation": spec.generation,
                    "reason": str(board.purpose) if self.mode is not Mode.FAILSAFE else "failsafe",
                },
            )
        self.tally.applied[kind] += len(sets)
        self.tally.applied_seconds[kind] += (self.clock_ns() - started_ns) / NANOSECONDS
        forbidden = all(isinstance(outcome, GpuError) and outcome.fatal for outcome in done)
        self._forbidden_rounds = self._forbidden_rounds + 1 if forbidden else 0
        if self._forbidden_rounds >= ROUNDS_BEFORE_EXIT:
            self.must_exit = f"no board may be set: {done[0]}"

    async def _set_locks(self, targets: Mapping[str, Target]) -> None:
        sets = core.lock_sets(self.views(), targets)
        calls: list[tuple[str, Callable[[], None]]] = []
        for change in sets:
            gpu = self.boards[change.uuid].gpu
            if gpu is not None and change.lock == core.UNLOCKED:
                calls.append((change.uuid, gpu.reset_locked_clocks))
            elif gpu is not None:
                calls.append((change.uuid, partial(gpu.set_locked_clocks_megahertz, *change.lock)))
        for change, result in zip(sets, await self._calls.each("lock clocks", calls), strict=True):
            board = self.boards[change.uuid]
            if isinstance(result, GpuError):
                self.tally.errors[(result.operation, result.code)] += 1
                board.lock_refused = str(result)
                if isinstance(result, NotSupported):
                    board.lock = change.lock  # asked once, never again for this range: the board cannot
                continue
            board.lock = change.lock
            board.lock_refused = None

    def _judge(self, targets: Mapping[str, Target]) -> None:
        """Acknowledge what holds; keep looking soon while a limit settles."""
        now_ns = self.clock_ns()
        self.settling = False
        blocked = False
        above = set(core.above_target(self.views(), targets))
        for board in self.boards.values():
            if board.uuid in above:
                board.above_since_ns = now_ns if board.above_since_ns is None else board.above_since_ns
                waiting = now_ns - board.above_since_ns < self._settle_ns
                self.settling = self.settling or waiting
                blocked = blocked or waiting
            else:
                board.above_since_ns = None
            # A lost board stays as it is; of one that hangs or answers nonsense nobody knows.
            if board.error is not None and not isinstance(board.error, GpuLost | ResetRequired | GpuNotFound):
                blocked = True
        readable = any(board.limit is not None for board in self.boards.values())
        ack = self.acknowledged
        total = core.total_held_milliwatts(self.views())
        if self.spec is None or not readable:
            return
        # What was acknowledged may come to hold more again (a limit that drifted and will not go back): said at once.
        source = (*self.spec.pair, self.driver.boot_id, str(self.incarnation))
        worse = ack is not None and ack.source == source and total > ack.limits_milliwatts
        if blocked and not worse:
            return
        if ack is None or (ack.source, ack.limits_milliwatts) != (source, total):
            if ack is None or ack.source != source:
                with contextlib.suppress(JournalError):
                    self.journal.sync()
            self.acknowledged = Acknowledgement(*source, limits_milliwatts=total, wall_time=self._wall_seconds())
            logger.info(
                "acknowledged",
                extra={
                    "node": self.node,
                    "epoch": self.spec.epoch,
                    "generation": self.spec.generation,
                    "limits_milliwatts": total,
                    "mode": str(self.mode),
                },
            )

    def above_for_good(self, board: BoardState) -> bool:
        """Whether the board holds more than its target and was given time enough to go down."""
        return board.above_since_ns is not None and self.clock_ns() - board.above_since_ns >= self._settle_ns

    def _note_throttling(self, board: BoardState, reasons: int, elapsed_seconds: float) -> None:
        while reasons:
            bit = reasons & -reasons
            board.throttled_seconds[bit] = board.throttled_seconds.get(bit, 0.0) + elapsed_seconds
            reasons ^= bit

    def _note_driver(self) -> None:
        was = str(self.incarnation)
        if self.incarnation.reloaded():
            logger.warning("driver reloaded", extra={"node": self.node, "was": was, "now": str(self.incarnation)})
            for board in self.boards.values():
                board.lock = None
                board.ours_milliwatts = None

    def _note_counter(self, board: BoardState, counter_millijoules: int | None) -> None:
        if counter_millijoules is not None and self.incarnation.fell_back(board.uuid, counter_millijoules):
            self.tally.counter_resets += 1
            board.lock = None
            board.ours_milliwatts = None
            logger.warning("energy counter fell back", extra={"node": self.node, "uuid": board.uuid})

    def _remember_boards(self) -> None:
        """Save how each board was found, once, before anything is set."""
        new = [
            KnownBoard(
                board.uuid,
                board.model,
                board.limits.min_milliwatts,
                board.limits.max_milliwatts,
                board.limits.default_milliwatts,
                board.limit.requested_milliwatts,
            )
            for board in self.boards.values()
            if board.limit is not None and board.uuid not in self.journal.state.boards
        ]
        if new:
            with contextlib.suppress(JournalError):
                self.journal.commit(boards_record(new))

    def close(self) -> None:
        """Stop; every limit and lock stays as it is."""
        self._calls.close()
        self.journal.close()
