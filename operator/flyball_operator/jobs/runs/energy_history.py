"""Bounds the energy that agents may report for a job by what it used before: a false report cannot spend its budget.

A node's GPUs draw their largest limits at most, so that a total rises no faster. A total above that counts as far as it
is possible, and the rest as it becomes so. A new leader goes on from the totals in the job's status, which may be as old as
an operator's absence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.gpu_node import PodReport
from flyball_api.values.units import NodeMilliwatts
from flyball_kube.process.logs import get_logger

from flyball_operator.jobs.runs.progress import recorded_progress
from flyball_operator.power.nodes.info import NodeInfo

logger = get_logger(__name__)

# GPUs pass their limits for moments, and two clocks run at about the same rate.
MOST_OVER_LIMITS = 1.2
# A report is made of what was read some time before.
SLACK_SECONDS = 60.0
# For so long nobody may have written a job's status while its pods ran on.
ABSENCE_SECONDS = 3600.0


class EnergyHistory:
    """What one job's pods had used when this leader first saw the job, at `since` by its monotonic clock.

    `recorded` has the totals of its status by "<incarnation>/<node>"; incarnations after `last_incarnation` began later.
    """

    def __init__(self, job: str, recorded: Mapping[str, int], last_incarnation: int, since: float) -> None:
        self._job = job
        self._recorded = recorded
        self._last_incarnation = last_incarnation
        self._since = since
        self._doubted: set[str] = set()
        self._counted: dict[str, dict[int, int]] = {}  # since then, by node and incarnation

    def believe(
        self, reports: Iterable[tuple[str, PodReport]], largest: Mapping[str, NodeMilliwatts], monotonic: float
    ) -> list[tuple[str, PodReport]]:
        """Take in the `reports` of `(node, report)` and give them back with no more energy than is possible.

        `largest` has what the GPUs of each node come to at their largest limits; of a node without an entry nobody knows.
        """
        return [(node, self._bounded(node, report, largest.get(node), monotonic)) for node, report in reports]

    def _bounded(self, node: str, report: PodReport, largest: NodeMilliwatts | None, monotonic: float) -> PodReport:
        if largest is None:
            return report
        key, reported = f"{report.incarnation}/{node}", report.energy_millijoules
        absence = ABSENCE_SECONDS if report.incarnation <= self._last_incarnation else 0.0
        seconds = monotonic - self._since + SLACK_SECONDS
        recorded, counted = self._recorded.get(key, 0), self._counted.setdefault(node, {})
        # What the job's other incarnations have used there since, this one cannot have used, too.
        by_all = int(largest * MOST_OVER_LIMITS * (seconds + (ABSENCE_SECONDS if self._last_incarnation else 0.0)))
        by_others = sum(counted.values()) - counted.get(report.incarnation, 0)
        possible = min(int(largest * MOST_OVER_LIMITS * (seconds + absence)), max(0, by_all - by_others)) + recorded
        counted[report.incarnation] = max(counted.get(report.incarnation, 0), min(reported, possible) - recorded)
        if reported <= possible:
            return report
        if key not in self._doubted:
            self._doubted.add(key)
            logger.warning(
                "more energy reported than a node's GPUs can have used",
                job=self._job,
                node=node,
                incarnation=report.incarnation,
                reported_millijoules=reported,
                counted_millijoules=possible,
            )
        return msgspec.structs.replace(report, energy_millijoules=possible)


class EnergyHistories:
    """The histories of all jobs during one leader term."""

    def __init__(self) -> None:
        self._of: dict[str, EnergyHistory] = {}  # by the job's uid

    def believe(
        self,
        job: EnergyAwareJob,
        reports: Sequence[tuple[str, PodReport]],
        nodes: Mapping[str, NodeInfo],
        monotonic: float,
    ) -> list[tuple[str, PodReport]]:
        """Take in what agents report of the job, by node; gives it back with no more energy than is possible."""
        history = self._of.get(job.uid)
        if history is None:
            recorded = recorded_progress(job).open_millijoules
            history = self._of[job.uid] = EnergyHistory(job.key, recorded, job.last_incarnation, monotonic)
        if not reports:
            return []
        largest = {name: nodes[name].max_limits_milliwatts for name, _ in reports if name in nodes}
        return history.believe(reports, largest, monotonic)

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Drop what is remembered of jobs that are gone."""
        for uid in self._of.keys() - uids:
            del self._of[uid]
