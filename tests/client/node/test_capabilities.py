"""What a training is told of its GPUs: by agents that say it, do not know it yet, are of another version, or lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from flyball.environment import Environment
from flyball.job import Job
from flyball.node.agent import AgentError
from flyball.node.capabilities import (
    LEAST_SETS,
    LONGEST_PAUSE_SECONDS,
    LOOK_SECONDS,
    OLDEST_SECONDS,
    GpuCapabilities,
    KnownSetLatency,
    SetLatency,
    capabilities_of,
)

GPU = {
    "clocksLockable": True, "whyNot": "", "lowestMegahertz": 210, "highestMegahertz": 1410, "stepMegahertz": 15,
    "grantedMegahertz": 1200, "powerLimitMilliwatts": 300_000,
    "setLatency": {"medianMicroseconds": 1500, "p99Microseconds": 22_000, "sets": 64, "ageMilliseconds": 2500},
}  # fmt: skip


class Saying:
    def __init__(self, answer: Mapping[str, Any] | AgentError) -> None:
        self.answer, self.calls = answer, 0

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        assert (method, path, body) == ("GET", "/v1/capabilities", None)
        self.calls += 1
        if isinstance(self.answer, AgentError):
            raise self.answer
        return dict(self.answer)


def test_what_the_agent_says_is_told_in_seconds() -> None:
    (found,) = capabilities_of(Saying({"gpus": {"GPU-a": GPU}})).values()
    assert found == GpuCapabilities(True, "", 210, 1410, 15, 1200, 300_000, SetLatency(0.0015, 0.022, 64, 2.5))


@pytest.mark.parametrize(
    "spoilt",
    [
        {},
        {"clocksLockable": None, "setLatency": None},
        {"clocksLockable": "yes", "lowestMegahertz": -1, "grantedMegahertz": True, "whyNot": 7},
        {"setLatency": {**GPU["setLatency"], "sets": 0}},  # type: ignore[dict-item]
        {"setLatency": {**GPU["setLatency"], "medianMicroseconds": 1e300}},  # type: ignore[dict-item]
        {"setLatency": [1, 2], "of": "a later version"},
    ],
)
def test_what_is_not_said_or_cannot_be_is_not_known(spoilt: dict[str, Any]) -> None:
    assert capabilities_of(Saying({"gpus": {"GPU-a": spoilt}})) == {"GPU-a": GpuCapabilities()}


@pytest.mark.parametrize("answer", [{}, {"gpus": []}, {"gpus": None}, AgentError("404 NotFound")])
def test_an_agent_that_does_not_say_is_an_error_for_who_asks_and_none_for_a_job(
    answer: Mapping[str, Any] | AgentError,
) -> None:
    with pytest.raises(AgentError):
        capabilities_of(Saying(answer))
    assert Job(Environment()).capabilities() == {}
    assert Job(Environment(socket="/nowhere/flyball.sock")).capabilities() == {}


class Now:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(("gpu", "gpus", "known"), [
    ("GPU-a", {"GPU-a": GPU, "GPU-b": {}}, 0.0015),
    ("*", {"GPU-a": GPU}, 0.0015),
    ("*", {"GPU-a": GPU, "GPU-b": GPU}, None),
    ("GPU-c", {"GPU-a": GPU}, None),
    ("GPU-a", {"GPU-a": {**GPU, "setLatency": {**GPU["setLatency"], "sets": LEAST_SETS - 1}}}, None),  # type: ignore[dict-item]
])  # fmt: skip
def test_the_latency_of_the_own_gpu_is_concluded_from_enough_calls(
    gpu: str, gpus: dict[str, Any], known: float | None
) -> None:
    latency = KnownSetLatency(Saying({"gpus": gpus}), gpu, Now())
    assert latency.seconds() is None
    latency.look()
    assert latency.seconds() == known


def test_it_is_asked_for_now_and_then_and_forgotten_once_no_clock_has_been_set_for_long() -> None:
    agent, now = Saying({"gpus": {"GPU-a": GPU}}), Now()
    latency = KnownSetLatency(agent, "GPU-a", now)
    for _ in range(10):
        latency.look()
        now.seconds += LOOK_SECONDS / 5
    assert agent.calls == 2
    agent.answer = AgentError("away")
    now.seconds += LOOK_SECONDS
    for _ in range(round(20 * LONGEST_PAUSE_SECONDS)):
        latency.look()
        now.seconds += 1.0
        if now.seconds < 1000.0 + OLDEST_SECONDS:
            assert latency.seconds() == 0.0015, "what is known stays so while the agent is away"
    assert latency.seconds() is None
    assert agent.calls < 2 + 30, "an agent that does not answer is asked ever less often"
