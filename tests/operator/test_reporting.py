"""The reporter: statuses at once where they matter, at the interval where they do not, and Events once written."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from flyball_operator.announcements import Announcement
from flyball_operator.books import JobBooks
from flyball_operator.cap_ledger import CapLedger
from flyball_operator.conditions import as_stored
from flyball_operator.events import EventRecorder, Regarding
from flyball_operator.execute import Executor
from flyball_operator.incarnations import JobStep, Phase
from flyball_operator.job_keeper import KeptJob
from flyball_operator.job_status import JobFacts, job_status
from flyball_operator.picture import NodePicture, picture_nodes
from flyball_operator.reporting import Reporter
from flyball_operator.requests import CapView, JobView
from flyball_operator.snapshot import JobMemory
from flyball_planner.cluster import CapOutcome
from operator_objects import (
    FLOOR,
    NOW,
    Json,
    cap_view,
    decision,
    gpu_node_view,
    grant,
    job_view,
    node_view,
    ready_picture,
)

INTERVAL = 5.0


class RecordingExecutor(Executor):
    def __init__(self) -> None:
        self.caps: list[Json] = []
        self.jobs: list[Json] = []
        self.works = True

    async def write_cap_status(self, cap: CapView, status: Json) -> bool:
        self.caps.append(status)
        return self.works

    async def write_job_status(self, job: JobView, status: Json) -> bool:
        self.jobs.append(status)
        return self.works


class RecordingEvents(EventRecorder):
    def __init__(self) -> None:
        self.told: list[tuple[str, Announcement]] = []

    def record(self, regarding: Regarding, reason: str, note: str, *, action: str, warning: bool = False) -> None:
        self.told.append((f"{regarding.kind}/{regarding.name}", Announcement(reason, note, action, warning)))

    @property
    def reasons(self) -> list[str]:
        return [item.reason for _, item in self.told]


class Site:
    """Cycles over one cap and one node."""

    def __init__(self, watts: int) -> None:
        self.executor, self.events, self.ledger = RecordingExecutor(), RecordingEvents(), CapLedger()
        self.reporter = Reporter(self.executor, self.ledger, INTERVAL, self.events)
        self.spec: Json = {"watts": watts}
        self.status: Json = {}
        self.picture = ready_picture("a")
        self.monotonic = 0.0
        self.outcomes: dict[str, CapOutcome] = {}

    async def cycle(self, seconds: float = 0.0) -> int:
        """One cycle: told twice, as the loop does; returns the number of writes."""
        self.monotonic += seconds
        now = NOW + timedelta(seconds=self.monotonic)
        before = len(self.executor.caps)
        views = [cap_view(status=self.status, **self.spec)]
        readings, problems = self.ledger.read(views, {"a": self.picture}, now, self.monotonic)
        arguments: tuple[Any, ...] = (readings, problems, self.outcomes, now, self.monotonic)
        await self.reporter.publish_caps(*arguments, moved_only=True)
        await self.reporter.publish_caps(*arguments, waiting=1)
        written = self.executor.caps[before:]
        for status in written if self.executor.works else ():
            self.status = as_stored({**self.status, **status})
        return len(written)

    def hold(self, watts: int) -> None:
        view = gpu_node_view("a", grant(watts * 1000), limits=watts * 1000)
        self.picture = picture_nodes([node_view("a")], {"a": view}, [], frozenset())["a"]


async def test_a_cap_is_told_once_a_cycle_and_only_for_news() -> None:
    site = Site(3000)
    assert await site.cycle() == 1
    assert await site.cycle() == 0
    assert await site.cycle(10 * INTERVAL) == 0
    site.hold(900)  # a figure
    assert await site.cycle(INTERVAL) == 1
    site.hold(1000)
    assert await site.cycle(INTERVAL / 2) == 0
    assert await site.cycle(INTERVAL / 2) == 1
    assert site.events.told == []


async def test_a_cap_that_moves_or_is_not_enforced_is_told_at_once() -> None:
    site = Site(3000)
    await site.cycle()
    site.hold(2000)
    site.spec["watts"] = 1500
    assert await site.cycle(0.1) == 1
    site.hold(1000)
    assert await site.cycle(0.1) == 1
    site.hold(1600)
    assert await site.cycle(0.1) == 1
    site.spec["watts"] = 2500
    assert await site.cycle(0.1) == 1
    assert site.events.reasons == ["Lowering", "Enforced", "NotEnforced", "Enforced"]
    assert {regarding for regarding, _ in site.events.told} == {"PowerCap/row"}


async def test_what_could_not_be_written_is_no_event_and_tried_again() -> None:
    site = Site(3000)
    await site.cycle()
    site.hold(2000)
    site.spec["watts"] = 1500
    site.executor.works = False
    assert await site.cycle(0.1) == 1
    assert site.events.told == []
    site.executor.works = True
    assert await site.cycle(0.1) == 1
    assert site.events.reasons == ["Lowering"]


async def test_the_plans_word_that_a_cap_cannot_be_held_counts_too() -> None:
    site = Site(900)
    site.outcomes = {"row": CapOutcome("row", 950.0, feasible=False, floor_watts=950.0)}
    await site.cycle()
    feasible = next(item for item in site.status["conditions"] if item["type"] == "Feasible")
    assert (feasible["status"], feasible["reason"]) == ("False", "FloorsExceedCap")
    assert site.events.reasons == ["Infeasible"]


async def test_a_cap_that_cannot_be_read_is_told_to_be_unknown_once() -> None:
    site = Site(3000)
    await site.cycle()
    site.spec = {"watts": 1, "permilleOfMax": 1}
    assert await site.cycle(0.1) == 1
    assert {item["status"] for item in site.status["conditions"]} == {"Unknown"}
    assert await site.cycle(INTERVAL) == 0
    assert site.events.reasons == ["Unreadable"]


async def test_jobs_are_told_with_their_events() -> None:
    executor, events = RecordingExecutor(), RecordingEvents()
    reporter = Reporter(executor, CapLedger(), INTERVAL, events)
    step = JobStep(Phase.RUNNING)
    facts = JobFacts(JobBooks(), step, decision("uid-train", ("a", 4)), 1, True, 0, NOW)
    job = job_view()
    kept = KeptJob(job, JobBooks(), JobMemory(JobBooks(), None, True), step, None, (), ())
    await reporter.write_job(kept, job_status(job, facts))
    assert len(executor.jobs) == 1
    assert events.reasons == ["Admitted"]
    executor.works = False
    await reporter.write_job(kept, job_status(job, facts))
    assert events.reasons == ["Admitted"]


def pictures(*words: str) -> dict[str, NodePicture]:
    """Nodes a, b, ... in these states."""
    made = {}
    for name, word in zip("abc", words, strict=False):
        view = gpu_node_view(name, grant(8 * FLOOR), limits=None if word == "new" else 8 * FLOOR)
        made |= picture_nodes([node_view(name)], {name: view}, [], frozenset([name] if word == "silent" else []))
    return made


def announced(*cycles: Iterable[str]) -> list[tuple[str, str]]:
    events = RecordingEvents()
    reporter = Reporter(RecordingExecutor(), CapLedger(), INTERVAL, events)
    for words in cycles:
        reporter.announce_nodes(pictures(*words))
    return [(regarding, item.reason) for regarding, item in events.told]


def test_nodes_that_a_new_leader_finds_are_no_news() -> None:
    assert announced(["ready", "silent", "new"]) == []


def test_nodes_that_come_fall_silent_and_answer() -> None:
    told = announced(["ready"], ["silent", "new"], ["silent", "ready"], ["ready", "ready"])
    assert told == [("Node/a", "NodeSilent"), ("Node/b", "NodeArrived"), ("Node/a", "NodeAnswers")]


def test_a_node_that_is_there_at_once() -> None:
    assert announced([], ["ready"]) == [("Node/a", "NodeArrived")]


def test_without_a_recorder_nothing_is_told() -> None:
    reporter = Reporter(RecordingExecutor(), CapLedger(), INTERVAL)
    reporter.announce_nodes(pictures("ready"))
    reporter.announce_nodes(pictures("silent"))
