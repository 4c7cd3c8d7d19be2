"""What one node goes through, on real processes: its cap is held, or says at once that nobody can prove it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from flyball_testbed.controlplane import nodes
from flyball_testbed.controlplane.api import Json
from flyball_testbed.parts import AGENTS

from tests.support.site_bench import GPU_NODES, Bench, condition, message, reason

NODE = "node-003"


def tight_watts(bench: Bench) -> int:
    """A cap with room for the smallest limits, and for half of what one node's defaults are above them."""
    plan = bench.site.plan
    rise = plan.gpus_per_node * (plan.constants.default_limit_milliwatts - plan.constants.min_limit_milliwatts) / 1000
    return int(bench.floor_watts() + rise / 2)


def gpu_node(bench: Bench) -> Json:
    return next((node for node in bench.gpu_nodes() if node["metadata"]["name"] == NODE), {})


def degraded(bench: Bench) -> str:
    """Why the node's agent says that it is degraded."""
    return reason(gpu_node(bench), "Degraded")


@contextmanager
def agent_away(bench: Bench) -> Iterator[None]:
    bench.site.keep_agent_away(NODE)
    try:
        yield
    finally:
        bench.site.let_agent_back(NODE)
        bench.wait(lambda: bench.site.agent_runs(NODE), lambda: f"the agent of {NODE} is back")


def test_a_cap_is_not_called_enforced_while_a_node_has_booted_without_its_agent(bench: Bench) -> None:
    watts = tight_watts(bench)
    bench.set_cap("tight", watts)
    bench.wait_enforced("tight", watts)
    with agent_away(bench):
        bench.site.reboot(NODE)
        assert bench.limits_watts() > watts

        def is_doubted() -> bool:
            cap = bench.cap("tight")
            why = condition(cap, "Enforced"), reason(cap, "Enforced")
            return why == ("Unknown", "ProofStale") and "has booted" in str(cap)

        bench.wait(is_doubted, lambda: f"doubted for the boot: {bench.cap('tight')}")
    bench.wait_enforced("tight", watts)
    assert bench.limits_watts() <= watts


def told_of_nodes(bench: Bench) -> set[str]:
    """The nodes of which somebody has been told that what their agents acknowledged may not be true any more."""
    events = bench.api.list_objects("/apis/events.k8s.io/v1/events")
    return {event["regarding"]["name"] for event in events if event["reason"] == "NodeProofStale"}


@pytest.mark.long
def test_a_cap_is_not_called_enforced_while_no_agent_says_anything(make_site: Callable[..., Bench]) -> None:
    bench = make_site(nodes=2, operator_arguments=("--report-timeout-seconds", "8"))
    watts = tight_watts(bench)
    bench.set_cap("tight", watts)
    bench.wait_enforced("tight", watts)
    names = {node["metadata"]["name"] for node in bench.gpu_nodes()}
    agents = bench.site.parts[AGENTS]
    agents.pause()
    try:

        def doubted() -> bool:
            """Each node is named: their agents were heard last at different instants."""
            cap = bench.cap("tight")
            says = condition(cap, "Enforced"), reason(cap, "Enforced")
            return says == ("Unknown", "ProofStale") and all(name in message(cap, "Enforced") for name in names)

        bench.wait(doubted, lambda: f"doubted: {bench.cap('tight')}")
        bench.wait(lambda: told_of_nodes(bench) >= names, lambda: f"told of each node: {told_of_nodes(bench)}")
        bench.submit("late", gpus=(8, 8), iterations=1_000_000)
        bench.wait_job("late", lambda raw: condition(raw, "Admitted") in ("True", "False"), "seen by a plan")
        assert not [pod for pod in bench.objects("pods") if pod["spec"].get("nodeName")], "nothing starts there"
    finally:
        agents.resume()
    bench.wait_enforced("tight", watts)
    assert bench.overshoot_watts("tight") == 0.0


def test_limits_that_a_new_load_of_the_driver_lifted_are_put_down_by_its_agent(bench: Bench) -> None:
    watts = tight_watts(bench)
    bench.set_cap("tight", watts)
    bench.wait_enforced("tight", watts)
    load = gpu_node(bench)["status"]["driverSession"]
    bench.site.reload_driver(NODE)
    bench.wait(lambda: bench.limits_watts() <= watts, lambda: f"limits at {bench.limits_watts()} W")

    def acknowledged_anew() -> bool:
        status = gpu_node(bench)["status"]
        return bool(status["acknowledged"]["driverSession"] == status["driverSession"] != load)

    bench.wait(acknowledged_anew, lambda: f"acknowledged in the new session: {gpu_node(bench)}")
    bench.wait_enforced("tight", watts)


def test_nothing_rises_where_a_gpu_node_is_deleted(bench: Bench) -> None:
    watts = tight_watts(bench)
    bench.set_cap("tight", watts)
    bench.wait_enforced("tight", watts)
    before = bench.limits_watts()
    bench.api.delete(f"{GPU_NODES}/{NODE}")
    try:
        deleted = gpu_node(bench)
        assert "deletionTimestamp" in deleted["metadata"]
        for other in (watts + 400, watts - 100):  # the operator has decided anew since, and can still cut there
            bench.set_cap("tight", other)
            bench.wait_enforced("tight", other)
            assert bench.limits_watts() <= min(before, other)

        def acknowledged() -> bool:
            node = gpu_node(bench)
            given, held = node["spec"], node["status"]["acknowledged"]
            return bool((held["generation"], held["digest"]) == (given["generation"], given["digest"]))

        bench.wait(acknowledged, lambda: f"the grant acknowledged: {gpu_node(bench)}")
    finally:
        bench.release(f"{GPU_NODES}/{NODE}")

    def made_anew() -> bool:
        metadata = gpu_node(bench).get("metadata") or deleted["metadata"]
        return bool(metadata["uid"] != deleted["metadata"]["uid"])

    bench.wait(made_anew, lambda: f"made again: {gpu_node(bench)}")
    bench.wait_enforced("tight", other)
    assert bench.overshoot_watts("tight") == 0.0


def test_a_node_that_loses_its_label_still_counts_in_its_row(bench: Bench) -> None:
    label = f"{bench.namespace}-row"
    bench.label_node(NODE, label, "a")
    bench.set_cap("row", 3200, nodeSelector={"matchLabels": {label: "a"}})

    def counts(nodes: int) -> None:
        bench.wait(
            lambda: ((bench.cap("row") or {}).get("status") or {}).get("nodes") == nodes,
            lambda: f"{nodes} nodes in the row: {bench.cap('row')}",
        )

    counts(1)
    bench.wait_enforced("row", 3200)  # from here on the GPUNode knows its label
    bench.api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {label: None}}})
    bench.set_cap("row", 3000, nodeSelector={"matchLabels": {label: "a"}})
    status = bench.wait_enforced("row", 3000)["status"]
    assert status["nodes"] == 1
    assert status["committedWatts"] > 0
    bench.release(f"{GPU_NODES}/{NODE}")
    counts(0)
    remembered = {"flyball.dev/former-labels", "flyball.dev/release"}
    bench.wait(
        lambda: not remembered & (gpu_node(bench)["metadata"].get("annotations") or {}).keys(),
        lambda: f"neither label nor word is remembered: {gpu_node(bench)['metadata']}",
    )


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_node_that_is_deleted_counts_in_its_row_and_when_it_is_registered_without_its_label(
    make_site: Callable[..., Bench],
) -> None:
    bench = make_site(nodes=2)
    gone, label = bench.site.cluster.node_names()[-1], f"{bench.namespace}-row"
    bench.label_node(gone, label, "a")
    row = bench.site.plan.gpus_per_node * bench.site.plan.constants.default_limit_milliwatts // 1000 - 100
    bench.set_cap("tight", tight_watts(bench))
    bench.set_cap("row", row, nodeSelector={"matchLabels": {label: "a"}})
    bench.submit("load", gpus=(16, 16), iterations=1_000_000, batch=512, objective="Time")
    bench.wait_running("load")
    for name, watts in (("tight", tight_watts(bench)), ("row", row)):
        bench.wait_enforced(name, watts)
    held = bench.limits_watts()
    nodes.delete_nodes(bench.api, [gone])

    def doubted(name: str) -> bool:
        cap = bench.cap(name)
        says = condition(cap, "Enforced"), reason(cap, "Enforced")
        return says == ("Unknown", "ProofStale") and gone in message(cap, "Enforced")

    for name in ("tight", "row"):
        bench.wait(lambda name=name: doubted(name), lambda name=name: f"doubted: {bench.cap(name)}")  # type: ignore[misc]
    assert (bench.cap("row") or {})["status"]["nodes"] == 1
    assert bench.limits_watts() <= held

    def forgotten() -> bool:
        """Nothing of it is on its way any more: the pods of before, its kubelet's Lease."""
        pods = bench.api.list_objects("/api/v1/pods")
        bound = any(pod["spec"].get("nodeName") == gone for pod in pods)
        return not bound and bench.api.get_or_none(f"{nodes.NODE_LEASES}/{gone}") is None

    bench.wait(forgotten, lambda: f"nothing is left of {gone}", 90.0)
    nodes.create_nodes(bench.api, [nodes.gpu_node(gone)])
    bench.wait(lambda: bench.site.agent_runs(gone), lambda: f"the agent of {gone} runs again")
    for name, watts in (("tight", tight_watts(bench)), ("row", row)):
        bench.wait_enforced(name, watts)
    assert (bench.cap("row") or {})["status"]["nodes"] == 1
    assert bench.overshoot_watts("tight") == bench.overshoot_watts("row") == 0.0


def test_an_agent_that_starts_on_a_sick_disk_raises_nothing_and_says_so_until_it_is_well(bench: Bench) -> None:
    watts = tight_watts(bench)
    bench.set_cap("tight", watts)
    bench.wait_enforced("tight", watts)
    bad = bench.site.agents / f"{NODE}.new"  # where the journal is written anew: nothing can be, while it is a folder
    with agent_away(bench):
        bad.mkdir()
    try:
        bench.wait(lambda: degraded(bench) == "JournalUnwritable", lambda: f"degraded: {gpu_node(bench)}")
        assert bench.limits_watts() <= watts
    finally:
        bad.rmdir()
    bench.wait(lambda: degraded(bench) == "AsExpected", lambda: f"well again: {gpu_node(bench)}")
    bench.wait_enforced("tight", watts)
