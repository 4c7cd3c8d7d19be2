"""Load under a ramp comes in steps, and jobs start and are stopped in turn; a cut waits for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from flyball_api.gpu_node import GpuNode, read_gpu_node
from flyball_api.grant import OtherGpuLimits, PowerBound
from flyball_api.power_cap import PowerCap
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from flyball_api.workloads import PodView
from flyball_operator.cluster.outcome import Outcome
from flyball_operator.cluster.state import ClusterState
from flyball_operator.power.bound import NodePower
from flyball_operator.power.caps.state import CapState
from flyball_operator.power.caps.tracker import CapTracker
from flyball_operator.power.controller import PowerController, PowerSettings
from flyball_operator.power.cycle import Answered, PlanInForce, PowerCycle
from flyball_operator.power.grants.admission import GrantTarget
from flyball_operator.power.grants.ramp import (
    STEP_SECONDS,
    LoadStep,
    Ramps,
    Turns,
    holds_up_stops,
    waiting_starts,
    waiting_stops,
)
from flyball_operator.power.nodes.info import NodeInfo
from flyball_planner.models.gpu import catalogue
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.examples import examples
from tests.support.operator_objects import (
    A100,
    FLOOR,
    NOW,
    cap_view,
    decision,
    gpu_node_view,
    grant,
    in_version,
    incarnation_view,
    job_grant,
    node_view,
    pod_view,
    raw_gpu_node,
    ready_node,
    running_pod,
)

NODES = "abc"
RAMP = 100  # watts a second


def allowed_after(
    turns: Turns,
    waiting: Iterable[LoadStep],
    caps: Iterable[CapState],
    nodes: Mapping[str, NodeInfo],
    monotonic: float,
) -> frozenset[tuple[str, int]]:
    """Who may take a step of load, once these jobs wait for it."""
    turns.update(waiting, caps, nodes, monotonic)
    return turns.allowed


class Row:
    """Three nodes of eight GPUs whose agents acknowledge at once, under a cap with a ramp; a job on each node."""

    def __init__(self, ramp: int | None = RAMP, watts: int = 10_000) -> None:
        self.spec = {"watts": watts, **({} if ramp is None else {"rampWattsPerSecond": ramp})}
        self.status: dict[str, int] = {"effectiveWatts": watts}
        self.controller = PowerController(1, PowerSettings())
        self.gpu_nodes: dict[str, GpuNode] = {
            name: gpu_node_view(name, grant(8 * FLOOR), limits=8 * FLOOR) for name in NODES
        }
        self.seconds, self.writes = 0.0, 0
        self.wanted = dict.fromkeys(NODES, 100.0)
        self.gated: set[str] = set()  # nodes whose job's pod waits for its gate to open
        self.may_start: list[set[str]] = []  # of each cycle, the nodes whose pods' gates may open
        self.stopping: set[str] = set()  # nodes whose job the plan wants there no more
        self.moved_to: dict[
            str, str | None
        ] = {}  # where the plan wants some of these jobs instead; None: nowhere for now
        self.reads = 0
        self.may_stop: list[set[str]] = []  # of each cycle, those of them whose job may be stopped
        self.theirs: list[PodView] = []  # pods outside Flyball, in the place of the jobs

    def read_cap(self) -> PowerCap:
        self.reads += 1
        return in_version(cap_view("row", status=self.status, **self.spec), 100 + self.reads)

    @property
    def limits_watts(self) -> int:
        return sum(item.grant.bound.limit_milliwatts for item in self.gpu_nodes.values() if item.grant) // 1000

    def pod(self, name: str) -> PodView:
        if name in self.gated:
            return pod_view(f"pod-{name}", uid=f"uid-{name}", gpus=8, gated=True)
        return running_pod(f"pod-{name}", name, uid=f"uid-{name}", gpus=8)

    def limit(self, name: str) -> int:
        """Of each GPU of a node's job, in watts."""
        item = self.gpu_nodes[name].grant
        assert item is not None
        return item.jobs[0].power_limit_milliwatts // 1000

    def cycle(self, seconds: float = 1.0) -> None:
        """One cycle, whose grants are acknowledged and whose status is published before the next one."""
        self.seconds += seconds
        cluster = ClusterState(
            jobs={},
            caps=[self.read_cap()],
            gpu_nodes=dict(self.gpu_nodes),
            nodes=[node_view(name) for name in NODES],
            pods=self.theirs or [self.pod(name) for name in NODES],
            incarnations={f"uid-{name}": [incarnation_view(f"uid-{name}", 1, (name, 8))] for name in NODES},
            pods_of={},
            reports_of={},
            unread=(),
            age_seconds=0.0,
        )
        state = self.controller.observe(cluster, NOW, self.seconds)
        plan = {
            f"uid-{name}": decision(f"uid-{name}", (name, 8), watts=watts, predicted_watts=watts)
            for name, watts in self.wanted.items()
            if name not in self.stopping
        }
        plan |= {
            f"uid-{name}": decision(f"uid-{name}", *(() if node is None else ((node, 8),)))
            for name, node in self.moved_to.items()
        }
        stopping = {(f"uid-{name}", 1) for name in self.stopping}
        instructions = self.controller.step(PowerCycle(state, PlanInForce(plan), NOW, self.seconds, stopping=stopping))
        self.may_stop.append({name for name in self.stopping if (f"uid-{name}", 1) not in instructions.held_up})
        self.may_start.append({name for name in self.gated if instructions.is_reserved(self.pod(name))})
        for write in instructions.cap_statuses:
            self.status = {
                "effectiveWatts": write.status.effective_watts or 0,
                "committedWatts": write.status.committed_watts or 0,
            }
        for send in instructions.sends:
            raw = raw_gpu_node(send.node.name, send.grant, limits=send.grant.bound.limit_milliwatts)
            self.writes += 1
            raw["metadata"]["resourceVersion"] = str(100 + self.writes)
            self.gpu_nodes[send.node.name] = read_gpu_node(raw)
            self.controller.handle(Answered(send.node.name, Outcome.DONE))

    def cycles(self, number: int) -> list[int]:
        """What the limits add up to after each of so many cycles."""
        seen = []
        for _ in range(number):
            self.cycle()
            seen.append(self.limits_watts)
        return seen


def settled(row: Row) -> Row:
    row.cycles(12)
    return row


def test_what_is_granted_rises_no_faster_than_the_ramp_and_gets_there() -> None:
    row = settled(Row())
    assert row.limits_watts == 2400
    row.wanted = dict.fromkeys(NODES, 300.0)
    seen = [row.limits_watts, *row.cycles(70)]
    assert seen[-1] == 7200
    for first, limits in enumerate(seen):
        for later in range(first, len(seen)):
            assert seen[later] - limits <= RAMP * (later - first + STEP_SECONDS)
    # All nodes rise together, and none waits for another's end.
    assert sum(late > early for early, late in pairwise(seen)) >= 8


def test_raises_that_cannot_be_had_in_parts_come_one_after_the_other() -> None:
    row = settled(Row())
    row.theirs = [running_pod(f"theirs-{name}", name, gpus=4) for name in NODES]  # 1,200 W more on each node
    seen = [row.limits_watts, *row.cycles(60)]
    assert sorted(late - early for early, late in pairwise(seen))[-4:] == [0, 1200, 1200, 1200]
    assert seen[-1] == 2400 + 3 * 1200
    assert seen[10] == 2400  # what the ramp has allowed by then is less than one of them


def test_without_a_ramp_it_takes_two_cycles() -> None:
    row = settled(Row(ramp=None))
    row.wanted = dict.fromkeys(NODES, 300.0)
    assert row.cycles(2)[-1] == 7200


def test_a_watt_more_waits_until_the_last_grant_is_a_second_old() -> None:
    row = settled(Row(ramp=None))
    row.wanted = dict.fromkeys(NODES, 200.0)
    row.cycle(2.0)
    row.cycle(0.1)
    assert row.limit("a") == 200
    row.wanted = dict.fromkeys(NODES, 201.0)
    for _ in range(5):
        row.cycle(0.1)
    assert row.limit("a") == 200
    row.wanted["b"] = 300.0
    row.cycle(0.1)
    row.cycle(0.1)
    assert (row.limit("a"), row.limit("b")) == (200, 300)
    row.cycle(1.0)
    row.cycle(0.1)
    assert row.limit("a") == 201


def test_jobs_rise_together() -> None:
    row = settled(Row())
    row.wanted = dict.fromkeys(NODES, 300.0)
    row.cycles(20)
    limits = [row.limit(name) for name in NODES]
    assert max(limits) - min(limits) <= 1
    assert 100 < limits[0] < 300


def test_what_one_job_cannot_have_yet_is_shared_out_once_a_step() -> None:
    """Shared out at every look, it would be half of a half of a rise, and a grant each time."""
    row = settled(Row())
    # What is wanted on the first node cannot be had in parts, and so takes up none of what there is for a long time.
    row.theirs = [running_pod("theirs", "a", gpus=4), row.pod("b"), row.pod("c")]
    row.wanted = dict.fromkeys(NODES, 300.0)
    before, steps = row.writes, 6
    for _ in range(int(steps * STEP_SECONDS / 0.05)):
        row.cycle(0.05)
    assert row.limits_watts > 2400 + 3 * RAMP * STEP_SECONDS
    # One each for the two nodes with jobs, and the first node's without its job.
    assert row.writes - before <= 2 * steps + 1


def test_a_cut_waits_for_no_ramp_and_its_watts_do_not_come_back_at_once() -> None:
    row = settled(Row())
    row.wanted = dict.fromkeys(NODES, 300.0)
    row.cycles(80)
    row.wanted["a"] = 100.0
    row.cycle()
    assert row.limits_watts == 5600
    row.cycles(10)
    row.wanted["a"] = 300.0
    assert max(row.cycles(5)) <= 5600 + RAMP * 2 * STEP_SECONDS


def test_a_new_leader_begins_at_what_is_committed() -> None:
    row = settled(Row())
    row.wanted = dict.fromkeys(NODES, 300.0)
    row.cycles(20)
    before = row.limits_watts
    row.controller = PowerController(1, PowerSettings())
    assert max(row.cycles(5)) <= before + RAMP * STEP_SECONDS


@settings(max_examples=examples(60), deadline=None)
@given(
    wishes=st.lists(st.lists(st.sampled_from([100.0, 180.0, 300.0, 400.0]), min_size=3, max_size=3), max_size=6),
    ramp=st.sampled_from([20, 100, 700]),
)
def test_whatever_is_wished_no_stretch_of_time_sees_a_faster_rise(wishes: list[list[float]], ramp: int) -> None:
    row = settled(Row(ramp))
    seen = [row.limits_watts]
    for wish in wishes:
        row.wanted = dict(zip(NODES, wish, strict=True))
        seen += row.cycles(7)
    # One node's rise that cannot be had in parts may come at once, after it was waited for.
    for first, limits in enumerate(seen):
        for later in range(first, len(seen)):
            assert seen[later] - limits <= ramp * (later - first + 2 * STEP_SECONDS) + 1


def test_a_rise_that_cannot_be_had_in_parts_comes_once_it_has_been_waited_for() -> None:
    caps, nodes = ramped()
    power = {name: info.power for name, info in nodes.items()}
    # Such as a pod outside Flyball, whose GPUs must be reserved at their defaults or not at all: 1,600 W more.
    rest = PowerBound(NodeMilliwatts(2_400_000), NodeMilliwatts(2_400_000))
    target = GrantTarget("a", OtherGpuLimits(), 60, (), (), rest, MilliwattsPerGpu(FLOOR))
    ramps, rooms = Ramps(), []
    for seconds in range(0, 31, 5):
        _, (budget,) = ramps.step([target], power, caps, float(seconds))
        rooms.append((budget.budget_milliwatts - budget.committed(power)) // 1000)
    assert rooms == [0, 500, 1000, 1500, 1600, 1600, 1600]


def aimed(node: str, **watts: int) -> GrantTarget:
    """What a node with jobs of four GPUs each should be granted: the limits of each job's GPUs, by its uid."""
    jobs = tuple(job_grant(uid, each * 1000, 4) for uid, each in watts.items())
    bounds = tuple(PowerBound(job.limit_milliwatts, job.limit_milliwatts) for job in jobs)
    rest = NodeMilliwatts((8 - 4 * len(jobs)) * FLOOR)
    return GrantTarget(node, OtherGpuLimits(), 60, jobs, bounds, PowerBound(rest, rest), MilliwattsPerGpu(FLOOR))


def standing(*targets: GrantTarget) -> dict[str, NodePower]:
    """The nodes with grants of these targets, acknowledged."""
    return {each.node: NodePower(grant(each.bound.limit_milliwatts, jobs=each.jobs), each.bound) for each in targets}


def limits_of(targets: list[GrantTarget]) -> dict[str, dict[str, int]]:
    """In watts, by node and job."""
    return {each.node: {job.uid: job.power_limit_milliwatts // 1000 for job in each.jobs} for each in targets}


def test_a_jobs_cut_waits_for_no_ramp_where_another_job_of_its_node_rises() -> None:
    caps, _ = ramped()
    power, ramps = standing(aimed("a", x=100, y=200)), Ramps()
    wanted = [aimed("a", x=400, y=150)]
    ramps.step(wanted, power, caps, 0.0)
    targets, _ = ramps.step(wanted, power, caps, STEP_SECONDS)
    assert limits_of(targets) == {"a": {"x": 100 + 300 * 500 // 1000, "y": 150}}


def test_a_node_that_rises_by_nothing_in_all_waits_for_no_ramp() -> None:
    """Its jobs change places, while another node waits for its watts."""
    caps, _ = ramped()
    power, ramps = standing(aimed("a", x=100, y=200), aimed("b", z=100)), Ramps()
    targets, _ = ramps.step([aimed("a", x=200, y=100), aimed("b", z=400)], power, caps, 0.0)
    assert limits_of(targets) == {"a": {"x": 200, "y": 100}, "b": {"z": 100}}


def test_what_there_is_is_shared_out_anew_once_it_has_been_enough_for_all() -> None:
    caps, _ = ramped()
    power, ramps = standing(aimed("a", x=100), aimed("b", y=100)), Ramps()
    seen = {
        seconds: limits_of(ramps.step([aimed("a", x=x), aimed("b", y=y)], power, caps, seconds)[0])
        for seconds, x, y in ((0.0, 400, 100), (5.0, 400, 100), (6.0, 400, 300), (7.0, 150, 100), (8.0, 300, 300))
    }
    assert seen[5.0] == {"a": {"x": 225}, "b": {"y": 100}}
    assert seen[6.0] == {"a": {"x": 225}, "b": {"y": 100}}, "who wants more between two steps waits for the next"
    assert seen[8.0] == {"a": {"x": 162}, "b": {"y": 162}}


def test_a_ramp_that_is_taken_away_and_comes_back_begins_anew() -> None:
    caps, nodes = ramped()
    power = {name: info.power for name, info in nodes.items()}
    rest = PowerBound(NodeMilliwatts(2_400_000), NodeMilliwatts(2_400_000))
    target = GrantTarget("a", OtherGpuLimits(), 60, (), (), rest, MilliwattsPerGpu(FLOOR))
    ramps = Ramps()
    ramps.step([target], power, caps, 0.0)
    assert ramps.step([target], power, [], 1.0) == ([target], [])
    _, (budget,) = ramps.step([target], power, caps, 1000.0)
    assert budget.budget_milliwatts == budget.committed(power)


def test_pods_start_at_the_smallest_limit_in_turn_and_their_limits_rise_then() -> None:
    row = Row(ramp=20)
    row.gated = set("bc")
    row.wanted |= dict.fromkeys("bc", 300.0)
    while not row.may_start or not row.may_start[-1]:
        row.cycle()
    first_at = row.seconds
    assert row.may_start[-1] == {"b"}
    assert (row.limit("b"), row.limit("c")) == (100, 100)
    row.gated = {"c"}
    row.cycle()
    while not row.may_start[-1]:
        row.cycle()
    idle = catalogue()[A100].idle_power_watts
    assert row.seconds - first_at >= 8 * (100 - idle) / 20 - 1.0
    row.gated = set()
    row.cycles(200)
    assert (row.limit("b"), row.limit("c")) == (300, 300)


# --- starts and stops --------------------------------------------------------------------------------------------------


def ramped(ramp: int = RAMP) -> tuple[list[CapState], dict[str, NodeInfo]]:
    nodes = {name: ready_node(name) for name in NODES}
    caps = [cap_view("row", watts=10_000, rampWattsPerSecond=ramp)]
    return list(CapTracker().step(caps, nodes, NOW, 0.0).states), nodes


def job(uid: str, *nodes: str, watts: int = 150) -> LoadStep:
    return LoadStep(uid, 1, tuple((node, 8, MilliwattsPerGpu(watts * 1000)) for node in nodes))


def test_jobs_start_one_after_the_other_each_when_the_last_step_is_paid_off() -> None:
    caps, nodes = ramped()
    (idle,) = {info.gpu_model.idle_power_watts for info in nodes.values() if info.gpu_model is not None}
    step_seconds = 8 * (150 - idle) / RAMP
    turns, jobs = Turns(), [job("x", "a"), job("y", "b"), job("z", "c")]
    assert allowed_after(turns, jobs, caps, nodes, 0.0) == {("x", 1)}
    assert allowed_after(turns, jobs, caps, nodes, step_seconds - 0.1) == {("x", 1)}  # it goes on being allowed
    assert allowed_after(turns, jobs[1:], caps, nodes, step_seconds + 0.1) == {("y", 1)}
    assert allowed_after(turns, jobs[2:], caps, nodes, 2 * step_seconds - 0.1) == frozenset()
    assert allowed_after(turns, jobs[2:], caps, nodes, 2 * step_seconds + 0.2) == {("z", 1)}


def test_a_step_counts_under_the_caps_over_its_nodes_and_for_those_nodes_alone() -> None:
    nodes = {name: ready_node(name) for name in NODES}
    hosts = {name: {"matchLabels": {"kubernetes.io/hostname": name}} for name in NODES}
    caps = [cap_view(f"row-{name}", watts=10_000, rampWattsPerSecond=1, nodeSelector=hosts[name]) for name in "ab"]
    states = CapTracker().step(caps, nodes, NOW, 0.0).states
    idle = catalogue()[A100].idle_power_watts
    assert [job("x", "a", "c").milliwatts(state, nodes) for state in states] == [8 * (150 - idle) * 1000, 0]
    without_a = {name: info for name, info in nodes.items() if name != "a"}
    assert job("x", "a", "b").milliwatts(states[0], without_a) == 0, "of a node that nobody reads nothing is known"
    turns = Turns()
    assert allowed_after(turns, [job("x", "a")], states, nodes, 0.0) == {("x", 1)}
    # The cap over the first node is owed for minutes; the others have nothing to do with it.
    waiting = [job("x", "a"), job("y", "a"), job("z", "b"), job("zz", "c")]
    assert allowed_after(turns, waiting, states, nodes, 1.0) == {("x", 1), ("z", 1), ("zz", 1)}


def test_a_job_larger_than_any_step_starts_as_soon_as_nothing_is_owed() -> None:
    caps, nodes = ramped(ramp=1)
    assert allowed_after(Turns(), [job("x", *NODES)], caps, nodes, 0.0) == {("x", 1)}


def test_jobs_that_are_stopped_go_in_turn_and_keep_their_limits_until_then() -> None:
    row = settled(Row())
    row.wanted = dict.fromkeys(NODES, 300.0)
    row.cycles(80)
    row.stopping = {"a", "b"}
    row.cycle()
    assert row.may_stop[-1] == {"a"}
    assert (row.limit("a"), row.limit("b"), row.limit("c")) == (100, 300, 300)
    first_at = row.seconds
    while row.may_stop[-1] == {"a"}:
        assert row.limit("b") == 300
        row.cycle()
    assert row.may_stop[-1] == {"a", "b"}
    idle = catalogue()[A100].idle_power_watts
    assert row.seconds - first_at >= 8 * (300 - idle) / RAMP - 1.0
    row.cycle()
    assert row.limit("b") == 100


def test_a_job_that_is_to_move_or_to_wait_keeps_its_limits_until_its_turn_as_well() -> None:
    row = settled(Row())
    row.wanted = dict.fromkeys(NODES, 300.0)
    row.cycles(80)
    row.stopping = set(NODES)
    row.moved_to = {"b": "d", "c": None}
    for _ in range(3):
        row.cycle()
        assert row.may_stop[-1] == {"a"}
        assert (row.limit("a"), row.limit("b"), row.limit("c")) == (100, 300, 300)


def test_a_move_that_was_planned_for_a_moment_does_not_bind_a_job_whose_stop_waits() -> None:
    row = settled(Row())
    row.wanted = dict.fromkeys(NODES, 300.0)
    row.cycles(80)
    row.moved_to = {"b": "d", "c": None}
    row.cycle()
    assert (row.limit("b"), row.limit("c")) == (100, 100)
    row.moved_to = {"b": "b", "c": "c"}  # the next plan has them where they are
    row.stopping = {"a", "b", "c"}
    while row.may_stop[-1] <= {"a"} and min(row.limit("b"), row.limit("c")) == 100:
        row.cycle()
    assert row.may_stop[-1] == {"a"}
    assert row.limit("b") > 100
    assert row.limit("c") > 100


def test_a_cap_that_falls_holds_up_no_stop() -> None:
    row = settled(Row())
    row.wanted = dict.fromkeys(NODES, 300.0)
    row.cycles(80)
    row.stopping = {"a", "b"}
    row.cycle()
    row.spec["watts"] = 3000
    row.cycle()
    assert row.may_stop[-1] == {"a", "b"}
    assert row.limits_watts <= 3000


def test_a_cap_that_is_breached_holds_up_no_stop() -> None:
    nodes = {name: ready_node(name) for name in NODES}
    (state,) = CapTracker().step([cap_view("row", watts=10_000, rampWattsPerSecond=RAMP)], nodes, NOW, 0.0).states
    assert holds_up_stops(state)
    assert holds_up_stops(replace(state, measured_milliwatts=NodeMilliwatts(10_000_000)))
    assert not holds_up_stops(replace(state, measured_milliwatts=NodeMilliwatts(10_000_001)))
    assert not holds_up_stops(replace(state, committed_milliwatts=NodeMilliwatts(10_000_001)))
    assert not holds_up_stops(replace(state, least_milliwatts=NodeMilliwatts(10_000_001)))


def test_a_new_leader_does_not_know_at_what_a_job_ran_and_still_stops_one_after_the_other() -> None:
    row = settled(Row())
    row.wanted = dict.fromkeys(NODES, 300.0)
    row.cycles(80)
    row.controller = PowerController(1, PowerSettings())
    row.stopping = {"a", "b"}
    row.cycle()
    assert row.may_stop[-1] == {"a"}


def test_only_what_runs_under_a_grant_has_to_wait_for_its_stop() -> None:
    pods = [
        running_pod("x-a", "a", uid="uid-x", gpus=8),
        pod_view("y-b", uid="uid-y", gated=True, gpus=8),
        running_pod("z-c", "c", uid="uid-z", gpus=8),
    ]
    granted = grant(800_000, jobs=(job_grant("uid-x", 150_000, 8, pod="x-a"),))
    gpu_nodes = {"a": gpu_node_view("a", granted), "b": gpu_node_view("b", grant(800_000))}
    everything = {("uid-x", 1), ("uid-y", 1), ("uid-z", 1)}
    assert waiting_stops(pods, gpu_nodes, everything) == [LoadStep("uid-x", 1, (("a", 8, MilliwattsPerGpu(150_000)),))]
    assert waiting_stops(pods, gpu_nodes, {("uid-x", 2)}) == []
    for gone in (
        pod_view("x-a", uid="uid-x", gpus=8, gated=True),
        running_pod("x-a", "a", uid="uid-x", gpus=8, deleting=True),
        pod_view("x-a", uid="uid-x", gpus=8, node="a", phase="Succeeded"),
    ):
        assert waiting_stops([gone], gpu_nodes, everything) == [], "it draws nothing that its stop would take away"


@settings(max_examples=examples(100), deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(NODES), st.integers(110, 400)), max_size=8),
    ramp=st.sampled_from([20, 100, 700]),
)
def test_no_stretch_of_time_sees_more_steps_than_the_ramp_and_one(
    arrivals: list[tuple[int, str, int]], ramp: int
) -> None:
    caps, nodes = ramped(ramp)
    (cap,) = caps
    jobs = {
        f"job-{index}": (at, job(f"job-{index}", node, watts=watts)) for index, (at, node, watts) in enumerate(arrivals)
    }
    turns, taken = Turns(), list[tuple[int, int]]()
    for second in range(2000):
        waiting = [item for at, item in jobs.values() if at <= second]
        for uid, _ in allowed_after(turns, waiting, caps, nodes, float(second)):
            taken.append((second, jobs.pop(uid)[1].milliwatts(cap, nodes)))
        if not jobs:
            break
    assert not jobs, "every job gets its turn"
    for index, (first, _) in enumerate(taken):
        for last in range(index, len(taken)):
            between = sum(milliwatts for _, milliwatts in taken[index:last])  # all but the last one
            assert between <= ramp * 1000 * (taken[last][0] - first) + 1


def test_without_a_ramp_all_start_at_once() -> None:
    nodes = {name: ready_node(name) for name in NODES}
    states = CapTracker().step([cap_view("row", watts=10_000)], nodes, NOW, 0.0).states
    assert allowed_after(Turns(), [job("x", "a"), job("y", "b")], states, nodes, 0.0) == {("x", 1), ("y", 1)}


def test_only_a_job_all_of_whose_pods_are_reserved_waits_for_its_start() -> None:
    def views(*granted: str, reserved: str = "ab", beside: tuple[PodView, ...] = ()) -> list[LoadStep]:
        pods = [*(pod_view(f"x-{name}", uid="uid-x", gated=True, gpus=8) for name in "ab"), *beside]
        gpu_nodes = {
            name: gpu_node_view(name, grant(800_000, jobs=(job_grant("uid-x", 100_000, 8, pod=f"x-{name}"),)))
            for name in granted
        }
        return waiting_starts(pods, gpu_nodes, {(f"x-{name}", "uid-x") for name in granted if name in reserved})

    assert views("a") == []
    assert views("a", "b") == [job("uid-x", "a", "b", watts=100)]
    assert views("a", "b", reserved="a") == [], "one has a grant, but not the one that it should have"
    deleting = pod_view("x-c", uid="uid-x", gated=True, gpus=8, deleting=True)
    failed = pod_view("x-d", uid="uid-x", gated=True, gpus=8, phase="Failed")
    assert views("a", "b", beside=(deleting, failed)) == [job("uid-x", "a", "b", watts=100)], "nobody waits for those"
    assert waiting_starts([running_pod("x-a", "a", uid="uid-x")], {}, set()) == []
