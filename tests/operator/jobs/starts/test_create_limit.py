"""How fast Jobs are made where the API server has refused one, and for how long that wakes the operator."""

from __future__ import annotations

import math

from flyball_operator.jobs.starts.create_limit import BURST, CREATES_PER_SECOND, DENIED_SECONDS, CreateLimit


def test_where_one_was_refused_a_few_are_made_at_once_and_then_some_each_second() -> None:
    limit = CreateLimit()
    limit.answered("team", 100.0, denied=True)
    assert [limit.take("team", 100.0) for _ in range(int(BURST) + 1)] == [True] * int(BURST) + [False]
    assert limit.take("others", 100.0)
    assert limit.next_seconds(100.0) == 1.0 / CREATES_PER_SECOND
    assert limit.take("team", 100.0 + limit.next_seconds(100.0))
    limit.answered("team", 101.0, denied=False)
    assert [limit.take("team", 101.0) for _ in range(20)] == [True] * 20
    assert limit.next_seconds(101.0) == math.inf


def test_a_refusal_of_which_nothing_follows_any_more_wakes_nobody() -> None:
    """Its job may have been deleted: nothing is made there again that could be taken."""
    limit = CreateLimit()
    limit.answered("team", 100.0, denied=True)
    assert limit.next_seconds(100.0 + DENIED_SECONDS - 1.0) < math.inf
    assert limit.next_seconds(100.0 + DENIED_SECONDS) == math.inf
