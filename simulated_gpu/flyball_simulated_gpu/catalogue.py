"""The GPU products that can be simulated, each with the source of its curve (docs/simulated-gpu.md, "The products")."""

from __future__ import annotations

from types import MappingProxyType

from flyball_simulated_gpu.physics import DeviceConstants

_PRODUCTS = (
    # Fit of the Perseus A100 stage profiles (855-1410 MHz, 1.5 % mean error); A: activity 1 draws 400 W at 1410 MHz.
    DeviceConstants(
        product_name="NVIDIA-A100-SXM4-40GB",
        min_limit_milliwatts=100_000,
        max_limit_milliwatts=400_000,
        default_limit_milliwatts=400_000,
        idle_milliwatts=58_000,
        clock_min_megahertz=210,
        clock_max_megahertz=1410,
        clock_step_megahertz=15,
        knee_megahertz=1125,
        voltage_slope=1.0,
        watts_per_megahertz=0.162,
    ),
    DeviceConstants(
        product_name="NVIDIA-A100-SXM4-80GB",
        min_limit_milliwatts=100_000,
        max_limit_milliwatts=400_000,
        default_limit_milliwatts=400_000,
        idle_milliwatts=61_000,
        clock_min_megahertz=210,
        clock_max_megahertz=1410,
        clock_step_megahertz=15,
        knee_megahertz=1125,
        voltage_slope=1.0,
        watts_per_megahertz=0.160,
    ),
    # Zeus' V100 measurements: V(f_max) = 1.06 above 1125 MHz, idle 40-55 W; A: activity 1 draws 300 W at 1380 MHz.
    DeviceConstants(
        product_name="Tesla-V100-SXM2-32GB",
        min_limit_milliwatts=100_000,
        max_limit_milliwatts=300_000,
        default_limit_milliwatts=300_000,
        idle_milliwatts=50_000,
        clock_min_megahertz=135,
        clock_max_megahertz=1380,
        clock_step_megahertz=15,
        knee_megahertz=1125,
        voltage_slope=0.325,
        watts_per_megahertz=0.1593,
    ),
    # The GPU's limits and clocks; the A100's voltage at the top, scaled to 700 W.
    DeviceConstants(
        product_name="NVIDIA-H100-80GB-HBM3",
        min_limit_milliwatts=200_000,
        max_limit_milliwatts=700_000,
        default_limit_milliwatts=700_000,
        idle_milliwatts=70_000,
        clock_min_megahertz=345,
        clock_max_megahertz=1980,
        clock_step_megahertz=15,
        knee_megahertz=1395,
        voltage_slope=0.68,
        watts_per_megahertz=0.215,
    ),
)

CATALOGUE = MappingProxyType({product.product_name: product for product in _PRODUCTS})
