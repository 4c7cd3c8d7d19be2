"""The catalogue of GPU models, and models built from what a device says of itself."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from flyball_planner.models.gpu import (
    LARGEST_DEFAULT_LIMIT_WATTS,
    MAX_FILE_BYTES,
    GpuModel,
    catalogue,
    gpu_model_for,
    gpu_model_from_file,
    gpu_models_from_file,
)


def test_labels_as_gpu_feature_discovery_writes_them_are_known() -> None:
    for label in ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "Tesla-V100-SXM2-16GB"):
        model = gpu_model_for(label)
        assert model is not None
        assert model.product == label
    assert gpu_model_for("NVIDIA-A100-SXM4-40GB-SHARED") == gpu_model_for("NVIDIA A100-SXM4-40GB")
    assert gpu_model_for("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb") is None
    assert gpu_model_for("a board of tomorrow") is None


def test_every_number_of_the_catalogue_names_its_source() -> None:
    text = resources.files("flyball_planner.models").joinpath("gpu_catalogue.json").read_text(encoding="utf-8")
    document = json.loads(text)
    for entry in document["models"]:
        assert set(entry["source"]) == set(entry) - {"product", "source"}, entry["product"]
        assert set(entry["source"].values()) <= set(document["sources"]), entry["product"]
    used = {source for entry in document["models"] for source in entry["source"].values()}
    assert used == set(document["sources"]), "no source is named for nothing"


def test_newer_boards_say_that_their_power_curve_is_the_a100s_at_the_same_share_of_the_clock() -> None:
    text = resources.files("flyball_planner.models").joinpath("gpu_catalogue.json").read_text(encoding="utf-8")
    entries = {entry["product"]: entry for entry in json.loads(text)["models"]}
    a100 = catalogue()["NVIDIA-A100-SXM4-40GB"]
    for product in ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H200", "NVIDIA-B200", "NVIDIA-GB200", "NVIDIA-L40S"):
        model, source = catalogue()[product], entries[product]["source"]
        assert (source["knee"], source["slope"]) == ("like-a100", "like-a100")
        assert model.knee_megahertz / model.max_clock_megahertz == pytest.approx(
            a100.knee_megahertz / a100.max_clock_megahertz, abs=0.005
        )
        assert model.voltage_slope == a100.voltage_slope
        assert "not measured" in json.loads(text)["sources"]["like-a100"]
    assert [catalogue()[f"NVIDIA-{name}"].max_power_limit_watts for name in ("B200", "GB200", "L40S")] == [
        1000,
        1200,
        350,
    ]


def test_the_papers_break_of_the_v100_is_the_published_one() -> None:
    assert catalogue()["Tesla-V100-PCIE-16GB"].break_megahertz == 1020
    assert catalogue()["NVIDIA-A100-SXM4-40GB"].break_megahertz == 0, "the knee is taken"


def test_the_catalogue_holds_what_the_boards_report() -> None:
    a100 = catalogue()["NVIDIA-A100-SXM4-40GB"]
    assert (a100.min_power_limit_watts, a100.default_power_limit_watts, a100.max_power_limit_watts) == (100, 400, 400)
    assert a100.clocks_megahertz == tuple(range(210, 1411, 15))
    v100 = catalogue()["Tesla-V100-PCIE-16GB"]
    assert v100.clocks_megahertz[-3:] == (1365, 1372, 1380), "V100 clocks are 7.5 MHz apart, truncated"
    assert max(model.default_power_limit_watts for model in catalogue().values()) <= LARGEST_DEFAULT_LIMIT_WATTS


def test_voltage_is_flat_up_to_the_knee_and_linear_above() -> None:
    gpu = GpuModel("test", 100.0, 400.0, 400.0, 50.0, (500, 1000, 2000), knee_megahertz=1000.0, voltage_slope=0.5)
    assert gpu.voltage(np.array([500.0, 1000.0, 1500.0, 2000.0])).tolist() == [1.0, 1.0, 1.125, 1.25]


def test_the_a100_curve_is_what_perseus_measured() -> None:
    """Power of one forward of GPT-3 on A100 (Perseus, stage 0): 235 W at 855 MHz, 305 at 1125, 474 at 1395."""
    gpu = catalogue()["NVIDIA-A100-SXM4-40GB"]
    clocks = np.array([855.0, 1125.0, 1395.0])
    voltage = gpu.voltage(clocks)
    dynamic = voltage**2 * clocks
    activity = (305 - gpu.idle_power_watts * voltage[1]) / dynamic[1]
    assert gpu.idle_power_watts * voltage + activity * dynamic == pytest.approx([235, 305, 474], rel=0.07)


def test_a_known_device_reports_its_limits_and_the_catalogue_gives_the_rest() -> None:
    gpu = GpuModel.from_device("NVIDIA-A100-SXM4-40GB", 150.0, 350.0, 300.0, range(600, 1201, 15))
    known = catalogue()["NVIDIA-A100-SXM4-40GB"]
    assert (gpu.min_power_limit_watts, gpu.max_power_limit_watts, gpu.default_power_limit_watts) == (150, 350, 300)
    assert (gpu.clocks_megahertz[0], gpu.max_clock_megahertz) == (600, 1200)
    assert gpu.knee_megahertz == known.knee_megahertz
    assert gpu.voltage(gpu.clock_array()) == pytest.approx(known.voltage(gpu.clock_array())), "a clock has its volts"
    assert GpuModel.from_device("NVIDIA-A100-SXM4-40GB", 100.0, 400.0, 400.0, ()) == known


def test_an_unknown_device_gets_a_curve_scaled_to_its_own_figures() -> None:
    gpu = GpuModel.from_device("NVIDIA-X900", 300.0, 1000.0, 1000.0, [300, 2000, 1000, 1000])
    assert gpu.clocks_megahertz == (300, 1000, 2000)
    assert gpu.knee_megahertz == pytest.approx(1600)
    assert gpu.idle_power_watts == pytest.approx(145)
    assert gpu.relative_speed == pytest.approx(2.5)
    with pytest.raises(ValueError, match="NVIDIA-X900: reports no clocks"):
        GpuModel.from_device("NVIDIA-X900", 300.0, 1000.0, 1000.0, [])


def test_contradictory_figures_are_refused_by_name() -> None:
    good = catalogue()["NVIDIA-A100-SXM4-40GB"]
    with pytest.raises(ValueError, match=r"power limits .* are not 0 < min <= default <= max"):
        replace(good, min_power_limit_watts=500.0)
    with pytest.raises(ValueError, match="clocks must be positive and ascend"):
        replace(good, clocks_megahertz=(1410, 210))
    with pytest.raises(ValueError, match=r"idle 900\.0 W"):
        replace(good, idle_power_watts=900.0)


ENTRY = {"product": "X1", "limits": [100, 300, 250], "idle": 30, "clocks": [300, 1500, 300], "knee": 900, "slope": 0.5}


def test_a_file_of_models_extends_the_catalogue_and_replaces_what_it_knows(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(json.dumps({"models": [ENTRY, ENTRY | {"product": "NVIDIA-A40", "speed": 0.7}]}), encoding="utf-8")
    extended = catalogue(path)
    assert extended["X1"].clocks_megahertz == (300, 600, 900, 1200, 1500)
    assert extended["X1"].relative_speed == 250 / 400
    assert extended["NVIDIA-A40"].relative_speed == 0.7
    assert set(extended) == set(catalogue()) | {"X1"}
    assert "X1" not in catalogue()
    device = GpuModel.from_device("X1", 100.0, 280.0, 200.0, (300, 1500), models=extended)
    assert (device.knee_megahertz, device.max_power_limit_watts) == (900, 280)
    with pytest.raises(ValueError, match="holds 2 GPU models, and one is wanted"):
        gpu_model_from_file(path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"limits": [1, 2]}, r"X1: `limits` is \[1, 2\], and must be \[min, max, default\] in watts"),
        ({"idle": "low"}, "X1: `idle` is 'low', and must be a number"),
        ({"knees": 3}, r"X1: unknown keys \['knees'\], missing \[\]"),
        ({"clocks": [1500, 300, 15]}, "`clocks` is .* lowest <= highest"),
        ({"limits": [300, 200, 250]}, "power limits .* are not 0 < min <= default <= max"),
        ({"knees": 3}, "has product, clocks, idle, knee, limits, slope, and may have break, fit, source, speed"),
        ({"product": ""}, "lacks `product`"),
        ({"product": 40}, "lacks `product`"),
        ({"slope": -0.5}, r"X1: slope -0\.5 must be >= 0"),
        ({"idle": float("nan")}, "X1: `idle` is"),
        ({"idle": 10**400}, r"X1: `idle` is 10000.*, and must be a number"),
        ({"clocks": [1, 900_000_000.5, 0.001]}, "X1: `clocks` is .* more than 4096 clocks"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name_and_key(
    tmp_path: Path, entry: dict[str, object], message: str
) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(json.dumps(ENTRY | entry), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        gpu_models_from_file(path)
    assert str(path) in str(caught.value)


def test_a_product_is_known_by_its_label_however_the_file_spells_it(tmp_path: Path) -> None:
    """nvidia-smi prints spaces where the node label has dashes."""
    path = tmp_path / "model.yaml"
    path.write_text(json.dumps(ENTRY | {"product": "NVIDIA X900 PCIe"}), encoding="utf-8")
    found = gpu_model_for("NVIDIA-X900-PCIe-SHARED", catalogue(path))
    assert found is not None
    assert found.product == "NVIDIA-X900-PCIe"


def test_one_file_cannot_say_two_things_of_one_product(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(json.dumps({"models": [ENTRY, ENTRY | {"idle": 40}]}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"models\.yaml: X1 is there twice"):
        gpu_models_from_file(path)


@pytest.mark.slow
def test_a_file_that_is_too_much_is_refused_without_being_taken_in(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ValueError, match="larger than"):
        gpu_models_from_file(path)
    path.write_text("[" * 5000, encoding="utf-8")
    with pytest.raises(ValueError, match="nested too deeply"):
        gpu_models_from_file(path)
    # Each alias stands for nine of the one before it: printed in full, the error would fill the memory.
    references = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 30)]
    path.write_text("\n".join(["a0: &a0 [x]", *references, "product: X1"]), encoding="utf-8")
    with pytest.raises(ValueError, match="X1: unknown keys") as caught:
        gpu_models_from_file(path)
    assert len(str(caught.value)) < 1000
    entry = "product: X1\nlimits: [1, 2, 2]\nidle: 1\nclocks: [1, 2, 1]\nknee: 1\nslope: &s [*s, *s]\n"
    path.write_text(entry, encoding="utf-8")
    with pytest.raises(ValueError, match=r"X1: `slope` is .* must be a number") as caught:
        gpu_models_from_file(path)
    assert len(str(caught.value)) < 10_000


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text("- 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="wanted one GPU model"):
        gpu_models_from_file(path)
    path.write_text("source: 2021-13-40", encoding="utf-8")
    with pytest.raises(ValueError, match=r"model\.yaml: not YAML"):
        gpu_models_from_file(path)
    path.write_text("a: [", encoding="utf-8")
    with pytest.raises(ValueError, match="not YAML"):
        gpu_models_from_file(path)


def test_a_file_may_be_named_by_a_path_or_a_string(tmp_path: Path) -> None:
    path = tmp_path / "l4.yaml"
    path.write_text(
        "product: L4\nlimits: [40, 72, 72]\nidle: 12\nclocks: [210, 2040, 15]\nknee: 1200\nslope: 1\n", encoding="utf-8"
    )
    assert gpu_model_from_file(str(path)) == gpu_model_from_file(path)
