"""Which jobs' templates the API server is to check, so that a mistake shows long before there are GPUs for the job.

A job's Job follows from its spec: of a thousand with the same one in a namespace, one is asked about.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b

import msgspec
from flyball_api.energy_aware_job import EnergyAwareJob

from flyball_operator.cluster.outcome import Outcome, WriteResult
from flyball_operator.jobs.steps.record import JobRecord
from flyball_operator.jobs.steps.step import LiveJob

# Before the API server is asked again about a template, where it gave no answer.
CHECK_AGAIN_SECONDS = 5.0
# For so long a template with which nothing is wrong stands for others like it: policies may change.
PASSED_SECONDS = 300.0
MAX_PASSED = 4096
# Of so many bytes of specs it is found out in one cycle which are alike: a template may be a megabyte, for which it takes
# some milliseconds, and a cut that comes meanwhile waits.
MOST_BYTES_COMPARED = 8 * 2**20


class TemplateChecks:
    """Which templates are to be checked, and the answers, during one leader's term."""

    def __init__(self) -> None:
        # Those with which nothing is wrong, and since when; the oldest first.
        self._passed: OrderedDict[bytes, float] = OrderedDict()
        self._alike: dict[str, tuple[int, bytes]] = {}  # of those that wait for a check: generation and digest, by uid

    def step(
        self, jobs: Iterable[LiveJob], records: Mapping[str, JobRecord], acting: Collection[str], monotonic: float
    ) -> list[EnergyAwareJob]:
        """The jobs whose templates to check now: not those that are about to be made anyway (`acting`, by uid)."""
        found: dict[bytes, EnergyAwareJob] = {}
        before, self._alike, compared = self._alike, {}, 0
        for job in jobs:
            view, record = job.view, records[job.view.uid]
            if job.step.current is not None or view.uid in acting:
                continue
            again = record.asks_again(view, monotonic)
            new = record.checked_generation != view.generation and monotonic >= record.check_at
            if not again and (not new or job.memory.refusal is not None):
                continue
            known = before.get(view.uid)
            if known is None or known[0] != view.generation:
                if compared >= MOST_BYTES_COMPARED:
                    continue  # its turn comes
                digest, size = _digest(view)
                known, compared = (view.generation, digest), compared + size
            self._alike[view.uid] = known
            alike = known[1]
            if not again and monotonic - self._passed.get(alike, float("-inf")) < PASSED_SECONDS:
                record.checked_generation = view.generation
            else:
                found.setdefault(alike, view)
        return list(found.values())

    def answered(self, record: JobRecord, job: EnergyAwareJob, result: WriteResult, monotonic: float) -> None:
        """Take in the API server's answer to a trial of a job's template.

        What it refuses for another reason, a quota say, may pass by then. It looks at the template before that, so those
        like it need not ask: five hundred that a quota denies would ask for minutes.
        """
        if result.outcome is Outcome.UNKNOWN:
            record.check_at = record.ask_again_at = monotonic + CHECK_AGAIN_SECONDS
            return
        record.checked_generation = job.generation
        if result.invalid:
            record.note_refused(job, result.invalid, monotonic)
        else:
            record.invalid = ""
            alike, _ = _digest(job)
            self._passed[alike] = monotonic
            self._passed.move_to_end(alike)
            if len(self._passed) > MAX_PASSED:
                self._passed.popitem(last=False)


def _digest(job: EnergyAwareJob) -> tuple[bytes, int]:
    """The same for jobs whose Jobs differ in names alone, and of how many bytes it is."""
    encoded = msgspec.json.encode((job.namespace, job.spec))
    return blake2b(encoded, digest_size=16).digest(), len(encoded)
