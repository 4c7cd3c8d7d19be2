"""A cap on the real control plane, judged by the referee, which reads the hardware and knows nothing of the operator."""

from __future__ import annotations

from flyball_kube.resources import GPU_NODES, POWER_BRAKES, POWER_CAPS
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_testbed.parts import OPERATOR
from flyball_testbed.workload.devices import hardware_path

from tests.support.site_bench import Bench, condition, is_enforced_at, reason
from tests.support.versions import Versions, resource_version

LONG = 100_000


def load(bench: Bench, jobs: int = 4) -> None:
    """Fill the site with elastic jobs that run for ever."""
    for index in range(jobs):
        bench.submit(f"load-{index}", gpus=(1, 16), iterations=LONG, batch=1024, objective="Time")
    for index in range(jobs):
        bench.wait_running(f"load-{index}")


def cut_before_any_raise(bench: Bench, versions: Versions, cap: str, watts: int) -> bool:
    """Whether anything was cut before the cap was called enforced at `watts`; from then on no bound may have been raised.

    A cut is a lower bound of a node, or a brake of the cap, which lowers many at once.
    A raise that was decided before the operator saw the new watts may still come before the first cut.
    """
    caps = [raw for raw in versions.of(POWER_CAPS) if raw["metadata"]["name"] == bench.cap_name(cap)]
    asked = next(resource_version(raw) for raw in caps if raw["spec"]["watts"] == watts)
    called_enforced = next(resource_version(raw) for raw in caps if is_enforced_at(raw, watts))
    bounds: dict[str, int] = {}
    brakes = [raw for raw in versions.of(POWER_BRAKES) if raw["metadata"]["name"] == bench.cap_name(cap)]
    braked = [resource_version(raw) for raw in brakes if asked < resource_version(raw) < called_enforced]
    cut = False
    for raw in versions.of(GPU_NODES):
        if resource_version(raw) > called_enforced:
            break
        name, bound = raw["metadata"]["name"], raw["spec"]["boundMilliwatts"]
        before = bounds.get(name, bound)
        if resource_version(raw) > asked:
            cut = cut or any(brake < resource_version(raw) for brake in braked)
            assert not (cut and bound > before), f"{name} raised from {before} to {bound} mW while cuts were pending"
            cut = cut or bound < before
        bounds[name] = bound
    assert braked or sum(bounds.values()) <= watts * 1000, "nothing cut, and more allowed than the cap"
    return cut or bool(braked)


def cut(bench: Bench, high: int, low: int) -> bool:
    """Lower the site's cap from `high` to `low` under load; whether anything had to be cut for it."""
    bench.set_cap("site", high)
    bench.wait_enforced("site", high)
    bench.wait(lambda: bench.bounds_watts() > low, lambda: f"bounds of {bench.bounds_watts()} W above {low} W")
    with Versions(bench.site.cluster.kubeconfig, POWER_CAPS, GPU_NODES, POWER_BRAKES) as versions:
        bench.set_cap("site", low)
        enforced = bench.wait_enforced("site", low)
        assert enforced["status"]["committedWatts"] <= low
        assert bench.limits_watts() <= low
        brakes = bench.api.list_objects(POWER_BRAKES.path())
        versions.await_seen([enforced, *bench.gpu_nodes(), *brakes])
    return cut_before_any_raise(bench, versions, "site", low)


def test_a_cap_is_lowered_before_anything_is_raised(bench: Bench) -> None:
    full = bench.site.plan.max_watts
    high, low, middle = (int(full * share) for share in (0.8, 0.4, 0.6))
    bench.set_cap("site", high)
    bench.wait_enforced("site", high)
    load(bench)
    # Jobs that are just being resized have given their watts back: at that moment, nothing has to be cut.
    bench.wait(lambda: cut(bench, high, low), lambda: "a cap that had to cut")
    bench.wait(
        lambda: all(
            node["status"]["acknowledged"]["generation"] == node["spec"]["generation"] for node in bench.gpu_nodes()
        ),
        lambda: "every grant acknowledged",
    )
    # Neither the grants nor the acknowledgements after them have the API server keep books on who wrote what.
    assert not any(node["metadata"].get("managedFields") for node in bench.gpu_nodes())
    bench.set_cap("site", middle)
    bench.wait_enforced("site", middle)
    bench.wait(lambda: bench.limits_watts() > low, lambda: "the freed watts being used")
    assert bench.judged_seconds("site") > 0
    assert bench.overshoot_watts("site") == 0.0


def test_a_cap_that_is_deleted_holds_until_somebody_releases_it(bench: Bench) -> None:
    full = bench.site.plan.max_watts
    low = int(full * 0.5)
    bench.set_cap("site", low)
    bench.wait_enforced("site", low)
    load(bench)
    bench.wait(lambda: bench.limits_watts() > 0.9 * low, lambda: "the cap in use")
    path = bench.cap_path("site")
    bench.api.delete(path)
    other = bench.cap_path("other")
    bench.set_cap("other", full)
    bench.wait_enforced("other", full)  # cycles have gone by since, of an operator that has seen the deletion
    deleted = bench.cap("site")
    assert deleted is not None
    assert deleted["metadata"]["deletionTimestamp"]
    assert bench.limits_watts() <= low
    bench.set_cap("other", low - 1)  # what a deleted cap holds can still be cut
    bench.wait_enforced("other", low - 1)
    bench.set_cap("other", full)
    bench.release(path)
    bench.wait(lambda: bench.cap("site") is None, lambda: f"the cap gone; it is {bench.cap('site')}")
    bench.wait(lambda: bench.limits_watts() > low, lambda: "the watts of the released cap being used")
    assert bench.overshoot_watts("site") == 0.0
    assert bench.api.get(other)["metadata"]["finalizers"] == ["flyball.dev/hold"]


def test_a_cap_is_not_called_enforced_while_a_node_has_not_acknowledged(bench: Bench) -> None:
    full = bench.site.plan.max_watts
    bench.set_cap("site", full)
    bench.wait_enforced("site", full)
    load(bench, jobs=2)
    low = int(full * 0.35)
    bench.wait(lambda: bench.bounds_watts() > low, lambda: f"bounds of {bench.bounds_watts()} W above {low} W")
    agents = bench.site.parts["agent-host"]
    agents.pause()
    try:
        bench.set_cap("site", low)
        bench.wait(
            lambda: (bench.cap("site") or {}).get("status", {}).get("effectiveWatts") == low, lambda: "the new cap seen"
        )
        assert condition(bench.cap("site"), "Enforced") == "False"
        # Cuts are sent; none is acknowledged; what a node may draw at worst may not rise anywhere meanwhile.
        before = {node["metadata"]["name"]: node["spec"]["committedMilliwatts"] for node in bench.gpu_nodes()}
        bench.submit("eager", gpus=(8, 8), iterations=LONG, batch=1024)
        bench.wait_job("eager", lambda raw: condition(raw, "Admitted") != "", "seen by the planner")
        after = {node["metadata"]["name"]: node["spec"]["committedMilliwatts"] for node in bench.gpu_nodes()}
        assert all(after[name] <= watts for name, watts in before.items())
        assert condition(bench.cap("site"), "Enforced") == "False"
    finally:
        agents.resume()
    bench.wait_enforced("site", low)
    assert bench.overshoot_watts("site") == 0.0


def test_an_infeasible_cap_is_never_called_enforced(bench: Bench) -> None:
    bench.set_cap("site", bench.site.plan.max_watts)
    bench.wait_enforced("site", bench.site.plan.max_watts)
    load(bench, jobs=2)
    impossible = int(bench.floor_watts() * 0.9)
    bench.set_cap("site", impossible)
    bench.wait(
        lambda: (
            condition(bench.cap("site"), "Feasible") == "False"
            and (bench.cap("site") or {})["status"]["effectiveWatts"] == impossible
        ),
        lambda: f"said infeasible: {bench.cap('site')}",
    )
    bench.wait_at_floor()
    assert condition(bench.cap("site"), "Enforced") == "False"


def test_two_caps_over_the_same_nodes_are_both_held(bench: Bench) -> None:
    rack = sorted(node["metadata"]["name"] for node in bench.gpu_nodes())[:2]
    for name in rack:
        bench.label_node(name, "rack", "a")
    full = bench.site.plan.max_watts
    site_watts, rack_watts = int(full * 0.7), int(full * 0.5 * 0.45)
    bench.set_cap("site", site_watts)
    bench.set_cap("rack-a", rack_watts, nodeSelector={"matchLabels": {"rack": "a"}})
    bench.wait_enforced("site", site_watts)
    bench.wait_enforced("rack-a", rack_watts)
    load(bench)
    for name, watts in (("site", site_watts), ("rack-a", rack_watts)):
        status = bench.wait_enforced(name, watts)["status"]
        assert status["committedWatts"] <= watts
    grants = {node["metadata"]["name"]: node["spec"]["boundMilliwatts"] for node in bench.gpu_nodes()}
    assert sum(grants[name] for name in rack) <= rack_watts * 1000
    assert bench.overshoot_watts("rack-a") == 0.0
    assert bench.overshoot_watts("site") == 0.0


def test_a_limit_changed_by_another_hand_is_put_back_and_reported(bench: Bench) -> None:
    bench.set_cap("site", bench.site.plan.max_watts // 2)
    bench.wait_enforced("site", bench.site.plan.max_watts // 2)
    bench.wait_at_floor()  # jobs of a test before this one have left, so that nobody else changes a limit
    name = bench.gpu_nodes()[0]["metadata"]["name"]
    path = GPU_NODES.path(name=name)
    with SimulatedNode.open(hardware_path(bench.site.hardware, name)) as node:
        device = next(iter(node.devices))
        before = device.read()
        assert condition(bench.api.get(path), "Drifted") == "False"

        def changed_and_reported() -> bool:
            """Change the limit wherever it has been put back: between the agent's own set and its read-back, no drift."""
            if device.read().requested_limit_milliwatts == before.requested_limit_milliwatts:
                device.set_power_limit_milliwatts(before.requested_limit_milliwatts + 50_000)
            return condition(bench.api.get(path), "Drifted") == "True"

        bench.wait(changed_and_reported, lambda: "the change reported")
        assert reason(bench.api.get(path), "Drifted") == "LimitChanged"
        bench.wait(
            lambda: device.read().enforced_limit_milliwatts == before.enforced_limit_milliwatts,
            lambda: "the limit put back",
        )
        assert device.read().requested_limit_milliwatts == before.requested_limit_milliwatts
    # The node goes on to serve: a later cut still reaches it.
    bench.set_cap("site", bench.site.plan.max_watts * 2 // 5)
    bench.wait_enforced("site", bench.site.plan.max_watts * 2 // 5)


def test_neither_forged_labels_nor_a_ghost_keep_a_cut_from_their_node(bench: Bench) -> None:
    """A pod with a job's label and one that claims more GPUs than a node has, set past the admission policy."""
    full = bench.site.plan.max_watts
    bench.set_cap("site", full)
    bench.wait_enforced("site", full)
    load(bench, jobs=2)
    owner = bench.job("load-0")
    assert owner is not None
    node = bench.gpu_nodes()[0]["metadata"]["name"]
    labels = {"flyball.dev/job-name": "load-0", "flyball.dev/job-uid": owner["metadata"]["uid"]}
    for name, gpus, more in (
        ("forged", 1, {"flyball.dev/job-uid": "a.b"}),
        ("ghost", 64, {"flyball.dev/incarnation": "99999999999"}),
    ):
        container = {"name": "trainer", "image": "trainer", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        template = {
            "metadata": {"labels": labels | more},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        reference = {
            "apiVersion": "flyball.dev/v1alpha1",
            "kind": "EnergyAwareJob",
            "name": "load-0",
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        metadata = {
            "name": name,
            "namespace": bench.namespace,
            "labels": labels | more,
            "annotations": {"flyball.dev/allocation": f'{{"nodes": [["{node}", {gpus}]]}}'},
            "ownerReferences": [reference],
        }
        bench.api.create(
            f"/apis/batch/v1/namespaces/{bench.namespace}/jobs", {"metadata": metadata, "spec": {"template": template}}
        )
    bench.wait(
        lambda: sum(pod["metadata"]["name"].startswith(("forged-", "ghost-")) for pod in bench.objects("pods")) == 2,
        lambda: "the forged pods",
    )
    low = int(full * 0.4)
    bench.set_cap("site", low)
    bench.wait_enforced("site", low)
    assert bench.limits_watts() <= low
    assert bench.overshoot_watts("site") == 0.0


def used_kilojoules(bench: Bench) -> float:
    """What the counters of all GPUs of the site stand at, as their agents have reported it."""
    devices = (device for node in bench.gpu_nodes() for device in node["status"].get("devices") or ())
    return float(sum(device["energyMillijoules"] for device in devices)) / 1e6


def charged_kilojoules(bench: Bench) -> int:
    """What is charged to the energy budget of the site's cap."""
    period = ((bench.cap("site") or {}).get("status") or {}).get("energyPeriod") or {}
    return int(period.get("consumedKilojoules", 0))


def test_what_is_used_while_no_operator_runs_is_charged_to_the_budget_of_its_cap(bench: Bench) -> None:
    full = bench.site.plan.max_watts
    bench.set_cap("site", full, energyBudget={"kilojoules": 10**7, "periodSeconds": 86_400})
    bench.wait_enforced("site", full)
    load(bench)
    earlier = used_kilojoules(bench)
    for _ in range(2):  # what is charged then goes by later counters
        seen = charged_kilojoules(bench)
        bench.wait(lambda seen=seen: charged_kilojoules(bench) > seen, lambda: f"charged: {bench.cap('site')}")  # type: ignore[misc]
    before = charged_kilojoules(bench)
    bench.site.parts[OPERATOR].kill()
    try:
        left = used_kilojoules(bench)
        bench.wait(lambda: used_kilojoules(bench) > left + 100, lambda: f"used: {used_kilojoules(bench) - left} kJ")
        away = used_kilojoules(bench) - left
    finally:
        bench.site.start_part(OPERATOR)
    bench.wait(
        lambda: charged_kilojoules(bench) - before >= 0.99 * away,
        lambda: f"{charged_kilojoules(bench) - before} kJ of {away} are charged",
    )
    charged = charged_kilojoules(bench) - before
    assert charged <= 1.01 * (used_kilojoules(bench) - earlier) + 1, "and nothing twice"
