"""PowerBrakes at the agent: they only ever lower, however they are seen, and only a later grant lifts one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from flyball_agent.enforce.brakes import (
    Followed,
    braked,
    everything_lowered,
    lowest_bound,
    under_new_grant,
    with_acknowledged,
    with_seen,
)
from flyball_agent.enforce.decisions import Mode
from flyball_agent.enforce.enforcer import Enforcer
from flyball_agent.enforce.gpu_state import COMING_NS, GpuState, PodName
from flyball_agent.enforce.journal import Disk, Journal
from flyball_agent.gpu.gpu import GpuLimits, PowerLimitReading
from flyball_agent.gpu.simulated import SimulatedDriver, SimulatedGpu
from flyball_api.gpu_node import Acknowledgement
from flyball_api.grant import BrakeVersion, CapOverNode, Grant, JobGrant, PowerBound
from flyball_api.power_brake import PowerBrake, PowerBrakeSpec
from flyball_api.reading import ObjectMeta
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.virtual import VirtualNode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.agent_doubles import QuickDisk
from tests.support.examples import examples
from tests.support.gpu_node_specs import Json, gpu_node_spec, job_grant

SECOND = 1_000_000_000
SMALLEST = 100_000
CAPS = ("hall", "row")


def brake(cap: str, version: tuple[int, int], kept: int, emergency: str | None = None) -> PowerBrake:
    return PowerBrake(ObjectMeta(cap), PowerBrakeSpec(*version, kept, emergency))  # type: ignore[arg-type]


def grant(generation: int, *caps: tuple[str, tuple[int, int]], limits: tuple[int, ...] = (400_000, 250_000)) -> Grant:
    jobs = tuple(
        JobGrant("research", f"j{i}", f"u{i}", 1, f"p{i}", i + 1, MilliwattsPerGpu(limit), 0, 1410)
        for i, limit in enumerate(limits)
    )
    bound = NodeMilliwatts(sum(job.limit_milliwatts for job in jobs) + 200_000)
    over = tuple(CapOverNode(name, BrakeVersion(*version)) for name, version in caps)
    return Grant(
        1,
        generation,
        30,
        PowerBound(bound, bound),
        jobs=jobs,
        caps=over,
        min_power_limit_milliwatts=MilliwattsPerGpu(SMALLEST),
    )


# --- the share ---------------------------------------------------------------------------------------------------------


@given(
    limits=st.lists(st.integers(1, 1_000_000), max_size=4),
    rest=st.integers(0, 10**6),
    expected=st.integers(0, 10**7),
    kept=st.integers(0, 1_000_000),
    less=st.integers(0, 1_000_000),
)
@settings(max_examples=examples(400), deadline=None)
def test_a_share_lowers_every_limit_towards_the_smallest_and_no_further(
    limits: list[int], rest: int, expected: int, kept: int, less: int
) -> None:
    before = grant(1, limits=tuple(limits))
    after, lower = before.lowered(kept), before.lowered(min(kept, less))
    assert before.lowered(1_000_000) == before
    for was, now, least in zip(before.jobs, after.jobs, lower.jobs, strict=True):
        assert min(was.power_limit_milliwatts, SMALLEST) <= least.power_limit_milliwatts
        assert least.power_limit_milliwatts <= now.power_limit_milliwatts <= was.power_limit_milliwatts
        if was.power_limit_milliwatts > SMALLEST:
            assert (now.power_limit_milliwatts - SMALLEST) * 1_000_000 <= (was.power_limit_milliwatts - SMALLEST) * kept
    beside = before.bound.limit_milliwatts - sum(job.limit_milliwatts for job in before.jobs)
    assert after.bound.limit_milliwatts == beside + sum(job.limit_milliwatts for job in after.jobs)
    assert after.bound.expected_milliwatts <= after.bound.limit_milliwatts
    assert before.bound.covers(after.bound)
    assert after.bound.covers(lower.bound)


# --- which brakes are followed ------------------------------------------------------------------------------------------


def kept(followed: Followed) -> dict[str, int]:
    return {cap: item.kept_millionths for cap, item in followed.items()}


def test_a_brake_that_the_grant_was_made_with_is_none() -> None:
    under = grant(1, ("hall", (2, 5)))
    for version in ((1, 9), (2, 4), (2, 5)):
        assert with_seen({}, under, {"hall": brake("hall", version, 0)}) == {}
    assert kept(with_seen({}, under, {"hall": brake("hall", (2, 6), 300_000)})) == {"hall": 300_000}
    assert with_seen({}, under, {"another": brake("another", (9, 9), 0)}) == {}


def test_a_later_brake_that_would_keep_more_does_not() -> None:
    under = grant(1, ("hall", (0, 0)))
    followed = with_seen({}, under, {"hall": brake("hall", (1, 1), 300_000)})
    followed = with_seen(followed, under, {"hall": brake("hall", (1, 2), 900_000)})
    assert kept(followed) == {"hall": 300_000}
    assert (followed["hall"].epoch, followed["hall"].sequence) == (1, 2)


def test_a_brake_that_is_gone_or_older_again_is_followed_on() -> None:
    under = grant(1, ("hall", (0, 0)))
    followed = with_seen({}, under, {"hall": brake("hall", (3, 3), 300_000)})
    assert with_seen(followed, under, {}) == followed
    assert kept(with_seen(followed, under, {"hall": brake("hall", (1, 1), 800_000)})) == {"hall": 300_000}


def test_a_grant_lifts_the_brakes_that_it_was_made_with_and_no_other() -> None:
    seen = {"hall": brake("hall", (1, 4), 300_000), "row": brake("row", (1, 5), 500_000)}
    followed = with_seen({}, grant(1, ("hall", (0, 0)), ("row", (0, 0))), seen)
    assert under_new_grant(followed, grant(2, ("hall", (1, 3)), ("row", (1, 4))), seen) == followed
    assert kept(under_new_grant(followed, grant(2, ("hall", (1, 4)), ("row", (1, 4))), seen)) == {"row": 500_000}
    assert under_new_grant(followed, grant(2, ("hall", (1, 4)), ("row", (1, 5))), seen) == {}
    assert under_new_grant(followed, grant(2), seen) == {}


def test_an_emergency_holds_whatever_its_version_and_outlasts_every_grant() -> None:
    under = grant(1, ("hall", (7, 7)))
    seen = {"hall": brake("hall", (1, 1), 0, "Active")}  # made anew, after the one that the grant was made with
    followed = with_seen({}, under, seen)
    assert kept(followed) == {"hall": 0}
    assert everything_lowered(followed)
    assert under_new_grant(followed, grant(2, ("hall", (8, 0))), seen) == followed
    # Not known to have ended: a process that has just started.
    assert under_new_grant(followed, grant(2, ("hall", (8, 0))), None) == followed


def test_the_end_of_an_emergency_lifts_nothing_by_itself() -> None:
    under = grant(1, ("hall", (1, 0)))
    followed = with_seen({}, under, {"hall": brake("hall", (1, 1), 0, "Active")})
    ended = {"hall": brake("hall", (1, 2), 0, "Ended")}
    after = with_seen(followed, under, ended)
    assert braked(under, after) == braked(under, followed)
    assert everything_lowered(after)
    assert under_new_grant(after, grant(2, ("hall", (1, 2))), ended) == {}


def test_before_the_first_list_a_grant_lifts_an_ordinary_brake_that_it_was_made_with() -> None:
    followed = with_seen({}, grant(1, ("hall", (1, 0))), {"hall": brake("hall", (1, 1), 300_000)})
    assert under_new_grant(followed, grant(2, ("hall", (1, 1))), None) == {}


def test_the_smallest_share_holds_as_long_as_the_emergency_that_came_after_it() -> None:
    under = grant(1, ("hall", (1, 0)))
    followed = with_seen({}, under, {"hall": brake("hall", (1, 1), 300_000)})
    seen = {"hall": brake("hall", (1, 2), 500_000, "Active")}
    followed = with_seen(followed, under, seen)
    assert kept(followed) == {"hall": 300_000}
    assert under_new_grant(followed, grant(2, ("hall", (1, 2))), seen) == followed


def test_an_emergency_whose_brake_is_gone_has_ended_and_is_lifted_by_the_next_grant_made_with_it() -> None:
    followed = with_seen({}, grant(1, ("hall", (1, 0))), {"hall": brake("hall", (1, 1), 0, "Active")})
    assert under_new_grant(followed, grant(2, ("hall", (1, 0))), {}) == followed
    assert under_new_grant(followed, grant(2, ("hall", (1, 1))), {}) == {}


def test_whichever_of_an_ordinary_brake_and_an_emergency_comes_first_every_gpu_is_lowered() -> None:
    under = grant(1, ("hall", (1, 0)))
    ordinary, emergency = brake("hall", (1, 1), 300_000), brake("hall", (1, 1), 0, "Active")
    first = with_seen({}, under, {"hall": ordinary})
    assert not everything_lowered(first)
    assert everything_lowered(with_seen(first, under, {"hall": emergency}))
    # Made anew after the emergency: only a newer grant gives back what other hands' GPUs had.
    first = with_seen({}, under, {"hall": emergency})
    assert everything_lowered(with_seen(first, under, {"hall": ordinary}))


versions = st.tuples(st.integers(0, 2), st.integers(0, 3))
events = st.one_of(
    st.tuples(st.just("seen"), st.dictionaries(st.sampled_from(CAPS), st.tuples(versions, st.integers(0, 10)))),
    st.tuples(st.just("emergency"), st.tuples(st.sampled_from(CAPS), versions, st.booleans())),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("grant"), st.dictionaries(st.sampled_from(CAPS), versions)),
)


@given(st.lists(events, max_size=20))
@settings(max_examples=examples(600), deadline=None)
def test_between_two_grants_nothing_is_ever_raised(history: list[tuple[str, object]]) -> None:
    """Whatever is seen, replayed, lost or forgotten by a restart, what is in force rises with a newer grant alone."""
    generation, under = 1, grant(1, *((cap, (0, 0)) for cap in CAPS))
    followed: Followed = {}
    seen: dict[str, PowerBrake] | None = {}
    for kind, what in history:
        before = braked(under, followed).bound.limit_milliwatts
        if kind == "restart":
            seen = None  # the journal has what is followed
        elif kind == "grant":
            generation += 1
            assert isinstance(what, dict)
            under = grant(generation, *what.items())
            named, last = {cap.name: cap.brake for cap in under.caps}, followed
            followed = under_new_grant(followed, under, seen)
            for cap, item in last.items():
                if cap in named and BrakeVersion(item.epoch, item.sequence) > named[cap]:
                    assert followed[cap].kept_millionths <= item.kept_millionths
            before = braked(under, {}).bound.limit_milliwatts
        else:
            if kind == "seen":
                assert isinstance(what, dict)
                seen = {cap: brake(cap, version, share * 100_000) for cap, (version, share) in what.items()}
            else:
                assert isinstance(what, tuple)
                cap, version, active = what
                seen = {**(seen or {}), cap: brake(cap, version, 0, "Active" if active else "Ended")}
            followed = with_seen(followed, under, seen)
            assert with_seen(followed, under, seen) == followed  # seeing it twice is seeing it once
        assert braked(under, followed).bound.limit_milliwatts <= before


# --- what was acknowledged under brakes that nobody remembers ------------------------------------------------------------


def acknowledgement(generation: int, bound: int | None) -> Acknowledgement:
    held = None if bound is None else NodeMilliwatts(bound)
    return Acknowledgement(1, generation, NodeMilliwatts(bound or 0), bound_milliwatts=held)


@given(
    limits=st.lists(st.integers(1, 1_000_000), max_size=4),
    share=st.none() | st.integers(0, 1_000_000),
    bounds=st.lists(st.none() | st.integers(0, 5_000_000), max_size=3),
)
@settings(max_examples=examples(400), deadline=None)
def test_limits_come_to_no_more_than_was_acknowledged_and_to_no_more_than_before(
    limits: list[int], share: int | None, bounds: list[int | None]
) -> None:
    under = grant(3, ("hall", (0, 0)), limits=tuple(limits))
    followed: Followed = {} if share is None else with_seen({}, under, {"hall": brake("hall", (1, 1), share)})
    before = braked(under, followed).bound.limit_milliwatts
    held = with_acknowledged(followed, under, [acknowledgement(3, bound) for bound in bounds])
    after = braked(under, held).bound.limit_milliwatts
    known = [bound for bound in bounds if bound is not None]
    assert after <= before
    assert after <= min(known, default=before) or everything_lowered(held)
    assert (held == followed) == (min(known, default=before) >= before)
    assert not everything_lowered(held) or min(known) < under.lowered(0).bound.limit_milliwatts
    assert with_acknowledged(followed, under, [acknowledgement(2, 0), acknowledgement(4, 0)]) == followed
    # Of no cap, it is ended by the next grant; the cap's own brake by one that was made with it.
    assert under_new_grant(held, grant(4, ("hall", (1, 0))), None) == followed
    assert under_new_grant(held, grant(4, ("hall", (1, 1))), None) == {}


@pytest.mark.parametrize(
    ("bound", "kept", "everything"),
    [(1_100_000, None, None), (1_099_999, 999_998, False), (500_000, 0, False), (499_999, 0, True)],
)
def test_what_was_acknowledged_holds_from_the_first_milliwatt_below_the_grant(
    bound: int, kept: int | None, everything: bool | None
) -> None:
    """Of 1,100 W, which come to 500 W with all pods at the smallest limits: less than that was everything lowered."""
    under = grant(3, ("hall", (0, 0)))
    assert (under.bound.limit_milliwatts, under.lowered(0).bound.limit_milliwatts) == (1_100_000, 500_000)
    held = with_acknowledged({}, under, [acknowledgement(3, bound)])
    found = next(iter(held.values()), None)
    assert (kept, everything) == (None, None) if found is None else (found.kept_millionths, found.everything)
    assert found is None or (found.kept_millionths, found.everything) == (kept, everything)


# --- in the enforcer ----------------------------------------------------------------------------------------------------


class Rig:
    """Two A100s, both of one pod, under the cap `hall`; the enforcer can be killed and started again."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.now_ns = 1000 * SECOND
        self.folder, self.disk = folder, disk or QuickDisk()
        self.node = VirtualNode("node-0", [CATALOGUE["NVIDIA-A100-SXM4-40GB"]] * 2, lambda: self.now_ns)
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.folder, "node-0", disk=self.disk)
        self.enforcer = Enforcer(
            "node-0",
            SimulatedDriver(self.node),
            self.journal,
            clock_ns=lambda: self.now_ns,
            wall_seconds=lambda: 0.0,
        )
        self.enforcer.set_pods({device.uuid: (PodName("research", "gpt2"),) for device in self.node.devices})

    def restart(self, *, lose_journal: bool = False) -> None:
        self.enforcer.close()
        if lose_journal:
            self.journal.path.unlink()
        self.start()

    def step(self, seconds: float = 0.0) -> None:
        self.now_ns += round(seconds * SECOND)
        asyncio.run(self.enforcer.step())

    def see(self, *brakes: PowerBrake) -> None:
        self.enforcer.take_brakes({item.cap: item for item in brakes})
        self.step()

    @property
    def limits(self) -> list[int]:
        return [device.read().requested_limit_milliwatts for device in self.node.devices]

    @property
    def acknowledged(self) -> tuple[int, int, int | None] | None:
        ack = self.enforcer.state.acknowledged
        return None if ack is None else (ack.generation, ack.limits_milliwatts, ack.bound_milliwatts)


def granted(generation: int, limit: int = 300_000, version: tuple[int, int] = (0, 0), **fields: int) -> Json:
    spec = gpu_node_spec(generation, 2 * limit, job_grant("gpt2", limit), **fields)
    cap = {"name": "hall", "brakeEpoch": version[0], "brakeSequence": version[1]}
    return spec | {"minPowerLimitMilliwatts": SMALLEST, "caps": [cap]}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    rig.enforcer.take_brakes({})
    rig.enforcer.accept(granted(1))
    rig.step()
    assert rig.limits == [300_000] * 2
    assert rig.acknowledged == (1, 600_000, 600_000)
    yield rig
    rig.enforcer.close()


def test_a_brake_lowers_the_limits_and_is_acknowledged_with_what_it_leaves(rig: Rig) -> None:
    rig.see(brake("hall", (1, 1), 250_000))
    assert rig.limits == [150_000] * 2
    assert rig.acknowledged == (1, 300_000, 300_000)
    assert rig.enforcer.accept(granted(2, 200_000, (1, 1)))
    rig.step()
    assert rig.limits == [200_000] * 2
    assert rig.acknowledged == (2, 400_000, 400_000)


def test_a_grant_from_before_the_brake_does_not_lift_it(rig: Rig) -> None:
    rig.see(brake("hall", (1, 1), 250_000))
    rig.enforcer.accept(granted(2, 400_000, (1, 0)))
    rig.step()
    assert rig.limits == [100_000 + 300_000 // 4] * 2


def test_a_brake_that_came_before_the_grant_that_names_its_cap_lowers_that(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.see(brake("hall", (1, 1), 0))
    rig.enforcer.accept(granted(1))
    rig.step()
    assert rig.limits == [100_000] * 2
    rig.enforcer.close()


def test_a_restart_goes_on_under_the_brake_with_and_without_the_api_server(rig: Rig) -> None:
    rig.see(brake("hall", (1, 1), 250_000))
    rig.restart()
    rig.step()
    assert rig.limits == [150_000] * 2
    rig.enforcer.accept(granted(1))  # the GPUNode is there before the brakes are
    rig.step()
    assert rig.limits == [150_000] * 2
    rig.see(brake("hall", (1, 1), 250_000))
    assert rig.limits == [150_000] * 2
    assert rig.acknowledged == (1, 300_000, 300_000)


def test_without_its_journal_an_agent_raises_nothing_before_it_has_seen_the_brakes(rig: Rig) -> None:
    """What its predecessor acknowledged under a brake, whose memory is lost, stays true."""
    rig.see(brake("hall", (1, 1), 250_000))
    rig.restart(lose_journal=True)
    rig.enforcer.accept(granted(1))
    rig.step()
    assert rig.enforcer.state.confirmed
    assert rig.limits == [150_000] * 2
    rig.see(brake("hall", (1, 1), 250_000))
    assert rig.limits == [150_000] * 2
    assert rig.acknowledged is None  # what its predecessor set last, whatever that was, may have yet to come
    rig.step(COMING_NS / SECOND)
    assert rig.limits == [150_000] * 2
    assert rig.acknowledged == (1, 300_000, 300_000)


@pytest.mark.parametrize("lost", ["the journal", "its last lines"])
def test_what_was_acknowledged_holds_where_neither_journal_nor_api_server_know_the_brake(rig: Rig, lost: str) -> None:
    """Somebody put the journal of before the brake back, and somebody deleted the brake."""
    before = rig.journal.path.read_bytes()
    rig.see(brake("hall", (1, 1), 250_000))
    acknowledged = rig.enforcer.state.acknowledged
    assert acknowledged is not None
    rig.enforcer.close()
    if lost == "the journal":
        rig.journal.path.unlink()
    else:
        rig.journal.path.write_bytes(before)
    rig.start()
    rig.enforcer.take_brakes({})
    rig.enforcer.accept(granted(1), acknowledged=None)
    rig.step()
    assert rig.limits == [150_000] * 2
    assert not rig.enforcer.state.may_raise
    assert rig.enforcer.accept(granted(1), acknowledged=(acknowledged,))
    assert not rig.enforcer.accept(granted(1), acknowledged=(acknowledged,))
    assert rig.enforcer.state.may_raise
    rig.step(COMING_NS / SECOND)  # what the journal knows as set last may have come until now
    assert rig.limits == [150_000] * 2
    assert rig.acknowledged == (1, 300_000, 300_000)
    rig.restart()
    rig.enforcer.take_brakes({})
    rig.enforcer.accept(granted(1), acknowledged=(acknowledged,))
    rig.step()
    assert rig.limits == [150_000] * 2
    assert rig.enforcer.accept(granted(2, 200_000, (1, 1)), acknowledged=(acknowledged,))
    rig.step()
    assert rig.limits == [200_000] * 2
    assert rig.acknowledged == (2, 400_000, 400_000)


def test_a_grant_that_the_journal_has_lost_is_held_as_it_was_acknowledged(rig: Rig) -> None:
    before = rig.journal.path.read_bytes()
    rig.enforcer.accept(granted(2, 400_000))
    rig.step()
    rig.see(brake("hall", (1, 1), 0))
    acknowledged = rig.enforcer.state.acknowledged
    assert acknowledged is not None
    rig.enforcer.close()
    rig.journal.path.write_bytes(before)
    rig.start()
    rig.enforcer.take_brakes({})
    rig.enforcer.accept(granted(2, 400_000), acknowledged=(acknowledged,))
    rig.step(COMING_NS / SECOND)
    assert rig.limits == [100_000] * 2
    assert rig.acknowledged == (2, 200_000, 200_000)


def test_a_brake_waits_for_no_disk_but_its_acknowledgement_does(tmp_path: Path) -> None:
    class Failing(QuickDisk):
        fails = False

        def write(self, descriptor: int, data: bytes) -> int:
            if self.fails:
                raise OSError("read-only")
            return super().write(descriptor, data)

    disk = Failing()
    rig = Rig(tmp_path, disk)
    rig.enforcer.take_brakes({})
    rig.enforcer.accept(granted(1))
    rig.step()
    disk.fails = True
    rig.see(brake("hall", (1, 1), 0))
    assert rig.limits == [100_000] * 2
    assert rig.acknowledged == (1, 600_000, 600_000)
    disk.fails = False
    rig.step()
    assert rig.acknowledged == (1, 200_000, 200_000)
    rig.enforcer.close()


class Calls:
    """The calls of every driver in their order: (the GPU's UUID, which call)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str]] = []
        for name in ("read", "read_power_limit", "set_power_limit_milliwatts", "set_locked_clocks_megahertz"):
            self._record(monkeypatch, name)

    def _record(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        call = getattr(SimulatedGpu, name)

        def recorded(gpu: SimulatedGpu, *arguments: int) -> object:
            self.made.append((gpu.uuid, name))
            return call(gpu, *arguments)

        monkeypatch.setattr(SimulatedGpu, name, recorded)

    def first(self, name: str) -> int:
        return next(index for index, (_, made) in enumerate(self.made) if made == name)

    def last(self, name: str) -> int:
        return max(index for index, (_, made) in enumerate(self.made) if made == name)

    def count(self, name: str) -> int:
        return sum(made == name for _, made in self.made)


def test_a_brake_is_in_force_before_anything_is_measured(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    rig.see(brake("hall", (1, 1), 250_000))
    assert rig.limits == [150_000] * 2
    assert calls.last("set_power_limit_milliwatts") < calls.first("read")
    assert calls.count("set_power_limit_milliwatts") == 2
    assert rig.acknowledged == (1, 300_000, 300_000)


def test_agents_of_one_process_all_cut_before_any_of_them_does_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigs = [Rig(tmp_path / str(number)) for number in range(3)]
    for rig in rigs:
        rig.enforcer.take_brakes({})
        rig.enforcer.accept(granted(1))
        rig.step()
        rig.enforcer.take_brakes({"hall": brake("hall", (1, 1), 250_000)})
    calls = Calls(monkeypatch)

    async def rounds() -> None:
        await asyncio.gather(*(rig.enforcer.step() for rig in rigs))

    asyncio.run(rounds())
    assert calls.last("set_power_limit_milliwatts") < calls.first("read")
    for rig in rigs:
        assert rig.acknowledged == (1, 300_000, 300_000)
        rig.enforcer.close()


@pytest.mark.parametrize("changed", [350_000, 120_000])
def test_what_another_hand_has_set_since_is_noticed_under_a_brake_too(
    rig: Rig, changed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    rig.node.devices[0].set_power_limit_milliwatts(changed)
    rig.see(brake("hall", (1, 1), 250_000))
    assert rig.limits == [150_000] * 2
    assert rig.enforcer.state.counts.drift_corrections == 1
    sets = [index for index, call in enumerate(calls.made) if call[1] == "set_power_limit_milliwatts"]
    assert [calls.made[index][0] for index in sets] == [device.uuid for device in reversed(rig.node.devices)]
    assert sets[0] < calls.first("read") < sets[1]


def test_a_driver_that_was_loaded_anew_is_noticed_under_a_brake_too(rig: Rig) -> None:
    rig.node.reload_driver()
    rig.see(brake("hall", (1, 1), 250_000))
    assert rig.limits == [150_000] * 2
    assert rig.enforcer.state.counts.drift_corrections == 0


def test_what_another_hand_sets_back_between_the_cut_and_the_reading_is_put_back_in_the_same_round(rig: Rig) -> None:
    async def hand() -> None:
        rig.node.devices[0].set_power_limit_milliwatts(300_000)

    async def both() -> None:
        await asyncio.gather(rig.enforcer.step(), hand())

    rig.enforcer.take_brakes({"hall": brake("hall", (1, 1), 250_000)})
    asyncio.run(both())
    assert rig.enforcer.state.counts.drift_corrections == 1
    assert rig.limits == [150_000] * 2
    assert rig.acknowledged == (1, 300_000, 300_000)


def test_a_limit_that_is_not_taken_is_asked_for_once_in_a_round(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    rig.node.devices[0].flags = DeviceFault.SETTERS_LIE
    rig.see(brake("hall", (1, 1), 250_000))
    assert rig.limits == [300_000, 150_000]
    assert calls.count("set_power_limit_milliwatts") == 2


def test_what_does_not_come_down_is_not_acknowledged_as_if_it_had(rig: Rig) -> None:
    rig.node.devices[0].flags |= DeviceFault.SETTERS_LIE
    rig.see(brake("hall", (1, 1), 0))
    assert rig.limits == [300_000, 100_000]
    assert rig.acknowledged == (1, 600_000, 600_000)
    rig.step(3.0)  # it is not waited for any longer, and named
    assert rig.acknowledged == (1, 400_000, 200_000)


def test_an_emergency_takes_every_gpu_to_its_smallest_limit_whoever_holds_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    first, second = rig.node.devices
    rig.enforcer.set_pods({first.uuid: (PodName("research", "gpt2"),), second.uuid: (PodName("web", "server"),)})
    rig.enforcer.take_brakes({})
    rig.enforcer.accept(granted(1))
    rig.step()
    assert rig.limits == [200_000, 400_000]  # the foreign one is not provided for, and left alone at the job's expense
    rig.see(brake("hall", (0, 1), 0, "Active"))
    assert rig.limits == [100_000] * 2
    assert rig.acknowledged == (1, 200_000, 200_000)
    rig.enforcer.accept(granted(2, 400_000, (9, 9)))
    rig.step()
    assert rig.limits == [100_000] * 2
    rig.see(brake("hall", (0, 2), 0, "Ended"))
    assert rig.limits == [100_000] * 2
    rig.enforcer.accept(granted(3, 400_000, (9, 9), foreignGpus=1))
    rig.step()
    assert rig.limits == [400_000] * 2
    rig.enforcer.close()


def test_in_an_emergency_the_end_of_the_lease_raises_nothing(rig: Rig) -> None:
    rig.see(brake("hall", (0, 1), 0, "Active"))
    assert rig.enforcer.state.mode is Mode.FLOOR
    rig.step(3600.0)
    assert rig.limits == [100_000] * 2


@pytest.mark.parametrize(
    ("read_milliwatts", "held_milliwatts", "most"),
    [
        (250_000, 250_000, 100_000),  # it is lowered, whatever it holds still
        (None, 250_000, 400_000),  # a reset of it puts back the default
        (None, 450_000, 450_000),  # nobody can lower it
    ],
)
def test_in_an_emergency_a_gpu_that_can_be_read_comes_to_its_smallest_limit_and_a_lost_one_may_not(
    read_milliwatts: int | None, held_milliwatts: int, most: int
) -> None:
    limits = GpuLimits(MilliwattsPerGpu(SMALLEST), MilliwattsPerGpu(500_000), MilliwattsPerGpu(400_000))
    read = None if read_milliwatts is None else PowerLimitReading(*[MilliwattsPerGpu(read_milliwatts)] * 2)
    gpu = GpuState("GPU-0", 0, "A100", limits, MilliwattsPerGpu(held_milliwatts), limit=read)
    assert lowest_bound([gpu]) == most
    other = gpu.changed(uuid="GPU-1", limit=PowerLimitReading(*[MilliwattsPerGpu(450_000)] * 2))
    assert lowest_bound([gpu, other]) == most + SMALLEST


def test_in_an_emergency_a_lost_gpu_is_promised_at_no_less_than_it_may_come_back_with(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    first, second = rig.node.devices
    rig.enforcer.set_pods({first.uuid: (PodName("research", "gpt2"),), second.uuid: (PodName("web", "server"),)})
    rig.enforcer.take_brakes({})
    spec = gpu_node_spec(1, 700_000, job_grant("gpt2", 300_000, 1), foreignGpus=1, foreignPowerLimitMilliwatts=250_000)
    rig.enforcer.accept(spec | {"minPowerLimitMilliwatts": SMALLEST, "caps": granted(1)["caps"]})
    rig.step()
    assert rig.limits == [300_000, 250_000]
    second.flags |= DeviceFault.LOST
    rig.see(brake("hall", (0, 1), 0, "Active"))
    assert rig.limits[0] == 100_000
    assert rig.acknowledged == (1, 100_000 + 250_000, 100_000 + 400_000)
    rig.enforcer.close()
