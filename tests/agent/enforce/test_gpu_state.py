"""What a GPU may take yet of the limits that it was set to: however late its driver is, it works them off in order."""

from __future__ import annotations

from flyball_agent.enforce.gpu_state import COMING_NS, MAX_COMING, ComingLimits
from flyball_api.values.units import MilliwattsPerGpu
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

NOTHING = ComingLimits((), 0)


def asked(*limits: int, now_ns: int = 0) -> ComingLimits:
    coming = NOTHING
    for limit in limits:
        coming = coming.after(MilliwattsPerGpu(limit), now_ns)
    return coming


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3 * MAX_COMING), st.data())
def test_no_limit_that_is_to_come_is_forgotten_whatever_a_gpu_is_read_to_have_meanwhile(
    limits: list[int], data: st.DataObject
) -> None:
    coming: ComingLimits | None = asked(*limits)
    taken = 0
    while taken < len(limits):
        taken = data.draw(st.integers(taken + 1, len(limits)))
        if coming is not None:
            coming = coming.once_read(MilliwattsPerGpu(limits[taken - 1]))
        counted = max(() if coming is None else coming.limits_milliwatts, default=0)
        # One that is asked for again, and has been taken, changes nothing.
        assert max(counted, limits[taken - 1]) >= max(limits[taken:], default=0)


def test_a_limit_that_was_asked_for_again_may_be_the_first_of_that_height() -> None:
    assert asked(200, 250, 200).once_read(MilliwattsPerGpu(200)) == asked(200, 250, 200)
    assert asked(200, 250, 200).once_read(MilliwattsPerGpu(250)) == asked(250, 200)
    assert asked(300, 200, 200).once_read(MilliwattsPerGpu(200)) is None
    assert asked(300, 200).once_read(MilliwattsPerGpu(400)) == asked(300, 200), "another hand's"


def test_of_more_limits_than_are_known_none_is_taken_to_be_worked_off() -> None:
    """Which of them it is that a GPU is read to have is not known."""
    many = asked(*[300, 400] * MAX_COMING, 300)
    assert many.once_read(MilliwattsPerGpu(300)) == many
    after_a_restart = ComingLimits((*many.limits_milliwatts, MilliwattsPerGpu(200)), 0)
    assert after_a_restart.once_read(MilliwattsPerGpu(200)) == after_a_restart


def test_of_many_limits_the_highest_is_counted_and_none_for_longer_than_the_last() -> None:
    many = asked(*range(1, MAX_COMING + 2))
    assert len(many.limits_milliwatts) == MAX_COMING
    assert (max(many.limits_milliwatts), many.may_come(COMING_NS - 1)) == (MAX_COMING + 1, True)
    assert not many.may_come(COMING_NS)
    assert many.after(MilliwattsPerGpu(1), COMING_NS).limits_milliwatts == (1,)
