"""The status as a function of what is known: asking changes nothing, and only a change of status moves its time."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta

from flyball_agent.energy.attribution import EnergyAccounts
from flyball_agent.energy.observations import Observations
from flyball_agent.energy.stage_profiles import StageProfiles
from flyball_agent.enforce.gpu_state import GpuFailure, GpuState
from flyball_agent.enforce.state import EnforcerState, LimitDrift
from flyball_agent.gpu.gpu import GpuLimits, GpuLost, GpuReading, PowerLimitReading
from flyball_agent.node.status import DRIFT_SHOWN_NS, node_status, significant_fields, status_patch
from flyball_agent.state import AgentState
from flyball_api.gpu_node import Acknowledgement, DriverSession, GpuNodeStatus, GpuNodeSummary, RoundTime
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts

from tests.support.crd_schema import assert_valid

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UUID = "GPU-00000000-0000-4000-8000-000000000001"
LIMIT = MilliwattsPerGpu(400_000)
NO_STAGES = StageProfiles()


def known() -> AgentState:
    gpu = GpuState(UUID, 0, "A100", GpuLimits(LIMIT, LIMIT, LIMIT), LIMIT)
    enforced = EnforcerState(DriverSession("boot-1", "580.0"), {UUID: gpu}, looked_ns=17)
    return AgentState("node-0", "1.2", enforced, EnergyAccounts(), Observations(), last_round_ns=19)


def test_asking_changes_nothing() -> None:
    state = known()
    state.enforced.last_drift = LimitDrift(0, "GPU: limit 1 mW was changed to 2 mW")
    before = copy.deepcopy(state)
    first = node_status(state, NO_STAGES, GpuNodeStatus(), 5, NOW)
    assert significant_fields(state, NO_STAGES, 5) == significant_fields(state, NO_STAGES, 5)
    assert node_status(state, NO_STAGES, GpuNodeStatus(), 5, NOW) == first
    assert (state.enforced, state.accounts) == (before.enforced, before.accounts)


def test_a_report_says_when_the_gpus_were_last_looked_at() -> None:
    state = known()
    assert node_status(state, NO_STAGES, GpuNodeStatus(), 99, NOW).last_round == RoundTime(
        17, "1.2", NodeMilliwatts(400_000)
    )
    (gpu,) = state.enforced.gpus.values()
    state.enforced.put(gpu.failed(GpuLost("gone")))
    lost = node_status(state, NO_STAGES, GpuNodeStatus(), 99, NOW)
    assert lost.devices[0].limits.enforced_milliwatts is None
    assert lost.last_round == RoundTime(17, "1.2", NodeMilliwatts(400_000)), "what it held last stays reserved"
    state = known()
    state.enforced.looked_ns = state.last_round_ns = 20
    assert significant_fields(state, NO_STAGES, 5) == significant_fields(known(), NO_STAGES, 5), (
        "that alone is worth no write"
    )
    state.enforced.looked_ns = None
    assert node_status(state, NO_STAGES, GpuNodeStatus(), 5, NOW).last_round is None


def test_kubectls_columns_are_in_watts() -> None:
    state = known()
    unread = node_status(state, NO_STAGES, GpuNodeStatus(), 5, NOW)
    assert unread.summary == GpuNodeSummary("", ""), "what nobody could read is not called 0 W"
    limit = PowerLimitReading(LIMIT, LIMIT)
    reading = GpuReading(limit, average_power_milliwatts=MilliwattsPerGpu(58_400))
    state.enforced.gpus[UUID] = state.enforced.gpus[UUID].changed(limit=limit, reading=reading)
    assert node_status(state, NO_STAGES, GpuNodeStatus(), 5, NOW).summary == GpuNodeSummary("400 W", "58 W")


def test_a_conditions_time_moves_with_its_status_only() -> None:
    state = known()
    first = node_status(state, NO_STAGES, GpuNodeStatus(), 0, NOW)
    state.enforced.gpus[UUID] = state.enforced.gpus[UUID].changed(failure=GpuFailure("Lost", "it is gone", True))
    later = NOW + timedelta(minutes=1)
    second = node_status(state, NO_STAGES, first, 0, later)
    assert [condition.last_transition_time for condition in first.conditions] == [NOW] * 3
    assert {item.type: item.last_transition_time for item in second.conditions} == {
        "Ready": NOW,
        "Drifted": NOW,
        "Degraded": later,
    }
    assert second.devices[0].conditions[0].last_transition_time == later
    third = node_status(state, NO_STAGES, second, 0, later + timedelta(minutes=1))
    assert third == second


def test_a_drift_is_shown_until_it_is_old() -> None:
    state = known()
    state.enforced.last_drift = LimitDrift(1000, "GPU: limit 1 mW was changed to 2 mW")
    shown = [
        node_status(state, NO_STAGES, GpuNodeStatus(), now_ns, NOW).conditions[1].status
        for now_ns in (1000, 999 + DRIFT_SHOWN_NS, 1000 + DRIFT_SHOWN_NS)
    ]
    assert shown == ["True", "True", "False"]
    assert significant_fields(state, NO_STAGES, 1000) != significant_fields(state, NO_STAGES, 1000 + DRIFT_SHOWN_NS)


def test_an_acknowledgement_of_an_earlier_process_is_left_until_there_is_a_new_one() -> None:
    state = known()
    patch = status_patch(node_status(state, NO_STAGES, GpuNodeStatus(), 0, NOW), "1")["status"]
    assert "acknowledged" not in patch  # null would remove it
    assert_valid("GPUNode", "status", patch)
    bound = NodeMilliwatts(500_000)
    state.enforced.acknowledged = Acknowledgement(1, 2, NodeMilliwatts(400_000), "boot-1", "580.0", NOW, bound)
    patch = status_patch(node_status(state, NO_STAGES, GpuNodeStatus(), 0, NOW), "1")["status"]
    assert patch["acknowledged"]["generation"] == 2
    assert patch["acknowledged"]["boundMilliwatts"] == 500_000
    assert_valid("GPUNode", "status", patch)
