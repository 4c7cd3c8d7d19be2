"""The referee by itself: what it excuses of another hand's limit, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from flyball_simulated_gpu.virtual import VirtualNode

from tests.support.schedules.hardware import CONSTANTS, WatchedDevice
from tests.support.schedules.memory_api import Change
from tests.support.schedules.referee import LOOK_EVERY_SECONDS, SECONDS_ALLOWED, Referee
from tests.support.schedules.virtual_time import VirtualLoop

CLAIMED_WATTS = 230
REPORT_TIMEOUT_SECONDS = 60.0


class Scene:
    """A node of two GPUs at 100 and 130 W under a cap that claims their sum; then another hand sets the first to 250 W."""

    def __init__(self, loop: VirtualLoop, *, lowered_by_hand: bool = False) -> None:
        self.loop = loop
        self.referee = Referee(loop, lambda: True, REPORT_TIMEOUT_SECONDS, lambda _: None)
        node = VirtualNode("a", [CONSTANTS] * 2, lambda: int(loop.time() * 1e9))
        self.first, self.second = (WatchedDevice(device, node, self.referee) for device in node.devices)
        self.referee.add("a", node.devices, {}, lambda: int(loop.time() * 1e9))
        by_hand = self.first.device
        if lowered_by_hand:
            self.set(self.first, 130)
            self.referee.by_itself(by_hand, "drift", lambda: by_hand.set_power_limit_milliwatts(100_000))
        else:
            self.set(self.first, 100)
        self.set(self.second, 130)
        self.claim()
        assert not self.referee.violation
        self.referee.by_itself(by_hand, "drift", lambda: by_hand.set_power_limit_milliwatts(250_000))

    def load_the_driver_anew(self) -> None:
        """It raises the second, too, to 250 W."""
        other = self.second.device
        self.referee.by_itself(other, "reload", lambda: other.set_power_limit_milliwatts(250_000))

    def claim(self) -> None:
        says = [{"type": "Enforced", "status": "True", "reason": "LimitsAcknowledged"}]
        status = {"effectiveWatts": CLAIMED_WATTS, "committedWatts": CLAIMED_WATTS, "conditions": says}
        spec = {"watts": CLAIMED_WATTS}
        item = {"metadata": {"name": "hall", "uid": "uid-hall", "generation": 1}, "spec": spec, "status": status}
        self.referee.told(Change(1, "powercaps", "MODIFIED", item))

    def report(self, *, made: float = 0.0) -> None:
        """The agent reports what it has seen at `made`, whatever it was."""
        status = {"devices": [], "lastRound": {"boottimeNanoseconds": int(made * 1e9)}}
        self.referee.told(Change(2, "gpunodes", "MODIFIED", {"metadata": {"name": "a"}, "status": status}))

    def lose_the_node(self) -> None:
        item = {"metadata": {"name": "a"}, "status": {"conditions": []}}
        self.referee.told(Change(4, "nodes", "MODIFIED", item))

    def acknowledge_a_brake(self) -> None:
        item = {"metadata": {"name": "a"}, "spec": {"limitsMilliwatts": 230_000}}
        self.referee.told(Change(3, "brakeacknowledgements", "ADDED", item))

    def wait(self, seconds: float) -> None:
        """Let the time pass, in which the referee looks by itself."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @staticmethod
    def set(device: WatchedDevice, watts: int) -> None:
        device.set_power_limit_milliwatts(watts * 1000)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.close()


@pytest.mark.parametrize("first", [100, 120, 130])
def test_lowering_one_gpu_after_the_other_is_the_agents_way_back(loop: VirtualLoop, first: int) -> None:
    scene = Scene(loop)
    scene.set(scene.first, first)
    scene.set(scene.second, 100)
    scene.report()
    assert not scene.referee.violation


def test_lowering_too_little_is_the_agents_doing_once_it_reports(loop: VirtualLoop) -> None:
    scene = Scene(loop)
    scene.set(scene.first, 200)
    scene.set(scene.second, 100)
    assert not scene.referee.violation, "there may be more to come"
    scene.report()
    assert scene.referee.violation == "hall: 230 W claimed as enforced, 300 W allowed by the limits"


@pytest.mark.parametrize(("first", "is_true"), [(110, True), (CLAIMED_WATTS + 1, False)])
def test_a_gpu_that_takes_no_limit_counts_no_more_than_its_node_had(
    loop: VirtualLoop, first: int, is_true: bool
) -> None:
    """A driver load has raised both, and the grant has a new division: the one that is set gets what the other gives."""
    scene = Scene(loop)
    scene.load_the_driver_anew()
    scene.set(scene.first, first)
    scene.report()
    assert (scene.referee.violation is None) is is_true


@pytest.mark.parametrize(("first", "is_true"), [(100, True), (200, False)])
def test_what_a_gpu_that_takes_no_limit_had_is_its_agents_to_reckon_with_after_a_moment(
    loop: VirtualLoop, first: int, is_true: bool
) -> None:
    """Nothing says what it has now, as where it cannot be read; the other is to leave it what was asked of it before."""
    scene = Scene(loop)
    scene.load_the_driver_anew()
    scene.set(scene.first, first)
    for second in range(10):
        scene.report(made=float(second))
        scene.wait(1.0)
    assert (scene.referee.violation is None) is is_true


def test_a_raise_on_the_way_back_is_the_agents_doing(loop: VirtualLoop) -> None:
    scene = Scene(loop)
    scene.set(scene.first, 130)
    scene.set(scene.second, 131)
    assert scene.referee.violation == "hall: 230 W claimed as enforced, 261 W allowed by the limits"


def test_the_excuse_ends_when_the_node_is_back(loop: VirtualLoop) -> None:
    scene = Scene(loop)
    scene.set(scene.first, 130)
    scene.set(scene.second, 100)
    scene.set(scene.second, 101)
    assert scene.referee.violation == "hall: 230 W claimed as enforced, 231 W allowed by the limits"


def test_more_than_another_hand_has_set_is_the_agents_doing(loop: VirtualLoop) -> None:
    scene = Scene(loop)
    scene.set(scene.first, 260)
    assert scene.referee.violation == "hall: 230 W claimed as enforced, 390 W allowed by the limits"


def test_what_another_hand_had_lowered_to_what_the_agent_wants_now_is_what_it_raises(loop: VirtualLoop) -> None:
    """The agent commanded nothing when it wanted that limit: it was there already, and others were granted the rest."""
    assert not Scene(loop, lowered_by_hand=True).referee.violation


@pytest.mark.parametrize("sign", ["report", "acknowledge_a_brake"])
def test_an_agent_is_silent_from_its_last_word_on_and_an_acknowledged_brake_is_one(
    loop: VirtualLoop, sign: str
) -> None:
    scene = Scene(loop)
    scene.wait(10.0)
    getattr(scene, sign)()
    scene.wait(REPORT_TIMEOUT_SECONDS + SECONDS_ALLOWED - LOOK_EVERY_SECONDS)
    assert not scene.referee.violation, "the operator could not know before"
    scene.wait(3 * LOOK_EVERY_SECONDS)
    assert scene.referee.violation == "hall: 230 W claimed as enforced, 380 W allowed by the limits"


@pytest.mark.parametrize("late_seconds", [REPORT_TIMEOUT_SECONDS, REPORT_TIMEOUT_SECONDS + 1.0])
def test_silence_is_no_sign_any_more_once_there_is_a_report_that_is_no_older_than_it_may_last(
    loop: VirtualLoop, late_seconds: float
) -> None:
    scene = Scene(loop)
    scene.wait(REPORT_TIMEOUT_SECONDS + SECONDS_ALLOWED / 2.0)
    scene.report(made=loop.time() - late_seconds)
    scene.wait(SECONDS_ALLOWED)
    assert (scene.referee.violation is None) is (late_seconds <= REPORT_TIMEOUT_SECONDS)
    scene.wait(REPORT_TIMEOUT_SECONDS + 3 * LOOK_EVERY_SECONDS)
    assert scene.referee.violation


def test_a_sign_that_came_while_the_agent_was_silent_stays_one(loop: VirtualLoop) -> None:
    scene = Scene(loop)
    scene.wait(REPORT_TIMEOUT_SECONDS + SECONDS_ALLOWED / 2.0)
    scene.lose_the_node()
    scene.report(made=loop.time())
    scene.wait(SECONDS_ALLOWED)
    assert scene.referee.violation == "hall: 230 W claimed as enforced, 380 W allowed by the limits"
