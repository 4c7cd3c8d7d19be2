"""How far a clock is from the API server's: never more than is proven, however slow the answers are."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from flyball_kube.server_clock import SHORTEST_PAUSE_SECONDS, ServerClock
from hypothesis import given
from hypothesis import strategies as st

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()


class Clocks:
    """A server clock beside a wall clock that stands wherever it was read last, until it is set."""

    def __init__(self) -> None:
        self.wall = self.since_boot = 0.0
        self.server = ServerClock(lambda: self.wall, lambda: self.since_boot)

    def answered(self, date: str, sent: float, received: float) -> None:
        self.wall = received
        self.server.answered(date, sent, received)

    @property
    def ahead_seconds(self) -> float:
        return self.server.ahead_seconds


def date_of(server: float) -> str:
    """The header of an answer that a server gives at this time of its clock."""
    return format_datetime(datetime.fromtimestamp(int(server), UTC), usegmt=True)


@given(st.floats(-1e5, 1e5), st.floats(0.0, 60.0), st.floats(0.0, 60.0), st.floats(0.0, 1.0))
def test_every_exchange_bounds_the_difference_of_the_clocks(
    ahead: float, way_there: float, way_back: float, fraction: float
) -> None:
    server = NOON + fraction
    clock = Clocks()
    clock.answered(date_of(server), server - way_there + ahead, server + way_back + ahead)
    found = clock.ahead_seconds
    assert abs(found) <= abs(ahead) + 1e-6, "no more than there is"
    assert found * ahead >= 0.0, "and to no other side"
    assert abs(ahead) - abs(found) <= 1.0 + way_there + way_back + 1e-6, "and nearly all of it where answers are quick"


def test_the_latest_answer_counts_and_what_cannot_be_read_says_nothing() -> None:
    clock = Clocks()
    assert clock.ahead_seconds == 0.0
    clock.answered(date_of(NOON), NOON + 30.0, NOON + 30.5)
    assert clock.ahead_seconds == 29.0
    for odd in (
        "",
        "yesterday",
        "Mon, 99 Foo 2026 12:00:00 GMT",
        "Mon, 02 Mar 2026",
        "\x00" * 1000,
        "Fri, 27 Nov 2026 11:00:00 +9999999999999",
        "Fri, 31 Dec 9999 23:59:59 -2359",
    ):
        clock.answered(odd, NOON + 30.5, NOON + 30.5)
        assert clock.ahead_seconds == 29.0
    clock.answered(date_of(NOON), NOON + 9.0, NOON + 7.0)  # it was set back meanwhile
    assert clock.ahead_seconds == 29.0 - 23.5
    clock.answered(date_of(NOON), NOON - 10.5, NOON - 10.0)
    assert clock.ahead_seconds == -10.0
    clock.answered(date_of(NOON), NOON + 0.5, NOON + 0.6)
    assert clock.ahead_seconds == 0.0


@pytest.mark.parametrize(
    ("later", "due"), [(0.0, False), (SHORTEST_PAUSE_SECONDS / 2, False), (SHORTEST_PAUSE_SECONDS, True), (-5.0, True)]
)
def test_an_answer_a_second_is_looked_at_and_one_after_the_clock_was_set_back(later: float, due: bool) -> None:
    clock = ServerClock()
    assert clock.due(NOON)
    clock.answered("", NOON, NOON)
    assert clock.due(NOON + later) is due


def test_a_clock_that_is_set_is_known_to_be_off_before_the_next_answer() -> None:
    clock = Clocks()
    clock.answered(date_of(NOON), NOON + 0.25, NOON + 0.5)
    clock.wall, clock.since_boot = clock.wall + 60.0, clock.since_boot + 60.0
    assert clock.ahead_seconds == 0.0
    clock.wall -= 7200.0
    assert clock.ahead_seconds == 0.5 - 7200.0
    clock.wall += 2 * 7200.0
    assert clock.ahead_seconds == 0.25 - 1.0 + 7200.0
    clock.wall -= 7200.0  # it is put right again
    assert clock.ahead_seconds == 0.0
