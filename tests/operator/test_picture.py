"""Each node as one picture: what it is, what it may draw, and whether it can be planned with."""

from __future__ import annotations

from pathlib import Path

import pytest
from flyball_operator.gpu_nodes import GpuNodeView, read_gpu_node
from flyball_operator.hold import Hold
from flyball_operator.picture import NodePicture, picture_nodes
from flyball_operator.settings import Settings
from flyball_operator.workloads import PodView
from flyball_planner.gpu_models import LARGEST_DEFAULT_LIMIT_WATTS
from operator_objects import (
    A100,
    DEFAULT,
    FLOOR,
    Json,
    gpu_node_view,
    grant,
    node_view,
    pod_view,
    raw_device,
    raw_gpu_node,
    ready_picture,
    running_pod,
)

UNKNOWN = round(LARGEST_DEFAULT_LIMIT_WATTS * 1000)


def picture_of(
    gpu_node: GpuNodeView | None, *, gpus: int = 8, product: str = A100, silent: bool = False
) -> NodePicture:
    views = {} if gpu_node is None else {"a": gpu_node}
    return picture_nodes([node_view("a", gpus, product=product)], views, [], frozenset(["a"] if silent else []))["a"]


def test_a_new_node_is_reserved_at_its_defaults_by_the_catalogue() -> None:
    picture = picture_of(None)
    assert picture.power.worst == Hold(8 * DEFAULT, 8 * DEFAULT)
    assert picture.power.grant is None
    assert (picture.floor_milliwatts, picture.default_milliwatts, picture.max_milliwatts) == (
        FLOOR,
        DEFAULT,
        8 * DEFAULT,
    )
    assert not picture.acknowledged
    assert not picture.commandable


def test_gpus_that_nobody_knows_are_reserved_at_the_largest_default_there_is() -> None:
    picture = picture_of(None, product="Unheard-Of")
    assert picture.power.worst.limit_milliwatts == 8 * UNKNOWN
    assert (picture.floor_milliwatts, picture.default_milliwatts) == (0, UNKNOWN)
    assert not picture.commandable


def test_the_agents_word_on_them_is_taken() -> None:
    devices = [
        raw_device(index, minMilliwatts=150_000, defaultMilliwatts=300_000, maxMilliwatts=350_000) for index in range(8)
    ]
    picture = picture_of(
        gpu_node_view("a", grant(8 * 150_000), devices=devices, limits=8 * 150_000), product="Unheard-Of"
    )
    assert picture.commandable
    assert picture.gpu_model is not None
    assert picture.gpu_model.min_power_limit_watts == 150.0
    assert picture.gpu_model.clocks_megahertz[0] == 210
    assert picture.gpu_model.clocks_megahertz[-1] == 1410
    assert (picture.floor_milliwatts, picture.default_milliwatts, picture.max_milliwatts) == (
        150_000,
        300_000,
        8 * 350_000,
    )


def test_a_first_grant_without_an_answer_changes_nothing() -> None:
    """Once written, the GPUNode has no devices yet: they must not count a second time."""
    sent = grant(8 * FLOOR, worst=8 * DEFAULT)
    assert picture_of(gpu_node_view("a", sent, devices=0)).power.worst == Hold(8 * DEFAULT, 8 * DEFAULT)
    assert picture_of(gpu_node_view("a", sent)).power.worst == Hold(8 * DEFAULT, 8 * DEFAULT)


def test_an_acknowledged_node_holds_what_it_was_granted() -> None:
    picture = ready_picture("a")
    assert picture.power.worst == Hold(8 * FLOOR, 8 * FLOOR)
    assert picture.power.accepted == (1, 1)
    assert picture.commandable
    assert picture.schedulable


def test_a_rebooted_node_is_back_at_its_defaults() -> None:
    view = gpu_node_view("a", grant(8 * FLOOR), limits=8 * FLOOR, acknowledged_on=("boot-0", "driver-1"))
    picture = picture_of(view)
    assert picture.power.worst == Hold(8 * DEFAULT, 8 * DEFAULT)
    assert not picture.commandable


def test_a_gpu_that_the_agent_does_not_see_is_lost_and_at_its_default() -> None:
    picture = ready_picture("a", devices=7)
    assert picture.gpus == 8
    assert picture.lost_gpus == 1
    # The agent's grant provides for the smallest limit only; the eighth may stand at its default.
    assert picture.power.worst.limit_milliwatts == 8 * FLOOR + DEFAULT


def test_unhealthy_gpus_are_lost() -> None:
    devices = [raw_device(index, healthy=index != 3) for index in range(8)]
    assert ready_picture("a", devices=devices).lost_gpus == 1


def test_more_gpus_than_the_node_says() -> None:
    assert ready_picture("a", gpus=4, devices=8).gpus == 8


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
    picture = picture_of(gpu_node_view("a", grant(8 * FLOOR), devices=devices))
    assert picture.gpu_model is not None  # the others', or the catalogue's
    assert picture.gpu_model.min_power_limit_watts == 100.0
    assert picture.power.worst.limit_milliwatts >= 8 * DEFAULT  # unknown limits are reserved like known ones
    assert picture.floor_milliwatts >= FLOOR
    assert picture.default_milliwatts >= DEFAULT


def test_clocks_that_report_nonsense_do_not_either() -> None:
    device = {**raw_device(0), "clocksMegahertz": {"min": 0, "max": 1410, "step": 15}}
    assert picture_of(gpu_node_view("a", grant(FLOOR), devices=[device]), gpus=1).gpu_model is not None


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
    assert picture_nodes([node_view("a")], {}, pods, frozenset())["a"].foreign_gpus == foreign


def test_a_node_that_vanished_keeps_its_hold_and_its_labels_until_its_gpu_node_is_deleted() -> None:
    raw = raw_gpu_node("a", grant(8 * FLOOR), limits=8 * 250_000)
    raw["metadata"]["labels"] = {"rack": "r1"}
    pictures = picture_nodes([], {"a": read_gpu_node(raw)}, [], frozenset())
    assert pictures["a"].power.worst.limit_milliwatts == 8 * 250_000
    assert pictures["a"].labels == {"rack": "r1"}
    assert pictures["a"].commandable
    assert not pictures["a"].schedulable


def test_nodes_without_gpus_are_no_nodes_of_ours() -> None:
    assert picture_nodes([node_view("cpu", 0)], {}, [], frozenset()) == {}


@pytest.mark.parametrize("node", [{"ready": False}, {"unschedulable": True}])
def test_no_pods_for_a_node_that_cannot_take_them(node: Json) -> None:
    picture = ready_picture("a", **node)
    assert picture.commandable
    assert not picture.schedulable


def test_a_silent_node_is_planned_around() -> None:
    picture = picture_of(gpu_node_view("a", grant(8 * FLOOR), limits=8 * FLOOR), silent=True)
    assert picture.acknowledged
    assert not picture.commandable


def test_measured_watts_are_the_sum_of_the_devices() -> None:
    assert ready_picture("a").measured_milliwatts == 8 * 58_000
    assert picture_of(None).measured_milliwatts == 0


def test_pictures_come_in_the_order_of_their_names() -> None:
    view = gpu_node_view("b", grant(FLOOR))
    assert list(picture_nodes([node_view("c"), node_view("a")], {"b": view}, [], frozenset())) == ["a", "b", "c"]


def test_what_was_calibrated_stands_over_the_catalogue_and_what_a_device_says_over_both(tmp_path: Path) -> None:
    """The product is unknown to the catalogue, and idles at 33 W by its file; limits and clocks are the devices'."""
    path = tmp_path / "board.yaml"
    path.write_text(
        "product: Unheard-Of\nlimits: [100, 300, 250]\nidle: 33\nclocks: [300, 1500, 15]\n"
        "knee: 1200\nslope: 0.7\nspeed: 0.5\n"
    )
    models = Settings(gpu_model_files=(path,)).gpu_models
    node = [node_view("a", 8, product="Unheard-Of")]
    silent = picture_nodes(node, {}, [], frozenset(), models)["a"]
    assert silent.gpu_model == models["Unheard-Of"]
    assert silent.default_milliwatts == 250_000
    devices = [raw_device(index, defaultMilliwatts=200_000, model="Unheard-Of") for index in range(8)]
    told = picture_nodes(node, {"a": gpu_node_view("a", None, devices=devices)}, [], frozenset(), models)["a"]
    assert told.gpu_model is not None
    assert (told.gpu_model.idle_power_watts, told.gpu_model.knee_megahertz) == (33.0, 1200.0)
    assert told.gpu_model.default_power_limit_watts == 200.0
    assert Settings().gpu_models.keys() == models.keys() - {"Unheard-Of"}
