"""A CRD is deleted by mistake, on the real API server, which then deletes every object of its kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flyball_testbed.controlplane.api import Json
from flyball_testbed.controlplane.install import CRDS, install_api
from flyball_testbed.parts import OPERATOR

from tests.support.site_bench import GPU_NODES, GROUP, Bench

LONG = 1_000_000


def make_filled_site(make_site: Callable[..., Bench]) -> tuple[Bench, int, int]:
    """A site with a cap, which is let go as soon as it may be once it is deleted, and jobs that use it.

    Beside it the cap's watts, and fewer.
    """
    bench = make_site(nodes=2)
    watts, fewer = (int(bench.site.plan.max_watts * share) for share in (0.6, 0.45))
    bench.set_cap("site", watts, releaseSeconds=0)
    bench.wait_enforced("site", watts)
    for index in range(2):
        bench.submit(f"load-{index}", gpus=(1, 8), iterations=LONG, batch=512, objective="Time")
    bench.wait(lambda: bench.limits_watts() > 0.9 * watts, lambda: f"the cap in use: {bench.limits_watts()} W")
    return bench, watts, fewer


def delete_kind(bench: Bench, kind: str) -> str:
    """Delete a CRD, and wait until the API server has begun to delete the objects of its kind."""
    crd = f"{CRDS}/{kind}.flyball.dev"
    bench.api.delete(crd)
    bench.wait(
        lambda: all(map(is_deleted, bench.api.list_objects(f"{GROUP}/{kind}"))),
        lambda: f"every object of {kind} is deleted",
    )
    return crd


def is_deleted(raw: Json) -> bool:
    return "deletionTimestamp" in raw["metadata"]


@pytest.mark.long
def test_caps_whose_kind_is_deleted_hold_and_can_be_cut_until_the_word_and_come_back_with_it(
    make_site: Callable[..., Bench],
) -> None:
    bench, _, low = make_filled_site(make_site)
    crd = delete_kind(bench, "powercaps")
    # Its time is over at once, and the operator goes on: it has seen what it cuts here.
    bench.api.patch(bench.cap_path("site"), {"spec": {"watts": low}})
    bench.wait_enforced("site", low)
    assert bench.limits_watts() <= low
    bench.wait(lambda: bench.limits_watts() > 0.9 * low, lambda: f"the cap in use: {bench.limits_watts()} W")
    held = bench.cap("site")
    assert held is not None
    assert held["metadata"]["finalizers"] == ["flyball.dev/hold"]
    bench.release(bench.cap_path("site"))
    bench.wait(lambda: bench.api.get_or_none(crd) is None, lambda: "the CRD gone with its last cap")
    bench.wait(lambda: bench.limits_watts() > low, lambda: "the watts of the released cap being used")
    install_api(bench.api)
    bench.set_cap("site", low)
    bench.wait_enforced("site", low)
    assert bench.limits_watts() <= low
    assert bench.judged_seconds("site") > 0
    assert bench.overshoot_watts("site") == 0.0


@pytest.mark.long
def test_gpu_nodes_whose_kind_is_deleted_are_granted_and_counted_until_the_word_and_come_back_with_it(
    make_site: Callable[..., Bench],
) -> None:
    bench, high, low = make_filled_site(make_site)
    crd = delete_kind(bench, "gpunodes")
    before = [node["metadata"]["uid"] for node in bench.gpu_nodes()]
    assert len(before) == 2
    bench.set_cap("site", low, releaseSeconds=0)
    bench.wait_enforced("site", low)
    assert bench.limits_watts() <= low
    assert [node["metadata"]["uid"] for node in bench.gpu_nodes()] == before
    for node in bench.gpu_nodes():
        bench.release(f"{GPU_NODES}/{node['metadata']['name']}")
    bench.wait(lambda: bench.api.get_or_none(crd) is None, lambda: "the CRD gone with its last GPUNode")
    install_api(bench.api)
    bench.wait(lambda: len(bench.gpu_nodes()) == 2, lambda: "GPUNodes anew")
    bench.set_cap("site", high)
    bench.wait_enforced("site", high)
    bench.wait(lambda: bench.limits_watts() > low, lambda: f"raised again: {bench.limits_watts()} W")
    assert bench.judged_seconds("site") > 0
    assert bench.overshoot_watts("site") == 0.0


@pytest.mark.long
def test_nothing_rises_where_caps_come_back_while_no_operator_runs(make_site: Callable[..., Bench]) -> None:
    """The way out that docs/operator.md gives."""
    bench, watts, _ = make_filled_site(make_site)
    crd = delete_kind(bench, "powercaps")
    most = bench.limits_watts()

    def gone() -> bool:
        nonlocal most
        most = max(most, bench.limits_watts())
        return bench.api.get_or_none(crd) is None

    bench.site.parts[OPERATOR].kill()
    bench.api.patch(bench.cap_path("site"), {"metadata": {"finalizers": None}})
    bench.wait(gone, lambda: "the CRD gone with its last cap")
    install_api(bench.api)
    bench.set_cap("site", watts)
    bench.site.start_part(OPERATOR)
    bench.wait_enforced("site", watts)
    bench.wait(lambda: bench.limits_watts() > 0.9 * watts, lambda: f"the cap in use: {bench.limits_watts()} W")
    assert max(most, bench.limits_watts()) <= watts
    assert bench.judged_seconds("site") > 0
    assert bench.overshoot_watts("site") == 0.0
