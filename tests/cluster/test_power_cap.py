"""A cap on the real control plane, judged by the referee, which reads the hardware and knows nothing of the operator."""

from __future__ import annotations

from cluster_bench import GPU_NODES, Bench, condition

LONG = 100_000


def load(bench: Bench, jobs: int = 4) -> None:
    """Fill the site with elastic jobs that run for ever."""
    for index in range(jobs):
        bench.submit(f"load-{index}", gpus=(1, 16), iterations=LONG, batch=1024, objective="Time")
    for index in range(jobs):
        bench.wait_running(f"load-{index}")


def test_a_cap_is_lowered_before_anything_is_raised(bench: Bench) -> None:
    full = bench.site.plan.max_watts
    high, low, middle = (int(full * share) for share in (0.8, 0.4, 0.6))
    bench.set_cap("site", high)
    bench.wait_enforced("site", high)
    load(bench)
    bench.set_cap("site", low)
    # Until every cut is read back, the status must not call the new cap enforced, and no grant may rise.
    enforced = bench.wait_enforced("site", low)
    assert enforced["status"]["committedWatts"] <= low
    assert bench.limits_watts() <= low
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


def test_enforced_says_false_while_a_node_owes_its_acknowledgement(bench: Bench) -> None:
    full = bench.site.plan.max_watts
    bench.set_cap("site", full)
    bench.wait_enforced("site", full)
    load(bench, jobs=2)
    low = int(full * 0.35)
    agents = bench.site.parts["agent-host"]
    agents.pause()
    try:
        bench.set_cap("site", low)
        bench.wait(
            lambda: (bench.cap("site") or {}).get("status", {}).get("effectiveWatts") == low, lambda: "the new cap seen"
        )
        told = bench.cap("site")
        assert condition(told, "Enforced") == "False"
        # Cuts are sent; none is acknowledged; what a node may draw at worst may not rise anywhere meanwhile.
        before = {node["metadata"]["name"]: node["spec"]["worstHoldMilliwatts"] for node in bench.gpu_nodes()}
        bench.submit("eager", gpus=(8, 8), iterations=LONG, batch=1024)
        bench.wait_job("eager", lambda raw: condition(raw, "Admitted") != "", "seen by the planner")
        after = {node["metadata"]["name"]: node["spec"]["worstHoldMilliwatts"] for node in bench.gpu_nodes()}
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
        bench.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"rack": "a"}}})
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
    grants = {node["metadata"]["name"]: node["spec"]["grantMilliwatts"] for node in bench.gpu_nodes()}
    assert sum(grants[name] for name in rack) <= rack_watts * 1000
    assert bench.overshoot_watts("rack-a") == 0.0
    assert bench.overshoot_watts("site") == 0.0


def test_a_limit_changed_by_another_hand_is_put_back(bench: Bench) -> None:
    from flyball_agent.drivers.simulated import SimulatedNode

    bench.set_cap("site", bench.site.plan.max_watts // 2)
    bench.wait_enforced("site", bench.site.plan.max_watts // 2)
    name = bench.gpu_nodes()[0]["metadata"]["name"]
    with SimulatedNode.open(bench.site.hardware / f"{name}.gpus") as node:
        device = next(iter(node.devices))
        before = device.read().enforced_limit_milliwatts
        device.set_power_limit_milliwatts(before + 50_000)
        bench.wait(lambda: device.read().enforced_limit_milliwatts == before, lambda: "the limit put back")
    assert bench.api.get(f"{GPU_NODES}/{name}")["status"]["acknowledged"] is not None
