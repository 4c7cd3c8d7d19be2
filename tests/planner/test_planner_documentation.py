"""The example of docs/planner.md is run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "planner.md"


def test_the_example_of_the_document_plans(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    exec(compile(found.group(1), str(DOCUMENT), "exec"), {})  # noqa: S102 - our own text, that is the point
    allocation, sentence, outcome = capsys.readouterr().out.splitlines()
    assert allocation.startswith("Allocation(nodes=(('node-0', ")
    assert " MHz: " in sentence
    assert "feasible=True" in outcome
