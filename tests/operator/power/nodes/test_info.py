"""Each node as one info: what it is, what it may draw, and whether it can be planned with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flyball_api.gpu_node import GpuNode, read_gpu_node
from flyball_api.names import STARTUP_TAINT
from flyball_api.workloads import PodView, read_node
from flyball_operator.jobs.feasibility.fitting import withheld_gpus
from flyball_operator.power.nodes.gpu_facts import KnownGpus
from flyball_operator.power.nodes.info import ForeignPod, NodeInfo, former_labels, read_nodes, sign_of_a_boot
from flyball_operator.settings import Settings
from flyball_planner.models.gpu import LARGEST_DEFAULT_LIMIT_WATTS

from tests.support.milliwatts import power_bound
from tests.support.operator_objects import (
    A100,
    DEFAULT,
    FLOOR,
    Json,
    gpu_node_view,
    grant,
    job_grant,
    node_view,
    pod_view,
    raw_device,
    raw_gpu_node,
    raw_node,
    ready_node,
    running_pod,
)

UNKNOWN = round(LARGEST_DEFAULT_LIMIT_WATTS * 1000)


def info_of(gpu_node: GpuNode | None, *, gpus: int = 8, product: str = A100, silent: bool = False) -> NodeInfo:
    views = {} if gpu_node is None else {"a": gpu_node}
    return read_nodes([node_view("a", gpus, product=product)], views, [], frozenset(["a"] if silent else []))["a"]


def test_a_new_node_is_reserved_at_its_defaults_by_the_catalogue() -> None:
    info = info_of(None)
    assert info.power.committed == power_bound(8 * DEFAULT)
    assert info.power.grant is None
    assert (info.min_limit_milliwatts, info.default_limit_milliwatts, info.max_limits_milliwatts) == (
        FLOOR,
        DEFAULT,
        8 * DEFAULT,
    )
    assert not info.acknowledged
    assert not info.commandable


def test_gpus_that_nobody_knows_are_reserved_at_the_largest_default_there_is() -> None:
    info = info_of(None, product="Unheard-Of")
    assert info.power.committed.limit_milliwatts == 8 * UNKNOWN
    assert (info.min_limit_milliwatts, info.default_limit_milliwatts) == (0, UNKNOWN)
    assert not info.commandable


def test_the_agents_word_on_them_is_taken() -> None:
    devices = [
        raw_device(index, minMilliwatts=150_000, defaultMilliwatts=300_000, maxMilliwatts=350_000) for index in range(8)
    ]
    info = info_of(gpu_node_view("a", grant(8 * 150_000), devices=devices, limits=8 * 150_000), product="Unheard-Of")
    assert info.commandable
    assert info.gpu_model is not None
    assert info.gpu_model.min_power_limit_watts == 150.0
    assert info.gpu_model.clocks_megahertz[0] == 210
    assert info.gpu_model.clocks_megahertz[-1] == 1410
    assert (info.min_limit_milliwatts, info.default_limit_milliwatts, info.max_limits_milliwatts) == (
        150_000,
        300_000,
        8 * 350_000,
    )


@pytest.mark.parametrize("product", [A100, "Unheard-Of"])
def test_a_report_of_more_than_such_gpus_have_moves_no_other_node(
    product: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An inflated largest limit would lift a cap that is a share of it, an inflated smallest one take the others' watts."""
    huge = 9_000_000
    devices = [raw_device(index, minMilliwatts=huge, maxMilliwatts=huge) for index in range(8)]
    info = info_of(gpu_node_view("a", grant(8 * FLOOR), devices=devices, limits=8 * FLOOR), product=product)
    believed = (DEFAULT, 8 * DEFAULT) if product == A100 else (UNKNOWN, 8 * UNKNOWN)
    assert (info.min_limit_milliwatts, info.max_limits_milliwatts) == believed
    assert "above what such GPUs have" in caplog.text


def test_more_gpus_than_the_node_has_move_no_other_node(caplog: pytest.LogCaptureFixture) -> None:
    devices = [raw_device(index) | {"powerMilliwatts": 300_000} for index in range(64)]
    view = gpu_node_view("a", grant(8 * FLOOR), devices=devices, limits=64 * FLOOR)
    info = info_of(view)
    assert info.max_limits_milliwatts == 8 * DEFAULT
    assert info.power.committed.limit_milliwatts == 64 * FLOOR, "what it may draw itself is its agent's word"
    assert info.measured_milliwatts == 64 * 300_000, "and so is what it draws, which gives nobody watts"
    assert "more GPUs than its Node has" in caplog.text
    caplog.clear()
    assert info_of(view, gpus=64).max_limits_milliwatts == 64 * DEFAULT
    assert caplog.text == ""


def test_of_more_gpus_than_the_node_has_one_line_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    known = KnownGpus()
    for watts, gpus in ((300, 64), (301, 64), (302, 65), (303, 65), (304, 65)):
        devices = [raw_device(index) | {"powerMilliwatts": watts * 1000} for index in range(gpus)]
        known.facts_of("a", node_view("a"), gpu_node_view("a", grant(8 * FLOOR), devices=devices, limits=64 * FLOOR))
    assert len(caplog.records) == 2  # once more for another number


def test_a_device_plugin_that_is_away_for_a_moment_makes_no_cap_fall() -> None:
    """Of a node of sixteen, of which nothing else says how many it has: eight would be guessed."""
    view = gpu_node_view("a", grant(16 * FLOOR), devices=[raw_device(index) for index in range(16)], limits=16 * FLOOR)
    known, away = KnownGpus(), raw_node("a", 0)
    away["metadata"]["labels"] = {"nvidia.com/gpu.present": "true"}
    for raw, counted in (
        (raw_node("a", 16), 16),
        (away, 16),
        (raw_node("a", 8), 8),
        (raw_node("a", 12), 12),
        (raw_node("a", 0), 12),
        (None, 12),
    ):
        nodes = [] if raw is None else [read_node(raw)]
        info = read_nodes(nodes, {"a": view}, [], frozenset(), known=known)["a"]
        assert info.max_limits_milliwatts == counted * DEFAULT


def test_a_device_plugin_that_is_away_takes_no_gpu_out_that_its_agent_does_not_see() -> None:
    """A kubelet that is started anew shows none until its plugins are back, and the eighth may draw what it did."""
    devices = [raw_device(index) for index in range(7)]
    view = gpu_node_view("a", grant(8 * FLOOR), devices=devices, limits=7 * FLOOR)
    known = KnownGpus()
    for raw, unseen in ((raw_node("a", 8), 1), (raw_node("a", 0), 1), (None, 1), (raw_node("a", 7), 0)):
        nodes = [] if raw is None else [read_node(raw)]
        info = read_nodes(nodes, {"a": view}, [], frozenset(), known=known)["a"]
        assert (info.gpus, info.lost_gpus) == (7 + unseen, unseen)
        if raw is not None:
            assert info.power.committed.limit_milliwatts == max(8 * FLOOR, 7 * FLOOR + unseen * DEFAULT)


@pytest.mark.parametrize("labels", [{"nvidia.com/gpu.present": "true"}, {}])
def test_of_a_node_that_offers_no_gpus_as_many_count_as_are_reported(labels: dict[str, str]) -> None:
    """Its device plugin is not up, or it serves MIG instances; where nothing speaks of GPUs its agent alone knows."""
    raw = raw_node("a", 0)
    raw["metadata"]["labels"] = labels
    view = gpu_node_view("a", grant(8 * FLOOR), devices=[raw_device(index) for index in range(16)])
    assert read_nodes([read_node(raw)], {"a": view}, [], frozenset())["a"].max_limits_milliwatts == 16 * DEFAULT


def test_a_report_of_less_than_such_gpus_have_is_taken() -> None:
    devices = [raw_device(index, minMilliwatts=150_000, maxMilliwatts=300_000) for index in range(8)]
    info = info_of(gpu_node_view("a", grant(8 * FLOOR), devices=devices, limits=8 * FLOOR))
    assert (info.min_limit_milliwatts, info.max_limits_milliwatts) == (150_000, 8 * 300_000)


def test_unacknowledged_gpus_count_at_the_largest_limit_that_they_report_or_else_at_the_highest_of_the_others() -> None:
    first = raw_device(0, defaultMilliwatts=250_000, maxMilliwatts=300_000)
    higher = raw_device(1, defaultMilliwatts=250_000, maxMilliwatts=350_000)
    silent = raw_device(2, defaultMilliwatts=250_000, maxMilliwatts=0)
    info = info_of(gpu_node_view("a", grant(3 * FLOOR), devices=[first, higher, silent]), gpus=4)
    assert info.power.committed.limit_milliwatts == 300_000 + 350_000 + 2 * 350_000  # one is not reported at all
    assert info.max_limits_milliwatts == 300_000 + 350_000 + 2 * 300_000  # a share of it lifts a cap: the least counts


def test_gpus_of_a_node_without_a_product_label_are_what_their_agent_calls_them() -> None:
    devices = [raw_device(index, maxMilliwatts=9_000_000) for index in range(8)]
    info = info_of(gpu_node_view("a", grant(8 * FLOOR), devices=devices, limits=8 * FLOOR), product="")
    assert info.max_limits_milliwatts == 8 * DEFAULT  # of an A100, by the catalogue


@pytest.mark.parametrize(
    ("reported", "believed"), [(0, 0), (58_000, 58_000), (480_000, 480_000), (500_001, 500_000), (10_000_000, 500_000)]
)
def test_power_beyond_what_such_gpus_can_draw_is_not_believed(reported: int, believed: int) -> None:
    """It would call every cap over the node breached, and use up an energy budget that others share."""
    devices = [raw_device(0, maxMilliwatts=9_000_000) | {"powerMilliwatts": reported}]
    info = info_of(gpu_node_view("a", grant(FLOOR), devices=devices, limits=FLOOR), gpus=1)
    assert info.measured_milliwatts == believed


def test_a_first_grant_without_an_answer_changes_nothing() -> None:
    """Once written, the GPUNode has no devices yet: they must not count a second time."""
    sent = grant(8 * FLOOR, committed=8 * DEFAULT)
    assert info_of(gpu_node_view("a", sent, devices=0)).power.committed == power_bound(8 * DEFAULT)
    assert info_of(gpu_node_view("a", sent)).power.committed == power_bound(8 * DEFAULT)


def test_an_acknowledged_node_holds_what_it_was_granted() -> None:
    info = ready_node("a")
    assert info.power.committed == power_bound(8 * FLOOR)
    assert info.power.accepted == (1, 1)
    assert info.commandable
    assert info.schedulable


def test_a_rebooted_node_may_draw_the_most_that_its_gpus_can() -> None:
    devices = [raw_device(index, maxMilliwatts=450_000) for index in range(8)]
    acknowledged_on = ("boot-0", "driver-1")
    view = gpu_node_view("a", grant(8 * FLOOR), devices=devices, limits=8 * FLOOR, acknowledged_on=acknowledged_on)
    info = info_of(view)
    assert info.power.committed == power_bound(8 * 450_000)
    assert not info.commandable
    assert info.proof_void
    assert not ready_node("a").proof_void
    assert not info_of(gpu_node_view("a", grant(8 * FLOOR))).proof_void, "nothing has been proven yet"


def test_a_node_of_unknown_gpus_is_planned_without_though_its_grant_is_acknowledged() -> None:
    """It stays at what it was granted: nobody can say what its jobs would draw, or what their limits may be."""
    nonsense = [raw_device(index, minMilliwatts=0, maxMilliwatts=0, defaultMilliwatts=0) for index in range(8)]
    view = gpu_node_view("a", grant(8 * FLOOR), devices=nonsense, limits=8 * FLOOR)
    info = info_of(view, product="Unheard-Of")
    assert info.gpu_model is None
    assert info.acknowledged
    assert not info.commandable
    assert not info_of(view, product="Unheard-Of", silent=True).late


BOOTED = {"status": {"nodeInfo": {"bootID": "boot-2"}}}


def doubted_info(node: Json | None, silent: float | None = None) -> NodeInfo:
    """A node that has acknowledged 100 W of each of its GPUs, which can be set to 450 W; `node` changes its Node."""
    devices = [raw_device(index, maxMilliwatts=450_000) for index in range(8)]
    view = gpu_node_view("a", grant(8 * FLOOR), devices=devices, limits=8 * FLOOR)
    raw = raw_node("a", 8)
    raw["status"] |= {} if node is None else node["status"]
    return read_nodes([read_node(raw)], {"a": view}, [], frozenset(), silent={} if silent is None else {"a": silent})[
        "a"
    ]


@pytest.mark.parametrize(
    ("node", "silent", "doubt"),
    [
        (BOOTED, None, "it has booted since its agent's last acknowledgement"),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, None, "its Node is not ready"),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, None, "its Node is not ready"),
        ({"status": {"conditions": []}}, None, "its Node is not ready"),
        (None, 80.2, "its agent has reported nothing for 80 s"),
        (BOOTED, 80.2, "it has booted since its agent's last acknowledgement"),  # why the agent is silent
    ],
    ids=["booted", "not ready", "unknown", "never said", "silent", "booted and silent"],
)
def test_an_acknowledgement_that_may_not_be_true_any_more_counts_for_nothing(
    node: Json | None, silent: float | None, doubt: str
) -> None:
    """A boot without an agent behind it is seen by the Node alone, and a dead agent by its silence."""
    info = doubted_info(node, silent)
    assert info.doubt == doubt
    assert info.power.committed == power_bound(8 * 450_000)
    assert info.power_if_believed == power_bound(8 * FLOOR)
    assert not info.commandable
    assert not info.schedulable


def test_no_doubt_lowers_what_was_read_back_above_the_largest_limits() -> None:
    """What the agent read back before it fell silent is in force until somebody shows otherwise."""
    read_back = 8 * DEFAULT + 100_000
    view = gpu_node_view("a", grant(8 * FLOOR), limits=read_back)
    info = read_nodes([node_view("a")], {"a": view}, [], frozenset(), silent={"a": 80.0})["a"]
    assert info.doubt != ""
    assert info.power.committed == power_bound(read_back)


@pytest.mark.parametrize("boot", ["boot-1", ""])
def test_a_node_in_the_boot_of_its_acknowledgement_is_believed(boot: str) -> None:
    """So is one whose kubelet reports no boot."""
    info = doubted_info({"status": {"nodeInfo": {"bootID": boot}}})
    assert (info.doubt, info.power.committed) == ("", power_bound(8 * FLOOR))
    assert info.schedulable


def test_a_node_that_nothing_was_acknowledged_of_is_new_and_not_in_doubt() -> None:
    raw = raw_node("a", 8, ready=False)
    assert read_nodes([read_node(raw)], {}, [], frozenset())["a"].doubt == ""
    view = gpu_node_view("a", grant(8 * FLOOR))
    assert read_nodes([read_node(raw)], {"a": view}, [], frozenset(), silent={"a": 80.0})["a"].doubt == ""
    assert sign_of_a_boot(read_node(raw), view) == ""
    assert sign_of_a_boot(None, view) == ""


def test_a_gpu_that_the_agent_does_not_see_is_lost_and_may_draw_the_most_that_it_can() -> None:
    info = ready_node("a", devices=7)
    assert info.gpus == 8
    assert info.lost_gpus == 1
    # The agent's grant provides for the smallest limit only; of the eighth nobody reads the limit back.
    assert info.power.committed.limit_milliwatts == 8 * FLOOR + DEFAULT


def test_unhealthy_gpus_are_lost() -> None:
    devices = [raw_device(index, healthy=index != 3) for index in range(8)]
    assert ready_node("a", devices=devices).lost_gpus == 1


def test_more_gpus_than_the_node_says() -> None:
    assert ready_node("a", gpus=4, devices=8).gpus == 8


@pytest.mark.parametrize(
    "nonsense",
    [
        {"minMilliwatts": 0, "maxMilliwatts": 0, "defaultMilliwatts": 0},
        {"minMilliwatts": 500_000},
        {"defaultMilliwatts": 450_000},
        {"maxMilliwatts": 1},
    ],
)
@pytest.mark.parametrize("how_many", [1, 8])
def test_gpus_that_report_nonsense_do_not_end_the_cycle(nonsense: Json, how_many: int) -> None:
    devices = [raw_device(index, **(nonsense if index < how_many else {})) for index in range(8)]
    info = info_of(gpu_node_view("a", grant(8 * FLOOR), devices=devices))
    assert info.gpu_model is not None  # the others', or the catalogue's
    assert info.gpu_model.min_power_limit_watts == 100.0
    assert info.power.committed.limit_milliwatts >= 8 * DEFAULT  # unknown limits are reserved like known ones
    assert info.min_limit_milliwatts >= FLOOR
    assert info.default_limit_milliwatts >= DEFAULT


def test_clocks_that_report_nonsense_do_not_either() -> None:
    device = {**raw_device(0), "clocksMegahertz": {"min": 0, "max": 1410, "step": 15}}
    assert info_of(gpu_node_view("a", grant(FLOOR), devices=[device]), gpus=1).gpu_model is not None


@pytest.mark.parametrize(
    ("pods", "foreign"),
    [
        ([running_pod("theirs", "a", gpus=3), running_pod("more", "a", gpus=1)], 4),
        ([running_pod("ours", "a", gpus=3, uid="uid-train")], 0),
        ([running_pod("elsewhere", "b", gpus=3)], 0),
        ([pod_view("done", gpus=3, node="a", phase="Succeeded")], 0),
        ([pod_view("waiting", gpus=3)], 0),
        ([running_pod("greedy", "a", gpus=12)], 8),
    ],
)
def test_foreign_pods(pods: list[PodView], foreign: int) -> None:
    assert read_nodes([node_view("a")], {}, pods, frozenset())["a"].foreign_gpus == foreign


def test_foreign_pods_hold_no_more_gpus_together_than_the_node_has() -> None:
    """In the order of their names: of a GPU that the first holds, nothing is left for the next."""
    pods = [running_pod("second", "a", gpus=5), running_pod("first", "a", gpus=5), running_pod("third", "a", gpus=1)]
    info = read_nodes([node_view("a")], {}, pods, frozenset())["a"]
    assert [(pod.name, pod.gpus) for pod in info.foreign_pods] == [("first", 5), ("second", 3)]


def test_a_node_that_vanished_counts_at_its_largest_limits_where_its_labels_were() -> None:
    """It may boot unseen: what Kubernetes would show of that is gone with the Node."""
    raw = raw_gpu_node("a", grant(8 * FLOOR), limits=8 * 250_000)
    raw["metadata"]["labels"] = {"rack": "r1"}
    nodes = read_nodes([], {"a": read_gpu_node(raw)}, [], frozenset())
    assert nodes["a"].power.committed.limit_milliwatts == 8 * 400_000
    assert nodes["a"].power_if_believed.limit_milliwatts == 8 * 250_000
    assert "its Node is gone" in nodes["a"].doubt
    assert nodes["a"].labels == {"rack": "r1"}
    assert not nodes["a"].schedulable


def test_a_gpu_node_of_no_node_whose_agent_has_seen_no_gpu_holds_what_it_was_granted() -> None:
    raw = raw_gpu_node("a", grant(8 * FLOOR), devices=[])
    assert read_nodes([], {"a": read_gpu_node(raw)}, [], frozenset())["a"].power.committed.limit_milliwatts == 8 * FLOOR


def test_facts_are_worked_out_anew_where_something_of_the_node_changes_and_only_there() -> None:
    known, view = KnownGpus(), gpu_node_view("a", grant(8 * FLOOR))
    facts = known.facts_of("a", node_view("a"), view)
    assert known.facts_of("a", node_view("a"), view) is facts
    assert known.facts_of("a", node_view("a", 9), view).gpus == 9
    assert known.facts_of("a", node_view("a", 9, product="Unheard-Of"), view).model != facts.model
    assert known.facts_of("a", node_view("a"), gpu_node_view("a", None, devices=[raw_device(0)])).lost_gpus == 7
    facts = known.facts_of("a", node_view("a"), view)
    known.forget_all_but(["a", "b"])
    assert known.facts_of("a", node_view("a"), view) is facts
    known.forget_all_but(["b"])
    assert known.facts_of("a", node_view("a"), view) is not facts


def test_nodes_without_gpus_are_no_nodes_of_ours() -> None:
    assert read_nodes([node_view("cpu", 0, product="")], {}, [], frozenset()) == {}


def test_no_pods_for_a_node_that_cannot_take_them() -> None:
    info = ready_node("a", unschedulable=True)
    assert info.commandable
    assert not info.schedulable


def test_a_silent_node_is_planned_around() -> None:
    info = info_of(gpu_node_view("a", grant(8 * FLOOR), limits=8 * FLOOR), silent=True)
    assert info.acknowledged
    assert not info.commandable


@pytest.mark.parametrize(
    ("pod", "uid", "expected"),
    [("train-0", "uid-train", True), ("train-1", "uid-train", False), ("train-0", "uid-other", False)],
)
def test_on_a_node_that_has_turned_late_only_those_pods_may_come_that_it_was_granted(
    pod: str, uid: str, expected: bool
) -> None:
    given = grant(8 * FLOOR, jobs=(job_grant("uid-first", FLOOR, 1), job_grant("uid-train", FLOOR, 2, pod="train-0")))
    view = gpu_node_view("a", given, limits=8 * FLOOR)
    late = info_of(view, silent=True)
    assert late.late
    assert not info_of(view).late
    assert late.expects(pod_view(pod, uid=uid, gpus=2)) == expected
    entry = late.granted(pod, uid)
    assert (entry is not None and (entry.pod_name, entry.uid, entry.gpus) == (pod, uid, 2)) == expected
    assert info_of(view).expects(pod_view(pod, uid=uid, gpus=2)), "grants sent there take effect"
    booted = gpu_node_view("a", given, limits=8 * FLOOR, acknowledged_on=("boot-0", "driver-1"))
    assert not info_of(booted).expects(pod_view(pod, uid=uid, gpus=2)), "nobody knows its limits"
    for of_node in ({"gpus": 0}, {"unschedulable": True}):
        (gone,) = read_nodes([node_view("a", **of_node)], {"a": view}, [], frozenset("a")).values()
        assert gone.late
        assert not gone.expects(pod_view(pod, uid=uid, gpus=2)), "no pod is placed there any more"


def test_measured_watts_are_the_sum_of_the_devices() -> None:
    assert ready_node("a").measured_milliwatts == 8 * 58_000
    assert info_of(None).measured_milliwatts == 0


def test_pictures_come_in_the_order_of_their_names() -> None:
    view = gpu_node_view("b", grant(FLOOR))
    assert list(read_nodes([node_view("c"), node_view("a")], {"b": view}, [], frozenset())) == ["a", "b", "c"]


def test_what_was_calibrated_stands_over_the_catalogue_and_what_a_device_says_over_both(tmp_path: Path) -> None:
    """The product is unknown to the catalogue, and idles at 33 W by its file; limits and clocks are the devices'."""
    path = tmp_path / "board.yaml"
    path.write_text(
        "product: Unheard-Of\nlimits: [100, 300, 250]\nidle: 33\nclocks: [300, 1500, 15]\n"
        "knee: 1200\nslope: 0.7\nspeed: 0.5\n"
    )
    models = Settings(gpu_model_files=(path,)).gpu_models
    node = [node_view("a", 8, product="Unheard-Of")]
    silent = read_nodes(node, {}, [], frozenset(), known=KnownGpus(models))["a"]
    assert silent.gpu_model == models["Unheard-Of"]
    assert silent.default_limit_milliwatts == 250_000
    devices = [raw_device(index, defaultMilliwatts=200_000) | {"model": "Unheard-Of"} for index in range(8)]
    told = read_nodes(node, {"a": gpu_node_view("a", None, devices=devices)}, [], frozenset(), known=KnownGpus(models))[
        "a"
    ]
    assert told.gpu_model is not None
    assert (told.gpu_model.idle_power_watts, told.gpu_model.knee_megahertz) == (33.0, 1200.0)
    assert told.gpu_model.default_power_limit_watts == 200.0
    assert Settings().gpu_models.keys() == models.keys() - {"Unheard-Of"}


# --- nodes that offer no GPUs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "capacity", "gpus"),
    [
        ({"nvidia.com/gpu.product": A100}, {}, 8),  # its device plugin is not up yet
        ({"nvidia.com/gpu.product": A100, "nvidia.com/gpu.count": "4"}, {}, 4),
        ({"nvidia.com/gpu.present": "true"}, {}, 8),
        ({"nvidia.com/gpu.count": "2"}, {}, 2),
        ({"feature.node.kubernetes.io/pci-10de.present": "true"}, {}, 8),  # nothing but feature discovery runs there
        ({"feature.node.kubernetes.io/pci-0302_10de.present": "true"}, {}, 8),
        ({}, {"nvidia.com/mig-1g.5gb": "56"}, 8),
        ({}, {"nvidia.com/gpu.shared": "16"}, 8),
        ({"nvidia.com/gpu.replicas": "4"}, {"nvidia.com/gpu": "32"}, 8),  # time slices
        ({"nvidia.com/gpu.replicas": "4"}, {"nvidia.com/gpu": "2"}, 1),
        ({"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "mps"}, {"nvidia.com/gpu": "32"}, 8),
        # MIG's strategy "single": instances by the name of GPUs, and their number in the label.
        ({"nvidia.com/gpu.product": f"{A100}-MIG-1g.5gb", "nvidia.com/gpu.count": "56"}, {"nvidia.com/gpu": "56"}, 8),
        (
            {"nvidia.com/gpu.product": f"{A100}-MIG-1g.5gb", "nvidia.com/gpu.count": "112"},
            {"nvidia.com/gpu": "112"},
            16,
        ),
        ({"nvidia.com/gpu.product": f"{A100}-MIG-3g.20gb"}, {}, 8),
        ({"nvidia.com/gpu.product": A100, "nvidia.com/gpu.count": "4"}, {"nvidia.com/mig-1g.5gb": "28"}, 8),
        ({"nvidia.com/gpu.present": "false"}, {"cpu": "64", "nvidia.com/mig-1g.5gb": "0"}, 0),
        ({"feature.node.kubernetes.io/pci-0200_15b3.present": "true"}, {"nvidia.com/hostdev": "8"}, 0),  # its network
        ({"nvidia.com/gpu.count": "many"}, {}, 0),
    ],
)
def test_a_node_counts_by_whatever_speaks_of_gpus(labels: Json, capacity: Json, gpus: int) -> None:
    raw = raw_node("a")
    raw["metadata"]["labels"] = labels
    raw["status"]["capacity"] = capacity
    nodes = read_nodes([read_node(raw)], {}, [], frozenset())
    assert {name: info.gpus for name, info in nodes.items()} == ({"a": gpus} if gpus else {})
    assert all(info.power.committed.limit_milliwatts > 0 and not info.schedulable for info in nodes.values())


def mixed_node() -> Json:
    """Four whole GPUs, and others that are partitioned: the strategy "mixed"."""
    raw = raw_node("a", 4)
    raw["metadata"]["labels"] |= {"nvidia.com/gpu.product": A100, "nvidia.com/gpu.count": "4"}
    raw["status"]["capacity"] |= {"nvidia.com/mig-1g.5gb": "21", "nvidia.com/mig-3g.20gb": "2"}
    return raw


def test_boards_that_are_partitioned_count_beside_those_that_are_not() -> None:
    """Four whole GPUs offered, and 23 instances: the boards below them draw, too, whoever has looked or not."""
    before = read_nodes([read_node(mixed_node())], {}, [], frozenset())["a"]
    assert before.gpus == 8
    seen = gpu_node_view("a", grant(7 * FLOOR), devices=7, limits=7 * FLOOR)
    after = read_nodes([read_node(mixed_node())], {"a": seen}, [], frozenset())["a"]
    assert (after.gpus, after.lost_gpus) == (7, 0), "by boards, each once"
    assert withheld_gpus([after], []) == {"a": 3}, "and jobs get none of the partitioned ones"


def test_pods_on_parts_of_gpus_hold_the_boards_that_the_agent_sees_them_on() -> None:
    """Two slices are one board or two, and of an instance the pod's own resources say nothing that counts boards."""
    raw = raw_node("a", 32)
    raw["metadata"]["labels"] |= {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "8"}
    pods = [running_pod("notebook", "a", gpus=2), running_pod("not-seen-yet", "a", gpus=4)]
    seen = [raw_device(index, pod=("team", "notebook") if index == 0 else None) for index in range(8)]
    given = gpu_node_view("a", grant(8 * FLOOR), devices=seen, limits=8 * FLOOR)
    assert read_nodes([read_node(raw)], {"a": given}, pods, frozenset())["a"].foreign_pods == (
        ForeignPod("team", "notebook", 1),
    )
    raw = raw_node("a", 0)
    raw["metadata"]["labels"] |= {"nvidia.com/gpu.count": "8"}
    raw["status"]["capacity"] |= {"nvidia.com/mig-3g.20gb": "16"}
    assert read_nodes([read_node(raw)], {"a": given}, [], frozenset())["a"].foreign_gpus == 1


def test_a_pod_on_a_part_of_a_gpu_weighs_as_any_other_does() -> None:
    """By its labels and its own wish, for as many boards as its agent names it for; without any it holds none."""
    raw = raw_node("a", 0)
    raw["metadata"]["labels"] |= {"nvidia.com/gpu.count": "8"}
    raw["status"]["capacity"] |= {"nvidia.com/mig-3g.20gb": "16"}
    labels = (("tier", "batch"),)
    pod = running_pod("batch", "a", gpus=0)
    batch = msgspec.structs.replace(pod, on_parts=True, power_permille=500, labels=labels)
    unseen = msgspec.structs.replace(batch, name="unseen")
    seen = [raw_device(index, pod=("team", "batch") if index < 2 else None) for index in range(8)]
    given = gpu_node_view("a", grant(8 * FLOOR), devices=seen, limits=8 * FLOOR)
    assert read_nodes([read_node(raw)], {"a": given}, [batch, unseen], frozenset())["a"].foreign_pods == (
        ForeignPod("team", "batch", 2, 500, labels),
    )


@pytest.mark.parametrize("slices", [False, True])
def test_no_pod_on_a_part_of_a_board_takes_watts_from_others_on_the_same_by_asking_for_few(slices: bool) -> None:
    """A board has one limit, and nobody but its agent knows who is on it: all on parts there must ask for less."""
    raw = raw_node("a", 32 if slices else 0)
    raw["metadata"]["labels"] |= {"nvidia.com/gpu.count": "8"}
    if slices:
        raw["metadata"]["labels"] |= {"nvidia.com/gpu.replicas": "4"}
    else:
        raw["status"]["capacity"] |= {"nvidia.com/mig-3g.20gb": "16"}
    pod = msgspec.structs.replace(running_pod("first", "a", gpus=int(slices)), on_parts=not slices)
    modest = msgspec.structs.replace(pod, power_permille=1)
    other = msgspec.structs.replace(pod, name="other")
    seen = [raw_device(index, pod=("team", "first") if index == 0 else None) for index in range(8)]
    given = gpu_node_view("a", grant(8 * FLOOR), devices=seen, limits=8 * FLOOR)

    def asked_by(*pods: PodView) -> list[int]:
        return [
            each.permille for each in read_nodes([read_node(raw)], {"a": given}, pods, frozenset())["a"].foreign_pods
        ]

    assert asked_by(modest) == [1]
    assert asked_by(modest, other) == [1000]
    assert asked_by(modest, msgspec.structs.replace(other, power_permille=500)) == [500]
    assert asked_by(msgspec.structs.replace(modest, name="second")) == [1000], "of a pod that only the agent knows yet"


def test_pods_with_gpus_of_their_own_hold_as_many_as_they_ask_for_whatever_the_agent_saw() -> None:
    """Its report may be older than a pod's end, or than another's beginning."""
    seen = [raw_device(index, pod=("team", "ended") if index < 4 else None) for index in range(8)]
    given = gpu_node_view("a", grant(8 * FLOOR), devices=seen, limits=8 * FLOOR)
    pods = [running_pod("begins", "a", gpus=2)]
    assert read_nodes([node_view("a")], {"a": given}, pods, frozenset())["a"].foreign_pods == (
        ForeignPod("team", "begins", 2),
    )


def test_pods_on_parts_of_gpus_hold_what_they_ask_for_until_the_agent_has_looked() -> None:
    raw = raw_node("a", 32)
    raw["metadata"]["labels"] |= {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "8"}
    pods, unseen = [running_pod("notebook", "a", gpus=2)], gpu_node_view("a", grant(8 * FLOOR), devices=0)
    assert read_nodes([read_node(raw)], {"a": unseen}, pods, frozenset())["a"].foreign_gpus == 2


def test_on_a_node_of_whole_and_partitioned_gpus_neither_ours_nor_what_starts_is_missed() -> None:
    pods = [running_pod("ours", "a", gpus=1, uid="uid-train"), running_pod("starts", "a", gpus=2)]
    holders = [("team", "ours"), ("team", "slice"), None, None, None, None, None]
    seen = [raw_device(index, pod=holder) for index, holder in enumerate(holders)]
    given = gpu_node_view("a", grant(7 * FLOOR), devices=seen, limits=7 * FLOOR)
    assert read_nodes([read_node(mixed_node())], {"a": given}, pods, frozenset())["a"].foreign_pods == (
        ForeignPod("team", "slice", 1),
        ForeignPod("team", "starts", 2),
    )


def test_who_holds_whole_gpus_of_a_mixed_node_says_nothing_of_what_pods_on_its_parts_ask_for() -> None:
    whole = running_pod("whole", "a", gpus=2)
    part = msgspec.structs.replace(running_pod("part", "a", gpus=0), on_parts=True, power_permille=1)
    holders = [("team", "whole"), ("team", "part"), None, None, None, None, None]
    seen = [raw_device(index, pod=holder) for index, holder in enumerate(holders)]
    given = gpu_node_view("a", grant(7 * FLOOR), devices=seen, limits=7 * FLOOR)
    found = read_nodes([read_node(mixed_node())], {"a": given}, [whole, part], frozenset())["a"].foreign_pods
    assert {pod.name: (pod.gpus, pod.permille) for pod in found} == {"whole": (2, 1000), "part": (1, 1)}


def test_instances_that_go_by_the_name_of_gpus_are_no_phantom_boards() -> None:
    raw = raw_node("a", 56)
    raw["metadata"]["labels"] |= {"nvidia.com/gpu.product": f"{A100}-MIG-1g.5gb", "nvidia.com/gpu.count": "56"}
    seen = gpu_node_view("a", grant(8 * FLOOR), devices=8, limits=8 * FLOOR)
    info = read_nodes([read_node(raw)], {"a": seen}, [], frozenset())["a"]
    assert (info.gpus, info.lost_gpus) == (8, 0)
    assert not info.schedulable, "no pod has a GPU to itself there"


def test_what_the_agent_sees_stands_over_a_guess() -> None:
    raw = raw_node("a", 0)
    info = read_nodes([read_node(raw)], {"a": gpu_node_view("a", grant(2 * FLOOR), devices=2)}, [], frozenset())["a"]
    assert (info.gpus, info.lost_gpus) == (2, 0)


def test_a_node_with_a_gpu_node_counts_with_its_node_whatever_that_offers() -> None:
    """So a reboot is noticed, and its labels of now count, also where its device plugin is away."""
    raw = raw_node("a", 0, product="")
    raw["metadata"]["labels"] = {"row": "1"}
    raw["status"]["nodeInfo"] = {"bootID": "boot-2"}
    given = gpu_node_view("a", grant(8 * FLOOR), limits=8 * FLOOR)
    info = read_nodes([read_node(raw)], {"a": given}, [], frozenset())["a"]
    assert info.node is not None
    assert info.labels == {"row": "1"}
    assert info.doubt != ""
    assert not info.schedulable


def test_a_node_that_offers_no_gpus_takes_no_pods() -> None:
    info = read_nodes(
        [node_view("a", 0)], {"a": gpu_node_view("a", grant(8 * FLOOR), limits=8 * FLOOR)}, [], frozenset()
    )["a"]
    assert info.commandable
    assert not info.schedulable


def test_the_caps_of_a_node_are_those_that_its_grant_names() -> None:
    assert info_of(gpu_node_view("a", grant(8 * FLOOR, caps=("hall", "row")))).named_caps == ("hall", "row")
    assert info_of(gpu_node_view("a", grant(8 * FLOOR))).named_caps == ()
    assert info_of(None).named_caps == ()


def test_a_node_is_closed_while_it_has_its_startup_taint() -> None:
    tainted = node_view("a", taints=[{"key": STARTUP_TAINT, "effect": "NoSchedule"}])
    assert read_nodes([tainted], {}, [], frozenset())["a"].is_closed
    assert not info_of(None).is_closed
    assert not read_nodes([], {"a": STANDING}, [], frozenset())["a"].is_closed, "a Node that is gone keeps nobody away"


def test_each_set_of_labels_that_a_node_had_is_kept_once() -> None:
    now, before, earlier = {"row": "3"}, {"row": "2"}, {"row": "1"}
    metadata = msgspec.structs.replace(STANDING.metadata, labels=before)
    view = replace(STANDING, metadata=metadata, former_labels=(earlier, before, now, earlier))
    assert former_labels(now, view) == (before, earlier)
    assert former_labels(now, None) == ()


def test_an_agent_follows_brakes_where_it_says_what_it_holds_its_limits_to() -> None:
    with_bound = raw_gpu_node("a", grant(8 * FLOOR), limits=8 * FLOOR)
    with_bound["status"]["acknowledged"]["boundMilliwatts"] = 8 * FLOOR
    assert info_of(read_gpu_node(with_bound)).follows_brakes
    assert not info_of(gpu_node_view("a", grant(8 * FLOOR), limits=8 * FLOOR)).follows_brakes
    assert not info_of(gpu_node_view("a", grant(8 * FLOOR))).follows_brakes  # it has acknowledged nothing
    assert not info_of(None).follows_brakes


STANDING = gpu_node_view("a", grant(8 * FLOOR), limits=8 * FLOOR)
AS_IT_IS: Json = {
    "nodes": [node_view("a"), node_view("b")],
    "gpu_nodes": {"a": STANDING},
    "pods": [],
    "unresponsive": frozenset(),
    "silent": {},
}


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": [node_view("a", ready=False), AS_IT_IS["nodes"][1]]},
        {"nodes": [AS_IT_IS["nodes"][1]]},
        {"gpu_nodes": {"a": gpu_node_view("a", grant(8 * FLOOR, generation=2), limits=8 * FLOOR)}},
        {"gpu_nodes": {"a": replace(STANDING, grant=grant(8 * FLOOR, generation=2))}},  # the same reports
        {"gpu_nodes": {}},
        {"pods": [running_pod("theirs", "a", uid="", gpus=2)]},
        {"unresponsive": frozenset(["a"])},
        {"silent": {"a": 80.0}},
    ],
)
def test_only_a_node_of_which_something_has_changed_is_read_anew(change: Json) -> None:
    memory: dict[Any, Any] = {}
    known = KnownGpus()
    first = read_nodes(**AS_IT_IS, known=known, memory=memory)
    assert read_nodes(**AS_IT_IS, known=known, memory=memory)["a"] is first["a"]
    changed = {**AS_IT_IS, **change}
    found = read_nodes(**changed, known=known, memory=memory)
    assert found == read_nodes(**changed, known=KnownGpus())
    assert found["a"] != first["a"]
    assert found["b"] is first["b"]


def test_nothing_is_remembered_of_a_node_that_is_gone() -> None:
    memory: Json = {}
    known = KnownGpus()
    read_nodes(**AS_IT_IS, memory=memory, known=known)
    facts = known.facts_of("b", node_view("b"), None)
    read_nodes(**{**AS_IT_IS, "nodes": [], "gpu_nodes": {}}, memory=memory, known=known)
    assert memory == {}
    assert known.facts_of("b", node_view("b"), None) is not facts
