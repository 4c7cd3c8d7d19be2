"""What `flyball whatif` says, against what the operator then does: the whole operator and real agents in virtual time."""

from __future__ import annotations

from flyball_kube.resources import ENERGY_AWARE_JOBS
from flyball_operator.planning.what_if import PlanningSettings, Share, WhatIf, what_if
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.operator_objects import NOW
from tests.support.power_cluster import GPUS, MIN, NODES
from tests.support.schedules.faults import Schedule
from tests.support.schedules.memory_api import Json
from tests.support.schedules.processes import SETTINGS
from tests.support.schedules.run import run
from tests.support.schedules.workloads import WholeOperatorProcess, Workloads, job, until
from tests.support.schedules.world import Beginning, World

BEGINNING = Beginning((10, 10, 10), (False,) * 3, ((MIN, 1.0),) * (len(NODES) * GPUS))
PLANNING = PlanningSettings(
    SETTINGS.policy, SETTINGS.restart_seconds, SETTINGS.guard_fraction, tuple(SETTINGS.gpu_resources)
)
Jobs = list[tuple[int, int, str, str]]  # the most GPUs, priority, objective, elasticity


def jobs() -> st.SearchStrategy[Jobs]:
    one = st.tuples(
        st.sampled_from([1, 2]),
        st.integers(0, 2),
        st.sampled_from(["Time", "Energy", "Balanced"]),
        st.sampled_from(["CheckpointRestart", "CheckpointRestart", "Never"]),
    )
    return st.lists(one, min_size=1, max_size=6)


def manifest(index: int, most: int, priority: int, objective: str, mode: str) -> Json:
    elasticity = {"mode": mode, "minSecondsBetweenResizes": 0}
    return job(index, gpus={"min": 1, "max": most}, priority=priority, objective=objective, elasticity=elasticity)


def has(raw: Json) -> tuple[int, int, tuple[str, ...]]:
    """What a job has by its status: GPUs, clock, nodes."""
    given = (raw.get("status") or {}).get("allocation") or {}
    nodes = tuple(sorted(item["name"] for item in given.get("nodes") or ()))
    return given.get("gpus", 0), given.get("clockMegahertz", 0), nodes


def told(share: Share) -> tuple[int, int, tuple[str, ...]]:
    return share.gpus, share.clock_megahertz, tuple(sorted(share.nodes))


@settings(max_examples=examples(12))
@given(jobs(), st.integers(3, 9), st.integers(1, 10))
def test_what_is_said_of_another_cap_is_what_comes_of_it(wanted: Jobs, before: int, tenths: int) -> None:
    async def ask_and_see(world: World, schedule: Schedule) -> None:
        world.operator_kind = WholeOperatorProcess
        Workloads(world)
        try:
            await world.begin(schedule.beginning)
            for machine in world.machines.values():
                machine.held = {}
            world.show_pods()
            world.set_cap("hall", before)
            for index, one in enumerate(wanted):
                world.api.put(ENERGY_AWARE_JOBS.plural, manifest(index, *one))

            def raw_jobs() -> dict[str, Json]:
                return {f"team/{name}": raw for name, raw in world.api.items["energyawarejobs"].items()}

            def at_rest() -> bool:
                leader = world.leader()
                operator = None if leader is None else world.operators[leader]
                planner = operator.planner if isinstance(operator, WholeOperatorProcess) else None
                if planner is None or planner.planning or len(wanted) not in planner.plans:
                    return False  # what waits for a plan that is under way is not at rest
                states = [str((raw.get("status") or {}).get("state")) for raw in raw_jobs().values()]
                return all(state == "Running" or state.startswith("Waiting") for state in states)

            def said() -> WhatIf:
                leader = world.leader()
                assert leader is not None
                operator = world.operators[leader].operator
                cap = world.api.get("powercaps", "hall")
                assert cap is not None
                world.set_cap("hall", tenths)
                changed = world.api.get("powercaps", "hall")
                assert changed is not None
                watts = changed["spec"]["watts"]
                return what_if(operator._watches.cluster(), operator._learner, PLANNING, "hall", watts, NOW)

            await until(at_rest, "the jobs run or wait", 30.0, steadily=0.5)
            foretold = {change.name: told(change.after) for change in said().jobs}
            assert foretold.keys() == raw_jobs().keys()
            await until(
                lambda: {name: has(raw) for name, raw in raw_jobs().items()} == foretold,
                f"{foretold} is what jobs are given; they have {[has(raw) for raw in raw_jobs().values()]}",
                20.0,
            )
        finally:
            await world.close()

    assert not run(Schedule(1, BEGINNING, ()), play=ask_and_see).violation
