"""What CI tries properties on is the same in every run, whatever was imported by then."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

NUMBERS = range(70_001, 72_000, 2)


def drawn(profile: str) -> list[int]:
    """What a property is tried on under a profile."""
    seen: list[int] = []

    @settings(settings.get_profile(profile), max_examples=200)
    @given(st.integers(0, 100_000))
    def holds(number: int) -> None:
        seen.append(number)

    holds()
    return seen


@pytest.mark.parametrize("profile", ["gate", "repeatable"])
def test_what_has_to_pass_repeats_its_examples_whatever_else_was_imported(
    profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = drawn(profile)
    name = f"numbers_of_ours_{profile}"
    (tmp_path / f"{name}.py").write_text(f"NUMBERS = {set(NUMBERS)}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(name)
    assert drawn(profile) == first
    assert len(set(first)) > 5


@pytest.mark.parametrize("profile", ["half", "full", "thorough"])
def test_what_searches_draws_others_each_time(profile: str) -> None:
    assert drawn(profile) != drawn(profile)


PROFILES = ("full", "half", "gate", "fast", "thorough", "repeatable")
PRINT_PROFILES = f"""
from hypothesis import settings
import tests.support.examples
for name in {PROFILES}:
    print(name, settings.get_profile(name))
"""


def profiles_where(environment: dict[str, str]) -> list[str]:
    """What each profile says in a process of such an environment, a line each."""
    shown = subprocess.run(
        [sys.executable, "-c", PRINT_PROFILES], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return shown.stdout.splitlines()


def test_a_profile_is_the_same_where_hypothesis_takes_the_machine_for_ci() -> None:
    ours = {name: value for name, value in os.environ.items() if name != "CI"}
    at_home = profiles_where(ours)
    assert [line.split()[0] for line in at_home] == list(PROFILES)
    assert all(
        "max_examples=" in line and "derandomize=" in line and "suppress_health_check=" in line for line in at_home
    )
    assert profiles_where(ours | {"CI": "true"}) == at_home
