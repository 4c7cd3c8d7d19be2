"""Batch Jobs that wait for watts: into what they are let run, in which order, and what those are told that wait on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from flyball_api.power_cap import PowerCap
from flyball_api.workloads import PlainJob, PodView, read_plain_job
from flyball_operator.cluster.outcome import UNKNOWN, Outcome, WriteResult
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs import plain_jobs
from flyball_operator.jobs.feasibility.pod_demands import CHECKED_AT_ONCE
from flyball_operator.jobs.plain_jobs import (
    BELIEVED_SECONDS,
    FEWEST_JUDGED,
    MAX_JUDGED,
    PODS_MADE_SECONDS,
    REPEATED_AFTER_SECONDS,
    PlainJobs,
    PlainJobVerdict,
)
from flyball_operator.power.caps.tracker import CapTracker
from flyball_operator.power.cycle import PowerState
from flyball_planner.snapshot import JobDecision
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.operator_objects import (
    DEFAULT,
    FLOOR,
    NOW,
    Json,
    cap_view,
    decision,
    owner,
    ready_node,
    running_pod,
)

RESOURCES = ("nvidia.com/gpu",)


def raw_job(name: str = "batch", gpus: int = 4, pods: int = 1, **spec: Any) -> Json:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
    template = {"spec": {"containers": [{"name": "main", "image": "main", "resources": resources}]}}
    return {
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": "9",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"flyball.dev/admission": "by-power"},
        },
        "spec": {"suspend": True, "parallelism": pods, "template": template, **spec},
    }


def job(name: str = "batch", *, watts: int = 0, created: str = "", **keywords: Any) -> PlainJob:
    view = read_plain_job(raw_job(name, **keywords), RESOURCES)
    return replace(view, watts_per_gpu=watts, created=created or view.created)


def state(
    jobs: Sequence[PlainJob],
    *,
    watts: int = 100_000,
    nodes: int = 1,
    pods: Sequence[PodView] = (),
    caps: Sequence[PowerCap] | None = None,
    **cap: Any,
) -> PowerState:
    """Nodes of eight GPUs under one cap."""
    infos = {f"n{index}": ready_node(f"n{index}", pods=tuple(pods)) for index in range(nodes)}
    infos = {
        name: replace(info, foreign_pods=tuple(pod for pod in info.foreign_pods if _on(pod.name, name, pods)))
        for name, info in infos.items()
    }
    listed = [cap_view("row", watts=watts, **cap)] if caps is None else list(caps)
    views = [info.node for info in infos.values() if info.node is not None]
    cluster = ClusterState({}, listed, {}, views, list(pods), {}, {}, {}, (), 0.0, plain_jobs=list(jobs))
    read = CapTracker().step(listed, infos, NOW + timedelta(seconds=1), 1.0, wanted_gpus=cluster.wanted_gpus)
    return PowerState(cluster, infos, read)


def _on(pod: str, node: str, pods: Sequence[PodView]) -> bool:
    return any((each.name, each.node) == (pod, node) for each in pods)


def verdicts(given_state: PowerState, decisions: Mapping[str, JobDecision] | None = None) -> dict[str, PlainJobVerdict]:
    return {found.job.name: found for found in PlainJobs().step(given_state, decisions or {}, 0.0)}


def test_how_many_wait_for_what_is_counted_also_where_nothing_is_told_again() -> None:
    plain = PlainJobs()
    waiting = state([job("large", gpus=16), job("wide", gpus=8, pods=2), job("second", gpus=8, pods=2)])
    for told in (3, 0):
        assert len(plain.step(waiting, {}, 0.0)) == told
        assert sum(plain.waiting.values()) == 3
    assert plain.waiting["NoNodeFits"] == 3
    plain.step(state([job("small")]), {}, 1.0)
    assert dict(plain.waiting) == {}
    plain.step(waiting, {}, 2.0)
    plain.step(state([]), {}, 3.0)
    assert dict(plain.waiting) == {}


def only(given_state: PowerState, **keywords: Any) -> PlainJobVerdict:
    (found,) = verdicts(given_state, **keywords).values()
    return found


def test_a_job_runs_where_there_are_gpus_and_watts_for_it() -> None:
    found = only(state([job()]))
    assert found.admitted
    assert found.message == "1 pod with 4 GPUs may run; each of its GPUs may draw 400 W now"


@pytest.mark.parametrize(("gpus", "admitted"), [(4, True), (5, False)])
def test_gpus_that_others_hold_are_not_its_own(gpus: int, admitted: bool) -> None:
    found = only(state([job(gpus=gpus)], pods=[running_pod("theirs", "n0", gpus=4)]))
    assert found.admitted == admitted
    if not admitted:
        words = "it needs 1 pod with 5 GPUs; on nodes that fit 4 GPUs are free and planned for nobody"
        assert (found.reason, found.message) == ("WaitingForGpus", words)


def test_nor_those_that_the_plan_gives_to_a_training_job() -> None:
    planned = {"uid-train": decision("uid-train", ("n0", 6))}
    assert only(state([job()]), decisions=planned).reason == "WaitingForGpus"
    assert only(state([job(gpus=2)]), decisions=planned).admitted
    # What a job holds and what it is planned on are not two things.
    pods = [running_pod("train-0", "n0", uid="uid-train", gpus=6)]
    assert only(state([job(gpus=2)], pods=pods), decisions=planned).admitted


def test_a_pod_needs_one_node_and_the_pods_of_a_job_may_have_several() -> None:
    pods = [running_pod("a", "n0", gpus=5), running_pod("b", "n1", gpus=5)]
    assert only(state([job(gpus=4)], nodes=2, pods=pods)).reason == "WaitingForGpus"
    assert only(state([job(gpus=3, pods=2)], nodes=2, pods=pods)).admitted
    assert only(state([job(gpus=3, pods=3)], nodes=2, pods=pods)).reason == "WaitingForGpus"


def test_what_no_node_can_ever_take_is_said_to_be_so() -> None:
    found = only(state([job(gpus=16)]))
    words = "0 of 1 nodes fit its 1 pod with 16 GPUs: 1 with 8 GPUs"
    assert (found.reason, found.message) == ("NoNodeFits", words)
    raw = raw_job()
    raw["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "big"}
    found = only(state([read_plain_job(raw, RESOURCES)]))
    assert found.message == "0 of 1 nodes fit its 1 pod with 4 GPUs: 1 with no label pool=big"
    found = only(state([job(gpus=8, pods=3)], nodes=2))
    words = "2 of 2 nodes fit its 3 pods with 8 GPUs each; they hold 2 of them at the most"
    assert (found.reason, found.message) == ("NoNodeFits", words)
    found = only(state([job(watts=DEFAULT // 1000 + 1)]))
    words = "it asks for 401 W for each GPU; those of the nodes that fit get 400 W at the most"
    assert (found.reason, found.message) == ("NoNodeFits", words)
    assert only(state([job(watts=DEFAULT // 1000)])).admitted


def test_it_waits_until_each_gpu_would_get_the_watts_that_it_asks_for() -> None:
    # Eight GPUs: four of the Job's share what the other four leave at their smallest limits.
    words = "each of its GPUs would get 200 W, and it asks for 300 W"
    found = only(state([job(watts=300)], watts=1200))
    assert (found.reason, found.message) == ("WaitingForWatts", words)
    assert only(state([job(watts=300)], watts=1600)).admitted
    assert only(state([job(watts=200)], watts=1200)).admitted


def test_a_job_that_waits_weighs_what_its_pods_will_by_their_labels() -> None:
    raw = raw_job()
    raw["spec"]["template"]["metadata"] = {"labels": {"tier": "batch"}}
    labelled, other = (replace(read_plain_job(each, RESOURCES), watts_per_gpu=150) for each in (raw, raw_job()))
    half = {"selector": {"matchLabels": {"tier": "batch"}}, "permille": 500}
    given: dict[str, Any] = {"foreignWeights": [{"namespace": "team", "permille": 1000, "pods": [half]}], "watts": 1600}
    held = [running_pod("theirs", "n0", gpus=4)]
    # Four that weigh 1 and four that weigh 1 or a half.
    assert only(state([other], pods=held, **given)).admitted
    assert "would get 133 W" in only(state([labelled], pods=held, **given)).message


def test_it_waits_for_watts_that_are_held_back_for_nodes_that_jump() -> None:
    """Of two nodes the one without the Job's pods is the farther from its largest limits, by 2,400 W."""
    fits = (4 * DEFAULT + 4 * FLOOR + 8 * FLOOR) // 1000 + 2400
    reserve: dict[str, Any] = {"foreignPods": "Reserve", "reserveNodes": 1}
    assert only(state([job()], watts=fits, nodes=2, **reserve)).admitted
    words = "100 W are missing with all else at its smallest limits"
    assert words in only(state([job()], watts=fits - 100, nodes=2, **reserve)).message


def test_under_a_cap_that_reserves_it_waits_for_its_default_watts() -> None:
    held = [running_pod("theirs", "n0", gpus=4)]
    fits = (4 * DEFAULT + 4 * DEFAULT) // 1000
    assert only(state([job()], watts=fits, pods=held, foreignPods="Reserve")).admitted
    found = only(state([job()], watts=fits - 100, pods=held, foreignPods="Reserve"))
    words = "PowerCap row has no watts for 4 more GPUs at 400 W: 100 W are missing with all else at its smallest limits"
    assert (found.reason, found.message) == ("WaitingForWatts", words)


def test_the_oldest_comes_first_and_a_smaller_one_may_pass() -> None:
    old, large, small = (
        job("z-old", gpus=4, created="a"),
        job("large", gpus=6, created="b"),
        job("a", gpus=2, created="c"),
    )
    found = verdicts(state([small, large, old]))
    assert {name: each.admitted for name, each in found.items()} == {"z-old": True, "large": False, "a": True}


def test_what_was_let_run_has_its_gpus_before_its_pods_come() -> None:
    runs = job("runs", gpus=6, suspend=False)
    assert only(state([runs, job(gpus=4)])).reason == "WaitingForGpus"
    theirs = replace(running_pod("runs-0", "n0", gpus=6), controller_uid="uid-runs")
    assert only(state([runs, job(gpus=2)], pods=[theirs])).admitted
    # A claim costs nothing, and whose a pod is anybody may write into it.
    made_up = replace(theirs, gpus=0, on_parts=True)
    assert only(state([runs, job(gpus=4)], pods=[made_up])).reason == "WaitingForGpus"
    # The API server may say for a while that it waits still.
    waiting, seen = PlainJobs(), state([job("first", gpus=6), job("second", gpus=6)])
    assert [each.job.name for each in waiting.step(seen, {}, 0.0) if each.admitted] == ["first"]
    assert not any(each.admitted for each in waiting.step(seen, {}, 1.0))
    assert [each.job.name for each in waiting.step(seen, {}, BELIEVED_SECONDS + 1)][:1] == ["first"]


@pytest.mark.parametrize("made", [0, 1, 2])
def test_pods_that_nobody_makes_keep_no_gpus_from_others_for_ever(made: int) -> None:
    """A quota may refuse them: whoever has none would have nobody's Jobs run any more, by one of his own."""
    runs, waits = job("runs", gpus=3, pods=2, suspend=False), job("waits", gpus=4, created="z")
    pods = [replace(running_pod(f"runs-{each}", "", gpus=3), controller_uid="uid-runs") for each in range(made)]
    plain = PlainJobs()

    def admitted(monotonic: float) -> list[str]:
        return [each.job.name for each in plain.step(state([runs, waits], pods=pods), {}, monotonic) if each.admitted]

    assert admitted(7.0) == admitted(6.0 + PODS_MADE_SECONDS) == []
    assert admitted(7.0 + PODS_MADE_SECONDS) == (["waits"] if made < 2 else [])


def test_one_that_somebody_else_has_just_written_is_let_run_in_the_next_cycle() -> None:
    waiting, seen = PlainJobs(), state([job()])
    assert [each.admitted for each in waiting.step(seen, {}, 0.0)] == [True]
    assert waiting.answered(job(), WriteResult(Outcome.REFUSED, conflict=True), 0.0) is None
    assert [each.admitted for each in waiting.step(seen, {}, 0.5)] == [True]
    assert waiting.answered(job(), UNKNOWN, 0.5) is None
    assert waiting.step(seen, {}, 1.0) == [], "it may have been let run"


def test_one_that_may_not_be_let_run_is_told_so_and_tried_again_after_longer_each_time() -> None:
    waiting, seen, now = PlainJobs(), state([job(gpus=6), job("next", gpus=6, created="z")]), 0.0
    denied = WriteResult(Outcome.REFUSED, message="denied the request: no GPUs on Sundays")
    for pause in (10.0, 20.0, 40.0):
        assert [each.job.name for each in waiting.step(seen, {}, now) if each.admitted] == ["batch"]
        told = waiting.answered(job(gpus=6), denied, now)
        assert (told is not None) is (now == 0.0)
        if told is not None:
            assert (told.reason, told.message) == ("JobRefused", denied.message)
        fresh = PlainJobs()
        fresh._refused = dict(waiting._refused)
        assert [each.job.name for each in fresh.step(seen, {}, now + pause - 1) if each.admitted] == ["next"]
        assert fresh.waiting == {"JobRefused": 1}
        now += pause


def test_the_same_reason_is_not_told_in_each_cycle() -> None:
    waiting, seen = PlainJobs(), state([job(gpus=16)])
    assert len(waiting.step(seen, {}, 0.0)) == 1
    assert waiting.step(seen, {}, 1.0) == []
    assert len(waiting.step(seen, {}, REPEATED_AFTER_SECONDS + 1)) == 1


def test_nothing_is_let_run_under_a_cap_that_cannot_be_read() -> None:
    broken = cap_view("row", watts=None)
    assert broken.spec is None
    assert only(state([job()], caps=[broken])).reason == "CapsUnreadable"


def test_nothing_is_let_run_while_a_gpu_node_cannot_be_read() -> None:
    seen = state([job()])
    unread = dataclasses.replace(seen, cluster=dataclasses.replace(seen.cluster, unread=("n7",)))
    assert only(seen).reason == "Admitted"
    assert only(unread).reason == "CapsUnreadable"


def test_nothing_is_let_run_into_gpus_of_a_cordoned_node() -> None:
    seen = state([job()])
    (info,) = seen.nodes.values()
    assert info.node is not None
    cordoned = replace(info, node=replace(info.node, cordoned=True))
    assert only(dataclasses.replace(seen, nodes={info.name: cordoned})).reason == "WaitingForGpus"


@pytest.mark.parametrize(
    ("change", "left_to"),
    [
        ({}, ""),
        ({"labels": {"flyball.dev/admission": "by-hand"}}, "its owner"),
        ({"labels": {"flyball.dev/admission": "by-power", "kueue.x-k8s.io/queue-name": "q"}}, "Kueue"),
        ({"ownerReferences": [owner("jobset.x-k8s.io/v1alpha2", "JobSet", "u")]}, "JobSet/of-the-test"),
        ({"ownerReferences": [{**owner("v1", "ConfigMap", "u"), "controller": False}]}, "ConfigMap/of-the-test"),
    ],
)
def test_whose_word_lets_it_run(change: Json, left_to: str) -> None:
    raw = raw_job()
    raw["metadata"] |= change
    view = read_plain_job(raw, RESOURCES)
    assert (view.left_to, view.waits) == (left_to, not left_to)


def test_a_job_of_another_controller_is_left_to_it() -> None:
    view = read_plain_job(raw_job(managedBy="example.com/far-away"), RESOURCES)
    assert not view.waits
    assert not read_plain_job(raw_job(suspend=False), RESOURCES).waits


def test_watts_that_are_no_number_are_said_to_be_none() -> None:
    raw = raw_job()
    raw["metadata"]["annotations"] = {"flyball.dev/watts-per-gpu": "300W"}
    found = only(state([read_plain_job(raw, RESOURCES)]))
    words = "its annotation flyball.dev/watts-per-gpu is '300W'; it should be whole watts, 0 to 99999, such as 300"
    assert (found.reason, found.message) == ("InvalidRequest", words)


def test_one_that_is_larger_than_any_pods_template_is_refused_and_not_kept() -> None:
    raw = raw_job()
    raw["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A"}] * 10_000
    view = read_plain_job(raw, RESOURCES)
    assert not view.template
    found = only(state([view]))
    assert (found.reason, "more than 10,000 fields" in found.message) == ("InvalidRequest", True)


def test_jobs_that_wait_for_ever_keep_no_other_namespaces_waiting() -> None:
    flood = [replace(job(f"f{index}", gpus=16, created="a"), namespace="flood") for index in range(2 * MAX_JUDGED)]
    late = [replace(job(f"late-{name}", gpus=2, created="b"), namespace=name) for name in ("one", "two")]
    found = verdicts(state([*flood, *late]))
    assert len(found) == MAX_JUDGED
    assert [name for name, each in found.items() if each.admitted] == ["late-one", "late-two"]


def test_where_there_are_many_nodes_few_are_judged_at_once_and_each_has_its_turn() -> None:
    """Each is compared with each node, and a cut that comes meanwhile waits for that."""
    waits = [job(f"w{index:02d}", gpus=16, created=f"{index:02d}") for index in range(12)]
    seen = state([*waits, job("small", gpus=2, created="99")], nodes=2)
    judged: list[PlainJobVerdict] = []
    plain, turns = PlainJobs(), 0
    with patch.object(plain_jobs, "MOST_NODES_LOOKED_AT", 12):
        while "small" not in {each.job.name for each in judged}:
            turns += 1
            found = plain.step(seen, {}, turns * 2.0 * REPEATED_AFTER_SECONDS)
            assert len(found) == 6
            assert [each.job.name for each in found][:3] == ["w00", "w01", "w02"], "the oldest in every turn"
            assert [each.job.created for each in found] == sorted(each.job.created for each in found)
            judged += found
    assert turns == 4, "ten in turn, three at once"
    assert [each.job.name for each in judged if each.admitted] == ["small"]
    assert {each.job.name for each in judged} == {each.name for each in seen.cluster.plain_jobs}
    assert dict(plain.waiting) == {"NoNodeFits": 12}, "those of other turns too"


def test_who_makes_new_jobs_all_the_time_keeps_none_waiting_that_was_judged_before() -> None:
    waits = [job(name, gpus=16, created="a") for name in ("old-0", "old-1")]
    small = job("small", gpus=2, created="b")
    plain = PlainJobs()
    with patch.object(plain_jobs, "MOST_NODES_LOOKED_AT", 8):
        full = [replace(running_pod(f"p{node}", f"n{node}", gpus=8), controller_uid="other") for node in range(2)]
        plain.step(state([*waits, small], nodes=2, pods=full), {}, 0.0)
        for step in range(1, 9):
            flood = [job(f"f{step}-{index}", gpus=16, created=f"c{step}") for index in range(4)]
            found = plain.step(state([*waits, small, *flood], nodes=2), {}, float(step))
            if any(each.admitted for each in found):
                return
    raise AssertionError("it was never judged again")


def test_on_however_many_nodes_some_are_judged() -> None:
    many = [job(f"w{index:02d}", gpus=16, created=f"{index:02d}") for index in range(12)]
    with patch.object(plain_jobs, "MOST_NODES_LOOKED_AT", 1):
        assert len(verdicts(state(many, nodes=2))) == FEWEST_JUDGED


def test_jobs_whose_pods_all_run_are_not_placed_again() -> None:
    """Else as many finished waits as anybody likes to make would cost each cycle a look at every node."""
    runs = [job(f"r{index}", gpus=1, suspend=False) for index in range(8)]
    pods = [replace(running_pod(f"r{index}-0", "n0", gpus=1), controller_uid=f"uid-r{index}") for index in range(8)]
    with patch.object(plain_jobs, "template_demands", wraps=plain_jobs.template_demands) as read:
        assert only(state([*runs, job("waits", gpus=1)], pods=pods)).reason == "WaitingForGpus"
    assert read.call_count == 1


def test_where_there_are_many_nodes_few_that_run_are_placed_and_those_first_that_were_let_run() -> None:
    """Whoever may create Jobs can have as many as he likes run whose pods find no node."""
    first, second = job("first", gpus=5, pods=2, created="y"), job("second", gpus=5, created="z")
    raws = [raw_job(f"f{index}", gpus=1, suspend=False) for index in range(20)]
    for index, raw in enumerate(raws):
        raw["spec"]["template"]["spec"]["nodeSelector"] = {"there": f"is none {index}"}
    flood = [read_plain_job(raw, RESOURCES) for raw in raws]
    plain = PlainJobs()
    with patch.object(plain_jobs, "MOST_NODES_PLACED_ON", 12):
        assert [each.admitted for each in plain.step(state([first, *flood], nodes=2), {}, 0.0)] == [True]
        placed = patch.object(plain_jobs._Room, "_placed", autospec=True, side_effect=plain_jobs._Room._placed)
        with placed as looked_at:
            found = plain.step(state([*flood, first, second], nodes=2), {}, 1.0)
    assert [each.reason for each in found] == ["WaitingForGpus"]
    assert looked_at.call_count == 6 + 1


def test_of_those_that_run_and_are_laborious_to_compare_with_nodes_fewer_are_placed() -> None:
    """Each may have a hundred terms of affinity, which a node takes as long as twenty Jobs without."""
    terms = [
        {"matchExpressions": [{"key": "there", "operator": "In", "values": [f"is none {index}"]}]}
        for index in range(4 * CHECKED_AT_ONCE)
    ]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    raws = [raw_job(f"f{index}", gpus=1, suspend=False) for index in range(20)]
    for index, raw in enumerate(raws):
        raw["spec"]["template"]["spec"] |= {"affinity": affinity, "nodeSelector": {"there": f"is none {index}"}}
    flood = [read_plain_job(raw, RESOURCES) for raw in raws]
    placed = patch.object(plain_jobs._Room, "_placed", autospec=True, side_effect=plain_jobs._Room._placed)
    with patch.object(plain_jobs, "MOST_NODES_PLACED_ON", 24), placed as looked_at:
        assert only(state([*flood, job("waits", gpus=1)], nodes=2)).admitted
    assert looked_at.call_count == 12 // 5 + 1


def test_a_template_is_read_once_for_each_version_of_its_job() -> None:
    """It may be a megabyte, and two hundred Jobs that wait are judged in each cycle."""
    waiting = [job(f"j{index}", gpus=9) for index in range(3)]
    plain = PlainJobs()
    with patch.object(plain_jobs, "template_demands", wraps=plain_jobs.template_demands) as read:
        for _ in range(2):
            plain.step(state(waiting), {}, 0.0)
        assert read.call_count == 3
        plain.step(state([*waiting[:2], job("j2", gpus=8)]), {}, 0.0)
        assert read.call_count == 4
        plain.step(state(waiting[:2]), {}, 0.0)
        plain.step(state(waiting), {}, 0.0)
        assert read.call_count == 5, "who is gone is forgotten"


@given(
    sizes=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3)), min_size=1, max_size=6),
    watts=st.integers(1600, 7000),
    reserve=st.booleans(),
)
def test_never_are_more_gpus_let_out_than_there_are_nor_more_watts_than_fit(
    sizes: list[tuple[int, int]], watts: int, reserve: bool
) -> None:
    jobs = [job(f"j{index}", gpus=gpus, pods=pods) for index, (gpus, pods) in enumerate(sizes)]
    word = "Reserve" if reserve else "Limit"
    found = [
        each.job for each in verdicts(state(jobs, nodes=2, watts=watts, foreignPods=word)).values() if each.admitted
    ]
    gpus = sum(each.gpus for each in found)
    assert gpus <= 16
    if reserve:
        assert gpus * DEFAULT + (16 - gpus) * FLOOR <= watts * 1000
