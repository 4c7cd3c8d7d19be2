"""Keeps a governor's driver open: opens it again where it fails, and lets go of it where the administrator asks.

Nobody knows what limits hold while the driver is away, so its GPUs count at their largest, in a driver session of its own.
The handles are closed only once the operator can see that, so that it has the node's watts reserved.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from flyball_kube.process.logs import get_logger

from flyball_agent import off_loop
from flyball_agent.clock import NANOSECONDS
from flyball_agent.enforce.driver_access import AbsentDriver
from flyball_agent.enforce.enforcer import Enforcer
from flyball_agent.enforce.requests import Requests
from flyball_agent.gpu.gpu import DriverUnavailable, GpuDriver, GpuError, GpusReleased

REOPEN_NS = 5 * NANOSECONDS
# A library that does not fit the driver any more comes right only in a container that is made anew.
ABSENT_NS = 300 * NANOSECONDS
# An agent that has reported nothing for so long has no proof left: its node counts at the largest limits anyway.
UNPUBLISHED_NS = 90 * NANOSECONDS


def close_late(opened: Future[GpuDriver]) -> None:
    """Close a driver that came up when nobody waited for it any more: its handles would keep others out for ever."""
    if opened.exception() is None:
        opened.result().close()


class DriverKeeper:
    """`between_rounds` does what is due. `open_driver` may block, and is called in a thread; without, nothing is opened."""

    def __init__(
        self,
        enforcer: Enforcer,
        requests: Requests,
        open_driver: Callable[[], GpuDriver] | None,
        *,
        clock_ns: Callable[[], int],
        node: str,
    ) -> None:
        self._log = get_logger(__name__, node=node)
        self._enforcer = enforcer
        self._requests = requests
        self._open_driver = open_driver
        self._clock_ns = clock_ns
        self._opening: Future[GpuDriver] | None = None
        self._tried_ns = 0
        self._absent_since_ns: int | None = clock_ns() if enforcer.driver_error is not None else None
        self._letting_go: GpuDriver | None = None
        self._closing: Future[None] | None = None
        self._released_round = 0
        self._released_ns = clock_ns()
        self._published_round = -1
        requests.note_taken_back()  # what an agent before this one had let go of

    def published(self, round_number: int) -> None:
        """The operator can see what was known after that round."""
        self._published_round = max(self._published_round, round_number)

    def between_rounds(self, round_number: int) -> None:
        """Let go of the driver, or open it, where that is due."""
        if self._open_driver is None:
            return
        now_ns = self._clock_ns()
        until = self._requests.released_until(now_ns)
        error = self._enforcer.driver_error
        if until is not None and not isinstance(error, GpusReleased):
            self._let_go(GpusReleased("release", detail=f"let go of by an administrator, for {until} s more at most"))
            self._released_round, self._released_ns = round_number, now_ns
        elif until is None and error is None and self._enforcer.state.driver_broken is not None:
            self._let_go(DriverUnavailable("read", detail=self._enforcer.state.driver_broken))
            self._close()
        elif until is None and error is not None:
            self._reopen(error, now_ns)
        if until is not None and isinstance(self._enforcer.driver_error, GpusReleased):
            self._let_go_of_what_opened()
            published = self._published_round > self._released_round or now_ns - self._released_ns > UNPUBLISHED_NS
            if self._letting_go is not None and published:
                self._close()
            if self._nothing_is_open and published:
                self._requests.note_released()

    @property
    def _nothing_is_open(self) -> bool:
        closed = self._closing is None or self._closing.done()
        return self._letting_go is None and self._opening is None and closed

    def _let_go(self, error: GpuError) -> None:
        self._log.warning("driver let go", reason=str(error))
        before = self._enforcer.swap_driver(AbsentDriver(error, self._enforcer.state.session.boot_id))
        if not isinstance(before, AbsentDriver):
            self._letting_go = before
        self._absent_since_ns = self._tried_ns = self._clock_ns()

    def _let_go_of_what_opened(self) -> None:
        """A driver that was being opened as its GPUs were to be let go of has come up."""
        if self._opening is not None and self._opening.done():
            opened, self._opening = self._opening, None
            if opened.exception() is None:
                self._letting_go = opened.result()

    def _close(self) -> None:
        if self._letting_go is not None:
            self._closing = off_loop.begin(self._letting_go.close, "close-driver")
            self._letting_go = None

    def _reopen(self, error: GpuError, now_ns: int) -> None:
        self._close()
        if self._opening is None:
            if now_ns - self._tried_ns >= REOPEN_NS or isinstance(error, GpusReleased):
                assert self._open_driver is not None  # noqa: S101
                self._tried_ns = now_ns
                self._opening = off_loop.begin(self._open_driver, "open-driver")
            return
        if not self._opening.done():
            return
        opened, self._opening = self._opening, None
        failure = opened.exception()
        if failure is None:
            self._enforcer.swap_driver(opened.result())
            self._absent_since_ns = None
            self._requests.note_taken_back()
            self._log.info("driver opened", gpus=len(self._enforcer.state.gpus))
            return
        absent_since_ns = now_ns if self._absent_since_ns is None else self._absent_since_ns
        if now_ns - absent_since_ns > ABSENT_NS:
            self._enforcer.state.must_exit = (
                f"the driver could not be opened for {ABSENT_NS // NANOSECONDS} s: {failure}"
            )
        if isinstance(failure, (GpuError, OSError)):
            unavailable = failure if isinstance(failure, GpuError) else DriverUnavailable("open", detail=str(failure))
            if str(unavailable) != str(error):
                self._enforcer.swap_driver(AbsentDriver(unavailable, self._enforcer.state.session.boot_id))
        else:
            self._enforcer.state.must_exit = f"opening the driver: {failure!r}"

    def close(self) -> None:
        """Close the driver, and one that is only being opened as soon as it is."""
        if self._opening is not None:
            self._opening.add_done_callback(close_late)
        if self._letting_go is not None:
            self._letting_go.close()
        self._enforcer.close_driver()
