"""Room for statuses: news before those that wait, and as many figures as get written."""

from __future__ import annotations

from flyball_operator.jobs.status_lanes import (
    FEWEST_FIGURES_AT_ONCE,
    FEWEST_WAITING_AT_ONCE,
    MOST_FIGURES_AT_ONCE,
    MOST_WAITING_AT_ONCE,
    STATUSES_AT_ONCE,
    Lane,
    Lanes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{index}" for index in range(count)]


def test_thousands_that_wait_leave_room_for_what_happens() -> None:
    lanes = Lanes()
    waiting = names("waits", lanes.step(())[Lane.WAITING])
    lanes.begun(dict.fromkeys(waiting, Lane.WAITING))
    rooms = lanes.step(waiting)
    assert rooms[Lane.WAITING] == 0
    assert rooms[Lane.NEWS] == STATUSES_AT_ONCE
    assert rooms[Lane.FIGURES] == 0, "while so many others wait for their turn"


def test_limits_and_figures_wait_for_a_cut_and_news_do_not() -> None:
    lanes = Lanes()
    before = lanes.step(())
    assert before[Lane.POWER] == before[Lane.FIGURES] == FEWEST_FIGURES_AT_ONCE
    rooms = lanes.step((), figures_wait=True)
    assert rooms == {**before, Lane.POWER: 0, Lane.FIGURES: 0}
    assert lanes.step(()) == before, "and go on behind it"


def test_as_many_that_wait_are_told_as_get_written() -> None:
    """A cycle over ten thousand jobs and its rest take longer than an API server needs for the first two hundred."""
    lanes, begun = Lanes(), []
    for _ in range(4):
        begun.append(lanes.step(())[Lane.WAITING])
        lanes.begun(dict.fromkeys(names("waits", begun[-1]), Lane.WAITING))
    assert begun == [FEWEST_WAITING_AT_ONCE, 384, MOST_WAITING_AT_ONCE, MOST_WAITING_AT_ONCE]
    left = names("waits", MOST_WAITING_AT_ONCE // 2 + 1)
    assert lanes.step(left)[Lane.WAITING] == 0, "most of them still wait for their turn"
    lanes.begun({})
    assert lanes.step(names("waits", 100))[Lane.WAITING] == MOST_WAITING_AT_ONCE // 2 - 100


def test_as_many_figures_are_begun_as_get_written() -> None:
    lanes, begun = Lanes(), []
    for _ in range(4):
        begun.append(lanes.step(())[Lane.FIGURES])
        lanes.begun(dict.fromkeys(names("runs", begun[-1]), Lane.FIGURES))
    assert begun == [FEWEST_FIGURES_AT_ONCE, 64, MOST_FIGURES_AT_ONCE, MOST_FIGURES_AT_ONCE]
    left = names("runs", MOST_FIGURES_AT_ONCE - 10)
    assert lanes.step(left)[Lane.FIGURES] == 0, "most of them still wait for their turn"
    lanes.begun({})
    assert lanes.step(left[:40])[Lane.FIGURES] == 0
    lanes.begun({})
    assert lanes.step(())[Lane.FIGURES] == 64, "all of them have been written"


def test_new_limits_of_all_jobs_hold_up_nobody_else() -> None:
    lanes = Lanes()
    limits = names("runs", lanes.step(())[Lane.POWER])
    lanes.begun(dict.fromkeys(limits, Lane.POWER))
    rooms = lanes.step(limits)
    assert rooms[Lane.POWER] == 0, "the others' are begun as those get written"
    assert rooms[Lane.NEWS] == STATUSES_AT_ONCE - len(limits)
    assert rooms[Lane.FIGURES] == 0, "which are worth less"
    assert lanes.step(())[Lane.POWER] == 2 * len(limits)


def test_few_figures_are_no_reason_for_more() -> None:
    lanes = Lanes()
    for _ in range(4):
        assert lanes.step(())[Lane.FIGURES] == FEWEST_FIGURES_AT_ONCE
        lanes.begun(dict.fromkeys(names("runs", 5), Lane.FIGURES))


@given(st.lists(st.tuples(st.sampled_from(list(Lane)), st.integers(0, 300), st.floats(0, 1)), max_size=30))
@settings(max_examples=examples(100))
def test_no_room_is_ever_less_than_none_and_never_is_too_much_under_way(
    cycles: list[tuple[Lane, int, float]],
) -> None:
    lanes, under_way = Lanes(), list[str]()
    for count, (lane, wanted, written) in enumerate(cycles):
        rooms = lanes.step(under_way)
        assert all(room >= 0 for room in rooms.values())
        begun = names(f"cycle-{count}", min(wanted, rooms[lane]))
        lanes.begun(dict.fromkeys(begun, lane))
        under_way += begun
        assert len(under_way) <= STATUSES_AT_ONCE + MOST_WAITING_AT_ONCE
        under_way = under_way[int(written * len(under_way)) :]
