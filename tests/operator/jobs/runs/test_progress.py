"""A job's progress: exact under lost, late and repeated messages, over incarnations and operators."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flyball_api.gpu_node import PodReport, read_gpu_node
from flyball_api.reading import MAX_INTEGER
from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep
from flyball_operator.jobs.runs.progress import (
    MAX_OPEN_ENTRIES,
    JobProgress,
    ProgressReader,
    add_energy,
    recorded_progress,
    updated_progress,
)
from flyball_operator.jobs.status import JobFacts, job_status
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.operator_objects import NOW, Json, grant, job_view, raw_gpu_node, raw_report


def report(incarnation: int, millijoules: int, node: str = "a", **fields: Any) -> tuple[str, PodReport]:
    raw = raw_gpu_node(node, grant(100), reports=[raw_report("uid-train", incarnation, millijoules, **fields)])
    return node, read_gpu_node(raw).status.jobs[0]


def heard(
    incarnation: int, iterations: int, node: str = "a", *, at: datetime = NOW, **fields: Any
) -> tuple[str, PodReport]:
    """What a script that reports its steps looks like."""
    return report(
        incarnation,
        0,
        node,
        iterations=iterations,
        lastReportTime=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        **fields,
    )


def update(progress: JobProgress, *reports: tuple[str, PodReport], **keywords: Any) -> JobProgress:
    given_keywords = {
        "incarnation": 1,
        "running_gpus": 0,
        "elapsed_seconds": 0.0,
        "model_iterations_per_second": 0.0,
        **keywords,
    }
    return updated_progress(progress, reports, **given_keywords)


def through_status(progress: JobProgress) -> JobProgress:
    """The progress as the next operator finds them: written to the status, and read from there."""
    facts = JobFacts(progress, JobStep(JobPhase.WAITING), None, 1, False, 0, NOW)
    return recorded_progress(job_view(status=job_status(job_view(), facts)))


# --- energy ------------------------------------------------------------------------------------------------------


@dataclass
class Agents:
    """Pods that use energy, agents that write totals now and then, and an operator that sees and saves them."""

    nodes: tuple[str, ...] = ("a", "b")
    incarnation: int = 1
    used: dict[tuple[str, int], int] = field(default_factory=dict)  # the truth
    written: dict[str, dict[int, int]] = field(default_factory=lambda: {"a": {}, "b": {}})
    dropped: set[tuple[str, int]] = field(default_factory=set)
    progress: JobProgress = field(default_factory=JobProgress)
    saved: JobProgress = field(default_factory=JobProgress)

    def write(self, node: str) -> None:
        self.written[node] = {
            number: total
            for (where, number), total in self.used.items()
            if where == node and (node, number) not in self.dropped
        }

    def ended(self, node: str, patient: bool) -> list[int]:
        """Incarnations whose pods on a node have ended; to a patient agent, only those that were heard of everywhere."""

        def told(number: int) -> bool:
            return number <= self.saved.settled_incarnation or all(
                self.saved.open_millijoules.get(f"{number}/{other}", 0) == self.used.get((other, number), 0)
                for other in self.nodes
            )

        numbers = [number for where, number in self.used if where == node and number < self.incarnation]
        return [number for number in numbers if told(number) or not patient]

    def drop(self, node: str, patient: bool) -> None:
        """Ended pods are forgotten after a while."""
        self.dropped |= {(node, number) for number in self.ended(node, patient)}

    def blank(self, node: str, patient: bool) -> None:
        """Ended pods are not in the status for a moment: the agent starts anew, or the object cannot be read."""
        for number in self.ended(node, patient):
            self.written[node].pop(number, None)

    def see(self) -> None:
        reports = [report(number, total, node) for node in self.nodes for number, total in self.written[node].items()]
        self.progress = update(self.progress, *reports, incarnation=self.incarnation)

    @property
    def truth(self) -> int:
        return sum(self.used.values())


EVENTS = ("use", "use", "hear", "hear", "next", "next", "blank", "see", "see", "write", "drop", "save", "restart")
events = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.sampled_from("ab"), st.integers(1, 10**9)), min_size=5, max_size=40
)


@given(events, st.booleans())
@settings(max_examples=examples(200))
def test_energy_is_exact_whatever_is_lost_late_or_repeated(schedule: list[tuple[str, str, int]], patient: bool) -> None:
    agents, shown = Agents(), 0
    for event, node, millijoules in schedule:
        if event == "use":
            # What a pod has used is counted to its end, which comes before the next incarnation.
            key = (node, agents.incarnation)
            agents.used[key] = agents.used.get(key, 0) + millijoules
        elif event == "write":
            agents.write(node)
        elif event == "drop":
            agents.drop(node, patient)
        elif event == "blank":
            agents.blank(node, patient)
        elif event == "see":
            agents.see()
        elif event == "hear":
            for each in agents.nodes:
                agents.write(each)
            agents.see()
            agents.saved = through_status(agents.progress)
            shown = agents.saved.consumed_millijoules
            assert shown == agents.truth or not patient
        elif event == "save":
            agents.saved = through_status(agents.progress)
            # As a user sees it, it never falls, and nobody is charged for more than was used.
            assert agents.saved.consumed_millijoules == agents.progress.consumed_millijoules
            assert shown <= agents.saved.consumed_millijoules <= agents.truth
            shown = agents.saved.consumed_millijoules
        elif event == "restart":
            agents.progress = agents.saved
        else:
            agents.incarnation += 1
    for node in agents.nodes:
        agents.write(node)
    agents.see()
    assert agents.progress.consumed_millijoules <= agents.truth
    if patient:
        assert agents.progress.consumed_millijoules == agents.truth


def test_a_total_is_counted_once_however_often_it_is_told() -> None:
    progress = JobProgress()
    for total in (5, 9, 9, 7, 9):
        progress = update(progress, report(1, total))
    assert progress.consumed_millijoules == 9


def test_nodes_and_incarnations_add_up() -> None:
    progress = update(JobProgress(), report(1, 5, "a"), report(1, 7, "b"))
    progress = update(progress, report(1, 5, "a"), report(1, 7, "b"), report(2, 1, "a"), incarnation=2)
    assert progress.consumed_millijoules == 13
    assert progress.open_millijoules == {"1/a": 5, "1/b": 7, "2/a": 1}


def test_an_incarnation_is_settled_when_nobody_reports_it_any_more() -> None:
    progress = update(JobProgress(), report(1, 5, "a"), report(1, 7, "b"))
    progress = update(progress, report(1, 8, "b"), report(2, 1, "a"), incarnation=2)  # one node still tells of it
    assert progress.settled_incarnation == 0
    progress = update(progress, report(2, 1, "a"), incarnation=2)
    assert (progress.settled_incarnation, progress.settled_millijoules) == (1, 13)
    assert progress.open_millijoules == {"2/a": 1}


def test_what_is_settled_is_not_counted_again() -> None:
    progress = update(JobProgress(), report(1, 5, "a"))
    progress = update(progress, incarnation=2)
    progress = through_status(update(progress, report(1, 6, "a"), incarnation=2))
    assert progress.consumed_millijoules == 5


def test_the_present_incarnation_stays_open() -> None:
    progress = update(update(JobProgress(), report(1, 5)))
    assert progress.open_millijoules == {"1/a": 5}
    assert update(progress, report(1, 8)).consumed_millijoules == 8


def test_a_job_over_many_nodes_is_not_counted_twice() -> None:
    many = [report(1, 10, f"node-{index}") for index in range(400)]
    progress = JobProgress()
    for _ in range(3):
        progress = through_status(update(progress, *many))
    assert progress.consumed_millijoules == 4000


def test_entries_are_bounded_and_still_counted_once() -> None:
    entries = {f"{1 + index // 1000}/node-{index % 1000}": 1 for index in range(MAX_OPEN_ENTRIES + 500)}
    reports = [report(2, 1, "node-1"), report(5, 1, "node-1")]
    progress = update(JobProgress(open_millijoules=entries), *reports, incarnation=5)
    assert len(progress.open_millijoules) <= MAX_OPEN_ENTRIES
    assert progress.consumed_millijoules == len(entries)
    assert update(progress, *reports, incarnation=5).consumed_millijoules == len(entries)


def test_an_entry_that_no_operator_wrote_ends_nothing() -> None:
    status: Json = {"energy": {"settledMillijoules": 3, "incarnations": [{"key": "x/y", "millijoules": 4}]}}
    progress = recorded_progress(job_view(status=status))
    assert progress.consumed_millijoules == 7
    assert update(progress, report(1, 1), incarnation=2).consumed_millijoules == 8


def test_energy_alone_can_be_taken_from_late_reports() -> None:
    progress = JobProgress(settled_millijoules=10, settled_incarnation=1, open_millijoules={"2/a": 5})
    late = add_energy(progress, [report(1, 99), report(2, 7), report(2, 3, "b")])
    assert late.consumed_millijoules == 20
    assert add_energy(late, [report(2, 7)]) == late


def test_the_budget() -> None:
    progress = JobProgress(settled_millijoules=999_999, open_millijoules={"1/a": 1})
    assert progress.budget_spent(1)
    assert not progress.budget_spent(2)
    assert not progress.budget_spent(None)
    assert not JobProgress(settled_millijoules=999_999).budget_spent(1)


# --- progress ----------------------------------------------------------------------------------------------------


def test_progress_as_the_script_reports_it() -> None:
    later = NOW + timedelta(seconds=5)
    progress = update(
        JobProgress(),
        heard(1, 120, "a", microsecondsPerIteration=500_000, millijoulesPerIteration=100_000, clockMegahertz=1200),
        heard(
            1,
            118,
            "b",
            at=later,
            microsecondsPerIteration=510_000,
            millijoulesPerIteration=102_000,
            clockMegahertz=1195,
        ),
    )
    assert progress.iterations == 120
    assert progress.iterations_per_second == 2.0
    assert progress.watts == pytest.approx(400.0)  # both nodes' GPUs
    assert progress.clock_megahertz == 1200
    assert progress.last_report == later
    assert not progress.estimated


def test_no_figures_of_an_agent_make_a_status_that_the_api_server_refuses() -> None:
    """One rank's agent would keep all that is to be said of a job from being said."""
    absurd: Json = {"microsecondsPerIteration": 1, "millijoulesPerIteration": MAX_INTEGER}
    first = update(
        JobProgress(iterations_lost=MAX_INTEGER - 1), heard(1, MAX_INTEGER, "a", **absurd), heard(1, 0, "b", **absurd)
    )
    second = update(first, heard(2, 0, **absurd), incarnation=2)
    for progress in (first, second):
        status = job_status(job_view(), JobFacts(progress, JobStep(JobPhase.WAITING), None, 1, False, 0, NOW))
        assert status.progress is not None
        assert status.energy is not None
        figures = status.progress.iterations, status.progress.iterations_lost, status.energy.watts
        assert all(figure is None or figure <= MAX_INTEGER for figure in figures), figures


def test_progress_never_falls_but_rates_are_todays() -> None:
    progress = update(JobProgress(), heard(1, 100, microsecondsPerIteration=1000))
    progress = update(progress, heard(1, 90, microsecondsPerIteration=2000))
    assert (progress.iterations, progress.iterations_per_second) == (100, 500.0)
    assert update(progress).iterations_per_second == 0.0


def test_a_later_incarnation_goes_on_from_where_it_says_and_what_that_loses_is_counted() -> None:
    progress = update(JobProgress(), heard(1, 100))
    resumed = update(progress, heard(1, 104, ended=True), heard(2, 105), incarnation=2)
    assert (resumed.iterations, resumed.iterations_lost, resumed.reported_by) == (105, 0, 2)
    older = update(progress, heard(1, 104, ended=True), heard(2, 60), incarnation=2)
    assert (older.iterations, older.iterations_lost) == (60, 44)
    again = update(older, heard(1, 104, ended=True), heard(2, 70, "a"), heard(2, 69, "b"), incarnation=2)
    assert (again.iterations, again.iterations_lost) == (70, 44), "a late word of the one before changes nothing"
    alone = update(again, heard(2, 69, "b"), incarnation=2)
    assert (alone.iterations, alone.iterations_lost) == (70, 44), "nor does a node that is a step behind"
    from_nothing = update(alone, heard(3, 0), incarnation=3)
    assert (from_nothing.iterations, from_nothing.iterations_lost) == (0, 114)


def test_what_was_only_estimated_is_not_called_lost() -> None:
    progress = update(JobProgress(iterations=40.0, estimated=True), heard(2, 10), incarnation=2)
    assert (progress.iterations, progress.iterations_lost) == (10, 0)


@pytest.mark.parametrize("fields", [{"ended": True}, {"microsecondsPerIteration": 0}])
def test_a_pod_that_does_not_run_has_no_rate(fields: Json) -> None:
    progress = update(
        JobProgress(), heard(1, 100, **{"microsecondsPerIteration": 1000, "clockMegahertz": 900, **fields})
    )
    assert (progress.iterations, progress.iterations_per_second, progress.clock_megahertz) == (100, 0.0, 0)


def test_an_older_incarnation_has_no_rate_either() -> None:
    progress = update(JobProgress(), heard(1, 100, microsecondsPerIteration=1000), incarnation=2)
    assert (progress.iterations, progress.iterations_per_second) == (100, 0.0)


def test_a_silent_script_is_estimated_by_the_model() -> None:
    running = {"running_gpus": 4, "elapsed_seconds": 10.0, "model_iterations_per_second": 2.0}
    progress = update(update(JobProgress(), report(1, 5), **running), report(1, 9), **running)
    assert (progress.iterations, progress.iterations_per_second, progress.estimated) == (40, 2.0, True)
    assert progress.attained_gpu_seconds == 80.0
    stopped = update(progress, elapsed_seconds=10.0, model_iterations_per_second=2.0)
    assert (stopped.iterations, stopped.estimated, stopped.attained_gpu_seconds) == (40, True, 80.0)


def test_the_first_word_of_the_script_stands_above_the_estimate() -> None:
    progress = update(JobProgress(iterations=40.0, estimated=True), heard(1, 30, "a"), heard(1, 25, "b"))
    assert (progress.iterations, progress.estimated) == (30, False)
    silent = update(progress, running_gpus=4, elapsed_seconds=10.0, model_iterations_per_second=2.0)
    assert (silent.iterations, silent.estimated) == (30, False)  # it does report: nothing is made up between


def test_what_the_next_operator_knows() -> None:
    progress = JobProgress(
        iterations=123.0,
        iterations_per_second=1.5,
        estimated=True,
        reported_by=3,
        iterations_lost=17,
        last_report=datetime(2030, 6, 1, tzinfo=UTC),
        settled_millijoules=7,
        settled_incarnation=2,
        open_millijoules={"3/a": 5},
        attained_gpu_seconds=99.0,
    )
    assert through_status(progress) == progress
    assert recorded_progress(job_view()) == JobProgress()


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(range(6)), max_size=3, unique=True),  # which of the reports below are told
            st.integers(1, 3),  # the incarnation that counts
            st.sampled_from([0, 4]),
            st.sampled_from([0.0, 1.5]),
        ),
        max_size=12,
    ),
    st.booleans(),
)
@settings(max_examples=examples(200))
def test_the_same_reports_again_change_what_they_would_if_they_were_read_anew(
    cycles: list[tuple[list[int], int, int, float]], silent: bool
) -> None:
    told = [
        heard(1, 10),
        heard(1, 10, "b", energyMillijoules=5),
        heard(2, 4, at=NOW + timedelta(seconds=9), microsecondsPerIteration=1000, millijoulesPerIteration=3),
        heard(2, 6, "b"),
        report(1, 700),
        report(3, 20, "b"),
    ]
    anew, reader = JobProgress(), ProgressReader(JobProgress())
    for which, incarnation, gpus, seconds in cycles:
        reports = [told[index] for index in which if not silent or told[index][1].last_report_time is None]
        given_keywords: dict[str, Any] = {
            "incarnation": incarnation,
            "running_gpus": gpus,
            "elapsed_seconds": seconds,
            "model_iterations_per_second": 2.0,
        }
        for _ in range(2):
            anew = updated_progress(anew, reports, **given_keywords)
            assert reader.take_in(reports, **given_keywords) == anew
