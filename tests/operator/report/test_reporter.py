"""The reporter: statuses at once where they matter, at the interval where they do not, and Events once written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import msgspec
from flyball_api.energy.quota import EnergyQuota, EnergyQuotaStatus
from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus
from flyball_api.power_cap import PowerCap, PowerCapStatus
from flyball_operator.cluster.outcome import DONE, UNKNOWN, WriteResult
from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep
from flyball_operator.jobs.runs.memory import JobMemory
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.status import JobFacts, job_status
from flyball_operator.jobs.steps.step import LiveJob
from flyball_operator.power.caps.status import GrantsUnderWay
from flyball_operator.power.caps.status_writes import CapStatuses
from flyball_operator.power.caps.tracker import CapTracker
from flyball_operator.power.holds import HoldAction, HoldChange
from flyball_operator.power.nodes.info import NodeInfo, read_nodes
from flyball_operator.report.announcements.announcement import Announcement
from flyball_operator.report.events import Regarding
from flyball_operator.report.reporter import Reporter

from tests.support.operator_objects import (
    CREATED,
    FLOOR,
    NOW,
    Json,
    cap_view,
    decision,
    gpu_node_view,
    grant,
    job_view,
    node_view,
    raw_device,
    ready_node,
)

INTERVAL = 5.0
STALE_SECONDS = 90.0


class RecordingWrites:
    """Takes statuses, as the executor does."""

    def __init__(self) -> None:
        self.caps: list[PowerCapStatus] = []
        self.jobs: list[EnergyAwareJobStatus] = []
        self.quotas: list[EnergyQuotaStatus] = []
        self.works = True

    async def write_cap_status(self, cap: PowerCap, status: PowerCapStatus) -> WriteResult:
        self.caps.append(status)
        return DONE if self.works else UNKNOWN

    async def write_job_status(self, job: EnergyAwareJob, status: EnergyAwareJobStatus) -> WriteResult:
        self.jobs.append(status)
        return DONE if self.works else UNKNOWN

    async def write_quota_status(self, quota: EnergyQuota, status: EnergyQuotaStatus) -> WriteResult:
        self.quotas.append(status)
        return DONE if self.works else UNKNOWN


class RecordingEvents:
    def __init__(self) -> None:
        self.recorded: list[tuple[str, Announcement]] = []

    room = 50

    def record(self, regarding: Regarding, reason: str, note: str, *, action: str, warning: bool = False) -> None:
        self.recorded.append((f"{regarding.kind}/{regarding.name}", Announcement(reason, note, action, warning)))

    @property
    def reasons(self) -> list[str]:
        return [item.reason for _, item in self.recorded]


class Site:
    """Cycles over one cap and one node."""

    def __init__(self, watts: int) -> None:
        self.executor, self.events, self.tracker = RecordingWrites(), RecordingEvents(), CapTracker()
        self.statuses = CapStatuses(INTERVAL, 1, STALE_SECONDS)
        self.reporter = Reporter(self.executor, self.events)
        self.spec: Json = {"watts": watts}
        self.status = PowerCapStatus()
        self.info = ready_node("a")
        self.monotonic = 0.0
        self.infeasible: tuple[str, ...] = ()

    async def cycle(self, seconds: float = 0.0) -> int:
        """One cycle; returns the number of writes."""
        self.monotonic += seconds
        now = NOW + timedelta(seconds=self.monotonic)
        before = len(self.executor.caps)
        cap = replace(cap_view(**self.spec), status=self.status)
        caps = self.tracker.step([cap], {"a": self.info}, now, self.monotonic)
        for write in self.statuses.step(caps, self.infeasible, GrantsUnderWay(1), now, self.monotonic):
            await self.reporter.write_cap(write)
        written = self.executor.caps[before:]
        if written and self.executor.works:
            self.status = written[-1]
        return len(written)

    def hold(self, watts: int) -> None:
        view = gpu_node_view("a", grant(watts * 1000), limits=watts * 1000)
        self.info = read_nodes([node_view("a")], {"a": view}, [], frozenset())["a"]


async def test_a_cap_is_told_once_a_cycle_and_only_for_news() -> None:
    site = Site(3000)
    assert await site.cycle() == 1
    assert await site.cycle() == 0
    assert await site.cycle(10 * INTERVAL) == 0
    site.hold(900)  # a figure
    assert await site.cycle(INTERVAL) == 1
    site.hold(850)
    assert await site.cycle(INTERVAL / 2) == 0
    assert await site.cycle(INTERVAL / 2) == 1
    site.hold(851)  # more is committed
    assert await site.cycle() == 1
    assert site.events.recorded == []


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
    assert {regarding for regarding, _ in site.events.recorded} == {"PowerCap/row"}


async def test_watts_that_rise_by_themselves_are_no_storm_of_writes_and_a_fall_waits_for_none() -> None:
    """Each write brings a cycle, which must not find that more may be drawn already."""
    site = Site(10_000)
    site.spec["rampWattsPerSecond"] = 1000
    await site.cycle()
    site.spec["watts"] = 100_000
    looks = [await site.cycle(0.01) for _ in range(1250)]
    assert sum(looks) == 2  # a step every five seconds
    assert 20_000 <= (site.status.effective_watts or 0) <= 20_050
    await site.cycle(INTERVAL)
    site.spec["watts"] = 500
    assert await site.cycle(INTERVAL / 500) == 1


async def test_what_could_not_be_written_is_no_event_and_tried_again() -> None:
    site = Site(3000)
    await site.cycle()
    site.hold(2000)
    site.spec["watts"] = 1500
    site.executor.works = False
    assert await site.cycle(0.1) == 1
    assert site.events.recorded == []
    site.executor.works = True
    assert await site.cycle(0.1) == 1
    assert site.events.reasons == ["Lowering"]


async def test_the_plans_word_that_a_cap_cannot_be_held_counts_too() -> None:
    site = Site(900)
    site.infeasible = ("row",)
    await site.cycle()
    feasible = next(item for item in site.status.conditions if item.type == "Feasible")
    assert (feasible.status, feasible.reason) == ("False", "FloorsExceedCap")
    assert site.events.reasons == ["Infeasible"]


async def test_a_cap_that_cannot_be_read_is_told_to_be_unknown_once() -> None:
    site = Site(3000)
    await site.cycle()
    site.spec = {"watts": 1, "permilleOfMax": 1}
    assert await site.cycle(0.1) == 1
    assert {item.status for item in site.status.conditions} == {"Unknown"}
    assert await site.cycle(INTERVAL) == 0
    assert site.events.reasons == ["Unreadable"]


async def test_jobs_are_told_with_their_events() -> None:
    executor, events = RecordingWrites(), RecordingEvents()
    reporter = Reporter(executor, events)
    step = JobStep(JobPhase.RUNNING)
    facts = JobFacts(JobProgress(), step, decision("uid-train", ("a", 4)), 1, True, 0, NOW)
    job = job_view()
    live = LiveJob(job, JobMemory(JobProgress(), None, True), step, ())
    await reporter.write_job(live, job_status(job, facts))
    assert len(executor.jobs) == 1
    assert events.reasons == ["Admitted"]
    executor.works = False
    await reporter.write_job(live, job_status(job, facts))
    assert events.reasons == ["Admitted"]


def nodes(*words: str) -> dict[str, NodeInfo]:
    """Nodes a, b, ... in these states."""
    made: dict[str, NodeInfo] = {}
    for name, word in zip("abc", words, strict=False):
        view = gpu_node_view(name, grant(8 * FLOOR), limits=None if word == "new" else 8 * FLOOR)
        made |= read_nodes([node_view(name)], {name: view}, [], frozenset([name] if word == "unresponsive" else []))
    return made


def announced(*cycles: Iterable[str]) -> list[tuple[str, str]]:
    events = RecordingEvents()
    reporter = Reporter(RecordingWrites(), events)
    for words in cycles:
        reporter.announce_nodes(nodes(*words))
    return [(regarding, item.reason) for regarding, item in events.recorded]


def test_nodes_that_a_new_leader_finds_are_no_news() -> None:
    assert announced(["ready", "unresponsive", "new"]) == []


def test_nodes_that_come_fall_silent_and_answer() -> None:
    told = announced(["ready"], ["unresponsive", "new"], ["unresponsive", "ready"], ["ready", "ready"])
    assert told == [("Node/a", "NodeUnresponsive"), ("Node/b", "NodeArrived"), ("Node/a", "NodeAnswers")]


def test_a_node_that_is_there_at_once() -> None:
    assert announced([], ["ready"]) == [("Node/a", "NodeArrived")]


async def test_without_a_recorder_statuses_are_written_all_the_same() -> None:
    writes = RecordingWrites()
    reporter = Reporter(writes)
    reporter.announce_nodes(nodes("ready"))
    reporter.announce_nodes(nodes("unresponsive"))  # an Event where there is a recorder
    job, step = job_view(), JobStep(JobPhase.RUNNING)
    status = job_status(job, JobFacts(JobProgress(), step, decision("uid-train", ("a", 4)), 1, True, 0, NOW))
    result = await reporter.write_job(LiveJob(job, JobMemory(JobProgress(), None, True), step, ()), status)
    assert (result, writes.jobs) == (DONE, [status])


def test_a_deletion_is_recorded_once() -> None:
    events = RecordingEvents()
    reporter = Reporter(RecordingWrites(), events)
    cap = cap_view(watts=1)
    deleted = replace(cap, metadata=msgspec.structs.replace(cap.metadata, deletion_timestamp=NOW))
    reporter.announce_deletions([cap])
    for _ in range(3):
        reporter.announce_deletions([deleted])
    reporter.announce_hold(HoldChange(deleted, HoldAction.RELEASE_UNLESS_KIND_GOES))
    assert events.reasons == ["HeldAfterDeletion", "Released"]


def test_what_cannot_be_read_is_told_once() -> None:
    events = RecordingEvents()
    reporter = Reporter(RecordingWrites(), events)
    whole = gpu_node_view("a", grant(8 * FLOOR))
    odd = replace(whole, problems=("status.jobs[0].lastReportTime: Invalid RFC3339 encoded datetime",))
    for items in ([whole], [odd], [odd], [replace(odd, problems=(*odd.problems, "status.mode: no"))], [whole], [odd]):
        reporter.announce_problems(items)
    assert events.reasons == ["PartLeftOut"] * 3
    assert [item.note for _, item in events.recorded][1] == "left out: status.mode: no; the rest counts"


def test_what_befalls_a_gpu_is_told_once() -> None:
    events = RecordingEvents()
    reporter = Reporter(RecordingWrites(), events)

    def report(*conditions: tuple[str, str, str]) -> None:
        devices = [raw_device(index) for index in range(2)]
        devices[1]["conditions"] = [
            {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": CREATED}
            for kind, status, reason in conditions
        ]
        reporter.announce_gpus({"a": gpu_node_view("a", grant(8 * FLOOR), devices=devices)})

    well, lost = ("Healthy", "True", "Governed"), ("Healthy", "False", "Lost")
    report(lost)  # it was so before this operator led
    report(well)
    report(well, ("XidError", "True", "Xid79"))
    for _ in range(2):
        report(lost, ("XidError", "True", "Xid79"))
    report(lost, ("XidError", "True", "Xid95"))
    report(well, ("XidError", "False", "DriverLoadedAnew"))
    assert events.reasons == ["GpuHealthy", "XidError", "GpuUnhealthy", "XidError", "GpuHealthy"]
    reporter.announce_gpus({})
    report(lost)
    assert len(events.reasons) == 5
