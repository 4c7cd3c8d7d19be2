"""Pauses after failures: they grow, they stay within their limits, and a success begins them anew."""

from __future__ import annotations

import asyncio

import pytest
from flyball_kube.backoff import SHORTEST_SHARE, Backoff


def test_pauses_double_up_to_the_last_and_are_jittered_below_their_full_length() -> None:
    full = (0.5, 1.0, 2.0, 3.0, 3.0)
    runs = []
    for _ in range(200):
        backoff = Backoff(0.5, 3.0)
        runs.append([backoff.next_seconds() for _ in full])
    for pauses in runs:
        assert all(SHORTEST_SHARE * most <= pause <= most for pause, most in zip(pauses, full, strict=True))
    assert len({pauses[0] for pauses in runs}) > 1


def test_a_success_begins_with_the_first_pause_again() -> None:
    backoff = Backoff(1.0, 60.0)
    for _ in range(5):
        backoff.next_seconds()
    backoff.reset()
    assert backoff.next_seconds() <= 1.0


async def test_a_pause_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    backoff = Backoff(1.0, 60.0)
    await backoff.pause()
    await backoff.pause()
    assert 0.5 <= slept[0] <= 1.0 <= slept[1] <= 2.0


@pytest.mark.parametrize(("first", "last"), [(0.0, 1.0), (2.0, 1.0)])
def test_limits_that_cannot_be_are_refused(first: float, last: float) -> None:
    with pytest.raises(ValueError, match="wanted: 0 < first <= last"):
        Backoff(first, last)
