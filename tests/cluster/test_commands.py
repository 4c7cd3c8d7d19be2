"""What people ask by `flyball top`, `why`, `doctor`, `report`, `logs`, `release` and `whatif`, by their own rights."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from flyball_api.manifests import manifests
from flyball_cli.cluster.live_cluster import LiveCluster
from flyball_kube.session import ApiSession
from flyball_testbed.controlplane.install import BASE_DIRECTORY, read_manifests
from flyball_views.overview import Overview

from tests.support.command_line import flyball
from tests.support.site_bench import Bench
from tests.support.waiting import until

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def run(kubeconfig: Path, *arguments: str, answer: str = "") -> tuple[int, str]:
    result = flyball(*arguments, "--kubeconfig", str(kubeconfig), answer=answer)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def account(bench: Bench, name: str) -> Path:
    """The kubeconfig of an account of the test's own that may do nothing yet."""
    accounts = f"/api/v1/namespaces/{bench.namespace}/serviceaccounts"
    bench.api.create(accounts, {"metadata": {"name": name}})
    return bench.site.cluster.control_plane.service_account_kubeconfig(bench.namespace, name)


@pytest.fixture
def viewer(bench: Bench) -> Iterator[Path]:
    """Somebody with the role flyball-viewer, and no other."""
    kubeconfig = account(bench, "viewer")
    body = {
        "metadata": {"name": bench.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "flyball-viewer"},
        "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": bench.namespace}],
    }
    bench.api.create(BINDINGS, body)
    bench.wait(lambda: run(kubeconfig, "top", "--once")[0] == 0, lambda: "the viewer's rights")
    yield kubeconfig
    bench.api.delete(f"{BINDINGS}/{bench.namespace}")


def test_what_a_viewer_is_shown(bench: Bench, viewer: Path) -> None:
    watts = int(bench.site.plan.max_watts * 0.6)
    bench.set_cap("hall", watts)
    bench.wait_enforced("hall", watts)
    bench.submit("train", gpus=(2, 2), iterations=100_000, priority=10, energy={"budgetKilojoules": 10**6})
    bench.wait_running("train", 2)
    bench.submit("huge", gpus=(32, 32), iterations=1000, batch=2048)  # all that there are
    bench.wait_job("huge", lambda raw: ((raw or {}).get("status") or {}).get("state") == "WaitingForGpus", "waiting")
    cap = bench.cap_name("hall")

    status, output = run(viewer, "top", "-o", "json", "-n", bench.namespace)
    assert status == 0, output
    shown = msgspec.json.decode(output, type=Overview)
    assert shown.leader is not None
    assert not shown.leader.silent_at(shown.time)
    row = next(row for row in shown.caps if row.name == cap)
    assert (row.in_force_watts, row.enforced.status, len(row.nodes)) == (watts, True, bench.site.plan.nodes)
    jobs = {job.name: job for job in shown.jobs}
    assert (jobs["train"].gpus, jobs["huge"].gpus, jobs["huge"].state) == (2, 0, "WaitingForGpus")
    assert all(node.gpus == 8 and node.limit_watts is not None for node in shown.nodes)
    assert list(shown.missing) == ["nodes"]
    assert "no right to list nodes in the whole cluster" in shown.missing["nodes"]

    status, output = run(viewer, "top", "-n", bench.namespace)
    assert status == 0
    assert any(line.split()[1:3] == ["train", "Running"] for line in output.splitlines() if line.startswith("test-"))

    status, output = run(viewer, "why", "huge", "-n", bench.namespace)
    assert status == 0, output
    assert "WaitingForGpus: no GPUs" in output
    assert f"{bench.namespace}/train (2)" in output
    assert "another job's end" in output
    status, output = run(viewer, "why", "cap", cap)
    assert (status, "enforced: " in output) == (0, True)
    assert f"{bench.namespace}/train" in output
    status, output = run(viewer, "why", "node", shown.nodes[0].name)
    assert (status, "8 GPUs" in output) == (0, True)

    used: set[str] = set()

    def has_used() -> bool:
        used.update(line["job"] for line in csv.DictReader(run(viewer, *report)[1].splitlines()))
        return bool(used)

    report = ("report", "-n", bench.namespace, "-o", "csv")
    bench.wait(has_used, lambda: "the job that runs is in the books")
    assert used == {f"{bench.namespace}/train"}  # the other has used nothing

    before = bench.cap("hall")
    status, output = run(
        bench.site.cluster.kubeconfig, "whatif", "pcap", cap, "--watts", str(bench.site.plan.max_watts // 3)
    )
    assert status == 0, output
    assert f"PowerCap {cap}: " in output
    assert (bench.cap("hall") or {})["spec"] == (before or {})["spec"]
    status, output = run(viewer, "whatif", "pcap", cap, "--watts", "5000")
    assert (status, output) == (
        1,
        "flyball whatif: you have no right to list nodes in the whole cluster; no role of Flyball's has it: ask your "
        "administrator\n",
    )


def test_what_is_missing_is_one_line(bench: Bench, viewer: Path) -> None:
    nobody = account(bench, "nobody")
    status, output = run(nobody, "top", "--once")
    assert (status, output.count("\n")) == (1, 1)
    assert "you have no right to list energyawarejobs.flyball.dev in the whole cluster" in output
    assert "the ClusterRole flyball-viewer has it" in output
    status, output = run(viewer, "why", "nothing", "-n", bench.namespace)
    assert output == (
        f"flyball why: there is no EnergyAwareJob nothing in the namespace {bench.namespace} "
        "(kubectl get energyawarejobs --all-namespaces)\n"
    )
    status, output = run(viewer, "logs", "nothing", "-n", bench.namespace)
    assert status == 1
    assert "there is no EnergyAwareJob nothing" in output
    administrator = Path(bench.site.cluster.kubeconfig)
    status, output = run(administrator, "top", "--once", "-n", "nowhere")
    assert (status, output) == (1, "flyball top: there is no namespace nowhere (kubectl get namespaces)\n")
    status, output = run(administrator, "whatif", "pcap", "nothing", "--watts", "9000")
    assert (status, output) == (1, "flyball whatif: there is no PowerCap nothing (kubectl get powercaps)\n")
    for kubeconfig in (viewer, administrator):
        status, output = run(kubeconfig, "top", "--once", "-n", bench.namespace)
        assert (status, "no jobs" in output) == (0, True), "one that is there has no jobs"


def test_the_doctor_of_an_installation_that_is_well(bench: Bench, viewer: Path) -> None:
    watts = int(bench.site.plan.max_watts * 0.7)
    bench.set_cap("hall", watts)
    bench.wait_enforced("hall", watts)
    status, output = run(bench.site.cluster.kubeconfig, "doctor")
    verdicts = {line.split()[0] for line in output.splitlines() if line[0] != " "}
    assert (status, "fail" in verdicts) == (0, False), output
    policies = sum(
        manifest["kind"] == "ValidatingAdmissionPolicyBinding" for manifest in read_manifests(BASE_DIRECTORY)
    )
    served = f"{bench.site.plan.nodes} nodes served"
    for found in (f"{len(manifests())} kinds, with the fields", f"{policies} are bound", "leads, epoch", served):
        assert found in output
    status, output = run(viewer, "doctor")
    assert status == 0, output
    assert "you may not read CustomResourceDefinitions" in output
    assert "not submit jobs, change caps, release nodes, declare emergencies" in output


def test_a_deleted_cap_is_released_after_asking(bench: Bench, viewer: Path) -> None:
    watts = int(bench.site.plan.max_watts * 0.8)
    bench.set_cap("hall", watts)
    bench.wait_enforced("hall", watts)
    administrator, cap = bench.site.cluster.kubeconfig, bench.cap_name("hall")
    status, output = run(viewer, "release", "cap", cap, "--yes")
    assert status == 1
    assert "no right to patch powercaps.flyball.dev in the whole cluster; the ClusterRole flyball-sre has it" in output
    status, output = run(administrator, "release", "cap", cap, answer="n\n")
    assert (status, "not deleted; the word counts once it is" in output) == (1, True)
    bench.wait(lambda: "finalizers" in (bench.cap("hall") or {})["metadata"], lambda: f"held: {bench.cap('hall')}")
    bench.api.delete(bench.cap_path("hall"))
    assert bench.cap("hall") is not None
    status, output = run(administrator, "release", "cap", cap, answer="y\n")
    assert (status, "deleted, and held" in output) == (0, True)
    bench.wait(lambda: bench.cap("hall") is None, lambda: "the cap gone")
    status, output = run(administrator, "release", "cap", cap, "--yes")
    assert output == f"flyball release: there is no PowerCap {cap} (kubectl get powercaps)\n"


def test_an_emergency_is_declared_seen_and_ended(bench: Bench, viewer: Path) -> None:
    watts = int(bench.site.plan.max_watts * 0.8)
    bench.set_cap("hall", watts)
    bench.wait_enforced("hall", watts)
    administrator, cap = bench.site.cluster.kubeconfig, bench.cap_name("hall")
    status, output = run(viewer, "emergency", "--cap", cap)
    assert status == 1
    assert "you have no right to" in output
    assert "powerbrakes.flyball.dev in the whole cluster; the ClusterRole flyball-sre has it" in output
    status, output = run(administrator, "emergency", "--cap", cap, "--reason", "smoke")
    assert (status, f"flyball why cap {cap}" in output) == (0, True)

    def told(words: str) -> bool:
        return words in run(viewer, "why", "cap", cap)[1]

    bench.wait(lambda: told("smoke"), lambda: "the emergency among the cap's reasons")
    bench.wait_at_floor()
    status, output = run(administrator, "emergency", "--cap", cap, "--end")
    assert status == 0, output
    bench.wait(lambda: not told("\nx "), lambda: "the emergency's end")


async def test_the_terminal_view_follows_what_changes(bench: Bench, viewer: Path) -> None:
    async with await ApiSession.connect(viewer) as session, LiveCluster(session, bench.namespace) as source:
        first = await source.overview()
        assert (first.jobs, list(first.missing)) == ((), ["nodes"])
        await asyncio.to_thread(lambda: bench.submit("train", gpus=(1, 1), iterations=100_000))

        async def runs() -> bool:
            return any(job.gpus == 1 for job in (await source.overview()).jobs)

        await until(runs, "the job seen to run")
        events = await source.events("EnergyAwareJob", "train", bench.namespace)
        assert isinstance(events, list | tuple)
