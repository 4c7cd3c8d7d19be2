"""Kept results are of one state of the code: of all that their figures depend on, and of nothing else."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from flyball_simulator.experiments import code_version as module
from flyball_simulator.experiments.code_version import ROOTS, code_version, modules_behind


def test_what_a_run_depends_on_is_covered_and_pictures_are_not() -> None:
    covered = set(modules_behind(ROOTS))
    assert {
        "flyball_simulator.engine",
        "flyball_simulator.measured.oracle",
        "flyball_simulator.workloads.traces",
        "flyball_planner.models.job",
        "flyball_planner.policies.price.policy",
        "flyball_planner.policies.energy_budget",
    } <= covered
    assert not {name for name in covered if name.startswith(("flyball_simulator.experiments", "flyball_studies"))}


def test_a_change_of_anything_behind_the_roots_is_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = tmp_path / "toy_of_versions"
    toy.mkdir()
    sources = {
        "__init__.py": "",
        "root.py": "def run():\n    from toy_of_versions import deep\n",  # an import inside a function counts
        "deep.py": "A = 1\n",
        "picture.py": "B = 1\n",
        "table.csv": "1,2\n",
    }
    for name, text in sources.items():
        (toy / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "PACKAGES", ("toy_of_versions",))
    monkeypatch.setattr(module, "ROOTS", ("toy_of_versions.root",))
    importlib.invalidate_caches()
    before = code_version.__wrapped__()
    assert code_version.__wrapped__() == before
    for name, depends in (("deep.py", True), ("root.py", True), ("table.csv", True), ("picture.py", False)):
        (toy / name).write_text(sources[name] + "\n")
        assert (code_version.__wrapped__() != before) is depends, name
        (toy / name).write_text(sources[name])
    assert code_version.__wrapped__() == before
