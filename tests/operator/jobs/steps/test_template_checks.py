"""Of jobs that are alike one template is asked about: ten thousand of them are no ten thousand questions."""

from __future__ import annotations

from typing import Any

from flyball_api.energy_aware_job import EnergyAwareJob, read_energy_aware_job
from flyball_operator.cluster.outcome import DONE, UNKNOWN, Outcome, WriteResult
from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep
from flyball_operator.jobs.runs.memory import JobMemory
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.starts.attempts import RestartRules
from flyball_operator.jobs.starts.pauses import FIRST_REFUSAL_SECONDS, LONGEST_REFUSAL_SECONDS
from flyball_operator.jobs.steps.record import JobRecord
from flyball_operator.jobs.steps.step import LiveJob
from flyball_operator.jobs.steps.template_checks import (
    CHECK_AGAIN_SECONDS,
    MAX_PASSED,
    MOST_BYTES_COMPARED,
    PASSED_SECONDS,
    TemplateChecks,
)

from tests.support.operator_objects import NOW, job_view, raw_job

INVALID = WriteResult(Outcome.REFUSED, invalid='unknown field "volumeMount"')


class Asked:
    """Jobs that wait, and what the API server says of their templates."""

    def __init__(self) -> None:
        self.checks, self.jobs, self.now = TemplateChecks(), list[EnergyAwareJob](), 0.0
        self.records: dict[str, JobRecord] = {}

    def submit(self, *names: str, **spec: Any) -> None:
        for name in names:
            job = job_view(name, **spec)
            self.jobs.append(job)
            self.records[job.uid] = JobRecord.of(job, RestartRules(), NOW, self.now)

    def due(self) -> list[str]:
        memory = JobMemory(JobProgress(), None, running=False)
        live = [LiveJob(job, memory, JobStep(JobPhase.WAITING), ()) for job in self.jobs]
        return [job.name for job in self.checks.step(live, self.records, (), self.now)]

    def answer(self, name: str, result: WriteResult) -> None:
        job = next(job for job in self.jobs if job.name == name)
        self.checks.answered(self.records[job.uid], job, result, self.now)


def test_of_those_that_are_alike_one_is_asked_about() -> None:
    asked = Asked()
    asked.submit("a", "b", "c")
    assert asked.due() == ["a"]
    asked.answer("a", DONE)
    assert asked.due() == []
    asked.submit("d")
    assert asked.due() == []
    asked.now += PASSED_SECONDS
    asked.submit("e")
    assert asked.due() == ["e"], "policies may have changed"


def test_others_are_asked_about_themselves() -> None:
    asked = Asked()
    asked.submit("a")
    asked.submit("b", gpus={"min": 2, "max": 2})
    asked.submit("c", namespace="other")
    assert asked.due() == ["a", "b", "c"]


def test_megabytes_of_templates_are_compared_over_several_cycles_and_once() -> None:
    """Whoever may create jobs has a cut wait for no more of them than that."""
    asked, names, size = Asked(), [f"job-{number}" for number in range(20)], 2**20
    for name in names:
        asked.submit(name, template={"metadata": {"annotations": {"of": name, "text": "x" * size}}})
    at_once = MOST_BYTES_COMPARED // size
    assert [len(asked.due()) for _ in range(4)] == [at_once, 2 * at_once, len(names), len(names)]
    asked.answer(names[0], DONE)
    assert asked.due() == names[1:]


def test_what_is_refused_is_said_of_each_in_its_own_words() -> None:
    asked = Asked()
    asked.submit("a", "b")
    asked.answer("a", INVALID)
    assert asked.due() == ["b"]
    assert [asked.records[job.uid].invalid for job in asked.jobs] == [INVALID.invalid, ""]


def test_what_is_refused_is_asked_about_again_after_longer_each_time() -> None:
    """It may be an admission policy that refuses it, which somebody mends."""
    asked = Asked()
    asked.submit("a")
    for pause in (10.0, 20.0, 40.0):
        assert asked.due() == ["a"]
        asked.answer("a", INVALID)
        asked.now += pause - 1
        assert asked.due() == []
        asked.now += 1
    asked.answer("a", UNKNOWN)
    assert asked.due() == []
    asked.now += CHECK_AGAIN_SECONDS
    assert asked.due() == ["a"]
    assert asked.records[asked.jobs[0].uid].invalid == INVALID.invalid
    asked.answer("a", DONE)
    asked.now += LONGEST_REFUSAL_SECONDS
    assert asked.due() == []
    assert not asked.records[asked.jobs[0].uid].invalid


def test_a_mended_spec_is_asked_about_at_once() -> None:
    asked = Asked()
    asked.submit("a")
    for _ in range(20):
        asked.answer("a", INVALID)
    mended = raw_job("a", gpus={"min": 2, "max": 2})
    mended["metadata"]["generation"] = 2
    asked.jobs = [read_energy_aware_job(mended)]
    assert asked.due() == ["a"]
    asked.answer("a", INVALID)
    asked.now += FIRST_REFUSAL_SECONDS
    assert asked.due() == ["a"]


def test_what_a_quota_refuses_has_nothing_wrong_and_those_alike_do_not_ask() -> None:
    asked = Asked()
    asked.submit("a", "b", "c")
    assert asked.due() == ["a"]
    asked.answer("a", WriteResult(Outcome.REFUSED, message="exceeded quota: bound"))
    assert asked.due() == []
    assert not any(record.invalid for record in asked.records.values())


def test_no_answer_is_no_word_on_it() -> None:
    asked = Asked()
    asked.submit("a", "b")
    asked.answer("a", UNKNOWN)
    assert asked.due() == ["b"]
    asked.answer("b", UNKNOWN)
    asked.now += CHECK_AGAIN_SECONDS
    assert asked.due() == ["a"]


def test_what_is_kept_is_bounded() -> None:
    asked = Asked()
    for size in range(1, 20):
        asked.submit(f"job-{size}", gpus={"min": size, "max": size})
        asked.answer(f"job-{size}", DONE)
    assert len(asked.checks._passed) == 19 <= MAX_PASSED
