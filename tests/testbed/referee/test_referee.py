"""The referee on hardware files that the simulated driver writes and it reads by the definition alone."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_testbed.referee.claims import Answer, CapClaim, PlainApi, bound_between, selects
from flyball_testbed.referee.hardware import HardwareReader, Sample
from flyball_testbed.referee.judge import Judge

from tests.support.waiting import wait_until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]


def cap(
    watts: int | None = 1000,
    *,
    effective: int | None = None,
    enforced: bool | None = True,
    generation: int = 1,
    observed: int | None = None,
    **spec: Any,
) -> dict[str, Any]:
    condition = {"type": "Enforced", "status": str(enforced), "observedGeneration": observed or generation}
    return {
        "metadata": {"name": "all", "generation": generation},
        "spec": ({} if watts is None else {"watts": watts}) | spec,
        "status": {
            "effectiveWatts": watts if effective is None else effective,
            "conditions": [] if enforced is None else [condition],
        },
    }


def claim(*args: Any, **kwargs: Any) -> CapClaim:
    return CapClaim.read(cap(*args, **kwargs))


# --- what a sample is held to


@pytest.mark.parametrize(
    ("before", "after", "bound"),
    [
        pytest.param(claim(), claim(), 1000, id="steady"),
        pytest.param(claim(enforced=None), claim(), None, id="not claimed yet"),
        pytest.param(claim(enforced=False), claim(), None, id="claim comes after the sample"),
        pytest.param(claim(), claim(enforced=False), None, id="withdrawn at an unknown instant"),
        pytest.param(claim(), None, None, id="cap deleted"),
        pytest.param(claim(), claim(600, effective=1000, generation=2, observed=1), 1000, id="lowered, not seen yet"),
        pytest.param(claim(), claim(600, enforced=False, generation=2), 1000, id="being lowered"),
        pytest.param(claim(), claim(600, generation=2), 1000, id="lowered and enforced in between"),
        pytest.param(
            claim(), claim(600, effective=1000, enforced=False, generation=2, observed=1), 1000, id="lowering"
        ),
        pytest.param(claim(), claim(1500, effective=1000, generation=2, observed=1), 1500, id="raised in between"),
        pytest.param(claim(), claim(1500, generation=2), 1500, id="raised and enforced in between"),
        pytest.param(claim(), claim(1500, enforced=False, generation=2), 1500, id="being raised"),
        pytest.param(
            claim(1500, effective=1000, generation=2, observed=1), claim(1500, generation=2), 1500, id="raise was out"
        ),
        pytest.param(claim(600, generation=2), claim(600, generation=2), 600, id="the lower one holds"),
        pytest.param(claim(1000, effective=700), claim(1000, effective=700), 700, id="a schedule lowers it"),
        pytest.param(claim(1000, effective=700), claim(1000), 1000, id="the schedule ends"),
        pytest.param(claim(None, effective=700), claim(None, effective=700), 700, id="permille"),
        pytest.param(
            claim(None, effective=700, generation=2, observed=1),
            claim(None, effective=900, generation=2),
            None,
            id="permille changed, watts not known yet",
        ),
    ],
)
def test_what_a_sample_between_two_answers_is_held_to(
    before: CapClaim, after: CapClaim | None, bound: int | None
) -> None:
    assert bound_between(before, after) == bound


def test_selectors_take_nodes_as_kubernetes_does() -> None:
    labels = {"rack": "a", "gpu": "a100"}
    assert selects({"matchLabels": {"rack": "a"}}, labels)
    assert not selects({"matchLabels": {"rack": "b"}}, labels)
    for expression, taken in [
        ({"key": "rack", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "row", "operator": "In", "values": ["a"]}, False),
        ({"key": "row", "operator": "NotIn", "values": ["a"]}, True),
        ({"key": "rack", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "rack", "operator": "Exists"}, True),
        ({"key": "rack", "operator": "DoesNotExist"}, False),
    ]:
        assert selects({"matchExpressions": [expression]}, labels) is taken


# --- judging


def sample(start_ms: int, watts: dict[str, tuple[int, int]]) -> Sample:
    """`watts`: node -> (limits, true)."""
    limits, power = (np.array([pair[index] * 1000 for pair in watts.values()], np.int64) for index in (0, 1))
    unseen = np.zeros(len(power), np.float64)
    nodes = tuple(watts)
    return Sample(start_ms * 10**6, start_ms * 10**6 + 1, nodes, limits, limits, limits, power, unseen)


def answer(sent_ms: int, received_ms: int, *caps: dict[str, Any]) -> Answer:
    claims = [CapClaim.read(each) for each in caps]
    return Answer(sent_ms * 10**6, received_ms * 10**6, {each.name: each for each in claims})


def test_only_samples_inside_a_claim_count(tmp_path: Path) -> None:
    judge = Judge(tmp_path / "referee.csv", 0)
    over = {"a": (1500, 1200)}
    judge.answer(answer(0, 10, cap(enforced=False)))
    judge.sample(sample(20, over))  # before the claim
    judge.answer(answer(30, 40, cap()))
    judge.sample(sample(35, over))  # began before the claim was received
    judge.sample(sample(50, {"a": (900, 800)}))
    judge.answer(answer(60, 70, cap()))
    judge.sample(sample(80, {"a": (1001, 1000)}))
    judge.answer(answer(90, 100, cap()))
    assert judge.records["all"].max_limits_over_watts == 1.0
    assert judge.records["all"].max_true_over_watts == 0.0
    judge.sample(sample(110, over))  # the claim is withdrawn before or after it
    judge.answer(answer(120, 130, cap(enforced=False)))
    record = judge.records["all"]
    assert (record.max_limits_over_watts, record.limits_over_joules) == (1.0, pytest.approx(1.0 * 0.030))
    assert record.unjudged_seconds == pytest.approx(0.030)
    judge.close()
    with (tmp_path / "referee.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["enforced_cap_watts"] for row in rows] == ["", "", "1000", "1000", ""]
    assert [float(row["limits_over_watts"]) for row in rows] == [0, 0, 0, 1, 0]


def test_an_answer_under_way_during_the_sample_counts_on_both_sides(tmp_path: Path) -> None:
    judge = Judge(tmp_path / "referee.csv", 0)
    judge.answer(answer(0, 10, cap()))
    judge.sample(sample(100, {"a": (1200, 0)}))
    judge.answer(answer(95, 105, cap(enforced=False)))
    judge.answer(answer(110, 120, cap()))
    assert judge.records["all"].max_limits_over_watts == 0.0
    assert judge.records["all"].unjudged_seconds == 0.0  # it is the first sample: no time has passed before it
    judge.sample(sample(130, {"a": (1200, 0)}))
    judge.answer(answer(140, 150, cap()))
    assert judge.records["all"].max_limits_over_watts == 200.0


def test_caps_have_their_own_nodes_overhead_and_kind(tmp_path: Path) -> None:
    judge = Judge(tmp_path / "referee.csv", 0)
    judge.labels = {"a": {"rack": "1"}, "b": {"rack": "2"}}
    rack = cap(500, nodeSelector={"matchLabels": {"rack": "1"}}, staticOverheadWatts=50)
    expected = cap(700, enforcement="Expected")
    expected["metadata"]["name"] = "expected"
    judge.answer(answer(0, 10, rack, expected))
    judge.sample(sample(20, {"a": (460, 300), "b": (400, 420)}))
    judge.answer(answer(30, 40, rack, expected))
    assert judge.records["all"].max_limits_over_watts == 10.0
    assert judge.records["all"].max_true_over_watts == 0.0
    assert judge.records["expected"].max_limits_over_watts == 0.0
    assert judge.records["expected"].max_true_over_watts == 20.0


def test_each_value_is_noted_when_it_is_first_reported_as_enforced(tmp_path: Path) -> None:
    judge = Judge(tmp_path / "referee.csv", 0)
    judge.answer(answer(0, 100, cap()))
    judge.answer(answer(200, 300, cap(600, effective=1000, generation=2, observed=1)))
    judge.answer(answer(400, 500, cap(600, enforced=False, generation=2)))
    judge.answer(answer(600, 700, cap(600, generation=2)))
    judge.answer(answer(800, 900, cap(600, generation=2)))
    assert judge.records["all"].enforced == [{"watts": 1000.0, "seconds": 0.1}, {"watts": 600.0, "seconds": 0.7}]


# --- the hardware


def test_it_reads_what_the_driver_writes(tmp_path: Path) -> None:
    for name in ("node-0", "node-1"):
        create_node_file(tmp_path / f"{name}.gpus", devices=[A100] * 4)
    reader = HardwareReader(tmp_path)
    with SimulatedNode.open(tmp_path / "node-1.gpus") as node:
        node.devices[0].set_activity(0.7)
        node.devices[1].set_activity(0.7)
        node.devices[1].set_power_limit_milliwatts(150_000)
        earlier = sum(device.read().energy_millijoules for device in node.devices)
        read = reader.read()
        states = [device.read() for device in node.devices]
        assert read is not None
        assert read.nodes == ("node-0", "node-1")
        assert read.power.tolist() == [4 * 58_000, sum(state.power_milliwatts for state in states)]
        assert read.limits.tolist() == [1_600_000, 1_350_000]
        assert earlier <= read.energy[1] <= sum(state.energy_millijoules for state in states)


def test_a_settling_limit_counts_as_the_larger_until_it_has_settled(tmp_path: Path) -> None:
    create_node_file(tmp_path / "n.gpus", devices=[A100], settle_milliseconds=300)
    reader = HardwareReader(tmp_path)
    with SimulatedNode.open(tmp_path / "n.gpus") as node:
        node.devices[0].set_activity(0.7)
        top = node.devices[0].read().power_milliwatts
        node.devices[0].set_power_limit_milliwatts(150_000)
        settling = reader.read()
        assert settling is not None
        if settling.enforced[0] == 400_000:  # not yet settled when we read it
            assert (settling.requested[0], settling.limits[0], settling.power[0]) == (150_000, 400_000, top)

        def settled() -> bool:
            now = reader.read()
            return now is not None and now.limits[0] == 150_000 and now.power[0] <= 150_000

        wait_until(settled, "the limit has settled without anybody writing the file")
        state, read = node.devices[0].read(), reader.read()
        assert read is not None
        assert read.energy[0] >= state.energy_millijoules


def test_a_writer_killed_inside_its_write_leaves_the_old_state(tmp_path: Path) -> None:
    path = tmp_path / "n.gpus"
    create_node_file(path, devices=[A100, A100])
    with SimulatedNode.open(path) as node:
        node.devices[1].set_power_limit_milliwatts(250_000)
        node.devices[1].set_power_limit_milliwatts(200_000)  # the undo copy now holds 250 W
    content = bytearray(path.read_bytes())
    content[256 + 512] += 1
    path.write_bytes(content)
    read = HardwareReader(tmp_path).read()
    assert read is not None
    assert read.limits[0] == 400_000 + 250_000


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n.gpus").write_bytes(b"GPUs, surely" + bytes(1000))
    with pytest.raises(ValueError, match=r"n\.gpus: not the hardware file"):
        HardwareReader(tmp_path).read()


# --- the process


@pytest.mark.slow
def test_the_process_catches_one_watt_for_a_moment(tmp_path: Path) -> None:
    """Limits above an enforced cap for a few samples: the most watts, the joules, and the energy integral."""
    hardware = tmp_path / "hardware"
    hardware.mkdir()
    for index in range(2):
        create_node_file(hardware / f"node-{index}.gpus", devices=[A100] * 4)
    caps = tmp_path / "caps.json"
    caps.write_text(json.dumps([cap(3200)]))
    summary, rows = tmp_path / "referee.json", tmp_path / "referee.csv"

    def read() -> dict[str, Any]:
        return dict(json.loads(summary.read_text())) if summary.exists() else {}

    arguments = ["--hardware", hardware, "--csv", rows, "--summary", summary, "--caps", caps, "--hertz", "50"]
    process = subprocess.Popen([sys.executable, "-m", "flyball_testbed.referee", *map(str, arguments)])
    try:
        wait_until(lambda: read().get("caps", {}).get("all", {}).get("judged_seconds", 0) > 0, "judging")
        assert read()["caps"]["all"]["max_limits_over_watts"] == 0.0
        with SimulatedNode.open(hardware / "node-0.gpus") as node:
            node.devices[0].set_power_limit_milliwatts(399_000)
            (tmp_path / "new").write_text(json.dumps([cap(3198, generation=2)]))
            (tmp_path / "new").rename(caps)
            wait_until(lambda: read()["caps"]["all"]["max_limits_over_watts"] > 0, "the watt is seen")
            node.devices[0].set_activity(0.6)
            samples = read()["samples"]
            wait_until(lambda: read()["samples"] > samples + 50, "a second of samples")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    books = read()
    assert books["caps"]["all"]["max_limits_over_watts"] == 1.0
    assert books["caps"]["all"]["max_true_over_watts"] == 0.0
    assert books["caps"]["all"]["limits_over_joules"] > 0
    assert books["joules"] == pytest.approx(books["counter_joules"], rel=0.03)
    with rows.open() as file:
        written = list(csv.DictReader(file))
    assert len(written) >= books["samples"] - 1
    assert max(float(row["limits_over_watts"]) for row in written) == 1.0
    assert float(written[-1]["joules"]) == pytest.approx(books["joules"], rel=0.01)


def test_plain_api_refuses_a_server_that_is_not_there(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [
                    {"name": "c", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority": "ca"}}
                ],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    (tmp_path / "ca").write_bytes(trustme.CA().cert_pem.bytes())
    with pytest.raises(OSError, match="refused"):
        PlainApi(kubeconfig).list("/api/v1/nodes")
