"""Seconds and joules of a stretch of training, by agents that count, are away, lie, or read nothing any more."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from flyball.environment import Environment
from flyball.job import Job
from flyball.node.agent import AgentError, Caller
from flyball.node.measuring import OLDEST_MILLISECONDS, PAUSE_SECONDS, EnergyMeter, Measurement, gpu_counter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Counting:
    """An agent that reads GPUs of `watts` once in five seconds, and takes a hundredth of one to answer."""

    def __init__(self, clock: Clock, watts: float) -> None:
        self.clock, self.watts, self.calls = clock, watts, 0
        self.answer: Mapping[str, Any] | Exception | None = None

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        assert method == "GET"
        assert path in ("/v1/energy", "/v1/energy?fresh")
        self.calls += 1
        self.clock.now += 0.01
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return dict(self.answer)
        read_at = self.clock.now // 5 * 5
        return {
            "energyMillijoules": round(read_at * self.watts * 1000),
            "powerMilliwatts": round(self.watts * 1000),
            "ageMilliseconds": round((self.clock.now - read_at) * 1000),
        }


def measured(agent: Caller | None, clock: Clock, seconds: float, meter: EnergyMeter | None = None) -> Measurement:
    with Measurement("work", meter or EnergyMeter(agent, clock), clock) as taken:
        assert (taken.seconds, taken.joules, taken.watts) == (None, None, None)
        clock.now += seconds
    return taken


@pytest.mark.parametrize("seconds", [0.5, 3.0, 4.99, 7.0, 1234.5])
def test_what_was_drawn_since_the_last_reading_counts(seconds: float) -> None:
    clock = Clock()
    clock.now = 102.3
    taken = measured(Counting(clock, 600.0), clock, seconds)
    assert taken.seconds == pytest.approx(seconds)
    assert taken.joules == pytest.approx(600.0 * seconds, rel=1e-3, abs=1.5)
    assert taken.watts == pytest.approx(600.0, rel=5e-3)


def test_measurements_lie_within_each_other() -> None:
    clock = Clock()
    meter = EnergyMeter(Counting(clock, 250.0), clock)
    with Measurement("epoch", meter, clock) as outer:
        inner = [measured(None, clock, seconds, meter) for seconds in (10.0, 20.0)]
        clock.now += 5.0
    assert [taken.joules for taken in inner] == pytest.approx([2500.0, 5000.0], rel=1e-3)
    assert outer.joules == pytest.approx(250.0 * 35.04, rel=1e-3)


@pytest.mark.parametrize(
    "answer",
    [
        AgentError("it is away"),
        {},
        {"energyMillijoules": None, "powerMilliwatts": 1, "ageMilliseconds": 1},
        {"energyMillijoules": "much", "powerMilliwatts": 1, "ageMilliseconds": 1},
        {"energyMillijoules": 1, "powerMilliwatts": 1, "ageMilliseconds": OLDEST_MILLISECONDS + 1},
        {"energyMillijoules": 1, "powerMilliwatts": 1, "ageMilliseconds": float("nan")},
    ],
)
def test_what_nobody_knows_is_none_for_one_warning_and_no_time(
    answer: Mapping[str, Any] | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    agent = Counting(clock, 100.0)
    meter = EnergyMeter(agent, clock)
    agent.answer = answer
    taken = [measured(None, clock, 1.0, meter) for _ in range(20)]
    assert {item.joules for item in taken} == {None}
    assert all(item.seconds == pytest.approx(1.0) for item in taken)
    assert agent.calls == 1, "it is not asked again at once"
    assert caplog.text.count("energy of this pod is not known") == 1
    agent.answer = None
    clock.now += PAUSE_SECONDS
    assert measured(None, clock, 4.0, meter).joules == pytest.approx(400.0, rel=0.01)


def test_a_body_that_fails_is_measured_and_fails() -> None:
    clock = Clock()
    taken = Measurement("work", EnergyMeter(Counting(clock, 100.0), clock), clock)

    def work() -> None:
        with taken:
            clock.now += 2.0
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        work()
    assert taken.joules == pytest.approx(200.0, rel=0.01)


def test_what_the_gpu_was_only_given_is_waited_for_at_both_ends() -> None:
    """Else a stretch ends before it is computed: on an H200, 1.1 s and 744 J of 1.9 s and 1,320 J."""
    clock, given = Clock(), [2.0]

    def wait() -> None:
        clock.now += sum(given)
        given.clear()

    with Measurement("work", EnergyMeter(Counting(clock, 600.0), clock), clock, wait) as taken:
        assert given == [], "what was given before belongs to nobody here"
        given.append(3.0)
    assert taken.seconds == pytest.approx(3.0)
    assert taken.joules == pytest.approx(1800.0, rel=1e-2)


def test_an_error_is_told_without_waiting_for_the_gpu() -> None:
    waits: list[None] = []
    with (
        pytest.raises(RuntimeError, match="of the training"),
        Measurement("work", EnergyMeter(None), Clock(), lambda: waits.append(None)),
    ):
        raise RuntimeError("of the training")
    assert len(waits) == 1


def test_with_pytorch_a_measurement_waits_for_this_process_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, synchronize=waited.append)
    fake = SimpleNamespace(cuda=cuda, device=lambda *which: which, __path__=[])
    for name, module in (
        ("torch", fake),
        ("torch.distributed", SimpleNamespace()),
        ("torch.utils", SimpleNamespace(__path__=[])),
        ("torch.utils.data", SimpleNamespace(DataLoader=None)),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "flyball.torch", raising=False)
    try:
        job = importlib.import_module("flyball.torch").TorchJob(Environment(local_rank=1))
        with job.measure("epoch"):
            assert waited == [("cuda", 1)]
        assert waited == [("cuda", 1)] * 2
        cuda.is_initialized = lambda: False  # to ask would take the GPU's memory for a process that computes elsewhere
        with job.measure("epoch"):
            pass
        assert len(waited) == 2
    finally:
        sys.modules.pop("flyball.torch", None)


def test_counters_that_fall_are_no_energy() -> None:
    clock = Clock()
    agent = Counting(clock, 100.0)
    agent.answer = {"energyMillijoules": 9e9, "powerMilliwatts": 0, "ageMilliseconds": 0}
    with Measurement("work", EnergyMeter(agent, clock), clock) as taken:
        agent.answer = {"energyMillijoules": 1.0, "powerMilliwatts": 0, "ageMilliseconds": 0}
        clock.now += 1.0
    assert taken.joules == 0.0


def test_outside_flyball_there_are_seconds_alone() -> None:
    job = Job(Environment())
    with job.measure("epoch") as taken:
        pass
    assert taken.seconds is not None
    assert taken.joules is None
    assert repr(taken).endswith("? J>")


GPU_A = {"energyMillijoules": 4200, "clockMegahertz": 1200}
GPUS = {"GPU-a": {"energyMillijoules": 4200}, "GPU-b": {"energyMillijoules": 7000}}


def test_each_counter_was_read_at_a_moment_of_its_own() -> None:
    clock = Clock()
    agent = Counting(clock, 600.0)
    agent.answer = {"ageMilliseconds": 400, "gpus": {"GPU-a": {**GPU_A, "ageMilliseconds": 412.5}}}
    found = gpu_counter(agent, "GPU-a", clock)
    assert found is not None
    assert found[0] == pytest.approx(clock.now - 0.4125)


@pytest.mark.parametrize(
    ("answer", "gpu", "joules"),
    [
        ({"ageMilliseconds": 400, "gpus": GPUS}, "GPU-b", 7.0),
        ({"ageMilliseconds": 400, "gpus": {"GPU-a": GPU_A}}, "*", 4.2),
        ({"ageMilliseconds": 400, "gpus": GPUS}, "*", None),
        ({"ageMilliseconds": 400, "gpus": {}}, "*", None),
        ({"ageMilliseconds": 400, "gpus": GPUS}, "GPU-c", None),
        ({"ageMilliseconds": 400}, "GPU-a", None),
        ({"ageMilliseconds": OLDEST_MILLISECONDS + 1, "gpus": GPUS}, "GPU-a", None),
        ({"ageMilliseconds": 400, "gpus": 7}, "GPU-a", None),
        (AgentError("away"), "GPU-a", None),
    ],
)
def test_the_counter_of_one_gpu_is_as_old_as_the_agent_says(answer: Any, gpu: str, joules: float | None) -> None:
    clock = Clock()
    agent = Counting(clock, 600.0)
    agent.answer = answer
    found = gpu_counter(agent, gpu, clock)
    assert found == (
        None
        if joules is None
        else (pytest.approx(clock.now - 0.4), pytest.approx(joules), 1200 if joules == 4.2 else None)
    )
