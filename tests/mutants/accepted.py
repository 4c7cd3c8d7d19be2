"""Mutants that no test kills, each with the reason; docs/power-safety.md has the same table for readers."""

from __future__ import annotations

ACCEPTED: dict[str, str] = {}
