"""Which agents are alive: a report is a sign of life from when it was made, which its node's own clock shows."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import msgspec
import pytest
from flyball_api.gpu_node import Acknowledgement, GpuNode, RoundTime
from flyball_api.grant import GrantVersion
from flyball_api.values.units import NodeMilliwatts
from flyball_operator.power.nodes.heartbeats import CLOCK_RATES_DIFFER, MOST_GRANTS_REMEMBERED, Heartbeats
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.operator_objects import SESSION, gpu_node_view, grant, raw_device


def reported(energy: int, *, name: str = "a") -> GpuNode:
    """A GPUNode as its agent reports it once its GPU has used so much energy."""
    device = raw_device(0) | {"energyMillijoules": energy}
    return gpu_node_view(name, grant(100_000), devices=[device], limits=100_000)


def silent_after(
    beats: Heartbeats,
    gpu_nodes: Mapping[str, GpuNode],
    monotonic: float,
    signs: Collection[str] = (),
    *,
    behind: float = 0.0,
) -> dict[str, float]:
    """Who has been silent for too long, and for how many seconds, once these GPUNodes and signs of a boot are seen, by a
    watch that is so many seconds behind."""
    beats.update(gpu_nodes, monotonic, signs, behind_seconds=behind)
    return beats.silent_seconds(monotonic)


def test_a_report_that_is_the_same_as_before_proves_nothing() -> None:
    beats = Heartbeats(75.0)
    assert silent_after(beats, {"a": reported(1)}, 100.0) == {}
    assert silent_after(beats, {"a": reported(1)}, 175.0) == {}
    assert silent_after(beats, {"a": reported(1)}, 175.5) == {"a": 75.5}


def test_another_report_does_and_a_grant_is_none() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": reported(1)}, 100.0)
    assert silent_after(beats, {"a": reported(2)}, 170.0) == {}
    # The operator's own writes change the object too.
    granted = replace(reported(2), grant=grant(200_000, generation=2))
    granted = replace(granted, metadata=msgspec.structs.replace(granted.metadata, resource_version="99"))
    assert silent_after(beats, {"a": granted}, 245.0) == {}
    assert silent_after(beats, {"a": granted}, 246.0) == {"a": 76.0}
    assert silent_after(beats, {"a": reported(3)}, 247.0) == {}


def test_each_node_counts_for_itself_and_is_forgotten_with_its_object() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": reported(1), "b": reported(1, name="b")}, 0.0)
    assert silent_after(beats, {"a": reported(2), "b": reported(1, name="b")}, 80.0) == {"b": 80.0}
    silent_after(beats, {}, 81.0)
    assert silent_after(beats, {"b": reported(1, name="b")}, 82.0) == {}


def test_after_a_sign_of_a_boot_only_the_next_report_is_one() -> None:
    beats = Heartbeats(75.0)
    assert silent_after(beats, {"a": reported(1), "b": reported(1, name="b")}, 100.0, {"a"}) == {"a": 0.0}
    assert silent_after(beats, {"a": reported(1), "b": reported(1, name="b")}, 101.0) == {"a": 1.0}
    assert silent_after(beats, {"a": reported(2), "b": reported(1, name="b")}, 102.0, {"a"}) == {"a": 0.0}
    assert silent_after(beats, {"a": reported(3), "b": reported(1, name="b")}, 103.0) == {}


def test_a_gpu_node_that_cannot_be_read_for_a_moment_is_doubted_until_its_agents_next_report() -> None:
    """Else whoever has been silent for an hour would begin anew, and a Node that was not ready meanwhile show nothing."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": reported(1), "b": reported(1, name="b")}, 0.0)
    assert silent_after(beats, {"a": reported(1), "b": reported(2, name="b")}, 80.0) == {"a": 80.0}
    beats.update({}, 81.0, unread=("a", "b", "hall"))
    assert silent_after(beats, {"a": reported(1), "b": reported(2, name="b")}, 82.0) == {"a": 82.0, "b": 2.0}
    assert beats.next_silence_seconds(82.0) == math.inf
    assert silent_after(beats, {"a": reported(2), "b": reported(3, name="b")}, 83.0) == {}


# --- reports that say when they were made ------------------------------------------------------------------------------


def made(boottime: float, *, boot_id: str = SESSION[0], by: str = "2.0", agent: str = "2.0") -> GpuNode:
    """A GPUNode as its agent reports it so many seconds after its node's boot."""
    view = reported(int(boottime * 1000))
    status = msgspec.structs.replace(
        view.status, boot_id=boot_id, agent_version=agent, last_round=RoundTime(int(boottime * 1e9), by)
    )
    return replace(view, status=status)


def test_a_report_that_comes_late_is_a_sign_of_life_from_when_it_was_made() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    assert silent_after(beats, {"a": made(5030.0)}, 130.0) == {}
    # Sent at 140 before the agent died, and taken up by the API server a minute later.
    assert silent_after(beats, {"a": made(5040.0)}, 200.0) == {}
    assert beats.next_silence_seconds(200.0) == pytest.approx(15.0 + 0.1 * 70.0)
    (silent,) = silent_after(beats, {"a": made(5040.0)}, 222.5).values()
    assert silent > 75.0


def test_no_report_that_was_made_before_a_doubt_lifts_it() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    assert silent_after(beats, {"a": made(5000.0)}, 175.5) == {"a": 75.5}
    assert "a" in silent_after(beats, {"a": made(5060.0)}, 176.0), "made at 160 or little later"
    assert "a" in silent_after(beats, {"a": made(5066.0)}, 176.1)
    assert silent_after(beats, {"a": made(5076.5)}, 176.6) == {}


def test_after_a_sign_of_a_boot_a_report_from_before_it_is_none() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    assert silent_after(beats, {"a": made(5000.0)}, 120.0, {"a"}) == {"a": 20.0}
    assert "a" in silent_after(beats, {"a": made(5010.0)}, 121.0)
    assert silent_after(beats, {"a": made(5022.0)}, 122.0) == {}


def test_each_boot_has_a_clock_of_its_own() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    assert silent_after(beats, {"a": made(20.0, boot_id="boot-2")}, 170.0) == {}
    assert silent_after(beats, {"a": made(50.0, boot_id="boot-2")}, 200.0) == {}
    assert beats.next_silence_seconds(200.0) == 75.0


def test_a_clock_that_was_set_back_keeps_no_agent_doubted_for_long() -> None:
    """As of a machine that was put back with its memory, in the same boot, or after a report that was nonsense."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(1e9)}, 100.0)
    assert "a" not in silent_after(beats, {"a": made(5000.0)}, 130.0)
    assert "a" not in silent_after(beats, {"a": made(5030.0)}, 160.0)
    assert silent_after(beats, {"a": made(5060.0)}, 190.0) == {}
    assert beats.next_silence_seconds(190.0) == 75.0
    assert silent_after(beats, {"a": made(5090.0)}, 220.0) == {}
    # Now it is known again how late a report is.
    assert "a" in silent_after(beats, {"a": made(5091.0)}, 310.0)
    assert silent_after(beats, {"a": made(5190.0)}, 320.0) == {}


@pytest.mark.parametrize("behind", [90.0, 200.0])
def test_reports_that_come_to_seem_late_keep_an_agent_doubted_for_ten_times_as_long_as_they_are_too_late(
    behind: float,
) -> None:
    """Of a machine that was paused for so long, whose clock stood still, or behind an API server that is so slow now."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 0.0)
    end = 10 * (behind + 1.0 - 75.0)  # the last report is as old as that before the next one comes, a second later
    silent = {
        at: silent_after(beats, {"a": made(5000.0 + at - behind)}, float(at)) for at in range(int(behind) + 1, 3000)
    }
    last = max(at for at in silent if silent[at])
    assert end - 1.0 <= last <= end + 75.0
    assert all(silent[at] for at in silent if at <= last)
    another_leader = Heartbeats(75.0)
    assert silent_after(another_leader, {"a": made(5000.0)}, 0.0) == {}
    assert silent_after(another_leader, {"a": made(5030.0)}, 30.0) == {}


def test_what_a_leader_sees_first_of_an_agent_counts_when_it_is_seen() -> None:
    """An agent that died as it sent a report is believed for longer by as much as that was under way."""
    beats = Heartbeats(75.0)
    assert silent_after(beats, {"a": made(5000.0)}, 100.0) == {}, "made at 40"
    assert silent_after(beats, {"a": made(5000.0)}, 175.0) == {}
    assert silent_after(beats, {"a": made(5000.0)}, 175.5) == {"a": 75.5}


def answered(boottime: float, generation: int, *, answer: float | None = None, boot_id: str = SESSION[0]) -> GpuNode:
    """The same, which acknowledges that grant, as of `answer` seconds after the boot if that was before the report."""
    node = made(boottime, boot_id=boot_id)
    acknowledged = Acknowledgement(
        2,
        generation,
        NodeMilliwatts(100_000),
        boot_id=boot_id,
        boottime_nanoseconds=int((boottime if answer is None else answer) * 1e9),
    )
    return replace(node, status=msgspec.structs.replace(node.status, acknowledged=acknowledged))


def test_what_a_leader_is_answered_first_was_made_when_it_asked() -> None:
    """Its agent may have died as it sent that. By what was seen before, reports seem to take as long as they lay there."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)  # made at 75
    beats.sent("a", GrantVersion(2, 1), 100.0)
    silent_after(beats, {"a": made(5010.0)}, 115.0)
    assert silent_after(beats, {"a": answered(5026.0, 1)}, 140.0) == {}
    assert beats.next_silence_seconds(140.0) == 35.0
    assert silent_after(beats, {"a": answered(5026.0, 1)}, 175.5) == {"a": 75.5}


def test_what_a_node_has_acknowledged_to_a_gpu_node_before_is_no_answer_to_what_was_sent_since() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    beats.sent("a", GrantVersion(2, 1), 100.0)
    silent_after(beats, {"a": answered(5001.0, 40, answer=1000.0)}, 101.0)
    beats.sent("a", GrantVersion(2, 41), 102.0)
    assert silent_after(beats, {"a": answered(5003.0, 41)}, 140.0) == {}
    assert beats.next_silence_seconds(140.0) == 37.0


@pytest.mark.parametrize("answered_after", [0.0, 5.0, 40.0, 400.0])
def test_what_is_answered_to_the_grant_with_which_a_gpu_node_is_made_is_as_old_as_the_watch_is_behind(
    answered_after: float,
) -> None:
    """Its agent may come as late as its image: taken for how long reports take, it would seem silent between two."""
    beats = Heartbeats(75.0)
    silent_after(beats, {}, 100.0)
    beats.sent("a", GrantVersion(2, 1), 100.0)
    if answered_after:
        silent_after(beats, {"a": reported(0)}, 100.0 + answered_after)
    at = 104.0 + answered_after
    assert silent_after(beats, {"a": answered(20.0, 1)}, at, behind=3.0) == {}
    assert beats.next_silence_seconds(at) == 72.0


def test_what_a_leader_is_answered_first_after_a_boot_was_made_when_it_asked() -> None:
    """Nothing that was known of the clock before the boot shows how late it comes."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    beats.sent("a", GrantVersion(2, 1), 100.0)
    silent_after(beats, {"a": answered(5000.5, 1)}, 101.0)
    beats.sent("a", GrantVersion(2, 2), 130.0)
    assert silent_after(beats, {"a": answered(20.0, 2, boot_id="boot-2")}, 150.0) == {}
    assert beats.next_silence_seconds(150.0) == 55.0


def test_a_later_report_is_as_much_later_than_the_first_answer() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    beats.sent("a", GrantVersion(2, 1), 100.0)
    silent_after(beats, {"a": answered(5046.0, 1, answer=5026.0)}, 125.0)
    assert beats.next_silence_seconds(125.0) == 70.0, "it answered at 100 at the soonest, and told so 20 s later"


@pytest.mark.parametrize(("late", "doubted"), [(14.0, False), (16.0, True)])
def test_what_a_first_grant_took_is_taken_off_what_the_next_reports_may_take(late: float, doubted: bool) -> None:
    """Its agent saw it after half a minute, and answered at once: nothing tells that from one that was told late."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    beats.sent("a", GrantVersion(2, 1), 100.0)
    first = answered(5030.0, 1)
    assert silent_after(beats, {"a": first}, 130.0) == {}
    seen_at = 160.0 + late
    assert bool(silent_after(beats, {"a": first}, seen_at)) is doubted
    silent_after(beats, {"a": answered(5060.0, 1, answer=5030.0)}, seen_at)
    assert bool(silent_after(beats, {"a": answered(5090.0, 1, answer=5030.0)}, 190.0)) is doubted
    assert silent_after(beats, {"a": answered(5120.0, 1, answer=5030.0)}, 220.0) == {}


def test_of_several_grants_the_last_that_is_answered_says_since_when() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    for generation, at in ((1, 100.0), (2, 110.0), (3, 120.0), (2, 125.0)):
        beats.sent("a", GrantVersion(2, generation), at)
    silent_after(beats, {"a": answered(5040.0, 2)}, 130.0)
    assert beats.next_silence_seconds(130.0) == 55.0
    # From then on reports show by themselves how late they come.
    beats.sent("a", GrantVersion(2, 4), 131.0)
    silent_after(beats, {"a": answered(5070.0, 4)}, 145.0)
    assert beats.next_silence_seconds(145.0) == pytest.approx(140.0 + 0.1 * 15.0 + 75.0 - 145.0)


def test_a_node_that_answers_nothing_for_long_costs_no_memory_and_is_not_called_silent_for_it() -> None:
    """As one that was cut off: by the time at which it was asked, it would seem to have been silent ever since."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 0.0)
    beats.sent("a", GrantVersion(2, 0), 0.0)
    silent_after(beats, {"a": answered(5000.25, 0)}, 0.5)
    for generation in range(1, 1000):
        beats.sent("a", GrantVersion(2, generation), float(generation))
    assert len(beats._pulses["a"].sent) == MOST_GRANTS_REMEMBERED
    between = (
        generation - MOST_GRANTS_REMEMBERED + 2
    )  # counts as the second one, after which no report may come so late
    assert silent_after(beats, {"a": answered(5990.0, between)}, 1000.0) == {}
    assert beats.next_silence_seconds(1000.0) == 75.0
    assert silent_after(beats, {"a": answered(6020.0, between)}, 1030.0) == {}


def test_of_a_node_that_has_answered_nothing_for_long_the_next_answer_too_was_made_when_it_was_asked_for() -> None:
    """It was away, a cap that moved has had it granted something again and again, and it comes back by a boot."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 0.0)
    for generation in range(1, 2 * MOST_GRANTS_REMEMBERED):
        beats.sent("a", GrantVersion(2, generation), 100.0 * generation)
    asked = 100.0 * generation
    assert silent_after(beats, {"a": answered(20.0, generation, boot_id="boot-2")}, asked + 30.0) == {}
    assert beats.next_silence_seconds(asked + 30.0) == 45.0


@pytest.mark.parametrize(
    ("seen", "behind", "believed_for"),
    [(145.0, 20.0, 30.0), (145.5, 0.0, 75.0), (145.5, 20.0, 55.0), (345.5, 44.0, 31.0), (345.5, 200.0, 30.0)],
)
def test_an_answer_that_took_longer_than_reports_may_is_as_old_as_the_watch_is_behind(
    seen: float, behind: float, believed_for: float
) -> None:
    """And no older than a report may be: taken to have been made when it was asked for, it would have the reports after
    it seem older than any may be."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    beats.sent("a", GrantVersion(2, 1), 100.0)
    beats.sent("a", GrantVersion(2, 2), 140.0)
    assert silent_after(beats, {"a": answered(5245.5, 1)}, seen, behind=behind) == {}
    assert beats.next_silence_seconds(seen) == believed_for


def test_what_is_acknowledged_again_after_a_boot_is_as_old_as_the_watch_is_behind() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    beats.sent("a", GrantVersion(2, 1), 100.0)
    silent_after(beats, {"a": answered(5000.5, 1)}, 101.0)
    assert silent_after(beats, {"a": answered(20.0, 1, boot_id="boot-2")}, 150.0, {"a"}, behind=10.0) == {"a": 10.0}
    assert silent_after(beats, {"a": answered(25.0, 1, boot_id="boot-2", answer=20.0)}, 155.0) == {"a": 9.5}
    assert silent_after(beats, {"a": answered(31.0, 1, boot_id="boot-2", answer=20.0)}, 160.5) == {}


@pytest.mark.parametrize(
    ("second_sent", "answered_before", "believed_for"),
    [(110.0, 2, 75.0), (130.0, 1, 55.0)],
    ids=["acknowledged before the boot, too: what was sent before it says nothing", "sent after what was answered"],
)
def test_after_a_boot_only_what_had_no_answer_before_it_says_when_it_is_answered(
    second_sent: float, answered_before: int, believed_for: float
) -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    for generation, at in ((1, 100.0), (2, second_sent)):
        beats.sent("a", GrantVersion(2, generation), at)
    silent_after(beats, {"a": answered(second_sent + 4900.5, answered_before)}, second_sent + 1.0)
    assert silent_after(beats, {"a": answered(20.0, 2, boot_id="boot-2")}, second_sent + 20.0) == {}
    assert beats.next_silence_seconds(second_sent + 20.0) == believed_for


def test_what_an_earlier_boot_has_answered_says_nothing_of_this_ones_clock() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    beats.sent("a", GrantVersion(2, 1), 100.0)
    status = msgspec.structs.replace(
        answered(5010.0, 1).status, boot_id="boot-2", last_round=RoundTime(5 * 10**9, "2.0")
    )
    assert silent_after(beats, {"a": replace(made(5.0), status=status)}, 130.0) == {}
    assert beats.next_silence_seconds(130.0) == 75.0


@settings(max_examples=examples(300), deadline=None)
@given(
    st.floats(0.0, 70.0),
    st.floats(0.0, 20.0),
    st.floats(0.0, 19.0),
    st.lists(st.floats(0.0, 5.0), max_size=20),
    st.floats(0.0, 1e6),
)
def test_no_agent_is_believed_for_longer_than_a_silence_may_last_whatever_its_leader_saw_first(
    old: float, answers_after: float, told_after: float, delays: list[float], booted: float
) -> None:
    """Nor is one called dead that goes on to report in time."""
    beats, timeout, sent_at = Heartbeats(75.0), 75.0, 100.0
    silent_after(beats, {"a": made(booted + sent_at - old)}, sent_at)
    beats.sent("a", GrantVersion(2, 1), sent_at)
    made_at = sent_at + answers_after
    now = made_at + told_after
    assert silent_after(beats, {"a": answered(booted + made_at, 1)}, now) == {}
    assert beats.next_silence_seconds(now) <= made_at + timeout - now + 1e-3
    proven_at = now
    for delay in delays:
        made_at = max(now, made_at + 30.0)
        now = made_at + delay
        report = answered(booted + made_at, 1, answer=booted + sent_at + answers_after)
        assert silent_after(beats, {"a": report}, now) == {}
        late = min(delay, CLOCK_RATES_DIFFER * (now - proven_at))
        assert beats.next_silence_seconds(now) <= made_at + late + timeout - now + 1e-3


def test_reports_that_a_restore_brings_back_are_no_clock_that_was_set_back() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    silent_after(beats, {"a": made(5030.0)}, 130.0)
    for seconds, backup in ((140.0, 4000.0), (170.0, 4500.0), (200.0, 4300.0)):
        silent_after(beats, {"a": made(backup)}, seconds)
    assert "a" in silent_after(beats, {"a": made(4300.0)}, 206.0), "its last report of its own was made at 130"
    assert silent_after(beats, {"a": made(5110.0)}, 210.0) == {}


def test_nor_are_they_where_the_last_of_them_is_the_agents_own_last() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    silent_after(beats, {"a": made(5030.0)}, 130.0)
    for seconds, backup in ((180.0, 5010.0), (190.0, 5020.0), (200.0, 5030.0)):
        silent_after(beats, {"a": made(backup)}, seconds)
    assert beats.next_silence_seconds(200.0) == pytest.approx(130.0 + 75.0 + 0.1 * 70.0 - 200.0)


def test_a_report_that_says_the_same_moment_again_is_no_sign_of_a_clock_that_was_set_back() -> None:
    """Only a clock that goes on is one: what is said of one moment may be told in several reports."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    for energy, seconds in enumerate((150.0, 160.0, 170.0, 180.0)):
        status = msgspec.structs.replace(made(4000.0).status, devices=reported(energy).status.devices)
        silent_after(beats, {"a": replace(made(4000.0), status=status)}, seconds)
    assert "a" in silent_after(beats, {"a": made(4000.0)}, 190.0), "none of them shows that it lived after 100"


def test_a_report_that_was_made_after_the_silence_was_noticed_ends_it() -> None:
    """However long it has been noticed at every look since: the doubt is as old as the first of them."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    for seconds in (175.5, 180.0, 185.0, 190.0):
        assert "a" in silent_after(beats, {"a": made(5000.0)}, seconds)
    assert silent_after(beats, {"a": made(5078.0)}, 191.0) == {}, "made at 178 or little later"


@pytest.mark.parametrize("looked_between", [True, False])
def test_a_silence_that_follows_a_doubt_is_another_one(looked_between: bool) -> None:
    """Made after the sign and held up for longer than anybody may be silent: much may have befallen the node since."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    silent_after(beats, {"a": made(5000.0)}, 120.0, {"a"})
    if looked_between:
        assert "a" in silent_after(beats, {"a": made(5000.0)}, 176.0)
    assert "a" in silent_after(beats, {"a": made(5030.0)}, 177.0), "made at 130 to 138, before the silence was too long"
    assert silent_after(beats, {"a": made(5077.5)}, 178.0) == {}


def test_no_silence_takes_back_a_doubt_that_began_after_it() -> None:
    """A Node that shows a boot while its agent has been silent for too long: what was made in between proves nothing."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    silent_after(beats, {"a": made(5000.0)}, 200.0, {"a"})
    silent_after(beats, {"a": made(5000.0)}, 201.0)
    assert "a" in silent_after(beats, {"a": made(5080.0)}, 202.0), "made at 180 to 190, before the sign"
    assert silent_after(beats, {"a": made(5102.0)}, 203.0) == {}


def test_a_silence_counts_from_when_it_was_too_long_and_not_from_when_somebody_looked() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    assert silent_after(beats, {"a": made(5080.0)}, 190.0) == {}, "made at 180, and the silence was too long at 175"


def test_an_agent_that_says_nothing_of_its_rounds_is_alive_when_its_reports_are_seen() -> None:
    """An older one, in whose status stands still what the one before it had said."""
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    left = msgspec.structs.replace(reported(1).status, agent_version="1.0", last_round=RoundTime(5 * 10**12, "2.0"))
    assert silent_after(beats, {"a": replace(reported(1), status=left)}, 160.0) == {}
    again = msgspec.structs.replace(reported(2).status, agent_version="1.0", last_round=RoundTime(5 * 10**12, "2.0"))
    assert silent_after(beats, {"a": replace(reported(2), status=again)}, 230.0) == {}
    assert silent_after(beats, {"a": made(5200.0)}, 300.0) == {}


def test_an_acknowledgement_of_a_brake_is_a_sign_of_life_between_two_reports() -> None:
    beats = Heartbeats(75.0)
    silent_after(beats, {"a": made(5000.0)}, 100.0)
    status = made(5000.0).status
    acknowledged = Acknowledgement(
        1, 1, NodeMilliwatts(100_000), boot_id=SESSION[0], boottime_nanoseconds=5_020_000_000_000
    )
    braked = replace(made(5000.0), status=msgspec.structs.replace(status, acknowledged=acknowledged))
    silent_after(beats, {"a": braked}, 120.0)
    assert beats.next_silence_seconds(120.0) == 75.0
    other_boot = msgspec.structs.replace(acknowledged, boot_id="boot-0", boottime_nanoseconds=9_000_000_000_000)
    assert (
        replace(braked, status=msgspec.structs.replace(status, acknowledged=other_boot)).alive_nanoseconds == 5 * 10**12
    )


def test_the_next_silence_is_that_of_the_agent_that_was_heard_longest_ago() -> None:
    beats = Heartbeats(75.0)
    assert beats.next_silence_seconds(0.0) == math.inf
    silent_after(beats, {"a": reported(1), "b": reported(1, name="b")}, 0.0)
    silent_after(beats, {"a": reported(2), "b": reported(1, name="b")}, 10.0)
    assert beats.next_silence_seconds(10.0) == 65.0
    silent_after(beats, {"a": reported(2), "b": reported(1, name="b")}, 76.0)
    assert beats.next_silence_seconds(76.0) == 9.0, "who is silent is waited for no more"


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 30.0), st.floats(0.0, 60.0)), min_size=1, max_size=30),
    st.floats(0.92, 1.08),
    st.floats(0.0, 1e6),
)
def test_reports_of_any_delay_keep_no_agent_alive_for_longer_than_the_way_of_the_fastest(
    reports: list[tuple[float, float]], rate: float, booted: float
) -> None:
    """However late they come and whatever the clock's rate: nor is an agent called dead of which reports come in time."""
    beats, timeout = Heartbeats(75.0), 75.0
    now, made_at, fastest = 0.0, 0.0, math.inf
    silent_after(beats, {"a": made(booted)}, 0.0)
    fastest, at = 0.0, 0.0
    for pause, delay in reports:
        made_at = max(made_at, now) + pause  # one write at a time, as an agent makes them
        now = made_at + delay
        silent = silent_after(beats, {"a": made(booted + made_at * rate)}, now)
        fastest = min(delay, fastest + 0.2 * (now - at))  # what both errors of the clock come to
        at = now
        life_ends = made_at + fastest + timeout
        assert beats.next_silence_seconds(now) <= life_ends - now + 1e-3 or silent
        if delay == 0.0:
            assert not silent
