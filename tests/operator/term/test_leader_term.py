"""One leader term: what the controllers decide is executed, grants first, and nothing waits that could hold up a cut."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.gpu_node import GpuNode, read_gpu_node
from flyball_api.grant import Grant
from flyball_api.names import HOLD_FINALIZER
from flyball_api.power_cap import PowerCap, PowerCapStatus
from flyball_api.workloads import IncarnationView, NodeView, PlainJob, PodView, read_plain_job
from flyball_operator.cluster.outcome import DONE, UNKNOWN, Outcome, WriteResult
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep, StopIncarnation
from flyball_operator.jobs.runs.memory import JobMemory
from flyball_operator.jobs.runs.progress import recorded_progress
from flyball_operator.jobs.status_lanes import Lane
from flyball_operator.jobs.steps.step import JobAction, JobsCycle, JobsStep, LiveJob
from flyball_operator.learning.exploration import LONGEST_SECONDS
from flyball_operator.learning.profiles import Point, Profile, ProfileKey, Summary
from flyball_operator.learning.recurrences import Recurrences
from flyball_operator.learning.windows import Window
from flyball_operator.meters.meters import Meters
from flyball_operator.planning.plans import Plans
from flyball_operator.power.caps.memberships import LabelSync
from flyball_operator.power.controller import PowerController, PowerSettings
from flyball_operator.power.cycle import PowerInstructions, PowerState
from flyball_operator.power.grants.brakes import SendBrake
from flyball_operator.power.holds import HoldAction, HoldChange
from flyball_operator.power.nodes.info import NodeInfo, read_nodes
from flyball_operator.report.events import Regarding
from flyball_operator.report.metrics import OperatorMetrics
from flyball_operator.report.reporter import Reporter
from flyball_operator.settings import Settings
from flyball_operator.term.leader_term import (
    CLAIM_UNANSWERED_SECONDS,
    SHORTEST_PAUSE_SECONDS,
    Deciders,
    LeaderTerm,
    Writers,
)
from flyball_operator.term.power_execution import HOUSEKEEPING_AT_ONCE
from flyball_operator.writes.background import Background
from flyball_operator.writes.lost_answers import LOST_AFTER_SECONDS
from flyball_operator.writes.slots import SLOW_SECONDS, PacedSlots
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import model_class_prior
from flyball_planner.snapshot import CapOutcome, ClusterSnapshot, JobDecision, Plan

from tests.support.operator_objects import (
    A100,
    NOW,
    Json,
    cap_view,
    decision,
    gpu_node_view,
    grant,
    incarnation_view,
    job_grant,
    job_view,
    node_view,
    pod_view,
    raw_gpu_node,
    running_pod,
)

LEAST_MILLIWATTS = 800_000  # of a node of eight A100s


class Writes:
    """In the executor's place: takes everything, in order; what is in `held` waits until it is set."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.news = asyncio.Condition()
        self.held: dict[str, asyncio.Event] = {}
        self.conflicts: set[str] = set()  # kinds of writes before which another writer is first
        self.result = DONE
        self.granted: Grant | None = None  # the last one

    async def _made(self, kind: str, name: str) -> WriteResult:
        self.made.append(f"{kind} {name}")
        async with self.news:
            self.news.notify_all()
        if kind in self.held:
            await self.held[kind].wait()
        return WriteResult(Outcome.REFUSED, conflict=True) if kind in self.conflicts else self.result

    async def wait_for(self, write: str) -> None:
        """Wait until this write has been made."""
        async with self.news:
            await self.news.wait_for(lambda: write in self.made)

    async def write_grant(self, info: NodeInfo, grant: Grant) -> WriteResult:
        self.granted = grant
        return await self._made("grant", info.name)

    async def write_brake(self, send: SendBrake) -> WriteResult:
        return await self._made("brake", send.cap)

    async def sync_labels(self, sync: LabelSync) -> WriteResult:
        return await self._made("labels", sync.node.name)

    async def write_hold(self, change: HoldChange) -> WriteResult:
        return await self._made("hold", change.item.name)

    async def set_startup_taint(self, info: NodeInfo, *, closed: bool) -> WriteResult:
        return await self._made("taint" if closed else "untaint", info.name)

    async def stop_incarnation(self, action: StopIncarnation) -> WriteResult:
        return await self._made("stop", action.incarnation.job_uid)

    async def admit_plain_job(self, job: PlainJob) -> WriteResult:
        return await self._made("admit", job.name)

    async def write_cap_status(self, cap: PowerCap, status: PowerCapStatus) -> WriteResult:
        return await self._made("cap", cap.name)

    async def write_job_status(self, job: Any, status: Json) -> WriteResult:
        return await self._made("job", job.name)


class NoJobs:
    """In a job controller's place: the statuses in `late` are due in the next cycle that lets them, as are those of
    `statuses`, by their `lanes`; `actions` and `live` jobs are in each."""

    def __init__(self) -> None:
        self.late: list[tuple[Any, Any]] = []
        self.statuses: list[tuple[Any, Any]] = []
        self.lanes: dict[str, Lane] = {}
        self.actions: list[JobAction] = []
        self.live: dict[str, LiveJob] = {}
        self.decisions: Mapping[str, JobDecision] = {}  # those that it was given last
        self.error: Exception | None = None
        self.asked = 0

    def step(self, cycle: JobsCycle) -> JobsStep:
        self.decisions = cycle.decisions
        self.asked += 1
        if self.error is not None:
            raise self.error
        late: list[tuple[Any, Any]] = []
        statuses: list[tuple[Any, Any]] = []
        if not cycle.statuses_wait:
            late, self.late = self.late, []
            statuses, self.statuses = self.statuses, []
        return JobsStep(self.live, list(self.actions), [], statuses, late, [], lanes=self.lanes)

    def answered(self, *arguments: object) -> None: ...


class NothingLearned:
    """In a learner's place: counts the cycles in which profiles may be written; knows what is in `known`,
    `windows` and the prior."""

    def __init__(self) -> None:
        self.asked = 0
        self.loading = False
        self.known: Profile | None = None
        self.windows: list[Window] = []

    def window(self, uid: str) -> tuple[int, Window | None]:
        return len(self.windows), self.windows[-1] if self.windows else None

    def profile(self, key: ProfileKey) -> Profile | None:
        return self.known

    def models_for(self, *arguments: object) -> tuple[JobModel, ...]:
        model = gpu_model_for(A100)
        assert model is not None
        return (model_class_prior("resnet50", model),)

    def model_for(self, *arguments: object) -> JobModel:
        return self.models_for()[0]

    def observe(self, *arguments: object) -> None: ...

    def due_writes(self, monotonic: float) -> list[object]:
        self.asked += 1
        return []


class Planner:
    """Makes the plans that it is given, once they are there."""

    def __init__(self) -> None:
        self.asked: list[ClusterSnapshot] = []
        self.plan_made: asyncio.Future[Plan] = asyncio.get_running_loop().create_future()

    async def plan(self, snapshot: ClusterSnapshot, policy: str) -> Plan:
        self.asked.append(snapshot)
        return await self.plan_made


class Events:
    """Takes Events, by the name of what they are about and their reason."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, str]] = []

    room = 50

    def record(self, regarding: Regarding, reason: str, note: str, *, action: str, warning: bool = False) -> None:
        self.recorded.append((regarding.name, reason))


class Bench:
    """A term over node a, whose agent has acknowledged 2,400 W, under a cap."""

    def __init__(
        self,
        mode: str = "govern",
        exploration_permille: int = 0,
        power: PowerSettings | None = None,
        profiled_power_limits: int = 0,
    ) -> None:
        self.time = 0.0
        self.views: dict[str, EnergyAwareJob] = {}
        self.incarnations: dict[str, list[IncarnationView]] = {}
        self.plain_jobs: list[PlainJob] = []
        self.writes, self.learner, self.planner, self.jobs = Writes(), NothingLearned(), Planner(), NoJobs()
        self.gpu_nodes: dict[str, GpuNode] = {"a": self.node("a", 300)}
        self.pods: list[PodView] = []
        self.taints: list[Json] = []
        self.boot_id = ""
        self.unread: tuple[str, ...] = ()
        self.caps: list[PowerCap] = []
        self.woken = asyncio.Event()
        self.background = Background(self.woken.set)
        self.metrics = OperatorMetrics()
        self.events = Events()
        unchecked: Any = SimpleNamespace(cluster=self.cluster, ages=dict)
        learner: Any = self.learner
        executor: Any = self.writes
        self.books_due = 0  # how often a book could have been written
        no_books: Any = SimpleNamespace(
            unread=False, observe=lambda seen, now: None, due=self.no_book_due, largest_owners=list
        )
        jobs: Any = self.jobs
        self.term = LeaderTerm(
            1,
            Settings(mode=mode, exploration_permille=exploration_permille, profiled_power_limits=profiled_power_limits),
            unchecked,
            Meters({}, None, self.woken.set, lambda: NOW),
            Deciders(
                PowerController(1, power or PowerSettings()),
                jobs,
                Plans(self.planner, "powerflow-strict", 10.0, 1, self.woken.set, self.metrics),
                learner,
                Recurrences(learner),
            ),
            Writers(executor, Reporter(executor, self.events), no_books, self.background),
            self.metrics,
            lambda: NOW,
        )

    def no_book_due(self, now: datetime, monotonic: float) -> None:
        self.books_due += 1

    @staticmethod
    def node(name: str, watts: int, version: str = "7") -> GpuNode:
        raw = raw_gpu_node(name, grant(watts * 8000), limits=watts * 8000)
        raw["metadata"] |= {"resourceVersion": version, "finalizers": [HOLD_FINALIZER]}
        return read_gpu_node(raw)

    def node_of(self, name: str) -> NodeView:
        return msgspec.structs.replace(node_view(name, taints=self.taints), boot_id=self.boot_id)

    def cluster(self) -> ClusterState:
        return ClusterState(
            jobs=self.views,
            caps=self.caps,
            gpu_nodes=self.gpu_nodes,
            nodes=[self.node_of(name) for name in self.gpu_nodes],
            pods=self.pods,
            incarnations=self.incarnations,
            pods_of={},
            reports_of={},
            unread=self.unread,
            age_seconds=0.0,
            plain_jobs=self.plain_jobs,
        )

    async def cycle(self, seconds: float = 0.0) -> float:
        self.time += seconds
        pause = self.term.cycle(NOW + timedelta(seconds=self.time), self.time)
        await asyncio.sleep(0)  # what it has started has begun
        return pause

    async def settle(self) -> None:
        """Wait until every write under way that nothing holds has ended."""
        await asyncio.gather(*(task for key, task in self.background._tasks.items() if not self.held(key)))
        await asyncio.sleep(0)  # what their ends call has been called

    async def plan_ready(self) -> None:
        """Wait until the plan that is being made is ready to be taken."""
        making = self.term._plans._next
        assert making is not None
        await asyncio.wait([making])

    def held(self, key: Any) -> bool:
        return key[0] in self.writes.held or (key[0] == "status" and "job" in self.writes.held)


def braked_node(name: str, watts: int) -> GpuNode:
    """One whose job is granted so much a GPU under the cap `row`, and whose agent follows its brakes."""
    jobs = (job_grant(f"uid-{name}", watts * 1000, 8, pod=f"pod-{name}"),)
    granted = grant(watts * 8000, jobs=jobs, caps=("row",))
    raw = raw_gpu_node(name, granted, limits=watts * 8000)
    raw["metadata"] |= {"resourceVersion": "7", "finalizers": [HOLD_FINALIZER]}
    raw["status"]["acknowledged"]["boundMilliwatts"] = watts * 8000
    return read_gpu_node(raw)


def row(watts: int, published: int | None = None) -> PowerCap:
    return cap_view("row", watts=watts, status={"effectiveWatts": published or watts})


async def test_a_cut_waits_for_no_status() -> None:
    """Neither for one of its own cycle nor for one of a cycle before, which the API server has yet to answer."""
    bench = Bench()
    bench.caps = [row(3000, published=2500)]
    bench.writes.held["cap"] = asyncio.Event()
    await bench.cycle()
    await bench.writes.wait_for("cap row")
    await bench.settle()
    bench.writes.made.clear()
    bench.caps = [row(1000, published=2500)]
    await bench.cycle(0.1)
    await bench.writes.wait_for("grant a")
    assert "cap row" not in bench.writes.made  # one status of a cap at a time
    bench.writes.held.pop("cap").set()
    await bench.settle()
    assert bench.woken.is_set()
    await bench.cycle(0.1)
    await bench.writes.wait_for("cap row")
    await bench.term.close()


async def test_while_what_is_known_of_jobs_is_read_caps_are_held_and_nothing_is_planned() -> None:
    bench = Bench()
    bench.learner.loading = True
    bench.caps = [row(1000, published=2500)]
    assert await bench.cycle() <= 0.25
    await bench.writes.wait_for("grant a")
    await bench.writes.wait_for("cap row")
    assert bench.term.power_decided
    assert (bench.jobs.asked, len(bench.planner.asked), bench.learner.asked) == (0, 0, 0)
    assert bench.metrics.registry.get_sample_value("flyball_cap_watts", {"cap": "row"}) == 1000.0
    bench.learner.loading = False
    await bench.cycle(0.3)
    assert (bench.jobs.asked, len(bench.planner.asked)) == (1, 1)
    await bench.term.close()


async def test_a_cycle_ends_with_its_brakes_and_the_next_one_has_the_rest() -> None:
    bench = Bench()
    bench.gpu_nodes = {name: braked_node(name, 300) for name in "abcd"}
    bench.caps = [row(6000, published=9600)]
    bench.jobs.error = RecursionError("jobs were decided on first")
    bench.writes.held["brake"] = asyncio.Event()
    assert await bench.cycle() == 0.0
    assert bench.term.only_braked
    assert bench.term.power_decided
    await bench.writes.wait_for("cap row")  # it is over, which cannot wait
    assert bench.writes.made == ["brake row", "cap row"]
    bench.jobs.error = None
    bench.writes.made.clear()
    await bench.cycle(0.1)
    assert not bench.term.only_braked
    assert bench.jobs.asked == 1
    assert [write for write in bench.writes.made if "grant" in write] == []
    await bench.term.close()


async def test_a_cycle_that_fails_after_one_of_brakes_is_no_cycle_of_brakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next ones would follow at once for as long as they fail, and not after a pause."""
    bench = Bench()
    bench.gpu_nodes = {name: braked_node(name, 300) for name in "abcd"}
    bench.caps = [row(6000, published=9600)]
    await bench.cycle()
    assert bench.term.only_braked

    def fails(*arguments: object) -> PowerState:
        raise RecursionError("a node")

    monkeypatch.setattr(bench.term._power, "observe", fails)
    with pytest.raises(RecursionError):
        await bench.cycle(0.1)
    assert not bench.term.only_braked
    await bench.term.close()


async def test_a_cap_that_falls_all_the_time_has_the_rest_decided_in_every_other_cycle() -> None:
    bench = Bench()
    bench.gpu_nodes = {name: braked_node(name, 300) for name in "abcd"}
    found = []
    for watts in (6000, 5800, 5600, 5400):
        bench.caps = [row(watts, published=9600)]
        bench.writes.made.clear()
        await bench.cycle(0.1)
        await bench.settle()
        assert "brake row" in bench.writes.made
        found.append((bench.term.only_braked, bench.jobs.asked))
    assert found == [(True, 0), (False, 1), (True, 1), (False, 2)]
    await bench.term.close()


async def test_power_is_not_decided_where_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brakes of the same cycle make up for nothing: a leader whose cycles fail has to make way."""
    bench = Bench()

    def fails(*arguments: object) -> PowerInstructions:
        raise RecursionError("a grant")

    monkeypatch.setattr(bench.term._power, "step", fails)
    with pytest.raises(RecursionError):
        await bench.cycle()
    assert not bench.term.power_decided
    await bench.term.close()


async def test_a_cap_is_cut_whatever_jobs_do_to_the_operator() -> None:
    """The cycle fails all the same, so that the failure is logged and counted."""
    bench = Bench()
    bench.caps = [row(3000)]
    await bench.cycle()
    assert bench.term.power_decided
    bench.jobs.error = RecursionError("a template")
    bench.caps = [row(1000, published=3000)]
    with pytest.raises(RecursionError):
        await bench.cycle(0.1)
    await bench.writes.wait_for("grant a")
    await bench.writes.wait_for("cap row")
    assert bench.term.power_decided
    await bench.term.close()


@pytest.mark.parametrize(("permille", "clock"), [(0, 1410), (100, 1200)])
async def test_a_clock_is_tried_by_the_grant_alone_and_the_job_says_so(permille: int, clock: int) -> None:
    """Limit, plan and nodes stay; nothing is tried where the operator has not been given leave."""
    # Its agent says nothing else all the while.
    bench = Bench(exploration_permille=permille, power=PowerSettings(report_timeout_seconds=1e6))
    view, incarnation = job_view(uid="uid-train"), incarnation_view("uid-train", 1, ("a", 8))
    planned = decision("uid-train", ("a", 8), clock=1410)
    assert planned.allocation is not None
    bench.views, bench.incarnations = {view.uid: view}, {view.uid: [incarnation]}
    bench.pods = [running_pod("p", "a", uid=view.uid, gpus=8)]
    memory = JobMemory(recorded_progress(view), planned.allocation, running=True)
    bench.jobs.live = {view.uid: LiveJob(view, memory, JobStep(JobPhase.RUNNING, incarnation), bench.pods)}
    bench.term._plans._decisions, bench.term._plans._any_taken = {view.uid: planned}, True
    bench.learner.known = Profile(
        ProfileKey(view.namespace, view.profile_key, A100), {Point(8, 1, 8, 1410): Summary(9, 1.0, 0.0, 2e3, 0.0, NOW)}
    )
    for seconds in (0.0, LONGEST_SECONDS / 0.1, 1.0):
        await bench.cycle(seconds)
        await bench.settle()
    assert bench.writes.granted is not None
    (granted,) = bench.writes.granted.jobs
    assert granted.clock_max_megahertz == pytest.approx(clock, abs=10)
    assert granted.power_limit_milliwatts == planned.allocation.power_limit_watts * 1000
    told = bench.jobs.decisions[view.uid]
    assert told.allocation == planned.allocation
    assert ("to learn it" in told.explanation) is (permille > 0)
    await bench.cycle(20.0)
    sample = bench.metrics.registry.get_sample_value("flyball_explored_gpu_seconds_total")
    assert sample == (pytest.approx(21.0 * 8) if permille else 0.0)
    await bench.term.close()


@pytest.mark.parametrize(
    ("mode", "limits", "granted_watts"), [("govern", 4, 270), ("govern", 0, 300), ("observe", 4, 300)]
)
async def test_a_limit_is_tried_by_the_grant_alone_and_by_nobody_who_only_observes(
    mode: str, limits: int, granted_watts: int
) -> None:
    """The plan stays, so that nobody gets what the job does not draw meanwhile."""
    bench = Bench(mode, power=PowerSettings(report_timeout_seconds=1e6), profiled_power_limits=limits)
    view, incarnation = job_view(uid="uid-train"), incarnation_view("uid-train", 1, ("a", 8))
    planned = decision("uid-train", ("a", 8), watts=300.0, clock=1410)
    assert planned.allocation is not None
    bench.views, bench.incarnations = {view.uid: view}, {view.uid: [incarnation]}
    bench.pods = [running_pod("p", "a", uid=view.uid, gpus=8)]
    memory = JobMemory(recorded_progress(view), planned.allocation, running=True)
    bench.jobs.live = {view.uid: LiveJob(view, memory, JobStep(JobPhase.RUNNING, incarnation), bench.pods)}
    bench.term._plans._decisions, bench.term._plans._any_taken = {view.uid: planned}, True
    standing = grant(2_400_000, jobs=(job_grant("uid-train", 300_000, 8, pod="p"),))
    bench.gpu_nodes["a"] = read_gpu_node(raw_gpu_node("a", standing, limits=2_400_000))
    for _ in range(6):
        bench.learner.windows.append(Window(Point(8, 1, 8, 1410), bench.learner.model_for().gpu_model, 1.0, 8 * 300.0))
        await bench.cycle(5.0)
        await bench.settle()
    assert bench.writes.granted is not None
    (granted,) = bench.writes.granted.jobs
    assert granted.power_limit_milliwatts == granted_watts * 1000
    assert granted.clock_max_megahertz == 1410
    told = bench.jobs.decisions[view.uid]
    assert told.allocation == planned.allocation
    assert ("held to 270 W: for a moment, to learn it" in told.explanation) is (granted_watts == 270)
    sample = bench.metrics.registry.get_sample_value("flyball_explored_gpu_seconds_total")
    assert (sample > 0) is (granted_watts == 270)
    await bench.term.close()


@pytest.mark.parametrize(("mode", "admitted"), [("govern", 1), ("observe", 0)])
async def test_a_suspended_job_is_let_run_once_and_not_by_who_only_observes(mode: str, admitted: int) -> None:
    bench = Bench(mode)
    metadata = {"name": "waits", "namespace": "team", "uid": "u", "labels": {"flyball.dev/admission": "by-power"}}
    limits = {"limits": {"nvidia.com/gpu": "2"}}
    template = {"spec": {"containers": [{"name": "main", "resources": limits}]}}
    bench.plain_jobs = [read_plain_job({"metadata": metadata, "spec": {"suspend": True, "template": template}})]
    for _ in range(3):
        await bench.cycle(0.1)
        await bench.settle()
    assert bench.writes.made.count("admit waits") == admitted
    await bench.term.close()


async def test_a_suspended_job_that_its_controller_has_just_written_is_let_run_at_once() -> None:
    bench = Bench()
    metadata = {"name": "waits", "namespace": "team", "uid": "u", "labels": {"flyball.dev/admission": "by-power"}}
    template = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}}
    bench.plain_jobs = [read_plain_job({"metadata": metadata, "spec": {"suspend": True, "template": template}})]
    bench.writes.conflicts.add("admit")
    for _ in range(3):
        await bench.cycle(0.1)
        await bench.settle()
    assert bench.writes.made.count("admit waits") == 3
    assert ("waits", "Admitted") not in bench.events.recorded
    bench.writes.conflicts.clear()
    await bench.cycle(0.1)
    await bench.settle()
    assert ("waits", "Admitted") in bench.events.recorded
    await bench.term.close()


@pytest.mark.parametrize(("mode", "recorded"), [("govern", 1), ("observe", 0)])
async def test_who_only_observes_says_of_no_pod_that_it_is_limited(mode: str, recorded: int) -> None:
    bench = Bench(mode)
    bench.pods = [pod_view("plain", gpus=4, node="a")]
    bench.caps = [row(3200)]
    await bench.cycle()
    bench.caps = [row(1000)]
    for _ in range(15):  # behind the cut, which has a second
        await bench.cycle(0.1)
        await bench.settle()
    assert bench.events.recorded.count(("plain", "PowerLimited")) == recorded
    await bench.term.close()


async def test_what_is_no_cut_waits_while_a_cap_is_cut() -> None:
    """Jobs that may run and the day's book: the API server's time belongs to the agents' acknowledgements."""
    bench = Bench()
    bench.caps = [row(3000)]
    await bench.cycle()
    await bench.settle()
    assert bench.books_due == 1
    metadata = {"name": "waits", "namespace": "team", "uid": "u", "labels": {"flyball.dev/admission": "by-power"}}
    template = {"spec": {"containers": [{"name": "main"}]}}
    bench.plain_jobs = [read_plain_job({"metadata": metadata, "spec": {"suspend": True, "template": template}})]
    bench.caps = [row(1000)]
    await bench.cycle(0.1)
    await bench.settle()
    assert "admit waits" not in bench.writes.made
    assert bench.books_due == 1
    bench.gpu_nodes = {"a": bench.node("a", 100, "8")}
    await bench.cycle(0.1)
    await bench.settle()
    assert "admit waits" in bench.writes.made
    assert bench.books_due == 2
    await bench.term.close()


async def test_labels_are_copied_by_one_write_at_a_time_and_hold_up_no_cut() -> None:
    bench = Bench()
    await bench.cycle()
    await bench.settle()
    assert bench.writes.made == ["grant a"]  # the labels wait, as they differ from its Node's all the same
    raw = raw_gpu_node("a", bench.writes.granted, limits=LEAST_MILLIWATTS)
    bench.gpu_nodes["a"] = read_gpu_node({**raw, "metadata": {**raw["metadata"], "resourceVersion": "8"}})
    bench.writes.held["labels"] = asyncio.Event()
    await bench.cycle(0.1)
    assert bench.writes.made == ["grant a", "labels a"]
    bench.gpu_nodes["a"] = bench.node("a", 300, version="9")
    await bench.cycle(0.1)
    assert bench.writes.made == ["grant a", "labels a", "grant a"]
    await bench.settle()
    bench.gpu_nodes["a"] = read_gpu_node({**raw, "metadata": {**raw["metadata"], "resourceVersion": "10"}})
    await bench.cycle(0.1)
    assert bench.writes.made.count("labels a") == 1
    bench.writes.held.pop("labels").set()
    await bench.settle()
    await bench.term.close()


async def test_no_cut_queues_behind_the_labels_and_finalizers_of_a_thousand_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    infos = read_nodes([node_view(f"n{index}") for index in range(50)], {}, [], frozenset()).values()
    caps = [cap_view(f"cap-{index}", watts=1) for index in range(50)]
    asked = PowerInstructions(
        label_syncs=tuple(map(LabelSync, infos)), holds=tuple(HoldChange(cap, HoldAction.HOLD) for cap in caps)
    )
    monkeypatch.setattr(bench.term._power, "step", lambda *_: asked)
    bench.writes.held |= {"labels": asyncio.Event(), "hold": asyncio.Event()}
    for _ in range(3):
        await bench.cycle()
    assert len(bench.writes.made) == HOUSEKEEPING_AT_ONCE
    bench.writes.held.pop("labels").set()
    await bench.settle()
    await bench.cycle()
    assert len(bench.writes.made) == 2 * HOUSEKEEPING_AT_ONCE
    await bench.term.close()


async def test_what_became_of_a_grant_reaches_the_controller() -> None:
    bench = Bench()
    bench.caps = [row(1000)]
    bench.writes.held["grant"] = asyncio.Event()
    await bench.cycle()
    await bench.cycle()
    assert bench.writes.made.count("grant a") == 1  # its answer is still to come
    bench.writes.held.pop("grant").set()
    await bench.settle()
    assert bench.woken.is_set()
    await bench.cycle()
    await bench.settle()
    assert bench.writes.made.count("grant a") == 2  # nobody has seen yet what became of the first


async def test_a_cut_waits_for_no_answer_that_is_lost() -> None:
    """The grant before it is there, as its GPUNode shows. A dead connection would be waited for for ten seconds."""
    bench = Bench()
    bench.unread = ("GPUNode b",)  # so that no plan is near
    bench.writes.held["grant"] = asyncio.Event()
    bench.caps = [row(2000)]
    await bench.cycle()
    await bench.writes.wait_for("grant a")
    bench.gpu_nodes["a"] = bench.node("a", 250, version="8")
    bench.caps = [row(1000)]
    assert await bench.cycle(0.4) == pytest.approx(LOST_AFTER_SECONDS - 0.4)
    assert bench.background.busy(("grant", "a")), "its answer may be on its way"
    bench.woken.clear()
    await bench.cycle(LOST_AFTER_SECONDS - 0.4)
    await bench.woken.wait()
    assert not bench.background.busy(("grant", "a"))
    await bench.cycle()
    assert bench.writes.made.count("grant a") == 2
    assert bench.writes.granted.bound.limit_milliwatts == 800_000
    await bench.term.close()


@pytest.mark.parametrize("watts", [1000, 700])
async def test_no_long_rest_while_limits_are_lowered_also_under_a_cap_that_cannot_be_met(watts: int) -> None:
    bench = Bench()
    bench.writes.held["grant"] = asyncio.Event()
    bench.caps = [row(watts)]
    await bench.cycle()
    await bench.cycle(0.1)
    assert bench.writes.made.count("grant a") == 1
    assert bench.term.soonest_change_seconds == 0.0
    bench.writes.held.pop("grant").set()
    await bench.settle()
    raw = raw_gpu_node("a", bench.writes.granted, limits=LEAST_MILLIWATTS)
    bench.gpu_nodes["a"] = read_gpu_node({**raw, "metadata": {**raw["metadata"], "resourceVersion": "8"}})
    await bench.cycle(0.1)
    assert bench.term.soonest_change_seconds > 1.0
    await bench.term.close()


async def test_an_answer_is_waited_for_while_nothing_shows_what_became_of_a_grant() -> None:
    bench = Bench()
    bench.caps = [row(1000)]
    bench.writes.held["grant"] = asyncio.Event()
    await bench.cycle()
    await bench.writes.wait_for("grant a")
    await bench.cycle(5.0)
    assert bench.background.busy(("grant", "a"))
    await bench.term.close()


async def test_other_statuses_wait_while_a_cap_is_cut_also_those_in_the_queue() -> None:
    bench = Bench()
    bench.caps = [row(3000)]
    bench.jobs.late = [(SimpleNamespace(uid=f"uid-{name}", name=name), {}) for name in "pqrstu"]
    bench.writes.held["job"] = asyncio.Event()
    await bench.cycle()
    await bench.writes.wait_for("job s")
    assert [item for item in bench.writes.made if item.startswith("job")] == ["job p", "job q", "job r", "job s"]
    assert bench.learner.asked == 1
    bench.caps = [row(1000)]
    await bench.cycle()
    assert bench.learner.asked == 1
    bench.writes.held.pop("job").set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert "job t" not in bench.writes.made  # there is a slot for it, but a cap is on its way down
    bench.gpu_nodes = {"a": bench.node("a", 100, "8")}
    await bench.cycle()
    await bench.settle()
    assert {"job t", "job u"} <= set(bench.writes.made)
    assert bench.learner.asked == 2


async def test_what_happens_to_a_job_is_told_while_figures_queue_up() -> None:
    """Its next step may wait for that: the gates of an incarnation whose number is not in the status stay closed."""
    bench = Bench()
    named = [SimpleNamespace(view=SimpleNamespace(uid=f"uid-{name}", name=name)) for name in [*"abcdefgh", "news"]]
    bench.jobs.statuses = [(live, None) for live in named]
    bench.jobs.lanes = {live.view.uid: Lane.FIGURES for live in named[:-1]}
    bench.writes.held["job"] = asyncio.Event()
    bench.caps = [row(3000)]
    await bench.cycle()
    await bench.writes.wait_for("job news")
    assert sorted(item for item in bench.writes.made if item.startswith("job")) == [
        "job a", "job b", "job c", "job d", "job news",
    ]  # fmt: skip
    await bench.term.close()


async def test_statuses_that_wait_for_a_cut_do_not_make_the_api_server_seem_slow() -> None:
    bench = Bench()
    slots = bench.term._job_execution.status_slots[Lane.WAITING] = PacedSlots(8, lambda: bench.time)
    bench.jobs.statuses = [
        (SimpleNamespace(view=SimpleNamespace(uid=f"uid-{name}", name=name)), None) for name in "abcdefgh"
    ]
    bench.jobs.lanes = {live.view.uid: Lane.WAITING for live, _ in bench.jobs.statuses}
    bench.caps = [row(3000)]
    bench.term.cycle(NOW, 0.0)  # its writes have yet to begin when the cap falls
    bench.caps = [row(1000)]
    await bench.cycle()
    assert not [item for item in bench.writes.made if item.startswith("job")]
    bench.gpu_nodes = {"a": bench.node("a", 100, "8")}
    await bench.cycle(2 * SLOW_SECONDS)
    await bench.writes.wait_for("job h")
    await bench.settle()
    assert slots.open == 8
    await bench.term.close()


async def test_a_queue_of_statuses_keeps_no_grant() -> None:
    bench = Bench()
    bench.jobs.late = [(SimpleNamespace(uid=f"uid-{index}", name=str(index)), {}) for index in range(300)]
    bench.writes.held["job"] = asyncio.Event()
    bench.caps = [row(3000)]
    await bench.cycle()
    bench.caps = [row(1000)]
    await bench.cycle()
    await bench.writes.wait_for("grant a")
    await bench.term.close()


async def test_jobs_are_stopped_in_turn_under_a_ramp() -> None:
    bench = Bench()
    uids = ("uid-x", "uid-y")
    granted = grant(2_400_000, jobs=tuple(job_grant(uid, 300_000, 4, pod=f"pod-of-{uid}") for uid in uids))
    bench.gpu_nodes = {"a": gpu_node_view("a", granted, limits=2_400_000)}
    bench.pods = [running_pod(f"pod-of-{uid}", "a", uid=uid, gpus=4) for uid in uids]
    for uid in uids:
        job: Any = SimpleNamespace(uid=uid, key=uid)
        bench.jobs.actions.append(JobAction(job, StopIncarnation(incarnation_view(uid, 1, ("a", 4)), "preempted")))
    bench.caps = [cap_view("row", watts=3000, rampWattsPerSecond=100)]
    await bench.cycle()
    await bench.settle()
    assert [item for item in bench.writes.made if item.startswith("stop")] == ["stop uid-x"]
    bench.jobs.actions = bench.jobs.actions[1:]
    await bench.cycle(4 * 300 / 100)
    await bench.settle()
    assert [item for item in bench.writes.made if item.startswith("stop")] == ["stop uid-x", "stop uid-y"]
    await bench.term.close()


async def test_a_node_is_opened_by_one_write_at_a_time() -> None:
    bench = Bench()
    bench.taints = [{"key": "flyball.dev/unacknowledged"}]
    bench.writes.held["untaint"] = asyncio.Event()
    await bench.cycle()
    await bench.cycle()
    await asyncio.sleep(0)
    assert bench.writes.made.count("untaint a") == 1
    await bench.term.close()


async def test_a_node_that_has_booted_is_closed_by_one_write_at_a_time() -> None:
    bench = Bench()
    bench.boot_id = "boot-2"
    bench.writes.held["taint"] = asyncio.Event()
    await bench.cycle()
    await bench.cycle()
    await asyncio.sleep(0)
    assert bench.writes.made.count("taint a") == 1
    await bench.term.close()


async def test_plans_are_made_of_what_is_whole_and_taken_when_they_are_ready() -> None:
    bench = Bench()
    bench.caps = [row(3000)]
    bench.unread = ("GPUNode b",)
    await bench.cycle()
    await asyncio.sleep(0)
    assert bench.planner.asked == []
    bench.unread = ()
    pause = await bench.cycle()
    assert pause < 1.0  # a plan is near
    await asyncio.sleep(0)
    assert [node.name for node in bench.planner.asked[0].nodes] == ["a"]
    assert [cap.budget_watts for cap in bench.planner.asked[0].caps] == [3000.0]
    outcome = CapOutcome("row", 3100.0, feasible=False, committed_at_min_watts=3100.0)
    bench.planner.plan_made.set_result(Plan((), (outcome,)))
    await bench.plan_ready()
    bench.writes.made.clear()
    pause = await bench.cycle(0.4)
    assert 0 < pause <= CLAIM_UNANSWERED_SECONDS, (
        "then the next status of the cap waits no longer for this one's answer"
    )
    await bench.settle()
    assert "cap row" in bench.writes.made  # which says now that the plan cannot hold it


@pytest.mark.parametrize(("watts", "pause"), [(3010, 0.1), (3001, 0.05)])
async def test_the_next_cycle_is_due_when_a_cap_changes_by_itself(watts: int, pause: float) -> None:
    bench = Bench()
    bench.caps = [cap_view("row", watts=watts, rampWattsPerSecond=100, status={"effectiveWatts": 3000})]
    assert await bench.cycle() == pytest.approx(pause)
    await bench.term.close()


async def test_the_next_cycle_is_due_when_an_agent_will_have_been_silent_for_too_long() -> None:
    bench = Bench()
    bench.unread = ("GPUNode b",)  # so that no plan is near
    await bench.cycle()
    assert await bench.cycle(73.0) == 2.0
    assert await bench.cycle(2.0) == SHORTEST_PAUSE_SECONDS
    assert await bench.cycle(SHORTEST_PAUSE_SECONDS) == Settings().status_interval_seconds
    await bench.term.close()


async def test_a_write_that_fails_is_no_failure_of_the_cycle() -> None:
    bench = Bench()
    bench.caps = [row(1000)]
    bench.writes.result = UNKNOWN
    await bench.cycle()
    await bench.settle()
    await bench.cycle()
    await bench.settle()
    assert bench.writes.made.count("grant a") == 2
