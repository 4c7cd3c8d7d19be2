"""`flyball calibrate` from a CSV to a model that the planner loads."""

from __future__ import annotations

from pathlib import Path

import pytest
from flyball_planner.models.gpu import catalogue, gpu_model_for, gpu_model_from_file

from tests.support.command_line import flyball


def write_sweep(folder: Path) -> Path:
    """A board of 250 W with its knee at 1200 MHz, idle included."""
    lines = ["clock_megahertz,workload,power_watts"]
    for clock in range(600, 1801, 60):
        voltage = 1 + 1.2 * max(0, clock - 1200) / 1800
        lines += [f"{clock},bert,{40 * voltage + 0.05 * voltage**2 * clock:.3f}", f"{clock},idle,{40 * voltage:.3f}"]
    path = folder / "sweep.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run(*arguments: object) -> tuple[int, str]:
    result = flyball("calibrate", *arguments)
    return result.exit_code, result.output


def test_a_sweep_becomes_a_model_that_the_planner_loads(tmp_path: Path) -> None:
    output, plot = tmp_path / "models" / "model.yaml", tmp_path / "pictures" / "fit.png"  # folders that are made
    limits = ("--limits", "100,250,250")
    code, text = run(write_sweep(tmp_path), "--product", "NVIDIA-X1", "--output", output, "--plot", plot, *limits)
    assert code == 0, text
    assert "95 % interval" in text
    assert "after the CSV" not in text
    assert plot.read_bytes().startswith(b"\x89PNG")
    model = gpu_model_from_file(output)
    assert (model.product, model.min_power_limit_watts, model.default_power_limit_watts) == ("NVIDIA-X1", 100, 250)
    assert model.idle_power_watts == pytest.approx(40, abs=0.5)
    assert model.knee_megahertz == pytest.approx(1200, abs=15)
    assert model.voltage_slope == pytest.approx(1.2, rel=0.03)
    assert model.clocks_megahertz == tuple(range(600, 1801, 60))
    assert gpu_model_for("NVIDIA X1", catalogue(output)) == model
    assert gpu_model_for("NVIDIA-X1") is None


def test_a_known_product_brings_its_limits_and_clocks(tmp_path: Path) -> None:
    output = tmp_path / "a40.yaml"
    code, text = run(write_sweep(tmp_path), "--product", "NVIDIA-A40", "--output", output, "--clocks", "300,1800,15")
    assert code == 0, text
    model = gpu_model_from_file(output)
    assert model.max_power_limit_watts == catalogue()["NVIDIA-A40"].max_power_limit_watts
    assert model.clocks_megahertz == tuple(range(300, 1801, 15))


def test_a_model_without_a_product_says_that_no_node_has_it(tmp_path: Path) -> None:
    code, text = run(write_sweep(tmp_path), "--output", tmp_path / "model.yaml", "--limits", "100,250,250")
    assert code == 0, text
    assert "it is called 'sweep' after the CSV" in text
    assert "--product" in text


def test_what_is_missing_or_wrong_is_said(tmp_path: Path) -> None:
    sweep, output = write_sweep(tmp_path), tmp_path / "model.yaml"
    code, text = run(sweep, "--product", "NVIDIA-X1", "--output", output)
    assert code == 2
    assert "the power limits of 'NVIDIA-X1' are not in the catalogue: give --limits" in text
    code, text = run(sweep, "--limits", "100,250", "--output", output)
    assert code == 2
    assert "--limits '100,250': wanted three numbers, MIN,MAX,DEFAULT in watts" in text
    bad = tmp_path / "bad.csv"
    bad.write_text("clock,power\n900,fast\n", encoding="utf-8")
    code, text = run(bad, "--output", output)
    assert code == 2
    assert "bad.csv: line 2, column 'power': 'fast' must be a number above 0" in text
    assert not output.exists()


def test_an_idle_power_above_the_limits_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "model.yaml"
    code, text = run(
        write_sweep(tmp_path), "--limits", "100,250,250", "--idle-watts", 5000, "--product", "X1", "--output", output
    )
    assert code == 2
    assert text == "flyball calibrate: --idle-watts: GPU model X1: idle 5000.0 W is not within 0 and 250.0 W\n"
    assert not output.exists()


def test_a_fit_that_misses_its_points_warns_and_comforts_nobody(tmp_path: Path) -> None:
    sweep, output = write_sweep(tmp_path), tmp_path / "model.yaml"
    code, text = run(sweep, "--limits", "100,250,250", "--idle-watts", 240, "--output", output)
    assert code == 0, text
    assert "warning: the fit misses the points by" in text
    assert "good all the same" not in text
    code, text = run(sweep, "--limits", "100,250,250", "--output", output)
    assert "warning" not in text
