"""Logs with fields given as `extra`: one JSON object a line, as decisions are."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from flyball_kube.logs import JsonFormatter, TextFormatter, configure_logging


def record(**extra) -> logging.LogRecord:
    return logging.getLogger("flyball_agent.loop").makeRecord(
        "flyball_agent.loop", logging.INFO, "loop.py", 1, "limit", (), None, extra=extra
    )


def test_a_decision_is_one_line_with_its_fields():
    line = JsonFormatter().format(record(node="node-0", new_milliwatts=100_000, pair=(1, 2)))
    assert "\n" not in line
    fields = json.loads(line)
    assert fields.pop("time").endswith("+00:00")
    assert fields == {
        "level": "info",
        "logger": "flyball_agent.loop",
        "event": "limit",
        "node": "node-0",
        "new_milliwatts": 100_000,
        "pair": [1, 2],
    }


def test_a_traceback_stays_in_its_line():
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        failed = record()
        failed.exc_info = sys.exc_info()
    line = JsonFormatter().format(failed)
    assert "\n" not in line
    assert "ValueError: first\nsecond" in json.loads(line)["exception"]


def test_text_is_for_people():
    assert TextFormatter().format(record(node="node-0")).endswith("limit node=node-0")


def test_another_format_is_refused():
    with pytest.raises(ValueError, match="json or text"):
        configure_logging("xml", "info")
