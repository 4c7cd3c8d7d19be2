"""The books of the cluster's energy, a day each: what every GPU's counter rose by, and who used it.

The sum is of the counters of all GPUs, as agents report them; what jobs have used, the agents have found out, exactly. What
is left of the counters goes to the other pods that held the GPUs; what is then left nobody used. A book keeps the
counters up to which everything is in it, in the same object and so by the same write as its sums. So an operator that
takes over goes on from there: nothing is counted twice, and what was used while nobody led is in the sum.

Only which other pods held the GPUs meanwhile nobody knows then: that counts as idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from flyball_api.energy.report import (
    MAX_CAPS,
    MAX_COUNTED_JOBS,
    MAX_COUNTED_NODES,
    MAX_JOBS,
    MAX_NAMESPACES,
    MAX_OWNERS,
    CapEnergy,
    CountedNode,
    EnergyRates,
    EnergyReportSpec,
    Marks,
    NamespaceEnergy,
    OwnerEnergy,
    ReportedJob,
    ReportedMark,
)
from flyball_api.gpu_node import GpuNode
from flyball_api.reading import MAX_INTEGER
from flyball_api.values.times import whole_second
from flyball_api.workloads import MOST_GPUS

from flyball_operator.jobs.runs.consumption import Consumption
from flyball_operator.jobs.runs.marks import Mark, Use, used_since
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.report.gpu_holders import Owner, PodName, digest, job_pods, other_holders
from flyball_operator.report.would_have import Comparison, observed_use

# GPUs pass their limits for moments, two clocks run at about the same rate, and a report is made of older readings.
MOST_OVER_LIMITS = 1.2
SLACK_SECONDS = 60.0
# A GPU that draws no more than this times what it does idle computes nothing; that its memory is in use takes some.
IDLE_SHARE = 1.2
# For so long a node may not have reported when its report is seen first; what it could have used in a longer time without
# using it is no allowance for later.
ABSENCE_SECONDS = 3600.0
# An object's JSON: etcd takes 1.5 MiB. What is listed comes before the marks, and a list takes its share at most.
MAX_BYTES = 1_400_000
MAX_JOB_BYTES, MAX_NAMESPACE_BYTES, MAX_OWNER_BYTES, MAX_CAP_BYTES, MAX_NODE_BYTES = (
    300_000, 200_000, 150_000, 50_000, 400_000,
)  # fmt: skip
# So many owners and namespaces are told apart on a day, of those that agents name, too.
MAX_KNOWN = 16_384
# So many counters of one node: of the GPUs that a GPUNode can have, and of as many that cannot be read now.
MOST_COUNTERS = 2 * MOST_GPUS

T = TypeVar("T")


@dataclass(slots=True)
class _Counters:
    """One node's energy counters as they were counted last; `holders` are other pods' owners, by the GPU's uuid.

    `ours` are the training jobs' pods that held GPUs: one that ends holds them for longer than its grant and its object
    last.
    `spare_seconds` is for how long before `counted_at` its GPUs can have used more than was counted.
    """

    session: str
    millijoules: dict[str, int]
    holders: dict[str, Owner]
    ours: frozenset[PodName]
    seen: GpuNode
    counted_at: datetime
    spare_seconds: float

    def mark(self, name: str) -> CountedNode:
        # More than an integer of the API can say is a lie, and would keep the whole book from being written.
        millijoules = min(sum(self.millijoules.values()), MAX_INTEGER)
        return CountedNode(name, self.session, digest(*sorted(self.millijoules)), millijoules)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the books are kept of at one moment.

    `caps` has the nodes under each cap, `owners` whose each pod is that is not a job's, by its namespace and name, and
    `job_pods` those that are a job's. `observed` are the jobs that are only observed, by uid, with what governing them
    would change (None: nobody knows).
    `emitted_grams_per_kilowatt_hour` is the grid's, by its signal (None: not known).
    """

    nodes: Mapping[str, NodeInfo]
    caps: Mapping[str, Iterable[str]]
    jobs: Iterable[Consumption]
    owners: Mapping[PodName, Owner]
    job_pods: Collection[PodName] = frozenset()
    emitted_grams_per_kilowatt_hour: float | None = None
    observed: Mapping[str, Comparison | None] = field(default_factory=dict)


class EnergyBooks:
    """The book of one day, gone on from `stored`, the latest that there is (None: none was ever kept)."""

    def __init__(self, stored: EnergyReportSpec | None, rates: EnergyRates, now: datetime) -> None:
        self._rates = rates
        self._begun_at = whole_second(now)
        self._counters: dict[str, _Counters] = {}
        self._first: dict[str, CountedNode] = {}  # what an earlier operator has counted, until each node is seen
        self._marks: dict[str, Mark] = {}
        self._counted_since: datetime | None = None
        self._counted_until: datetime | None = None
        if stored is None:
            self._empty(_day(now))
            return
        marks = stored.marks
        if marks is not None:  # without them nobody knows what is counted already: only what is used from now on is
            self._first = {node.name: node for node in marks.nodes}
            self._marks = {job.uid: Mark(job.millijoules, job.gpu_seconds) for job in marks.jobs}
            self._counted_since, self._counted_until = stored.counted_since, stored.charged_until
        self._empty(stored.day)
        self._gpus, self._of_jobs, self._of_pods = (
            stored.gpus_millijoules,
            stored.jobs_millijoules,
            stored.pods_millijoules,
        )
        emitted = stored.rates.emitted_milligrams_per_kilowatt_hour
        if emitted is not None:
            self._rated, self._emitted = self._gpus, float(emitted) * self._gpus
        self._namespaces.update({item.name: item for item in stored.namespaces})
        self._jobs.update({item.uid: item for item in stored.jobs})
        self._owners.update({(item.namespace, item.owner): item.millijoules for item in stored.owners})
        self._owners_idle.update({(item.namespace, item.owner): item.idle_millijoules for item in stored.owners})
        self._caps.update({item.name: item.millijoules for item in stored.caps})

    def _empty(self, day: str) -> None:
        self.day = day
        self._gpus = self._of_jobs = self._of_pods = 0
        self._rated, self._emitted = 0, 0.0  # of so much it is known what it emitted, in milligrams of a kWh each
        self._namespaces: dict[str, NamespaceEnergy] = {}
        self._jobs: dict[str, ReportedJob] = {}
        self._owners: Counter[Owner] = Counter()
        self._owners_idle: Counter[Owner] = Counter()  # of that, what GPUs used that were held and computed nothing
        self._caps: Counter[str] = Counter()

    def largest_owners(self, number: int) -> list[tuple[Owner, int]]:
        """Whose pods outside Flyball have used most on the book's day, and how many millijoules."""
        return self._owners.most_common(number)

    def is_over(self, now: datetime) -> bool:
        """Whether another day has come."""
        return _day(now) > self.day and self._counted_until is not None

    def turn(self, now: datetime) -> EnergyReportSpec:
        """Begin the book of the day that has come; the one of the day before, closed."""
        closed = msgspec.structs.replace(self.spec(), marks=None)
        self._empty(_day(now))
        return closed

    def observe(self, seen: Seen, now: datetime) -> None:
        """Count what was used until `now`."""
        until = self._counted_until
        rises = {
            name: risen
            for name, info in seen.nodes.items()
            if info.gpu_node is not None and (risen := self._node_rise(info, info.gpu_node, seen, now))
        }
        risen = sum(rises.values())
        self._gpus += risen
        grams = seen.emitted_grams_per_kilowatt_hour
        emitted = self._rates.emitted_milligrams_per_kilowatt_hour if grams is None else max(0.0, grams) * 1e3
        if emitted is not None:
            self._rated, self._emitted = self._rated + risen, self._emitted + emitted * risen
        for cap, members in seen.caps.items():
            self._caps[cap] += sum(rises.get(name, 0) for name in members)
        jobs = list(seen.jobs)
        using = [job for job in jobs if not self._counts(job)]  # thousands that wait have used nothing
        for use in used_since(self._marks, using, counted_since=self._counted_since, counted_until=until, now=now):
            if use.mark is None:
                self._marks.pop(use.job.uid, None)
            else:
                self._marks[use.job.uid] = use.mark
            self._add_job(use)
            if use.job.uid in seen.observed:
                self._add_observed(use, seen.observed[use.job.uid])
        for uid in self._marks.keys() - {job.uid for job in jobs}:
            del self._marks[uid]
        self._counted_since = self._counted_since or whole_second(now)
        self._counted_until = whole_second(now)

    def spec(self) -> EnergyReportSpec:
        """The book as its object has it; of what is too much, the thirstiest."""
        until = self._counted_until or self._begun_at
        nodes = [counters.mark(name) for name, counters in self._counters.items()]
        nodes += [node for name, node in self._first.items() if name not in self._counters]
        jobs = sorted(self._jobs.values(), key=lambda job: (-job.millijoules, job.uid))
        namespaces = sorted(
            self._namespaces.values(), key=lambda item: (-item.jobs_millijoules - item.pods_millijoules, item.name)
        )
        owners = (
            OwnerEnergy(*owner, used, self._owners_idle[owner])
            for owner, used in self._owners.most_common(MAX_OWNERS)
            if used
        )
        caps = (CapEnergy(name, used) for name, used in self._caps.most_common(MAX_CAPS))
        book = EnergyReportSpec(
            day=self.day,
            counted_since=self._counted_since or until,
            charged_until=until,
            gpus_millijoules=self._gpus,
            jobs_millijoules=self._of_jobs,
            pods_millijoules=self._of_pods,
            namespaces=_within(MAX_NAMESPACE_BYTES, namespaces[:MAX_NAMESPACES]),
            jobs=_within(MAX_JOB_BYTES, jobs[:MAX_JOBS]),
            owners=_within(MAX_OWNER_BYTES, owners),
            caps=_within(MAX_CAP_BYTES, caps),
            rates=self._day_rates(),
        )
        marks = [
            ReportedMark(uid, mark.millijoules, mark.gpu_seconds)
            for uid, mark in sorted(self._marks.items(), key=lambda item: (-item[1].millijoules, item[0]))
        ]
        of_nodes = _within(MAX_NODE_BYTES, sorted(nodes, key=lambda node: node.name)[:MAX_COUNTED_NODES])
        left = MAX_BYTES - _bytes(book) - _bytes(of_nodes)
        of_jobs = _within(left, marks[:MAX_COUNTED_JOBS])
        # Of jobs whose marks are left out, only what they use from now on is counted by who goes on from here.
        since = book.counted_since if len(of_jobs) == len(marks) else until
        return msgspec.structs.replace(book, counted_since=since, marks=Marks(of_nodes, of_jobs))

    def _day_rates(self) -> EnergyRates:
        """What a kilowatt-hour cost and emitted, by the settings; CO2 by the grid's signal where that was known."""
        if not self._rated:
            return self._rates
        mean = round(self._emitted / self._rated)
        return msgspec.structs.replace(self._rates, emitted_milligrams_per_kilowatt_hour=mean)

    # --- counters ----------------------------------------------------------------------------------------------------

    def _node_rise(self, info: NodeInfo, gpu_node: GpuNode, seen: Seen, now: datetime) -> int:
        """What a node's counters rose by; its other pods are given theirs."""
        known = self._counters.get(info.name)
        if known is not None and known.seen is gpu_node:
            return 0
        session = digest(gpu_node.status.boot_id, gpu_node.status.driver_load)
        read = {
            gpu.uuid: gpu.energy_millijoules for gpu in gpu_node.gpus if gpu.uuid and gpu.energy_millijoules is not None
        }
        if not read:
            return 0
        ours = job_pods(gpu_node, seen.job_pods, seen.owners, frozenset() if known is None else known.ours)
        holders = other_holders(gpu_node, seen.owners, ours)
        if known is None:
            # Nobody knows how old the agent's report is that is seen first.
            since = min(now, self._counted_until or now)
            spare = ABSENCE_SECONDS + SLACK_SECONDS
            known = self._counters[info.name] = _Counters(session, read, holders, ours, gpu_node, since, spare)
            first = self._first.pop(info.name, None)
            return 0 if first is None else _take_possible(_rise_since(first, known.mark(info.name)), info, known, now)
        rises = {uuid: _rise(known, session, uuid, value) for uuid, value in read.items()}
        total = _take_possible(sum(rises.values()), info, known, now)
        if total == sum(rises.values()):
            most_idle = _most_idle(info, known, gpu_node, session)
            for uuid, owner in known.holders.items():
                risen = rises.get(uuid, 0)
                self._add_other(owner, risen, idle=risen <= most_idle)
        counted = {**known.millijoules, **read}
        known.millijoules = read if session != known.session or len(counted) > MOST_COUNTERS else counted
        known.session, known.holders, known.ours, known.seen = session, holders, ours, gpu_node
        return total

    def _counts(self, job: Consumption) -> bool:
        """Whether all that a job has used that has not ended is counted."""
        mark = self._marks.get(job.uid)
        return job.ended_at is None and mark is not None and mark.counts(job)

    def _add_observed(self, use: Use, comparison: Comparison | None) -> None:
        job = self._jobs.get(use.job.uid)
        if job is not None and (found := observed_use(use, comparison)) is not None:
            observed = found if job.observed is None else job.observed + found
            self._jobs[use.job.uid] = msgspec.structs.replace(job, observed=observed)

    def _add_job(self, use: Use) -> None:
        job, millijoules, gpu_seconds = use.job, use.millijoules, use.gpu_seconds
        if not millijoules and not gpu_seconds:
            return
        self._of_jobs += millijoules
        before = self._jobs.get(job.uid) or ReportedJob(job.namespace, job.name, job.uid)
        self._jobs[job.uid] = msgspec.structs.replace(
            before, millijoules=before.millijoules + millijoules, gpu_seconds=before.gpu_seconds + gpu_seconds
        )
        space = self._namespaces.get(job.namespace) or NamespaceEnergy(job.namespace)
        self._namespaces[job.namespace] = msgspec.structs.replace(
            space,
            jobs_millijoules=space.jobs_millijoules + millijoules,
            gpu_seconds=space.gpu_seconds + gpu_seconds,
        )

    def _add_other(self, owner: Owner, millijoules: int, *, idle: bool) -> None:
        if (owner[0] not in self._namespaces and len(self._namespaces) >= MAX_KNOWN) or not millijoules:
            return  # nobody has so many namespaces: an agent makes them up
        self._of_pods += millijoules
        if owner in self._owners or len(self._owners) < MAX_KNOWN:
            self._owners[owner] += millijoules
            self._owners_idle[owner] += millijoules if idle else 0
        space = self._namespaces.get(owner[0]) or NamespaceEnergy(owner[0])
        self._namespaces[owner[0]] = msgspec.structs.replace(
            space, pods_millijoules=space.pods_millijoules + millijoules
        )


def _take_possible(risen: int, info: NodeInfo, counters: _Counters, now: datetime) -> int:
    """A rise, as far as the node's GPUs can have used it by now, with all that was counted before: no counter that jumps,
    at whatever many reports, fills the books."""
    most_milliwatts = info.max_limits_milliwatts * MOST_OVER_LIMITS
    seconds = counters.spare_seconds + max(0.0, (now - counters.counted_at).total_seconds())
    counters.counted_at = now
    if not most_milliwatts:
        return risen
    counted = min(risen, int(most_milliwatts * seconds))
    counters.spare_seconds = min(seconds - counted / most_milliwatts, ABSENCE_SECONDS + SLACK_SECONDS)
    return counted


def _most_idle(info: NodeInfo, known: _Counters, gpu_node: GpuNode, session: str) -> float:
    """What a GPU of this node uses at the most between its last two reports where it computes nothing, in millijoules.

    Negative where nobody knows: what its GPUs draw idle, or how long that was by the node's own clock.
    """
    before, now = known.seen.status.last_round, gpu_node.status.last_round
    if info.gpu_model is None or before is None or now is None or session != known.session:
        return -1.0
    seconds = (now.boottime_nanoseconds - before.boottime_nanoseconds) / 1e9
    return IDLE_SHARE * info.gpu_model.idle_power_watts * seconds * 1e3 if seconds > 0 else -1.0


def _rise(known: _Counters, session: str, uuid: str, value: int) -> int:
    """What one GPU's counter rose by: one that fell back, or that is of another load of the driver, began at zero."""
    before = known.millijoules.get(uuid)
    if before is None:
        return value if session != known.session and known.millijoules else 0
    return value - before if session == known.session and value >= before else value


def _rise_since(first: CountedNode, now: CountedNode) -> int:
    """The same for a node's sum, by what an earlier operator has counted of it."""
    if first.session != now.session:
        return now.millijoules
    # Of other GPUs than were counted nobody knows where each of them stood.
    return max(0, now.millijoules - first.millijoules) if first.gpus == now.gpus else 0


def _bytes(value: object) -> int:
    """About how long something is as JSON."""
    return len(msgspec.json.encode(value))


def _within(most_bytes: int, items: Iterable[T]) -> tuple[T, ...]:
    """The first of the items, as many as fit."""
    found, left = [], most_bytes
    for item in items:
        left -= _bytes(item) + 1
        if left < 0:
            break
        found.append(item)
    return tuple(found)


def _day(instant: datetime) -> str:
    return instant.astimezone(UTC).date().isoformat()
