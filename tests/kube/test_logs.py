"""Logs that a machine can read, a person can follow, and nobody can steal a credential from."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import pytest
from flyball_kube.logs import REDACTED, JsonFormatter, TextFormatter, configure_logging, decision, redact

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl-_x"


class _Lines(logging.Handler):
    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def logger_to(formatter: logging.Formatter) -> tuple[logging.Logger, list[str]]:
    logger = logging.Logger("flyball_operator.test", logging.DEBUG)
    handler = _Lines(formatter)
    logger.addHandler(handler)
    return logger, handler.lines


def test_a_decision_is_one_line_of_json_with_its_fields() -> None:
    logger, lines = logger_to(JsonFormatter())
    decision(logger, "grant", node="n1", epoch=3, reason="two\nlines", nodes=("a", "b"), watts=math.nan, seen={1: 2.5})
    (line,) = lines
    assert "\n" not in line
    parsed: dict[str, Any] = json.loads(line)
    assert parsed.pop("time").endswith("+00:00")
    assert parsed == {
        "level": "info",
        "logger": "flyball_operator.test",
        "event": "grant",
        "node": "n1",
        "epoch": 3,
        "reason": "two\nlines",
        "nodes": ["a", "b"],
        "watts": None,
        "seen": {"1": 2.5},
    }


def test_no_field_can_stand_in_for_what_every_line_has() -> None:
    logger, lines = logger_to(JsonFormatter())
    decision(logger, "grant", level="fatal", time="never")
    assert json.loads(lines[0])["level"] == "info"
    assert json.loads(lines[0])["time"] != "never"


def test_an_exception_is_part_of_its_line() -> None:
    logger, lines = logger_to(JsonFormatter())
    try:
        raise ValueError(f"refused: Authorization: Bearer {JWT}")
    except ValueError:
        logger.exception("a cycle failed")
    (line,) = lines
    exception = json.loads(line)["exception"]
    assert exception.startswith("Traceback")
    assert "ValueError: refused" in exception
    assert JWT not in line


def test_text_for_terminals_names_the_fields() -> None:
    logger, lines = logger_to(TextFormatter())
    decision(logger, "plan", job="research/gpt2", gpus=8)
    assert lines[0].endswith("INFO    plan job=research/gpt2 gpus=8")


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_credentials_never_reach_a_log(formatter: logging.Formatter) -> None:
    logger, lines = logger_to(formatter)
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"
    logger.warning("headers {'Authorization': 'Bearer %s'}", "opaque-token-1")
    logger.warning("GET https://admin:hunter2@10.0.0.1/api failed; %s", key)
    decision(logger, "login", bearer_token="opaque-token-2", config={"clientSecret": "hunter2"}, seen=[f"x {JWT}"])
    text = "\n".join(lines)
    for secret in ("opaque-token-1", "opaque-token-2", "hunter2", "MIIEow", JWT):
        assert secret not in text
    assert text.count(REDACTED) == 6
    assert "10.0.0.1/api failed" in text


def test_ordinary_words_stay() -> None:
    said = "the lease of node-7 is renewed; basic checks at https://host:6443/healthz; bearer of news"
    assert redact(said) == said
    assert redact("bearers eyJust.words") == "bearers eyJust.words"


@pytest.fixture
def root_logger() -> Any:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:], root.level = handlers, level


def test_configuring_takes_over_the_root_logger(root_logger: logging.Logger) -> None:
    configure_logging("json", "warning")
    assert [type(handler.formatter) for handler in root_logger.handlers] == [JsonFormatter]
    assert root_logger.level == logging.WARNING
    configure_logging("text", "info")
    assert [type(handler.formatter) for handler in root_logger.handlers] == [TextFormatter]
    with pytest.raises(ValueError, match=r"log format 'xml' is unknown \(json or text\)"):
        configure_logging("xml", "info")
    with pytest.raises(ValueError, match="LOUD"):
        configure_logging("json", "loud")
