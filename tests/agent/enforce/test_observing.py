"""An enforcer that observes: whatever comes and whatever it remembers, it sets nothing and acknowledges nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from flyball_agent.enforce.decisions import Mode
from flyball_agent.gpu.simulated import SimulatedDriver, SimulatedGpu
from flyball_api.power_brake import PowerBrake, PowerBrakeSpec
from flyball_api.reading import ObjectMeta
from flyball_simulated_gpu.device import DeviceFault
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.enforcer_rig import GPUS, MIN_LIMITS, Rig
from tests.support.examples import examples
from tests.support.gpu_node_specs import gpu_node_spec, job_grant

SETTERS = (
    "set_power_limit_milliwatts",
    "set_locked_clocks_megahertz",
    "reset_locked_clocks",
    "enable_persistence_mode",
)


@contextmanager
def counted_sets() -> Iterator[list[str]]:
    """The calls of the driver that change anything, by their names."""
    made: list[str] = []

    def counting(name: str) -> Any:
        original = getattr(SimulatedGpu, name)

        def call(*arguments: Any) -> Any:
            made.append(name)
            return original(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in SETTERS:
            patch.setattr(SimulatedGpu, name, counting(name))
        yield made


def governed(rig: Rig) -> None:
    """Let the rig's enforcer hold a grant with a job, and lock its clocks."""
    rig.hold("gpt2", 1, 2)
    rig.enforcer.accept(gpu_node_spec(2, 700_000, job_grant("gpt2", 250_000, clocks=(900, 1005))))
    rig.step()


def test_who_governs_calls_every_setter_that_who_observes_never_calls(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for device in rig.node.devices:
        device.flags |= DeviceFault.NOT_PERSISTENT
    with counted_sets() as sets:
        governed(rig)
        rig.hold("gpt2")
        rig.step()
    assert set(sets) == set(SETTERS)
    rig.enforcer.close()


def test_what_the_journal_remembers_is_not_gone_by(tmp_path: Path) -> None:
    """An agent that governed is told to observe: its limits stay, past the end of its lease, and whatever others set."""
    rig = Rig(tmp_path)
    governed(rig)
    before = rig.limits()
    with counted_sets() as sets:
        rig.restart(observe=True)
        assert rig.enforcer.state.mode is Mode.OBSERVING
        rig.step(120)
        rig.node.devices[0].set_power_limit_milliwatts(400_000)
        rig.step()
        assert not rig.enforcer.accept(gpu_node_spec(3, MIN_LIMITS))
        rig.step()
    assert sets == []
    assert rig.limits() == [400_000, *before[1:]]
    assert rig.acknowledged is None
    assert rig.enforcer.state.counts.drift_corrections == 0
    # Governing again, it goes on from what it held before it observed, and lowers what was raised meanwhile.
    rig.restart()
    rig.step()
    assert rig.limits()[0] == 100_000
    rig.enforcer.close()


actions = st.lists(
    st.one_of(
        st.tuples(st.just("spec"), st.integers(1, 9), st.integers(MIN_LIMITS, 1_600_000)),
        st.tuples(st.just("brake"), st.integers(1, 9), st.integers(0, 1_000_000)),
        st.tuples(st.just("emergency"), st.integers(1, 9), st.booleans()),
        st.tuples(st.just("renew"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("hold"), st.integers(0, GPUS - 1), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 200), st.just(0)),
        st.tuples(st.just("other hand"), st.integers(0, GPUS - 1), st.integers(100_000, 400_000)),
        st.tuples(st.just("reboot"), st.integers(1, 9), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(actions=actions, governed_before=st.booleans())
def test_nothing_is_ever_set_or_acknowledged(actions: list[tuple[str, int, Any]], governed_before: bool) -> None:
    with TemporaryDirectory() as folder:
        rig = Rig(Path(folder))
        if governed_before:
            governed(rig)
        rig.restart(observe=True)
        with counted_sets() as sets:
            for action, number, value in actions:
                if action == "spec":
                    rig.enforcer.accept(gpu_node_spec(number, value, job_grant("gpt2", 250_000)))
                elif action == "brake":
                    spec = PowerBrakeSpec(1, number, value)
                    rig.enforcer.take_brakes({"hall": PowerBrake(ObjectMeta("hall"), spec)})
                elif action == "emergency":
                    spec = PowerBrakeSpec(1, number, 0, "Active" if value else "Ended")
                    rig.enforcer.take_brakes({"hall": PowerBrake(ObjectMeta("hall"), spec)})
                elif action == "renew":
                    rig.enforcer.renew_lease(number)
                elif action == "hold":
                    rig.hold("gpt2", number)
                elif action == "wait":
                    rig.now_ns += number * 1_000_000_000
                elif action == "other hand":
                    rig.node.devices[number].set_power_limit_milliwatts(value)
                elif action == "reboot":
                    rig.node.reboot(f"boot-{number + 1}")
                    rig.restart(driver=SimulatedDriver(rig.node), observe=True)
                else:
                    rig.restart(observe=True)
                before = rig.limits()
                rig.step(0.1)
                assert rig.limits() == before
                assert rig.acknowledged is None
                assert rig.enforcer.state.mode is Mode.OBSERVING
        assert sets == []
        rig.enforcer.close()
