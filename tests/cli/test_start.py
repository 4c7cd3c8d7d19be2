"""The command line answers at once: what a command drives is imported when it runs."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from flyball_cli.main import build_app
build_app()
print(*sorted({"aiohttp", "asyncio", "msgspec", "numpy", "ssl", "textual", "yaml"} & sys.modules.keys()))
"""


def test_help_and_version_load_no_library_but_their_own() -> None:
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []


def test_an_operator_starts_and_fits_without_scipys_solvers() -> None:
    """They are as long to import as all the rest: a new leader is the sooner there, and has the sooner fitted, without."""
    program = """
import sys, flyball_operator.main
from flyball_planner.fitting.fit import Observation, fit
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
prior = model_class_prior("vgg16", gpu_model_for("NVIDIA-A100-SXM4-40GB"))
fitted = fit(prior, [Observation(1, 1, 64.0, 1410.0, 0.3, 70.0), Observation(2, 1, 32.0, 1005.0, 0.2, 80.0)])
print(fitted.errors.time_observations, "scipy.optimize" in sys.modules)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "2 False"
