"""Executes what is decided on batch Jobs that wait for watts: lets them run, and tells why the others wait."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from flyball_planner.snapshot import JobDecision

from flyball_operator.cluster.outcome import WriteResult
from flyball_operator.jobs.plain_jobs import PlainJobs, PlainJobVerdict
from flyball_operator.power.cycle import PowerState
from flyball_operator.report.reporter import Reporter
from flyball_operator.writes.background import Background
from flyball_operator.writes.job_writes import JobWrites


class PlainJobExecution:
    """Starts the writes of one leader for batch Jobs that are let run by watts."""

    def __init__(self, executor: JobWrites, reporter: Reporter, background: Background) -> None:
        self._plain_jobs = PlainJobs()
        self._executor = executor
        self._reporter = reporter
        self._background = background

    @property
    def waiting(self) -> Mapping[str, int]:
        """How many go on waiting, by the reason."""
        return self._plain_jobs.waiting

    def start(self, state: PowerState, decisions: Mapping[str, JobDecision], monotonic: float) -> None:
        """Let those run that what the plan leaves is enough for."""
        for verdict in self._plain_jobs.step(state, decisions, monotonic):
            key = ("plain-job", verdict.job.uid)
            if not verdict.admitted:
                self._reporter.announce_plain_job(verdict)
            elif not self._background.busy(key):
                self._background.start(
                    key, self._executor.admit_plain_job(verdict.job), partial(self._answered, verdict, monotonic)
                )

    def _answered(self, verdict: PlainJobVerdict, monotonic: float, result: WriteResult) -> None:
        """Tell what became of letting a Job run, which was begun at `monotonic`."""
        if result.done:
            self._reporter.announce_plain_job(verdict)
            return
        refused = self._plain_jobs.answered(verdict.job, result, monotonic)
        if refused is not None:
            self._reporter.announce_plain_job(refused)
