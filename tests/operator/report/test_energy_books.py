"""The books of the cluster's energy: their sum is that of the GPUs' counters, through a day of churn and crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec
import pytest
from flyball_api.energy.report import EnergyRates, EnergyReportSpec, read_energy_report
from flyball_api.gpu_node import RoundTime
from flyball_api.reading import MAX_INTEGER
from flyball_api.workloads import PodView, read_pod
from flyball_api.writing import to_json
from flyball_kube.errors import ApiError
from flyball_operator.cluster.outcome import DONE, UNKNOWN, Outcome, WriteResult
from flyball_operator.jobs.runs.consumption import Consumption
from flyball_operator.power.nodes.info import NodeInfo, read_nodes
from flyball_operator.report import energy_books
from flyball_operator.report.energy_books import EnergyBooks, Seen
from flyball_operator.report.energy_reports import EnergyReports, ReportWrite
from flyball_operator.report.gpu_holders import owner_of, readable_owner

from tests.support.crd_schema import assert_valid
from tests.support.operator_objects import Json, gpu_node_view, grant, node_view, raw_device, raw_pod

NOON = datetime(2030, 6, 1, 12, 0, 0, tzinfo=UTC)
RATES = EnergyRates(210_000, 380_000)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def info(
    name: str, counters: list[int | None], pods: dict[int, tuple[str, str]] | None = None, **keywords: Any
) -> NodeInfo:
    """A node whose GPUs' counters stand so; `pods` hold GPUs by their index, those of `ours` are training jobs'."""
    ours: set[tuple[str, str]] = keywords.pop("ours", set())
    devices = []
    for index, counter in enumerate(counters):
        device = raw_device(index, pod=(pods or {}).get(index))
        device["uuid"] = f"GPU-{name}-{keywords.get('gpus_are', '')}{index}"
        device.pop("energyMillijoules", None)
        devices.append(device | ({} if counter is None else {"energyMillijoules": counter}))
    reports = [
        {"namespace": space, "name": "job", "uid": "u", "incarnation": 1, "podName": pod, "energyMillijoules": 0}
        for space, pod in ours
    ]
    session = keywords.get("session", ("boot", "driver"))
    view = gpu_node_view(name, grant(800_000), devices=devices, session=session, reports=reports)
    at_seconds = keywords.get("at_seconds")
    if at_seconds is not None:
        view = replace(
            view, status=msgspec.structs.replace(view.status, last_round=RoundTime(at_seconds * 1_000_000_000, "1"))
        )
    return read_nodes([node_view(name, len(counters))], {name: view}, [], frozenset())[name]


def used(name: str, millijoules: int, *, namespace: str = "team", **keywords: Any) -> Consumption:
    return Consumption(namespace, name, f"uid-{name}", keywords.pop("created", NOON), millijoules, **keywords)


def seen(*nodes: NodeInfo, jobs: Iterable[Consumption] = (), **keywords: Any) -> Seen:
    caps = keywords.get("caps", {"hall": [node.name for node in nodes]})
    return Seen(
        {node.name: node for node in nodes},
        caps,
        list(jobs),
        keywords.get("owners", {}),
        keywords.get("job_pods", set()),
    )


def begun(*first: Seen) -> EnergyBooks:
    books = EnergyBooks(None, RATES, NOON)
    for index, item in enumerate(first):
        books.observe(item, after(60 * index))
    return books


def test_a_book_in_which_nothing_was_counted_is_of_the_moment_at_which_it_was_begun() -> None:
    spec = EnergyBooks(None, RATES, after(0.5)).spec()
    assert (spec.counted_since, spec.charged_until) == (NOON, NOON)


def test_counters_count_from_where_they_stand() -> None:
    spec = begun(seen(info("a", [5_000_000, 7_000_000])), seen(info("a", [5_000_400, 7_000_600]))).spec()
    assert (spec.gpus_millijoules, spec.idle_millijoules) == (1000, 1000)
    assert [(cap.name, cap.millijoules) for cap in spec.caps] == [("hall", 1000)]
    assert spec.rates == RATES


def test_what_is_not_a_jobs_is_its_holders_or_idle() -> None:
    pods = {0: ("web", "serve-7c9f-x"), 1: ("team", "train-1-0")}
    owners = {("web", "serve-7c9f-x"): ("web", "Deployment/serve")}
    ours = {("team", "train-1-0")}
    books = begun(
        seen(info("a", [0, 0, 0], pods, ours=ours), owners=owners),
        seen(info("a", [3000, 5000, 100], pods, ours=ours), owners=owners, jobs=[used("train", 5000)]),
    )
    spec = books.spec()
    assert (spec.gpus_millijoules, spec.jobs_millijoules, spec.pods_millijoules, spec.idle_millijoules) == (
        8100, 5000, 3000, 100,
    )  # fmt: skip
    assert [(item.namespace, item.owner, item.millijoules) for item in spec.owners] == [
        ("web", "Deployment/serve", 3000)
    ]
    spaces = {item.name: (item.jobs_millijoules, item.pods_millijoules) for item in spec.namespaces}
    assert spaces == {"team": (5000, 0), "web": (0, 3000)}


def test_what_pods_draw_of_gpus_that_they_hold_without_computing_is_told_apart() -> None:
    pods = {0: ("web", "serve"), 1: ("web", "batch")}

    def at(seconds: int | None, *watt_seconds: int, session: tuple[str, str] = ("boot", "driver")) -> Seen:
        counters: list[int | None] = [1000 * each for each in watt_seconds]
        node = info("a", counters, pods, at_seconds=seconds, session=session)
        assert node.gpu_model is not None
        assert 40 < node.gpu_model.idle_power_watts < 60
        return seen(node)

    books = begun(at(100, 0, 0), at(160, 60 * 45, 60 * 300))

    def told(books: EnergyBooks) -> dict[str, tuple[int, int]]:
        return {item.owner: (item.millijoules // 1000, item.idle_millijoules // 1000) for item in books.spec().owners}

    assert told(books) == {"Pod/serve": (2700, 2700), "Pod/batch": (18_000, 0)}
    books.observe(at(220, 2700 + 60 * 80, 18_000 + 60 * 45), after(120))
    assert told(books) == {"Pod/serve": (7500, 2700), "Pod/batch": (20_700, 2700)}, "each interval by itself"
    books.observe(at(None, 7500 + 60, 20_700 + 60), after(180))
    assert told(books)["Pod/serve"] == (7560, 2700), "in how long it drew that nobody knows"
    again = EnergyBooks(books.spec(), RATES, after(200))
    assert told(again) == told(books), "the next operator goes on with them"


def test_a_jobs_pod_that_is_ending_is_nobody_elses() -> None:
    """Its grant is gone, and its agent reports it no more; soon its object is gone too, and it still holds its GPU."""
    ending, stranger = ("team", "train-1-0"), ("web", "serve")
    pods = {0: ending, 1: stranger}
    unlisted = seen(info("a", [0, 0], pods), job_pods={ending})
    books = begun(unlisted, seen(info("a", [3000, 500], pods), job_pods={ending}), seen(info("a", [3900, 700], pods)))
    books.observe(seen(info("a", [4000, 900], pods)), after(180))
    spec = books.spec()
    assert [(item.owner, item.millijoules) for item in spec.owners] == [("Pod/serve", 900)]
    assert (spec.pods_millijoules, spec.gpus_millijoules) == (900, 4900)

    books = begun(seen(info("a", [0, 0], pods, ours={ending})), seen(info("a", [1000, 0], pods)))
    books.observe(seen(info("a", [2000, 0], pods)), after(120))
    assert books.spec().owners == (), "its agent named it once"


def test_a_pod_that_takes_the_name_of_a_jobs_pod_is_charged() -> None:
    """Whoever may make pods chooses their names: one of a job's that has ended must not make the next one free."""
    name = ("team", "train-1-0")
    books = begun(seen(info("a", [0], {0: name}), job_pods={name}), seen(info("a", [1000], {0: name}), job_pods={name}))
    stranger = {name: ("team", "Deployment/miner")}
    books.observe(seen(info("a", [1500], {0: name}), owners=stranger), after(120))
    books.observe(seen(info("a", [4500], {0: name}), owners=stranger), after(180))
    assert [(item.owner, item.millijoules) for item in books.spec().owners] == [("Deployment/miner", 3000)]


def test_the_next_operator_goes_on_and_counts_what_was_used_meanwhile() -> None:
    spec = begun(seen(info("a", [0])), seen(info("a", [1000]), jobs=[used("train", 800)])).spec()
    successor = EnergyBooks(spec, RATES, after(120))
    successor.observe(seen(info("a", [9000]), jobs=[used("train", 8000)]), after(180))
    found = successor.spec()
    assert (found.gpus_millijoules, found.jobs_millijoules) == (9000, 8000)
    assert [(job.name, job.millijoules) for job in found.jobs] == [("train", 8000)]


@pytest.mark.parametrize(
    ("then", "risen"),
    [
        ({"counters": [300, 200]}, 500),  # fell back: began at zero
        ({"counters": [1500, 2500], "session": ("boot", "another")}, 4000),
        ({"counters": [1500, None]}, 500),
        ({"counters": [10**15, 2000]}, None),  # more than its GPUs can have used
    ],
    ids=["fell back", "another driver load", "one unreadable", "jumped"],
)
def test_counters_that_do_not_simply_rise(then: dict[str, Any], risen: int | None) -> None:
    counters, first = then.pop("counters"), seen(info("a", [1000, 2000]))
    spec = begun(first, seen(info("a", counters, **then))).spec()
    if risen is None:
        assert 0 < spec.gpus_millijoules < 10**10
    else:
        assert spec.gpus_millijoules == risen


def test_a_counter_that_jumps_again_and_again_counts_as_far_as_its_gpus_can_have_used_it() -> None:
    """Every report has its slack, but not each of them again."""
    books, seconds = begun(seen(info("a", [0]))), 1200
    for second in range(2, seconds + 1, 2):
        node = info("a", [second * 10**9])
        books.observe(seen(node), after(second))
    most_watts = node.max_limits_milliwatts / 1000 * 1.2
    assert books.spec().gpus_millijoules <= most_watts * 1000 * (seconds + 3600 + 60)


def test_what_could_have_been_used_long_ago_is_no_allowance_for_now() -> None:
    books = begun(seen(info("a", [0])), seen(info("a", [1])))
    books.observe(seen(info("a", [2])), after(30 * 24 * 3600))
    jump = info("a", [10**15])
    books.observe(seen(jump), after(30 * 24 * 3600 + 10))
    assert books.spec().gpus_millijoules <= jump.max_limits_milliwatts * 1.2 * (3600 + 60 + 10) + 2


def test_other_gpus_than_were_counted_last_begin_anew() -> None:
    """While nobody led a GPU came back, with all that its counter has risen by since its driver was loaded."""
    successor = EnergyBooks(begun(seen(info("a", [1000, None]))).spec(), RATES, after(60))
    successor.observe(seen(info("a", [1500, 10**6])), after(60))
    assert successor.spec().gpus_millijoules == 0
    successor.observe(seen(info("a", [1600, 10**6 + 50])), after(120))
    assert successor.spec().gpus_millijoules == 150


def test_a_driver_load_while_nobody_led_counts_from_zero() -> None:
    successor = EnergyBooks(begun(seen(info("a", [1000, 1000]))).spec(), RATES, after(60))
    successor.observe(seen(info("a", [1500, 200], session=("boot", "another"))), after(60))
    assert successor.spec().gpus_millijoules == 1700


def test_a_counter_that_could_not_be_read_for_a_while_loses_nothing() -> None:
    views = [seen(info("a", counters)) for counters in ([1000, 1000], [1100, None], [1200, 1500])]
    assert begun(*views).spec().gpus_millijoules == 700


def test_too_many_jobs_are_the_thirstiest_and_in_the_sums_all() -> None:
    jobs = [used(f"job-{index}", 1000 + index) for index in range(1500)]
    spec = begun(seen(info("a", [0])), seen(info("a", [10**7]), jobs=jobs)).spec()
    assert len(spec.jobs) == 1024
    assert spec.jobs[0].name == "job-1499"
    assert spec.jobs_millijoules == sum(job.millijoules for job in jobs) == spec.namespaces[0].jobs_millijoules


def test_the_days_co2_is_of_the_hours_in_which_the_energy_was_used() -> None:
    def at(counter: int, grams: float | None) -> Seen:
        return replace(seen(info("a", [counter])), emitted_grams_per_kilowatt_hour=grams)

    books = begun(at(0, 100.0), at(3_000_000, 100.0), at(4_000_000, 500.0))
    assert books.spec().rates == EnergyRates(210_000, 200_000)  # three parts at 100 g, one at 500 g
    gone_on = EnergyBooks(books.spec(), RATES, after(180))
    for index, grams in enumerate((None, 500.0)):
        gone_on.observe(at(4_000_000 + index * 4_000_000, grams), after(180 + 60 * index))
    assert gone_on.spec().rates == EnergyRates(210_000, 350_000)
    gone_on.observe(at(16_000_000, None), after(420))  # the signal has ended: by what the operator was told
    assert gone_on.spec().rates == EnergyRates(210_000, 365_000)
    gone_on.turn(after(86_400))
    assert gone_on.spec().rates == RATES


def test_whose_a_pod_is() -> None:
    """Of a Deployment's pod the Deployment, whose ReplicaSet has a hash in its name that no report should be full of."""

    def owned(kind: str, name: str, **labels: str) -> PodView:
        raw = raw_pod("pod")
        raw["metadata"]["labels"] = {"pod-template-hash": "7c9f", **labels}
        raw["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True, "apiVersion": "apps/v1"}]
        return read_pod(raw)

    assert owner_of(owned("ReplicaSet", "serve-7c9f")) == ("team", "Deployment/serve")
    assert owner_of(owned("ReplicaSet", "bare")) == ("team", "ReplicaSet/bare")
    assert owner_of(owned("Job", "batch")) == ("team", "Job/batch")
    assert owner_of(owned("Job", "set-w-0", **{"jobset.sigs.k8s.io/jobset-name": "set"})) == ("team", "JobSet/set")
    of_trainer = {"jobset.sigs.k8s.io/jobset-name": "set", "trainer.kubeflow.org/trainjob-name": "set"}
    assert owner_of(owned("Job", "set-node-0", **of_trainer)) == ("team", "TrainJob/set")
    assert owner_of(owned("PyTorchJob", "net")) == ("team", "PyTorchJob/net")
    made_by = {"ray.io/originated-from-crd": "RayJob", "ray.io/originated-from-cr-name": "tune"}
    assert owner_of(owned("RayCluster", "tune-x7", **made_by)) == ("team", "RayJob/tune")
    assert owner_of(owned("RayCluster", "bare")) == ("team", "RayCluster/bare")
    assert owner_of(owned("StatefulSet", "db", **made_by)) == ("team", "StatefulSet/db")
    assert owner_of(read_pod({"metadata": {"name": "alone", "namespace": "team"}})) == ("team", "Pod/alone")


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Deployment", "x" * 253), ("X" * 100_000, "y"), ("=cmd|' /C calc'!A1\n\x1b[31m", "z\u202e"), ("K", "ü" * 4000)],
    ids=["as long as names are", "endless", "hostile", "long in bytes"],
)
def test_what_a_pod_says_of_its_owner_keeps_no_book_from_being_written(kind: str, name: str) -> None:
    """Anybody may write any owner into his pod; the API server bounds neither its kind nor its name."""
    raw = raw_pod("serve")
    raw["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True, "apiVersion": "x/v1"}]
    owners = {("team", "serve"): owner_of(read_pod(raw))}
    books = begun(
        seen(info("a", [0], {0: ("team", "serve")}), owners=owners),
        seen(info("a", [1000], {0: ("team", "serve")}), owners=owners),
    )
    spec = to_json(books.spec())
    assert_valid("EnergyReport", "spec", spec)
    (owner,) = spec["owners"]
    assert owner["owner"].isprintable()
    assert (
        owner["owner"] != owner_of(read_pod(raw_pod("serve") | {"metadata": {"name": "serve", "namespace": "team"}}))[1]
    )


def test_pods_with_the_longest_of_names_are_told_apart() -> None:
    pods = {0: ("team", "a" * 252 + "1"), 1: ("team", "a" * 252 + "2")}
    spec = begun(seen(info("a", [0, 0], pods)), seen(info("a", [1000, 2000], pods))).spec()
    assert_valid("EnergyReport", "spec", to_json(spec))
    assert [item.millijoules for item in spec.owners] == [2000, 1000]


def test_an_agent_that_makes_namespaces_up_fills_no_memory() -> None:
    books = begun(seen(info("a", [0])))
    for index in range(energy_books.MAX_KNOWN + 10):
        books._add_other((f"made-up-{index}", "Pod/x"), 1, idle=False)
    spec = books.spec()
    assert len(books._namespaces) == len(books._owners) == energy_books.MAX_KNOWN
    assert len(spec.namespaces) == 1024


def test_an_agent_that_makes_gpus_up_fills_no_memory() -> None:
    books = begun()
    for index in range(100):
        books.observe(seen(info("a", [index, index], gpus_are=f"{index}-")), after(index))
    assert len(books._counters["a"].millijoules) <= energy_books.MOST_COUNTERS


def test_counters_that_lie_make_no_book_that_the_api_server_refuses() -> None:
    """Nobody's energy would be written down any more."""
    books = begun(
        seen(info("a", [MAX_INTEGER] * 3), info("b", [0])), seen(info("a", [MAX_INTEGER] * 3), info("b", [70]))
    )
    spec = books.spec()
    assert spec.marks is not None
    assert [node.millijoules for node in spec.marks.nodes] == [MAX_INTEGER, 70]
    successor = EnergyBooks(spec, RATES, after(120))
    successor.observe(seen(info("a", [MAX_INTEGER] * 3), info("b", [100])), after(120))
    assert successor.spec().gpus_millijoules == 100


@pytest.mark.slow
def test_the_largest_book_fits_into_etcd_and_counts_nothing_twice() -> None:
    """Eight thousand nodes, sixteen thousand jobs that run, names as long as they may be."""
    long = "n" * 58
    jobs = [used(f"{long}-{index}", 10**9 + index, namespace=f"{long}{index % 2000:05d}") for index in range(16_384)]
    node = info("a", [0])
    nodes = {f"{long}-{index}": msgspec.structs.replace(node, name=f"{long}-{index}") for index in range(8192)}
    books = EnergyBooks(None, RATES, NOON)
    books.observe(Seen(nodes, {"hall": nodes}, [], {}), NOON)
    books.observe(Seen(nodes, {"hall": nodes}, jobs, {}), after(60))
    for index in range(600):
        books._add_other((long, readable_owner(f"Deployment/{index}" + "ü" * 300)), 10**9, idle=True)
    spec = books.spec()
    assert_valid("EnergyReport", "spec", to_json(spec))
    assert spec.marks is not None
    assert 1_300_000 < len(msgspec.json.encode(spec)) < 1_450_000
    assert 1000 < len(spec.marks.jobs) < len(jobs)

    successor = EnergyBooks(spec, RATES, after(120))
    successor.observe(Seen(nodes, {"hall": nodes}, jobs, {}), after(120))
    assert successor.spec().jobs_millijoules == spec.jobs_millijoules
    more = [used(job.name, job.millijoules + 5, namespace=job.namespace) for job in jobs]
    successor.observe(Seen(nodes, {"hall": nodes}, more, {}), after(180))
    assert successor.spec().jobs_millijoules == spec.jobs_millijoules + 5 * len(jobs)


# --- a day -----------------------------------------------------------------------------------------------------------


@dataclass
class Api:
    """An API server with EnergyReports; a session's part that reads them."""

    stored: dict[str, Json] = field(default_factory=dict)
    version: int = 0

    async def get(self, path: str) -> Json:
        name = path.rpartition("/")[2]
        if name not in self.stored:
            raise ApiError(404, "NotFound", name, path)
        return self.stored[name]

    def write(self, write: ReportWrite) -> tuple[WriteResult, Json]:
        if write.body is None:
            self.stored.pop(write.day, None)
            return DONE, {}
        standing = self.stored.get(write.day)
        if write.resource_version != ("" if standing is None else standing["metadata"]["resourceVersion"]):
            return WriteResult(Outcome.REFUSED, conflict=True), {}
        self.version += 1
        metadata = write.body["metadata"] | {"resourceVersion": str(self.version)}
        self.stored[write.day] = write.body | {"metadata": metadata}
        return DONE, self.stored[write.day]

    def specs(self) -> list[EnergyReportSpec]:
        return [read_energy_report(self.stored[day]).spec for day in sorted(self.stored)]


@dataclass
class TrueJob:
    """A job as it truly is: where it runs, and what it has used."""

    namespace: str
    name: str
    node: str
    gpus: range
    created: datetime
    ends: float
    millijoules: int = 0
    reported: int = 0
    gone: bool = False
    forgotten: bool = False  # it was gone when an operator began


class Day:
    """Nodes with counters, jobs that come, run, end and are deleted, a pod of somebody else's; agents that report."""

    def __init__(self, random: Random, nodes: int = 3) -> None:
        self.random = random
        self.counters = {f"n{index}": [random.randrange(10**9) for _ in range(8)] for index in range(nodes)}
        self.drawn: Counter[str] = Counter()  # by node, from the beginning
        self.jobs: list[TrueJob] = []
        self.infos: dict[str, NodeInfo] = {}
        self.others = 0  # what the foreign pod on n0's first GPU has used

    def run(self, seconds: float, at: float, *, led: bool = True) -> None:
        """So many seconds of draw, and of what users do while an operator leads."""
        for name, counters in self.counters.items():
            for index in range(8):
                job = next((job for job in self.jobs if job.node == name and index in job.gpus and at < job.ends), None)
                foreign = name == "n0" and index == 0
                risen = int((300.0 if job or foreign else 55.0) * 1000 * seconds * self.random.uniform(0.9, 1.0))
                counters[index] += risen
                self.drawn[name] += risen
                self.others += risen if foreign else 0
                if job is not None:
                    job.millijoules += risen
        if led and self.random.random() < 0.1:
            self._submit(at)
        standing = [job for job in self.jobs if not job.gone]
        if led and standing and self.random.random() < 0.05:
            deleted = self.random.choice(standing)
            deleted.gone, deleted.ends = True, min(deleted.ends, at + 30)  # its pods have their grace

    def restart(self) -> None:
        """Another operator begins: of jobs that are gone it knows nothing."""
        for job in self.jobs:
            job.forgotten = job.gone

    def _submit(self, at: float) -> None:
        node, first = self.random.choice(list(self.counters)), self.random.choice([2, 4, 6])
        if any(job.node == node and first in job.gpus and at < job.ends for job in self.jobs):
            return
        namespace, ends = self.random.choice(["red", "blue"]), at + self.random.uniform(100, 5000)
        name = f"job-{len(self.jobs)}"
        self.jobs.append(TrueJob(namespace, name, node, range(first, first + 2), after(at), ends))

    def report(self, name: str) -> None:
        """One agent's report."""
        pods = {
            index: (job.namespace, f"{job.name}-1-0") for job in self.jobs if job.node == name for index in job.gpus
        }
        if name == "n0":
            pods[0] = ("web", "server")
        ours = {pod for pod in pods.values() if pod[0] != "web"}
        self.infos[name] = info(name, list(self.counters[name]), pods, ours=ours)
        for job in self.jobs:
            if job.node == name:
                job.reported = job.millijoules

    def seen(self, at: float) -> Seen:
        jobs = [
            Consumption(
                job.namespace,
                job.name,
                f"uid-{job.name}",
                job.created,
                job.reported,
                ended_at=after(job.ends) if job.ends <= at else None,
            )
            for job in self.jobs
            if not job.forgotten
        ]
        return Seen(self.infos, {"hall": self.counters, "row": ["n1"]}, jobs, {})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_a_day_of_churn_and_crashes_adds_up_to_the_counters(seed: int) -> None:
    random, api = Random(seed), Api()
    day, step = Day(random), 30.0
    for name in day.counters:
        day.report(name)
    session: Any = api
    reports = EnergyReports(session, RATES, 60.0, 400)
    crashes = lost_answers = 0
    at = 0.0
    while at < 86_400 + 60:
        if reports.unread:
            await reports.load(after(at), at)
        reports.observe(lambda at=at: day.seen(at), after(at))  # type: ignore[misc]
        write = reports.due(after(at), at)
        if write is not None:
            result, stored = api.write(write)
            if random.random() < 0.02:
                result, stored, lost_answers = UNKNOWN, {}, lost_answers + 1
            reports.answered(write, result, stored, after(at), at)
        if random.random() < 0.01 and at < 86_000:
            crashes += 1
            reports = EnergyReports(session, RATES, 60.0, 400)
            away = random.choice([0.0, 30.0, 600.0])
            day.restart()
            for _ in range(int(away / step)):
                day.run(step, at, led=False)
                at += step
        day.run(step, at)
        at += step
        for name in day.counters:
            if random.random() < 0.9:
                day.report(name)
    for name in day.counters:
        day.report(name)
    while reports.unread:
        await reports.load(after(at), at)
    reports.observe(lambda: day.seen(at), after(at))
    while (write := reports.due(after(at), at + 60)) is not None:
        result, stored = api.write(write)
        reports.answered(write, result, stored, after(at), at + 60)

    specs = api.specs()
    for stored in api.stored.values():
        assert_valid("EnergyReport", "spec", stored["spec"])
    assert crashes > 10
    assert lost_answers > 5
    assert [spec.day for spec in specs] == ["2030-06-01", "2030-06-02"]
    assert [spec.marks is None for spec in specs] == [True, False]
    counted = sum(spec.gpus_millijoules for spec in specs)
    assert counted == pytest.approx(day.drawn.total(), rel=1e-3)
    jobs, truth = Counter[str](), Counter[str]()
    for spec in specs:
        assert sum(job.millijoules for job in spec.jobs) == spec.jobs_millijoules
        assert sum(space.jobs_millijoules for space in spec.namespaces) == spec.jobs_millijoules
        assert spec.jobs_millijoules + spec.pods_millijoules + spec.idle_millijoules == spec.gpus_millijoules
        jobs.update({space.name: space.jobs_millijoules for space in spec.namespaces if space.jobs_millijoules})
    for job in day.jobs:
        truth[job.namespace] += job.millijoules
    for namespace, millijoules in truth.items():
        assert jobs[namespace] == pytest.approx(millijoules, rel=1e-3), namespace
    caps = Counter[str]()
    for spec in specs:
        caps.update({cap.name: cap.millijoules for cap in spec.caps})
    assert caps["hall"] == counted
    assert caps["row"] == pytest.approx(day.drawn["n1"], rel=1e-3)
    # What other pods used while nobody led, nobody knows.
    pods = sum(spec.pods_millijoules for spec in specs)
    assert 0.7 * day.others < pods <= day.others
    print(f"seed {seed}: {crashes} crashes, {len(day.jobs)} jobs, {abs(counted / day.drawn.total() - 1):.1e} off")


@pytest.mark.parametrize("lost", ["deleted", "without its marks"])
async def test_a_report_that_is_deleted_by_hand_counts_nothing_of_the_days_before_again(lost: str) -> None:
    """What it held is gone, and no more: a job that has run for days was counted on each of them."""
    api = Api()
    session: Any = api
    reports = EnergyReports(session, RATES, 60.0, 400)
    used_by_then = 0
    for hour in range(60):
        at = hour * 3600.0
        if hour == 40 and lost == "deleted":
            del api.stored["2030-06-03"]
        elif hour == 40:
            del api.stored["2030-06-03"]["spec"]["marks"]
            api.stored["2030-06-03"]["metadata"]["resourceVersion"] = "another"
        used_by_then = 10**9 * hour
        while True:
            if reports.load_due(at):
                await reports.load(after(at), at)
            reports.observe(
                lambda total=used_by_then: seen(info("a", [total]), jobs=[used("train", total)]),  # type: ignore[misc]
                after(at),
            )
            if (write := reports.due(after(at), at)) is None:
                break
            reports.answered(write, *api.write(write), after(at), at)
    specs = api.specs()
    assert [spec.day for spec in specs] == ["2030-06-01", "2030-06-02", "2030-06-03"]
    assert sum(spec.jobs_millijoules for spec in specs) <= sum(spec.gpus_millijoules for spec in specs) + 10**9
    assert 0.8 * used_by_then < sum(spec.jobs_millijoules for spec in specs) <= used_by_then


async def test_old_reports_go_at_the_turn_of_the_day() -> None:
    api = Api()
    for day in ("2030-04-22", "2030-04-23", "2030-05-01"):
        api.stored[day] = {}
    session: Any = api
    reports = EnergyReports(session, RATES, 60.0, 40)
    await reports.load(NOON, 0.0)
    for at in (0.0, 86_400.0):
        reports.observe(lambda: seen(info("a", [0])), after(at))
        while (write := reports.due(after(at), at)) is not None:
            reports.answered(write, *api.write(write), after(at), at)
    assert sorted(api.stored) == ["2030-05-01", "2030-06-01", "2030-06-02"]


async def test_a_clock_that_is_ahead_deletes_no_report_before_its_time() -> None:
    api = Api()
    for day in range(1, 29):
        api.stored[f"2031-02-{day:02d}"] = {}  # as old as a report may be, at the time to which the clock leaps
    kept = set(api.stored)
    session: Any = api
    reports = EnergyReports(session, RATES, 60.0, 40)
    await reports.load(NOON, 0.0)
    for at in (0.0, 86_400.0 * 311):
        reports.observe(lambda: seen(info("a", [0])), after(at))
        while (write := reports.due(after(at), at)) is not None:
            reports.answered(write, *api.write(write), after(at), at)
    assert kept < set(api.stored)


async def test_what_is_refused_is_asked_for_now_and_then() -> None:
    """An API server that takes no report, or shows none, is not stormed."""

    class Refusing(Api):
        async def get(self, path: str) -> Json:
            raise ApiError(403, "Forbidden", "may not", path)

    session: Any = Refusing()
    reports = EnergyReports(session, RATES, 60.0, 400)
    loads = 0
    for second in range(60):
        if reports.load_due(second):
            await reports.load(after(second), second)
            loads += 1
    assert reports.unread
    assert loads == 4

    session = Api()
    reports = EnergyReports(session, RATES, 60.0, 400)
    writes = 0
    for second in range(60):
        if reports.load_due(second):
            await reports.load(after(second), second)
        reports.observe(lambda: seen(info("a", [0])), after(second))
        write = reports.due(after(second), second)
        if write is not None:
            writes += 1
            reports.answered(write, WriteResult(Outcome.REFUSED, message="denied"), {}, after(second), second)
    assert writes <= 6
