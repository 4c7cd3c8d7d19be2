"""One step of a training, as its script sees it."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Callable, TypeVar

T = TypeVar("T")


class Step:
    """One part of a step: `with job.step() as step`; the optimizer's turn is where `completes_batch` is true."""

    __slots__ = ("_done", "completes_batch", "loss", "samples", "weight")

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self.loss: Any = None
        self.weight = 1.0
        self.samples = 0
        self.completes_batch = True

    def weighted(self, loss: T) -> T:
        """The mean loss of this part times `weight`: what sums up to the gradient of the whole global batch."""
        self.loss = loss
        return loss * self.weight  # type: ignore[operator, return-value]

    def __enter__(self) -> Step:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._done()
