"""The example of docs/planner.md is run as it stands there, and prints what stands below it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "planner.md"


def test_the_example_of_the_document_plans(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(
        r"```python\n(.*?)```\n\nprints\n\n```\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None, "an example and what it prints"
    exec(compile(found.group(1), str(DOCUMENT), "exec"), {})  # noqa: S102 - our own text, that is the point
    assert capsys.readouterr().out == found.group(2)
