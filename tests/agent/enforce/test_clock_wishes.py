"""Clocks that trainers ask for: below their grant only, on their own GPUs only, for a while only, and never a watt more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from flyball_agent.enforce.clock_wishes import MAX_WISHES, ClockWishes, Wish
from flyball_agent.enforce.decisions import Mode, targets_of
from flyball_agent.enforce.gpu_state import UNLOCKED, ClockLock, GpuState, Holders, PodName
from flyball_agent.gpu.calls import DirectCalls, Returned
from flyball_agent.gpu.gpu import Gpu, GpuError, GpuLimits, PowerLimitReading
from flyball_agent.gpu.operations import GpuCall
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_api.grant import Grant, JobGrant, OtherGpuLimits, PowerBound
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from flyball_simulated_gpu.device import DeviceFault
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.enforcer_rig import Rig
from tests.support.examples import examples
from tests.support.gpu_node_specs import gpu_node_spec, job_grant

T = TypeVar("T")
GPT2, BERT, FOREIGN = (PodName("research", name) for name in ("gpt2", "bert", "foreign"))
CLOCKS = tuple(range(210, 1411, 15))
LIMITS = GpuLimits(MilliwattsPerGpu(100_000), MilliwattsPerGpu(400_000), MilliwattsPerGpu(400_000), CLOCKS)

clocks = st.integers(0, 2000)
wishes = st.dictionaries(
    st.tuples(st.sampled_from([GPT2, BERT, FOREIGN]), st.sampled_from(["", "GPU-0", "GPU-1", "GPU-9"])),
    st.integers(1, 100_000),
    max_size=5,
)
held_by = st.sampled_from([(), (GPT2,), (BERT,), (FOREIGN,), (GPT2, BERT), (GPT2, FOREIGN)])


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    jobs = []
    for pod in (GPT2, BERT):
        low, high = sorted((draw(clocks), draw(clocks)))
        limit = MilliwattsPerGpu(draw(st.integers(100, 400)) * 1000)
        jobs.append(JobGrant(pod.namespace, pod.name, f"uid-{pod.name}", 1, pod.name, 1, limit, low, high))
    others = OtherGpuLimits(foreign_gpus=draw(st.integers(0, 2)))
    return Grant(1, 1, 30, PowerBound(NodeMilliwatts(1_600_000)), other_gpus=others, jobs=tuple(jobs))


@st.composite
def nodes(draw: st.DrawFn) -> list[GpuState]:
    limit = PowerLimitReading(MilliwattsPerGpu(400_000), MilliwattsPerGpu(400_000))
    return [
        GpuState(
            f"GPU-{index}", index, "A100", LIMITS, MilliwattsPerGpu(400_000), limit=limit, pods=pods, holders=known
        )
        for index, (pods, known) in enumerate(
            draw(st.lists(st.tuples(held_by, st.sampled_from(Holders)), min_size=1, max_size=5))
        )
    ]


@given(grant=grants(), gpus=nodes(), mode=st.sampled_from(Mode), wished=wishes)
@settings(max_examples=examples(400))
def test_no_wish_changes_a_limit_or_raises_a_clock(
    grant: Grant, gpus: list[GpuState], mode: Mode, wished: dict[Wish, int]
) -> None:
    without, targets = targets_of(grant, gpus, mode), targets_of(grant, gpus, mode, wished)
    for gpu in gpus:
        was, now = without[gpu.uuid], targets[gpu.uuid]
        assert (now.purpose, now.limit_milliwatts) == (was.purpose, was.limit_milliwatts)
        own = len(gpu.pods) == 1 and gpu.pods[0] in (GPT2, BERT)
        of_gpu = [mhz for (pod, uuid), mhz in wished.items() if own and pod == gpu.pods[0] and uuid in ("", gpu.uuid)]
        wish = min(of_gpu, default=None)
        if wish is None or gpu.holders is Holders.NOT_LISTED:
            assert now.lock == was.lock, "another's GPU, or one that is shared"
            continue
        assert was.lock is not None
        assert now.lock is not None
        most = CLOCKS[-1] if was.lock == UNLOCKED else was.lock.max_megahertz
        assert now.lock.max_megahertz == min(most, LIMITS.clock_at_most(wish))
        assert now.lock.min_megahertz <= now.lock.max_megahertz
        assert now.lock.is_range


def lock_of(pods: tuple[PodName, ...], wished: dict[Wish, int]) -> ClockLock | None:
    """What the clocks of a GPU with these pods become, where no job was granted any bounds of its clock."""
    jobs = [
        JobGrant(pod.namespace, pod.name, f"uid-{pod.name}", 1, pod.name, 1, MilliwattsPerGpu(300_000), 0, 0)
        for pod in (GPT2, BERT)
    ]
    grant = Grant(1, 1, 30, PowerBound(NodeMilliwatts(1_600_000)), jobs=tuple(jobs))
    limit = PowerLimitReading(MilliwattsPerGpu(400_000), MilliwattsPerGpu(400_000))
    gpu = GpuState("GPU-0", 0, "A100", LIMITS, MilliwattsPerGpu(400_000), limit=limit, pods=pods, holders=Holders.KNOWN)
    return targets_of(grant, [gpu], Mode.GRANTED, wished)["GPU-0"].lock


def test_a_wish_holds_where_the_job_was_granted_no_clock_and_not_where_two_jobs_share_the_gpu() -> None:
    wished: dict[Wish, int] = {(GPT2, ""): 750}
    assert lock_of((GPT2,), {}) == UNLOCKED
    assert lock_of((GPT2,), wished) == ClockLock(CLOCKS[0], 750)
    assert lock_of((GPT2,), {(GPT2, ""): 5000}) == ClockLock(CLOCKS[0], CLOCKS[-1])
    assert lock_of((GPT2, BERT), wished) == UNLOCKED


@given(
    asked=st.lists(
        st.tuples(st.integers(0, 5), st.none() | st.integers(1, 2000), st.integers(0, 30), st.integers(0, 10)),
        max_size=30,
    )
)
@settings(max_examples=examples(200))
def test_the_last_wish_of_a_pod_counts_until_its_end(asked: list[tuple[int, int | None, int, int]]) -> None:
    kept, now, model = ClockWishes(), 0, dict[Wish, tuple[int | None, int]]()
    for pod_number, megahertz, lasting, passing in asked:
        whose = PodName("ns", str(pod_number // 2)), "GPU-0" if pod_number % 2 else ""
        kept.ask(whose, megahertz, now + lasting, now)
        model[whose] = (megahertz, now + lasting)
        now += passing
        expected = {whose: wish for whose, (wish, until) in model.items() if wish is not None and until > now}
        assert kept.current(now) == expected


def test_a_flood_of_pods_is_bounded() -> None:
    kept = ClockWishes()
    for number in range(10 * MAX_WISHES):
        kept.ask((PodName("ns", str(number)), ""), 900, 100, 0)
    assert len(kept.current(1)) == MAX_WISHES


def test_a_flood_that_has_run_out_stands_in_nobodys_way() -> None:
    kept = ClockWishes()
    for number in range(MAX_WISHES):
        kept.ask((PodName("ns", str(number)), ""), 900, 100, 0)
    kept.ask((PodName("ns", "late"), ""), 750, 200, 100)
    assert kept.current(100) == {(PodName("ns", "late"), ""): 750}


def granted(rig: Rig) -> None:
    for device in rig.node.devices:
        device.set_activity(1.0)
    rig.hold("gpt2", 0, 1)
    rig.hold("bert", 2)
    jobs = (job_grant("gpt2", 300_000, clocks=(900, 1200)), job_grant("bert", 200_000, 1, clocks=(0, 1005)))
    rig.enforcer.accept(gpu_node_spec(1, 1_200_000, *jobs, lease=10**6))
    rig.step()
    rig.step(1)


def test_on_hardware_a_wish_lowers_its_own_gpus_and_ends_by_itself(rig: Rig) -> None:
    granted(rig)
    before, acknowledged = rig.locks(), rig.acknowledged
    rig.enforcer.ask_clock(GPT2, 750, 5.0)
    rig.step(1)
    assert rig.locks() == [(750, 750)] * 2 + before[2:]
    rig.enforcer.ask_clock(BERT, 1400, 5.0)
    rig.step(1)
    assert rig.locks()[2] == before[2], "above its grant is not to be had"
    rig.step(2)
    assert rig.locks()[0] == (750, 750)
    rig.step(2)
    assert rig.locks() == before, "nobody has renewed it"
    assert rig.acknowledged == acknowledged, "the grant was in force all the time"
    rig.enforcer.ask_clock(GPT2, 750, 5.0)
    rig.step(1)
    rig.enforcer.ask_clock(GPT2, None, 5.0)
    rig.step(1)
    assert rig.locks() == before


def test_no_wish_outlives_the_agent_or_the_job(rig: Rig) -> None:
    granted(rig)
    before = rig.locks()
    rig.enforcer.ask_clock(GPT2, 750, 30.0)
    rig.step(1)
    assert rig.locks()[0] == (750, 750)
    rig.restart()
    rig.enforcer.accept(
        gpu_node_spec(
            2,
            1_200_000,
            job_grant("gpt2", 300_000, clocks=(900, 1200)),
            job_grant("bert", 200_000, 1, clocks=(0, 1005)),
            lease=10**6,
        )
    )
    rig.step(1)
    assert rig.locks() == before
    rig.enforcer.ask_clock(GPT2, 750, 30.0)
    rig.step(1)
    rig.hold("gpt2")
    rig.step(1)
    assert rig.locks()[0] == (0, 0), "the GPU is idle: nobody's clock is left on it"


@given(
    wished=st.lists(st.tuples(st.sampled_from([GPT2, BERT, FOREIGN]), st.none() | st.integers(1, 2000)), max_size=8),
    faults=st.lists(
        st.sampled_from([DeviceFault.SETTERS_LIE, DeviceFault.LOST, DeviceFault(0)]), min_size=8, max_size=8
    ),
    cut=st.integers(400, 1200),
)
@settings(max_examples=examples(60))
def test_whatever_trainers_ask_limits_stay_within_the_grant(
    wished: list[tuple[PodName, int | None]], faults: list[DeviceFault], cut: int, tmp_path_factory: object
) -> None:
    rig = Rig(tmp_path_factory.mktemp("rig"))  # type: ignore[attr-defined]
    granted(rig)
    bound = 1_200_000
    for number, (pod, megahertz) in enumerate(wished):
        rig.node.devices[0].flags = faults[number]
        rig.enforcer.ask_clock(pod, megahertz, 10.0)
        if number == 3:
            bound = cut * 1000
            share = max(100_000, bound // 4)
            jobs = (job_grant("gpt2", share, clocks=(900, 1200)), job_grant("bert", share, 1, clocks=(0, 1005)))
            rig.enforcer.accept(gpu_node_spec(2, bound, *jobs, lease=10**6))
        before = sum(rig.limits())
        rig.step(1)
        assert sum(rig.limits()) <= max(bound, before)


def test_a_clock_of_one_gpu_is_set_at_once_and_within_the_grant(rig: Rig) -> None:
    granted(rig)
    before = rig.locks()
    first, second, other = (device.uuid for device in rig.node.devices[:3])
    rig.enforcer.ask_clock(GPT2, 750, 5.0, first)
    rig.enforcer.ask_clock(GPT2, 5000, 5.0, second)
    rig.enforcer.ask_clock(GPT2, 750, 5.0, other)
    rig.enforcer.ask_clock(GPT2, 750, 5.0, "GPU-of-nobody")
    asyncio.run(rig.enforcer.set_asked_clocks())
    assert rig.locks() == [(750, 750), *before[1:]], "above its grant, another's and nobody's are not to be had"
    rig.step(1)
    assert rig.locks() == [(750, 750), *before[1:]], "the round keeps what was asked for"
    rig.step(5)
    assert rig.locks() == before, "nobody has asked again"


def test_a_clock_asked_for_during_a_round_is_not_undone_by_it(rig: Rig) -> None:
    """The round decides, and waits for a driver, before it sets locks: by the wishes of then, it would set an old one."""

    class Asking(DirectCalls):
        async def each(
            self, operation: str, calls: Sequence[tuple[Gpu, GpuCall[T]]], returned: Returned | None = None
        ) -> list[T | GpuError]:
            if operation.startswith("set power limit"):
                rig.enforcer.ask_clock(GPT2, 600, 5.0)
                await rig.enforcer.set_asked_clocks()
            return await super().each(operation, calls, returned)

    rig.restart(calls=Asking())
    granted(rig)
    rig.enforcer.ask_clock(GPT2, 900, 5.0)
    jobs = (job_grant("gpt2", 150_000, clocks=(0, 1200)), job_grant("bert", 150_000, 1, clocks=(0, 1005)))
    rig.enforcer.accept(gpu_node_spec(2, 800_000, *jobs, lease=10**6))
    rig.step(0.1)
    assert [high for _, high in rig.locks()[:2]] == [600, 600]


def test_a_lock_of_a_driver_that_was_swapped_meanwhile_is_not_taken_for_the_new_ones(rig: Rig) -> None:
    armed: list[bool] = []

    class Swapping(DirectCalls):
        async def each(
            self, operation: str, calls: Sequence[tuple[Gpu, GpuCall[T]]], returned: Returned | None = None
        ) -> list[T | GpuError]:
            done = await super().each(operation, calls, returned)
            if operation == "lock clocks" and calls and armed:
                armed.clear()
                rig.node.reload_driver()
                rig.enforcer.swap_driver(SimulatedDriver(rig.node))
            return done

    granted(rig)
    rig.restart(calls=Swapping())
    jobs = (job_grant("gpt2", 300_000, clocks=(900, 1200)), job_grant("bert", 200_000, 1, clocks=(0, 1005)))
    rig.enforcer.accept(gpu_node_spec(2, 1_200_000, *jobs, lease=10**6))
    rig.step(1)
    rig.enforcer.ask_clock(GPT2, 750, 5.0)
    armed.append(True)
    asyncio.run(rig.enforcer.set_asked_clocks())
    assert not armed
    assert [gpu.lock for gpu in rig.enforcer.state.gpus.values()] == [None] * 4
    rig.step(1)
    assert rig.locks()[:2] == [(750, 750)] * 2
